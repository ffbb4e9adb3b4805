"""A2C and IMPALA written by hand as one JAX program: a yardstick for what Tessera's own versions should learn.

One update is an unroll of every environment and one gradient on the whole batch. IMPALA differs in its targets
(V-trace) and, with a lag, in that params some updates old act.

    python benchmarks/handwritten_a2c.py --seeds 4
    python benchmarks/handwritten_a2c.py --seeds 4 --v-trace --envs 16 --widths 128 128 --lag 20
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.typing import Initializer
from jax import lax

ADVANTAGE_EPSILON = 1e-8

Metrics = dict[str, jax.Array]
Run = Callable[[jax.Array], Metrics]
"""From a seed to the run's metrics [updates]; to be jitted, and mapped over seeds."""


def orthogonal(scale: float) -> Initializer:
    """Orthogonal weights, drawn for one seed after another where seeds are mapped.

    A QR decomposition of several matrices at once waits, in jaxlib 0.10, for free threads of the pool it runs in: on
    a machine with few cores, two of them at a time wait for ever.
    """
    start = nn.initializers.orthogonal(scale)

    def draw(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        return jax.custom_batching.sequential_vmap(lambda key: start(key, shape, dtype))(key)

    return draw


class Tower(nn.Module):
    """A tanh network with orthogonal weights and a linear head of `outputs` units."""

    outputs: int
    head_scale: float
    widths: Sequence[int]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., features] to float32 [..., outputs]."""
        x = x.astype(jnp.float32)
        for width in self.widths:
            x = jnp.tanh(nn.Dense(width, kernel_init=orthogonal(2**0.5))(x))
        return nn.Dense(self.outputs, kernel_init=orthogonal(self.head_scale))(x)


class EnvsState(NamedTuple):
    """The environments between two steps, [N, ...]."""

    state: Any
    observation: jax.Array
    """[N, features]: what the next action is chosen from."""
    episode_return: jax.Array
    """[N]: rewards so far of the episodes under way."""


class Outcome(NamedTuple):
    """What one step of every environment led to, [N, ...]."""

    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    next_observation: jax.Array
    """[N, features]: where the step led, before any reset."""
    finished_return: jax.Array
    """[N]: return of the episode that ended in this step; zero if none did."""


class Environments:
    """`count` copies of a gymnax environment with discrete actions; observations are flattened."""

    def __init__(self, name: str, count: int) -> None:
        self.count = count
        self._env, self._params = gymnax.make(name)
        self.actions: int = self._env.num_actions

    def reset(self, key: jax.Array) -> EnvsState:
        """Begins an episode in every environment."""
        observation, state = jax.vmap(self._env.reset, (0, None))(jax.random.split(key, self.count), self._params)
        return EnvsState(state, observation.reshape(self.count, -1), jnp.zeros(self.count))

    def step(self, key: jax.Array, envs: EnvsState, action: jax.Array) -> tuple[EnvsState, Outcome]:
        """Plays `action` [N]; an environment whose episode ended begins the next one."""
        observation, state, reward, terminated, truncated, info = jax.vmap(self._env.step, (0, 0, 0, None))(
            jax.random.split(key, self.count), envs.state, action, self._params
        )
        done = terminated | truncated
        episode_return = envs.episode_return + reward
        outcome = Outcome(
            reward,
            terminated,
            truncated,
            info["final_observation"].reshape(self.count, -1),
            jnp.where(done, episode_return, 0.0),
        )
        envs = EnvsState(state, observation.reshape(self.count, -1), jnp.where(done, 0.0, episode_return))
        return envs, outcome


def episode_metrics(outcome: Outcome) -> Metrics:
    """Mean return (zero if there is none) and number of the episodes that ended in [T, N] steps."""
    episodes = (outcome.terminated | outcome.truncated).sum()
    return {"returns": outcome.finished_return.sum() / jnp.maximum(episodes, 1), "episodes": episodes}


def backward_sum(delta: jax.Array, decay: jax.Array) -> jax.Array:
    """Returns x [T, N] with x[t] = delta[t] + decay[t] * x[t + 1], and zero after the end."""

    def step(total: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        total = row[0] + row[1] * total
        return total, total

    return lax.scan(step, jnp.zeros_like(delta[0]), (delta, decay), reverse=True)[1]


def gae(
    reward: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    *,
    gamma: float,
    lambda_: float,
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantages and value targets [T, N]; `next_value` is of where each step led, before any reset."""
    discount = gamma * (1.0 - terminated)
    delta = reward + discount * next_value - value
    advantage = backward_sum(delta, lambda_ * discount * (1.0 - truncated))
    return advantage, advantage + value


def vtrace(
    reward: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    ratio: jax.Array,
    *,
    gamma: float,
    lambda_: float,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> tuple[jax.Array, jax.Array]:
    """Policy-gradient advantages and value targets [T, N] of Espeholt et al. (2018).

    `ratio` is the learner's probability of each action over the actor's; `next_value` as in `gae`.
    """
    discount = gamma * (1.0 - terminated)
    rho = jnp.minimum(rho_bar, ratio)
    c = lambda_ * jnp.minimum(c_bar, ratio)
    delta = rho * (reward + discount * next_value - value)
    target = value + backward_sum(delta, c * discount * (1.0 - truncated))
    # The row after a truncation is of another episode, and the last row has none: there the value stands in.
    following = jnp.concatenate([target[1:], next_value[-1:]])
    following = jnp.where(truncated, next_value, following)
    return rho * (reward + discount * following - value), target


class Trajectory(NamedTuple):
    """The steps of one unroll, [T, N, ...]."""

    observation: jax.Array
    action: jax.Array
    log_prob: jax.Array
    """Under the params that acted."""
    outcome: Outcome


class Carry(NamedTuple):
    """All that lives from one update to the next."""

    params: Any
    history: Any
    """[lag + 1, ...]: slot u % (lag + 1) holds the params after u updates; at first all are the initial ones."""
    optimiser: optax.OptState
    envs: EnvsState


def make(
    envs: int = 64,
    *,
    env_name: str = "CartPole-v1",
    steps: int = 500_000,
    unroll: int = 8,
    learning_rate: float = 3e-3,
    v_trace: bool = False,
    lag: int = 0,
    gae_lambda: float = 0.95,
    normalise: bool = True,
    widths: Sequence[int] = (64, 64),
    gamma: float = 0.99,
    value_coefficient: float = 0.5,
    entropy_coefficient: float = 0.01,
    max_gradient_norm: float = 0.5,
    rms_decay: float = 0.99,
    rms_epsilon: float = 1e-5,
) -> Run:
    """Builds A2C, or with `v_trace` IMPALA (whose usual settings are `gae_lambda=1.0, normalise=False`).

    `run(seed)` trains for at least `steps` environment steps and returns, for each update, the mean return
    ("returns") and the number ("episodes") of the episodes that ended in it. The params that act are `lag`
    updates older than those that learn.
    """
    updates = -(-steps // (envs * unroll))
    environments = Environments(env_name, envs)
    actor = Tower(environments.actions, 0.01, tuple(widths))
    critic = Tower(1, 1.0, tuple(widths))
    optimiser = optax.chain(
        optax.clip_by_global_norm(max_gradient_norm),
        optax.scale_by_rms(decay=rms_decay, eps=rms_epsilon),
        optax.scale_by_learning_rate(optax.linear_schedule(learning_rate, 0.0, updates)),
    )

    def action_log_probs(params: Any, observation: jax.Array) -> jax.Array:
        return jax.nn.log_softmax(jnp.asarray(actor.apply(params["actor"], observation)))

    def values(params: Any, observation: jax.Array) -> jax.Array:
        return jnp.asarray(critic.apply(params["critic"], observation))[..., 0]

    def chosen(log_probs: jax.Array, action: jax.Array) -> jax.Array:
        return jnp.take_along_axis(log_probs, action[..., None], axis=-1)[..., 0]

    def init(key: jax.Array) -> Carry:
        env_key, actor_key, critic_key = jax.random.split(key, 3)
        state = environments.reset(env_key)
        params = {
            "actor": actor.init(actor_key, state.observation),
            "critic": critic.init(critic_key, state.observation),
        }
        history = jax.tree.map(lambda x: jnp.repeat(x[None], lag + 1, axis=0), params)
        return Carry(params, history, optimiser.init(params), state)

    def collect(params: Any, state: EnvsState, key: jax.Array) -> tuple[EnvsState, Trajectory]:
        def step(state: EnvsState, key: jax.Array) -> tuple[EnvsState, Trajectory]:
            act_key, env_key = jax.random.split(key)
            log_probs = action_log_probs(params, state.observation)
            action = jax.random.categorical(act_key, log_probs)
            next_state, outcome = environments.step(env_key, state, action)
            return next_state, Trajectory(state.observation, action, chosen(log_probs, action), outcome)

        return lax.scan(step, state, jax.random.split(key, unroll))

    def prepare(params: Any, trajectory: Trajectory) -> tuple[jax.Array, jax.Array]:
        """The advantages to learn from and the value targets, [T, N]."""
        outcome = trajectory.outcome
        value = values(params, trajectory.observation)
        next_value = values(params, outcome.next_observation)
        ends = outcome.terminated, outcome.truncated
        if v_trace:
            log_prob = chosen(action_log_probs(params, trajectory.observation), trajectory.action)
            ratio = jnp.exp(log_prob - trajectory.log_prob)
            advantage, target = vtrace(outcome.reward, *ends, value, next_value, ratio, gamma=gamma, lambda_=gae_lambda)
        else:
            advantage, target = gae(outcome.reward, *ends, value, next_value, gamma=gamma, lambda_=gae_lambda)
        if normalise:
            advantage = (advantage - advantage.mean()) / (advantage.std() + ADVANTAGE_EPSILON)
        return advantage, target

    def loss(params: Any, trajectory: Trajectory, advantage: jax.Array, target: jax.Array) -> jax.Array:
        log_probs = action_log_probs(params, trajectory.observation)
        actor_loss = -(chosen(log_probs, trajectory.action) * advantage).mean()
        value_loss = 0.5 * jnp.square(values(params, trajectory.observation) - target).mean()
        entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
        return actor_loss + value_coefficient * value_loss - entropy_coefficient * entropy

    def update(carry: Carry, step: tuple[jax.Array, jax.Array]) -> tuple[Carry, Metrics]:
        number, key = step
        # The slot of the params after `number - lag` updates is also the one that the new params take.
        slot = (number + 1) % (lag + 1)
        acting = jax.tree.map(lambda x: x[slot], carry.history)
        state, trajectory = collect(acting, carry.envs, key)
        advantage, target = prepare(carry.params, trajectory)
        gradient = jax.grad(loss)(carry.params, trajectory, advantage, target)
        change, optimiser_state = optimiser.update(gradient, carry.optimiser, carry.params)
        params = optax.apply_updates(carry.params, change)
        history = jax.tree.map(lambda old, new: old.at[slot].set(new), carry.history, params)
        return Carry(params, history, optimiser_state, state), episode_metrics(trajectory.outcome)

    def run(seed: jax.Array) -> Metrics:
        init_key, run_key = jax.random.split(jax.random.key(seed))
        return lax.scan(update, init(init_key), (jnp.arange(updates), jax.random.split(run_key, updates)))[1]

    return run


def final_returns(returns: np.ndarray, episodes: np.ndarray, count: int = 100) -> np.ndarray:
    """Mean return [seeds] over the last updates that together hold at least `count` episodes (or over all).

    `returns` and `episodes` are [seeds, updates]; a seed without any episode gets NaN.
    """
    returns, episodes = np.asarray(returns, np.float64), np.asarray(episodes, np.float64)
    later = np.cumsum(episodes[:, ::-1], axis=1)[:, ::-1] - episodes
    weights = np.where(later < count, episodes, 0.0)
    total = weights.sum(axis=1)
    return np.where(total > 0, (returns * weights).sum(axis=1) / np.maximum(total, 1.0), np.nan)


def report(program: str, run: Run, first_seed: int, seeds: int) -> None:
    """Trains all seeds in one compiled call and prints a line of JSON."""
    numbers = jnp.arange(first_seed, first_seed + seeds)
    begin = time.perf_counter()
    compiled = jax.jit(jax.vmap(run)).lower(numbers).compile()
    compile_seconds = time.perf_counter() - begin
    begin = time.perf_counter()
    metrics = jax.block_until_ready(compiled(numbers))
    seconds = time.perf_counter() - begin
    final = final_returns(metrics["returns"], metrics["episodes"])
    line = {
        "program": program,
        "seeds": numbers.tolist(),
        "returns": [round(float(x), 1) for x in final],
        "mean": round(float(final.mean()), 1),
        "worst": round(float(final.min()), 1),
        "best": round(float(final.max()), 1),
        "seconds": round(seconds, 2),
        "compile_seconds": round(compile_seconds, 2),
    }
    print(json.dumps(line), flush=True)


def add_run_options(parser: argparse.ArgumentParser, *, envs: int, learning_rate: float) -> None:
    """Adds the options that every hand-written program shares."""
    parser.add_argument("--seeds", type=int, default=4, help="how many seeds, trained side by side")
    parser.add_argument("--first-seed", type=int, default=0, help="the first seed")
    parser.add_argument("--steps", type=int, default=500_000, help="environment steps of each seed")
    parser.add_argument("--env", default="CartPole-v1", help="gymnax environment")
    parser.add_argument("--envs", type=int, default=envs, help="environments of each seed")
    parser.add_argument("--learning-rate", type=float, default=learning_rate, help="the first step size")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_run_options(parser, envs=64, learning_rate=3e-3)
    parser.add_argument("--unroll", type=int, default=8, help="steps of every environment in an update")
    parser.add_argument("--v-trace", action="store_true", help="IMPALA: V-trace, lambda 1, raw advantages")
    parser.add_argument("--lag", type=int, default=0, help="by how many updates the acting params are older")
    parser.add_argument("--gae-lambda", type=float, help="lambda; 0.95, or 1 with --v-trace")
    parser.add_argument(
        "--normalise", action=argparse.BooleanOptionalAction, help="normalise advantages; the default without --v-trace"
    )
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 64], help="units of the hidden layers")
    options = parser.parse_args()
    default_lambda = 1.0 if options.v_trace else 0.95
    run = make(
        options.envs,
        env_name=options.env,
        steps=options.steps,
        unroll=options.unroll,
        learning_rate=options.learning_rate,
        v_trace=options.v_trace,
        lag=options.lag,
        gae_lambda=default_lambda if options.gae_lambda is None else options.gae_lambda,
        normalise=not options.v_trace if options.normalise is None else options.normalise,
        widths=options.widths,
    )
    report("handwritten IMPALA" if options.v_trace else "handwritten A2C", run, options.first_seed, options.seeds)


if __name__ == "__main__":
    main()
