"""Returns and advantages along time. Arrays are time-major [T, ...]; any trailing axes are carried along.

An episode ends by *termination*, after which there are no rewards, or by *truncation*, after which there would have
been more: the value of the final observation stands for them. Both stop the accumulation.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

# Steps of a recurrence in one iteration of the loop: fewer iterations for a slightly longer compilation.
_UNROLL = 8


def _recurrence(x_t: jax.Array, decay_t: jax.Array, last: jax.Array) -> jax.Array:
    """Solve y_t = x_t + decay_t * y_{t+1} backwards from y_T = `last`; [T, ...], [T, ...], [...] -> [T, ...]."""

    def step(y_tp1: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, decay = inputs
        y = x + decay * y_tp1
        return y, y

    return jax.lax.scan(step, last, (x_t, decay_t), reverse=True, unroll=_UNROLL)[1]


def discounted_returns(r_t: jax.Array, discount_t: jax.Array, bootstrap: jax.Array | float = 0.0) -> jax.Array:
    """Sum rewards to the end: G_t = r_t + discount_t * G_{t+1}, with `bootstrap` as the G after the last step.

    Args:
        r_t: [T, ...] rewards.
        discount_t: [T, ...] discount that applies after r_t: gamma, or 0 where the episode ended there.
        bootstrap: [...] value after the last step.

    Returns:
        [T, ...] returns.
    """
    r_t, discount_t = jnp.broadcast_arrays(r_t, discount_t)
    r_t, discount_t = (x.astype(jnp.promote_types(x.dtype, jnp.float32)) for x in (r_t, discount_t))
    dtype = jnp.result_type(r_t, discount_t, bootstrap)
    last = jnp.broadcast_to(jnp.asarray(bootstrap, dtype), r_t.shape[1:])
    return _recurrence(r_t.astype(dtype), discount_t.astype(dtype), last)


def running_returns(r_t: jax.Array, over_t: jax.Array, before: jax.Array, gamma: float) -> tuple[jax.Array, jax.Array]:
    """Sum rewards forwards: R_t = r_t + gamma * R_{t-1}, which starts again from 0 after the end of an episode.

    Args:
        r_t: [T, ...] rewards.
        over_t: [T] true where an episode ended with r_t, however it ended.
        before: [...] the sum before the first step; 0 where an episode begins there.
        gamma: discount.

    Returns:
        The sum to carry on from, [...], and all sums, [T, ...].
    """

    def step(total: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        reward, over = row
        total = gamma * total + reward.astype(total.dtype)
        return jnp.where(over, 0, total), total

    return jax.lax.scan(step, before, (r_t, over_t))


def generalised_advantage(
    rewards: jax.Array,
    values: jax.Array,
    next_values: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    gamma: float | jax.Array,
    lambda_: float | jax.Array,
) -> jax.Array:
    """Estimate advantages by GAE(lambda) (Schulman et al., 2016), with truncation distinguished from termination.

    Args:
        rewards: [T, ...] r_t, earned by the step from observation t.
        values: [T, ...] v_tm1, the value of the observation that the step started from.
        next_values: [T, ...] v_t, the value of the observation that the step led to; at an episode's end that is the
            final observation, not the first one of the next episode.
        terminated: [T, ...] true where nothing follows: the bootstrap is zero.
        truncated: [T, ...] true where the episode was truncated: the bootstrap stays, the accumulation stops.
        gamma: discount.
        lambda_: how far estimates look ahead, from 0 (one step) to 1 (to the end).

    Returns:
        [T, ...] advantages; add `values` for the targets of a value function.
    """
    not_terminated = 1.0 - terminated.astype(values.dtype)
    same_episode = not_terminated * (1.0 - truncated.astype(values.dtype))
    delta_t = rewards + gamma * not_terminated * next_values - values
    return _recurrence(delta_t, gamma * lambda_ * same_episode, jnp.zeros_like(delta_t[0]))


def returns_to_go(
    rewards: jax.Array, next_values: jax.Array, terminated: jax.Array, truncated: jax.Array, gamma: float
) -> jax.Array:
    """Sum rewards to the end of the episode or of the array, whichever is first, and bootstrap there.

    Args:
        rewards: [T, ...] r_t.
        next_values: [T, ...] value of the observation that each step led to, before any autoreset.
        terminated: [T, ...] true where nothing follows.
        truncated: [T, ...] true where the value of the final observation stands for the rest of the episode.
        gamma: discount.

    Returns:
        [T, ...] returns.
    """
    not_terminated = 1.0 - terminated.astype(next_values.dtype)
    last = (jnp.arange(rewards.shape[0]) == rewards.shape[0] - 1).reshape(-1, *[1] * (rewards.ndim - 1))
    ends = truncated.astype(bool) | last
    x_t = rewards + gamma * not_terminated * jnp.where(ends, next_values, 0)
    return _recurrence(x_t, gamma * not_terminated * jnp.where(ends, 0.0, 1.0), jnp.zeros_like(x_t[0]))


class VTrace(NamedTuple):
    """Targets and advantages of an unroll, [T, ...] each."""

    target: jax.Array
    """v_s: the target of the value function."""
    advantage: jax.Array
    """rho_s (r_s + gamma v_{s+1} - V(x_s)): the weight of the policy gradient."""


def v_trace(
    log_ratios: jax.Array,
    rewards: jax.Array,
    values: jax.Array,
    next_values: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    gamma: float | jax.Array,
    lambda_: float | jax.Array = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> VTrace:
    """Correct returns for experience of another policy (Espeholt et al., 2018), with truncation distinguished.

    v_s = V(x_s) + sum over t >= s of gamma^(t-s) (c_s ... c_{t-1}) delta_t, with
    delta_t = rho_t (r_t + gamma V(x_{t+1}) - V(x_t)), rho_t = min(rho_bar, ratio_t), c_t = lambda min(c_bar, ratio_t).
    After the last step of an episode or of the unroll, `next_values` stands for v_{s+1}.

    Args:
        log_ratios: [T, ...] log-probability of each action by the present params, minus that when it was played.
        rewards: [T, ...] r_t, earned by the step from observation t.
        values: [T, ...] the value of the observation that the step started from.
        next_values: [T, ...] the value of the observation that the step led to, before any autoreset.
        terminated: [T, ...] true where nothing follows: the bootstrap is zero.
        truncated: [T, ...] true where the episode was truncated: the bootstrap stays, the accumulation stops.
        gamma: discount.
        lambda_: how far corrections look ahead, from 0 (one step) to 1 (to the end).
        rho_bar: cap on the weight of a step's own error; decides which policy's value is the fixed point.
        c_bar: cap on the weight of later errors for earlier steps; decides how fast the fixed point is reached.

    Returns:
        Targets and advantages. With ratios of 1 and lambda of 1 targets are n-step returns.
    """
    ratios = jnp.exp(log_ratios)
    rho_t, c_t = jnp.minimum(rho_bar, ratios), lambda_ * jnp.minimum(c_bar, ratios)
    not_terminated = 1.0 - terminated.astype(values.dtype)
    same_episode = not_terminated * (1.0 - truncated.astype(values.dtype))
    delta_t = rho_t * (rewards + gamma * not_terminated * next_values - values)
    errors = _recurrence(delta_t, gamma * c_t * same_episode, jnp.zeros_like(delta_t[0]))
    target = values + errors
    following = jnp.concatenate([target[1:], next_values[-1:]])
    ahead = jnp.where(same_episode.astype(bool), following, next_values)
    return VTrace(target, rho_t * (rewards + gamma * not_terminated * ahead - values))


class NStep(NamedTuple):
    """Sums over n-step windows; every field is [T, ...], one entry for each window's start."""

    reward: jax.Array
    """Sum of gamma^k r over the window."""
    discount: jax.Array
    """Factor of the bootstrap: gamma^(length of the window), or 0 if the episode terminated inside."""
    last: jax.Array
    """int32 index of the window's last transition: its next observation is the one to bootstrap from."""


def n_step(rewards: jax.Array, terminated: jax.Array, truncated: jax.Array, gamma: float | jax.Array, n: int) -> NStep:
    """Sum rewards over windows of `n` transitions that stop early at an episode's end, however it ended.

    Args:
        rewards: [T + n - 1, ...] rewards of consecutive transitions.
        terminated: [T + n - 1, ...].
        truncated: [T + n - 1, ...].
        gamma: discount, or [T + n - 1, ...] the discount after each.
        n: the longest window.

    Returns:
        The windows that start at transitions 0 to T - 1.
    """
    starts = rewards.shape[0] - n + 1
    if n < 1 or starts < 1:
        raise ValueError(f"windows of {n} transitions do not fit into {rewards.shape[0]}")
    shape = (starts, *rewards.shape[1:])
    dtype = jnp.promote_types(rewards.dtype, jnp.float32)
    alive = jnp.ones(shape, bool)
    total, discount = jnp.zeros(shape, dtype), jnp.ones(shape, dtype)
    gammas = jnp.broadcast_to(jnp.asarray(gamma, dtype), rewards.shape)
    last = jnp.broadcast_to(jnp.arange(starts, dtype=jnp.int32).reshape(-1, *[1] * (len(shape) - 1)), shape)
    for k in range(n):
        window = slice(k, k + starts)
        total = total + jnp.where(alive, discount * rewards[window], 0)
        discount = jnp.where(alive, gammas[window] * discount * (1.0 - terminated[window].astype(dtype)), discount)
        last = jnp.where(alive, last + (k > 0), last)
        alive = alive & ~(terminated[window].astype(bool) | truncated[window].astype(bool))
    return NStep(total, discount, last)


def n_step_within(rewards: jax.Array, terminated: jax.Array, truncated: jax.Array, gamma: float, n: int) -> NStep:
    """Sum rewards over windows of `n` transitions as `n_step` does; the last transition of the array ends them too.

    Args:
        rewards: [T, ...] rewards of consecutive transitions.
        terminated: [T, ...].
        truncated: [T, ...].
        gamma: discount.
        n: the longest window.

    Returns:
        The windows that start at transitions 0 to T - 1; the last n - 1 are shorter.
    """

    def padded(x: jax.Array) -> jax.Array:
        return jnp.concatenate([x, jnp.zeros((n - 1, *x.shape[1:]), x.dtype)])

    return n_step(padded(rewards), padded(terminated), padded(truncated.at[-1].set(True)), gamma, n)
