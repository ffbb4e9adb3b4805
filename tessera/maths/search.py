"""Tree search in a game of two players, for mctx: positions as the game's own rules lead to them, judged by a function.

A search is of a batch of one game, with that game's key, so that a game is searched alike beside any others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tessera.envs.base import DeviceEnvironment


class TreePosition(NamedTuple):
    """A position that a search has come to."""

    observation: Any
    """What the player sees whose turn it is."""
    legal: jax.Array
    state: Any
    """The game's own."""
    over: jax.Array
    """Whether no move follows."""


Judge = Callable[[Any, TreePosition, jax.Array], tuple[jax.Array, jax.Array]]
"""(params, position, key) -> logits of moves [n], and the value for who moves."""


def search_root(logits: jax.Array, value: jax.Array, state: Any) -> Any:
    """The position that a search starts from, as mctx takes it."""
    import mctx

    return mctx.RootFnOutput(
        prior_logits=logits[None], value=value[None], embedding=jax.tree.map(lambda x: x[None], state)
    )


def following(game: DeviceEnvironment, judge: Judge) -> Callable[..., tuple[Any, Any]]:
    """Make the function that tells mctx what follows on a move. The value of the other player's position counts as much
    less, and a game that is over has none."""
    import mctx

    def follow(params: Any, key: jax.Array, action: jax.Array, states: Any) -> tuple[Any, Any]:
        before = jax.tree.map(lambda x: x[0], states)
        after, observation, reward, terminated, truncated = game.step(before, action[0], key)
        player, over = game.player(before), terminated | truncated
        logits, value = judge(params, TreePosition(observation, game.legal(after), after, over), key)
        turn = jnp.where(game.player(after) == player, 1.0, -1.0)
        result = mctx.RecurrentFnOutput(
            reward=reward[player].astype(value.dtype)[None],
            discount=jnp.where(over, 0.0, turn).astype(value.dtype)[None],
            prior_logits=logits[None],
            value=jnp.where(over, 0.0, value)[None],
        )
        return result, jax.tree.map(lambda x: x[None], after)

    return follow


def rollout(game: DeviceEnvironment, state: Any, over: jax.Array, key: jax.Array) -> jax.Array:
    """What who moves at `state` earns if all moves from here on are drawn; nothing if the game is over."""
    player = game.player(state)

    def moved(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        state, earned, _, key = carry
        move_key, step_key, key = jax.random.split(key, 3)
        state, _, reward, terminated, truncated = game.step(state, drawn_move(game.legal(state), move_key), step_key)
        return state, earned + reward[player], terminated | truncated, key

    begun = (state, jnp.zeros((), jnp.result_type(float)), over, key)
    return jax.lax.while_loop(lambda carry: ~carry[2], moved, begun)[1]


def drawn_move(moves: jax.Array, key: jax.Array) -> jax.Array:
    """One of these moves, bool [n], each as likely."""
    return jax.random.categorical(key, jnp.where(moves, 0.0, -jnp.inf)).astype(jnp.int32)
