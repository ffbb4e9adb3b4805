"""Returns and advantages: by hand, against rlax, with both kinds of episode end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from tessera.maths.returns import (
    discounted_returns,
    generalised_advantage,
    n_step,
    n_step_within,
    running_returns,
    v_trace,
)

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def episode(seed: int, steps: int, *trailing: int):
    rng = np.random.default_rng(seed)
    r, v, v_next = (rng.normal(size=(steps, *trailing)).astype(np.float32) for _ in range(3))
    terminated = rng.random((steps, *trailing)) < 0.15
    truncated = (rng.random((steps, *trailing)) < 0.15) & ~terminated
    return r, v, v_next, terminated, truncated


def slow_advantage(r, v, v_next, terminated, truncated, gamma, lambda_):
    out, carry = np.zeros_like(r), 0.0
    for t in reversed(range(len(r))):
        delta = r[t] + (0.0 if terminated[t] else gamma * v_next[t]) - v[t]
        carry = delta + (0.0 if terminated[t] or truncated[t] else gamma * lambda_ * carry)
        out[t] = carry
    return out


def test_advantages_match_values_computed_by_hand():
    # Step 1 is truncated (bootstraps from 10, cuts the sum), step 2 terminates (bootstraps from nothing).
    got = generalised_advantage(
        jnp.array([1.0, 2.0, 3.0]),
        jnp.array([0.5, 0.25, 1.0]),
        jnp.array([0.25, 10.0, 99.0]),
        jnp.array([False, False, True]),
        jnp.array([False, True, False]),
        gamma=0.5,
        lambda_=0.5,
    )
    second = 2.0 + 0.5 * 10.0 - 0.25
    np.testing.assert_allclose(got, [1.0 + 0.5 * 0.25 - 0.5 + 0.25 * second, second, 2.0], **CLOSE)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_advantages_match_rlax_where_no_episode_is_truncated(wrap):
    r, v, _, terminated, _ = episode(0, 37)
    values = np.append(v, np.float32(0.7))
    got = wrap(generalised_advantage)(r, values[:-1], values[1:], terminated, np.zeros(37, bool), 0.97, 0.9)
    want = rlax.truncated_generalized_advantage_estimation(r, 0.97 * (1.0 - terminated), 0.9, values)
    np.testing.assert_allclose(got, want, **CLOSE)


def test_advantages_match_a_plain_loop_with_both_kinds_of_end_and_trailing_axes():
    r, v, v_next, terminated, truncated = episode(1, 23, 2, 3)
    assert terminated.any()
    assert truncated.any()
    got = generalised_advantage(r, v, v_next, terminated, truncated, 0.9, 0.8)
    over = jax.vmap(lambda *x: generalised_advantage(*x, 0.9, 0.8), in_axes=2, out_axes=2)
    for i in range(2):
        for j in range(3):
            one = (x[:, i, j] for x in (r, v, v_next, terminated, truncated))
            np.testing.assert_allclose(got[:, i, j], slow_advantage(*one, 0.9, 0.8), **CLOSE)
    np.testing.assert_allclose(over(r, v, v_next, terminated, truncated), got, **CLOSE)


def test_a_truncated_step_still_bootstraps_and_a_terminated_one_does_not():
    ones, no, yes = jnp.ones(1), jnp.zeros(1, bool), jnp.ones(1, bool)
    truncated = generalised_advantage(ones, ones, 5 * ones, no, yes, 0.5, 0.9)
    terminated = generalised_advantage(ones, ones, 5 * ones, yes, no, 0.5, 0.9)
    assert float(truncated[0]) == pytest.approx(2.5)
    assert float(terminated[0]) == pytest.approx(0.0)


def test_discounted_returns_match_rlax_and_hand():
    np.testing.assert_allclose(
        discounted_returns(jnp.array([1.0, 2.0, 4.0]), jnp.array([0.5, 0.0, 0.5]), 8.0), [2.0, 2.0, 8.0]
    )
    r, _, _, terminated, _ = episode(2, 19, 4)
    discount = 0.9 * (1.0 - terminated.astype(np.float32))
    last = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    got = discounted_returns(r, discount, last)
    for i in range(4):
        want = rlax.discounted_returns(r[:, i], discount[:, i], last[i])
        np.testing.assert_allclose(got[:, i], want, **CLOSE)


def test_n_step_windows_match_values_computed_by_hand():
    # Five transitions, windows of 3: transition 1 is truncated, transition 3 terminates.
    got = n_step(
        jnp.array([1.0, 2.0, 4.0, 8.0, 16.0]),
        jnp.array([False, False, False, True, False]),
        jnp.array([False, True, False, False, False]),
        gamma=0.5,
        n=3,
    )
    np.testing.assert_allclose(got.reward, [1 + 0.5 * 2, 2, 4 + 0.5 * 8])
    np.testing.assert_allclose(got.discount, [0.25, 0.5, 0.0])
    np.testing.assert_array_equal(got.last, [1, 1, 3])
    assert got.last.dtype == jnp.int32


@pytest.mark.parametrize("n", [1, 2, 5])
def test_n_step_targets_match_rlax_where_no_episode_is_truncated(n):
    r, v_next, _, terminated, _ = episode(3, 31)
    windows = jax.jit(n_step, static_argnums=(3, 4))(r, terminated, np.zeros(31, bool), 0.95, n)
    got = windows.reward + windows.discount * v_next[windows.last]
    want = rlax.n_step_bootstrapped_returns(r, 0.95 * (1.0 - terminated.astype(np.float32)), v_next, n)
    np.testing.assert_allclose(got, want[: 31 - n + 1], **CLOSE)


def test_n_step_windows_match_a_plain_loop_with_both_kinds_of_end():
    r, _, _, terminated, truncated = episode(4, 40, 2)
    n, gamma = 4, 0.9
    got = n_step(r, terminated, truncated, gamma, n)
    for e in range(2):
        for t in range(40 - n + 1):
            total, k = 0.0, 0
            while True:
                total += gamma**k * r[t + k, e]
                k += 1
                if terminated[t + k - 1, e] or truncated[t + k - 1, e] or k == n:
                    break
            want = 0.0 if terminated[t + k - 1, e] else gamma**k
            np.testing.assert_allclose(got.reward[t, e], total, **CLOSE)
            np.testing.assert_allclose(got.discount[t, e], want, **CLOSE)
            assert int(got.last[t, e]) == t + k - 1


def test_windows_longer_than_the_data_are_refused():
    with pytest.raises(ValueError, match="do not fit"):
        n_step(jnp.ones(2), jnp.zeros(2), jnp.zeros(2), 0.9, 3)


def slow_v_trace(ratios, r, v, v_next, terminated, truncated, gamma, lambda_, rho_bar, c_bar):
    """V-trace as its definition has it: for every start, a sum over what follows in the episode."""
    target, advantage = np.zeros_like(r), np.zeros_like(r)
    for s in range(len(r)):
        total, weight = 0.0, 1.0
        for t in range(s, len(r)):
            after = 0.0 if terminated[t] else gamma * v_next[t]
            total += weight * min(rho_bar, ratios[t]) * (r[t] + after - v[t])
            weight *= gamma * lambda_ * min(c_bar, ratios[t])
            if terminated[t] or truncated[t]:
                break
        target[s] = v[s] + total
    for s in range(len(r)):
        ahead = v_next[s] if truncated[s] or s + 1 == len(r) else target[s + 1]
        after = 0.0 if terminated[s] else gamma * ahead
        advantage[s] = min(rho_bar, ratios[s]) * (r[s] + after - v[s])
    return target, advantage


@pytest.mark.parametrize(("rho_bar", "c_bar"), [(1.0, 1.0), (2.0, 0.5), (np.inf, np.inf)])
def test_v_trace_is_its_definition_with_both_kinds_of_end(rho_bar, c_bar):
    r, v, v_next, terminated, truncated = episode(5, 29)
    ratios = np.exp(np.random.default_rng(6).normal(size=29)).astype(np.float32)
    got = jax.jit(v_trace)(np.log(ratios), r, v, v_next, terminated, truncated, 0.95, 0.9, rho_bar, c_bar)
    want = slow_v_trace(ratios, r, v, v_next, terminated, truncated, 0.95, 0.9, rho_bar, c_bar)
    np.testing.assert_allclose(got.target, want[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got.advantage, want[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rho_bar", [1.0, 1.7])
@pytest.mark.parametrize("seed", range(3))
def test_v_trace_matches_rlax_with_terminations_inside(seed, rho_bar):
    r, v, _, terminated, _ = episode(seed, 31)
    values = np.append(v, np.float32(-0.4))
    log_ratios = np.random.default_rng(seed + 10).normal(size=31).astype(np.float32)
    got = v_trace(log_ratios, r, v, values[1:], terminated, np.zeros(31, bool), 0.98, 1.0, rho_bar, 1.0)
    want = rlax.vtrace_td_error_and_advantage(
        v, values[1:], r, 0.98 * (1.0 - terminated), np.exp(log_ratios), 1.0, rho_bar, rho_bar
    )
    np.testing.assert_allclose(got.target, v + want.errors, **CLOSE)
    np.testing.assert_allclose(got.advantage, want.pg_advantage, **CLOSE)


def test_v_trace_on_policy_is_the_n_step_return_whatever_the_bounds_above_one():
    r, v, v_next, terminated, truncated = episode(7, 20)
    want = generalised_advantage(r, v, v_next, terminated, truncated, 0.9, 1.0) + v
    for bound in (1.0, 3.0):
        got = v_trace(np.zeros(20), r, v, v_next, terminated, truncated, 0.9, 1.0, bound, bound)
        np.testing.assert_allclose(got.target, want, **CLOSE)
    # by hand: three steps that end in a truncation at an observation worth 10
    hand = v_trace(
        np.zeros(3), np.ones(3), np.array([0.0, 5.0, 5.0]), np.array([5.0, 5.0, 10.0]), np.zeros(3, bool),
        np.array([False, False, True]), 0.5,
    )  # fmt: skip
    np.testing.assert_allclose(hand.target, [1 + 0.5 + 0.25 + 0.125 * 10, 1 + 0.5 + 2.5, 1 + 5.0], **CLOSE)


@pytest.mark.parametrize("rho_bar", [0.5, 1.0, 100.0])
def test_v_trace_converges_to_the_value_of_the_clipped_policy(rho_bar):
    """Two states, two actions, tables for everything: expected targets, iterated until they stand still."""
    gamma, states, actions = 0.8, 2, 2
    behaviour = np.array([[0.8, 0.2], [0.4, 0.6]])
    policy = np.array([[0.2, 0.8], [0.7, 0.3]])
    reward = np.array([[1.0, -1.0], [0.5, 2.0]])
    following = np.array([[0, 1], [1, 0]])  # where each action leads
    clipped = np.minimum(rho_bar * behaviour, policy)
    clipped /= clipped.sum(1, keepdims=True)
    moves = np.zeros((states, states))
    for s in range(states):
        for a in range(actions):
            moves[s, following[s, a]] += clipped[s, a]
    want = np.linalg.solve(np.eye(states) - gamma * moves, (clipped * reward).sum(1))

    steps = 2
    paths = [(s, a) for s in range(states) for a in np.ndindex(*(actions,) * steps)]
    start = np.array([s for s, _ in paths])
    chosen = np.array([a for _, a in paths]).T
    visited = [start]
    for a in chosen:
        visited.append(following[visited[-1], a])
    at = np.array(visited[:-1])
    likelihood = np.prod(behaviour[at, chosen], axis=0)
    log_ratios = np.log(policy[at, chosen] / behaviour[at, chosen]).astype(np.float32)
    never = np.zeros(at.shape, bool)
    values = np.zeros(states)

    @jax.jit
    def first_targets(v, v_next):
        return v_trace(
            log_ratios, reward[at, chosen], v, v_next, never, never, gamma, 1.0, rho_bar, min(1.0, rho_bar)
        ).target[0]

    for _ in range(400):
        first = np.asarray(first_targets(values[at], values[np.array(visited[1:])]))
        values = np.array([(likelihood * first)[start == s].sum() for s in range(states)])
    np.testing.assert_allclose(values, want, rtol=1e-3, atol=1e-3)


def test_running_returns_start_again_after_an_episode_and_go_on_in_the_next_array():
    over = jnp.array([False, True, False])
    after, sums = running_returns(jnp.array([1.0, 2.0, 4.0]), over, jnp.float32(8.0), 0.5)
    np.testing.assert_allclose(sums, [1 + 0.5 * 8, 2 + 0.5 * 5, 4.0], **CLOSE)
    assert float(after) == 4.0
    ended, _ = running_returns(jnp.array([[1.0, 3.0]]), jnp.array([True]), jnp.zeros(2), 0.5)  # of two agents
    np.testing.assert_array_equal(ended, [0.0, 0.0])


@pytest.mark.parametrize("n", [1, 3, 9])
def test_windows_within_an_array_end_with_it_and_bootstrap_there_as_rlaxs_do(n):
    r, _, v_next, terminated, truncated = episode(3, 6)
    window = n_step_within(*map(jnp.asarray, (r, terminated, np.zeros_like(truncated))), 0.9, n)
    got = window.reward + window.discount * v_next[window.last]
    wanted = rlax.n_step_bootstrapped_returns(*map(jnp.asarray, (r, 0.9 * (1.0 - terminated), v_next)), n)
    np.testing.assert_allclose(got, wanted, **CLOSE)
    cut = n_step_within(jnp.ones(4), jnp.zeros(4, bool), jnp.asarray([False, True, False, False]), 0.5, 3)
    np.testing.assert_allclose(cut.reward, [1.5, 1, 1.5, 1])
    np.testing.assert_allclose(cut.discount, [0.25, 0.5, 0.25, 0.5])
    np.testing.assert_array_equal(cut.last, [1, 1, 3, 3])
