"""The driver of engines with a process for every replica, wherever the processes are and whatever links them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax

from tessera.algorithms.contract import Algorithm, State
from tessera.channels.control_words import FREE, Control
from tessera.channels.link_specs import make_link_specs
from tessera.channels.packing import from_leaves, split_leaves
from tessera.channels.routes import make_routes
from tessera.engines.base import Interrupted, NoCapacity, ReplicaEvent, ReplicaStatus, Snapshot, ignore
from tessera.engines.driver.remote_arrays import remote_arrays
from tessera.engines.driver.report_log import ReportLog
from tessera.engines.driver.supervisor import Answer, DeathCounts, Launcher, Supervisor
from tessera.engines.map_reduce.base import MapReduce
from tessera.engines.replica.job import Job
from tessera.engines.replica.replica import horizon, make_training, updates_at, wide_numbers
from tessera.engines.replica.reports import Reports, collect_reports
from tessera.engines.replica.snapshots import FLIGHT, assemble, lacks_replay, part_of, template, with_shared
from tessera.engines.replica.trace import Recording
from tessera.envs.base import Environment, merge_totals
from tessera.graph.plan import Plan
from tessera.graph.smaller_plans import same_steps
from tessera.program.accounting import Tally
from tessera.program.agents import own_training
from tessera.program.compile import CHUNK
from tessera.program.exchange import shards_of
from tessera.program.initial import initial_shapes
from tessera.program.shapes import slot_shapes
from tessera.support.streamed_arrays import StreamedArray, in_memory
from tessera.support.trees import shapes_by_path

NUDGE_SECONDS = 1.0
"""How long shards of a server that are done wait for others before they go on."""


class ProcessEngine(MapReduce):
    """Runs a plan on processes. The driver starts them, grants updates and collects reports."""

    name: str
    controls: list[Control]
    jobs: list[Any]
    launcher: Launcher

    def __init__(
        self,
        plan: Plan,
        algorithm: Algorithm,
        env: Environment,
        seed: int,
        horizon: int,
        *,
        timeout: float = 60.0,
        start_timeout: float = 300.0,
        restarts: int = 20,
        note: Callable[[str], None] = print,
        on_event: Callable[[ReplicaEvent], None] = ignore,
        recording: Recording | None = None,
        logs: str = "",
        trust_network: bool = False,
    ) -> None:
        """`logs` is a folder for what replicas of other machines print; those of this one print here.

        `recording` is what replicas are recorded by, and `on_event` is called, by another thread, for those that die.
        `trust_network` allows replicas to listen where other machines can reach them, without a token.
        """
        self.logs, self._x64, self.trust_network = logs, wide_numbers(), trust_network
        self._recording = recording
        self._options: dict[str, Any] = {
            "timeout": timeout, "start_timeout": start_timeout, "restarts": restarts, "note": note,
            "on_event": on_event,
        }  # fmt: skip
        self._prepare(plan, algorithm, env, seed, horizon)
        self.restarts = self.lost_rows = 0
        """Replicas that were started again, over the whole run."""
        self._snapshots = 0
        """Snapshots that were requested."""
        self.check()
        self._open(base=0)

    def _prepare(self, plan: Plan, algorithm: Algorithm, env: Environment, seed: int, horizon: int) -> None:
        """Derive from a plan all that does not change while it runs."""
        self.plan = plan
        self.training = make_training(plan, algorithm, env)
        self.routes = make_routes(plan, algorithm)
        self.shapes = slot_shapes(self.training, plan)
        server = plan.fragments[plan.home("apply")]
        shards = shards_of(algorithm, server.replicas) if server.sharded else None
        self.link_specs = make_link_specs(plan, self.routes, self.shapes, shards)
        self._jobs = [
            Job(plan, algorithm, env, i, r, k, seed, horizon, self._x64, self._recording)
            for k, (i, r, _) in enumerate(plan.places)
        ]
        self._options["deaths"] = DeathCounts.none(len(self._jobs))

    def check(self) -> None:
        """Refuse what cannot be run here, before anything starts."""

    def plan_that_fits(self) -> Plan:
        """The plan that fits when a run begins again: the same, or one with fewer replicas."""
        return self.plan

    def set_up(self, jobs: list[Job]) -> None:
        """Make what processes share; sets `controls`, `jobs` and `launcher`."""
        raise NotImplementedError

    def tear_down(self) -> None:
        """Give it back."""

    def shared(self) -> list[Any]:
        """Values that peers share, as the first of them reads them."""
        return []

    def _open(self, base: int) -> None:
        """Lay everything out afresh and start a process for every replica."""
        self.set_up([replace(job, base=base) for job in self._jobs])
        self.report_log = ReportLog(len(self.jobs))
        self.done = 0
        self.granted = 0
        self._nudged = time.monotonic()
        self.base = base
        self.supervisor = Supervisor(
            self.plan, self.jobs, self.controls, self.launcher, self.report_log, **self._options
        )
        self.supervisor.start_all()

    def start(self) -> Tally | None:
        """Reset the environments and fill the store; what was played meanwhile, if anything was."""
        self.supervisor.send_all({"do": "start"})
        self._until(lambda: all(self.supervisor.started))
        warmup = self.training.algorithm.schedule.warmup
        reports = self.report_log.take_all(self.plan)
        self.report_log.take_info()  # no row of metrics is of these steps
        return collect_reports(self.plan, reports, warmup).tally if warmup else None

    def advance(self, count: int, ahead: int = 0) -> Reports:
        """Run `count` updates and report each; `ahead` more may be begun meanwhile, and are reported next time."""
        if not 1 <= count <= CHUNK:
            raise ValueError(f"between 1 and {CHUNK} updates at a time, not {count}")
        wanted = max(self.done + count, self.granted if not ahead else 0)
        self.granted = max(self.granted, self.done + count + ahead)
        counted = self._counted()
        self._grant(counted, wanted)
        self._until(lambda: self._reached(counted, wanted))
        made = min(CHUNK, min(self.report_log.reported(k) for k in counted) - self.done)
        taken = self.report_log.take(self.plan, counted, self.done, made)
        self.done += made
        reports = collect_reports(self.plan, taken, made)
        reports.flows.update(self.report_log.take_flows())
        reports.waits.update(self.report_log.take_waits(self.plan))
        reports.spans.update(self.report_log.take_spans())
        merge_totals(reports.info, self.report_log.take_info(counted, self.done))
        self._note_restarts()
        return reports

    def late_tally(self) -> Tally:
        """What replicas that run at their own pace have played since `advance` returned, as of the last snapshot."""
        return collect_reports(self.plan, self.report_log.take(self.plan, self._counted(), self.done, 0), 1).tally

    def _counted(self) -> list[int]:
        """Places that make the updates that are granted."""
        return [k for k, job in enumerate(self.jobs) if self.plan.counted(job.fragment)]

    def _grant(self, counted: list[int], wanted: int) -> None:
        granted = set(counted)
        for k, control in enumerate(self.controls):
            if k in granted:
                control.mark, control.limit = wanted, self.granted
            else:
                control.limit = FREE
            self.launcher.wake(k)

    def _reached(self, counted: list[int], wanted: int) -> bool:
        """Whether all have made the updates. Shards that are done go on if others get no more gradients."""
        done = [self.report_log.reported(k) >= wanted for k in counted]
        if self.plan.solo and any(done) and not all(done):  # each may have dropped other gradients
            if time.monotonic() > self._nudged + NUDGE_SECONDS:
                self._nudged = time.monotonic()
                self.granted += 1
                self._grant(counted, wanted)
        else:
            self._nudged = time.monotonic()
        return all(done)

    @property
    def pending(self) -> int:
        """Updates that were begun ahead and not reported yet."""
        return self.granted - self.done

    @property
    def params_like(self) -> Any:
        """Params, in shape."""
        return self.shapes["state"].params

    def state(self) -> State:
        """The learner's state."""
        return self.snapshot(("state",))["state"]

    def snapshot(self, slots: tuple[str, ...] = (), leave: tuple[str, ...] = ()) -> dict[str, Any]:
        """All persistent slots (or only some, or without some), whole. Host environments are left out."""
        with self.open_snapshot(slots, leave) as snapshot:
            return in_memory(snapshot)

    @contextmanager
    def open_snapshot(self, slots: tuple[str, ...] = (), leave: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
        """The same, in which large arrays are read piece by piece, and replicas that have any stand still."""
        places = list(range(len(self.jobs)))
        if slots == ("state",):
            places = [k for k, j in enumerate(self.jobs) if "apply" in self.plan.fragments[j.fragment].operators]
        found: dict[int, Answer] = {}
        try:
            found = self.supervisor.request(places, self._new_snapshot(slots, leave))
            self._note_restarts()
            yield self._assemble(self._leaves(found, lambda k, command: self.supervisor.request([k], command)))
        finally:
            for k in places:
                if not found or found[k][0]["large"]:
                    self.supervisor.send(k, {"do": "go_on"})

    def _new_snapshot(self, slots: Iterable[str] = (), leave: Iterable[str] = ()) -> dict[str, Any]:
        self._snapshots += 1
        return {"do": "snapshot", "slots": list(slots), "leave": list(leave), "number": self._snapshots}

    def _leaves(
        self, found: dict[int, Answer], request: Callable[[int, dict[str, Any]], dict[int, Answer]]
    ) -> dict[int, dict[str, Any]]:
        """All leaves of replicas that have answered: those that they sent, and those that are read by `request`."""
        return {
            k: {**arrays, **remote_arrays(k, self._snapshots, meta["large"], request)}
            for k, (meta, arrays) in found.items()
        }

    def salvage(self, last: Snapshot | None) -> tuple[int, Snapshot] | None:
        """What can be saved after `RestartsSpent`: (updates made, snapshot); `last` has the parts of dead replicas.

        None if that is no more than `last`: replicas in lock step are in the midst of an update, a server that died
        took its params along, and messages that were on their way may be more or fewer than a start expects.
        """
        if last is None or not self.plan.asynchronous:
            return None
        living = self.supervisor.request_from_living
        found = self._leaves(living(range(len(self.jobs)), self._new_snapshot()), lambda k, c: living([k], c))
        for k, job in enumerate(self.jobs):
            if k in found:
                continue
            if "apply" in self.plan.fragments[job.fragment].operators:
                return None
            part = part_of(self.plan, self.routes, self.training, job.fragment, job.number, last)
            whole, large = split_leaves(part)
            found[k] = {**whole, **large}
        snapshot = self._assemble(found)
        if shapes_by_path(snapshot) != shapes_by_path(self.template()):
            return None
        return snapshot["state"].clock.applied() // horizon(self.plan, self.training.algorithm, 1), snapshot

    def template(self) -> dict[str, Any]:
        """A snapshot like this engine's, all zeros."""
        return template(self.plan, self.training, self.shapes)

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot instead of a start; host environments start new episodes."""
        base = updates_at(self.plan, self.training.algorithm, snapshot["state"].clock.applied())
        self.supervisor.rebase(base)
        self.base = base
        for k, job in enumerate(self.jobs):
            part = part_of(self.plan, self.routes, self.training, job.fragment, job.number, snapshot)
            tokens = {name: len(value) for name, value in part.items() if name.startswith(FLIGHT)}
            refill = lacks_replay(self.training, snapshot)
            whole, large = split_leaves(part)
            self._fill(k, large)
            command = {"do": "restore", "tokens": tokens, "filled": list(large), "refill": refill, "update": base}
            self.supervisor.send(k, command, whole)
        self._until(lambda: all(self.supervisor.started))

    def _fill(self, place: int, large: dict[str, StreamedArray]) -> None:
        """Send a replica large arrays, a piece at a time."""
        for name, array in large.items():
            for piece in array.pieces():
                command = {"do": "put_piece", "leaf": name, "piece": list(piece)}
                self.supervisor.request([place], command, {"rows": array.read(piece)})

    def rebuild(self) -> None:
        """Begin again with new processes and new memory, with fewer replicas if there is no longer room for all."""
        self._note_restarts()
        self.supervisor.close(quickly=True)
        self.tear_down()
        while True:
            plan, job = self.plan_that_fits(), self._jobs[0]
            if plan is not self.plan:
                updates = same_steps(job.horizon, self.plan, plan)
                self._prepare(plan, job.algorithm, job.env, job.seed, updates)
            try:
                self._open(self.base)
                return
            except (NoCapacity, Interrupted):  # capacity was lost or taken meanwhile
                self.supervisor.close(quickly=True)
                self.tear_down()

    def abandon(self) -> None:
        """Have a call that waits for replicas raise `Abandoned`; another thread calls this."""
        self.supervisor.abandon()

    def status(self) -> list[ReplicaStatus]:
        """What every replica is doing."""
        return self.supervisor.status(self.base)

    def processes(self) -> dict[str, int]:
        """Which process is which replica."""
        return self.supervisor.processes()

    def close(self) -> None:
        """End every process and give the memory back."""
        self.supervisor.close()
        self.tear_down()

    def _assemble(self, found: dict[int, dict[str, Any]]) -> dict[str, Any]:
        parts = {}
        for k, arrays in found.items():
            job = self.jobs[k]
            mine = own_training(self.training, self.plan, job.fragment, job.number)
            like = {**self.shapes, **initial_shapes(mine, self.plan, job.fragment, job.number)}
            for c, channel in enumerate(self.plan.channels):
                name = FLIGHT + channel.slot
                if (c, job.number) in self.link_specs and channel.source == job.fragment:
                    token = self.link_specs[c, job.number].like
                    held = sum(1 for a in arrays if a.rpartition("/")[0] == name)
                    like[name] = (token,) * (held // max(1, len(jax.tree.leaves(token))))
            parts[job.fragment, job.number] = from_leaves(arrays, like)
        out = assemble(self.plan, self.routes, self.training, parts)
        for shared in self.shared():
            out = with_shared(self.plan, self.training, out, shared)
        return out

    def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; what makes it impossible is raised here."""
        self.supervisor.wait_for(condition)
        self.supervisor.raise_failure()

    def _note_restarts(self) -> None:
        found, self.supervisor.restarted = self.supervisor.restarted, 0
        self.restarts += found
        lost, self.supervisor.lost_rows = self.supervisor.lost_rows, 0
        self.lost_rows += lost
