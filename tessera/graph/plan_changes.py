"""Changing the plan of a run at a checkpoint: which plans learn the same, and how one is made again from its policy."""

from __future__ import annotations

from dataclasses import replace

from tessera.errors import TesseraError
from tessera.graph.plan import Plan, make_plan
from tessera.graph.policy import Policy


def refuse_change(before: Plan, after: Plan) -> None:
    """Refuse a plan under which a run would not learn what it would have learned under the one before."""
    for name in ("algorithm", "env", "wrappers", "envs", "groups", "lag", "batches"):
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            raise TesseraError(
                f"a run with {name} = {old!r} cannot change to a plan with {new!r}: it would learn something else; "
                "plan with the same value"
            )
    for plan in (before, after):
        if plan.asynchronous or plan.exchange or _loses(plan):
            raise TesseraError(
                f"a run cannot change its plan where policy {plan.policy!r} is involved: what it learns depends on "
                "which replicas there are; only plans in which all replicas wait for each other can be changed"
            )


def _loses(plan: Plan) -> bool:
    """Whether messages are not passed on as they are, so that receivers know less than senders."""
    return any(channel.codec and channel.threshold for channel in plan.channels)


def planned_again(plan: Plan, policy: Policy, *, reason: str, engine: str, available: int) -> Plan:
    """A plan of another policy for the same run: with as many environments and groups, and the same lag."""
    assert plan.origin is not None
    cuts = {**policy.cuts, "params": replace(policy.cut("params"), lag=plan.lag)}
    return make_plan(
        replace(policy, cuts=cuts), plan.origin[1], plan.envs, groups=plan.groups, platform=plan.fragments[0].platform,
        available=available, reason=reason, engine=engine,
    )  # fmt: skip
