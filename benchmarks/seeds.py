"""What more seeds cost in one program: milliseconds per update of all of them, and environment steps per second.

    python benchmarks/seeds.py                                                  # CartPole with 1, 8 and 256 seeds
    python benchmarks/seeds.py --env gymnax:Breakout-MinAtar --mlp --seeds 1 16 64

Each number is the fastest of five rounds of `--updates` updates, after one that compiles.
"""

import argparse
import time

import jax

import tessera
from tessera.engines.population import PopulationEngine
from tessera.planning.prepare import prepare_plan


def milliseconds(algorithm: tessera.Algorithm, env: str, seeds: int, updates: int) -> tuple[float, int]:
    """Milliseconds of one update of all seeds, and its environment steps."""
    bound, made, plan = prepare_plan(algorithm, env, "fused:devices=1")
    engine = PopulationEngine(plan, bound, made, list(range(seeds)), 1000)
    engine.begin([None] * seeds)
    engine.advance(updates)
    rounds = []
    for _ in range(5):
        begun = time.perf_counter()
        engine.advance(updates)
        jax.block_until_ready(engine.slots["state"])
        rounds.append(time.perf_counter() - begun)
    return 1000 * min(rounds) / updates, bound.schedule.steps * plan.envs * seeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="gymnax:CartPole-v1")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 8, 256])
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--mlp", action="store_true", help="two layers of 64 with relu, 8 minibatches")
    options = parser.parse_args()
    algorithm = tessera.PPO(torso="mlp", activation="relu", minibatches=8) if options.mlp else tessera.PPO()
    first = None
    for seeds in options.seeds:
        taken, steps = milliseconds(algorithm, options.env, seeds, options.updates)
        first = first or taken
        print(
            f"{seeds:4d} seeds: {taken:8.2f} ms an update, {steps / taken / 1000:7.2f} M steps/s, "
            f"{taken / first:5.2f} times the cost of {options.seeds[0]}", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
