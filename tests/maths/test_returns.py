"""Returns and advantages: by hand, against rlax, with both kinds of episode end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from tessera.maths.returns import discounted_returns, generalised_advantage, n_step

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
