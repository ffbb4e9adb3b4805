"""What holds a run up, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.dash.status import LIVE
from tessera.dash.values import number

NOTICEABLE = 0.2
"""Share of the time that is worth a word where a learner waits."""
MUCH = 0.5
"""The same for others, which wait a lot wherever the learner sets the pace."""
ROLES = {
    "env+act": ("actor", "actors"),
    "env": ("environment process", "environment processes"),
    "act": ("inference process", "inference processes"),
    "store": ("replay", "replays"),
    "apply": ("parameter server", "parameter servers"),
}
"""Fragment -> what its replicas are called, one and many."""

ONE_PROGRAM = "Everything runs as one program: nobody waits for anybody."

Row = Mapping[str, Any]


def role(fragment: str, replicas: int) -> str:
    """What the replicas of a fragment are called."""
    operators = fragment.split("+")
    names = ("learner", "learners") if "grad" in operators else (fragment, fragment)
    if "grad" in operators and "env" in operators:
        names = ("worker", "workers")
    return ROLES.get(fragment, names)[replicas != 1]


def verdict(status: Mapping[str, Any] | None, rows: Sequence[Row], state: str, why: str) -> str:
    """One sentence on how a run does."""
    if state == "failed":
        return sentence("The run failed", why)
    waiting = from_status(status) if status and status["waited"] else from_rows(rows)
    if state in LIVE or not state:
        return waiting or (ONE_PROGRAM if is_one_program(rows) else "It is not known yet who waits for whom.")
    ended = {"finished": "The run is finished"}.get(state, "The run was stopped")
    before = f" Before that: {waiting[0].lower()}{waiting[1:]}" if waiting else ""
    return sentence(ended, why) + before


def is_one_program(rows: Sequence[Row]) -> bool:
    """Whether a run has no streams that could be waited for."""
    return bool(rows) and not any(name.startswith("stream/") for name in rows[-1])


def sentence(what: str, why: str) -> str:
    """What happened, and why if that is known."""
    return f"{what}: {why.rstrip('.')}." if why else f"{what}."


def from_status(status: Mapping[str, Any]) -> str:
    """Who waits for what, by what replicas have said."""
    waited = status["waited"]
    learners = {name: share for name, share in waited.items() if "grad" in name.split("+")}
    for candidates, least in ((learners, NOTICEABLE), (waited, MUCH)):
        name = max(candidates, key=candidates.__getitem__, default=None)
        if name is not None and candidates[name] >= least:
            return f"{who_waits(status, name)}{', so the learner sets the pace' if candidates is waited else ''}."
    if not learners:
        return "Nobody waits much."
    name = max(learners, key=learners.__getitem__)
    count = replicas_of(status, name)
    works = "works" if count == 1 else "work"
    return f"The {role(name, count)} {works} {1 - learners[name]:.0%} of the time.".replace("%", " %")


def who_waits(status: Mapping[str, Any], name: str) -> str:
    """The learner waits 62 % of the time for experience."""
    count = replicas_of(status, name)
    streams = status["waited_for"].get(name) or {}
    stream = max(streams, key=streams.__getitem__, default="")
    share = f"{status['waited'][name]:.0%}".replace("%", " %")
    waits = "waits" if count == 1 else "wait"
    return f"The {role(name, count)} {waits} {share} of the time{f' for {stream}' if stream else ''}"


def replicas_of(status: Mapping[str, Any], fragment: str) -> int:
    """How many replicas a fragment has."""
    return sum(replica["fragment"] == fragment for replica in status["replicas"]) or 1


def from_rows(rows: Sequence[Row]) -> str:
    """Which stream is waited for, by the newest rows of metrics; they do not tell at which end."""
    seconds = [x for row in rows if (x := number(row.get("seconds"))) is not None]
    span = seconds[-1] - seconds[0] if len(seconds) > 1 else 0.0
    if span <= 0:
        return ""
    waits: dict[str, float] = {}
    for row in rows[1:]:
        for name, value in row.items():
            begin, _, end = name.rpartition("/")
            if begin.startswith("stream/") and end == "wait_seconds":
                stream = begin.removeprefix("stream/")
                waits[stream] = waits.get(stream, 0.0) + (number(value) or 0.0)
    if not waits:
        return ""
    most = max(waits, key=waits.__getitem__)
    return f"Replicas wait {waits[most] / span:.2f} s for {most} in each second of training, all together."


def hints(status: Mapping[str, Any] | None, rows: Sequence[Row]) -> list[str]:
    """What could be done about it, and what else should be known."""
    found: list[str] = []
    newest = rows[-1] if rows else {}
    if status:
        found += pace_hints(status)
        for replica in status["replicas"]:
            if replica["state"] in ("dead", "restarting"):
                found.append(f"{replica['title']} is {replica['state']}.")
    restarts = number(newest.get("restarts"))
    if restarts:
        lost = number(newest.get("lost_rows"))
        rest = f"; {lost:,.0f} rows of experience were lost with them" if lost else ""
        times = "" if restarts == 1 else f", {restarts:,.0f} times in all"
        found.append(f"A replica died and was started again{times}{rest}.")
    streams = status["streams"] if status else {}
    for name, stream in streams.items():
        if stream["dropped"]:
            found.append(
                f"{stream['dropped']:,} messages of {name} were dropped: they were older than the bound on lag."
            )
    return found[:20]


def lacks_experience(status: Mapping[str, Any]) -> bool:
    """Whether a learner waits noticeably, and for experience most of all."""
    for name, share in status["waited"].items():
        streams = status["waited_for"].get(name) or {}
        if "grad" in name.split("+") and share >= NOTICEABLE and streams:
            return max(streams, key=streams.__getitem__) == "experience"
    return False


def pace_hints(status: Mapping[str, Any]) -> list[str]:
    """What would make the run faster."""
    waited, found = status["waited"], []
    learning = {name: share for name, share in waited.items() if "grad" in name.split("+")}
    if lacks_experience(status):
        found.append("More actors, or more cores for them, would help until the learner is busy.")
    if learning and max(learning.values()) < NOTICEABLE and max(waited.values()) >= MUCH:
        found.append("More actors would bring little: the learner is busy. A larger batch or a faster device may help.")
    return found
