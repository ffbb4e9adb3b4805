"""Speed of rejax's PPO with the settings of handwritten_ppo.py, in rejax's own virtual environment.

Set-up, once (rejax needs gymnax 0.0.9, which Tessera's environment cannot hold):

    python3.11 -m venv /tmp/rejax-venv
    /tmp/rejax-venv/bin/pip install -r benchmarks/requirements-rejax.txt
    /tmp/rejax-venv/bin/python benchmarks/rejax_ppo.py --envs 64 --updates 20 --repeat 3

Prints one JSON line per repetition. What is timed is `train_iteration` in a loop, in one jit, after one
untimed call; nothing is evaluated. Where rejax's PPO differs from the hand-written one: gradients are clipped
element by element, actor and critic have an optimiser each, the learning rate is constant, Adam's epsilon is
1e-8, advantages are normalised per minibatch, the value loss is clipped, weights are not orthogonal, and a
truncated episode counts as terminated.
"""

import argparse
import json
import sys
import time
from functools import partial
from typing import Any

import jax
from jax import lax
from rejax import PPO

UNROLL = 128


def make(envs: int, *, env_name: str = "CartPole-v1", learning_rate: float = 2.5e-4) -> PPO:
    """Rejax's PPO with the yardstick's hyper-parameters."""
    return PPO.create(
        env=env_name,
        agent_kwargs={"hidden_layer_sizes": (64, 64), "activation": "tanh"},
        num_envs=envs,
        num_steps=UNROLL,
        num_epochs=4,
        num_minibatches=4,
        learning_rate=learning_rate,
        gamma=0.99,
        gae_lambda=0.95,
        clip_eps=0.2,
        vf_coef=0.5,
        ent_coef=0.01,
        max_grad_norm=0.5,
        skip_initial_evaluation=True,
    )


@partial(jax.jit, static_argnums=2, donate_argnums=1)
def run(algorithm: PPO, state: Any, updates: int) -> Any:
    """Makes `updates` updates and returns the next training state; `state` is donated."""
    return lax.fori_loop(0, updates, lambda _, state: algorithm.train_iteration(state), state)


def mean_return(algorithm: PPO, state: Any) -> float:
    """Mean return of 128 episodes played with the network, each at most as long as the time limit."""
    _, returns = jax.jit(lambda state: algorithm.eval_callback(algorithm, state, jax.random.key(0)))(state)
    return float(returns.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", type=int, default=64, help="environments")
    parser.add_argument("--updates", type=int, default=20, help="updates per repetition")
    parser.add_argument("--repeat", type=int, default=3, help="timed repetitions")
    parser.add_argument("--env", default="CartPole-v1", help="gymnax environment")
    parser.add_argument("--learning-rate", type=float, default=2.5e-4, help="Adam's step size")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run")
    parser.add_argument("--on-demand", action="store_true", help="one repetition for each line of standard input")
    parser.add_argument("--evaluate", action="store_true", help="play 128 episodes after the timed part")
    options = parser.parse_args()

    algorithm = make(options.envs, env_name=options.env, learning_rate=options.learning_rate)
    # The state starts with shared buffers and Python scalars; jit gives each leaf its own buffer to donate.
    state = jax.jit(algorithm.init_state)(jax.random.key(options.seed))
    begin = time.perf_counter()
    compiled = run.lower(algorithm, state, options.updates).compile()
    compile_seconds = time.perf_counter() - begin
    state = jax.block_until_ready(compiled(algorithm, state))
    steps = options.envs * UNROLL * options.updates
    for repetition, _ in enumerate(sys.stdin if options.on_demand else range(options.repeat)):
        begin = time.perf_counter()
        state = jax.block_until_ready(compiled(algorithm, state))
        seconds = time.perf_counter() - begin
        line = {
            "program": "rejax",
            "envs": options.envs,
            "updates": options.updates,
            "repetition": repetition,
            "seconds": round(seconds, 4),
            "steps_per_second": round(steps / seconds),
            "compile_seconds": round(compile_seconds, 2),
        }
        print(json.dumps(line), flush=True)
    if options.evaluate:
        print(f"mean return of 128 episodes: {mean_return(algorithm, state):.1f}")


if __name__ == "__main__":
    main()
