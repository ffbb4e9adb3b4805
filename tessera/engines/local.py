"""The local engine: every replica is a process of this machine, and channels are rings in shared memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax

from tessera.algorithms.base import Algorithm, State
from tessera.engines.channels.base import Flow
from tessera.engines.channels.local import LocalVector, lay_out, place_of
from tessera.engines.channels.shared import Arena, Bell, available_memory
from tessera.engines.control import FREE, STATES, Control, Job, place_names
from tessera.engines.crew import Crew, Interrupted, RestartsSpent
from tessera.engines.ledger import Ledger
from tessera.engines.packing import from_leaves, leaves_of, write_block
from tessera.engines.replica import make_training, wide_numbers
from tessera.engines.reports import Reports, collect_reports
from tessera.engines.routes import make_routes
from tessera.engines.snapshots import FLIGHT, assemble, lacks_replay, part_of, template, with_shared
from tessera.envs.base import Environment
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.program.accounting import Tally
from tessera.program.agents import own_training
from tessera.program.compile import CHUNK
from tessera.program.exchange import shards_of
from tessera.program.initial import initial_shapes
from tessera.program.shapes import carried_shape, slot_shapes

__all__ = ["Interrupted", "LocalEngine", "RestartsSpent"]


NUDGE_SECONDS = 1.0
"""How long shards of a server that are done wait for others before they go on."""


PROCESS_BYTES = 300 * 2**20
"""What a process takes at the least: Python, JAX and small programs."""


def check_memory(processes: int, shared: int) -> None:
    """Refuse what cannot fit, before anything starts."""
    asked, there = processes * PROCESS_BYTES + shared, available_memory()
    if asked > there:
        raise TesseraError(
            f"{processes} processes and {shared / 2**20:,.0f} MB of shared memory take at least {asked / 2**30:.1f} GB"
            f", available: {there / 2**30:.1f} GB; use fewer replicas, or batch them (Fragment.processes)"
        )


class LocalEngine:
    """Runs a plan on processes. The driver only lays out memory, sets limits and collects what is reported."""

    name = "local"

    def __init__(
        self,
        plan: Plan,
        algorithm: Algorithm,
        env: Environment,
        seed: int,
        horizon: int,
        *,
        timeout: float = 60.0,
        restarts: int = 20,
        note: Callable[[str], None] = print,
        trace: str = "",
    ) -> None:
        self.plan = plan
        self.training = make_training(plan, algorithm, env)
        self.routes = make_routes(plan, algorithm)
        self.shapes = slot_shapes(self.training, plan)
        server = plan.fragments[plan.home("apply")]
        shards = shards_of(algorithm, server.replicas) if server.sharded else None
        carried = carried_shape(self.shapes, plan.carries) if plan.exchange == "shared" else None
        self.wiring = lay_out(plan, self.routes, self.shapes, shards, carried)
        check_memory(self.wiring.processes, self.wiring.size)
        self._whole = (algorithm, env, seed, horizon, wide_numbers(), trace)
        deaths = ([0] * self.wiring.processes, [0] * self.wiring.processes, [0])
        self._options: dict[str, Any] = {"timeout": timeout, "restarts": restarts, "note": note, "deaths": deaths}
        self.restarts = 0
        """Replicas that were started again, over the whole run."""
        self.lost = 0
        """Gradients that a server had taken and not applied when it died."""
        self._open(base=0)

    def _open(self, base: int) -> None:
        """Lay everything out afresh and hire a process for every replica."""
        algorithm, env, seed, horizon, x64, trace = self._whole
        self.arena = Arena(self.wiring.size)
        driver = self.wiring.processes
        self.bell = Bell(self.arena, self.wiring.bells, driver + 1, driver)
        self.controls = [Control(self.arena, self.wiring, k) for k in range(driver)]
        self.jobs = [
            Job(
                self.plan,
                algorithm,
                env,
                i,
                r,
                k,
                seed,
                horizon,
                self.wiring,
                self.arena.handle,
                x64,
                False,
                base,
                trace,
            )
            for k, (i, r, _) in enumerate(place_names(self.plan))
        ]
        self.ledger = Ledger(driver)
        self.done = 0
        self.granted = 0
        self._nudged = time.monotonic()
        self.base = base
        self.crew = Crew(self.plan, self.jobs, self.controls, self.bell, self.ledger, **self._options)
        self.crew.hire_all()

    def start(self) -> Tally | None:
        """Reset the environments and fill the store; what was played meanwhile, if anything was."""
        self.crew.tell_all({"do": "start"})
        self._until(lambda: all(self.crew.started))
        warmup = self.training.algorithm.schedule.warmup
        told = self.ledger.take_all(self.plan)
        return collect_reports(self.plan, told, warmup).tally if warmup else None

    def advance(self, count: int, ahead: int = 0) -> Reports:
        """Run `count` updates and report each; `ahead` more may be begun meanwhile, and are reported next time."""
        if not 1 <= count <= CHUNK:
            raise ValueError(f"between 1 and {CHUNK} updates at a time, not {count}")
        wanted = max(self.done + count, self.granted if not ahead else 0)
        self.granted = max(self.granted, self.done + count + ahead)
        counted = [k for k, job in enumerate(self.jobs) if self.plan.counted(job.fragment)]
        self._grant(counted, wanted)
        self._until(lambda: self._reached(counted, wanted))
        made = min(CHUNK, min(self.ledger.reported(k) for k in counted) - self.done)
        told = self.ledger.take(self.plan, counted, self.done, made)
        self.done += made
        reports = collect_reports(self.plan, told, made)
        for stream, flow in self.ledger.take_flows().items():
            reports.flows.setdefault(stream, Flow()).merge(flow)
        self._note_restarts()
        return reports

    def _grant(self, counted: list[int], wanted: int) -> None:
        for k, control in enumerate(self.controls):
            control.mark = wanted
            control.limit = self.granted if k in counted else FREE
            self.bell.ring(k)

    def _reached(self, counted: list[int], wanted: int) -> bool:
        """Whether all have made the updates; shards that are done are nudged if others get no more gradients."""
        done = [self.ledger.reported(k) >= wanted for k in counted]
        if self.plan.solo and any(done) and not all(done):  # they may have dropped other gradients than the others
            if time.monotonic() > self._nudged + NUDGE_SECONDS:
                self._nudged = time.monotonic()
                self.granted += 1
                self._grant(counted, wanted)
        else:
            self._nudged = time.monotonic()
        return all(done)

    @property
    def params_like(self) -> Any:
        """Params, in shape."""
        return self.shapes["state"].params

    def state(self) -> State:
        """The learner's state."""
        return self.snapshot(("state",))["state"]

    def snapshot(self, slots: tuple[str, ...] = (), leave: tuple[str, ...] = ()) -> dict[str, Any]:
        """All persistent slots (or only some, or without some), whole. Host environments are left out."""
        places = range(len(self.jobs))
        if slots == ("state",):
            places = [k for k, j in enumerate(self.jobs) if "apply" in self.plan.fragments[j.fragment].operators]  # type: ignore[assignment]
        command = {"do": "snapshot", "slots": list(slots), "leave": list(leave)}
        return self._assemble(self.crew.ask(places, command))

    def salvage(self, last: dict[str, Any] | None) -> tuple[int, dict[str, Any]] | None:
        """What can be saved when a run cannot go on: (updates made, snapshot); a dead replica's part is its last."""
        if last is None:
            return None
        found = self.crew.ask_living({"do": "snapshot", "slots": [], "leave": []})
        for k, job in enumerate(self.jobs):
            if k not in found:
                part = part_of(self.plan, self.routes, self.training, job.fragment, job.number, last)
                found[k] = leaves_of(part)
        server = place_of(self.plan, self.plan.home("apply"), 0)
        return self.controls[server].done, self._assemble(found)

    def template(self) -> dict[str, Any]:
        """A snapshot like this engine's, all zeros."""
        return template(self.plan, self.training, self.shapes)

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot instead of a start; host environments start new episodes."""
        base = int(snapshot["state"].clock.applies) // self.training.algorithm.schedule.applies
        self.crew.rebase(base)
        self.base = base
        blocks = []
        for k, job in enumerate(self.jobs):
            part = part_of(self.plan, self.routes, self.training, job.fragment, job.number, snapshot)
            tokens = {name: len(value) for name, value in part.items() if name.startswith(FLIGHT)}
            fd, size = write_block({}, leaves_of(part))
            blocks.append(fd)
            command = {"do": "restore", "pid": self.arena.handle[0], "fd": fd, "size": size, "tokens": tokens}
            command["refill"] = lacks_replay(self.training, snapshot)
            self.crew.tell(k, command)
        try:
            self._until(lambda: all(self.crew.started))
        finally:
            self.crew.close_blocks(blocks)

    def rebuild(self) -> None:
        """Begin again with new processes and new memory, after a replica died that cannot be replaced by itself."""
        self._note_restarts()
        self.crew.close(quickly=True)
        self.arena.close()
        self._open(self.base)

    def status(self) -> list[tuple[str, str, int]]:
        """What every replica is doing: title, state, updates made."""
        out = []
        for (_, _, title), control in zip(place_names(self.plan), self.controls, strict=True):
            state = STATES[control.state]
            if state == "waiting":
                sending = "to send" if control.sending else "for"
                state = f"waiting {sending} {self.plan.channels[control.channel].stream}"
            out.append((title, state, self.base + control.done))
        return out

    def processes(self) -> dict[str, int]:
        """Which process is which replica."""
        return self.crew.processes()

    def close(self) -> None:
        """End every process and give the memory back."""
        self.crew.close()
        self.arena.close()

    def _assemble(self, found: dict[int, dict[str, Any]]) -> dict[str, Any]:
        parts = {}
        for k, arrays in found.items():
            job = self.jobs[k]
            mine = own_training(self.training, self.plan, job.fragment, job.number)
            like = {**self.shapes, **initial_shapes(mine, self.plan, job.fragment, job.number)}
            for c, channel in enumerate(self.plan.channels):
                name = FLIGHT + channel.slot
                if (c, job.number) in self.wiring.wires and channel.source == job.fragment:
                    token = self.wiring.wires[c, job.number].like
                    held = sum(1 for a in arrays if a.rpartition("/")[0] == name)
                    like[name] = (token,) * (held // max(1, len(jax.tree.leaves(token))))
            parts[job.fragment, job.number] = from_leaves(arrays, like)
        out = assemble(self.plan, self.routes, self.training, parts)
        for place in self.wiring.vectors.values():
            out = with_shared(self.plan, out, LocalVector(self.arena, *place))
        return out

    def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for the crew; whatever makes it impossible is raised here."""
        self.crew.wait_for(condition)
        self.crew.raise_failure()

    def _note_restarts(self) -> None:
        found, self.crew.restarted = self.crew.restarted, 0
        self.restarts += found
