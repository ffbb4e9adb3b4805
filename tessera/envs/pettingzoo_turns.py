"""`pettingzoo:classic.` games: two players who take turns, by PettingZoo's turn-based interface (AEC)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tessera.envs.base import Discrete, HostEnvironment, HostVector, Timestep, same_for_all
from tessera.envs.drawing.reel import Reel, recorded
from tessera.envs.pettingzoo import holds_mask, space_of, without_mask
from tessera.envs.spaces import MASK, Spaces
from tessera.envs.spec import Spec
from tessera.envs.vectors import SteppedInALoop, grouped, seed_for, spread
from tessera.errors import TesseraError


class Known(NamedTuple):
    """What is known of a game besides its rules."""

    longest: int = 0
    """Moves after which it is over; 0: unknown."""
    hidden: bool = False
    """Whether a player does not see all."""


GAMES = {
    "tictactoe_v3": Known(9),
    "connect_four_v3": Known(42),
    "leduc_holdem_v4": Known(hidden=True),
    "texas_holdem_v4": Known(hidden=True),
    "texas_holdem_no_limit_v6": Known(hidden=True),
}
"""The classic games of which more is known than PettingZoo says."""


REFUSED = {"hanabi_v5": "its players win and lose together, and here one player's gain must be the other's loss"}
"""Classic games that cannot be played here, and why."""


def known_game(path: str) -> Known:
    """What is known of a game by its module; refuse one that is known not to fit."""
    game = path.removeprefix("pettingzoo.classic.")
    if game in REFUSED:
        raise TesseraError(f"{game} cannot be learned here: {REFUSED[game]}; choose another")
    return GAMES.get(game, Known())


class SeenPosition(NamedTuple):
    """What the player sees whose turn it is."""

    observation: Any
    legal: np.ndarray
    """bool [actions]."""
    player: int


class TurnsEnvironment(HostEnvironment):
    """A game of two players who take turns, stepped in this process. An observation is what the one sees who moves."""

    def __init__(self, name: str, factory: Callable[..., Any], known: Known | None = None) -> None:
        self.name, self._factory = name, factory
        probe = factory()
        try:
            self._table = Table(name, probe, known or Known())
            self.tries_moves = can_be_copied(probe, self._table)
        finally:
            probe.close()
        self.spec = self._table.spec

    def open(self, ids: np.ndarray, seed: int) -> HostVector:
        """Open the games with global indices `ids` [groups, environments per group]."""
        seeds = [seed_for(seed, index) for index in ids.flat]
        return TurnsVector([self._factory() for _ in seeds], self._table, ids.shape, seeds)

    def one_by_one(self) -> HostEnvironment:
        """They always are."""
        return self

    def single(self) -> Any:
        """One game as PettingZoo makes it."""
        return self._factory()

    def filmed(self, reel: Reel, height: int) -> HostEnvironment:
        """The same, with what render() gives."""
        del height
        filmed = copy.copy(self)
        filmed._factory = recorded(self.name, self._factory, reel)
        return filmed


class TurnsVector(SteppedInALoop):
    """Games stepped in a loop, each begun anew in the step that ends it.

    Nobody here plays an illegal move: agents and opponents are given masks. Whoever plays one all the same loses, as in
    pgx. (A replica that replaces one which died plays moves without a meaning until it has caught up.)
    """

    def __init__(self, envs: Sequence[Any], table: Table, shape: Sequence[int], seeds: Sequence[int]) -> None:
        super().__init__()
        self._envs, self._table, self._shape = envs, table, tuple(shape)
        self._seeds: list[Any] = list(seeds)
        self._at: list[SeenPosition] = []
        """Where each game is."""

    def reset(self) -> Timestep:
        """Begin every game: from its seed at first, and from where its generator is later on."""
        self._at = [self._begun(env, seed) for env, seed in zip(self._envs, self._seeds, strict=True)]
        self._seeds = [None] * len(self._seeds)
        return self._first()

    def restart(self, which: np.ndarray) -> Timestep:
        """Begin new games in the environments `which`."""
        for i in np.flatnonzero(which).tolist():
            self._at[i] = self._begun(self._envs[i])
        return self._first()

    def tried(self, which: np.ndarray) -> np.ndarray:
        """What each legal move of the games `which` would earn at once for who plays it, float32 [..., actions]; games
        are copied for it. 0 elsewhere."""
        earned = np.zeros((len(self._envs), self._table.spec.alternatives), np.float32)
        for i in np.flatnonzero(which).tolist():
            for move in np.flatnonzero(self._at[i].legal).tolist():
                other = copied(self._envs[i])
                other.step(self._table.decoded(move))
                earned[i, move] = self._table.rewards(other)[self._at[i].player]
        return earned.reshape(*self._shape, -1)

    def _begun(self, env: Any, seed: int | None = None) -> SeenPosition:
        env.reset() if seed is None else env.reset(seed=seed)
        return self._table.position(env)

    def _first(self) -> Timestep:
        seen = self._seen(self._at, range(len(self._at)))
        terminated, truncated = np.zeros((2, *self._shape), bool)
        reward = np.zeros((*self._shape, 2), np.float32)
        ended = {"final_legal": seen.legal, "final_player": seen.player}
        return Timestep(
            seen.observation, reward, terminated, truncated, seen.observation, legal=seen.legal, player=seen.player,
            **ended,
        )  # fmt: skip

    def _play(self, actions: np.ndarray, rows: Sequence[int]) -> Timestep:
        size = len(self._envs)
        rewards, finals = np.zeros((size, 2), np.float32), list(self._at)
        terminated, truncated = np.zeros((2, size), bool)
        moves = actions.reshape(-1).tolist()
        for i in rows:
            env, (_, legal, player) = self._envs[i], self._at[i]
            if legal[moves[i]]:
                rewards[i], terminated[i], truncated[i], finals[i] = self._table.moved(env, moves[i], self._info.add)
            else:
                terminated[i] = True
                rewards[i, player], rewards[i, 1 - player] = -1, 1
            self._at[i] = self._begun(env) if terminated[i] or truncated[i] else finals[i]
        seen = final = self._seen([self._at[i] for i in rows], rows)
        if terminated.any() or truncated.any():
            final = self._seen([finals[i] for i in rows], rows)
        return Timestep(
            seen.observation,
            rewards.reshape(*self._shape, 2),
            terminated.reshape(self._shape),
            truncated.reshape(self._shape),
            final.observation,
            legal=seen.legal,
            final_legal=final.legal,
            player=seen.player,
            final_player=final.player,
        )

    def _seen(self, positions: Sequence[SeenPosition], rows: Sequence[int]) -> Any:
        """The positions of the games `rows`, as arrays for all."""
        observed = self._table.encoded([position.observation for position in positions])
        legal = np.stack([position.legal for position in positions])
        players = np.array([position.player for position in positions], np.int32)
        placed = (spread(x, rows, len(self._envs)) for x in (observed, legal, players))
        return SeenPosition(*(grouped(x, self._shape) for x in placed))


class Table:
    """Translates between PettingZoo's players by name and arrays in the order of `possible_agents`."""

    def __init__(self, name: str, env: Any, known: Known) -> None:
        self._name, self.players = name, tuple(getattr(env, "possible_agents", ()))
        if len(self.players) != 2:
            raise TesseraError(
                f"{name} has {len(self.players)} players who take turns, and games here are for two: choose another"
            )
        actions = same_for_all(name, {player: space_of(name, env, "action_space", player) for player in self.players})
        first, second = (space_of(name, env, "observation_space", player) for player in self.players)
        if first != second:
            raise TesseraError(
                f"in {name} {self.players[0]} observes {first} and {self.players[1]} {second}, and one network plays "
                "both sides: wrap the game so that both see alike"
            )
        self._mask_observed = holds_mask(first)
        self._spaces = Spaces(name, without_mask(first) if self._mask_observed else first, actions)
        spec = self._spaces.spec
        if not isinstance(spec.actions, Discrete):
            raise TesseraError(f"{name} takes actions {actions}, and a move here is one of a number: choose another")
        if spec.is_tree:
            raise TesseraError(f"{name} observes several arrays ({', '.join(spec.parts)}), and games here show one")
        self.spec = Spec(
            spec.observation_shape,
            spec.observation_dtype,
            spec.actions,
            time_limit=known.longest,
            restricted=True,
            players=2,
            hidden=known.hidden,
        )

    def position(self, env: Any, over: bool = False) -> SeenPosition:
        """What the player sees whose turn it is; where a game is over, any move is as good as another."""
        player = env.agent_selection
        observed = env.observe(player)
        given = (observed if self._mask_observed else env.infos.get(player, {})).get(MASK)
        legal = np.ones(self.spec.alternatives, bool) if over or given is None else self._spaces.mask(given)
        if not legal.any():
            raise ValueError(f"{player} may make no move, and the game goes on: end it, or let the other one move")
        # A copy, because a game may reuse its arrays.
        return SeenPosition(copy.deepcopy(without_mask(observed) if self._mask_observed else observed), legal,
                        self.players.index(player))  # fmt: skip

    def moved(self, env: Any, move: int, note: Callable[[Any], None]) -> tuple[list[float], bool, bool, SeenPosition]:
        """Make a move: (rewards, terminated, truncated, position after it)."""
        env.step(self.decoded(move))
        rewards = self.rewards(env)
        for info in filter(None, env.infos.values()):
            note(info)
        over = self.pass_over(env)
        cut = over and any(env.truncations.get(p) and not env.terminations.get(p) for p in self.players)
        return rewards, over and not cut, cut, self.position(env, over and not cut)

    def pass_over(self, env: Any) -> bool:
        """Pass over a player who has left while the other one plays on; whether the game is over."""
        while True:
            left = {p for p in env.agents if env.terminations.get(p) or env.truncations.get(p)}
            if left.issuperset(env.agents):
                return True
            if env.agent_selection not in left:
                return False
            env.step(None)

    def rewards(self, env: Any) -> list[float]:
        """What the last move earned, for both; refuse a game in which both may gain."""
        rewards = [float(env.rewards.get(player, 0.0)) for player in self.players]
        if abs(sum(rewards)) > 1e-4 * max(1.0, *map(abs, rewards)):
            raise TesseraError(
                f"in {self._name} a move earned {rewards[0]:g} for {self.players[0]} and {rewards[1]:g} for "
                f"{self.players[1]}, and here one player's gain must be the other's loss: choose another game"
            )
        return rewards

    def encoded(self, observations: Sequence[Any]) -> np.ndarray:
        """Observations as an array [n, ...]."""
        return self._spaces.encode(self._spaces.stack(observations))

    def decoded(self, move: int) -> int:
        """A move in the game's own numbers."""
        return int(self._spaces.decode(np.asarray(move)))


def copied(env: Any) -> Any:
    """A copy of a game as it stands; PettingZoo's own way to copy one gives a new game."""
    other = object.__new__(type(env))
    memo = {id(env): other}
    for name, value in vars(env).items():
        other.__dict__[name] = copied(value) if hasattr(value, "agent_selection") else copy.deepcopy(value, memo)
    return other


def can_be_copied(env: Any, table: Table) -> bool:
    """Whether a copy of a game goes on as the game itself does."""
    try:
        env.reset(seed=0)
        legal = table.position(env).legal
        other = copied(env)
        for game in (other, env):
            before = table.position(game)
            game.step(table.decoded(int(np.flatnonzero(legal)[-1])))
            if game is other and not _alike(table.position(env), before):
                return False  # it was no copy
        return _alike(table.position(env, over=True), table.position(other, over=True))
    except Exception:  # what is wrong with the game itself shows, by name, when the run resets it
        return False


def _alike(one: SeenPosition, other: SeenPosition) -> bool:
    same = np.array_equal(one.observation, other.observation) and np.array_equal(one.legal, other.legal)
    return same and one.player == other.player
