"""Positions of a game, which wait until its outcome is known. Each is handed on once, in the order of play."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tessera.envs.base import Spec, Symmetry


class GamePosition(NamedTuple):
    """One position and what is learned from it; of several there is a leading axis."""

    observation: Any
    policy: jax.Array
    """[actions] how likely each move is after a search."""
    legal: jax.Array
    outcome: jax.Array
    """Of the game, for the player who moved here: 1 won, -1 lost."""


class Waiting(NamedTuple):
    """Positions of one environment that were not handed on yet, the oldest first."""

    positions: GamePosition
    """[longest game, ...]"""
    player: jax.Array
    """Who moved."""
    version: jax.Array
    """Of the params that chose the move."""
    size: jax.Array
    """How many wait."""
    over: jax.Array
    """How many of them, from the oldest on, are of games that are over."""


class Moves(NamedTuple):
    """An unroll of one environment, [T, ...]."""

    positions: GamePosition
    """Their outcomes do not matter."""
    player: jax.Array
    version: jax.Array
    reward: jax.Array
    """Of the player who moved."""
    over: jax.Array
    """Whether the game was over then."""


def nothing_waits(world: Spec, real: Any) -> Waiting:
    """No positions, and room for those of the longest game."""
    longest, actions = world.time_limit, world.alternatives
    numbers, whole = jnp.zeros(longest, real), jnp.zeros(longest, jnp.int32)
    position = GamePosition(
        world.zeros(jnp, longest), jnp.zeros((longest, actions), real), jnp.zeros((longest, actions), bool), numbers
    )
    return Waiting(position, whole, whole, jnp.int32(0), jnp.int32(0))


def hand_on(waiting: Waiting, moves: Moves) -> tuple[GamePosition, jax.Array, jax.Array, Waiting]:
    """Add T moves, and hand on at most T positions of games that are over: (positions, valid, version, waiting).

    As many come as are handed on at the most, so those that wait are never more than the longest game has moves: if
    fewer are handed on, all that wait are of the game under way.
    """
    steps, longest = moves.over.shape[0], waiting.player.shape[0]
    numbers = jnp.arange(longest + steps)
    # where each lies in what waits and what is new, one after the other; there is room between them
    place = jnp.minimum(jnp.where(numbers < waiting.size, numbers, numbers - waiting.size + longest), numbers[-1])

    def joined(before: jax.Array, new: jax.Array, which: jax.Array) -> jax.Array:
        return jnp.concatenate([before, new.astype(before.dtype)]).at[which].get(mode="promise_in_bounds")

    player = joined(waiting.player, moves.player, place)
    reward = joined(jnp.zeros(longest, moves.reward.dtype), moves.reward, place)
    ends = joined(jnp.zeros(longest, bool), moves.over, place) & (numbers < waiting.size + steps)
    # of each position the end of its game, or the last place of all if that is still to come
    end = jax.lax.cummin(jnp.where(ends, numbers, numbers[-1]), axis=0, reverse=True)
    outcome = jnp.where(player == player[end], reward[end], -reward[end])
    outcome = jnp.where(numbers < waiting.over, joined(waiting.positions.outcome, moves.reward, place), outcome)
    over = jnp.maximum(waiting.over, jnp.max(jnp.where(ends, numbers + 1, 0))).astype(jnp.int32)
    handed = jnp.minimum(over, steps)

    def taken(which: jax.Array) -> tuple[GamePosition, jax.Array, jax.Array]:
        """Positions, players and versions; whole rows are copied once."""
        both = (waiting.positions, waiting.player, waiting.version), (moves.positions, moves.player, moves.version)
        positions, *rest = jax.tree.map(lambda a, b: joined(a, b, place[which]), *both)
        return positions._replace(outcome=outcome[which].astype(positions.outcome.dtype)), *rest

    rows, _, versions = taken(numbers[:steps])
    still = Waiting(*taken(numbers[:longest] + handed), waiting.size + jnp.int32(steps) - handed, over - handed)
    return rows, jnp.arange(steps) < handed, versions, still


def turned(position: GamePosition, symmetries: Sequence[Symmetry], key: jax.Array) -> GamePosition:
    """A position on a board that is turned or mirrored at random, by a symmetry of its game."""
    cells, actions = (jnp.asarray(x) for x in zip(*symmetries, strict=True))
    k = jax.random.randint(key, (), 0, cells.shape[0])
    board = position.observation
    cell_by_cell = board.reshape(-1, board.shape[-1])[cells[k]].reshape(board.shape)
    moves = actions[k]
    return position._replace(observation=cell_by_cell, policy=position.policy[moves], legal=position.legal[moves])
