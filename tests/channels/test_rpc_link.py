"""Links between machines, without any: what is under way, what is lost with who dies, and what a newcomer gets."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest

from tessera.channels.link import GONE, HERE, REFILLING, LinkSpec
from tessera.channels.rpc.link import LocalPayload as Bytes
from tessera.channels.rpc.link import Payload, RpcLink
from tessera.channels.rpc.wire import MessageHeader, Name, Packet, Sender, decode, encode

NAME = (0, 0)
ACTOR, STORE, OTHER = 0, 1, 2


class Net:
    """Carries post between ends in the order in which it is told to, and knows who takes part."""

    def __init__(self, spec: LinkSpec) -> None:
        self.spec = spec
        self.presences = dict.fromkeys(spec.places, HERE)
        self.ends: dict[int, RpcLink] = {}
        self.under_way: deque[tuple[int, str, tuple[Any, ...]]] = deque()
        for place in spec.places:
            self.join(place)

    def join(self, place: int) -> RpcLink:
        """Put somebody new at a place."""
        self.ends[place] = RpcLink(NAME, self.spec, place, self, lambda: None, self.presences.__getitem__)
        return self.ends[place]

    def payload(self, content: np.ndarray) -> Payload:
        return Bytes(content)

    def deliver(self, place: int, header: MessageHeader, payload: Payload) -> None:
        self.under_way.append((place, "take_in", (header, payload.open())))

    def credit(self, place: int, name: Name, reader: int, taken: int) -> None:
        self.under_way.append((place, "note_taken", (reader, taken)))

    def offer(self, place: int, name: Name, reader: int) -> None:
        message = self.ends[ACTOR].newest_for(reader)
        if message is not None:
            self.deliver(place, *message)

    def collect(self) -> None:
        """Nothing waits until it is looked for."""

    def carry(self, backwards: bool = False) -> None:
        """Let everything arrive that is under way."""
        while self.under_way:
            place, what, arguments = self.under_way.pop() if backwards else self.under_way.popleft()
            getattr(self.ends[place], what)(*arguments)

    def replace(self, place: int) -> RpcLink:
        """Somebody dies with all that was under way to it, and a newcomer learns from others how far it had come."""
        self.under_way = deque(post for post in self.under_way if post[0] != place)
        self.presences[place] = GONE
        met = {p: end.meet(place) for p, end in self.ends.items() if p != place}
        newcomer = self.join(place)
        newcomer.adopt(met)
        return newcomer


def message(number: float) -> np.ndarray:
    return np.full(2, number, np.float32)


def read(link: RpcLink, reader: int = 0) -> list[float]:
    """Take all that waits for a reader."""
    found = []
    while link.waiting(reader):
        found.append(float(link.peek(reader).value[0]))
        link.release(reader)
    return found


@pytest.fixture
def net() -> Net:
    return Net(LinkSpec(message(0), (STORE, OTHER), ACTOR, capacity=2, absent=GONE, needed=True))


def send(net: Net, *numbers: float) -> None:
    for number in numbers:
        assert net.ends[ACTOR].can_send()
        net.ends[ACTOR].put(message(number), int(number))


def test_who_is_absent_gets_nothing_and_who_comes_back_all_that_is_sent_from_then_on(net):
    send(net, 0, 1)
    net.carry()
    assert read(net.ends[STORE]) == [0, 1]
    newcomer = net.replace(STORE)
    for number in range(2, 50):  # many more than a queue holds
        net.carry()
        read(net.ends[OTHER], 1)
        net.carry()
        send(net, number)
    assert not [post for post in net.under_way if post[0] == STORE]
    net.presences[STORE] = REFILLING
    newcomer.skip(0)
    net.carry()
    assert read(net.ends[OTHER], 1) == [49]
    net.carry()
    send(net, 50, 51)
    assert not net.ends[ACTOR].can_send()
    net.carry()
    assert read(newcomer) == [50, 51]
    assert read(net.ends[OTHER], 1) == [50, 51]
    net.carry()
    send(net, 52, 53)
    net.carry()
    assert read(newcomer) == [52, 53]


def test_a_newcomer_keeps_what_it_got_before_others_knew_that_its_place_was_empty(net):
    newcomer = net.replace(STORE)
    net.presences[STORE] = HERE  # as the sender still believes
    send(net, 0, 1)
    net.carry()
    read(net.ends[OTHER], 1)
    net.carry()
    net.presences[STORE] = GONE
    send(net, 2)
    net.carry()
    read(net.ends[OTHER], 1)
    net.presences[STORE] = REFILLING
    net.carry()
    send(net, 3, 4)
    net.carry()
    assert newcomer.waiting(0) == 4
    assert read(newcomer) == [0, 1, 3, 4]


def test_post_that_overtakes_is_read_in_order_and_what_comes_too_late_is_not_read(net):
    newcomer = net.replace(STORE)
    net.presences[STORE] = HERE
    send(net, 0)
    late = net.under_way.popleft()
    assert late[0] == STORE
    net.presences[STORE] = GONE
    net.carry()
    read(net.ends[OTHER], 1)
    net.carry()
    send(net, 1)
    net.carry()
    read(net.ends[OTHER], 1)
    net.carry()
    net.presences[STORE] = HERE
    send(net, 2, 3)
    net.carry(backwards=True)
    net.under_way.append(late)
    net.carry()
    assert read(newcomer) == [2, 3]


def test_a_sender_waits_while_nobody_would_get_what_it_sends(net):
    net.presences |= {STORE: GONE, OTHER: GONE}
    assert not net.ends[ACTOR].can_send()
    net.presences[OTHER] = REFILLING
    assert net.ends[ACTOR].can_send()


def test_a_new_sender_goes_on_though_one_reader_has_missed_messages(net):
    net.replace(STORE)
    for number in range(4):
        send(net, number)
        net.carry()
        read(net.ends[OTHER], 1)
        net.carry()
    assert net.ends[STORE].sent == 0
    net.presences[STORE] = HERE
    sender = net.replace(ACTOR)
    net.presences[ACTOR] = HERE
    assert sender.sent == 4
    send(net, 4)
    net.carry()
    assert read(net.ends[STORE])[-1] == 4
    assert read(net.ends[OTHER], 1) == [4]


def test_what_a_queue_carries_that_all_wait_for_is_not_lost_with_its_reader():
    net = Net(LinkSpec(message(0), (STORE,), ACTOR, capacity=2))
    send(net, 0)
    net.carry()
    assert read(net.ends[STORE]) == [0]
    net.carry()
    send(net, 1, 2)
    newcomer = net.replace(STORE)
    assert not net.ends[ACTOR].can_send()
    assert newcomer.at(0)[0] == 0  # the last that its predecessor took
    assert read(newcomer) == [1, 2]
    net.carry()
    send(net, 3)
    net.carry()
    assert read(newcomer) == [3]


def test_who_reads_a_register_gets_the_newest_once_it_has_got_what_was_sent_before():
    net = Net(LinkSpec(message(0), (STORE, OTHER), ACTOR, capacity=2, register=True))
    send(net, 0, 1, 2)
    assert [post[0] for post in net.under_way] == [STORE, OTHER]
    net.carry()  # the first, that it has come, and then the last
    for place in (STORE, OTHER):
        newest = net.ends[place].newest()
        assert newest is not None
        assert (float(newest.value[0]), newest.version) == (2, 2)
    assert net.ends[ACTOR].newest_for(0) is None
    newcomer = net.replace(STORE)
    assert newcomer.newest().version == 2
    send(net, 3)
    net.carry()
    assert newcomer.newest().version == net.ends[OTHER].newest().version == 3


def test_a_letter_is_what_was_sealed():
    contents = [np.arange(128, dtype=np.uint8), np.arange(64, dtype=np.uint8), np.full(192, 7, np.uint8)]
    headers = tuple(MessageHeader((6, k), 9, 8 + k, 7) for k in range(3))
    packet = Packet(Sender(3, 2, REFILLING), {((1, 0), 2): 5, ((4, 7), 0): 2**40}, headers)
    for attachments in ([], [1], [0, 2], [0, 1, 2]):
        data = encode(packet, [None if k in attachments else content for k, content in enumerate(contents)])
        found, given = decode(data, [contents[k] for k in attachments])
        assert found == packet
        for one, content in zip(given, contents, strict=True):
            np.testing.assert_array_equal(one, content)
    owing = packet._replace(headers=())
    assert decode(encode(owing)) == (owing, [])


def test_a_link_keeps_no_more_messages_than_its_slots_and_in_order():
    spec = LinkSpec(message(0), (STORE,), ACTOR, capacity=3)
    net = Net(spec)
    send(net, 0, 1, 2)
    assert not net.ends[ACTOR].can_send()
    twice = net.under_way[0]
    net.carry(backwards=True)
    net.under_way.append(twice)
    net.carry()
    assert net.ends[STORE].waiting(0) == 3
    assert net.ends[STORE].peek(0, 2).version == 2
    assert read(net.ends[STORE]) == [0, 1, 2]
    net.carry()
    assert net.ends[ACTOR].can_send()
    assert net.ends[ACTOR].waiting(0) == 0
    for end in net.ends.values():
        assert len(end.meet(STORE).held) <= spec.slots
