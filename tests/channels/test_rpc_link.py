"""Links between machines, in one process: what is in flight, what a death loses, and what a successor gets."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest

from tessera.channels.link import GONE, HERE, REFILLING, LinkSpec
from tessera.channels.rpc.rpc_link import LocalPayload, Payload, RpcLink
from tessera.channels.rpc.wire import LinkName, MessageHeader, Packet, Sender, decode, encode

LINK = (0, 0)
ACTOR, STORE, OTHER = 0, 1, 2


class Network:
    """Delivers calls between ends in the order that a test wants, and knows which places take part."""

    def __init__(self, spec: LinkSpec) -> None:
        self.spec = spec
        self.presences = dict.fromkeys(spec.places, HERE)
        self.ends: dict[int, RpcLink] = {}
        self.in_flight: deque[tuple[int, str, tuple[Any, ...]]] = deque()
        for place in spec.places:
            self.join(place)

    def join(self, place: int) -> RpcLink:
        """Put a new end at a place."""
        self.ends[place] = RpcLink(LINK, self.spec, place, self, lambda: None, self.presences.__getitem__)
        return self.ends[place]

    def make_payload(self, content: np.ndarray) -> Payload:
        return LocalPayload(content)

    def send_message(self, place: int, header: MessageHeader, payload: Payload) -> None:
        self.in_flight.append((place, "receive", (header, payload.read())))

    def schedule_credit(self, place: int, link: LinkName, reader: int, taken: int) -> None:
        self.in_flight.append((place, "receive_credit", (reader, taken)))

    def schedule_newest(self, place: int, link: LinkName, reader: int) -> None:
        message = self.ends[ACTOR].take_newest_for(reader)
        if message is not None:
            self.send_message(place, *message)

    def process_replies(self) -> None:
        """There are no replies."""

    def deliver(self, backwards: bool = False) -> None:
        """Let everything in flight arrive."""
        while self.in_flight:
            place, method, arguments = self.in_flight.pop() if backwards else self.in_flight.popleft()
            getattr(self.ends[place], method)(*arguments)

    def replace(self, place: int) -> RpcLink:
        """An end dies with all that was in flight to it, and its successor gets what the other ends know."""
        self.in_flight = deque(call for call in self.in_flight if call[0] != place)
        self.presences[place] = GONE
        states = {p: end.state_for_successor(place) for p, end in self.ends.items() if p != place}
        successor = self.join(place)
        successor.restore_state(states)
        return successor


def message(number: float) -> np.ndarray:
    return np.full(2, number, np.float32)


def read(link: RpcLink, reader: int = 0) -> list[float]:
    """Take all messages that wait for a reader."""
    numbers = []
    while link.waiting(reader):
        numbers.append(float(link.peek(reader).value[0]))
        link.release(reader)
    return numbers


@pytest.fixture
def net() -> Network:
    return Network(
        LinkSpec(like=message(0), readers=(STORE, OTHER), writer=ACTOR, capacity=2, absent=GONE, needed=True)
    )


def send(net: Network, *numbers: float) -> None:
    for number in numbers:
        assert net.ends[ACTOR].can_send()
        net.ends[ACTOR].put(message(number), int(number))


def test_an_absent_reader_gets_nothing_and_its_successor_all_that_is_sent_from_then_on(net):
    send(net, 0, 1)
    net.deliver()
    assert read(net.ends[STORE]) == [0, 1]
    successor = net.replace(STORE)
    for number in range(2, 50):  # many more than a queue holds
        net.deliver()
        read(net.ends[OTHER], 1)
        net.deliver()
        send(net, number)
    assert not [call for call in net.in_flight if call[0] == STORE]
    net.presences[STORE] = REFILLING
    successor.skip(0)
    net.deliver()
    assert read(net.ends[OTHER], 1) == [49]
    net.deliver()
    send(net, 50, 51)
    assert not net.ends[ACTOR].can_send()
    net.deliver()
    assert read(successor) == [50, 51]
    assert read(net.ends[OTHER], 1) == [50, 51]
    net.deliver()
    send(net, 52, 53)
    net.deliver()
    assert read(successor) == [52, 53]


def test_a_successor_keeps_what_it_got_before_the_sender_knew_of_the_death(net):
    successor = net.replace(STORE)
    net.presences[STORE] = HERE  # as the sender still believes
    send(net, 0, 1)
    net.deliver()
    read(net.ends[OTHER], 1)
    net.deliver()
    net.presences[STORE] = GONE
    send(net, 2)
    net.deliver()
    read(net.ends[OTHER], 1)
    net.presences[STORE] = REFILLING
    net.deliver()
    send(net, 3, 4)
    net.deliver()
    assert successor.waiting(0) == 4
    assert read(successor) == [0, 1, 3, 4]


def test_messages_that_overtake_are_read_in_order_and_those_that_come_too_late_are_not_read(net):
    successor = net.replace(STORE)
    net.presences[STORE] = HERE
    send(net, 0)
    late = net.in_flight.popleft()
    assert late[0] == STORE
    net.presences[STORE] = GONE
    net.deliver()
    read(net.ends[OTHER], 1)
    net.deliver()
    send(net, 1)
    net.deliver()
    read(net.ends[OTHER], 1)
    net.deliver()
    net.presences[STORE] = HERE
    send(net, 2, 3)
    net.deliver(backwards=True)
    net.in_flight.append(late)
    net.deliver()
    assert read(successor) == [2, 3]


def test_a_sender_waits_while_no_reader_takes_part(net):
    net.presences |= {STORE: GONE, OTHER: GONE}
    assert not net.ends[ACTOR].can_send()
    net.presences[OTHER] = REFILLING
    assert net.ends[ACTOR].can_send()


def test_a_new_sender_goes_on_though_one_reader_has_missed_messages(net):
    net.replace(STORE)
    for number in range(4):
        send(net, number)
        net.deliver()
        read(net.ends[OTHER], 1)
        net.deliver()
    assert net.ends[STORE].sent == 0
    net.presences[STORE] = HERE
    sender = net.replace(ACTOR)
    net.presences[ACTOR] = HERE
    assert sender.sent == 4
    send(net, 4)
    net.deliver()
    assert read(net.ends[STORE])[-1] == 4
    assert read(net.ends[OTHER], 1) == [4]


def test_messages_of_a_synchronous_queue_are_not_lost_with_their_reader():
    net = Network(LinkSpec(like=message(0), readers=(STORE,), writer=ACTOR, capacity=2))
    send(net, 0)
    net.deliver()
    assert read(net.ends[STORE]) == [0]
    net.deliver()
    send(net, 1, 2)
    successor = net.replace(STORE)
    assert not net.ends[ACTOR].can_send()
    assert successor.at(0)[0] == 0  # the last one that its predecessor took
    assert read(successor) == [1, 2]
    net.deliver()
    send(net, 3)
    net.deliver()
    assert read(successor) == [3]


def test_a_reader_of_a_register_gets_the_newest_once_it_has_confirmed_the_one_before():
    net = Network(LinkSpec(like=message(0), readers=(STORE, OTHER), writer=ACTOR, capacity=2, register=True))
    send(net, 0, 1, 2)
    assert [call[0] for call in net.in_flight] == [STORE, OTHER]
    net.deliver()  # the first message, its credit, and then the last message
    for place in (STORE, OTHER):
        newest = net.ends[place].newest()
        assert newest is not None
        assert (float(newest.value[0]), newest.version) == (2, 2)
    assert net.ends[ACTOR].take_newest_for(0) is None
    successor = net.replace(STORE)
    assert successor.newest().version == 2
    send(net, 3)
    net.deliver()
    assert successor.newest().version == net.ends[OTHER].newest().version == 3


def test_a_packet_is_decoded_to_what_was_encoded():
    contents = [np.arange(128, dtype=np.uint8), np.arange(64, dtype=np.uint8), np.full(192, 7, np.uint8)]
    headers = tuple(MessageHeader((6, k), 9, 8 + k, 7) for k in range(3))
    packet = Packet(Sender(3, 2, REFILLING), {((1, 0), 2): 5, ((4, 7), 0): 2**40}, headers)
    for attachments in ([], [1], [0, 2], [0, 1, 2]):
        data = encode(packet, [None if k in attachments else content for k, content in enumerate(contents)])
        decoded, got = decode(data, [contents[k] for k in attachments])
        assert decoded == packet
        for got_content, content in zip(got, contents, strict=True):
            np.testing.assert_array_equal(got_content, content)
    only_credits = packet._replace(headers=())
    assert decode(encode(only_credits)) == (only_credits, [])


def test_a_link_keeps_no_more_messages_than_its_slots_and_in_order():
    spec = LinkSpec(like=message(0), readers=(STORE,), writer=ACTOR, capacity=3)
    net = Network(spec)
    send(net, 0, 1, 2)
    assert not net.ends[ACTOR].can_send()
    twice = net.in_flight[0]
    net.deliver(backwards=True)
    net.in_flight.append(twice)
    net.deliver()
    assert net.ends[STORE].waiting(0) == 3
    assert net.ends[STORE].peek(0, 2).version == 2
    assert read(net.ends[STORE]) == [0, 1, 2]
    net.deliver()
    assert net.ends[ACTOR].can_send()
    assert net.ends[ACTOR].waiting(0) == 0
    for end in net.ends.values():
        assert len(end.state_for_successor(STORE).messages) <= spec.slots
