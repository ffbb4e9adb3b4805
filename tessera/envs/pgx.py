"""`pgx:` games: boards and cards for two players who take turns. Pure JAX, so they are traced into programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tessera.envs.base import DeviceEnvironment, Discrete, Spec, missing_extra
from tessera.envs.boards import BOARDS
from tessera.envs.drawing.shapes import Artist
from tessera.envs.spec import Symmetry
from tessera.errors import TesseraError, unknown_name


@dataclass(frozen=True)
class Game:
    """What is known of a game besides its rules."""

    longest: int
    """Moves after which it is over."""
    symmetric: str = ""
    """Which changes of the board change nothing else: square (turned and mirrored), turned (by half), mirrored; or
    none."""
    hidden: bool = False
    """Whether a player does not see all."""


GAMES = {
    "tic_tac_toe": Game(9, "square"),
    "connect_four": Game(42, "mirrored"),
    "othello": Game(120, "square"),  # 60 moves, and at most one pass before each
    "hex": Game(122, "turned"),  # a stone for each cell, and the swap
    "animal_shogi": Game(256),
    "gardner_chess": Game(256),
    "go_9x9": Game(162, "square"),
    "kuhn_poker": Game(3, hidden=True),
    "leduc_holdem": Game(8, hidden=True),
}


def make(name: str, **options: Any) -> PgxEnvironment:
    """Make a game; options go to its constructor."""
    if name not in GAMES:
        raise unknown_name("pgx game", name, GAMES)
    return (CardGame if GAMES[name].hidden else PgxEnvironment)(name, options)


def _made(name: str, options: dict[str, Any]) -> Any:
    try:
        import pgx
    except ImportError as error:
        raise missing_extra("pgx", "games", error) from error
    if not options:
        return pgx.make(name)
    raise TesseraError(f"pgx:{name} takes no options: leave out {', '.join(options)}")


class PgxEnvironment(DeviceEnvironment):
    """A game in which both players see all. An observation is what the player sees whose turn it is."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name, self._options, game = f"pgx:{name}", options, GAMES[name]
        self._game, self._board = _made(name, options), BOARDS[name]
        self.move_example = self._board.example
        first, observation = jax.eval_shape(self.reset, jax.random.key(0))  # traced: its own init takes seconds
        actions = self.legal(first).shape[0]
        self.spec = Spec(
            observation.shape,
            str(observation.dtype),
            Discrete(actions),
            time_limit=game.longest,
            restricted=True,
            players=2,
            hidden=game.hidden,
            symmetries=symmetries(game.symmetric, observation.shape, actions),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Make it anew in another process."""
        return type(self), (self.name.partition(":")[2], self._options), {"name": self.name, "spec": self.spec}

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Start a game: (state, observation)."""
        state = self._begun(key)
        return state, self.observe(state)

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Make a move: (state, observation, reward [players], terminated, truncated)."""
        with jax.enable_x64(False):  # pgx is written for 32 bits
            state = self._game.step(state, jnp.asarray(action, jnp.int32), key)
        reward = state.rewards.astype(jnp.result_type(float))
        return state, self.observe(state), reward, state.terminated, jnp.zeros_like(state.terminated)

    def _begun(self, key: Any) -> Any:
        with jax.enable_x64(False):
            return self._game.init(key)

    def observe(self, state: Any) -> Any:
        """What the player sees whose turn it is."""
        return state.observation

    def legal(self, state: Any) -> Any:
        """Moves that the rules allow, bool [n]."""
        return state.legal_action_mask

    def player(self, state: Any) -> Any:
        """Whose turn it is."""
        return state.current_player

    def drawn(self, state: Any, player: int | None) -> str:
        """The board in text, as a player sees it; None sees all."""
        return self._board.draw(jax.device_get(state), player)

    def artist(self, height: int) -> Artist:
        """What draws its states."""
        from tessera.envs.drawing.pgx import artist_of

        del height
        return artist_of(self.name)

    def move_names(self, state: Any) -> list[str]:
        """How each move is written; nothing for those that lead off the board."""
        held = jax.device_get(state)
        return [self._board.move(held, action) for action in range(self.legal(state).shape[-1])]


class Dealt(NamedTuple):
    """The state of a game of cards, with all moves since they were dealt."""

    game: Any
    first: jax.Array
    """Who moved first."""
    moves: jax.Array
    """[longest] -1 for those to come."""


class CardGame(PgxEnvironment):
    """A game in which cards are hidden. pgx shows chips alone, by which the first move looks like one after a check.
    Here a player sees the own cards and those on the table, whether the first move was the own, and all moves."""

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Start a game: (state, observation)."""
        game = self._begun(key)
        longest = GAMES[self.name.partition(":")[2].partition("?")[0]].longest
        state = Dealt(game, game.current_player, jnp.full(longest, -1, jnp.int32))
        return state, self.observe(state)

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Make a move: (state, observation, reward [players], terminated, truncated)."""
        moves = state.moves.at[state.game._step_count].set(jnp.asarray(action, jnp.int32), mode="drop")
        game, _, *rest = super().step(state.game, action, key)
        state = state._replace(game=game, moves=moves)
        return state, self.observe(state), *rest

    def legal(self, state: Any) -> Any:
        """Moves that the rules allow, bool [n]."""
        return super().legal(state.game)

    def player(self, state: Any) -> Any:
        """Whose turn it is."""
        return super().player(state.game)

    def observe(self, state: Any) -> Any:
        """What the player sees whose turn it is; nothing before it is a state of cards."""
        if not isinstance(state, Dealt):
            return ()
        game, player = state.game, state.game.current_player
        ranks = 3
        seen = [jax.nn.one_hot(game._cards[player], ranks)]
        if game._cards.shape[0] > 2:  # one lies on the table, from the second round on
            seen.append(jax.nn.one_hot(game._cards[2], ranks) * (game._round > 0))
        moves = jax.nn.one_hot(state.moves, game.legal_action_mask.shape[0])
        return jnp.concatenate([*seen, (player == state.first)[None], moves.ravel()]).astype(jnp.float32)


def symmetries(kind: str, shape: tuple[int, ...], actions: int) -> tuple[Symmetry, ...]:
    """Changes of a board after which the same moves are as good, if moves go with it; the first changes nothing."""
    if not kind:
        return ()
    height, width, _ = shape
    cells = np.arange(height * width).reshape(height, width)
    turns = {"square": range(4), "turned": (0, 2), "mirrored": (0,)}[kind]
    mirrors = (False,) if kind == "turned" else (False, True)
    found = []
    for mirrored in mirrors:
        for quarters in turns:
            board = np.rot90(cells[:, ::-1] if mirrored else cells, quarters).ravel()
            by_cell = [*board, *range(board.size, actions)]  # some moves may have no cell
            moves = by_cell if actions >= board.size else board[:width]  # or there is one for each column
            found.append(Symmetry(tuple(map(int, board)), tuple(map(int, moves))))
    return tuple(found)
