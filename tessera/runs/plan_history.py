"""plans.json: the changes of a run's plan, each with its update, its reason, and the policy to make the plan from."""

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
class PlanChange:
    """A run went on under another plan."""

    update: int
    """Updates made by then."""
    why: str
    policy: Policy
    engine: str

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"update": self.update, "why": self.why, "engine": self.engine, "policy": asdict(self.policy)}


def change_to(plan: Plan, update: int) -> PlanChange:
    """The change of a run to a plan."""
    if plan.origin is None:
        raise TesseraError(
            f"a run cannot change to a plan of policy {plan.policy!r} that does not know its policy: make it with "
            "make_plan or prepare_plan"
        )
    return PlanChange(update, plan.reason, plan.origin[0], plan.engine)


def read_changes(folder: Path | None) -> tuple[PlanChange, ...]:
    """All changes that a run folder tells of, in order."""
    if folder is None or not (folder / FILE).exists():
        return ()
    found = read_json(folder / FILE).get("changes")
    if not isinstance(found, list):
        raise TesseraError(f"{folder / FILE} is damaged: it has no list of changes; delete it to go on with the run")
    return tuple(_change(entry, folder / FILE) for entry in found)


def write_changes(folder: Path, changes: Sequence[PlanChange]) -> None:
    """Write all changes, at once or not at all."""
    write_json(folder / FILE, {"changes": [change.to_json() for change in changes]})


def newest_plan(plan: Plan, changes: Sequence[PlanChange], available: int) -> Plan:
    """The plan that a run goes on under, which began under `plan`; there are so many devices."""
    if not changes:
        return plan
    last = changes[-1]
    found = planned_again(plan, last.policy, reason=last.why, engine=last.engine, available=available)
    refuse_change(plan, found)
    return found


def _change(entry: Any, where: Path) -> PlanChange:
    """A change from plain data, which is checked."""
    kinds = {"update": int, "why": str, "engine": str, "policy": dict}
    if not isinstance(entry, dict) or any(not isinstance(entry.get(name), kind) for name, kind in kinds.items()):
        raise TesseraError(f"{where} is damaged: a change has {', '.join(kinds)}; delete it to go on with the run")
    if entry["engine"] not in ENGINES:
        raise TesseraError(f"{where} is damaged: there is no engine {entry['engine']!r}; delete it to go on")
    policy = from_data(entry["policy"], str(where), "found")
    return PlanChange(entry["update"], entry["why"], policy, entry["engine"])
