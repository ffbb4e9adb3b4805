"""The loop of a replica's process: obeys the driver, drives the programs, waits, reports."""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import jax

from tessera.channels.control_words import FREE, IDLE, RUNNING, STARTING, WAITING
from tessera.channels.link import GONE, HERE, REFILLING
from tessera.channels.packing import Arrays, from_leaves, leaves_of, split_leaves
from tessera.channels.routes import make_routes
from tessera.engines.replica.driver_link import DriverLink
from tessera.engines.replica.job import Job
from tessera.engines.replica.replica import Replica, exchanges, make_programs, make_training
from tessera.engines.replica.reports import join_reports
from tessera.engines.replica.snapshots import FLIGHT, common_to_peers, give, opened, persistent
from tessera.engines.replica.takeover import (
    Exchange,
    MutedPort,
    TakeoverPort,
    has_learned_from,
    skip_stream,
    take_over,
    take_over_mirrored,
)
from tessera.envs.base import HostEnvironment
from tessera.program.agents import own_training
from tessera.program.compile import CHUNK
from tessera.program.interfaces import Port
from tessera.program.nodes import Every, Node, Recv, Repeat, Segment, Send
from tessera.program.shapes import slot_shapes
from tessera.support.cache import use_compilation_cache
from tessera.support.streamed_arrays import HeldArray, Piece, StreamedArray, with_piece

POLL_SECONDS = 0.25
"""How often a waiting process looks at its control words, at the least."""
REPORT_SECONDS = 0.2
"""How often a replica that runs at its own pace reports."""


class Stopped(Exception):
    """The run is over."""


class ReplicaProcess:
    """One replica in this process."""

    def __init__(self, job: Job, driver_link: DriverLink, clock: Callable[[], float] = time.monotonic) -> None:
        self.job, self.driver_link, self.control, self._clock = job, driver_link, driver_link.control, clock
        jax.config.update("jax_enable_x64", job.x64)
        use_compilation_cache()
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        ctypes.CDLL(None).prctl(15, f"{job.title}".encode()[:15])  # what ps and top show
        training = own_training(make_training(job.plan, job.algorithm, job.env), job.plan, job.fragment, job.number)
        routes = make_routes(job.plan, job.algorithm)
        programs = make_programs(training, job.plan, job.fragment)
        whose = (job.fragment, job.number, job.seed, job.horizon)
        ends = (driver_link.link, driver_link.peer_exchange)
        begun = (job.base + self.control.done, job.life) if job.life else (0, 0)
        self.replica = Replica(job.plan, training, programs, routes, *whose, *ends, begun=begun)
        self.replica.clock = clock
        if job.recording is not None:
            self.replica.record(job.recording.recorder(job.place, self.replica.title, clock))
        for program in (programs.reset, programs.start, programs.updates):
            self._note_compiling(program)
        self._last_report = (clock(), 0)
        """When it last reported, and the updates that it had made by then."""
        self.taking_over = False
        """Whether it is still catching up with a predecessor, and cannot obey commands."""
        self.successors: list[int] = []
        """Mirrored peers that wait for this replica's state."""
        self._open: tuple[int, dict[str, StreamedArray]] = (0, {})
        """The snapshot that the driver reads: its number, and the arrays that are sent piece by piece."""

    def _note_compiling(self, nodes: tuple[Node, ...]) -> None:
        """Let the first call of every compiled function show the state STARTING: it compiles."""
        for node in nodes:
            if isinstance(node, Segment):
                node.function = self._compiling(node, node.function)
            elif isinstance(node, Repeat | Every):
                self._note_compiling(node.body)

    def _compiling(self, segment: Segment, function: Callable[..., Any]) -> Callable[..., Any]:
        def first(*arguments: Any) -> Any:
            before, self.control.state = self.control.state, STARTING
            out = function(*arguments)
            segment.function = function
            self.control.progress()
            self.control.state = before
            return out

        return first

    def work(self) -> None:
        """Serve until the run is over."""
        try:
            if self.job.is_successor:
                self._take_over()
                self._report(self.control.done)  # updates that its predecessor did not report count as made
            self._send("ready")
            while not self.control.stop:
                self._obey_commands()
                self._advance()
        except Stopped:
            pass
        finally:
            self.replica.close()
            self.driver_link.close()

    def _take_over(self) -> None:
        """Take the place of a replica that died."""
        if self.job.plan.mirrored:
            self._take_over_mirrored()
            return
        replica, programs = self.replica, self.replica.programs
        update = take_over(replica, self.control.done, self.job.base)
        if self.control.presence == GONE:
            self._refill()
            return
        self.taking_over = True
        if any(exchanges(programs.start)):
            self._run(programs.reset, 0, MutedPort(replica))
        else:  # no other replica takes part: a store of its own has to be filled again
            self._run(programs.start, 0)
        self.taking_over = False
        if not self.job.plan.asynchronous:
            self.control.done = update
        replica.forget_reports()

    def _take_over_mirrored(self) -> None:
        """Take the place of a mirrored replica: with the state of a peer, and with new episodes."""
        self.taking_over, adopted, later = True, False, []
        while not adopted:
            seen = self.driver_link.look()
            if self.control.stop:
                raise Stopped
            self.control.progress()
            if not self.driver_link.has_command():
                self.driver_link.wait(seen, POLL_SECONDS)
                continue
            command, arrays = self.driver_link.next_command()
            if command.get("do") == "adopt_state":
                give(self.replica, from_leaves(arrays, self._like({})))
                adopted = True
            elif command:
                later.append((command, arrays))
        self.control.done = take_over_mirrored(self.replica, self.job.base)
        self._run(self.replica.programs.reset, 0)
        self.taking_over = False
        self.replica.forget_reports()
        for command, arrays in later:
            self._obey(command, arrays)

    def _refill(self) -> None:
        """Fill an empty store with what actors send from now on; until then no replica waits for its samples."""
        replica, port = self.replica, self.replica.port
        replica.takeover = None
        self.control.presence = REFILLING  # first, so that senders wait for this replica and then find room
        skip_stream(port, "experience")
        self._run(replica.programs.start, 0)
        priorities = [k for k in port.inboxes if self.job.plan.channels[k].stream == "priorities"]
        trailing: Counter[Exchange] = Counter({(k, None): self.job.plan.channels[k].lag for k in priorities})
        replica.takeover = TakeoverPort(replica, Counter(), trailing)
        self.control.presence = HERE
        skip_stream(port, "priorities")
        replica.forget_reports()

    def _advance(self) -> None:
        """Make the updates that the driver grants, or wait for more."""
        limit, done = self.control.limit, self.control.done
        if limit <= done:
            if self.control.state != IDLE:
                self.control.state = IDLE
                self.control.exchanged()
            self.control.progress()
            seen = self.driver_link.look()
            if self.control.limit <= done and not self.control.stop and not self.driver_link.has_command():
                self.driver_link.wait(seen, POLL_SECONDS)
            return
        mark = self.control.mark
        count = min((mark if done < mark else limit) - done, CHUNK) if limit < FREE else 1
        self._run(self.replica.programs.updates, count)
        self.replica.note_reports(count)
        self.control.done = done + count
        if limit < FREE:
            self._report(done)
        else:
            self._report_own_pace(REPORT_SECONDS)

    def _run(self, program: tuple[Node, ...], count: int, port: Port | None = None) -> None:
        """Drive a program to its end; wait where it waits, and obey the driver meanwhile."""
        control, driver_link = self.control, self.driver_link
        control.state = RUNNING
        turns: Iterator[Node] = self.replica.run(program, count, port)
        exchanged = -1
        while True:
            seen = driver_link.look()  # before the program looks, so that nothing is missed in between
            try:
                node = next(turns)
            except StopIteration:
                control.unsent = self.replica.unsent()
                control.progress()
                return
            control.progress()
            if isinstance(node, Send | Recv):
                if exchanged != (exchanged := self.replica.port.exchanged()):
                    control.exchanged()
                self._wait(node, seen)
                self._report_own_pace(REPORT_SECONDS)
            else:
                control.done += 1
                control.unsent = self.replica.unsent()
            if not self.taking_over and driver_link.has_command():
                self._obey_commands()
            self._share_state()
            if control.stop:
                raise Stopped

    def _wait(self, node: Send | Recv, seen: int) -> None:
        begun = self._clock()
        self.control.channel, self.control.sending = node.channel, isinstance(node, Send)
        self.control.state = WAITING
        within = node.timeout if isinstance(node, Recv) and node.timeout is not None else POLL_SECONDS
        self.driver_link.wait(seen, min(within, POLL_SECONDS))
        self.control.state = RUNNING
        self.replica.port.waited(node.channel, isinstance(node, Send), self._clock() - begun)

    def _report_own_pace(self, after: float) -> None:
        """Where it runs at its own pace, report updates that are made, if the last report is `after` seconds old."""
        when, done = self._last_report
        if self.control.limit >= FREE and self.control.done > done and self._clock() - when >= after:
            self._report(done)

    def _report(self, first: int) -> None:
        self._last_report = (self._clock(), self.control.done)
        spans = [] if self.replica.tracer is None else self.replica.tracer.flush()
        reports = join_reports(self.replica.take_reports())
        arrays: Arrays = {}
        for k, report in enumerate(reports):
            arrays |= {f"{k}/{name}": x for name, x in leaves_of(report).items()}
        flows = {stream: asdict(flow) for stream, flow in self.replica.port.take_flows().items()}
        keys = [list(_metric_names(report)) for report in reports]
        more = {"flows": flows, "info": self.replica.take_info(), "metrics": keys, "count": len(reports)}
        more["spans"] = spans
        self._send("report", arrays, first=first, done=self.control.done, **more)

    def _send(self, kind: str, arrays: Arrays | None = None, **more: Any) -> None:
        self.driver_link.send(kind, arrays or {}, **more)

    def _obey_commands(self) -> None:
        while self.driver_link.has_command():
            self.control.state = RUNNING
            command, arrays = self.driver_link.next_command()
            if command:
                self._obey(command, arrays)

    def _obey(self, command: dict[str, Any], arrays: Arrays) -> None:
        getattr(self, f"_do_{command.pop('do')}")(arrays, **command)

    def _do_start(self, _: Arrays) -> None:
        self.replica.begin()
        self._run(self.replica.programs.start, 0)
        self.replica.note_reports(self.job.algorithm.schedule.warmup)
        self._report(0)
        self._send("started")

    def _do_put_piece(self, arrays: Arrays, leaf: str, piece: list[int]) -> None:
        """Put some rows of a large array in place, before the rest is restored."""
        slot, _, k = leaf.rpartition("/")
        leaves, structure = jax.tree.flatten(self.replica.slots[slot])
        leaves[int(k)] = with_piece(leaves[int(k)], Piece(*piece), arrays["rows"])
        self.replica.slots[slot] = jax.tree.unflatten(structure, leaves)
        self._send("filled")

    def _do_restore(self, arrays: Arrays, tokens: dict[str, int], filled: list[str], refill: bool, update: int) -> None:
        replica = self.replica
        replica.start_new_episodes(update)
        if isinstance(self.job.env, HostEnvironment):
            self._run(replica.programs.reset, 0)
        own = {name: HeldArray(_leaf(replica.slots, name)) for name in filled}
        give(replica, from_leaves({**arrays, **own}, self._like(tokens)))
        if refill:
            self._run(replica.programs.fill, 0)
            replica.note_reports(self.job.algorithm.schedule.warmup)
            replica.forget_reports()
        self._send("started")

    def _do_snapshot(self, _: Arrays, slots: list[str], leave: list[str], number: int) -> None:
        replica = self.replica
        self._report_own_pace(0.0)  # first, so that what was played until now counts
        names = persistent(self.job.plan, replica.training, replica.fragment, replica.number, replica.slots)
        chosen = {s: replica.slots[s] for s in names if not slots or s in slots}
        chosen |= {} if slots else replica.in_flight()
        chosen = {s: value for s, value in chosen.items() if s not in leave}
        whole, large = split_leaves(opened(self.job.plan, replica.fragment, chosen))
        self._open = number, large
        self._send("snapshot", whole, large={name: (x.shape, x.dtype.name) for name, x in large.items()})
        self._stand_still()

    def _stand_still(self) -> None:
        """Serve the driver until it has read all of an open snapshot: nothing of it may change meanwhile."""
        while self._open[1]:
            seen = self.driver_link.look()
            if self.control.stop:
                raise Stopped
            self.control.progress()
            if self.driver_link.has_command():
                self._obey_commands()
            else:
                self.driver_link.wait(seen, POLL_SECONDS)

    def _do_read_piece(self, _: Arrays, number: int, leaf: str, piece: list[int]) -> None:
        """Send some rows of an open snapshot; nothing, if it was opened by a predecessor."""
        opened, large = self._open
        self._send("snapshot", {"rows": large[leaf].read(Piece(*piece))} if opened == number else {})

    def _do_go_on(self, _: Arrays) -> None:
        """The driver has read the snapshot, or given it up."""
        self._open = 0, {}

    def _do_share_state(self, _: Arrays, number: int) -> None:
        self.successors.append(number)
        self._share_state()

    def _share_state(self) -> None:
        """Send successors of mirrored peers the common state, once this replica waits for nothing but them."""
        for number in [n for n in self.successors if has_learned_from(self.replica, n)]:
            self.successors.remove(number)
            self._send("peer_state", leaves_of(common_to_peers(self.replica.slots)), number=number)

    def _like(self, tokens: dict[str, int]) -> dict[str, Any]:
        """Structures of what a snapshot holds for this replica."""
        job, replica = self.job, self.replica
        shapes = slot_shapes(replica.training, job.plan)
        like = {s: replica.slots[s] if s in replica.slots else shapes[s] for s in shapes}
        for k, channel in enumerate(job.plan.channels):
            if FLIGHT + channel.slot in tokens and k in replica.port.outgoing:
                token = self.driver_link.link_specs[k, job.number].like
                like[FLIGHT + channel.slot] = (token,) * tokens[FLIGHT + channel.slot]
        return like


def _leaf(slots: dict[str, Any], name: str) -> Any:
    """A leaf by slot and number."""
    slot, _, k = name.rpartition("/")
    return jax.tree.leaves(slots[slot])[int(k)]


def _metric_names(report: dict[str, Any]) -> list[str]:
    """Names of an algorithm's metrics, in the order of their leaves."""
    return sorted(report["report_grad"].mean) if "report_grad" in report else []
