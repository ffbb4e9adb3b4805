"""plans.json: the plans of a run that has changed its plan, each with the policy that it is made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tessera.errors import TesseraError
from tessera.graph.plan import ENGINES, Plan
from tessera.graph.plan_changes import planned_again, refuse_change
from tessera.graph.policy import Policy
from tessera.graph.policy_files import from_data
from tessera.support.files import read_json, write_json

FILE = "plans.json"


@dataclass(frozen=True)
class PastPlan:
    """A plan that a run has been under."""

    update: int
    """The update after which the run went on under it; 0: it began so."""
    why: str
    policy: Policy
    engine: str

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"update": self.update, "why": self.why, "engine": self.engine, "policy": asdict(self.policy)}


def past_plan(plan: Plan, update: int) -> PastPlan:
    """What is kept of a plan that a run is under from an update on."""
    if plan.origin is None:
        raise TesseraError(
            f"a run cannot change to a plan of policy {plan.policy!r} that does not know its policy: make it with "
            "make_plan or prepare_plan"
        )
    return PastPlan(update, plan.reason, plan.origin[0], plan.engine)


def read_plans(folder: Path | None) -> tuple[PastPlan, ...]:
    """All plans of a run that has changed its plan, in order; none if it never did."""
    if folder is None or not (folder / FILE).exists():
        return ()
    found = read_json(folder / FILE).get("plans")
    if not isinstance(found, list):
        raise TesseraError(f"{folder / FILE} is damaged: it has no list of plans; delete it to begin with the first")
    return tuple(_past_plan(entry, folder / FILE) for entry in found)


def write_plans(folder: Path, plans: Sequence[PastPlan]) -> None:
    """Write all plans, at once or not at all."""
    write_json(folder / FILE, {"plans": [plan.to_json() for plan in plans]})


def newest_plan(plan: Plan, plans: Sequence[PastPlan], available: int) -> Plan:
    """The plan that a run goes on under which began under `plan`; there are so many devices."""
    if not plans:
        return plan
    last = plans[-1]
    found = planned_again(plan, last.policy, reason=last.why, engine=last.engine, available=available)
    refuse_change(plan, found)
    return found


def _past_plan(entry: Any, where: Path) -> PastPlan:
    """A plan from plain data, which is checked."""
    kinds = {"update": int, "why": str, "engine": str, "policy": dict}
    if not isinstance(entry, dict) or any(not isinstance(entry.get(name), kind) for name, kind in kinds.items()):
        raise TesseraError(f"{where} is damaged: a plan has {', '.join(kinds)}; delete it to begin with the first")
    if entry["engine"] not in ENGINES:
        raise TesseraError(
            f"{where} is damaged: there is no engine {entry['engine']!r}; delete it to begin with the first"
        )
    return PastPlan(entry["update"], entry["why"], from_data(entry["policy"], str(where), "found"), entry["engine"])
