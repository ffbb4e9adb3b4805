"""The Ray engine against the local one, and against RLlib: training steps per second with two actors on this machine.

    python benchmarks/ray_engine.py
    python benchmarks/ray_engine.py --rllib /tmp/rllib-venv/bin/python   # benchmarks/rllib_peer.py says how

IMPALA on Gymnasium's Acrobot (or --env) under `single_learner_coarse:mode=async`, in interleaved pairs: the same plan
on processes of the local engine, and on Ray actors of one node. Speed counts from the first update on. RLlib's IMPALA
and PPO train in the same session, on the same task, with two runners and several numbers of environments; the fastest
counts. The less work per message, the harder: CartPole is light, and --envs and --unroll make messages smaller.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import tessera

POLICY = "single_learner_coarse:actors=2,mode=async"
PEERS = [(name, envs) for name in ("impala", "ppo") for envs in (8, 32)]


def train_once(engine: str, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train once."""
    summary = tessera.train(
        tessera.IMPALA(unroll=options.unroll), options.env, POLICY, engine=engine, steps=options.steps, seed=seed,
        envs=options.envs, eval_episodes=1, quiet=True,
    ).summary  # fmt: skip
    return {"steps_per_second": summary["steps_per_second"], "train_return": summary["train_return_mean"]}


def train_rllib(python: str, env: str, algorithm: str, envs: int, seconds: float) -> dict[str, Any]:
    """RLlib, in its own interpreter."""
    script = str(Path(__file__).with_name("rllib_peer.py"))
    command = [python, script, "--env", env, "--algorithm", algorithm, "--envs", str(envs), "--seconds", str(seconds)]
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "JAX_", "XLA_"))}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="Acrobot-v1", help="a Gymnasium id")
    parser.add_argument("--envs", type=int, default=64, help="environments of both actors together")
    parser.add_argument("--unroll", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each of RLlib's runs")
    parser.add_argument("--rllib", help="an interpreter that has RLlib")
    options = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {"local": [], "ray": []}
    for seed in range(1, options.pairs + 1):
        for engine in ("local", "ray") if seed % 2 else ("ray", "local"):
            runs[engine].append(train_once(engine, options, seed))
            print(f"{engine:5s} seed {seed}: {runs[engine][-1]}", flush=True)
    speeds = {engine: [run["steps_per_second"] for run in own] for engine, own in runs.items()}
    ratios = [b / a for a, b in zip(speeds["local"], speeds["ray"], strict=True)]
    mean = {engine: statistics.mean(own) for engine, own in speeds.items()}
    print(f"local {mean['local']:,.0f} steps/s, ray {mean['ray']:,.0f} steps/s")
    print(f"ray / local: {statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}], {len(ratios)} pairs")
    if options.rllib:
        peers = {}
        for name, envs in PEERS:
            peers[name, envs] = train_rllib(options.rllib, options.env, name, envs, options.seconds)
            print(f"rllib {name}, 2 x {envs} environments: {peers[name, envs]}", flush=True)
        best = max(peers, key=lambda k: peers[k]["steps_per_second"])
        speed = peers[best]["steps_per_second"]
        print(f"ray / RLlib's fastest ({best[0]}, 2 x {best[1]}): {mean['ray'] / speed:.2f}")


if __name__ == "__main__":
    main()
