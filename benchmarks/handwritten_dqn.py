"""Double DQN written by hand as one JAX program: a yardstick for what Tessera's own version should learn.

One update is a few epsilon-greedy steps of every environment, stored in a replay, and a few gradients, each from
rows drawn uniformly from it.

    python benchmarks/handwritten_dqn.py --seeds 4
"""

import argparse
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.typing import Initializer
from handwritten_a2c import Environments, EnvsState, Metrics, Outcome, Run, add_run_options, episode_metrics, report
from jax import lax


def uniform_within(limit: float) -> Initializer:
    """Draws from ±`limit`."""
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -limit, limit)


class QNetwork(nn.Module):
    """A relu network whose weights and biases start within ±1/sqrt(inputs) of their layer, as in PyTorch."""

    actions: int
    widths: Sequence[int]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., features] to float32 [..., actions]."""
        x = x.astype(jnp.float32)
        for width in self.widths:
            x = nn.relu(self.dense(width, x))
        return self.dense(self.actions, x)

    def dense(self, outputs: int, x: jax.Array) -> jax.Array:
        """A new layer, applied to `x`."""
        start = uniform_within(x.shape[-1] ** -0.5)
        return nn.Dense(outputs, kernel_init=start, bias_init=start)(x)


class Rows(NamedTuple):
    """Steps to learn from, [..., features] or [...]."""

    observation: jax.Array
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array
    next_observation: jax.Array
    """Where the step led, before any reset."""


class Replay(NamedTuple):
    """A ring of the newest rows."""

    rows: Rows
    """[capacity, ...]: the i-th row that came in lies at i % capacity."""
    added: jax.Array
    """How many rows ever came in."""


def add(replay: Replay, rows: Rows) -> Replay:
    """Stores rows [B, ...], oldest first, over the oldest ones there."""
    capacity, new = replay.rows.reward.shape[0], rows.reward.shape[0]
    place = (replay.added + jnp.arange(new)) % capacity
    stored = jax.tree.map(lambda old, x: old.at[place].set(x, unique_indices=True), replay.rows, rows)
    return Replay(stored, replay.added + new)


def draw(replay: Replay, key: jax.Array, count: int) -> Rows:
    """Draws `count` rows uniformly, with replacement."""
    filled = jnp.minimum(replay.added, replay.rows.reward.shape[0])
    index = jax.random.randint(key, (count,), 0, filled)
    return jax.tree.map(lambda x: x[index], replay.rows)


class Learner(NamedTuple):
    """What a gradient changes."""

    params: Any
    target: Any
    optimiser: optax.OptState
    gradients: jax.Array
    """How many were applied."""


class Carry(NamedTuple):
    """All that lives from one update to the next."""

    learner: Learner
    replay: Replay
    envs: EnvsState


def make(
    envs: int = 16,
    *,
    env_name: str = "CartPole-v1",
    steps: int = 500_000,
    learning_rate: float = 1e-3,
    unroll: int = 4,
    gradients: int = 4,
    batch: int = 128,
    capacity: int = 100_000,
    warm_up: int = 32,
    epsilon_start: float = 1.0,
    epsilon_end: float = 0.05,
    epsilon_fraction: float = 0.2,
    gamma: float = 0.99,
    max_gradient_norm: float = 10.0,
    target_period: int = 50,
    widths: Sequence[int] = (64, 64),
    huber: float = 0.0,
) -> Run:
    """Builds double DQN.

    `run(seed)` plays `warm_up` unrolls without learning, then trains for at least `steps` environment steps and
    returns, for each update, the mean return ("returns") and the number ("episodes") of the episodes that ended in
    it. `capacity` counts the rows of all environments together; `huber` is where the loss turns linear (0: nowhere).
    """
    if envs * unroll > capacity:
        raise ValueError(f"{envs} envs × {unroll} steps do not fit into a replay of {capacity} rows")
    updates = -(-steps // (envs * unroll))
    environments = Environments(env_name, envs)
    network = QNetwork(environments.actions, tuple(widths))
    schedule = optax.linear_schedule(learning_rate, 0.0, updates * gradients)
    optimiser = optax.chain(optax.clip_by_global_norm(max_gradient_norm), optax.adam(schedule))

    def action_values(params: Any, observation: jax.Array) -> jax.Array:
        return jnp.asarray(network.apply(params, observation))

    def chosen(values: jax.Array, action: jax.Array) -> jax.Array:
        return jnp.take_along_axis(values, action[:, None], axis=1)[:, 0]

    def init(key: jax.Array) -> Carry:
        env_key, network_key = jax.random.split(key)
        state = environments.reset(env_key)
        params = network.init(network_key, state.observation)
        learner = Learner(params, params, optimiser.init(params), jnp.int32(0))
        return Carry(learner, empty_replay(state), state)

    def empty_replay(state: EnvsState) -> Replay:
        observation = jnp.zeros((capacity, *state.observation.shape[1:]), state.observation.dtype)
        number = jnp.zeros(capacity)
        action = jnp.zeros(capacity, jnp.int32)
        return Replay(Rows(observation, action, number, jnp.zeros(capacity, bool), observation), jnp.int32(0))

    def collect(carry: Carry, epsilon: jax.Array | float, key: jax.Array) -> tuple[Carry, Outcome]:
        """Plays one unroll and stores it."""

        def step(state: EnvsState, key: jax.Array) -> tuple[EnvsState, tuple[Rows, Outcome]]:
            explore_key, action_key, env_key = jax.random.split(key, 3)
            greedy = action_values(carry.learner.params, state.observation).argmax(axis=-1)
            explores = jax.random.uniform(explore_key, (envs,)) < epsilon
            action = jnp.where(explores, jax.random.randint(action_key, (envs,), 0, environments.actions), greedy)
            next_state, outcome = environments.step(env_key, state, action)
            rows = Rows(state.observation, action, outcome.reward, outcome.terminated, outcome.next_observation)
            return next_state, (rows, outcome)

        state, (rows, outcome) = lax.scan(step, carry.envs, jax.random.split(key, unroll))
        replay = add(carry.replay, jax.tree.map(lambda x: x.reshape(envs * unroll, *x.shape[2:]), rows))
        return Carry(carry.learner, replay, state), outcome

    def loss(params: Any, target_params: Any, rows: Rows) -> jax.Array:
        best = action_values(params, rows.next_observation).argmax(axis=-1)
        next_value = chosen(action_values(target_params, rows.next_observation), best)
        target = lax.stop_gradient(rows.reward + gamma * (1.0 - rows.terminated) * next_value)
        value = chosen(action_values(params, rows.observation), rows.action)
        errors = optax.huber_loss(value, target, delta=huber) if huber else 0.5 * jnp.square(value - target)
        return errors.mean()

    def learn(learner: Learner, rows: Rows) -> Learner:
        gradient = jax.grad(loss)(learner.params, learner.target, rows)
        change, optimiser_state = optimiser.update(gradient, learner.optimiser, learner.params)
        params = optax.apply_updates(learner.params, change)
        applied = learner.gradients + 1
        copies = applied % target_period == 0
        target = jax.tree.map(lambda new, old: jnp.where(copies, new, old), params, learner.target)
        return Learner(params, target, optimiser_state, applied)

    def update(carry: Carry, step: tuple[jax.Array, jax.Array]) -> tuple[Carry, Metrics]:
        number, key = step
        collect_key, draw_key = jax.random.split(key)
        annealed = jnp.minimum(number / (epsilon_fraction * updates), 1.0)
        epsilon = epsilon_start + (epsilon_end - epsilon_start) * annealed
        carry, outcome = collect(carry, epsilon, collect_key)

        def gradient_step(learner: Learner, key: jax.Array) -> tuple[Learner, None]:
            return learn(learner, draw(carry.replay, key, batch)), None

        learner, _ = lax.scan(gradient_step, carry.learner, jax.random.split(draw_key, gradients))
        return carry._replace(learner=learner), episode_metrics(outcome)

    def run(seed: jax.Array) -> Metrics:
        init_key, warm_up_key, run_key = jax.random.split(jax.random.key(seed), 3)
        carry, _ = lax.scan(
            lambda carry, key: (collect(carry, epsilon_start, key)[0], None),
            init(init_key),
            jax.random.split(warm_up_key, warm_up),
        )
        return lax.scan(update, carry, (jnp.arange(updates), jax.random.split(run_key, updates)))[1]

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_run_options(parser, envs=16, learning_rate=1e-3)
    parser.add_argument("--unroll", type=int, default=4, help="steps of every environment in an update")
    parser.add_argument("--gradients", type=int, default=4, help="gradients in an update")
    parser.add_argument("--batch", type=int, default=128, help="rows for each gradient")
    parser.add_argument("--capacity", type=int, default=100_000, help="rows that the replay holds")
    parser.add_argument("--target-period", type=int, default=50, help="gradients between two copies to the target")
    parser.add_argument("--huber", type=float, default=0.0, help="error at which the loss turns linear; 0: nowhere")
    options = parser.parse_args()
    run = make(
        options.envs,
        env_name=options.env,
        steps=options.steps,
        learning_rate=options.learning_rate,
        unroll=options.unroll,
        gradients=options.gradients,
        batch=options.batch,
        capacity=options.capacity,
        target_period=options.target_period,
        huber=options.huber,
    )
    report("handwritten DQN", run, options.first_seed, options.seeds)


if __name__ == "__main__":
    main()
