"""Networks that remember solve what those without memory cannot: chains with a cue, and CartPole without velocities.

In a chain the action that counts is the last one, and what it should be is shown only at the beginning; an unroll has
to be longer than the chain, because gradients go back to its beginning and no further. Runs are commands, as in
test_systems.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from test_systems import train

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Task:
    env: str
    solved: float
    """The least greedy return of a network that remembers."""
    lost: float
    """What the size of a greedy return stays below if nothing is remembered."""
    flags: tuple[str, ...] = ()


TASKS = {
    "chain of 5": Task("gymnax:MemoryChain-bsuite?memory_length=5", 0.95, 0.5),
    "chain of 20": Task("gymnax:MemoryChain-bsuite?memory_length=20", 0.95, 0.5, ("--unroll", "32")),
    "hidden velocities": Task("gymnax:CartPole-v1?hide=1,3", 475, 200, ("--steps", "1000000")),
}

SYSTEMS: dict[str, tuple[str, ...]] = {
    "a3c_lstm": (),
    "impala_lstm": (),
    "ppo_lstm": (),
}
"""What remembers, and the flags that it needs."""


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("name", TASKS)
def test_with_memory_it_is_solved(name, system, seed, tmp_path):
    task = TASKS[name]
    flags = (*task.flags, *SYSTEMS[system], "--target-return", str(task.solved))
    summary = train(system, task.env, seed, tmp_path / "run", *flags)
    assert summary["engine"] == ("serial" if system == "ppo_lstm" else "local")
    assert summary["eval_return_mean"] >= task.solved, summary


@pytest.mark.parametrize("name", TASKS)
def test_without_memory_it_is_not(name, tmp_path):
    task = TASKS[name]
    summary = train("ppo", task.env, 1, tmp_path / "run", *task.flags)
    assert abs(summary["eval_return_mean"]) < task.lost, summary
