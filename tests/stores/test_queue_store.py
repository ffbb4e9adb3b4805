"""The queue hands on what it is given."""

import jax
import jax.numpy as jnp
import numpy as np

from tessera.stores import Experience, Queue


def test_a_draw_is_the_unroll_that_was_put_last():
    store = Queue().split(4)
    buffer = store.init({"x": jax.ShapeDtypeStruct((2,), jnp.float32)}, 6)
    for i in range(2):
        rows = {"x": jnp.full((3, 2, 2), float(i))}
        buffer = store.put(buffer, Experience(rows))
        sample = store.sample(buffer, jax.random.key(0))
        np.testing.assert_array_equal(sample.rows["x"], rows["x"])
    assert sample.weight is None
    assert sample.index is None
    assert not store.prioritised
    assert not store.persistent


def test_it_traces_into_a_compiled_program():
    store = Queue()

    @jax.jit
    def program(x):
        buffer = store.put(store.init(None, 1), Experience(x))
        return store.sample(store.update(buffer, jnp.zeros(1, jnp.int32), jnp.ones(1)), jax.random.key(0)).rows

    np.testing.assert_array_equal(program(jnp.arange(4.0).reshape(2, 2)), [[0, 1], [2, 3]])


def test_versions_of_rows_pass_through():
    store = Queue()
    version = jnp.arange(6).reshape(3, 2)
    sample = store.sample(store.put((), Experience(jnp.zeros((3, 2)), version=version)), jax.random.key(0))
    np.testing.assert_array_equal(sample.version, version)
