"""Figures of evaluated runs, one by one and together: as plain data, and as lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tessera.evaluation.intervals import bootstrap_interval, interquartile_mean, mean, stratified_interval
from tessera.evaluation.many_runs import RunEvaluation
from tessera.evaluation.outcomes import outcome_figures

Scales = Mapping[str, tuple[float, float]]
"""Environment -> the returns that count as scores 0 and 1."""


def as_data(evaluations: Sequence[RunEvaluation], scales: Scales) -> dict[str, Any]:
    """Figures of each run, of each environment, and of all scores if there are scales."""
    data = {"runs": [run_figures(e) for e in evaluations], "environments": environment_figures(evaluations)}
    return {**data, "scores": score_figures(evaluations, scales)} if scales else data


def as_lines(evaluations: Sequence[RunEvaluation], scales: Scales) -> list[str]:
    """One line for each run, for each environment with several runs, and for all scores if there are scales."""
    several = len(evaluations) > 1
    lines = [(f"{e.run}: " if several else "") + _run_line(e) for e in evaluations]
    lines += [_environment_line(figures) for figures in environment_figures(evaluations) if figures["runs"] > 1]
    if scales:
        figures = score_figures(evaluations, scales)
        bounds = _bounds(figures["iqm_interval"])
        lines.append(
            f"{figures['runs']} runs by score: interquartile mean {figures['iqm']:.2f} (95 % {bounds}, over runs)"
        )
    return lines


def run_figures(evaluation: RunEvaluation) -> dict[str, Any]:
    """Figures of one run, over its episodes."""
    return {
        "run": str(evaluation.run),
        "env": evaluation.env,
        "update": evaluation.update,
        "episodes": len(evaluation.returns),
        "return_mean": evaluation.return_mean,
        "return_mean_interval": evaluation.interval,
        "return_std": evaluation.return_std,
        "return_median": evaluation.return_median,
        "return_iqm": evaluation.iqm,
        "return_iqm_interval": evaluation.iqm_interval,
        "length_mean": evaluation.length_mean,
        **outcome_figures(evaluation.outcomes, evaluation.opponent),
        "returns": evaluation.returns.tolist(),
    }


def environment_figures(evaluations: Sequence[RunEvaluation]) -> list[dict[str, Any]]:
    """Figures of each environment, over the mean returns of its runs; intervals are over runs."""
    environments = []
    for env in dict.fromkeys(e.env for e in evaluations):
        returns = np.asarray([e.return_mean for e in evaluations if e.env == env])
        figures: dict[str, Any] = {"env": env, "runs": len(returns), "return_median": float(np.median(returns))}
        for name, statistic in (("mean", mean), ("iqm", interquartile_mean)):
            figures[f"return_{name}"] = float(statistic(returns))
            figures[f"return_{name}_interval"] = bootstrap_interval(returns, statistic)
        environments.append(figures)
    return environments


def score_figures(evaluations: Sequence[RunEvaluation], scales: Scales) -> dict[str, Any]:
    """Figures of all runs together, each by its mean return on the scale of its environment.

    The interval resamples runs within each environment.
    """
    strata = []
    for env, (low, high) in scales.items():
        strata.append(np.asarray([(e.return_mean - low) / (high - low) for e in evaluations if e.env == env]))
    scores = np.concatenate(strata)
    interval = stratified_interval(strata, interquartile_mean)
    return {"runs": len(scores), "iqm": float(interquartile_mean(scores)), "iqm_interval": interval}


def _run_line(e: RunEvaluation) -> str:
    return (
        f"return {e.return_mean:.2f} ± {e.return_std:.2f} (95 % of means {_bounds(e.interval)}, "
        f"min {e.returns.min():.1f}, max {e.returns.max():.1f}), median {e.return_median:.2f}, "
        f"interquartile mean {e.iqm:.2f} (95 % {_bounds(e.iqm_interval)}), length {e.length_mean:.1f}, "
        f"{len(e.returns)} greedy episodes" + ("" if e.outcomes is None else f"; {e.outcomes.in_words(e.opponent)}")
    )


def _environment_line(figures: dict[str, Any]) -> str:
    return (
        f"{figures['runs']} runs on {figures['env']}: interquartile mean {figures['return_iqm']:.2f} "
        f"(95 % {_bounds(figures['return_iqm_interval'])}, over runs), mean {figures['return_mean']:.2f} "
        f"({_bounds(figures['return_mean_interval'])}), median {figures['return_median']:.2f}"
    )


def _bounds(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.2f} to {interval[1]:.2f}"
