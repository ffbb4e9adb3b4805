"""Plans with fewer replicas, for a run that has lost room."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from tessera.errors import TesseraError
from tessera.graph.plan import Plan, make_plan
from tessera.graph.policy import Policy


def with_fewer(plan: Plan, index: int) -> Plan | None:
    """The plan with fewer replicas of one fragment: as many as can be while all else holds; None if there is none.

    It is made from the policy again, so nothing that is checked of a plan is left out. Groups stay as they are, and so
    does what a replay holds: a checkpoint of the one plan is one of the other.
    """
    if plan.origin is None:
        return None
    policy, needs = plan.origin
    placed = plan.fragments
    for runs in range(placed[index].replicas - 1, 0, -1):
        try:
            made = make_plan(
                _smaller(policy, index, placed[index].replicas, runs), needs, plan.envs, groups=plan.groups,
                platform=placed[0].platform, available=max(f.devices * f.model for f in placed), reason=plan.reason,
                engine=plan.engine,
            )  # fmt: skip
        except TesseraError:  # groups or agents that cannot be dealt to so many
            continue
        if needs.batch is None or made.batches == plan.batches:
            return replace(made, sharing=plan.sharing)
    return None


def _smaller(policy: Policy, index: int, before: int, runs: int) -> Policy:
    fragment, cut = policy.fragments[index], policy.cut("experience")
    left = replace(fragment, replicas=runs) if fragment.processes is None else replace(fragment, processes=runs)
    fragments = (*policy.fragments[:index], left, *policy.fragments[index + 1 :])
    cuts = dict(policy.cuts)
    if cut.mode == "first" and "act" in fragment.names:
        cuts["experience"] = replace(cut, first=_waited(cut.first, before, runs))
    return replace(policy, fragments=fragments, cuts=cuts)


def _waited(first: int, before: int, runs: int) -> int:
    """For how many actors an update waits: for the same share of all, if that can be."""
    share = Fraction(first * runs, before)
    return share.numerator if share.denominator == 1 else min(first, runs)


def same_steps(updates: int, before: Plan, after: Plan, done: int = 0) -> int:
    """Updates that make as many steps under another plan, after `done` that were made under the old one."""
    return done + math.ceil((updates - done) * before.envs_per_update / after.envs_per_update)


def losses(before: Plan, after: Plan) -> str:
    """Which replicas one plan has fewer of than another: "2 of 3 env+act"."""
    pairs = zip(before.fragments, after.fragments, strict=True)
    return ", ".join(f"{b.replicas} of {a.replicas} {a.title}" for a, b in pairs if b.replicas < a.replicas)
