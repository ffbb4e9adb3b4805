"""Plans that are tried for a profile: their fragments have the parts of those of all other plans."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.graph.plan_changes import planned_again
from tessera.graph.policy import Fragment, Policy
from tessera.support.machine import cores

WHOLE = "env act store grad apply"
MOST_CROWDED = 4
"""Cores, or accelerators, above which no plan is tried that has more replicas."""
SPLITS = (("env act", "store grad apply"), ("env", "act store grad apply"), ("env act store grad", "apply"))
"""Colourings whose fragments have the parts of all others: players and learners, steppers, and who applies."""


def replan(plan: Plan, policy: Policy) -> Plan | None:
    """The plan of another policy that learns the same, with environments, groups and lag as they are; None: none is."""
    devices = max(f.devices * f.model for f in plan.fragments)
    engine = "local" if policy.several else "serial"
    try:
        return planned_again(plan, policy, reason="to be timed", engine=engine, available=devices)
    except TesseraError:
        return None


def split_plans(plan: Plan) -> Iterator[Plan | None]:
    """Plans with two fragments, and of peers, by how much they tell: with few replicas, and with as many as can be.

    First those without whose parts a kind of plan has no costs at all.
    """
    most = most_replicas(plan, 4 * cores())
    players, steppers, workers = SPLITS
    yield in_two(plan, players)
    yield in_two(plan, steppers)
    yield in_two(plan, workers)
    if most > 1:
        yield in_two(plan, players, most)
        yield in_one(plan, 2 if most % 2 == 0 else most)
        yield in_two(plan, workers, most)
        yield in_two(plan, steppers, most)
    if most > 2:
        yield in_one(plan, most)


def trial_plans(plan: Plan) -> list[Plan]:
    """Plans that are run on processes, by how much they tell: of two replicas each, then those that are crowded.

    Where replicas share an accelerator, what that costs decides more than all else.
    """
    players, steppers, workers = SPLITS
    roomy = [in_two(plan, split) for split in (steppers, workers, players)]
    found = [*crowded_plans(plan), *roomy] if on_accelerators(plan) else [*roomy, *crowded_plans(plan)]
    return [tried for tried in found if tried is not None]


def crowded_plans(plan: Plan) -> list[Plan | None]:
    """Plans with more replicas than there are accelerators or cores; none where that takes many processes."""
    players, steppers, workers = SPLITS
    if on_accelerators(plan):
        devices = max(f.devices for f in plan.fragments)
        few, many = devices + 1, most_replicas(plan, cores() // 2)
        return [in_two(plan, players, n) for n in sorted({few, max(few, many)})] if devices <= MOST_CROWDED else []
    if not 2 <= cores() <= MOST_CROWDED:
        return []
    return [in_two(plan, split, cores()) for split in (workers, players, steppers)]


def most_replicas(plan: Plan, limit: int) -> int:
    """Into how many its groups can be dealt, up to a limit."""
    return max((n for n in range(1, plan.groups + 1) if plan.groups % n == 0 and n <= limit), default=1)


def on_accelerators(plan: Plan) -> bool:
    """Whether a plan's programs run on accelerators."""
    return any(f.platform != "cpu" for f in plan.fragments)


def processes_on_a_device(plan: Plan) -> int:
    """How many share the accelerator that most share."""
    on_them = [f for f in plan.fragments if f.platform != "cpu"]
    devices = max((f.devices for f in on_them), default=1)
    return math.ceil(sum(f.replicas * f.devices for f in on_them) / devices)


def is_crowded(plan: Plan) -> bool:
    """Whether a trial plan is a crowded one."""
    return max(f.replicas for f in plan.fragments) > 1


def in_one(plan: Plan, replicas: int = 1) -> Plan | None:
    """The plan with everything in one fragment, or in each of several peers."""
    return replan(plan, Policy("one fragment", (Fragment(WHOLE, replicas=replicas),)))


def in_two(plan: Plan, split: tuple[str, str], replicas: int = 1) -> Plan | None:
    """The plan with two fragments, of which the first is replicated."""
    first, second = split
    return replan(plan, Policy("two fragments", (Fragment(first, replicas=replicas), Fragment(second))))
