"""How a run moves to a better plan at a checkpoint: asks for it, replaces its engine, and writes down what it did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tessera.engines.base import Engine
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.runs.plan_history import PastPlan, past_plan, write_plans
from tessera.runs.prediction_watch import PredictionWatch
from tessera.runs.requests import Move, Requests
from tessera.support.files import write_json

Note = Callable[[str], None]


def better_plan(watch: PredictionWatch, note: Note) -> Plan | None:
    """The plan to go on under, if there is one that learns the same; why another one is refused is noted."""
    try:
        plan = watch.better_plan()
        if plan is not None:
            past_plan(plan, 0)  # a plan that a resume could not make again is refused too
        return plan
    except TesseraError as refused:
        note(f"the plan stays as it is: {refused}")
        return None


def replace_engine(plan: Plan, before: Plan, note: Note) -> Requests[tuple[Plan, Engine]]:
    """End the engine and have that of another plan, or that of `before` again if the other cannot start."""
    try:
        return plan, (yield Move(plan))
    except TesseraError as error:
        note(f"the better plan cannot start ({error}): the run goes on under the one before")
        return before, (yield Move(before))


def write_change(folder: Path | None, plans: tuple[PastPlan, ...], plan: Plan, note: Note) -> None:
    """Write down that a run has gone on under another plan, the last of `plans`: for readers and for a resume."""
    if folder is not None:
        write_plans(folder, plans)
        write_json(folder / "plan.json", plan.to_json())
    note(f"update {plans[-1].update}: the run goes on under {plan.policy}: {plan.reason}")
