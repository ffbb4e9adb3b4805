"""Who greedy episodes of a game are played against: somebody who needs no learning, or the agent of a run.

A network that plays itself wins as much as it loses, so its mean return says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from tessera.algorithms.contract import Algorithm, Schedule, State, View
from tessera.envs.base import Environment, HostEnvironment, Timestep
from tessera.envs.players import OPPONENTS, Opponent, is_player, named_opponent
from tessera.envs.wrappers.host_opponent import host_match
from tessera.envs.wrappers.opponent import AgainstOpponent
from tessera.errors import TesseraError

__all__ = ["OPPONENTS", "LearnedOpponent", "PlayerAlgorithm", "evaluated_env", "is_player"]

USUAL = "random"
"""The opponent if none is named."""


class LearnedOpponent:
    """Plays greedily with given params."""

    def __init__(self, name: str, algorithm: Algorithm, view: View) -> None:
        self.name, self._algorithm, self._view = name, algorithm, jax.device_get(view)

    def memory(self) -> Any:
        """The algorithm's own."""
        return self._algorithm.memory(jax.numpy.int32(0))

    def move(self, memory: Any, timestep: Timestep, key: Any) -> tuple[Any, Any]:
        """Act greedily."""
        kept = timestep if self._algorithm.reads_state else timestep._replace(state=None)
        return self._algorithm.greedy(self._view, memory, kept, key)


@dataclass(frozen=True)
class PlayerAlgorithm(Algorithm):
    """Somebody who needs no learning, in the place of an agent; it cannot be trained."""

    name: ClassVar[str] = "player"
    reads_state: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = True

    player: Opponent | None = None
    """Who plays."""

    @property
    def schedule(self) -> Schedule:
        """A move at a time."""
        return Schedule(1)

    def init(self, key: jax.Array) -> Any:
        """Nothing is learned."""
        del key
        return ()

    def start(self, params: Any) -> State:
        """Nothing is learned."""
        return State(params, ())

    def greedy(self, view: View, memory: Any, timestep: Timestep, key: jax.Array) -> tuple[Any, Any]:
        """Let the player move."""
        del view
        assert self.player is not None
        whose = self.game.player(timestep.state)
        return self.player.move(self.player.memory(), timestep._replace(player=whose), key)[0], memory


def evaluated_env(env: Environment, opponent: str | LearnedOpponent | None, openings: int = 0) -> Environment:
    """The environment that greedy episodes are played in: for a game of two players, one against the opponent, in which
    the first moves may be drawn."""
    if env.spec.players != 2:
        if opponent is not None:
            raise TesseraError(f"opponent {_name(opponent)}: {env.name} is no game of two players who take turns")
        return env
    chosen = opponent or USUAL
    if isinstance(env, HostEnvironment):
        return host_match(env, chosen, openings)
    return AgainstOpponent(env, named_opponent(chosen, env) if isinstance(chosen, str) else chosen, openings)


def _name(opponent: str | LearnedOpponent) -> str:
    return opponent if isinstance(opponent, str) else opponent.name
