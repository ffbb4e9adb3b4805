"""The supervisor: one thread watches the processes of a run, notices deaths and restarts what can be restarted."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tessera.channels.control_words import IDLE, STARTING, STATES, WAITING, Control
from tessera.channels.link import GONE
from tessera.channels.packing import Arrays
from tessera.engines.base import Abandoned, Interrupted, ReplicaEvent, ReplicaStatus, RestartsSpent
from tessera.engines.driver.report_log import ReportLog
from tessera.engines.replica.job import Job
from tessera.errors import RunFailed, TesseraError
from tessera.graph.plan import Plan

FUTILE_RESTARTS = 3
"""Deaths in a row of a replica that got nothing done in between, after which it is not started again."""
POLL_SECONDS = 0.2
SLOW_START_SECONDS = 30.0
"""After how long it is said that a replica still starts."""
SLOW_ANSWER_SECONDS = 10.0
"""After how long it is said which replicas have not answered a request, such as that for a checkpoint."""
CLOSE_SECONDS = 3.0
"""How long processes may take to end when they are asked to."""


Answer = tuple[dict[str, Any], Arrays]
"""What a replica answers to a request."""


class ProcessHandle(Protocol):
    """A process that is, or will be, a replica: what the driver can do with it."""

    @property
    def pid(self) -> int:
        """Process id."""

    @property
    def node(self) -> str:
        """The node of the cluster that it is on; empty for this machine."""

    def alive(self) -> bool:
        """Whether it runs."""

    def send(self, command: dict[str, Any], arrays: Arrays | None = None) -> None:
        """Send a command."""

    def received(self) -> Iterator[tuple[dict[str, Any], Arrays]]:
        """Messages since this was last asked."""

    def exit_reason(self) -> tuple[str, bool]:
        """How it died, and whether it ended on its own."""

    def terminate(self) -> None:
        """End it now; messages that it sent before can still be received."""

    def kill(self) -> None:
        """End it and free all that it holds."""

    def release(self) -> None:
        """Give it back once it has finished its job."""


class Launcher(Protocol):
    """Where processes come from."""

    def start(self, job: Job) -> ProcessHandle:
        """A process with a job."""

    def wait(self, handles: list[Any], seconds: float) -> None:
        """Wait until one of them has sent a message or has died, or the seconds are over."""

    def wake(self, place: int) -> None:
        """Make the replica of a place read its control words."""


@dataclass
class DeathCounts:
    """Deaths of one run, across all supervisors that it has."""

    of_place: list[int]
    """How often the replica of each place died."""
    futile: list[int]
    """How many of these in a row came before the replica got anything done."""
    stalls: int = 0
    """How often all replicas waited for each other."""

    @classmethod
    def none(cls, places: int) -> DeathCounts:
        """No deaths yet."""
        return cls([0] * places, [0] * places)


class Supervisor:
    """One process for each place of a plan.

    Its thread receives messages and handles deaths; the driver's thread sends commands and waits. What both use is
    guarded by one condition.
    """

    def __init__(
        self,
        plan: Plan,
        jobs: list[Job],
        controls: list[Control],
        launcher: Launcher,
        report_log: ReportLog,
        *,
        timeout: float,
        start_timeout: float,
        restarts: int,
        note: Callable[[str], None],
        on_event: Callable[[ReplicaEvent], None],
        deaths: DeathCounts,
    ) -> None:
        """A replica may be silent for `timeout` seconds, or `start_timeout` while it starts or compiles.

        It may be restarted `restarts` times; `note` informs the user, and `on_event` whoever shows the replicas.
        """
        self.plan, self.jobs, self.controls, self.launcher, self.report_log = plan, jobs, controls, launcher, report_log
        self.timeout, self.start_timeout, self.budget, self.note = timeout, start_timeout, restarts, note
        self._on_event = on_event
        self.titles = [title for *_, title in plan.places]
        self.started = [False] * len(jobs)
        self.restarted = 0
        """Replicas that died since this was last set to 0."""
        self.lost_rows = 0
        """Rows of experience that were lost with them, since this was last set to 0."""
        self._deaths = deaths
        self._done_at_start = [0] * len(jobs)
        """Updates that each place had made when its process was started."""
        self._starting_since: dict[int, float] = {}
        """Since when each place that starts or compiles has got nothing done, by the monotonic clock."""
        self._called_slow: set[int] = set()
        """Places of which it was said that they still start."""
        self._busy_seconds = 0.0
        """Seconds in which this thread handled deaths, and heard nothing of others."""
        self._last_progress: list[tuple[int, float]] = [(0, 0.0)] * len(jobs)
        """When each place was last known to finish anything, and `_busy_seconds` as that was noted."""
        self._handles: list[ProcessHandle | None] = [None] * len(jobs)
        self._finished: set[int] = set()
        self._answers: dict[int, Answer] = {}
        self._requests: dict[int, dict[str, Any]] = {}
        """Commands that were not answered yet, by place: a successor gets its predecessor's again."""
        self._awaiting_state: int | None = None
        """Place of the mirrored replica that waits for the state of a peer."""
        self._last_words: dict[int, dict[str, Any]] = {}
        """What a process sent before it died."""
        self._shown: set[str] = set()
        """Errors whose traceback was shown."""
        self._failure: BaseException | None = None
        self._waiting_since = math.inf
        """Since when the driver waits for replicas."""
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
        handle = self._handles[place]
        return handle is not None and handle.alive()

    def processes(self) -> dict[str, int]:
        """Title -> process id of all that run."""
        handles = zip(self.titles, self._handles, strict=True)
        return {title: handle.pid for title, handle in handles if handle is not None and handle.pid}

    def status(self, base: int) -> list[ReplicaStatus]:
        """What every replica is doing, of a run that began after `base` updates; any thread may ask."""
        return [self._status_of(place, base) for place in range(len(self.jobs))]

    def _status_of(self, place: int, base: int) -> ReplicaStatus:
        control, handle, died = self.controls[place], self._handles[place], self._deaths.of_place[place]
        state, stream = STATES[control.state], ""
        if handle is None and not self._closing:
            state = "dead"
        elif state == "starting" and died and control.done == self._done_at_start[place]:
            state = "restarting"
        elif state == "waiting":
            stream = self.plan.channels[control.channel].stream
        return ReplicaStatus(
            place, self.titles[place], state, base + control.done, stream, bool(stream) and control.sending, died,
            0 if handle is None else handle.pid, "" if handle is None else handle.node,
        )  # fmt: skip

    def send(self, place: int, command: dict[str, Any], arrays: Arrays | None = None) -> None:
        """Send a command."""
        handle = self._handles[place]
        if handle is not None:
            handle.send(command, arrays)
        self.launcher.wake(place)

    def send_all(self, command: dict[str, Any]) -> None:
        """Send a command to every replica."""
        for k in range(len(self.jobs)):
            self.send(k, command)

    def request(
        self, places: Iterable[int], command: dict[str, Any], arrays: Arrays | None = None
    ) -> dict[int, Answer]:
        """Send a command and wait for every answer; what makes that impossible is raised."""
        wanted = list(places)
        self._send_request(wanted, command, arrays)
        with self._naming_the_silent(wanted):
            self.wait_for(lambda: all(k in self._answers for k in wanted))
        self.raise_failure()
        return dict(self._answers)

    @contextmanager
    def _naming_the_silent(self, wanted: list[int]) -> Iterator[None]:
        """Within this block, say who does not answer once that takes long."""

        def say() -> None:
            late = [self.titles[k] for k in wanted if k not in self._answers]
            if late:
                self.note(
                    f"the run has waited {SLOW_ANSWER_SECONDS:.0f} s for an answer of {', '.join(late[:3])}"
                    f"{f' and {len(late) - 3} more' if len(late) > 3 else ''}; a replica that makes no progress for "
                    f"{self.timeout:.0f} s is started again (--timeout)"
                )

        timer = threading.Timer(SLOW_ANSWER_SECONDS, say)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def request_from_living(self, places: Iterable[int], command: dict[str, Any]) -> dict[int, Answer]:
        """Send a command to those that are left after a failure; the answers that came in time."""
        living = [k for k in places if self.alive(k)]
        self._send_request(living, command)
        end = time.monotonic() + self.timeout
        with self._changed:
            while not all(k in self._answers or not self.alive(k) for k in living) and time.monotonic() < end:
                self._changed.wait(POLL_SECONDS)
        return dict(self._answers)

    def _send_request(self, places: list[int], command: dict[str, Any], arrays: Arrays | None = None) -> None:
        with self._changed:
            self._answers.clear()
            self._requests = dict.fromkeys(places, command)
        for k in places:
            self.send(k, command, arrays)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds or something went wrong."""
        with self._changed:
            self._waiting_since = time.monotonic()
            while not condition() and self._failure is None:
                self._changed.wait(0.5)
            self._waiting_since = math.inf

    def abandon(self) -> None:
        """Have the driver's thread give up waiting."""
        self._fail(Abandoned())

    def raise_failure(self) -> None:
        """Raise what went wrong, if anything did."""
        if self._failure is not None:
            raise self._failure

    def close(self, quickly: bool = False) -> None:
        """Ask every process to end, and kill those that do not."""
        with self._changed:
            self._closing = True
            self._close_by = time.monotonic() + (0.0 if quickly else CLOSE_SECONDS)
        for k, control in enumerate(self.controls):
            control.stop = True
            self.launcher.wake(k)
        if self._thread.is_alive():
            self._thread.join()
        for k, handle in enumerate(self._handles):
            if handle is None:
                continue
            if k in self._finished:
                handle.release()
            else:
                handle.kill()
        self._handles = [None] * len(self.jobs)

    def _start_process(self, place: int) -> None:
        job = self.jobs[place]
        self.controls[place].begin()
        self._done_at_start[place] = self.controls[place].done
        self._starting_since.pop(place, None)
        self._called_slow.discard(place)
        handle = self.launcher.start(job)
        with self._changed:  # a request from here on reaches the new process
            self._handles[place] = handle
            request = self._requests.get(place)
        if request is not None:
            self.send(place, request)

    # The supervisor's thread.

    def _watch(self) -> None:
        """Receive messages and handle deaths until the supervisor is closed."""
        while True:
            handles = {k: h for k, h in enumerate(self._handles) if h is not None and k not in self._finished}
            try:
                self.launcher.wait(list(handles.values()), POLL_SECONDS)
                for k, handle in handles.items():
                    self._receive(k, handle)
                    if self.controls[k].last_progress != self._last_progress[k][0]:
                        self._last_progress[k] = (self.controls[k].last_progress, self._busy_seconds)
                    if not handle.alive() and not self._closing and self._failure is None:
                        self._receive(k, handle)
                        begun = time.monotonic()
                        self._handle_death(k, handle)
                        self._busy_seconds += time.monotonic() - begun
                self._end_hung(handles)
                self._end_stall()
            except BaseException as error:
                self._fail(error)
            with self._changed:
                self._changed.notify_all()
                over = all(k in self._finished or not handle.alive() for k, handle in handles.items())
                if self._closing and (over or self._failure is not None or time.monotonic() > self._close_by):
                    return

    def _receive(self, place: int, handle: ProcessHandle) -> None:
        for meta, arrays in handle.received():
            self._handle_message(place, meta, arrays)

    def _handle_message(self, place: int, meta: dict[str, Any], arrays: Arrays) -> None:
        match kind := meta.pop("kind"):
            case "report":
                self.report_log.note(place, meta, arrays)
            case "snapshot" | "filled":
                if self._requests.pop(place, None) is not None:
                    self._answers[place] = meta, arrays
            case "peer_state":
                successor, self._awaiting_state = self._awaiting_state, None
                if successor is not None and self.jobs[successor].number == meta["number"]:
                    self.send(successor, {"do": "adopt_state"}, arrays)
            case "started":
                self.started[place] = True
            case "ready" if self.jobs[place].life:
                self._on_event(ReplicaEvent("restart", place, f"{self.titles[place]} takes part again"))
            case "finished":
                self._finished.add(place)
            case "error" | "refused":
                self._last_words[place] = {"kind": kind, **meta}

    def _end_hung(self, handles: dict[int, ProcessHandle]) -> None:
        for k, handle in handles.items():
            silent = self._seconds_without_progress(k)
            if self.controls[k].state == STARTING or not self.started[k] or not self.controls[k].last_progress:
                self._end_hung_start(k, handle, silent)
                continue
            self._starting_since.pop(k, None)
            if silent > self.timeout and handle.alive():
                self._last_words[k] = {"kind": "hung", "text": f"no progress for {silent:.0f} s"}
                handle.terminate()

    def _seconds_without_progress(self, place: int) -> float:
        """Seconds since a replica last finished anything, 0 before the first time.

        Those in which this thread did not listen are left out: the replica may have finished much meanwhile.
        """
        control, (last, busy) = self.controls[place], self._last_progress[place]
        unheard = self._busy_seconds - busy if control.last_progress == last else 0.0
        return max(0.0, control.seconds_since_progress - unheard)

    def _end_hung_start(self, place: int, handle: ProcessHandle, silent: float) -> None:
        """End a process that starts or compiles for too long; say so once it takes long."""
        now = time.monotonic()
        since = self._starting_since.setdefault(place, now)
        if silent:  # it has got something done since, and compiles the next program
            since = self._starting_since[place] = max(since, now - silent)
        seconds = now - since
        if seconds > self.start_timeout and handle.alive():
            text = f"it was not ready after {seconds:.0f} s, see --start-timeout"
            self._last_words[place] = {"kind": "hung", "text": text, "futile": True}
            handle.terminate()
        elif seconds > SLOW_START_SECONDS and place not in self._called_slow:
            self._note_slow_start(seconds)

    def _note_slow_start(self, seconds: float) -> None:
        """Say once which replicas take long to start: mostly several do so together."""
        slow = [place for place in self._starting_since if place not in self._called_slow]
        self._called_slow.update(slow)
        more = f" and {len(slow) - 1} more" if len(slow) > 1 else ""
        self.note(
            f"replica {self.titles[slow[0]]}{more} has been starting for {seconds:.0f} s: it imports, makes its "
            f"environments or compiles; after {self.start_timeout:.0f} s it is started again (--start-timeout)"
        )

    def _end_stall(self) -> None:
        """If all replicas wait for each other, none hangs and nothing will ever come: the run goes back."""
        if self._failure is not None or any(c.state not in (WAITING, IDLE) for c in self.controls):
            return
        silent = min(time.monotonic() - self._waiting_since, *(c.seconds_since_message for c in self.controls))
        if silent > self.timeout:
            self.restarted += 1
            self._deaths.stalls += 1
            if self._deaths.stalls > self.budget:
                raise RestartsSpent(f"all replicas waited for each other {self._deaths.stalls} times: see --restarts")
            self.note(
                f"all replicas have waited for each other for {silent:.0f} s: the run goes back to its checkpoint"
            )
            raise Interrupted("all replicas waited for each other")

    def _handle_death(self, place: int, handle: ProcessHandle) -> None:
        """Say that a process died, and start another in its place if that can be done."""
        self._handles[place] = None
        how, on_its_own = handle.exit_reason()
        handle.kill()
        last_words = self._last_words.pop(place, {})
        reason = last_words.get("text") or how
        if last_words.get("kind") == "refused":
            raise (TesseraError if last_words["code"] == 2 else RunFailed)(last_words["text"])
        self._on_event(ReplicaEvent("death", place, f"{self.titles[place]} died ({reason})"))
        self._show_traceback(last_words)
        self._check_budget(place, on_its_own or bool(last_words.get("futile")), reason)
        self.restarted += 1
        peer = self._peer_with_state(place) if self.plan.mirrored else None
        if not (self.started[place] and (peer is not None or replaceable(self.plan, self.jobs[place].fragment))):
            self.note(f"replica {self.titles[place]} died ({reason}): the run goes back to its last checkpoint")
            raise Interrupted(reason)
        self.note(f"replica {self.titles[place]} died ({reason}): started again")
        self.lost_rows += self.controls[place].unsent
        self.controls[place].unsent = 0
        self._restart(place, peer)

    def _show_traceback(self, last_words: dict[str, Any]) -> None:
        """Show a traceback, once for each error."""
        trace = last_words.get("trace", "").rstrip()
        if trace and trace not in self._shown:
            self._shown.add(trace)
            self.note(trace)

    def _check_budget(self, place: int, on_its_own: bool, reason: str) -> None:
        """Count a death; raise if the replica died too often to be started again."""
        deaths = self._deaths
        deaths.of_place[place] += 1
        # a replica that was killed may do better next time; one that fails on its own, at once and again, will not
        futile = on_its_own and self.controls[place].done == self._done_at_start[place]
        deaths.futile[place] = deaths.futile[place] + 1 if futile else 0
        count = deaths.of_place[place]
        if count > self.budget or deaths.futile[place] >= FUTILE_RESTARTS:
            raise RestartsSpent(
                f"replica {self.titles[place]} died {count} time{'s' if count > 1 else ''} ({reason}) and is not "
                f"started again: {'it got nothing done in between' if count <= self.budget else 'see --restarts'}"
            )

    def _restart(self, place: int, peer: int | None) -> None:
        """Start a successor; a mirrored one gets the state of a peer."""
        self.jobs[place] = replace(self.jobs[place], is_successor=True, life=self.jobs[place].life + 1)
        if self.plan.fragments[self.jobs[place].fragment].operators == ("store",):
            self.controls[place].presence = GONE
        try:
            self._start_process(place)
        except Interrupted as error:
            self._count_other_deaths(place)
            self.note(f"replica {self.titles[place]}: {error}; the run goes back to its last checkpoint")
            raise
        if peer is not None:
            self._awaiting_state = place
            self.send(peer, {"do": "share_state", "number": self.jobs[place].number})

    def _count_other_deaths(self, place: int) -> None:
        """Count the replicas that died besides the one of `place`: nobody handles them any more."""
        for k, handle in enumerate(self._handles):
            if handle is not None and k != place:
                self._receive(k, handle)
                if not handle.alive():
                    self._deaths.of_place[k] += 1
                    self.restarted += 1

    def _peer_with_state(self, place: int) -> int | None:
        """A peer that can give a successor its state; None while another successor still waits for one."""
        if self._awaiting_state is not None:
            return None
        return next((k for k in range(len(self.jobs)) if k != place and self.started[k] and self.alive(k)), None)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._changed.notify_all()


def replaceable(plan: Plan, fragment: int) -> bool:
    """Whether a successor can take the place of one replica, since it holds nothing that others need back."""
    operators = plan.fragments[fragment].operators
    if operators in (("env",), ("env", "act"), ("apply",)) or (operators == ("store",) and plan.refills):
        return True
    if plan.exchange == "shared":
        return True
    return plan.solo and "grad" in operators and "apply" not in operators
