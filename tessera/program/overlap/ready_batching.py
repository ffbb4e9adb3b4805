"""Ready batching: actions are chosen for the environments that are ready, while others are still stepping.

The loop over the steps of an unroll is cut into one slice for each peer (an environment server). Actions are chosen for
all slices that are ready together, as soon as all are or the first of them has waited long enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from tessera.program.interfaces import Port
from tessera.program.nodes import Deferred, Node, Op, Recv, Repeat, Segment, Send, Slots
from tessera.program.overlap.partial_segment import PartialSegment
from tessera.program.overlap.sliced_loop import Context, GroupSlice, Run, SlicedLoop, for_slice
from tessera.program.overlap.slot_slices import TREES, SliceValues, merge_groups, slice_groups


class ReadyBatching:
    """Runs a loop in one slice per peer, if one of its channels does not wait for all peers."""

    def split(self, context: Context, loop: Repeat, slots: Slots) -> SlicedLoop | None:
        """Cut a loop by the peers of the first such channel."""
        port = context.port
        found = None if port is None else peers_of(loop, port)
        return None if port is None or found is None else ReadyBatchedLoop(loop, slots, *found, port, context)


def peers_of(loop: Repeat, port: Port) -> tuple[dict[int, slice], float] | None:
    """Groups of each peer, and how long those that are ready wait for others; None if a loop waits for all peers."""
    if not any(isinstance(node, Send) for node in loop.body):
        return None
    for node in loop.body:
        if isinstance(node, Recv) and (peers := port.peer_slices(node.channel)) is not None:
            return peers, port.batching_seconds(node.channel)
    return None


class OnePeer:
    """A port that exchanges with one peer alone."""

    def __init__(self, port: Port, peer: int) -> None:
        self._port, self._peer = port, peer

    def send(self, channel: int, value: Any) -> bool:
        """Send a value to the peer; False if there is no room yet."""
        return self._port.send_to(channel, self._peer, value)

    def receive(self, channel: int) -> tuple[bool, Any]:
        """Take a value from the peer: (whether one has arrived, the value)."""
        return self._port.receive_from(channel, self._peer)


class ReadyBatchedLoop(SlicedLoop):
    """One slice per peer; segments are deferred, and run at once for all slices that are ready."""

    def __init__(
        self,
        loop: Repeat,
        slots: Slots,
        peers: dict[int, slice],
        batching_seconds: float,
        port: Port,
        context: Context,
        values: SliceValues = TREES,
    ) -> None:
        batched = {s for node in loop.body if isinstance(node, Segment) for s in (*node.reads, *node.donated)}
        super().__init__(replace(loop, body=_defer_segments(loop.body)), slots, peers.values(), batched, values)
        for part, peer in zip(self.slices, peers, strict=True):
            part.port = OnePeer(port, peer)
        self._seconds, self._tracer, self._clock = batching_seconds, context.tracer, context.clock
        self._cut: list[str] = []
        """Slots of segments that are cut as well, while NumPy acts for each slice alone."""

    def advance(self, turns: list[Iterator[Node]], run: Run) -> Iterator[Node]:
        """Advance slices as far as they can, and act for those that are ready."""
        at: dict[int, Node] = {}
        """The node that each unfinished slice waits at."""
        yield from self._go_on(turns, list(range(len(turns))), at)
        none_ready = self._clock()  # when no slice was ready; those that are ready have waited since then at most
        while at:
            ready = [k for k, node in at.items() if isinstance(node, Deferred)]
            waiting = [k for k in at if k not in ready]
            begin = self._clock()
            seconds_left = none_ready + self._seconds - begin
            if ready and (not waiting or seconds_left <= 0):
                segment, batch = _segment(at[ready[0]]), [k for k in ready if at[k] is at[ready[0]]]
                yield from self.run_batch(segment, [self.slices[k] for k in batch], run)
                self._trace(segment, begin)
                yield from self._go_on(turns, batch, at)
            else:
                exchange = at[waiting[0]]
                yield replace(exchange, timeout=seconds_left) if ready and isinstance(exchange, Recv) else exchange
                self._trace(exchange, begin, waiting=True)
            if not ready:
                none_ready = self._clock()
            yield from self._go_on(turns, [k for k, node in at.items() if not isinstance(node, Deferred)], at)
        self._merge_cut()

    def _go_on(self, turns: list[Iterator[Node]], numbers: list[int], at: dict[int, Node]) -> Iterator[Node]:
        """Advance some slices to the next segment or exchange that they wait at; drop those that have ended."""
        for k in numbers:
            for node in turns[k]:
                if _waits_at(node):
                    at[k] = node
                    break
                yield for_slice(node, self.slices[k])
            else:
                at.pop(k, None)

    def run_batch(self, segment: Segment, ready: list[GroupSlice], run: Run) -> Iterable[Node]:
        """Run a segment for all slices that are ready; yield what an engine in virtual time has to run for them."""
        self.act(segment, ready, run)
        return ()

    def act(self, segment: Segment, ready: list[GroupSlice], run: Run) -> None:
        """Run a segment for some slices: for each alone in NumPy, or for all of them at once, compiled."""
        if segment.lowered is not None and self._is_small(segment, ready[0]):
            self._cut_too(segment)
            for part in ready:
                run((segment,), part.slots)
            return
        self._merge_cut()
        if segment.partial is None:
            segment.partial = PartialSegment(segment, self.loop.index)
        segment.partial(self.whole, ready)

    def _is_small(self, segment: Segment, part: GroupSlice) -> bool:
        """Whether NumPy acts; decided by the sizes of one slice."""

        def own(slot: str) -> Any:
            return part.slots[slot] if slot in part.slots else slice_groups(slot, self.whole[slot], part.groups)

        if segment.lowered.acting == "undecided":
            return segment.lowered.small({s: own(s) for s in segment.donated}, {s: own(s) for s in segment.reads})
        return segment.lowered.acting == "numpy"

    def _cut_too(self, segment: Segment) -> None:
        """Cut the slots that a segment reads."""
        for slot in (*segment.donated, *segment.reads):
            if slot not in self.slices[0].slots and slot in self.whole:
                self._cut.append(slot)
                for part in self.slices:
                    part.slots[slot] = slice_groups(slot, self.whole[slot], part.groups)

    def _merge_cut(self) -> None:
        for slot in self._cut:
            self.whole[slot] = merge_groups(slot, [part.slots.pop(slot) for part in self.slices])
        self._cut.clear()

    def _trace(self, node: Node, begin: float, waiting: bool = False) -> None:
        if self._tracer is not None:
            self._tracer.span(node, begin, waiting)


def _waits_at(node: Node) -> bool:
    """Whether a slice waits at a node: a segment, for others to be ready; or an exchange."""
    return not isinstance(node, Deferred) or isinstance(node.nodes[0], Segment)


def _segment(node: Node) -> Segment:
    assert isinstance(node, Deferred)
    (segment,) = node.nodes
    assert isinstance(segment, Segment)
    return segment


def _defer_segments(body: tuple[Node, ...]) -> tuple[Node, ...]:
    for node in body:
        if not isinstance(node, Op | Segment | Send | Recv):
            raise TypeError(f"cannot be run for some environments only: {node}")
    return tuple(Deferred((node,)) if isinstance(node, Segment) else node for node in body)
