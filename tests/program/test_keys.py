from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tessera.program.keys import derive, derive_each, root_key


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
