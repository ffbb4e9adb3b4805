"""PPO on Gymnasium's CartPole against Stable-Baselines3: steps per second of whole training runs, in interleaved pairs.

    python benchmarks/host.py --sb3 /tmp/sb3-venv/bin/python     # benchmarks/sb3_ppo.py says how to set that up

First every setting of SB3 (environments, minibatches, RL Baselines3 Zoo's own; 1 and 2 threads) and of Tessera
(environments; policy) runs twice, briefly. Then `best` pairs the fastest of either side, and `alike` pairs equal
environments, unroll, epochs, minibatches and rates, with the better of either side's ways to use the cores. In all
pairs both train the same networks (64 x 64, tanh, apart for policy and value) for the same number of steps, from
nothing, and the mean return of the last 100 training episodes says that they did. Steps that only reset count for
neither. Tessera's speed counts from its first update on, which leaves out compiling (a few seconds, cached between
processes).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from sb3_ppo import ENV, OURS, SETTINGS

from tessera import PPO
from tessera.api import train

ENVS = (64, 256, 512, 1024)
"""Environments of Tessera; with more, a million steps are too few updates to learn much."""
POLICIES = {"fused": 1, "multi_learner": 2}
"""Ways for Tessera to use two cores, with their groups: Gymnasium steps each group as a vector of its own."""
ALIKE = 64
"""Environments of the comparison of like with like."""

Told = dict[str, Any]
"""What one training run gave."""
Trained = Callable[[int, int], Told]
"""Trains for a number of steps with a seed."""


def tessera_ppo(envs: int, policy: str) -> Trained:
    """Tessera with the settings of `OURS`."""
    algorithm = PPO(
        unroll=OURS["unroll"],
        epochs=OURS["epochs"],
        minibatches=OURS["minibatches"],
        learning_rate=OURS["learning_rate"],
        gamma=OURS["gamma"],
        gae_lambda=OURS["gae_lambda"],
        entropy_coefficient=OURS["entropy"],
    )

    def run(steps: int, seed: int) -> Told:
        shape = {"envs": envs, "groups": POLICIES[policy]}
        s = train(algorithm, ENV, policy, steps=steps, seed=seed, eval_episodes=1, quiet=True, **shape).summary
        return {"steps_per_second": s["steps_per_second"], "train_return": s["train_return_mean"]}

    return run


def sb3_ppo(process: subprocess.Popen, setting: str, threads: int) -> Trained:
    """SB3 in a process of its own, which trains once for each line that it is sent."""

    def run(steps: int, seed: int) -> Told:
        assert process.stdin is not None
        assert process.stdout is not None
        asked = {"setting": setting, "threads": threads, "steps": steps, "seed": seed}
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    return run


def scan(candidates: dict[str, Trained], steps: int) -> dict[str, float]:
    """Run each twice and keep the better of its speeds."""
    speeds = dict.fromkeys(candidates, 0.0)
    for _ in range(2):
        for name, run in candidates.items():
            speeds[name] = max(speeds[name], run(steps, 0)["steps_per_second"])
    for name, speed in speeds.items():
        print(f"{name:36}{speed:10,.0f} steps/s", flush=True)
    return speeds


def compare(ours: Trained, theirs: Trained, steps: int, pairs: int) -> Told:
    """Medians of interleaved pairs."""
    told: dict[str, list[Told]] = {"tessera": [], "sb3": []}
    for k in range(pairs):
        order = [("tessera", ours), ("sb3", theirs)]
        for name, run in order if k % 2 else order[::-1]:
            told[name].append(run(steps, k))
    ratios = [a["steps_per_second"] / b["steps_per_second"] for a, b in zip(told["tessera"], told["sb3"], strict=True)]
    row: Told = {"ratio": round(statistics.median(ratios), 2), "lowest": round(min(ratios), 2), "pairs": pairs}
    for name, runs in told.items():
        row[f"{name}_steps_per_second"] = round(statistics.median(r["steps_per_second"] for r in runs))
        row[f"{name}_train_return"] = round(float(np.median([r["train_return"] for r in runs])), 1)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sb3", required=True, help="interpreter that has Stable-Baselines3")
    parser.add_argument("--steps", type=int, default=1_000_000, help="of each training run")
    parser.add_argument(
        "--scan", type=int, default=100_000, help="steps of each of SB3's runs that only find the fastest"
    )
    parser.add_argument("--pairs", type=int, default=7, help="interleaved pairs")
    options = parser.parse_args()
    script = str(Path(__file__).parent / "sb3_ppo.py")
    command = [options.sb3, script, "--on-demand"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        ours = {f"tessera {envs} envs, {name}": tessera_ppo(envs, name) for envs in ENVS for name in POLICIES}
        theirs = {f"sb3 {name}, {t} threads": sb3_ppo(process, name, t) for name in SETTINGS for t in (1, 2)}
        speeds = scan(ours, 4 * options.scan) | scan(theirs, options.scan)
        alike = [name for name in speeds if f" {ALIKE} envs, " in name and "minibatch" not in name]
        chosen = {
            "best": (max(ours, key=speeds.__getitem__), max(theirs, key=speeds.__getitem__)),
            "alike": tuple(max((n for n in alike if n in side), key=speeds.__getitem__) for side in (ours, theirs)),
        }
        for name, (mine, rival) in chosen.items():
            told = compare(ours[mine], theirs[rival], options.steps, options.pairs)
            print(json.dumps({"comparison": name, "settings": [mine, rival], **told}), flush=True)


if __name__ == "__main__":
    main()
