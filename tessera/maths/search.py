"""Tree search in a game of two players, for mctx: positions as the game's own rules lead to them, judged by a function.

A search is of a batch of one game, with that game's key, so that a game is searched alike beside any others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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


def gumbel_search(
    params: Any, key: jax.Array, root: Any, follow: Callable[..., Any], simulations: int, illegal: jax.Array,
    *, considered: int, explores: bool,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """The best move by sequential halving, and how likely each is by what was found (Danihelka et al., 2022)."""
    import mctx

    found = mctx.gumbel_muzero_policy(
        params, key, root, follow, simulations, illegal,
        qtransform=mctx.qtransform_completed_by_mix_value,
        max_num_considered_actions=considered,
        gumbel_scale=1.0 if explores else 0.0,
    )  # fmt: skip
    return found.action[0].astype(jnp.int32), found.action_weights[0]


def puct_search(
    params: Any, key: jax.Array, root: Any, follow: Callable[..., Any], simulations: int, illegal: jax.Array,
    *, dirichlet: float, noise_share: float, explores: bool,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """The move that was looked at most, and the share of looks of each (Silver et al., 2018)."""
    import mctx

    found = mctx.muzero_policy(
        params, key, root, follow, simulations, illegal,
        qtransform=partial(mctx.qtransform_by_min_max, min_value=-1.0, max_value=1.0),
        dirichlet_fraction=noise_share,
        dirichlet_alpha=dirichlet,
        temperature=1.0 if explores else 0.0,
    )  # fmt: skip
    shares = found.action_weights[0]
    return jnp.argmax(shares).astype(jnp.int32), shares


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
