"""PPO written by hand as one JAX program: the yardstick for Tessera's generated `fused` program.

What Tessera generates is spelled out here for one algorithm, one network and one kind of environment: a scan
over updates holds a scan over environment steps, the advantages, and scans over epochs and minibatches.
`make` returns `init` and `run`; `run` is one jit whose carry is donated.

    python benchmarks/handwritten_ppo.py --envs 64 1024
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.typing import DTypeLike

UNROLL = 128
GAMMA = 0.99
LAMBDA = 0.95
CLIP = 0.2
ENTROPY_COEFFICIENT = 0.01
VALUE_COEFFICIENT = 0.5
MAX_GRADIENT_NORM = 0.5
ADAM_EPSILON = 1e-5
ADVANTAGE_EPSILON = 1e-8


class Tower(nn.Module):
    """A 64 × 64 network with orthogonal weights and a linear head of `outputs` units."""

    outputs: int
    head_scale: float
    dtype: DTypeLike = jnp.float32
    activation: Callable[[jax.Array], jax.Array] = jnp.tanh
    axes: int = 1
    """Axes of one observation, which are flattened."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., *observation] to float32 [..., outputs]."""
        x = x.reshape(*x.shape[: x.ndim - self.axes], -1)
        for _ in range(2):
            x = self.activation(nn.Dense(64, kernel_init=nn.initializers.orthogonal(2**0.5), dtype=self.dtype)(x))
        head = nn.Dense(self.outputs, kernel_init=nn.initializers.orthogonal(self.head_scale), dtype=self.dtype)
        return head(x).astype(jnp.float32)


class Carry(NamedTuple):
    """All that lives from one update to the next."""

    params: Any
    optimiser: optax.OptState
    env_state: Any
    observation: jax.Array
    """[N, ...]: what the next action is chosen from."""
    episode_return: jax.Array
    """[N]: rewards so far of the episodes under way."""
    key: jax.Array


class Tally(NamedTuple):
    """What one unroll keeps for each environment beside its trajectory."""

    finished_return: jax.Array
    """[N]: sum of the returns of the episodes that ended in this unroll."""
    finished: jax.Array
    """[N]: how many episodes ended."""
    final_observation: jax.Array
    """[N, ...]: observation of the last truncated step; zeros if there was none."""


class Trajectory(NamedTuple):
    """The steps of one unroll, [T, N, ...]."""

    observation: jax.Array
    action: jax.Array
    log_prob: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_observation: jax.Array | None
    """Only where an environment can be truncated twice in an unroll; else `Tally` holds the one needed."""


class Batch(NamedTuple):
    """Rows to learn from, [T * N, ...]."""

    observation: jax.Array
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    target: jax.Array


Metrics = dict[str, jax.Array]
Init = Callable[[int], Carry]


class Run(Protocol):
    """A jitted function: callable, and compiled ahead of time with `lower(carry, updates).compile()`."""

    def __call__(self, carry: Carry, updates: int) -> tuple[Carry, Metrics]:
        """Makes `updates` (static) updates; donates `carry`."""

    def lower(self, carry: Carry, updates: int) -> Any:
        """Lowers without running; the compiled function takes the carry only."""


def shuffled(key: jax.Array, rows: int) -> jax.Array:
    """Returns the numbers below `rows` in random order, for splitting into minibatches.

    `jax.random.permutation` sorts pairs (key, payload) twice, which took a third of the whole program on CPU.
    Sorting single words once, with random high bits and the row's number in the low bits, is seven times as
    fast. Rows whose random bits agree keep their order; as a minibatch is a set, that matters only where two
    minibatches meet.
    """
    index_bits = (rows - 1).bit_length()
    if index_bits > 20:
        return jnp.argsort(jax.random.bits(key, (rows,)))
    low = jnp.uint32(2**index_bits - 1)
    words = (jax.random.bits(key, (rows,)) & ~low) | lax.iota(jnp.uint32, rows)
    return (lax.sort(words, is_stable=False) & low).astype(jnp.int32)


def advantages(
    r_t: jax.Array, terminated_t: jax.Array, truncated_t: jax.Array, v_tm1: jax.Array, v_t: jax.Array
) -> jax.Array:
    """Generalised advantage estimates [T, N]; `v_t` values what each step led to, before any reset."""
    discount_t = GAMMA * (1.0 - terminated_t)
    delta_t = r_t + discount_t * v_t - v_tm1
    decay_t = LAMBDA * discount_t * (1.0 - truncated_t)

    def backward(advantage: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        delta, decay = step
        advantage = delta + decay * advantage
        return advantage, advantage

    return lax.scan(backward, jnp.zeros_like(r_t[0]), (delta_t, decay_t), reverse=True, unroll=16)[1]


def make(
    envs: int,
    *,
    env_name: str = "CartPole-v1",
    unroll: int = UNROLL,
    epochs: int = 4,
    minibatches: int = 4,
    learning_rate: float = 2.5e-4,
    total_updates: int = 1000,
    dtype: DTypeLike = jnp.float32,
    activation: Callable[[jax.Array], jax.Array] = jnp.tanh,
) -> tuple[Init, Run]:
    """Builds PPO for `envs` copies of a gymnax environment with discrete actions.

    `init(seed)` makes the carry; `run(carry, updates)` makes `updates` updates in one compiled call, donates
    the carry and returns the next one with metrics [updates]. `total_updates` is where the learning rate
    reaches zero; `dtype` is the precision of the matrix products (params and losses stay float32).
    """
    rows = envs * unroll
    if rows % minibatches:
        raise ValueError(f"{envs} envs × {unroll} steps do not split into {minibatches} minibatches")
    env, env_params = gymnax.make(env_name)
    axes = len(env.observation_space(env_params).shape)
    actor = Tower(env.num_actions, 0.01, dtype, activation, axes)
    critic = Tower(1, 1.0, dtype, activation, axes)
    # Truncations of one environment lie at least an episode apart: a short unroll meets at most one of each.
    one_truncation = unroll <= env_params.max_steps_in_episode
    schedule = optax.linear_schedule(learning_rate, 0.0, total_updates * epochs * minibatches)
    optimiser = optax.chain(optax.clip_by_global_norm(MAX_GRADIENT_NORM), optax.adam(schedule, eps=ADAM_EPSILON))

    def action_log_probs(params: Any, observation: jax.Array) -> jax.Array:
        return jax.nn.log_softmax(jnp.asarray(actor.apply(params["actor"], observation)))

    def values(params: Any, observation: jax.Array) -> jax.Array:
        return jnp.asarray(critic.apply(params["critic"], observation))[..., 0]

    def init(seed: int) -> Carry:
        key, env_key, actor_key, critic_key = jax.random.split(jax.random.key(seed), 4)
        observation, env_state = jax.vmap(env.reset, (0, None))(jax.random.split(env_key, envs), env_params)
        params = {
            "actor": actor.init(actor_key, observation[0]),
            "critic": critic.init(critic_key, observation[0]),
        }
        return Carry(params, optimiser.init(params), env_state, observation, jnp.zeros(envs), key)

    def collect(carry: Carry, key: jax.Array) -> tuple[Carry, Tally, Trajectory]:
        def step(state: tuple[Carry, Tally], key: jax.Array) -> tuple[tuple[Carry, Tally], Trajectory]:
            carry, tally = state
            act_key, env_key = jax.random.split(key)
            log_probs = action_log_probs(carry.params, carry.observation)
            action = jax.random.categorical(act_key, log_probs)
            log_prob = jnp.take_along_axis(log_probs, action[:, None], axis=1)[:, 0]
            observation, env_state, reward, terminated, truncated, info = jax.vmap(env.step, (0, 0, 0, None))(
                jax.random.split(env_key, envs), carry.env_state, action, env_params
            )
            final = info["final_observation"]
            done = terminated | truncated
            episode_return = carry.episode_return + reward
            where_truncated = truncated.reshape(truncated.shape + (1,) * (final.ndim - 1))
            tally = Tally(
                tally.finished_return + jnp.where(done, episode_return, 0.0),
                tally.finished + done,
                jnp.where(where_truncated, final, tally.final_observation),
            )
            row = Trajectory(
                carry.observation,
                action,
                log_prob,
                reward,
                terminated,
                truncated,
                None if one_truncation else final,
            )
            carry = carry._replace(
                env_state=env_state,
                observation=observation,
                episode_return=jnp.where(done, 0.0, episode_return),
            )
            return (carry, tally), row

        empty = Tally(jnp.zeros(envs), jnp.zeros(envs), jnp.zeros_like(carry.observation))
        (carry, tally), trajectory = lax.scan(step, (carry, empty), jax.random.split(key, unroll))
        return carry, tally, trajectory

    def prepare(carry: Carry, tally: Tally, trajectory: Trajectory) -> Batch:
        observations = jnp.concatenate([trajectory.observation, carry.observation[None]])
        value = values(carry.params, observations)
        final = trajectory.final_observation
        if final is None:
            final = tally.final_observation[None]
        next_value = jnp.where(trajectory.truncated, values(carry.params, final), value[1:])
        advantage = advantages(trajectory.reward, trajectory.terminated, trajectory.truncated, value[:-1], next_value)
        target = advantage + value[:-1]
        advantage = (advantage - advantage.mean()) / (advantage.std() + ADVANTAGE_EPSILON)
        batch = Batch(trajectory.observation, trajectory.action, trajectory.log_prob, advantage, target)
        return jax.tree.map(lambda x: x.reshape(rows, *x.shape[2:]), batch)

    def loss(params: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
        log_probs = action_log_probs(params, batch.observation)
        log_prob = jnp.take_along_axis(log_probs, batch.action[:, None], axis=1)[:, 0]
        ratio = jnp.exp(log_prob - batch.log_prob)
        clipped = jnp.clip(ratio, 1.0 - CLIP, 1.0 + CLIP)
        actor_loss = -jnp.minimum(ratio * batch.advantage, clipped * batch.advantage).mean()
        entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
        value_loss = 0.5 * jnp.square(values(params, batch.observation) - batch.target).mean()
        return actor_loss + VALUE_COEFFICIENT * value_loss - ENTROPY_COEFFICIENT * entropy, entropy

    Learner = tuple[Any, optax.OptState]

    def learn(learner: Learner, batch: Batch, key: jax.Array) -> tuple[Learner, jax.Array, jax.Array]:
        def minibatch(learner: Learner, index: jax.Array) -> tuple[Learner, tuple[jax.Array, jax.Array]]:
            params, state = learner
            chosen = jax.tree.map(lambda x: jnp.take(x, index, axis=0), batch)
            (value, entropy), gradient = jax.value_and_grad(loss, has_aux=True)(params, chosen)
            updates, state = optimiser.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), (value, entropy)

        def epoch(learner: Learner, key: jax.Array) -> tuple[Learner, tuple[jax.Array, jax.Array]]:
            order = shuffled(key, rows).reshape(minibatches, -1)
            return lax.scan(minibatch, learner, order)

        learner, (losses, entropies) = lax.scan(epoch, learner, jax.random.split(key, epochs))
        return learner, losses.mean(), entropies.mean()

    def update(carry: Carry, _: None) -> tuple[Carry, Metrics]:
        key, collect_key, learn_key = jax.random.split(carry.key, 3)
        carry, tally, trajectory = collect(carry, collect_key)
        batch = prepare(carry, tally, trajectory)
        (params, state), mean_loss, entropy = learn((carry.params, carry.optimiser), batch, learn_key)
        episodes = tally.finished.sum()
        metrics = {
            "mean_return": tally.finished_return.sum() / jnp.maximum(episodes, 1.0),
            "episodes": episodes,
            "loss": mean_loss,
            "entropy": entropy,
        }
        return carry._replace(params=params, optimiser=state, key=key), metrics

    def run(carry: Carry, updates: int) -> tuple[Carry, Metrics]:
        return lax.scan(update, carry, None, updates)

    return jax.jit(init), jax.jit(run, static_argnums=1, donate_argnums=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", type=int, nargs="+", default=[64, 1024], help="environments, one run for each")
    parser.add_argument("--updates", type=int, default=20, help="updates per repetition")
    parser.add_argument("--repeat", type=int, default=3, help="timed repetitions")
    parser.add_argument("--env", default="CartPole-v1", help="gymnax environment")
    parser.add_argument("--learning-rate", type=float, default=2.5e-4, help="Adam's first step size")
    parser.add_argument("--dtype", default="float32", help="precision of the matrix products")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run")
    options = parser.parse_args()
    for envs in options.envs:
        measure(envs, options)


def measure(envs: int, options: argparse.Namespace) -> None:
    """Compiles, makes one untimed call, then prints a JSON line for each timed one."""
    init, run = make(
        envs,
        env_name=options.env,
        learning_rate=options.learning_rate,
        total_updates=options.updates * (options.repeat + 1),
        dtype=options.dtype,
    )
    carry = init(options.seed)
    begin = time.perf_counter()
    compiled = run.lower(carry, options.updates).compile()
    compile_seconds = time.perf_counter() - begin
    carry, _ = jax.block_until_ready(compiled(carry))
    for repetition in range(options.repeat):
        begin = time.perf_counter()
        carry, metrics = jax.block_until_ready(compiled(carry))
        seconds = time.perf_counter() - begin
        line = {
            "program": "handwritten",
            "envs": envs,
            "updates": options.updates,
            "repetition": repetition,
            "seconds": round(seconds, 4),
            "steps_per_second": round(envs * UNROLL * options.updates / seconds),
            "compile_seconds": round(compile_seconds, 2),
            "mean_return": round(float(metrics["mean_return"][-1]), 1),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
