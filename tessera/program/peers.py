"""How peers with params of their own join their updates: by a mean, or in one memory that all of them share.

In a shared memory only params can be added to in place. A variance is no sum, and two replicas that both let an average
decay may take more from it than there is. So each replica keeps a part of such numbers that it alone writes, and what
all of them together stand for is worked out by whoever reads (docs/decisions/0091).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tessera.algorithms.contract import Algorithm, State
from tessera.maths.statistics import merge_stacked
from tessera.program.exchange import adopt_updates, exchanged_parts
from tessera.program.keys import clock_at, count_of
from tessera.program.nodes import HOST, Every, Node, Op


class Contribution(NamedTuple):
    """What one replica alone has brought in since the memory was set; the first one's includes all from before."""

    applies: Any
    """Gradients that it has applied, modulo 2**32."""
    statistics: Any
    """Running statistics of its own data."""


class Retained(NamedTuple):
    """What no peer needs, but whoever takes the replica's place."""

    optimizer: Any
    """Leaves of the optimiser's state that peers do not share."""
    target: Any
    applies: Any
    """Gradients of all replicas, as far as it knew, modulo 2**32."""


class SharedParts(NamedTuple):
    """What lies in a shared memory, by how it is written and read."""

    added: Any
    """Every replica adds to these numbers in place."""
    averaged: Any
    """Each replica writes its own; what is read is their mean."""
    listed: Any
    """Each replica writes its own, with a leading axis of 1; what is read are all of them, along that axis."""
    kept: Any
    """Each replica writes its own, which nobody reads but the replica that takes its place."""


def shared_parts(state: State, contribution: Contribution, carries: str, base: Any = None) -> SharedParts:
    """What a replica writes: by how much its params moved since they were `base`, or the params; and its own part."""
    moved = state.params if base is None else jax.tree.map(jnp.subtract, state.params, base)
    shared, own = _split(state.optimizer, carries)
    listed = jax.tree.map(lambda x: jnp.asarray(x)[None], contribution)
    return SharedParts(moved, shared, listed, Retained(own, state.target, state.clock.applies))


def first_parts(algorithm: Algorithm, state: State, number: int, carries: str) -> tuple[Contribution, SharedParts]:
    """What a replica begins with, and writes: what a state holds already counts as the first replica's."""
    contribution = Contribution(state.clock.applies, state.statistics)
    if number:
        nothing = algorithm.start(state.params).statistics
        contribution = Contribution(jnp.zeros_like(state.clock.applies), nothing)
    return contribution, shared_parts(state, contribution, carries)


def adopt_shared(algorithm: Algorithm, state: State, parts: SharedParts, carries: str) -> State:
    """The state with what all replicas have brought in."""
    clock = state.clock.near(jnp.sum(parts.listed.applies, axis=0))
    _, own = _split(state.optimizer, carries)
    state = state._replace(
        params=parts.added,
        statistics=merge_stacked(parts.listed.statistics),
        optimizer=_joined(state.optimizer, parts.averaged, own, carries),
    )
    return algorithm.catch_up(state, clock.applies - state.clock.applies)._replace(clock=clock)


def succeed(
    algorithm: Algorithm, state: State, parts: SharedParts, number: int, carries: str
) -> tuple[State, Contribution]:
    """State and contribution of whoever takes the place of replica `number`, from what the memory holds."""
    kept: Retained = parts.kept
    state = state._replace(
        optimizer=_joined(state.optimizer, parts.averaged, kept.optimizer, carries),
        target=kept.target,
        clock=state.clock.near(kept.applies),
    )
    return adopt_shared(algorithm, state, parts, carries), jax.tree.map(lambda x: x[number], parts.listed)


def with_common(algorithm: Algorithm, state: State, joint: State, carries: str) -> State:
    """A replica's state with what all replicas have in common, from the state that holds it."""
    shared, _ = _split(joint.optimizer, carries)
    _, own = _split(state.optimizer, carries)
    optimizer = _joined(state.optimizer, shared, own, carries)
    state = joint._replace(optimizer=optimizer, target=state.target, clock=state.clock)
    return algorithm.catch_up(state, joint.clock.applies - state.clock.applies)._replace(clock=joint.clock)


def _is_shared(leaf: Any, carries: str) -> bool:
    """Whether peers share a leaf of the optimiser's state: real numbers, never its counts, which bias is removed by."""
    return carries == "state" and jnp.issubdtype(leaf.dtype, jnp.floating)


def _split(optimizer: Any, carries: str) -> tuple[list[Any], list[Any]]:
    """The leaves of an optimiser's state that peers share, and the others."""
    leaves = jax.tree.leaves(optimizer)
    return [x for x in leaves if _is_shared(x, carries)], [x for x in leaves if not _is_shared(x, carries)]


def _joined(optimizer: Any, shared: list[Any], own: list[Any], carries: str) -> Any:
    """An optimiser's state from the two lists that `_split` makes of it."""
    leaves, structure = jax.tree.flatten(optimizer)
    lists = iter(shared), iter(own)
    return jax.tree.unflatten(structure, [next(lists[0 if _is_shared(x, carries) else 1]) for x in leaves])


def peer_nodes(algorithm: Algorithm, exchange: str, every: int, carries: str) -> tuple[tuple[Node, ...], ...]:
    """Nodes before and after learning that join the updates of peers: by a mean, or in one memory."""
    if not exchange:
        return (), ()
    return _shared_nodes(algorithm, carries) if exchange == "shared" else ((), _mean_nodes(every, carries))


def _mean_nodes(every: int, carries: str) -> tuple[Node, ...]:
    def offer(state: State) -> tuple[Any]:
        return (exchanged_parts(state, carries),)

    def adopt(state: State, updates: Any) -> tuple[State]:
        return (adopt_updates(state, updates, carries),)

    exchanging = (Op("apply", offer, ("state",), ("updates",)), Op("apply", adopt, ("state", "updates"), ("state",)))
    if every == 1:
        return exchanging
    tick = Op("apply", lambda clock: (clock_at(count_of(clock) + 1),), ("update_clock",), ("update_clock",), HOST)
    return tick, Every(every, exchanging)


def _shared_nodes(algorithm: Algorithm, carries: str) -> tuple[tuple[Node, ...], ...]:
    def offer(state: State, base: Any, contribution: Contribution) -> tuple[SharedParts, Contribution]:
        applies = contribution.applies + np.int32(algorithm.schedule.applies)
        contribution = contribution._replace(applies=applies)
        return shared_parts(state, contribution, carries, base), contribution

    def adopt(state: State, updates: SharedParts) -> tuple[State]:
        return (adopt_shared(algorithm, state, updates, carries),)

    begin = Op("apply", lambda state: (state.params,), ("state",), ("base",))
    give = Op("apply", offer, ("state", "base", "contribution"), ("updates", "contribution"))
    return (begin,), (give, Op("apply", adopt, ("state", "updates"), ("state",)))
