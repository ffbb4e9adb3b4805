"""PPO with a batch 8 times as large: learning curves with and without rules for the learning rate.

    python benchmarks/large_batch.py                     # docs/large_batch.png, about 3 minutes
    python benchmarks/large_batch.py --seeds 6 7 8 9 10

The small batch is 8 environments; the large one 64, with as many minibatches, so gradients are means over 8 times as
many rows and there are an eighth of them for as many steps. Curves are over steps of all environments: what a large
batch must not cost. The figure of each is the mean of the training return over the run (the area under its curve) and
the steps to a training return of 400, means over seeds.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tessera import PPO, train

ENV, STEPS, SMALL, LARGE = "gymnax:CartPole-v1", 400_000, 8, 64
BASE = PPO(unroll=64, epochs=4, minibatches=4, learning_rate=5e-4, anneal=False, rate_envs=SMALL)
CASES: dict[str, tuple[Any, int]] = {
    "8 environments": (BASE, SMALL),
    "64, same rate": (BASE, LARGE),
    "64, rate × √8": (replace(BASE, rate_scaling="sqrt"), LARGE),
    "64, rate × 8": (replace(BASE, rate_scaling="linear"), LARGE),
    "64, rate × 8 after warm-up": (replace(BASE, rate_scaling="linear", rate_warmup=0.05), LARGE),
}
PICTURE = Path(__file__).resolve().parents[1] / "docs" / "large_batch.png"
GRID = np.linspace(0, STEPS, 101)
GOAL = 400.0


def curve(algorithm: Any, envs: int, seed: int) -> np.ndarray:
    """Training return at every hundredth of the run."""
    result = train(algorithm, ENV, "fused:devices=1", envs=envs, steps=STEPS, seed=seed, eval_episodes=1, quiet=True)
    rows = [(r["env_steps"], r["train_return_mean"]) for r in result.metrics if np.isfinite(r["train_return_mean"])]
    steps, returns = np.asarray(rows).T
    return np.interp(GRID, steps, returns)


def steps_to(found: np.ndarray) -> float:
    """Steps at which a curve first passes the goal; the whole run if it never does."""
    return float(GRID[np.argmax(found >= GOAL)]) if (found >= GOAL).any() else float(STEPS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--output", type=Path, default=PICTURE)
    options = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5))
    for name, (algorithm, envs) in CASES.items():
        found = np.stack([curve(algorithm, envs, seed) for seed in options.seeds])
        told = {"case": name, "seeds": len(found), "mean_return": round(float(found.mean()), 1)}
        told |= {"end_return": round(float(found[:, -1].mean()), 1)}
        told |= {"steps_to_400": round(float(np.mean([steps_to(f) for f in found])))}
        print(json.dumps(told, ensure_ascii=False), flush=True)
        axes.plot(GRID, found.mean(0), label=name)
        axes.fill_between(GRID, found.min(0), found.max(0), alpha=0.15)
    axes.set(xlabel="environment steps", ylabel="training return", title=f"PPO on {ENV}, batch 8 times as large")
    axes.legend()
    figure.tight_layout()
    figure.savefig(options.output, dpi=110)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
