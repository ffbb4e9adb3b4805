"""What a run says of itself before it starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.algorithms.contract import Algorithm
from tessera.envs.base import Environment, is_device
from tessera.graph.plan import Plan
from tessera.runs.directory import run_name
from tessera.runs.display import rounding_hint, virtual_devices_hint
from tessera.runs.saved_run import statistics_hint


def title_of(config: dict[str, Any], plan: Plan) -> str:
    """The title of a run: what is trained, where, and under which policy."""
    policy = plan.reason if "because" in plan.reason else plan.policy
    return f"{run_name(config)} on {plan.env}, {plan.envs} environments, seed {config['seed']}; policy {policy}"


def hints_for(algorithm: Algorithm, env: Environment, plan: Plan, steps: int, updates: int) -> list[str]:
    """What a user of this algorithm in this environment under this plan should know; nothing, mostly."""
    rounding = rounding_hint(algorithm.schedule, plan, steps, updates)
    return [hint for hint in (rounding, statistics_hint(algorithm, env), virtual_devices_hint(plan)) if hint]


def note_lost(env: Environment, note: Callable[[str], None]) -> None:
    """Note what host environments forget where a run goes on from a checkpoint, if they do."""
    if env.keeps and not is_device(env):  # checkpoints hold the state of others
        note(f"host environments start anew, and with them {env.keeps}")
