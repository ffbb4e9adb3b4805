"""`tessera eval`: play greedy episodes with the params of one run or several, and print figures with intervals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from tessera.cli.flags import check_flags, read_flags
from tessera.cli.options import TrustOptions
from tessera.errors import TesseraError, unknown_name

FORMATS = ("table", "json")


@dataclass
class EvalOptions(TrustOptions):
    """Play greedy episodes with the params of one run or several."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories, or agents that were saved; a directory with several seeds stands for all of them."""
    episodes: int = 100
    """Episodes of each run."""
    checkpoint: str = "newest"
    """newest, best, or the number of the update whose checkpoint to take, of each run."""
    seed: int = 0
    """Seed of the environments."""
    opponent: str | None = None
    """Who games for two are played against: random, greedy (it wins where it can in one move), mcts or mcts:256 (a
    search without a network, of so many simulations), solver:bitbully (perfect in connect_four), or the folder of a
    run; default: as in training."""
    workers: int | None = None
    """Batches of episodes played at a time; default: one, or as many as there are cores if an engine is named."""
    engine: Literal["serial", "local", "ray"] | None = None
    """Where episodes are played: this process (serial), processes (local) or tasks of a cluster (ray);
    default: local for several workers."""
    address: str | None = None
    """Ray cluster for --engine ray; default: the one that `tessera cluster up` started, else one for this command."""
    scale: tuple[str, ...] = ()
    """ENV=LOW:HIGH …: returns that count as scores 0 and 1, to average over runs on several environments."""
    format: str = "table"
    """table or json."""


def evaluate_command(arguments: list[str]) -> None:
    """Run `tessera eval`."""
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
    from tessera.evaluation.summary import as_data, as_lines
    from tessera.runs import directory
    from tessera.runs.seed_folders import run_folders
    from tessera.support.cache import use_compilation_cache

    runs = [run for folder in options.runs for run in run_folders(folder)]
    for run in runs if scales else ():  # before any episode is played
        env = directory.read_config(run)["env"]
        if env not in scales:
            raise TesseraError(f"--scale says nothing of {env}, the environment of {run}: add {env}=LOW:HIGH")
    trust = options.trusted()
    use_compilation_cache()
    workers = {"workers": options.workers, "engine": options.engine, "address": options.address}
    evaluations = evaluate_runs(
        runs,
        options.episodes,
        options.seed,
        checkpoint=options.checkpoint,
        opponent=options.opponent,
        trust=trust,
        **workers,
    )
    if options.format == "json":
        print(json.dumps(as_data(evaluations, scales), indent=2))
    else:
        print("\n".join(as_lines(evaluations, scales)))


def read_scales(texts: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Environment -> the returns that count as scores 0 and 1."""
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
