"""The supervisor takes no replica for hung because of what it did not hear itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import tessera
from tessera.channels.control_words import CONTROL_WORDS, RUNNING, Control
from tessera.channels.packing import Arrays
from tessera.engines.base import ignore
from tessera.engines.driver.report_log import ReportLog
from tessera.engines.driver.supervisor import DeathCounts, Supervisor
from tessera.engines.replica.job import Job
from tessera.planning.prepare import prepare_plan

TIMEOUT = 0.5


class Handle:
    """A replica on another machine: its words are as old as its last status, which is read when somebody listens."""

    pid = 1

    def __init__(self, control: Control) -> None:
        self.control, self.living, self.terminated, self.introduced = control, True, False, False

    def alive(self) -> bool:
        return self.living

    def send(self, command: dict[str, Any], arrays: Arrays | None = None) -> None:
        del command, arrays

    def received(self) -> Iterator[tuple[dict[str, Any], Arrays]]:
        if self.living:
            self.control.state = RUNNING
            self.control.set_ages(0.01, 0.01)
            if not self.introduced:
                self.introduced = True
                yield {"kind": "started"}, {}

    def exit_reason(self) -> tuple[str, bool]:
        return "killed", False

    def terminate(self) -> None:
        self.terminated, self.living = True, False

    kill = release = terminate


class SlowLauncher:
    """Takes longer to start a successor than a replica may be silent."""

    def __init__(self, controls: list[Control]) -> None:
        self.controls, self.handles, self.replaced = controls, {}, threading.Event()

    def start(self, job: Job) -> Handle:
        if job.is_successor:
            time.sleep(3 * TIMEOUT)
        self.handles.setdefault(job.place, []).append(Handle(self.controls[job.place]))
        if job.is_successor:
            self.replaced.set()
        return self.handles[job.place][-1]

    def wait(self, handles: list[Any], seconds: float) -> None:
        del handles
        time.sleep(min(seconds, 0.01))

    def wake(self, place: int) -> None:
        del place


def test_a_healthy_replica_is_not_called_hung_while_another_is_replaced():
    algorithm, env, plan = prepare_plan(
        tessera.A2C(widths=(8,)), "gymnax:CartPole-v1", "single_learner_coarse:actors=2,mode=async", envs=16
    )
    jobs = [Job(plan, algorithm, env, i, r, k, 0, 1, False) for k, (i, r, _) in enumerate(plan.places)]
    controls = [Control([0] * CONTROL_WORDS) for _ in jobs]
    launcher = SlowLauncher(controls)
    supervisor = Supervisor(
        plan, jobs, controls, launcher, ReportLog(len(jobs)), timeout=TIMEOUT, start_timeout=60.0, restarts=5,
        note=lambda _: None, on_event=ignore, deaths=DeathCounts.none(len(jobs)),
    )  # fmt: skip
    supervisor.start_all()
    try:
        supervisor.wait_for(lambda: all(supervisor.started))
        launcher.handles[1][0].living = False
        assert launcher.replaced.wait(60)
        rounds = launcher.handles[1][-1]
        supervisor.wait_for(lambda: rounds.introduced)  # the supervisor has listened again
        supervisor.raise_failure()
        assert not launcher.handles[0][0].terminated
        assert supervisor.restarted == 1
    finally:
        supervisor.close(quickly=True)
