"""Central inference for whichever environments are ready, against waiting for all of them at each step.

    python benchmarks/ready.py

Environments are CartPole whose steps take 1 ms on average, exponentially distributed (they sleep, as a simulator on
another machine would), on 2 and 4 servers with one learner that acts for all. Pairs of runs are interleaved; what they
learn is the same, and that is checked.
"""

import statistics
import time
from typing import Any

import gymnasium
import jax
import numpy as np

from tessera import IMPALA, policies
from tessera.engines.local import LocalEngine
from tessera.planning.prepare import prepare_plan

SECONDS = 0.001
UPDATES, PAIRS, UNROLL = 40, 5, 20
SIDES = {"all at once": "", "whoever is ready": ",wait=0"}


class Uneven(gymnasium.Wrapper):
    """CartPole on a machine whose steps take some time, which differs from step to step."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._chance = np.random.default_rng()

    def step(self, action: Any) -> Any:
        """Take some time."""
        time.sleep(self._chance.exponential(SECONDS))
        return self.env.step(action)


def measure(servers: int, options: str) -> tuple[float, Any]:
    """Steps per second of one environment, and the params that were learned."""
    policy = policies.parse(f"single_learner_fine:actors={servers}{options}")
    bound, env, plan = prepare_plan(IMPALA(unroll=UNROLL), Uneven, policy, envs=servers, groups=servers, lag=0)
    engine = LocalEngine(plan, bound, env, seed=1, horizon=UPDATES + 5)
    try:
        engine.start()
        engine.advance(5)
        begun = time.perf_counter()
        engine.advance(UPDATES)
        seconds = time.perf_counter() - begun
        return UPDATES * UNROLL / seconds, jax.tree.map(np.array, engine.state().params)
    finally:
        engine.close()


def main() -> None:
    for servers in (2, 4):
        found: dict[str, list[float]] = {side: [] for side in SIDES}
        ratios = []
        for _ in range(PAIRS):
            learned = []
            for side, options in SIDES.items():
                pace, params = measure(servers, options)
                found[side].append(pace)
                learned.append(params)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), *learned)
            before, ready = (paces[-1] for paces in found.values())
            ratios.append(ready / before)
        told = ", ".join(f"{side} {statistics.median(paces):,.0f}" for side, paces in found.items())
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{servers} servers: steps/s of an environment: {told}; ratio {statistics.median(ratios):.2f} ({spread})")


if __name__ == "__main__":
    main()
