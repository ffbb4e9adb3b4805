"""Plans with fewer replicas, for a run on a cluster that has lost capacity."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from tessera.errors import TesseraError
from tessera.graph.plan import Plan, make_plan
from tessera.graph.policy import Policy


def with_fewer(plan: Plan, index: int) -> Plan | None:
    """The plan with fewer replicas of one fragment, but as many as possible; None if no such plan exists.

    The plan is made anew from the policy, so every check of a plan applies. Groups and the rows of a replay stay the
    same, so a checkpoint of either plan fits the other.
    """
    if plan.origin is None:
        return None
    policy, needs = plan.origin
    placed = plan.fragments
    for replicas in range(placed[index].replicas - 1, 0, -1):
        try:
            smaller = make_plan(
                _smaller(policy, index, placed[index].replicas, replicas), needs, plan.envs, groups=plan.groups,
                platform=placed[0].platform, available=max(f.devices * f.model for f in placed), reason=plan.reason,
                engine=plan.engine,
            )  # fmt: skip
        except TesseraError:  # groups or agents cannot be dealt to this number
            continue
        if needs.batch is None or smaller.batches == plan.batches:
            return replace(smaller, sharing=plan.sharing)
    return None


def _smaller(policy: Policy, index: int, before: int, after: int) -> Policy:
    """The policy with `after` replicas of one fragment, which had `before`."""
    fragment, cut = policy.fragments[index], policy.cut("experience")
    smaller = replace(fragment, replicas=after) if fragment.processes is None else replace(fragment, processes=after)
    fragments = (*policy.fragments[:index], smaller, *policy.fragments[index + 1 :])
    cuts = dict(policy.cuts)
    if cut.mode == "first" and "act" in fragment.names:
        cuts["experience"] = replace(cut, first=_first(cut.first, before, after))
    return replace(policy, fragments=fragments, cuts=cuts)


def _first(first: int, before: int, after: int) -> int:
    """Actors that an update waits for: the same fraction of all, where that is a whole number."""
    scaled = Fraction(first * after, before)
    return scaled.numerator if scaled.denominator == 1 else min(first, after)


def same_steps(updates: int, before: Plan, after: Plan, done: int = 0) -> int:
    """Updates of a whole run, for the same number of steps, if its plan changes after `done` updates."""
    return done + math.ceil((updates - done) * before.envs_per_update / after.envs_per_update)


def losses(before: Plan, after: Plan) -> str:
    """The replicas that are left where `after` has fewer than `before`: "2 of 3 env+act"."""
    pairs = zip(before.fragments, after.fragments, strict=True)
    return ", ".join(f"{b.replicas} of {a.replicas} {a.title}" for a, b in pairs if b.replicas < a.replicas)
