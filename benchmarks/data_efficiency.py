"""The claim of the A3C paper at our scale: does asynchronous one-step Q learn from fewer steps with more workers?

    python benchmarks/data_efficiency.py [--parallel 3] [--save rows.json] [--draw rows.json]

1, 2 and 4 actor-learners around a server, 8 environments each, on two tasks, 5 seeds. What is compared is the return
after so many steps of all environments together, not after so many seconds: that is data efficiency, so several runs
may go on at a time (--parallel), and one whose process is lost is made again. The picture is docs/data_efficiency.png;
--draw makes it from rows that were saved, on another machine maybe.
"""

import argparse
import json
import math
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tessera import map_reduce, train
from tessera.engines.driver.pool import keep_processes
from tessera.systems import find

WORKERS, ENVS, SEEDS = (1, 2, 4), 8, range(1, 6)
SETTINGS = {"learning_rate": 3e-3, "gamma": 0.99, "target_period": 50, "max_gradient_norm": 10.0}
"""What was measured; the algorithm's own defaults have become tamer since."""
TASKS = {"gymnax:CartPole-v1": (195.0, 300_000), "gymnax:Acrobot-v1": (-150.0, 500_000)}
"""Return that counts as reached, and steps."""
PICTURE = Path(__file__).resolve().parent.parent / "docs" / "data_efficiency.png"
POINTS = 60


@dataclass(frozen=True)
class Row:
    """What one run gave."""

    env: str
    workers: int
    seed: int
    greedy_return: float
    curve: list[tuple[float, float]]
    """Steps, and the mean return of the last 100 episodes then."""

    @property
    def reached(self) -> float | None:
        """Steps until the return was reached."""
        return next((steps for steps, value in self.curve if value >= TASKS[self.env][0]), None)

    @property
    def area(self) -> float:
        """Mean return over the whole run: higher for who learns from less."""
        return statistics.fmean(self.at((k + 0.5) / POINTS * TASKS[self.env][1]) for k in range(POINTS))

    def at(self, steps: float) -> float:
        """Return after so many steps."""
        passed = [value for when, value in self.curve if when <= steps]
        return passed[-1] if passed else self.curve[0][1]


def measure(task: tuple[str, int, int]) -> dict[str, Any]:
    """Train with so many workers and a seed; a row as plain data."""
    env, workers, seed = task
    cls, system = find("async_q")
    assert system is not None
    result = train(
        cls(**system.options, **SETTINGS), env, f"central:mode=async,workers={workers}", envs=ENVS * workers,
        steps=TASKS[env][1], seed=seed, eval_episodes=50, quiet=True,
    )  # fmt: skip
    rows = [(row["env_steps"], row["train_return_mean"]) for row in result.metrics]
    curve = [(steps, value) for steps, value in rows if not math.isnan(value)]
    greedy = result.summary["eval_return_mean"]
    return asdict(Row(env, workers, seed, greedy, curve[:: max(1, len(curve) // 400)]))


def tell(rows: list[Row]) -> None:
    """A table: how much is learned from how many steps."""
    print(
        f"{'task':20} {'workers':>7} {'mean return over the run':>25} {'steps to the goal (median)':>27} {'greedy':>7}"
    )
    for env in TASKS:
        for workers in WORKERS:
            mine = [r for r in rows if (r.env, r.workers) == (env, workers)]
            if not mine:
                continue
            areas = [r.area for r in mine]
            spread = statistics.stdev(areas) if len(areas) > 1 else 0.0
            when = sorted(r.reached if r.reached is not None else float("inf") for r in mine)
            middle = when[len(when) // 2]
            goal = f"{middle:,.0f}" if middle < float("inf") else "-"
            greedy = statistics.median(r.greedy_return for r in mine)
            area = f"{statistics.fmean(areas):.1f} ± {spread:.1f}"
            print(f"{env:20} {workers:7} {area:>25} {goal:>27} {greedy:7.1f}")


def draw(rows: list[Row], out: Path) -> None:
    """Mean curves over seeds, with the range of all."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, both = plt.subplots(1, len(TASKS), figsize=(11, 4), layout="constrained")
    for axes, (env, (_, steps)) in zip(both, TASKS.items(), strict=True):
        at = [(k + 1) / POINTS * steps for k in range(POINTS)]
        for workers in WORKERS:
            mine = [[r.at(s) for s in at] for r in rows if (r.env, r.workers) == (env, workers)]
            columns = list(zip(*mine, strict=True))
            line = axes.plot(at, [statistics.fmean(c) for c in columns], label=f"{workers} workers")[0]
            axes.fill_between(
                at, [min(c) for c in columns], [max(c) for c in columns], color=line.get_color(), alpha=0.15
            )
        axes.set(xlabel="steps of all environments", ylabel="mean return of the last 100 episodes", title=env)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.suptitle("Asynchronous one-step Q, 5 seeds: mean and range")
    figure.savefig(out, dpi=150)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time")
    parser.add_argument("--save", type=Path, help="write rows here instead of drawing them")
    parser.add_argument("--draw", type=Path, help="draw rows that were saved, and measure nothing")
    options = parser.parse_args()
    if options.draw:
        rows = [Row(**row) for row in json.loads(options.draw.read_text())]
    else:
        tasks = [(env, workers, seed) for env in TASKS for seed in SEEDS for workers in WORKERS]
        with keep_processes():
            rows = map_reduce(measure, lambda found: [Row(**row) for row in found], tasks, workers=options.parallel)
    if options.save:
        options.save.write_text(json.dumps([asdict(row) for row in rows]))
    tell(rows)
    if not options.save:
        draw(rows, PICTURE)
        print(f"wrote {PICTURE}")


if __name__ == "__main__":
    main()
