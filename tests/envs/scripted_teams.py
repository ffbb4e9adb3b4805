"""Parallel environments whose every number is known beforehand, for the tests of the PettingZoo adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

LEAVING = {"ann": (1, "terminated"), "bob": (3, "terminated"), "cat": (3, "terminated")}


class Leavers(ParallelEnv):
    """Agents observe 100 * episode + 10 * (own number, from 1) + step, earn that number times the step, and leave.

    `leaving` tells of each agent after which step it leaves and how. `widths` are the sizes of observations.
    """

    metadata: dict[str, Any] = {"name": "leavers"}  # noqa: RUF012
    render_mode = None

    def __init__(
        self,
        leaving: Mapping[str, tuple[int, str]] = LEAVING,
        widths: tuple[int, ...] = (1, 1, 1),
        actions: tuple[spaces.Space, ...] = (spaces.Discrete(3),) * 3,
        reuse: bool = False,
    ) -> None:
        self.possible_agents = list(leaving)
        self._leaving, self._reuse = leaving, reuse
        self._widths = dict(zip(leaving, widths, strict=True))
        self._actions = dict(zip(leaving, actions, strict=True))
        self._buffers = {agent: np.zeros(width, np.float32) for agent, width in self._widths.items()}
        self._episode, self._step = -1, 0
        self.seen: list[dict[str, Any]] = []

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-np.inf, np.inf, (self._widths[agent],), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return self._actions[agent]

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.agents = list(self.possible_agents)
        self._episode, self._step = self._episode + 1, 0
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        assert set(actions) == set(self.agents)
        assert all(self._actions[agent].contains(action) for agent, action in actions.items())
        self.seen.append(actions)
        self._step += 1
        rewards = {agent: float(self._number(agent) * self._step) for agent in self.agents}
        ends, cuts = (
            {agent: self._leaving[agent] == (self._step, how) for agent in self.agents}
            for how in ("terminated", "truncated")
        )
        result = self._observe(), rewards, ends, cuts, {agent: {} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not (ends[agent] or cuts[agent])]
        return result

    def _number(self, agent: str) -> int:
        return self.possible_agents.index(agent) + 1

    def _observe(self) -> dict[str, Any]:
        observations = {}
        for agent in self.agents:
            self._buffers[agent][:] = 100 * self._episode + 10 * self._number(agent) + self._step
            observations[agent] = self._buffers[agent] if self._reuse else self._buffers[agent].copy()
        return observations
