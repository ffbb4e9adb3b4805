"""How long `Agent.act` takes, as the median and the 99th percentile of single calls.

    python benchmarks/agent_latency.py
    python benchmarks/agent_latency.py --run runs/first        # an agent of yours

Without --run, agents that were hardly trained are made; the time does not depend on the values of params.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

import tessera

CARTPOLE = "gymnax:CartPole-v1"
NETWORKS = {
    "PPO 64x64": (tessera.PPO(widths=(64, 64), unroll=8, minibatches=1), CARTPOLE),
    "PPO 64x64, LSTM": (tessera.PPO(widths=(64, 64), core="lstm", unroll=8, minibatches=1), CARTPOLE),
    "PPO 64x64, Pendulum": (tessera.PPO(widths=(64, 64), unroll=8, minibatches=1), "gymnax:Pendulum-v1"),
    "DQN 64x64": (tessera.DQN(warmup=4, batch=32, capacity=1024), CARTPOLE),
}


def untrained(folder: Path, algorithm: tessera.Algorithm, env: str) -> Path:
    options = {"steps": 512, "envs": 8, "eval_episodes": 1, "quiet": True, "policy": "fused:devices=1"}
    tessera.train(algorithm, env, run_dir=folder, **options)
    return folder


def microseconds(agent: tessera.Agent, entries: int, greedy: bool, calls: int) -> tuple[float, float]:
    """Median and 99th percentile over calls, for one observation if `entries` is 0."""
    world = agent.algorithm.world
    shape = (entries, *world.observation_shape) if entries else world.observation_shape
    seen = np.random.default_rng(0).normal(size=shape).astype(world.observation_dtype)
    agent.reset()
    for _ in range(100):
        agent.act(seen, greedy)
    times = np.empty(calls)
    for k in range(calls):
        begin = time.perf_counter()
        agent.act(seen, greedy)
        times[k] = time.perf_counter() - begin
    return float(np.median(times)) * 1e6, float(np.percentile(times, 99)) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, help="run folder or saved agent")
    parser.add_argument(
        "--entries", type=int, nargs="+", default=[0, 1, 16, 256], help="batch sizes; 0: one observation"
    )
    parser.add_argument("--calls", type=int, default=10_000)
    options = parser.parse_args()
    print(f"{'':22}{'batch':>7}{'greedy µs':>12}{'99 %':>8}{'sampled µs':>12}{'99 %':>8}")
    with tempfile.TemporaryDirectory() as where:
        for name, case in {str(options.run): None}.items() if options.run else NETWORKS.items():
            agent = tessera.load(options.run if case is None else untrained(Path(where) / name, *case), trust=True)
            for entries in options.entries:
                greedy, sampled = (microseconds(agent, entries, kind, options.calls) for kind in (True, False))
                figures = f"{greedy[0]:12.0f}{greedy[1]:8.0f}{sampled[0]:12.0f}{sampled[1]:8.0f}"
                print(f"{name:22}{entries or 'one':>7}{figures}", flush=True)


if __name__ == "__main__":
    main()
