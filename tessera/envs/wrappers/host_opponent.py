"""A game on the host as an environment of one player: somebody else plays the other side."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tessera.envs.base import HostEnvironment, HostVector, InfoTotals, Timestep
from tessera.envs.players import Opponent, RandomOpponent, is_player, refuse_where_hidden
from tessera.envs.wrappers.host import HostWrapper, stepped_alone
from tessera.envs.wrappers.transform import pick
from tessera.errors import TesseraError, unknown_name

ON_THE_HOST = ("random", "greedy")
"""Opponents that need no learning and no compiled game."""
TRIES = 1000
"""How often an opening is drawn before it is given up."""


class TriedMoves:
    """Looks one move ahead in copies of the game: it wins if it can; else it takes any move after which it has not
    lost. `Timestep.state` is what each move would earn."""

    name = "greedy"
    tries = True

    def memory(self) -> Any:
        """Nothing."""
        return ()

    def move(self, memory: Any, timestep: Timestep, key: Any) -> tuple[Any, Any]:
        """Take one of the best."""
        best = jnp.where(timestep.legal, timestep.state, -jnp.inf)
        return RandomOpponent().move(memory, timestep._replace(legal=best == best.max()), key)


def host_match(env: HostEnvironment, opponent: str | Opponent, openings: int = 0) -> HostMatch:
    """Put an opponent, by name or the agent of a run, around a game on the host."""
    if not isinstance(opponent, str):
        return HostMatch(env, opponent, openings)
    if opponent not in ON_THE_HOST:
        if not is_player(opponent):
            raise unknown_name("opponent", opponent, ON_THE_HOST)
        raise TesseraError(
            f"opponent {opponent} needs a compiled game, and {env.name} is not: choose {', '.join(ON_THE_HOST)} or the "
            "folder of a run"
        )
    if opponent == "random":
        return HostMatch(env, RandomOpponent(), openings)
    refuse_where_hidden("greedy tries what moves would earn", env)
    if not env.tries_moves:
        raise TesseraError(
            f"opponent greedy tries moves in copies of a game, and {env.name} cannot be copied: choose random"
        )
    return HostMatch(env, TriedMoves(), openings)


class HostMatch(HostWrapper):
    """A game against an opponent, whose moves are part of a step. They take turns in having the first move.

    The first moves of a game, as many as `openings`, are drawn: two that never vary would play one game over and over.
    """

    def __init__(self, env: HostEnvironment, opponent: Opponent, openings: int = 0) -> None:
        super().__init__(stepped_alone(env, "opponent"))
        self.player, self.opponent, self.openings = opponent, opponent.name, openings
        self.wrapper_words = f"the other side played by {opponent.name}"
        self.spec = dataclasses.replace(env.spec, players=1)
        self.tries_moves = False

    def open(self, ids: np.ndarray, seed: int) -> HostVector:
        """Open the games with global indices `ids` [groups, environments per group]."""
        return MatchVector(self.env.open(ids, seed), self, ids, seed)

    def one_by_one(self) -> HostEnvironment:
        """They always are."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Without what is compiled, which is made anew in another process."""
        return {name: value for name, value in vars(self).items() if name != "move"}

    @functools.cached_property
    def move(self) -> Callable[..., tuple[Any, Any]]:
        """The opponent's moves in n games: (memory, fresh, timestep, seed, ids, counts) -> (actions, memory).

        Keys depend on the seed, the game's index and how many moves were made there, never on which others are open.
        """

        def one(memory: Any, fresh: Any, timestep: Timestep, seed: Any, index: Any, count: Any) -> tuple[Any, Any]:
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), index), count)
            memory = jax.tree.map(lambda a, b: jnp.where(fresh, a, b), self.player.memory(), memory)
            return self.player.move(memory, timestep, key)

        return jax.jit(jax.vmap(one, in_axes=(0, 0, 0, None, 0, 0)))

    def memories(self, games: int) -> Any:
        """The opponent's memory at the beginning of so many games."""
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (games, *jnp.shape(x))), self.player.memory())


class Seen(NamedTuple):
    """Where games are, [groups, environments per group]."""

    observation: Any
    legal: Any
    player: Any


class MatchVector(HostVector):
    """Open games against an opponent."""

    def __init__(self, vector: HostVector, match: HostMatch, ids: np.ndarray, seed: int) -> None:
        self._vector, self._match, self._ids, self._seed = vector, match, ids, seed
        self._generators = [np.random.default_rng([seed, int(index), 2]) for index in ids.flat]
        drawn_first = [bool(generator.integers(2)) for generator in self._generators]
        self._begins = np.array(drawn_first).reshape(ids.shape)
        """Whether the own side has the first move; it changes from game to game."""
        self._side = np.zeros(ids.shape, np.int32)
        self._over = np.zeros(ids.shape, bool)
        """Games that the opponent ended before the first own move, which the next step tells."""
        self._owed = np.zeros(ids.shape, np.float32)
        """What moves of the opponent earned before the first own one."""
        self._memory = match.memories(ids.size)
        self._fresh = np.ones(ids.shape, bool)
        self._counts = np.zeros(ids.shape, np.uint32)
        self._now: Any = None
        self._last: Any = None
        """What was last seen of games that are over."""

    def reset(self) -> Timestep:
        """Begin every game."""
        self._now = _begins_at(self._vector.reset())
        self._last = self._now
        self._begin(np.ones(self._ids.shape, bool))
        return self._first()

    def restart(self, which: np.ndarray) -> Timestep:
        """Begin new games in the environments `which`."""
        self._now = pick(which, _begins_at(self._vector.restart(which)), self._now, np)
        self._begin(which)
        return self._first()

    def step(self, actions: np.ndarray) -> Timestep:
        """Make a move in every game, and let the opponent answer."""
        return self.step_some(actions, np.ones(self._ids.shape, bool))

    def step_some(self, actions: np.ndarray, which: np.ndarray) -> Timestep:
        """Make a move in the games `which`, and let the opponent answer."""
        reward, final = np.where(which, self._owed, 0), self._last
        terminated, truncated = which & self._over, np.zeros_like(which)
        playing = which & ~self._over
        self._owed = np.where(which, 0, self._owed).astype(np.float32)
        while playing.any():
            played = self._vector.step_some(actions, playing)
            self._now = pick(playing, _begins_at(played), self._now, np)
            final = pick(playing, Seen(played.final, played.final_legal, played.final_player), final, np)
            reward = reward + np.where(playing, self._own(played.reward), 0)
            terminated, truncated = terminated | (playing & played.terminated), truncated | (playing & played.truncated)
            playing = playing & ~(terminated | truncated) & (self._now.player != self._side)
            actions = self._answers(playing)
        self._begin(terminated | truncated)
        seen = self._shown()
        return Timestep(
            seen.observation, reward.astype(np.float32), terminated, truncated, final.observation, legal=seen.legal,
            final_legal=final.legal,
        )  # fmt: skip

    def take_info(self) -> InfoTotals:
        """Those of the games."""
        return self._vector.take_info()

    def close(self) -> None:
        """Close the games."""
        self._vector.close()

    def _begin(self, which: np.ndarray) -> None:
        """Begin games that were begun anew in `which`: on the other side than before, up to the first own move."""
        if not which.any():
            return
        self._begins = self._begins ^ which
        self._open(which)
        first = self._now.player
        self._side = np.where(which, np.where(self._begins, first, 1 - first), self._side).astype(np.int32)
        self._fresh, self._over = self._fresh | which, self._over & ~which
        self._owed = np.where(which, 0, self._owed).astype(np.float32)
        waiting = which & (self._now.player != self._side)
        while waiting.any():
            played = self._vector.step_some(self._answers(waiting), waiting)
            self._now = pick(waiting, _begins_at(played), self._now, np)
            self._owed = self._owed + np.where(waiting, self._own(played.reward), 0).astype(np.float32)
            ended = waiting & (played.terminated | played.truncated)
            final = Seen(played.final, np.ones_like(played.final_legal), played.final_player)
            self._last = pick(ended, final, self._last, np)
            self._over = self._over | ended
            waiting = waiting & ~ended & (self._now.player != self._side)

    def _open(self, which: np.ndarray) -> None:
        """Draw the first moves; where they end a game, they are drawn again for the next one."""
        left = np.where(which, self._match.openings, 0)
        for _ in range(TRIES):
            drawing = left > 0
            if not drawing.any():
                return
            played = self._vector.step_some(self._drawn(drawing), drawing)
            self._now = pick(drawing, _begins_at(played), self._now, np)
            ended = drawing & (played.terminated | played.truncated)
            left = np.where(ended, self._match.openings, left - drawing)
        raise TesseraError(
            f"games of {self._match.name} are over before {self._match.openings} moves: draw fewer of the first moves"
        )

    def _drawn(self, which: np.ndarray) -> np.ndarray:
        legal = self._now.legal.reshape(len(self._generators), -1)
        rows = zip(self._generators, legal, which.flat, strict=True)
        moves = [int(g.choice(np.flatnonzero(allowed))) if on else 0 for g, allowed, on in rows]
        return np.array(moves, np.int32).reshape(which.shape)

    def _answers(self, which: np.ndarray) -> np.ndarray:
        """The opponent's moves in the games `which`, where it is its turn."""
        if not which.any():
            return np.zeros(which.shape, np.int32)
        earned = self._vector.tried(which) if getattr(self._match.player, "tries", False) else None
        no = np.zeros(which.shape, bool)
        timestep = Timestep(
            self._now.observation, np.zeros(which.shape, np.float32), no, no, None, legal=self._now.legal,
            player=self._now.player, state=earned,
        )  # fmt: skip
        flat = jax.tree.map(lambda x: np.reshape(x, (which.size, *x.shape[2:])), timestep)
        keyed = (self._seed, self._ids.ravel().astype(np.uint32), self._counts.ravel())
        actions, memory = self._match.move(self._memory, self._fresh.ravel(), flat, *keyed)
        moved = which.ravel()
        self._memory = jax.tree.map(
            lambda a, b: jnp.where(moved.reshape(-1, *(1,) * (a.ndim - 1)), a, b), memory, self._memory
        )
        self._fresh, self._counts = self._fresh & ~which, self._counts + which.astype(np.uint32)
        return np.asarray(actions, np.int32).reshape(which.shape)

    def _own(self, reward: np.ndarray) -> np.ndarray:
        return np.take_along_axis(reward, self._side[..., None], axis=-1)[..., 0]

    def _shown(self) -> Seen:
        """Where games are; the end of those that were lost before the first own move."""
        return pick(self._over, self._last, self._now, np) if self._over.any() else self._now

    def _first(self) -> Timestep:
        seen, no = self._shown(), np.zeros(self._ids.shape, bool)
        nothing = np.zeros(self._ids.shape, np.float32)
        return Timestep(seen.observation, nothing, no, no, seen.observation, legal=seen.legal, final_legal=seen.legal)


def _begins_at(timestep: Timestep) -> Seen:
    return Seen(timestep.observation, timestep.legal, timestep.player)
