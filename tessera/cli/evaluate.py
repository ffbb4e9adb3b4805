"""`tessera eval`: greedy episodes of one run or several, and how sure their figures are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from tessera.cli.flags import check_flags, read_flags
from tessera.errors import TesseraError, unknown_name

if TYPE_CHECKING:
    from tessera.evaluation.many_runs import RunEvaluation

FORMATS = ("table", "json")


@dataclass
class EvalOptions:
    """Play greedy episodes with the newest params of one run or several."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories."""
    episodes: int = 100
    """How many, of each run."""
    seed: int = 0
    """What the environments' randomness derives from."""
    workers: int | None = None
    """Batches of episodes played at a time; default: one, or as many as there are cores if an engine is named."""
    engine: Literal["serial", "local", "ray"] | None = None
    """Who plays: this process (serial), processes (local) or tasks of a cluster (ray); default: local for several."""
    address: str | None = None
    """Ray cluster for --engine ray; default: the one that `tessera cluster up` started, else one for this command."""
    scale: tuple[str, ...] = ()
    """ENV=LOW:HIGH …: returns that count as 0 and as 1, to take runs on several environments together as scores."""
    format: str = "table"
    """table or json."""


def evaluate_command(arguments: list[str]) -> None:
    """Run the command."""
    check_flags(arguments, EvalOptions)
    options = read_flags(EvalOptions, arguments, "tessera eval")
    if not options.runs:
        raise TesseraError("nothing to evaluate: name one or more run directories")
    if options.episodes < 1:
        raise TesseraError(f"--episodes {options.episodes}: at least one is needed")
    if options.workers is not None and options.workers < 1:
        raise TesseraError(f"--workers {options.workers}: at least one is needed")
    if options.format not in FORMATS:
        raise unknown_name("format", options.format, FORMATS)
    scales = read_scales(options.scale)
    from tessera.api import evaluate_runs
    from tessera.runs import directory
    from tessera.support.cache import use_compilation_cache

    for run in options.runs if scales else ():  # before the work, not after it
        env = directory.read_config(run)["env"]
        if env not in scales:
            raise TesseraError(f"--scale says nothing of {env}, the environment of {run}: add {env}=LOW:HIGH")
    use_compilation_cache()
    where = {"workers": options.workers, "engine": options.engine, "address": options.address}
    found = evaluate_runs(options.runs, options.episodes, options.seed, **where)
    if options.format == "json":
        told = {"runs": [figures(e) for e in found], "environments": aggregates(found)}
        print(json.dumps({**told, **({"scores": scores(found, scales)} if scales else {})}, indent=2))
    else:
        print("\n".join(lines(found, scales)))


def read_scales(texts: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Environment -> returns that count as 0 and as 1."""
    scales = {}
    for text in texts:
        env, _, bounds = text.rpartition("=")
        try:
            low, high = map(float, bounds.split(":"))
        except ValueError:
            low = high = 0.0
        if not env or low == high:
            raise TesseraError(f"--scale {text}: write ENV=LOW:HIGH, as in gymnax:CartPole-v1=0:500")
        scales[env] = (low, high)
    return scales


def figures(e: RunEvaluation) -> dict[str, Any]:
    """What was found of one run, as plain data."""
    return {
        "run": str(e.run),
        "env": e.env,
        "update": e.update,
        "episodes": len(e.returns),
        "return_mean": e.return_mean,
        "return_mean_interval": e.interval,
        "return_std": e.return_std,
        "return_median": e.return_median,
        "return_iqm": e.iqm,
        "return_iqm_interval": e.iqm_interval,
        "length_mean": e.length_mean,
        "returns": e.returns.tolist(),
    }


def aggregates(found: Sequence[RunEvaluation]) -> list[dict[str, Any]]:
    """Over the runs of each environment: a run counts by its mean return, and intervals are over runs."""
    import numpy as np

    from tessera.evaluation.intervals import bootstrap_interval, interquartile_mean, mean

    out = []
    for env in dict.fromkeys(e.env for e in found):
        scores = np.asarray([e.return_mean for e in found if e.env == env])
        told: dict[str, Any] = {"env": env, "runs": len(scores), "return_median": float(np.median(scores))}
        for name, statistic in (("mean", mean), ("iqm", interquartile_mean)):
            told[f"return_{name}"] = float(statistic(scores))
            told[f"return_{name}_interval"] = bootstrap_interval(scores, statistic)
        out.append(told)
    return out


def scores(found: Sequence[RunEvaluation], scales: dict[str, tuple[float, float]]) -> dict[str, Any]:
    """Over all runs, each with its mean return on the scale of its environment; runs are resampled within each."""
    import numpy as np

    from tessera.evaluation.intervals import interquartile_mean, stratified_interval

    strata = []
    for env, (low, high) in scales.items():
        strata.append(np.asarray([(e.return_mean - low) / (high - low) for e in found if e.env == env]))
    whole = np.concatenate(strata)
    interval = stratified_interval(strata, interquartile_mean)
    return {"runs": len(whole), "iqm": float(interquartile_mean(whole)), "iqm_interval": interval}


def lines(found: Sequence[RunEvaluation], scales: dict[str, tuple[float, float]]) -> list[str]:
    """The same for people: a line for each run, one for each environment that several runs are of, one for all."""
    several = len(found) > 1
    out = [(f"{e.run}: " if several else "") + _line(e) for e in found]
    for told in aggregates(found):
        if told["runs"] > 1:
            out.append(
                f"{told['runs']} runs on {told['env']}: interquartile mean {told['return_iqm']:.2f} "
                f"(95 % {_bounds(told['return_iqm_interval'])}, over runs), mean {told['return_mean']:.2f} "
                f"({_bounds(told['return_mean_interval'])}), median {told['return_median']:.2f}"
            )
    if scales:
        told = scores(found, scales)
        bounds = _bounds(told["iqm_interval"])
        out.append(f"{told['runs']} runs by score: interquartile mean {told['iqm']:.2f} (95 % {bounds}, over runs)")
    return out


def _line(e: RunEvaluation) -> str:
    return (
        f"return {e.return_mean:.2f} ± {e.return_std:.2f} (95 % of means {_bounds(e.interval)}, "
        f"min {e.returns.min():.1f}, max {e.returns.max():.1f}), median {e.return_median:.2f}, "
        f"interquartile mean {e.iqm:.2f} (95 % {_bounds(e.iqm_interval)}), length {e.length_mean:.1f}, "
        f"{len(e.returns)} greedy episodes"
    )


def _bounds(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.2f} to {interval[1]:.2f}"
