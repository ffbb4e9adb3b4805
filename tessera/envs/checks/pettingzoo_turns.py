"""Checks of PettingZoo's games in which two players take turns."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import numpy as np

from tessera.envs.checks.findings import EnvironmentCheck
from tessera.envs.checks.gymnasium import Raised, calling, check_flag, check_observation, check_reward, reporting
from tessera.envs.pettingzoo_turns import Known, SeenPosition, Table
from tessera.errors import TesseraError

QUICK_MOVES = 100
"""Moves that the cheap check plays at most: rewards often come with the end of a game alone."""


def refuse_broken_turns(env: Any, name: str) -> None:
    """Play a game, or its first moves, and refuse what cannot be trained in."""
    table, random = Table(name, env, Known()), np.random.default_rng(0)
    with contextlib.suppress(Raised):
        at = _reset(env, table, name, seed=0)
        for _ in range(QUICK_MOVES):
            over, at = _move(env, table, name, at, random)
            if over:
                return


def play_turns(env: Any, report: EnvironmentCheck, steps: int, seed: int) -> np.ndarray:
    """Play random legal moves and note what is wrong with the seeds; at which steps games ended."""
    name, ended, random = report.name, np.zeros((steps, 1), bool), np.random.default_rng(seed)
    table = Table(name, env, Known())
    with reporting(report, name):
        once, at = (_reset(env, table, name, seed) for _ in range(2))
        if not np.array_equal(once.observation, at.observation) or once.player != at.player:
            report.error(
                f"two resets of {name} with the same seed lead to different starts, so runs cannot be repeated: draw "
                "from a generator that reset() seeds"
            )
        begun = time.perf_counter()
        for k in range(steps):
            ended[k], at = _move(env, table, name, at, random)
            if ended[k]:
                at = _reset(env, table, name)
        report.seconds, report.steps, report.episodes = time.perf_counter() - begun, steps, int(ended.sum())
    return ended


def _reset(env: Any, table: Table, name: str, seed: int | None = None) -> SeenPosition:
    with calling("reset"):
        env.reset() if seed is None else env.reset(seed=seed)
    return _position(env, table, f"reset() of {name}")


def _move(
    env: Any, table: Table, name: str, at: SeenPosition, random: np.random.Generator
) -> tuple[bool, SeenPosition]:
    """Make any legal move: (whether the game is over, where it is)."""
    with calling("step"):
        env.step(table.decoded(int(random.choice(np.flatnonzero(at.legal)))))
    where = f"step() of {name}"
    for player in table.players:
        check_reward(env.rewards.get(player, 0.0), f"{where}, for {player},")
        check_flag(env.terminations.get(player, True), "terminated", f"{where}, for {player},")
        check_flag(env.truncations.get(player, False), "truncated", f"{where}, for {player},")
    table.rewards(env)
    with calling("step"):
        over = table.pass_over(env)
    return over, at if over else _position(env, table, where)


def _position(env: Any, table: Table, where: str) -> SeenPosition:
    player = env.agent_selection
    if player not in table.players:
        raise TesseraError(
            f"after {where} it is the turn of {player!r}, who is none of possible_agents: set agent_selection to one"
        )
    with calling("observe"):
        observed = env.observe(player)
    check_observation(env.observation_space(player), observed, where, f"observation of {player}")
    with calling("observe"):
        return table.position(env)
