"""The serial engine: all replicas take turns in one thread. The reference for every other engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax

from tessera.algorithms.contract import Algorithm, State
from tessera.channels.in_process import InProcessLink
from tessera.channels.inboxes import SharedExchange
from tessera.channels.link_specs import LinkName
from tessera.channels.routes import make_routes
from tessera.channels.shared_tree import PlacedTree, PlainMemory, SharedTree
from tessera.engines.base import ReplicaStatus, Snapshot
from tessera.engines.map_reduce.base import MapReduce, map_here
from tessera.engines.replica.replica import Replica, make_programs, make_training, updates_at
from tessera.engines.replica.reports import ReplicaReport, Reports, collect_reports, merge_flows
from tessera.engines.replica.snapshots import (
    assemble,
    give,
    lacks_replay,
    opened,
    part_of,
    persistent,
    template,
    with_shared,
)
from tessera.engines.replica.trace import Recording
from tessera.envs.base import Environment, merge_totals
from tessera.errors import EnvironmentFailed, RunFailed
from tessera.graph.disciplines import Newest, Shared, in_flight
from tessera.graph.plan import Plan
from tessera.program.accounting import Tally
from tessera.program.agents import own_training
from tessera.program.compile import CHUNK
from tessera.program.nodes import Node, Repeat
from tessera.program.shapes import shared_shape, slot_shapes
from tessera.support.streamed_arrays import in_memory


class SerialEngine(MapReduce):
    """Runs a plan. All state is in the replicas' slots and, where params lag, in the links."""

    name = "serial"
    map_items = staticmethod(map_here)

    def __init__(
        self,
        plan: Plan,
        algorithm: Algorithm,
        env: Environment,
        seed: int,
        horizon: int,
        recording: Recording | None = None,
    ) -> None:
        """`recording` is what the replicas are recorded by."""
        self.plan = plan
        self.training = make_training(plan, algorithm, env)
        self.routes = make_routes(plan, algorithm)
        self.links = self.make_links()
        self.trees = {k: self._share(c.source) for k, c in enumerate(plan.channels) if isinstance(c.discipline, Shared)}
        self.replicas: list[Replica] = []
        for i, placed in enumerate(plan.fragments):
            for r in range(placed.replicas):
                mine = own_training(self.training, plan, i, r)
                if r == 0 or placed.agents:
                    programs = make_programs(mine, plan, i)
                ends = (lambda k, lane: self.links[k, lane], partial(self._peer_exchange, r))
                self.replicas.append(Replica(plan, mine, programs, self.routes, i, r, seed, horizon, *ends))
        self.running: dict[int, Iterator[Node]] = {}
        if recording is not None:
            for place, replica in enumerate(self.replicas):
                replica.record(recording.recorder(place, replica.title, replica.clock))

    def make_links(self) -> dict[LinkName, Any]:
        """Every link, within this process."""
        return {
            (k, lane): InProcessLink(len(readers), in_flight(c.discipline), isinstance(c.discipline, Newest))
            for k, (c, r) in enumerate(zip(self.plan.channels, self.routes, strict=True))
            for lane, (_, readers) in r.lanes().items()
        }

    def _share(self, fragment: int) -> list[SharedTree]:
        """Memory that the replicas of a fragment share: the end of each."""
        like = shared_shape(slot_shapes(self.training, self.plan), self.plan.carries)
        placed = PlacedTree(0, like, self.plan.fragments[fragment].replicas)
        memory = PlainMemory(placed.nbytes)
        return [SharedTree(memory, placed, number) for number in range(placed.peers)]

    def _peer_exchange(self, number: int, channel: int) -> SharedExchange | None:
        return SharedExchange(self.trees[channel][number]) if channel in self.trees else None

    def start(self) -> Tally | None:
        """Reset the environments and fill the store; what was played meanwhile, if anything was."""
        warmup = self.training.algorithm.schedule.warmup
        for replica in self.replicas:
            replica.begin()
        self._run([r.run(r.programs.start) for r in self.replicas], warmup)
        reports = self._reports()
        for replica in self.replicas:
            replica.forget_reports()
        return collect_reports(self.plan, reports, warmup).tally if warmup else None

    def advance(self, count: int, ahead: int = 0) -> Reports:
        """Run `count` updates, CHUNK at the most, and report each; nothing is begun ahead in one thread."""
        del ahead
        if not 1 <= count <= CHUNK:
            raise ValueError(f"between 1 and {CHUNK} updates at a time, not {count}")
        counted = [self.plan.counted(r.fragment) for r in self.replicas]
        self._run(
            [
                r.run(r.programs.updates, count) if mine else None
                for r, mine in zip(self.replicas, counted, strict=True)
            ],
            count,
        )
        reports = collect_reports(self.plan, self._reports(), count)
        reports.flows.update(merge_flows(replica.port.take_flows() for replica in self.replicas))
        for replica in self.replicas:
            merge_totals(reports.info, replica.take_info())
        for place, replica in enumerate(self.replicas):
            if replica.tracer is not None and (spans := replica.tracer.flush()):
                reports.spans[place] = spans
        return reports

    restarts = 0
    lost_rows = 0
    pending = 0

    def late_tally(self) -> Tally:
        """Nothing: in one thread nobody plays after `advance` has returned."""
        return collect_reports(self.plan, {}, 1).tally

    def rebuild(self) -> None:
        """Never needed: this thread does not lose replicas."""
        raise NotImplementedError

    def salvage(self, last: Snapshot | None) -> tuple[int, Snapshot] | None:
        """Never needed: this thread does not lose replicas."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Nothing to do: in one thread nobody waits for replicas."""

    @property
    def params_like(self) -> Any:
        """Params, in shape."""
        return jax.eval_shape(self.training.algorithm.init, jax.random.key(0))

    def state(self) -> State:
        """The learner's state."""
        return self.snapshot(("state",))["state"]

    def snapshot(self, slots: tuple[str, ...] = (), leave: tuple[str, ...] = ()) -> dict[str, Any]:
        """All persistent slots (or only some, or without some), whole. Host environments are left out."""
        with self.open_snapshot(slots, leave) as snapshot:
            return in_memory(snapshot)

    @contextmanager
    def open_snapshot(self, slots: tuple[str, ...] = (), leave: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
        """The same, in which large arrays are read piece by piece; nothing moves meanwhile in one thread."""
        parts = {}
        for r in self.replicas:
            names = persistent(self.plan, self.training, r.fragment, r.number, r.slots)
            mine = {s: r.slots[s] for s in names if not slots or s in slots}
            mine |= {} if slots else r.in_flight()
            mine = {s: value for s, value in mine.items() if s not in leave}
            parts[r.fragment, r.number] = opened(self.plan, r.fragment, mine)
        out = assemble(self.plan, self.routes, self.training, parts)
        for first, *_ in self.trees.values():
            out = with_shared(self.plan, self.training, out, first)
        yield out

    def template(self) -> dict[str, Any]:
        """A snapshot like this engine's, all zeros."""
        return template(self.plan, self.training, slot_shapes(self.training, self.plan))

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot; host environments start new episodes, and a replay that is not there is refilled."""
        update = updates_at(self.plan, self.training.algorithm, snapshot["state"].clock.applied())
        for r in self.replicas:
            r.start_new_episodes(update)
        if any(r.on_host for r in self.replicas):
            self._run([r.run(r.programs.reset) for r in self.replicas], 0)
        for link in self.links.values():
            link.clear()
        for r in self.replicas:
            give(r, part_of(self.plan, self.routes, self.training, r.fragment, r.number, snapshot))
        if lacks_replay(self.training, snapshot):
            self._run([r.run(r.programs.fill) for r in self.replicas], self.training.algorithm.schedule.warmup)
            for r in self.replicas:
                r.forget_reports()

    def status(self) -> list[ReplicaStatus]:
        """Empty: one thread has nothing to show."""
        return []

    def processes(self) -> dict[str, int]:
        """Empty: there is no process but this one."""
        return {}

    def close(self) -> None:
        """Close host environments."""
        for replica in self.replicas:
            replica.close()

    def _reports(self) -> dict[tuple[int, int], list[ReplicaReport]]:
        return {(r.fragment, r.number): r.take_reports() for r in self.replicas}

    def _run(self, turns: list[Iterator[Node] | None], count: int) -> None:
        """Let replicas take turns until each that has a program has ended; the others run on meanwhile."""
        ending = {k for k, turn in enumerate(turns) if turn is not None}
        self.running |= {k: turn for k, turn in enumerate(turns) if turn is not None}
        while ending:
            before = self._progress()
            turned = False
            for k, replica in enumerate(self.replicas):
                if k not in self.running and k not in ending and turns[k] is None:
                    self.running[k] = replica.run(replica.programs.updates, 1)
                if k not in self.running:
                    continue
                try:
                    turned |= isinstance(next(self.running[k]), Repeat)
                except EnvironmentFailed as failure:
                    which = f" of replica {replica.title}" if len(self.replicas) > 1 else ""
                    raise failure.followed_by(which) from failure.__cause__
                except StopIteration:
                    del self.running[k]
                    replica.note_reports(count if turns[k] is not None else 1)
                    ending.discard(k)
                    turned = True
            if ending and not turned and before == self._progress():
                if self._nudge(turns, ending):
                    continue
                stuck = ", ".join(self.replicas[k].title for k in sorted(ending))
                raise RunFailed(f"every fragment waits for another: {stuck}; this colouring deadlocks")

    def _nudge(self, turns: list[Iterator[Node] | None], ending: set[int]) -> bool:
        """Let shards of a server that are done go on while others are not: each may have dropped other gradients."""
        done = [k for k, turn in enumerate(turns) if turn is not None and k not in ending and k not in self.running]
        for k in done if self.plan.solo else ():
            self.running[k] = self.replicas[k].run(self.replicas[k].programs.updates, 1)
        return bool(done) and self.plan.solo

    def _progress(self) -> int:
        return sum(link.moved for link in self.links.values())
