"""Flat ranges of params, and what peers exchange: on trees small enough to write down."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tessera.algorithms.contract import Clock, State
from tessera.program.exchange import Ranges, Shards, SoloGradient, adopt_updates, exchanged_parts, gradient_values
from tessera.program.training_program import squared_sums

PARAMS = {"a": np.arange(6.0).reshape(2, 3), "b": np.asarray([10.0, 11.0]), "c": np.asarray(20.0)}
"""Nine elements: 0 1 2 3 4 5 | 10 11 | 20."""


def state(params: Any = PARAMS, applies: int = 4) -> State:
    optimizer = optax.scale_by_adam().init(params)
    return State(params, optimizer, target=params, statistics=(), clock=Clock(np.int32(applies), np.int32(9)))


@pytest.mark.parametrize(
    ("count", "parts"),
    [
        (1, [[0, 1, 2, 3, 4, 5, 10, 11, 20]]),
        (2, [[0, 1, 2, 3, 4], [5, 10, 11, 20, 0]]),
        (4, [[0, 1, 2], [3, 4, 5], [10, 11, 20], [0, 0, 0]]),
    ],
)
def test_shards_are_flat_ranges_of_equal_size_over_the_leaves_in_order(count, parts):
    shards = Shards(PARAMS, count)
    assert [shards.part(PARAMS, k).tolist() for k in range(count)] == parts
    assert [shards.traced_part(PARAMS, k).tolist() for k in range(count)] == parts


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_all_shards_together_are_the_whole(count):
    ranges = Ranges(PARAMS, count)
    whole = ranges.whole([ranges.part(PARAMS, k) for k in range(count)])
    jax.tree.map(np.testing.assert_array_equal, whole, PARAMS)


@pytest.mark.parametrize("labels", [(), tuple(PARAMS)])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_squared_sums_of_all_shards_are_those_of_the_tensors(count, labels):
    shards = Shards(PARAMS, count, labels)
    parts = [squared_sums(shards.part(PARAMS, k), shards.tensors(k)) for k in range(count)]
    np.testing.assert_allclose(sum(parts), squared_sums(PARAMS))
    np.testing.assert_allclose(sum(parts), [55, 221, 400])


@pytest.mark.parametrize("count", [2, 4])
def test_a_state_is_split_and_joined_without_loss(count):
    shards, whole = Shards(PARAMS, count), state()
    like = state(np.zeros(shards.ranges.size))._replace(target=np.zeros(shards.ranges.size))
    parts = [shards.split(whole, k, like) for k in range(count)]
    assert parts[0].params.tolist() == shards.part(PARAMS, 0).tolist()
    assert parts[1].target.tolist() == shards.part(PARAMS, 1).tolist()
    joined = shards.join(parts, whole)
    assert jax.tree.structure(joined) == jax.tree.structure(whole)
    jax.tree.map(np.testing.assert_array_equal, joined, whole)


def test_a_statistic_that_is_as_long_as_a_shard_is_not_taken_for_one():
    shards = Shards(PARAMS, 3)
    moments = np.arange(3.0)
    whole = state()._replace(statistics=moments)
    like = state(np.zeros(3))._replace(target=np.zeros(3), statistics=moments)
    parts = [shards.split(whole, k, like) for k in range(3)]
    assert all(p.statistics is moments for p in parts)
    assert shards.join(parts, whole).statistics is moments


def test_params_of_a_single_tensor_are_split_and_joined_too():
    only = {"w": np.arange(7.0)}
    shards, whole = Shards(only, 2), state(only)
    like = state(np.zeros(4))._replace(target=np.zeros(4))
    jax.tree.map(
        np.testing.assert_array_equal, shards.join([shards.split(whole, k, like) for k in range(2)], whole), whole
    )


def test_peers_exchange_every_real_number_of_the_state_and_the_clock():
    parts = exchanged_parts(state(), "state")
    assert set(parts) == {"params", "statistics", "applies", "target", "optimizer"}
    assert len(parts["optimizer"]) == 6  # both moments of three tensors; Adam's count is a whole number
    assert set(exchanged_parts(state(), "params")) == {"params", "statistics", "applies", "target"}


@pytest.mark.parametrize("carries", ["state", "params"])
def test_adopting_ones_own_parts_changes_nothing(carries):
    adopted = adopt_updates(state(), exchanged_parts(state(), carries), carries)
    jax.tree.map(np.testing.assert_array_equal, adopted, state())


def test_adopting_takes_params_and_clock_and_leaves_the_optimisers_count():
    other = state(jax.tree.map(lambda x: x + 1, PARAMS), applies=7)
    mine = state()._replace(optimizer=state().optimizer._replace(count=np.int32(3)))
    taken = adopt_updates(mine, exchanged_parts(other, "state"), "state")
    jax.tree.map(np.testing.assert_array_equal, taken.params, other.params)
    jax.tree.map(np.testing.assert_array_equal, taken.target, other.target)
    assert (int(taken.clock.applies), int(taken.clock.horizon), int(taken.optimizer.count)) == (7, 9, 3)


def test_a_gradient_that_is_applied_alone_is_unwrapped():
    assert gradient_values(SoloGradient(PARAMS, jnp.zeros(3))) is PARAMS
    assert gradient_values(PARAMS) is PARAMS
