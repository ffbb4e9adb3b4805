"""The command `tessera eval`: greedy episodes of one run or several, and how sure their figures are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from tessera.errors import TesseraError, unknown_name
from tessera.flags import check_flags, read_flags

if TYPE_CHECKING:
    from tessera.runs import RunEvaluation

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
    format: str = "table"
    """table or json."""


def evaluate(arguments: list[str]) -> None:
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
    from tessera.cache import use_compilation_cache
    from tessera.runs import evaluate_runs

    use_compilation_cache()
    where = {"workers": options.workers, "engine": options.engine, "address": options.address}
    found = evaluate_runs(options.runs, options.episodes, options.seed, **where)
    if options.format == "json":
        print(json.dumps({"runs": [figures(e) for e in found], "environments": aggregates(found)}, indent=2))
    else:
        print("\n".join(lines(found)))


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

    from tessera.maths.intervals import bootstrap_interval, interquartile_mean, mean

    out = []
    for env in dict.fromkeys(e.env for e in found):
        scores = np.asarray([e.return_mean for e in found if e.env == env])
        told: dict[str, Any] = {"env": env, "runs": len(scores), "return_median": float(np.median(scores))}
        for name, statistic in (("mean", mean), ("iqm", interquartile_mean)):
            told[f"return_{name}"] = float(statistic(scores))
            told[f"return_{name}_interval"] = bootstrap_interval(scores, statistic)
        out.append(told)
    return out


def lines(found: Sequence[RunEvaluation]) -> list[str]:
    """The same for people: a line for each run, then one for each environment that several runs are of."""
    several = len(found) > 1
    out = [(f"{e.run}: " if several else "") + _line(e) for e in found]
    for told in aggregates(found):
        if told["runs"] > 1:
            out.append(
                f"{told['runs']} runs on {told['env']}: interquartile mean {told['return_iqm']:.2f} "
                f"(95 % {_bounds(told['return_iqm_interval'])}, over runs), mean {told['return_mean']:.2f} "
                f"({_bounds(told['return_mean_interval'])}), median {told['return_median']:.2f}"
            )
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
