"""Tessera beside the same algorithms written by hand, with the same settings, over seeds: do they learn the same?

    python benchmarks/peers.py --list
    python benchmarks/peers.py                                 # CartPole: DQN, A2C and IMPALA; 5 minutes on 2 cores
    python benchmarks/peers.py --cases ppo-breakout            # 10 M steps; 2 minutes on an H200

All seeds of a side are one program. A seed's score is the mean return of its last episodes of training, 100 or a few
more. Results are files in docs/scores/peers, which `zoo.py --page` shows.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import handwritten_a2c
import handwritten_dqn
import handwritten_ppo
import jax
import jax.numpy as jnp
import numpy as np

import tessera
from tessera.evaluation.intervals import bootstrap_interval

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "scores" / "peers"
EPISODES = 100

Score = Callable[[list[int], float], list[float]]
"""From seeds and steps to the score of each seed."""


@dataclass(frozen=True)
class Case:
    """One algorithm on one task, with the settings that both sides have."""

    env: str
    """A gymnax environment."""
    algorithm: tessera.Algorithm
    by_hand: Callable[..., Score]
    settings: dict[str, Any] = field(default_factory=dict)
    """Arguments of `make` of the program written by hand, where they differ from its defaults."""
    steps: float = 5e5
    envs: int | None = None
    lag: int | None = None


def by_hand(make: Callable[..., Any], env: str, **settings: Any) -> Score:
    """A score for programs whose `make` returns a function of the seed."""

    def score(seeds: list[int], steps: float) -> list[float]:
        run = jax.jit(jax.vmap(make(env_name=env, steps=int(steps), **settings)))
        metrics = jax.device_get(run(jnp.asarray(seeds)))
        return handwritten_a2c.final_returns(metrics["returns"], metrics["episodes"], EPISODES).tolist()

    return score


def ppo_by_hand(env: str, envs: int = 64, **settings: Any) -> Score:
    """The same for PPO, whose state is made for one seed after the other."""

    def score(seeds: list[int], steps: float) -> list[float]:
        updates = -(-int(steps) // (envs * handwritten_ppo.UNROLL))
        init, run = handwritten_ppo.make(envs, env_name=env, total_updates=updates, **settings)
        carries = jax.tree.map(lambda *x: jnp.stack(x), *(init(seed) for seed in seeds))
        _, metrics = jax.device_get(jax.jit(jax.vmap(lambda carry: run(carry, updates)))(carries))
        return handwritten_a2c.final_returns(metrics["mean_return"], metrics["episodes"], EPISODES).tolist()

    return score


def a2c_by_hand(env: str, **settings: Any) -> Score:
    """A2C or IMPALA."""
    return by_hand(handwritten_a2c.make, env, **settings)


def dqn_by_hand(env: str, **settings: Any) -> Score:
    """DQN."""
    return by_hand(handwritten_dqn.make, env, **settings)


BOARD_PPO = tessera.PPO(
    torso="mlp", widths=(64, 64), activation="relu", learning_rate=5e-3, minibatches=8, unroll=128
)  # fmt: skip
CASES: dict[str, Case] = {
    "dqn-cartpole": Case("CartPole-v1", tessera.DQN(n_step=1), dqn_by_hand),
    "a2c-cartpole": Case("CartPole-v1", tessera.A2C(), a2c_by_hand),
    "impala-cartpole": Case(  # experience 20 updates old, so that corrections matter
        "CartPole-v1",
        tessera.IMPALA(widths=(128, 128)),
        a2c_by_hand,
        {"envs": 16, "widths": (128, 128), "lag": 20, "v_trace": True, "gae_lambda": 1.0, "normalise": False},
        envs=16,
        lag=20,
    ),
    **{
        f"ppo-{game.lower()}": Case(
            f"{game}-MinAtar",
            BOARD_PPO,
            ppo_by_hand,
            {"learning_rate": 5e-3, "minibatches": 8, "activation": jax.nn.relu},
            steps=1e7,
        )
        for game in ("Breakout", "Asterix", "Freeway", "SpaceInvaders")
    },
}
"""PPO on boards has the settings of PureJaxRL's authors for MinAtar Breakout."""


def tessera_scores(case: Case, seeds: list[int], steps: float) -> list[float]:
    """The scores of Tessera's own side."""
    result = tessera.train(
        case.algorithm, f"gymnax:{case.env}", "fused:devices=1", seeds=len(seeds), seed=seeds[0], steps=int(steps),
        envs=case.envs, lag=case.lag, eval_episodes=1, quiet=True,
    )  # fmt: skip
    return [result.runs[seed].summary["train_return_mean"] for seed in seeds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[name for name in CASES if "cartpole" in name])
    parser.add_argument("--sides", nargs="+", choices=("hand", "tessera"), default=["hand", "tessera"])
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--first-seed", type=int, default=200)
    parser.add_argument("--steps", type=float, help="default: the case's own")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--list", action="store_true", help="show all cases")
    options = parser.parse_args()
    if options.list:
        print("\n".join(CASES))
        return
    seeds = [options.first_seed + k for k in range(options.seeds)]
    options.results.mkdir(parents=True, exist_ok=True)
    for name in options.cases:
        case, path = CASES[name], options.results / f"{name}.json"
        steps = options.steps or case.steps
        device = jax.devices()[0].device_kind
        result = {"case": name, "env": case.env, "steps": steps, "seeds": seeds, "hardware": device}
        for side in options.sides:
            begun = time.monotonic()
            if side == "hand":
                scores = case.by_hand(case.env, **case.settings)(seeds, steps)
            else:
                scores = tessera_scores(case, seeds, steps)
            result[side] = [round(x, 2) for x in scores]
            low, high = bootstrap_interval(np.asarray(scores))
            print(
                f"{name:18s} {side:8s} mean {np.mean(scores):6.1f} (95 % {low:.1f} to {high:.1f})  worst "
                f"{min(scores):6.1f}  best {max(scores):6.1f}  {time.monotonic() - begun:5.0f} s", flush=True,
            )  # fmt: skip
        path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
