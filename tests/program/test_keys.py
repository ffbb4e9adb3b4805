from __future__ import annotations

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tessera.program.keys import clock_at, count_of, derive, derive_each, later, root_key


def data(keys: jax.Array) -> np.ndarray:
    return np.asarray(jax.random.key_data(keys))


@pytest.fixture(scope="module")
def root() -> jax.Array:
    return root_key(7)


def test_an_environments_key_depends_on_its_global_index_and_not_on_who_holds_it(root):
    everyone = data(derive_each(root, "act", 5, jnp.arange(16)))
    mine = data(derive_each(root, "act", 5, jnp.asarray([3, 11, 12])))
    np.testing.assert_array_equal(mine, everyone[[3, 11, 12]])


def test_a_key_does_not_depend_on_how_environments_are_grouped(root):
    flat = data(derive_each(root, "act", 5, jnp.arange(12)))
    grouped = data(derive_each(root, "act", 5, jnp.arange(12).reshape(3, 4)))
    np.testing.assert_array_equal(grouped.reshape(flat.shape), flat)


def test_seed_purpose_clock_and_index_each_give_another_key(root):
    keys = [
        derive(root, "act", 5, 1),
        derive(root_key(8), "act", 5, 1),
        derive(root, "env", 5, 1),
        derive(root, "act", 6, 1),
        derive(root, "act", 5, 2),
        derive(root, "act", 1, 5),
        derive(root, "act", 5),
    ]
    assert len({data(k).tobytes() for k in keys}) == len(keys)


def test_no_two_steps_environments_or_purposes_of_a_run_share_a_key(root):
    ids = jnp.arange(32)
    keys = [data(derive_each(root, purpose, clock, ids)) for purpose in ("act", "env", "reset") for clock in range(32)]
    assert len(np.unique(np.concatenate(keys), axis=0)) == 3 * 32 * 32


def test_neighbouring_environments_draw_unrelated_numbers(root):
    keys = derive_each(root, "act", 0, jnp.arange(4096))
    drawn = np.asarray(jax.vmap(jax.random.uniform)(keys))
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.05
    assert abs(drawn.mean() - 0.5) < 0.02


def test_keys_are_the_same_in_every_process(root):
    # replicas and resumed runs derive keys for themselves, so nothing here may depend on the process, as `hash` does
    assert data(derive(root, "act", 5, 1)).tolist() == [1762601974, 3543065533]
    assert data(derive(root, "init")).tolist() == [3971680749, 1857396244]


LARGE = [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 5, 2**40]


def test_clocks_beyond_31_and_32_bits_give_keys_that_no_other_clock_has(root):
    clocks = [0, 5, *LARGE]
    keys = [data(derive(root, "act", clock_at(clock), 1)).tobytes() for clock in clocks]
    assert len(set(keys)) == len(clocks)


@pytest.mark.parametrize("clock", [0, 5, 2**20 + 3, 2**31 - 1, 2**31, 2**32 - 1])
def test_while_the_high_word_is_0_a_key_is_the_hash_of_the_low_one(root, clock):
    salt = np.frombuffer(hashlib.blake2b(b"act", digest_size=8).digest(), np.uint32)
    plain = jax.random.fold_in(jax.random.wrap_key_data(jax.random.key_data(root) ^ salt), np.uint32(clock))
    np.testing.assert_array_equal(data(derive(root, "act", clock_at(clock))), data(plain))
    if clock < 2**31:
        np.testing.assert_array_equal(
            data(plain), data(jax.random.fold_in(jax.random.wrap_key_data(jax.random.key_data(root) ^ salt), clock))
        )


def test_a_high_word_does_not_give_the_keys_of_another_seed(root):
    seeds = [*range(64), *(s << 32 for s in range(1, 8))]
    there = {data(derive(root_key(seed), "act", 5)).tobytes() for seed in seeds if seed != 7}
    assert not there & {data(derive(root, "act", clock_at((high << 32) + 5))).tobytes() for high in range(1, 64)}


@pytest.mark.parametrize("clock", [*LARGE, 2**32 - 3, 2**33 - 3])
def test_a_clock_carries_into_its_high_word_within_an_unroll(clock):
    later_by = jax.jit(jax.vmap(later, in_axes=(None, 0)))(clock_at(clock), jnp.arange(8))
    assert [count_of(each) for each in later_by] == [clock + t for t in range(8)]
    assert later_by.dtype == np.uint32
