"""Processes that probe plans: they compile side by side, and stop while one of them is timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from tessera.engines.driver.pool import assign, start_process, wait_for_any
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.profiling.probe import Probed, ProbeJob, probed_from_json
from tessera.support.machine import cores

LOOK_SECONDS = 0.2
PATIENCE = 0.35
"""Share of the time after which, if nobody is ready, all but the first are stopped until it was timed."""


class Prober:
    """A process with a job, set up as one of a replica would be."""

    def __init__(self, job: ProbeJob) -> None:
        self.left = list(job.plans)
        self.ready = False
        """Whether it waits for its turn."""
        self.timing = False
        self.process = start_process(replace(job.plans[0].fragments[0], threads=job.threads, devices=1, model=1), ())
        assign(self.process, job)

    def take_turn(self, others: Iterable[Prober]) -> None:
        """Have it time the plan that it is at, while others, which compile, are stopped: they would disturb it."""
        for other in others:
            other.process.pause()
        self.ready, self.timing = False, True
        self.process.send({"do": "time"})

    def end_turn(self, others: Iterable[Prober]) -> None:
        """Let the others go on."""
        self.timing = False
        for other in others:
            other.process.resume()

    def received(self) -> Iterator[tuple[Plan, Probed]]:
        """Plans that it has probed since the last call."""
        alive = self.process.alive()
        for meta, _ in self.process.received():
            if meta["kind"] == "ready":
                self.ready = True
            elif meta["kind"] == "probed":
                yield self.left.pop(0), probed_from_json(meta["found"])
            elif meta["kind"] in ("error", "refused"):
                raise TesseraError(f"no profile can be taken: {meta['text']}")
        if not alive and self.left:
            ended = self.process.last_words()
            raise TesseraError(f"no profile can be taken: the process that tried {in_words(self.left[0])} {ended}")


def probe_in_turns(
    jobs: Sequence[ProbeJob], end: float, last: float, tell: Callable[[str], None]
) -> Iterator[tuple[Plan, Probed]]:
    """Probe the plans of all jobs until `end`, or until `last` if nothing is known by then: each job in a process.

    They compile side by side, and each plan is timed alone. Where even the first update takes long, and there are more
    processes than cores, the first one has the machine for itself, so that there is something at all.
    """
    probers: list[Prober] = []
    begun, known = time.monotonic(), False
    alone_from = begun + PATIENCE * (end - begun) if len(jobs) > cores() else last
    try:
        for job in jobs:
            probers.append(Prober(job))
        while (left := [p for p in probers if p.left]) and time.monotonic() < (end if known else last):
            now = next((p for p in left if p.timing), None) or next((p for p in left if p.ready), None)
            others = [p for p in left if p is not now]
            if now is not None and not now.timing:
                now.take_turn(others)
            elif now is None and not known and time.monotonic() > alone_from:
                alone_from = last
                for other in left[1:]:
                    other.process.pause()
            tell(in_words(now.left[0]) if now is not None else f"{len(left)} plans are compiled")
            wait_for_any([p.process for p in left], LOOK_SECONDS)
            for prober in left:
                for found in prober.received():
                    prober.end_turn(others)
                    known = True
                    yield found
                if not prober.left:
                    prober.process.terminate()
    finally:
        for prober in probers:
            prober.process.kill()


def in_words(plan: Plan) -> str:
    """Its fragments."""
    return " | ".join(f"{f.title}{f' x {f.replicas}' if f.replicas > 1 else ''}" for f in plan.fragments)
