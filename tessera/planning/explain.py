"""Why a plan is faster than another, in words."""

from __future__ import annotations

from tessera.planning.ranking import Candidate, Gain, Ranking
from tessera.planning.workload import Workload

MUCH = 0.15
"""Share of its time that a plan may spend on something before that is why it is slow."""
CLOSE = 0.01
"""Share by which predictions may differ without a meaning."""


def why_slower(workload: Workload, candidate: Candidate, best: Candidate) -> str:
    """What a plan loses its time with, in one clause."""
    if abs(candidate.steps_per_second / best.steps_per_second - 1) < CLOSE:
        larger = len(candidate.plan.places) > len(best.plan.places)
        return f"as fast, as far as can be predicted{', but in more processes' if larger else ''}"
    seconds = workload.steps_per_round / candidate.steps_per_second
    share, share_of_best = (
        c.bound.message_seconds * c.steps_per_second / workload.steps_per_round for c in (candidate, best)
    )
    if share > MUCH and share > share_of_best + MUCH / 2:
        return f"{share:.0%} of its time goes into messages, above all {_streams(candidate)}"
    if candidate.bound.device_seconds > (1 - MUCH) * seconds:
        return f"{_count(workload.machine.accelerators, 'accelerator')} has no time left"
    if candidate.bound.core_seconds > (1 - MUCH) * seconds:
        more = candidate.bound.core_seconds / best.bound.core_seconds - 1 if best.bound.core_seconds else 0.0
        extra = f", with {more:.0%} more work than the best has for them" if more > CLOSE else ""
        return f"it keeps {_count(workload.machine.cores, 'core')} busy{extra}"
    return _waiting(candidate)


def _waiting(candidate: Candidate) -> str:
    """Which fragment waits for which."""
    busy, busiest = candidate.prediction.busy, candidate.prediction.bottleneck
    idle = min(busy, key=lambda title: busy[title])
    if idle == busiest:
        waits = f", and waits {1 - busy[idle]:.0%} of the time for its peers" if busy[idle] < 1 - MUCH else ""
        return f"{busiest} does everything, one after the other{waits}"
    waits = f"{idle} waits {1 - busy[idle]:.0%} of the time"
    if busy[busiest] < 1 - MUCH:
        return f"{waits} and {busiest} {1 - busy[busiest]:.0%}, since they take turns"
    return f"{waits} for {busiest}, which works {busy[busiest]:.0%}"


def why_best(ranking: Ranking) -> str:
    """One clause on what the choice rests on."""
    best = ranking.best
    rest = f"predicted {best.steps_per_second:,.0f} steps/s"
    second = next((c for c in ranking.candidates[1:]), None)
    if second is None:
        others = "can be predicted here: `tessera plan` says why" if ranking.refused else "is possible here"
        return f"{rest}, and no other plan {others}"
    if second.steps_per_second > best.steps_per_second * (1 - CLOSE):
        return f"{rest}, about as many as {second.policy.name}, which is not simpler"
    return f"{rest}, against {second.steps_per_second:,.0f} of the next best, {second.policy.name}"


def explanation(ranking: Ranking) -> str:
    """One paragraph: the best plan, what holds it up, and what more of it would bring."""
    best, busy = ranking.best, ranking.best.prediction.busy
    sentences = [
        f"{best.policy.name} is the best of {_count(ranking.bounded, 'colouring')}; simulated: "
        f"{len(ranking.candidates) + len(ranking.other_recipes)}. It is predicted to make {_speed(best)}."
    ]
    bottleneck = best.prediction.bottleneck
    waiting = [
        f"{title} waits {1 - share:.0%}" for title, share in busy.items() if share < 0.99 and title != bottleneck
    ]
    rest = f"; {', '.join(waiting)}" if waiting else ""
    sentences.append(f"Its bottleneck is {bottleneck}, which works {busy[bottleneck]:.0%} of the time{rest}.")
    if ranking.objective.name == "cost":
        sentences.append(f"A million steps cost {ranking.objective.value(best.prediction):,.3g} on the nodes it uses.")
    if ranking.gains:
        sentences.append(f"{_gains(ranking)}.")
    if ranking.other_recipes:
        other = ranking.other_recipes[0]
        change = other.steps_per_second / best.steps_per_second - 1
        sentences.append(
            f"Without waiting, {other.policy.name} would make {change:+.0%} steps/s, with experience that is "
            f"{other.lag:.1f} updates old: another recipe, which may learn less from a step."
        )
    return " ".join(sentences)


def _gains(ranking: Ranking) -> str:
    parts = [f"one more {gain.what} {_change(gain, ranking.best)}" for gain in ranking.gains]
    text = ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
    return text[0].upper() + text[1:]


def _change(gain: Gain, best: Candidate) -> str:
    change = gain.steps_per_second / best.steps_per_second - 1
    return "would bring nothing" if abs(change) < 0.005 else f"would bring {change:+.0%}"


def _speed(candidate: Candidate) -> str:
    speed = f"{candidate.steps_per_second:,.0f} steps/s"
    if candidate.high - candidate.low < 0.01 * candidate.steps_per_second:
        return speed
    return f"{speed} ({candidate.low:,.0f} to {candidate.high:,.0f})"


def _streams(candidate: Candidate) -> str:
    flows = candidate.prediction.flows
    names = sorted(flows, key=lambda name: -flows[name].messages)
    return " and ".join(names[:2])


def _count(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"
