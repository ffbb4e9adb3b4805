"""MAPPO on MPE's simple_spread, on the device (JaxMARL) and on the host (PettingZoo, mpe2): do they learn the same?

    python benchmarks/teams.py

Both sides have the same settings, the same number of environments and steps, no lag, and greedy episodes at the end.
The two are the same game written twice, so their returns differ by chance alone: by how much is what seeds are for.
"""

import argparse
import statistics

from tessera import MAPPO
from tessera.api import train

SIDES = {"device": "jaxmarl:MPE_simple_spread_v3", "host": "pettingzoo:mpe2.simple_spread_v3"}
STEPS, ENVS, SEEDS, EPISODES = 400_000, 32, 5, 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    print(f"{'side':8} {'seed':>4} {'greedy return':>14} {'steps':>10} {'steps/s':>9}")
    for seed in range(1, options.seeds + 1):
        for side, env in SIDES.items():
            result = train(
                MAPPO(),
                env,
                "fused",
                steps=options.steps,
                seed=seed,
                envs=ENVS,
                lag=0,
                eval_episodes=EPISODES,
                quiet=True,
            )
            told = result.summary
            found[side].append(told["eval_return_mean"])
            figures = f"{told['eval_return_mean']:14.2f} {told['env_steps']:10,} {told['steps_per_second']:9,.0f}"
            print(f"{side:8} {seed:4} {figures}", flush=True)
    for side, returns in found.items():
        spread = f", deviation over seeds {statistics.stdev(returns):.2f}" if len(returns) > 1 else ""
        print(f"{side}: mean {statistics.mean(returns):.2f}{spread}")


if __name__ == "__main__":
    main()
