"""Every system on its task, until the task is solved; docs/systems/measured.json keeps what was measured.

    python benchmarks/systems.py                    # all of them: about 15 minutes
    python benchmarks/systems.py a3c impala         # some of them; the others keep their rows and curves
    python benchmarks/systems.py ppo --seeds 3 4
    python benchmarks/systems.py ppo --seeds 3 4 --parallel 2      # two runs at a time, which share the cores

Runs take the way of `tessera train NAME ENV`: the system's settings and policy, and processes wherever the policy has
several replicas. The rows of a system, with what it was run on, become its entry of measured.json, and their curves
docs/systems/NAME.png. The pages are written by hand, and show both (`docs/_ext/systems.py`).
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tessera import map_reduce
from tessera.algorithms.contract import Algorithm
from tessera.api import train
from tessera.engines.driver.pool import keep_processes
from tessera.errors import unknown_name
from tessera.planning.prepare import prepare_plan
from tessera.runs.curves import plot
from tessera.systems import SYSTEMS, System, find

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "systems"
MEASURED = FOLDER / "measured.json"
SEEDS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Task:
    """What a system is trained on, and how long."""

    env: str = "gymnax:CartPole-v1"
    steps: int = 500_000
    """At the most: runs end when greedy episodes reach the target."""
    target: float | None = 475.0
    opponent: str | None = None
    """Who greedy episodes of a game are played against."""
    evaluate_every: int = 0
    """Updates between evaluations, where a curve is of them."""


HIDDEN = Task("gymnax:CartPole-v1?hide=1,3", 1_000_000)
"""For systems that remember: velocities are hidden, and have to be told from positions seen before."""

EXCEPTIONS: dict[str, Task] = {
    "alphazero": Task("pgx:tic_tac_toe", 60_000, None, "greedy", 5),
    "elf": Task("pgx:tic_tac_toe", 60_000, None, "greedy", 5),
    "mappo": Task("jaxmarl:MPE_simple_spread_v3", 2_000_000, None),
    "apex_dpg": Task("gymnax:Pendulum-v1", 200_000, -200.0),
    "ddpg": Task("gymnax:Pendulum-v1", 200_000, -200.0),
    "dpg": Task("gymnax:Pendulum-v1", 200_000, -200.0),
    "sac": Task("gymnax:Pendulum-v1", 40_000, -200.0),
    "td3": Task("gymnax:Pendulum-v1", 40_000, -200.0),
    "r2d2": HIDDEN,
    "async_q": Task(target=None),
    "q_learning": Task(target=None),
    "async_sarsa": Task(target=None),
    "async_nstep_q": Task(target=None),
}
"""Systems whose task does not follow from whether they remember."""


@dataclass(frozen=True)
class Row:
    """What one run gave."""

    seed: int
    steps_per_second: float
    seconds: float | None
    """From the first update, which compiles, until greedy episodes reached the target; None if they did not."""
    steps: int
    greedy_return: float


def task_of(name: str) -> Task:
    """What a system is measured on."""
    return EXCEPTIONS.get(name) or (HIDDEN if SYSTEMS[name].options.get("core") else Task())


def made(name: str) -> tuple[Algorithm, System]:
    """A system's algorithm as the command line makes it, and the system."""
    cls, system = find(name)
    assert system is not None
    return cls(**system.options), system


def measure(run: tuple[str, int, str]) -> dict[str, Any]:
    """Train a system with a seed until the target or to the end, in a folder; a row as plain data."""
    name, seed, folder = run
    (algorithm, system), task = made(name), task_of(name)
    goal = {"steps": task.steps, "target_return": task.target, "opponent": task.opponent}
    goal |= {"evaluate_every": task.evaluate_every}
    result = train(algorithm, task.env, system.policy or None, **goal, seed=seed, run_dir=folder, quiet=True)
    row = row_of(task, seed, result.summary, result.metrics[0]["seconds"])
    print(f"{name}  {task.env}  {json.dumps(asdict(row))}", flush=True)
    return asdict(row)


def row_of(task: Task, seed: int, summary: Mapping[str, Any], compiled: float) -> Row:
    """The row of a run, whose first update was made after so many seconds."""
    solved = task.target is not None and summary["solved"]
    seconds = (summary["seconds_to_target"] or summary["wall_seconds"]) - compiled if solved else None
    return Row(seed, summary["steps_per_second"], seconds, summary["env_steps"], summary["eval_return_mean"])


def entry(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A system's entry of measured.json: what was run, and what it gave."""
    (algorithm, system), task = made(name), task_of(name)
    *_, plan = prepare_plan(algorithm, task.env, system.policy or None)
    return {"task": asdict(task), "engine": plan.engine, "flags": "", "rows": list(rows)}


def write(found: Mapping[str, Mapping[str, Any]], path: Path = MEASURED) -> None:
    """Write measured.json, with a line for each row."""
    blocks = []
    for name in (name for name in SYSTEMS if name in found):
        facts = [f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in found[name].items() if key != "rows"]
        rows = ",\n".join(f"      {json.dumps(row)}" for row in found[name]["rows"])
        blocks.append(f"  {json.dumps(name)}: {{\n" + ",\n".join([*facts, f'    "rows": [\n{rows}\n    ]']) + "\n  }")
    path.write_text("{\n" + ",\n".join(blocks) + "\n}\n")


def redo(name: str, seeds: Sequence[int], parallel: int) -> dict[str, Any]:
    """Run a system and draw its curves; its entry of measured.json."""
    with tempfile.TemporaryDirectory() as temporary:
        folders = [Path(temporary, f"seed{seed}", name) for seed in seeds]
        runs = [(name, seed, str(folder)) for seed, folder in zip(seeds, folders, strict=True)]
        rows: list[dict[str, Any]] = map_reduce(measure, list, runs, workers=parallel)
        plot(folders, FOLDER / f"{name}.png")
    return entry(name, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("systems", nargs="*", help="which to redo; default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="one run, and one curve, for each")
    parser.add_argument("--parallel", type=int, default=1, help="runs of one system at a time")
    options = parser.parse_args()
    lone = [name for name, system in SYSTEMS.items() if not system.population]  # populations: benchmarks/populations.py
    for name in options.systems:
        if name not in lone:
            raise SystemExit(str(unknown_name("system that is no population", name, lone)))
    with keep_processes():
        for name in options.systems or lone:
            new = redo(name, options.seeds, options.parallel)
            write({**json.loads(MEASURED.read_text()), name: new})
    print(f"wrote {MEASURED}")


if __name__ == "__main__":
    main()
