"""Population-based training against random search and against fixed defaults, with equally many members and steps.

    python benchmarks/populations.py -o populations.json
    python benchmarks/populations.py --show populations.json                # the table of what was measured before
    python benchmarks/populations.py --tasks cartpole --every 8 --first 11  # fewer exchanges, other seeds

PPO on two tasks, in so few steps that its settings matter. Each side trains 8 members, with the same seeds: a
population, which exchanges as `--pbt-every` has it by default; a random search, which begins with the same values and
never exchanges; and PPO's own defaults. A side's result is the mean return of 100 greedy episodes of the member whose
training return was highest at the end, so no member is chosen by the episodes that are counted. That is repeated with
disjoint seeds: repetition r has seeds from 1000 r on. The table has interquartile means over repetitions with 95 %
bootstrap intervals, and what each repetition gave. A member whose numbers are no longer finite at the end is left out.

Ranges and steps were written down before the first run: few enough steps that the defaults are far from where they end
(docs/scores.md), and about 20 minutes on 2 cores. `-o` keeps every member's seed, returns and final settings.
"""

import argparse
import json
import math
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tessera
from tessera.errors import RunFailed
from tessera.evaluation.intervals import bootstrap_interval, interquartile_mean
from tessera.runs.metrics import read_metrics

RANGES = {
    "learning_rate": "log:1e-4:1e-1",
    "entropy_coefficient": "log:1e-4:1e-1",
    "clip": "log:0.05:0.8",
    "gae_lambda": "0.8:1",
}
"""Wide around PPO's defaults: 2e-3 (5e-3 on boards), 0.01, 0.2 and 0.95."""
MEMBERS, REPETITIONS, EPISODES = 8, 5, 100
SIDES = ("population", "random search", "defaults")


@dataclass(frozen=True)
class Task:
    """What is trained, and for how long."""

    env: str
    steps: int
    """Environment steps of each member."""
    algorithm: tessera.Algorithm


TASKS = {
    "cartpole": Task("gymnax:CartPole-v1", 80_000, tessera.PPO()),
    # an MLP, since 15 times 8 convolutional networks would take hours on 2 cores; sticky actions make games differ
    "space_invaders": Task("gymnax:SpaceInvaders-MinAtar?sticky=0.1", 320_000, tessera.PPO(torso="mlp")),
}


def members_of(side: str, every: int | None) -> dict[str, Any]:
    """What `tessera.train` is told of the members of a side; `every`: updates between exchanges of a population."""
    if side == "defaults":
        return {"seeds": MEMBERS}
    return {"population": tessera.Population(MEMBERS, RANGES, every if side == "population" else 0)}


def trained(task: Task, **options: Any) -> dict[int, tuple[dict[str, Any], dict[str, Any]]]:
    """Train all members of a side: seed -> summary and last row of metrics."""
    options |= {"eval_episodes": EPISODES, "quiet": True}
    try:
        found: Any = tessera.train(task.algorithm, task.env, **options)
        return {seed: (run.summary, run.metrics[-1]) for seed, run in found.runs.items()}
    except RunFailed:  # numbers of a member are not finite; a folder keeps what the others have reached
        with tempfile.TemporaryDirectory() as folder:
            with suppress(RunFailed):
                tessera.train(task.algorithm, task.env, run_dir=Path(folder) / "run", **options)
            members = Path(folder).glob("run/seed-*")
            done = {path: path / "summary.json" for path in members if (path / "summary.json").exists()}
            return {
                int(path.name.removeprefix("seed-")): (json.loads(summary.read_text()), read_metrics(path)[-1])
                for path, summary in done.items()
            }


def measure(name: str, steps: int, side: str, repetition: int, every: int | None) -> dict[str, Any]:
    """One repetition of one side."""
    begun = time.perf_counter()
    found = trained(TASKS[name], steps=steps, seed=1000 * repetition, **members_of(side, every))
    members = [
        {
            "seed": seed,
            "train_return": summary["train_return_mean"],
            "greedy_return": summary["eval_return_mean"],
            **{key.removeprefix("tuned/"): row[key] for key in row if key.startswith("tuned/")},
        }
        for seed, (summary, row) in sorted(found.items())
    ]
    seconds = round(time.perf_counter() - begun, 1)
    place = {"task": name, "side": side, "repetition": repetition, "steps": steps, "every": every}
    return {**place, "seconds": seconds, "members": members}


def best_of(run: dict[str, Any]) -> float:
    """The greedy return of the member with the highest training return."""
    known = [m for m in run["members"] if m["train_return"] is not None]
    return max(known, key=lambda m: m["train_return"])["greedy_return"] if known else math.nan


def mean_of(run: dict[str, Any]) -> float:
    """The greedy return of all members on average."""
    return float(np.mean([m["greedy_return"] for m in run["members"]]))


def cells(values: list[float]) -> str:
    """Interquartile mean, interval, lowest and highest, and each, as cells of a table."""
    x = np.asarray(values)
    low, high = bootstrap_interval(x, interquartile_mean)
    each = ", ".join(f"{value:.1f}" for value in values)
    return f"{interquartile_mean(x):.1f} ({low:.1f} to {high:.1f}) | {x.min():.1f} to {x.max():.1f} | {each}"


def table(runs: list[dict[str, Any]]) -> str:
    """What was measured, in Markdown."""
    lines = ["| task | side | greedy return (95 %) | spread | each repetition |", "| --- | --- | --- | --- | --- |"]
    for task in dict.fromkeys(run["task"] for run in runs):
        mine = {side: [r for r in runs if (r["task"], r["side"]) == (task, side)] for side in SIDES}
        best = {side: [best_of(run) for run in found] for side, found in mine.items() if found}
        rows = {f"{side}, best member": values for side, values in best.items()}
        rows |= {f"{side}, mean of members": [mean_of(run) for run in found] for side, found in mine.items() if found}
        for other in ("random search", "defaults"):
            if len(best.get(other, ())) == len(best.get("population", ())) > 0:
                pairs = zip(best["population"], best[other], strict=True)
                rows[f"population less {other}, by repetition"] = [a - b for a, b in pairs]
        lines += [f"| {task} | {side} | {cells(values)} |" for side, values in rows.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--first", type=int, default=1, help="number of the first repetition")
    parser.add_argument("--every", type=int, help="updates from one exchange of the population to the next")
    parser.add_argument("--steps", type=float, help="environment steps of each member; default: each task's own")
    parser.add_argument("-o", "--output", type=Path, help="JSON: every member's seed, returns and final settings")
    parser.add_argument("--show", type=Path, help="print the table of such a file, and measure nothing")
    options = parser.parse_args()
    if options.show is not None:
        print(table(json.loads(options.show.read_text())["runs"]))
        return
    runs = []
    for name in options.tasks:
        steps = int(options.steps or TASKS[name].steps)
        for repetition in range(options.first, options.first + options.repetitions):
            for side in SIDES:
                runs.append(run := measure(name, steps, side, repetition, options.every))
                print(f"{name}, {side}, {repetition}: {best_of(run):.1f} in {run['seconds']} s", flush=True)
                if options.output is not None:  # what is there is kept if the rest is stopped
                    options.output.write_text(json.dumps({"ranges": RANGES, "runs": runs}, indent=1) + "\n")
    print(table(runs))


if __name__ == "__main__":
    main()
