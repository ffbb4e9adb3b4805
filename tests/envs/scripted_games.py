"""A turn-based game whose every number is known beforehand, for the tests of the PettingZoo adapter."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv

PILE = 7


class Pile(AECEnv):
    """Two players take one, two or three sticks from a pile; who takes the last one wins.

    An observation is what is left and the number of the player. Actions are sticks, from 1. After three sticks the same
    player moves again, if `again`. With `leaves` the first player leaves after the first move.
    """

    metadata: dict[str, Any] = {"name": "pile"}  # noqa: RUF012
    render_mode = None

    def __init__(
        self,
        masks: str = "observed",
        players: int = 2,
        loser: float = -1.0,
        cut: int = 0,
        again: bool = False,
        leaves: bool = False,
        widths: tuple[int, ...] = (2, 2),
    ) -> None:
        self.possible_agents = [f"p{k}" for k in range(players)]
        self._masks, self._loser, self._cut, self._again, self._leaves = masks, loser, cut, again, leaves
        self._widths = dict(zip(self.possible_agents, (*widths, *widths), strict=False))
        self._buffer = np.zeros(2, np.float32)

    def observation_space(self, agent: str) -> spaces.Space:
        seen = spaces.Box(0, PILE, (self._widths[agent],), np.float32)
        if self._masks != "observed":
            return seen
        return spaces.Dict({"observation": seen, "action_mask": spaces.Box(0, 1, (3,), np.int8)})

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3, start=1)

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        self.agents = list(self.possible_agents)
        self._left, self._moves = PILE, 0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.infos: dict[str, dict] = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[0]
        self._note_masks()

    def observe(self, agent: str) -> Any:
        self._buffer[:] = self._left, self.possible_agents.index(agent)  # the same array every time
        if self._masks != "observed":
            return self._buffer
        return {"observation": self._buffer, "action_mask": self._mask()}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        assert self._mask()[action - 1] or self._masks == "none"
        self._left, self._moves = max(0, self._left - action), self._moves + 1
        self.rewards = dict.fromkeys(self.agents, 0.0)
        if not self._left:
            self.rewards = {other: 1.0 if other == agent else self._loser for other in self.agents}
            self.terminations = dict.fromkeys(self.agents, True)
        elif self._cut and self._moves == self._cut:
            self.truncations = dict.fromkeys(self.agents, True)
        elif self._leaves and self._moves == 1:
            self.terminations[agent] = True
        if not (self._again and action == 3) and len(self.agents) > 1:
            self.agent_selection = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        self.infos = {other: {"left": float(self._left)} for other in self.agents}
        self._note_masks()
        if self._leaves:
            self._deads_step_first()

    def close(self) -> None:
        pass

    def _mask(self) -> np.ndarray:
        return np.arange(1, 4, dtype=np.int8) <= self._left

    def _note_masks(self) -> None:
        if self._masks == "info":
            self.infos[self.agent_selection]["action_mask"] = self._mask()
