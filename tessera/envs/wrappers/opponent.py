"""A game of two players as an environment of one: somebody else plays the other side."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tessera.envs.base import DeviceEnvironment, Environment, HostEnvironment, Timestep
from tessera.envs.players import Opponent, named_opponent
from tessera.envs.wrappers.device import DeviceWrapper
from tessera.errors import TesseraError
from tessera.maths.search import drawn_move


class Match(NamedTuple):
    """A game, and who plays it."""

    game: Any
    side: jax.Array
    """The player whose moves are the actions."""
    begins: jax.Array
    """Whether that player had the first move."""
    memory: Any
    """The opponent's."""
    over: jax.Array
    owed: jax.Array
    """Reward of moves that the opponent made before the first own one, which comes with that."""


class AgainstOpponent(DeviceWrapper):
    """A game against an opponent, whose moves are part of a step. They take turns in having the first move."""

    def __init__(self, env: DeviceEnvironment, opponent: Opponent, openings: int = 0) -> None:
        """The first moves of a game, as many as `openings`, are drawn: two that never vary would play one game again
        and again."""
        super().__init__(env)
        self._openings = openings
        self._opponent, self.opponent = opponent, opponent.name
        self.wrapper_words = f"the other side played by {opponent.name}"
        self.spec = dataclasses.replace(env.spec, players=1)

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Start a game, on either side: (state, observation)."""
        side_key, key = jax.random.split(key)
        return self._begun(key, jax.random.bernoulli(side_key))

    def restart(self, state: Any, key: Any) -> tuple[Any, Any]:
        """Start the next game, in which the other one begins."""
        return self._begun(key, ~state.begins)

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Make a move, and let the opponent answer: (state, observation, reward, terminated, truncated)."""
        own_key, key = jax.random.split(key)
        game, observation, reward, terminated, truncated = self.env.step(state.game, action, own_key)
        terminated = terminated | state.over  # an opponent may have won before the first own move
        earned = state.owed + jnp.where(state.over, 0, reward[state.side])
        state = state._replace(game=game, over=terminated | truncated, owed=jnp.zeros_like(earned))
        return self._answered(state, observation, earned, terminated, truncated, key)

    def inner_state(self, state: Any) -> Any:
        """The state of the game."""
        return state.game

    def player(self, state: Any) -> Any:
        """There is one."""
        del state

    def position(self, state: Any) -> Any:
        """The state of the game, in which a search plays both sides."""
        return self.env.position(state.game)

    def _begun(self, key: Any, begins: Any) -> tuple[Any, Any]:
        first_key, key = jax.random.split(key)
        game, observation = self._opened(*self.env.reset(first_key), first_key)
        nothing, first = jnp.zeros((), bool), self.env.player(game)
        none = jnp.zeros((), jnp.result_type(float))
        state = Match(game, jnp.where(begins, first, 1 - first), begins, self._opponent.memory(), nothing, none)
        state, observation, owed, *_ = self._answered(state, observation, none, nothing, nothing, key)
        return state._replace(owed=owed), observation

    def _opened(self, game: Any, observation: Any, key: Any) -> tuple[Any, Any]:
        """The game after moves that are drawn; none that ends it."""
        for k in range(self._openings):
            move_key, step_key = jax.random.split(jax.random.fold_in(key, k))
            move = drawn_move(self.env.legal(game), move_key)
            after, seen, _, terminated, truncated = self.env.step(game, move, step_key)
            over = terminated | truncated
            game, observation = jax.tree.map(
                lambda a, b, over=over: jnp.where(over, b, a), (after, seen), (game, observation)
            )
        return game, observation

    def _answered(self, *begun: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Let the opponent move as long as it is its turn."""

        def waits(carry: tuple[Any, ...]) -> Any:
            state = carry[0]
            return ~state.over & (self.env.player(state.game) != state.side)

        def moved(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            state, seen, reward, _, _, key = carry
            move_key, step_key, key = jax.random.split(key, 3)
            nothing = jnp.zeros((), bool)
            timestep = Timestep(
                seen, reward, nothing, nothing, None, legal=self.env.legal(state.game),
                player=self.env.player(state.game), state=self.env.position(state.game),
            )  # fmt: skip
            action, memory = self._opponent.move(state.memory, timestep, move_key)
            game, seen, rewards, terminated, truncated = self.env.step(state.game, action, step_key)
            state = state._replace(game=game, memory=memory, over=terminated | truncated)
            return state, seen, reward + rewards[state.side], terminated, truncated, key

        return jax.lax.while_loop(waits, moved, begun)[:5]


def against(env: Environment, value: Any) -> Environment:
    """Put an opponent by name around a game."""
    if env.spec.players != 2:
        raise TesseraError(f"opponent={value}: {env.name} is no game of two players who take turns")
    if isinstance(env, HostEnvironment):
        from tessera.envs.wrappers.host_opponent import host_match

        return host_match(env, str(value))
    return AgainstOpponent(env, named_opponent(str(value), env))
