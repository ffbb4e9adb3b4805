"""Processes that probe plans: where there are cores for it they compile side by side, and then take turns in timing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tessera.engines.driver.pool import assign, start_process, wait_for_any
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.profiling.probe import Probed, ProbeJob, probed_from_json

LOOK_SECONDS = 0.2
PATIENCE = 0.7
"""Share of the time after which those that are ready are timed, though others still compile."""


class Prober:
    """A process with a job, set up as one of a replica would be."""

    def __init__(self, job: ProbeJob) -> None:
        self.left = list(job.plans)
        self.ready = False
        """Whether it waits for its turn."""
        self.timing = False
        self.idle = False
        """Whether it waits to begin with its next plan: while others are timed, nobody compiles."""
        self.process = start_process(replace(job.plans[0].fragments[0], threads=job.threads, devices=1, model=1), ())
        assign(self.process, job)

    @property
    def compiles(self) -> bool:
        """Whether it is busy with what must not be timed, and disturbs others that are."""
        return bool(self.left) and not (self.ready or self.timing or self.idle)

    def take_turn(self) -> None:
        """Have it time the plan that it is at."""
        self.ready, self.timing = False, True
        self.process.send({"do": "time"})

    def go_on(self) -> None:
        """Have it begin with its next plan."""
        self.idle = False
        self.process.send({"do": "next"})

    def received(self) -> Iterator[tuple[Plan, Probed]]:
        """Plans that it has probed since the last call."""
        alive = self.process.alive()
        for meta, _ in self.process.received():
            if meta["kind"] == "ready":
                self.ready = True
            elif meta["kind"] == "probed":
                self.timing, self.idle = False, True
                yield self.left.pop(0), probed_from_json(meta["found"])
            elif meta["kind"] in ("error", "refused"):
                raise TesseraError(f"no profile can be taken: {meta['text']}")
        if not alive and self.left:
            ended = self.process.last_words()
            raise TesseraError(f"no profile can be taken: the process that tried {in_words(self.left[0])} {ended}")


def probe_in_turns(jobs: Sequence[ProbeJob], end: float, tell: Callable[[str], None]) -> Iterator[tuple[Plan, Probed]]:
    """Probe the plans of all jobs until the time is over: each job in a process of its own."""
    patient_until = time.monotonic() + PATIENCE * (end - time.monotonic())
    probers: list[Prober] = []
    try:
        for job in jobs:
            probers.append(Prober(job))
        while (left := [p for p in probers if p.left]) and time.monotonic() < end:
            compiling = [p for p in left if p.compiles]
            let_one_go_on(left, compiling, patient=time.monotonic() < patient_until)
            shown = next((p for p in left if p.timing), left[0])
            tell(f"{len(compiling)} plans are compiled" if len(compiling) > 1 else in_words(shown.left[0]))
            wait_for_any([p.process for p in left], LOOK_SECONDS)
            for prober in left:
                yield from prober.received()
                if not prober.left:
                    prober.process.terminate()
    finally:
        for prober in probers:
            prober.process.kill()


def let_one_go_on(probers: list[Prober], compiling: list[Prober], patient: bool) -> None:
    """Have one of those that are ready be timed, or, when all are, have everybody compile the next."""
    if any(p.timing for p in probers):
        return
    ready = [p for p in probers if p.ready]
    if ready and (not compiling or not patient):
        ready[0].take_turn()
    elif not ready:
        for prober in probers:
            if prober.idle:
                prober.go_on()


def in_words(plan: Plan) -> str:
    """Its fragments."""
    return " | ".join(f"{f.title}{f' x {f.replicas}' if f.replicas > 1 else ''}" for f in plan.fragments)
