"""Links whose readers share the memory of their node: a message comes once, and no death of a relay loses any."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from test_rpc_link import LINK, Network, message, read

from tessera.channels.link import GONE, HERE, LinkSpec
from tessera.channels.rpc.fan_out import (
    RELAY_SECONDS,
    FanOut,
    FanOutBuffer,
    PlacedBuffer,
    PlacedCredits,
    SharedCredits,
    buffers_of_nodes,
)
from tessera.channels.rpc.rpc_link import RpcLink
from tessera.channels.shared_memory import Arena

WRITER = 0
NODES = ["a", "a", "b", "b", "b", "c"]
"""Of the writer, and of five readers."""


class Cluster(Network):
    """A network whose ends share the memory of their nodes, and whose deaths a test decides."""

    def __init__(self, spec: LinkSpec) -> None:
        self.calls: Counter[int] = Counter()
        self.starting: set[int] = set()
        self.now = 0.0
        self.placed = {node: own[LINK] for node, own in buffers_of_nodes({LINK: spec}, NODES).items()}
        self.arenas = {node: Arena(placed.nbytes) for node, placed in self.placed.items()}
        super().__init__(spec)

    def join(self, place: int) -> RpcLink:
        node, buffer, neighbours = NODES[place], None, ()
        if node in self.placed and place in self.placed[node].places:
            buffer = FanOutBuffer(self.arenas[node], self.placed[node])
            neighbours = tuple(p for p in self.placed[node].places if p != place)
        others = {n: placed for n, placed in self.placed.items() if n != NODES[WRITER]}
        fan_out = FanOut(
            groups=tuple(placed.readers for placed in others.values()) if place == WRITER else (),
            buffer=buffer,
            neighbours=neighbours,
            reachable=lambda other: other not in self.starting,
            clock=lambda: self.now,
        )
        presence = self.presences.__getitem__
        self.ends[place] = RpcLink(LINK, self.spec, place, self, lambda: None, presence, fan_out)
        return self.ends[place]

    def send_message(self, place: int, header: Any, payload: Any) -> None:
        self.calls[place] += 1
        super().send_message(place, header, payload)

    def schedule_newest(self, place: int, link: Any, reader: int) -> None:
        newest = self.ends[WRITER].take_newest_for(reader, place)
        if newest is not None:
            self.send_message(place, *newest)

    def kill(self, place: int) -> None:
        """A process dies with all that was in flight to it."""
        self.in_flight = type(self.in_flight)(call for call in self.in_flight if call[0] != place)

    def replace(self, place: int) -> RpcLink:
        self.kill(place)
        self.starting.add(place)
        states = {p: end.state_for_successor(place) for p, end in self.ends.items() if p != place}
        successor = self.join(place)
        successor.restore_state(states)
        return successor


def cluster(capacity: int = 2, **options: Any) -> Cluster:
    return Cluster(LinkSpec(like=message(0), readers=(1, 2, 3, 4, 5), writer=WRITER, capacity=capacity, **options))


def send(net: Cluster, *numbers: float) -> None:
    for number in numbers:
        assert net.ends[WRITER].can_send()
        net.ends[WRITER].put(message(number), int(number))


def versions(net: Cluster) -> list[int]:
    """What each reader has as the newest."""
    newest = [net.ends[place].newest() for place in range(1, 6)]
    return [-1 if m is None else m.version for m in newest]


def test_a_message_goes_once_to_each_other_node_and_all_readers_take_it():
    net = cluster()
    for number in range(20):
        send(net, number)
        net.deliver()
        assert [read(net.ends[place], place - 1) for place in range(1, 6)] == [[number]] * 5
        net.deliver()
    assert net.calls == {2: 20, 5: 20}  # one of three on node b, and the one on node c; none on the writer's own


def test_a_writer_waits_for_the_slowest_reader_wherever_it_is():
    for slow in range(1, 6):
        net = cluster(capacity=1)
        send(net, 0)
        net.deliver()
        for place in range(1, 6):
            if place != slow:
                read(net.ends[place], place - 1)
        net.deliver()
        assert not net.ends[WRITER].can_send()
        assert net.ends[WRITER].waiting(slow - 1) == 1
        read(net.ends[slow], slow - 1)
        net.deliver()
        assert net.ends[WRITER].can_send()


def test_messages_that_overtake_each_other_are_read_in_order():
    net = cluster(capacity=3)
    send(net, 0, 1, 2)
    net.deliver(backwards=True)
    assert [read(net.ends[place], place - 1) for place in range(1, 6)] == [[0, 1, 2]] * 5


def test_what_a_relay_takes_with_it_comes_again_through_another():
    net = cluster(capacity=2)
    send(net, 0, 1)
    assert net.calls[2] == 2
    net.replace(2)
    assert net.calls[3] == 2
    net.deliver()
    assert [read(net.ends[place], place - 1) for place in range(1, 6)] == [[0, 1]] * 5
    net.deliver()
    send(net, 2)
    assert net.calls[3] == 3
    net.starting.clear()  # the successor has reported, and is the relay again
    send(net, 3)
    assert net.calls[2] == 3
    net.deliver()
    assert [read(net.ends[place], place - 1) for place in range(1, 6)] == [[2, 3]] * 5


def test_a_relay_that_dies_after_it_has_passed_a_message_on_changes_nothing():
    net = cluster(capacity=2)
    send(net, 0)
    net.deliver()
    assert read(net.ends[3], 2) == [0]
    successor = net.replace(2)
    net.deliver()
    assert read(successor, 1) == [0]
    assert read(net.ends[4], 3) == [0]
    assert read(net.ends[3], 2) == []


def test_a_relay_that_dies_while_it_copies_leaves_nothing_half_written():
    net = cluster(capacity=2)
    send(net, 0)
    net.deliver()
    placed = net.placed["b"]
    words = net.arenas["b"].array(placed.offset, (placed.spec.slots * 8,), np.int64)
    words[8], words[9] = 0, 77  # the slot of the next message, as one who dies there leaves it
    for place in range(1, 6):
        assert read(net.ends[place], place - 1) == [0]
    net.deliver()
    send(net, 1)
    net.replace(2)
    net.deliver()
    assert [net.ends[place].waiting(place - 1) for place in range(1, 6)] == [1] * 5
    assert [net.ends[place].peek(place - 1).version for place in range(1, 6)] == [1] * 5
    assert [read(net.ends[place], place - 1) for place in range(1, 6)] == [[1]] * 5


def test_a_new_writer_sends_what_readers_of_each_node_lack():
    net = cluster(capacity=2)
    send(net, 0)
    net.deliver()
    for place in range(1, 6):
        read(net.ends[place], place - 1)
    net.deliver()
    send(net, 1)
    net.in_flight = type(net.in_flight)(call for call in net.in_flight if call[0] == 5)  # only node c gets it
    net.deliver()
    writer = net.replace(WRITER)
    net.starting.clear()
    assert writer.sent == 2
    net.deliver()
    assert [read(net.ends[place], place - 1) for place in range(1, 6)] == [[1]] * 5
    net.deliver()
    send(net, 2)
    net.deliver()
    assert [read(net.ends[place], place - 1) for place in range(1, 6)] == [[2]] * 5


def test_the_newest_params_go_to_a_node_once_the_ones_before_have_come():
    net = cluster(register=True)
    send(net, 0, 1, 2)
    assert net.calls == {2: 1, 5: 1}
    net.deliver()  # the first, its confirmation, and then the last
    assert versions(net) == [2] * 5
    assert net.calls == {2: 2, 5: 2}


@pytest.mark.parametrize("dead", [2, 3])
def test_params_that_a_relay_takes_with_it_come_through_another(dead):
    net = cluster(register=True)
    send(net, 0)
    net.deliver()
    send(net, 1)
    net.replace(dead)
    net.deliver()
    assert versions(net) == [1] * 5
    send(net, 2, 3)
    net.deliver()
    assert versions(net) == [3] * 5
    assert set(net.calls) == ({2, 3, 5} if dead == 2 else {2, 5})


def test_params_that_wait_for_a_relay_which_dies_are_not_sent_to_its_successor():
    net = cluster(register=True)
    send(net, 0)
    net.deliver()
    net.starting.add(2)
    assert net.ends[WRITER].take_newest_for(1, 2) is None
    send(net, 1)
    assert net.calls[3] == 1
    net.starting.update((3, 4))  # all of that node start again: one of them gets it when it runs
    net.kill(3)
    net.ends[WRITER].state_for_successor(3)
    assert net.in_flight[-1][0] == 2


def test_a_relay_that_is_stuck_does_not_keep_newer_params_from_the_others():
    net = cluster(register=True)
    send(net, 0)
    net.deliver()
    send(net, 1)
    stuck = [net.in_flight.popleft() for _ in range(len(net.in_flight)) if net.in_flight[0][0] == 2]
    assert len(stuck) == 1
    send(net, 2)
    net.deliver()
    assert versions(net) == [2, 0, 0, 0, 2]  # not yet overdue
    net.now += 2 * RELAY_SECONDS
    send(net, 3)
    net.deliver()
    assert versions(net) == [3] * 5
    net.in_flight.extend(stuck)  # it goes on, with params that are old by now
    net.deliver()
    send(net, 4)
    net.deliver()
    assert versions(net) == [4] * 5
    assert set(net.calls) == {2, 3, 5}


def test_a_new_writer_of_params_goes_on_where_readers_of_its_own_node_are():
    net = cluster(register=True)
    send(net, 0)
    net.deliver()
    send(net, 1)
    for place in range(1, 6):
        net.kill(place)  # only the reader on the writer's node has it
    writer = net.replace(WRITER)
    net.starting.clear()
    assert (writer.sent, writer.newest().version) == (2, 1)
    send(net, 2)
    net.deliver()
    assert versions(net) == [2] * 5


def test_a_buffer_keeps_the_later_of_two_messages_in_a_slot():
    spec = LinkSpec(like=message(0), readers=(1, 2), writer=0, capacity=1, register=True)
    placed = PlacedBuffer(0, spec, (0, 1), (1, 2))
    buffer = FanOutBuffer(Arena(placed.nbytes), placed)
    assert buffer.newest() == -1
    content = np.zeros(64, np.uint8)
    buffer.write(3, 30, content + 3)
    buffer.write(1, 10, content + 1)
    assert buffer.read(1) is None
    assert buffer.newest() == 3
    found = buffer.read(3)
    assert found is not None
    assert (int(found[0][0]), found[1]) == (3, 30)


def test_credits_that_a_neighbour_was_told_are_noted_and_never_go_back():
    placed = PlacedCredits(0, 3, 2)
    arena = Arena(placed.nbytes)
    neighbour, own = SharedCredits(arena, placed), SharedCredits(arena, placed)
    assert own.changed() == []
    neighbour.note(1, 5)
    neighbour.note(1, 4)
    assert own.changed() == [0, 5]
    assert own.changed() == []
    spec = LinkSpec(like=message(0), readers=(0, 1), writer=3, capacity=2)
    net = Network(spec)
    link = RpcLink(LINK, spec, 3, net, lambda: None, lambda place: HERE, FanOut(credits=SharedCredits(arena, placed)))
    for number in range(2):
        link.put(message(number), number)
    assert not link.can_send()
    neighbour.note(0, 1)
    assert link.can_send()
    assert SharedCredits(arena, placed).changed() == [1, 5]  # a successor finds them


def test_readers_that_may_be_absent_and_lonely_ones_get_messages_of_their_own():
    like = message(0)
    specs = {
        (0, 0): LinkSpec(like=like, readers=(2, 3), writer=0, capacity=1, absent=GONE),
        (1, 0): LinkSpec(like=like, readers=(2, 5), writer=0, capacity=1),
        (2, 0): LinkSpec(like=like, readers=(3, 4), writer=2, capacity=1),
        (3, 0): LinkSpec(like=like, readers=(0, 2, 3, 4), writer=2, capacity=1),
    }
    found = buffers_of_nodes(specs, NODES)
    assert {node: {name: placed.places for name, placed in own.items()} for node, own in found.items()} == {
        "b": {(3, 0): (3, 4, 2)}
    }
