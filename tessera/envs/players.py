"""Players of games for two that need no learning: by chance, by looking ahead, or by a solver."""

from __future__ import annotations

import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from tessera.envs.base import DeviceEnvironment, Environment, Timestep
from tessera.envs.solvers import SOLVERS, find_solver
from tessera.errors import TesseraError, unknown_name
from tessera.maths.search import TreePosition, drawn_move, following, rollout, search_root
from tessera.support.extras import install_hint

SIMULATIONS = 64
"""Of a search, where none are named."""
MOST_SIMULATIONS = 10_000
OPPONENTS = ("random", "greedy", "mcts", *(f"solver:{name}" for name in SOLVERS))
"""Names of such players; mcts:256 is one that simulates 256 games for a move."""
EXPLORATION = 2.0
"""How much a search tries moves that look worse, by PUCT's constant."""


class Opponent(Protocol):
    """Who plays the other side, as pure functions of one game."""

    name: str

    def memory(self) -> Any:
        """What it carries from move to move, at the beginning of a game."""

    def move(self, memory: Any, timestep: Timestep, key: Any) -> tuple[Any, Any]:
        """Choose a move where it is its turn: (action, memory)."""


class RandomOpponent:
    """Plays any legal move."""

    name = "random"

    def memory(self) -> Any:
        """Nothing."""
        return ()

    def move(self, memory: Any, timestep: Timestep, key: Any) -> tuple[Any, Any]:
        """Draw one."""
        return drawn_move(timestep.legal, key), memory


class GreedyOpponent(RandomOpponent):
    """Looks one move ahead: it wins if it can; else it takes any move after which it has not lost."""

    name = "greedy"

    def __init__(self, game: DeviceEnvironment) -> None:
        refuse_where_hidden("greedy tries what moves would earn", game)
        self._game = game

    def move(self, memory: Any, timestep: Timestep, key: Any) -> tuple[Any, Any]:
        """Try all moves."""
        step_key, draw_key = jax.random.split(key)
        reward = jax.vmap(lambda action: self._game.step(timestep.state, action, step_key)[2][timestep.player])(
            jnp.arange(timestep.legal.shape[0])
        )
        best = jnp.where(timestep.legal, reward, -jnp.inf)
        return drawn_move(best == best.max(), draw_key), memory


class SearchingOpponent(RandomOpponent):
    """Monte-Carlo tree search without a network (PUCT): all moves are as likely, and a position is worth what a game at
    random from there ends with."""

    def __init__(self, game: DeviceEnvironment, simulations: int) -> None:
        try:
            import mctx  # noqa: F401
        except ImportError as error:
            raise TesseraError(f"opponent mcts needs mctx, which is missing: run {install_hint('games')}") from error
        refuse_where_hidden("mcts searches what may happen", game)
        self.name, self._game, self._simulations = f"mcts:{simulations}", game, simulations

    def move(self, memory: Any, timestep: Timestep, key: Any) -> tuple[Any, Any]:
        """Search, and take the move that was tried most."""
        import mctx

        root_key, search_key = jax.random.split(key)
        here = TreePosition(timestep.observation, timestep.legal, timestep.state, jnp.zeros((), bool))
        found = mctx.muzero_policy(
            (), search_key, search_root(*self._judged((), here, root_key), timestep.state),
            following(self._game, self._judged), self._simulations, ~timestep.legal[None],
            qtransform=functools.partial(mctx.qtransform_by_min_max, min_value=-1.0, max_value=1.0),
            dirichlet_fraction=0.0, pb_c_init=EXPLORATION, temperature=0.0,
        )  # fmt: skip
        return found.action[0].astype(jnp.int32), memory

    def _judged(self, params: Any, at: TreePosition, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        del params
        value = rollout(self._game, at.state, at.over, key).astype(jnp.float32)
        return jnp.where(at.legal, 0.0, jnp.finfo(jnp.float32).min), value


class SolverOpponent(RandomOpponent):
    """Plays perfectly, by a solver on the host: it wins as soon as it can, else draws, else loses as late as it can."""

    def __init__(self, game: DeviceEnvironment, solver: str) -> None:
        self.name, self._scores = f"solver:{solver}", find_solver(solver, game)

    def move(self, memory: Any, timestep: Timestep, key: Any) -> tuple[Any, Any]:
        """Draw one of the best."""
        score = jnp.where(timestep.legal, self._scores(timestep.state), -jnp.inf)
        return drawn_move(score == score.max(), key), memory


def refuse_where_hidden(looks_ahead: str, game: Environment) -> None:
    """Refuse an opponent that would play by what is hidden from it."""
    if game.spec.hidden:
        raise TesseraError(
            f"opponent {looks_ahead}, and in {game.name} a player does not see all: choose random or the folder of a "
            "run"
        )


def is_player(name: str) -> bool:
    """Whether a name is meant for a player that needs no learning, and not for a folder."""
    return name.partition(":")[0] in ("random", "greedy", "mcts", "solver")


def named_opponent(name: str, env: DeviceEnvironment) -> Opponent:
    """A player that needs no learning."""
    kind, colon, rest = name.partition(":")
    if kind == "solver":
        return SolverOpponent(env, rest)
    if kind == "mcts":
        return SearchingOpponent(env, _simulations(name, rest) if colon else SIMULATIONS)
    if name not in OPPONENTS:
        raise unknown_name("opponent", name, OPPONENTS)
    return RandomOpponent() if name == "random" else GreedyOpponent(env)


def _simulations(name: str, text: str) -> int:
    count = int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else 0
    if not 1 <= count <= MOST_SIMULATIONS:
        raise TesseraError(
            f"opponent {name}: behind mcts: is how many games are simulated for a move, from 1 to "
            f"{MOST_SIMULATIONS:,}, as in mcts:{SIMULATIONS}"
        )
    return count
