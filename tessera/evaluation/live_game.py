"""One game between a person and an agent, move by move; what is asked and shown is up to the caller."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tessera.envs.base import DeviceEnvironment, Environment, Timestep
from tessera.envs.players import Opponent
from tessera.errors import TesseraError
from tessera.program.keys import root_key


class LiveGame:
    """A game that has begun. The person is one of its players, and the agent the other."""

    def __init__(self, env: Environment, agent: Opponent, seed: int, begins: bool | None) -> None:
        """`begins` says whether the person has the first move; None: that is drawn."""
        assert isinstance(env, DeviceEnvironment)
        self.env: Any = env
        self._key, side_key = jax.random.split(root_key(seed))
        self._step, self._move = jax.jit(env.step), jax.jit(self._moved_by(agent))
        self._state, self._seen = jax.jit(env.reset)(self._next_key())
        self._memory = agent.memory()
        self.begins = bool(jax.random.bernoulli(side_key)) if begins is None else begins
        first = int(env.player(self._state))
        self.person = first if self.begins else 1 - first
        self.over, self.earned = False, 0.0
        """Whether it is over, and what the person has earned."""

    @property
    def persons_turn(self) -> bool:
        """Whether the person moves next."""
        return not self.over and int(self.env.player(self._state)) == self.person

    @property
    def legal(self) -> list[int]:
        """Moves that the rules allow now."""
        return np.flatnonzero(np.asarray(self.env.legal(self._state))).tolist()

    def drawn(self) -> str:
        """The board as the person sees it; all of it when the game is over."""
        return self.env.drawn(self._state, None if self.over else self.person)

    def move_names(self) -> list[str]:
        """How each move is written, by its number."""
        return self.env.move_names(self._state)

    def read(self, text: str) -> int:
        """The move that a text means, by its name or its number; refuse one that is none, or not allowed now."""
        word, names, legal = text.strip().lower(), [name.lower() for name in self.move_names()], self.legal
        if word.isascii() and word.isdecimal() and len(word) < 9 and int(word) < len(names):
            found = [int(word)]
        else:
            found = [action for action, name in enumerate(names) if name and name == word]
        if not found:
            raise TesseraError(
                f"{text.strip()} is no move: write it as in {self.env.move_example}, or by its number; ? lists those "
                "that are allowed"
            )
        allowed = [action for action in found if action in legal]
        if not allowed:
            raise TesseraError(f"{text.strip()} is not allowed now: ? lists the moves that are")
        return allowed[0]

    def play(self, action: int) -> None:
        """Make a move for whoever moves next."""
        self._state, self._seen, reward, terminated, truncated = self._step(self._state, action, self._next_key())
        self.earned += float(reward[self.person])
        self.over = bool(terminated | truncated)

    def answer(self) -> str:
        """Let the agent move: how its move is written."""
        action, self._memory = self._move(self._memory, self._state, self._seen, self._next_key())
        name = self.move_names()[int(action)]
        self.play(int(action))
        return name

    def _moved_by(self, agent: Opponent) -> Any:
        def move(memory: Any, state: Any, seen: Any, key: Any) -> tuple[Any, Any]:
            nothing, env = jnp.zeros((), bool), self.env
            timestep = Timestep(
                seen, jnp.zeros((), jnp.result_type(float)), nothing, nothing, None, legal=env.legal(state),
                player=env.player(state), state=env.position(state),
            )  # fmt: skip
            return agent.move(memory, timestep, key)

        return move

    def _next_key(self) -> jax.Array:
        self._key, key = jax.random.split(self._key)
        return key
