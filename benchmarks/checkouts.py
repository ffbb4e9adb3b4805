"""This checkout against another one: the same training runs in interleaved pairs, by speed and by processor time.

    git worktree add /tmp/before COMMIT
    python benchmarks/checkouts.py /tmp/before                       # all cases, 20 pairs each
    python benchmarks/checkouts.py /tmp/before --cases fused host --pairs 30 --cores 0,1

Each side is a process that stays, imports `tessera` from its own checkout and uses public names only. The sides take
turns, and swap who begins. A pair's ratio is this checkout's figure over the other's: above 1 means more steps per
second, or more processor seconds per step. Shown are the median and its 95 % bootstrap interval.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
CASES: dict[str, dict[str, Any]] = {
    "fused": {"env": "gymnax:CartPole-v1", "policy": "fused:devices=1", "envs": 64, "steps": 600_000},
    "host": {"env": "CartPole-v1", "policy": "fused:devices=1", "envs": 16, "steps": 60_000},
    "central inference": {"env": "CartPole-v1", "policy": "single_learner_fine:actors=2", "envs": 8, "steps": 30_000},
    "ready batching": {
        "env": "CartPole-v1", "policy": "single_learner_fine:actors=2,wait=0", "envs": 8, "steps": 30_000,
    },
    "actors": {"env": "gymnax:CartPole-v1", "policy": "single_learner_coarse:actors=2", "envs": 64, "steps": 150_000},
    "async actors": {
        "env": "gymnax:CartPole-v1", "policy": "single_learner_coarse:actors=2,mode=async", "envs": 64,
        "steps": 200_000,
    },
    "replay": {
        "env": "gymnax:CartPole-v1", "policy": "distributed_replay", "envs": 16, "steps": 10_000, "algorithm": "dqn",
    },
}  # fmt: skip


def work() -> None:
    """Train whatever case comes on standard input, and print its figures."""
    import tessera

    for line in sys.stdin:
        case = json.loads(line)
        algorithm = tessera.DQN(unroll=4) if case.get("algorithm") == "dqn" else tessera.PPO(unroll=32)
        before = os.times()
        result = tessera.train(
            algorithm, case["env"], case["policy"], envs=case["envs"], groups=4, steps=case["steps"],
            seed=case["seed"], eval_episodes=1, quiet=True,
        )  # fmt: skip
        after = os.times()
        cpu = sum(after[:4]) - sum(before[:4])  # processes that have ended count with this one
        figures = {"speed": result.summary["steps_per_second"], "cpu": cpu / result.summary["env_steps"]}
        print(json.dumps(figures), flush=True)


class Side:
    """One checkout's process."""

    def __init__(self, checkout: Path, cores: str | None) -> None:
        variables = {
            **os.environ,
            "PYTHONPATH": f"{checkout}:{os.environ.get('PYTHONPATH', '')}",
            "JAX_PLATFORMS": "cpu",
        }
        command = [*(["taskset", "-c", cores] if cores else []), sys.executable, str(HERE), "--work"]
        self._process = subprocess.Popen(
            command, env=variables, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def measure(self, case: dict[str, Any]) -> dict[str, float]:
        """Figures of one run."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def compare(name: str, sides: dict[str, Side], pairs: int) -> dict[str, Any]:
    """Ratios of one case, this checkout over the other."""
    import numpy as np

    from tessera.evaluation.intervals import bootstrap_interval

    ratios: dict[str, list[float]] = {"speed": [], "cpu": []}
    for side in sides.values():  # compile, and fill the cache
        side.measure({**CASES[name], "seed": 0})
    for pair in range(pairs):
        order = list(sides) if pair % 2 else list(sides)[::-1]
        found = {side: sides[side].measure({**CASES[name], "seed": pair + 1}) for side in order}
        for figure, values in ratios.items():
            values.append(found["this"][figure] / found["other"][figure])
    out: dict[str, Any] = {"case": name, "pairs": pairs}
    for figure, values in ratios.items():
        low, high = bootstrap_interval(np.asarray(values), lambda x: np.median(x, -1))
        out[figure] = {"median": float(np.median(values)), "interval": [low, high], "ratios": values}
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, nargs="?", help="the other checkout")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--cores", help="cores for both sides, as taskset takes them")
    parser.add_argument("--output", type=Path, help="JSON file for all ratios")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return
    if options.other is None or not (options.other / "tessera").is_dir():
        parser.error("name the folder of another checkout")
    sides = {
        "this": Side(HERE.parents[1], options.cores),
        "other": Side(options.other.resolve(), options.cores),
    }
    results = []
    try:
        for name in options.cases:
            found = compare(name, sides, options.pairs)
            results.append(found)
            shown = "; ".join(
                f"{figure} {found[figure]['median']:.3f} [{found[figure]['interval'][0]:.3f}, "
                f"{found[figure]['interval'][1]:.3f}]"
                for figure in ("speed", "cpu")
            )
            print(f"{name:18s} {shown} ({options.pairs} pairs)", flush=True)
    finally:
        for side in sides.values():
            side.close()
        if options.output is not None:
            options.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
