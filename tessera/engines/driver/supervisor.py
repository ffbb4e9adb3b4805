"""The processes of a run, watched by one thread: deaths are noticed, logged, and made good where they can be."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Protocol

from tessera.channels.control import IDLE, STARTING, WAITING, Control
from tessera.channels.link import GONE
from tessera.channels.packing import Arrays
from tessera.engines.base import Interrupted, RestartsSpent
from tessera.engines.driver.report_log import ReportLog
from tessera.engines.replica.job import Job
from tessera.errors import RunFailed, TesseraError
from tessera.graph.plan import Plan

PATIENCE = 3
"""Deaths in a row of a replica that got nothing done, after which starting it again is no use."""
LOOK_SECONDS = 0.2
GOODBYE_SECONDS = 3.0


class ProcessHandle(Protocol):
    """A process that is, or will be, a replica: what the driver can do with it."""

    @property
    def pid(self) -> int:
        """Its number."""

    def alive(self) -> bool:
        """Whether it lives."""

    def send(self, command: dict[str, Any], arrays: Arrays | None = None) -> None:
        """Tell it something."""

    def received(self) -> Iterator[tuple[dict[str, Any], Arrays]]:
        """What it has said since this was last asked."""

    def exit_reason(self) -> tuple[str, bool]:
        """How it died, and whether by its own doing."""

    def terminate(self) -> None:
        """End it now; what it said can still be heard."""

    def kill(self) -> None:
        """End it, and be done with it."""

    def release(self) -> None:
        """Let it go, once it has finished."""


class Launcher(Protocol):
    """Where processes come from."""

    def start(self, job: Job) -> ProcessHandle:
        """A process with a job."""

    def wait(self, hands: list[Any], seconds: float) -> None:
        """Wait until one of them has said something or has died, or the seconds are over."""

    def ring(self, place: int) -> None:
        """Make the replica of a place look at its words."""


class Supervisor:
    """One process for each place of a plan."""

    def __init__(
        self,
        plan: Plan,
        jobs: list[Job],
        controls: list[Control],
        launcher: Launcher,
        report_log: ReportLog,
        *,
        timeout: float,
        restarts: int,
        note: Callable[[str], None],
        deaths: tuple[list[int], list[int], list[int]],
    ) -> None:
        """`deaths` are counted across crews of one run: how many of each place, how many of them in a row in vain, and
        how often nobody went on."""
        self.plan, self.jobs, self.controls, self.launcher, self.report_log = plan, jobs, controls, launcher, report_log
        self.timeout, self.budget, self.note = timeout, restarts, note
        self.titles = [title for *_, title in plan.places]
        self.started = [False] * len(jobs)
        self.restarted = 0
        self._deaths, self._in_vain, self._stalls = deaths
        self._done_then = [0] * len(jobs)
        self._members: list[ProcessHandle | None] = [None] * len(jobs)
        self._finished: set[int] = set()
        self._answers: dict[int, Arrays] = {}
        self._asked: dict[int, dict[str, Any]] = {}
        """What was asked and not answered yet: who takes a dead one's place is asked again."""
        self._successor: int | None = None
        """Who waits for what mirrored replicas have learned."""
        self._words: dict[int, dict[str, Any]] = {}
        """What a process said before it died."""
        self._told: set[str] = set()
        self._failure: BaseException | None = None
        self._awaited = math.inf
        """Since when the driver waits for the supervisor."""
        self._closing = False
        self._close_by = math.inf
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._watch, name="tessera-supervisor", daemon=True)

    def start_all(self) -> None:
        """Start every process, and begin to watch."""
        for k in range(len(self.jobs)):
            self._start_process(k)
        self._thread.start()

    def rebase(self, base: int) -> None:
        """Note that the run begins after `base` updates."""
        self.jobs[:] = [replace(job, base=base) for job in self.jobs]

    def alive(self, place: int) -> bool:
        """Whether a place has a living process."""
        member = self._members[place]
        return member is not None and member.alive()

    def processes(self) -> dict[str, int]:
        """Titles and process numbers of all that live."""
        members = zip(self.titles, self._members, strict=True)
        return {title: m.pid for title, m in members if m is not None and m.pid}

    def send(self, place: int, command: dict[str, Any], arrays: Arrays | None = None) -> None:
        """Send a command."""
        member = self._members[place]
        if member is not None:
            member.send(command, arrays)
        self.launcher.ring(place)

    def send_all(self, command: dict[str, Any]) -> None:
        """Send a command to everybody."""
        for k in range(len(self.jobs)):
            self.send(k, command)

    def request(self, places: Iterable[int], command: dict[str, Any]) -> dict[int, Arrays]:
        """Send a command and wait for every answer; what makes that impossible is raised."""
        wanted = list(places)
        self._put(wanted, command)
        self.wait_for(lambda: all(k in self._answers for k in wanted))
        self.raise_failure()
        return dict(self._answers)

    def request_from_living(self, command: dict[str, Any]) -> dict[int, Arrays]:
        """Send a command to those that are left after a failure; answers of those that gave one in time."""
        living = [k for k in range(len(self.jobs)) if self.alive(k)]
        self._put(living, command)
        end = time.monotonic() + self.timeout
        with self._changed:
            while not all(k in self._answers or not self.alive(k) for k in living) and time.monotonic() < end:
                self._changed.wait(LOOK_SECONDS)
        return dict(self._answers)

    def _put(self, places: list[int], command: dict[str, Any]) -> None:
        with self._changed:
            self._answers.clear()
            self._asked = dict.fromkeys(places, command)
        for k in places:
            self.send(k, command)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds or something went wrong."""
        with self._changed:
            self._awaited = time.monotonic()
            while not condition() and self._failure is None:
                self._changed.wait(0.5)
            self._awaited = math.inf

    def raise_failure(self) -> None:
        """Raise what went wrong, if anything did."""
        if self._failure is not None:
            raise self._failure

    def close(self, quickly: bool = False) -> None:
        """Ask every process to end, and end those that do not."""
        with self._changed:
            self._closing = True
            self._close_by = time.monotonic() + (0.0 if quickly else GOODBYE_SECONDS)
        for k, control in enumerate(self.controls):
            control.stop = True
            self.launcher.ring(k)
        if self._thread.is_alive():
            self._thread.join()
        for k, member in enumerate(self._members):
            if member is None:
                continue
            if k in self._finished:
                member.release()
            else:
                member.kill()
        self._members = [None] * len(self.jobs)

    def _start_process(self, place: int) -> None:
        job = self.jobs[place]
        self.controls[place].begin()
        self._done_then[place] = self.controls[place].done
        member = self.launcher.start(job)
        with self._changed:  # what is asked from here on reaches the new one
            self._members[place] = member
            asked = self._asked.get(place)
        if asked is not None:
            self.send(place, asked)

    def _watch(self) -> None:
        """The thread: take in messages and notice deaths until the supervisor is closed."""
        while True:
            members = {k: m for k, m in enumerate(self._members) if m is not None and k not in self._finished}
            try:
                self.launcher.wait(list(members.values()), LOOK_SECONDS)
                for k, m in members.items():
                    self._take_in(k, m)
                    if not m.alive() and not self._closing and self._failure is None:
                        self._take_in(k, m)
                        self._handle_death(k, m)
                self._end_hung(members)
                self._end_stall()
            except BaseException as error:
                self._fail(error)
            with self._changed:
                self._changed.notify_all()
                over = all(k in self._finished or not m.alive() for k, m in members.items())
                if self._closing and (over or self._failure is not None or time.monotonic() > self._close_by):
                    return

    def _take_in(self, place: int, member: ProcessHandle) -> None:
        for meta, arrays in member.received():
            self._note(place, meta, arrays)

    def _note(self, place: int, meta: dict[str, Any], arrays: Arrays) -> None:
        kind = meta.pop("kind")
        if kind == "report":
            self.report_log.note(place, meta, arrays)
        elif kind == "snapshot":
            if self._asked.pop(place, None) is not None:
                self._answers[place] = arrays
        elif kind == "handed":
            successor, self._successor = self._successor, None
            if successor is not None and self.jobs[successor].number == meta["number"]:
                self.send(successor, {"do": "inherit"}, arrays)
        elif kind == "started":
            self.started[place] = True
        elif kind == "finished":
            self._finished.add(place)
        elif kind in ("error", "refused"):
            self._words[place] = {"kind": kind, **meta}

    def _end_hung(self, members: dict[int, ProcessHandle]) -> None:
        for k, m in members.items():
            quiet = self.controls[k].seconds_since_progress
            if self.controls[k].state != STARTING and quiet > self.timeout and m.alive():
                self._words[k] = {"kind": "hung", "text": f"no progress for {quiet:.0f} s"}
                m.terminate()

    def _end_stall(self) -> None:
        """If all wait for each other, nobody is hung and nothing will ever come: the run goes back and tries again."""
        if self._failure is not None or any(c.state not in (WAITING, IDLE) for c in self.controls):
            return
        quiet = min(time.monotonic() - self._awaited, *(c.seconds_since_message for c in self.controls))
        if quiet > self.timeout:
            self.restarted += 1
            self._stalls[0] += 1
            if self._stalls[0] > self.budget:
                raise RestartsSpent(f"all replicas waited for each other {self._stalls[0]} times: see --restarts")
            self.note(f"all replicas have waited for each other for {quiet:.0f} s: the run goes back to its checkpoint")
            raise Interrupted("nobody went on")

    def _handle_death(self, place: int, member: ProcessHandle) -> None:
        """A process is dead: say so, and put another in its place if that can be done."""
        self._members[place] = None
        how, by_itself = member.exit_reason()
        member.kill()
        words = self._words.pop(place, {})
        reason = words.get("text") or how
        if words.get("kind") == "refused":
            raise (TesseraError if words["code"] == 2 else RunFailed)(words["text"])
        if words.get("trace") and words["text"] not in self._told:
            self._told.add(words["text"])
            self.note(words["trace"].rstrip())
        self._deaths[place] += 1
        # who is killed from outside may do better next time; who fails by itself, at once and again, will not
        in_vain = by_itself and self.controls[place].done == self._done_then[place]
        self._in_vain[place] = self._in_vain[place] + 1 if in_vain else 0
        if self._deaths[place] > self.budget or self._in_vain[place] >= PATIENCE:
            times = f"{self._deaths[place]} time{'s' if self._deaths[place] > 1 else ''}"
            raise RestartsSpent(
                f"replica {self.titles[place]} died {times} ({reason}) and is not started again: "
                f"{'it got nothing done in between' if self._deaths[place] <= self.budget else 'see --restarts'}"
            )
        self.restarted += 1
        teacher = self._teacher(place) if self.plan.mirrored else None
        if not (self.started[place] and (teacher is not None or replaceable(self.plan, self.jobs[place].fragment))):
            self.note(f"replica {self.titles[place]} died ({reason}): the run goes back to its last checkpoint")
            raise Interrupted(reason)
        self.note(f"replica {self.titles[place]} died ({reason}): started again")
        self.jobs[place] = replace(self.jobs[place], again=True)
        if self.plan.fragments[self.jobs[place].fragment].operators == ("store",):
            self.controls[place].presence = GONE
        try:
            self._start_process(place)
        except Interrupted as error:
            self._go_back(place, error)
            raise
        if teacher is not None:
            self._successor = place
            self.send(teacher, {"do": "bequeath", "number": self.jobs[place].number})

    def _go_back(self, place: int, error: Interrupted) -> None:
        """A newcomer finds nobody to tell it where to begin: count who died besides, and say what happens."""
        for k, member in enumerate(self._members):
            if member is not None and k != place:
                self._take_in(k, member)
                if not member.alive():
                    self._deaths[k] += 1
                    self.restarted += 1
        self.note(f"replica {self.titles[place]}: {error}; the run goes back to its last checkpoint")

    def _teacher(self, place: int) -> int | None:
        """Who can tell a newcomer what all have learned; nobody, if another newcomer still waits to be told."""
        if self._successor is not None:
            return None
        return next((k for k in range(len(self.jobs)) if k != place and self.started[k] and self.alive(k)), None)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._changed.notify_all()


def replaceable(plan: Plan, fragment: int) -> bool:
    """Whether a newcomer can take the place of one replica: it holds nothing that others need back."""
    operators = plan.fragments[fragment].operators
    if operators in (("env",), ("env", "act"), ("apply",)) or (operators == ("store",) and plan.refills):
        return True
    if plan.exchange == "shared":
        return True
    return plan.solo and "grad" in operators and "apply" not in operators
