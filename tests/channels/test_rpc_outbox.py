"""What a replica sends at once, and what travels with something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.channels.link import HERE, LinkSpec
from tessera.channels.rpc.fan_out import FanOut
from tessera.channels.rpc.outbox import INLINE_BYTES, NEXT_MESSAGE_SECONDS, PIGGYBACK_SECONDS, Outbox
from tessera.channels.rpc.rpc_link import LocalPayload, Payload, RpcLink
from tessera.channels.rpc.wire import LinkName, MessageHeader, Packet, Sender, decode

ACTOR, LEARNER = 0, 1
EXPERIENCE, PARAMS = (0, 0), (1, 0)
SMALL = np.zeros(16, np.float32)


class RemotePayload(LocalPayload):
    """Bytes that a receiver fetches."""

    def local(self) -> np.ndarray | None:
        return None


class Learner:
    """The links and the outbox of a learner that gets experience from an actor and sends it params.

    The clock is set by hand.
    """

    def __init__(self, params: np.ndarray = SMALL, patient: bool = True) -> None:
        self.now, self.packets = 100.0, []
        specs = {
            EXPERIENCE: LinkSpec(like=SMALL, readers=(LEARNER,), writer=ACTOR, capacity=2, patient=patient),
            PARAMS: LinkSpec(like=params, readers=(ACTOR,), writer=LEARNER, capacity=1, register=True, patient=patient),
        }
        self.links: dict[LinkName, RpcLink] = {}
        identity = Sender(LEARNER, 1, HERE)
        self.outbox = Outbox(specs, self.links.__getitem__, lambda: identity, self, lambda: self.now)
        for name, spec in specs.items():
            self.links[name] = RpcLink(name, spec, LEARNER, self.outbox, lambda: None, lambda place: HERE)
        self.numbers = {EXPERIENCE: 0, PARAMS: 0}

    def store_payload(self, content: np.ndarray) -> Payload:
        return RemotePayload(content)

    def send_packet(self, place: int, data: bytes, attachments: list[Payload]) -> None:
        assert place == ACTOR
        self.packets.append(decode(data, [payload.read() for payload in attachments])[0])

    def process_replies(self) -> None:
        """There are no replies."""

    def receive_unroll(self, after: float, got_params: int = 0) -> Packet | None:
        """Receive an unroll after some seconds, and the number of params that the actor has got; the reply."""
        self.now += after
        self.outbox.note_packet_from(ACTOR)
        if got_params:
            self.links[PARAMS].receive_credit(0, got_params)
        header = MessageHeader(EXPERIENCE, self.numbers[EXPERIENCE], 0, 0)
        self.links[EXPERIENCE].receive(header, np.zeros(64, np.uint8))
        self.numbers[EXPERIENCE] += 1
        data = self.outbox.reply_to(ACTOR)
        return decode(data)[0] if data else None

    def learn(self) -> None:
        """Take one unroll and publish params."""
        self.links[EXPERIENCE].release(0)
        self.publish()

    def publish(self) -> None:
        self.links[PARAMS].put(self.links[PARAMS].like, self.numbers[PARAMS])
        self.numbers[PARAMS] += 1

    def take_packets(self) -> list[Packet]:
        packets, self.packets = self.packets, []
        return packets


@pytest.fixture
def learner() -> Learner:
    """A learner with two packets from its actor, a moment apart."""
    learner = Learner()
    learner.receive_unroll(1.0)
    learner.receive_unroll(PIGGYBACK_SECONDS / 2)
    return learner


def summary(packet: Packet | None) -> Any:
    """Versions of the params in a packet, and its credit for experience."""
    assert packet is not None
    assert all(header.link == PARAMS for header in packet.headers)
    return [header.version for header in packet.headers], packet.credits.get((EXPERIENCE, 0))


def test_an_actor_that_sends_often_gets_the_newest_params_with_the_reply(learner):
    learner.learn()
    assert summary(learner.take_packets()[0]) == ([0], 1)  # its last known credit was used up
    learner.learn()
    learner.learn()
    assert learner.take_packets() == []
    assert summary(learner.receive_unroll(PIGGYBACK_SECONDS / 2, got_params=1)) == ([2], 3)
    assert learner.take_packets() == []


def test_an_actor_that_has_not_confirmed_its_params_gets_no_newer_ones(learner):
    learner.learn()
    assert summary(learner.take_packets()[0]) == ([0], 1)
    learner.learn()
    assert summary(learner.receive_unroll(PIGGYBACK_SECONDS / 2)) == ([], 2)


def test_an_actor_that_sends_seldom_gets_params_at_once():
    learner = Learner()
    learner.receive_unroll(1.0)
    learner.receive_unroll(PIGGYBACK_SECONDS * 2)
    learner.publish()
    assert summary(learner.take_packets()[0]) == ([0], None)


def test_params_that_an_actor_may_wait_for_are_sent_at_once():
    learner = Learner(patient=False)
    for _ in range(3):
        learner.receive_unroll(PIGGYBACK_SECONDS / 4)
        learner.links[EXPERIENCE].release(0)
    learner.outbox.reply_to(ACTOR)
    learner.take_packets()
    learner.publish()
    assert summary(learner.take_packets()[0]) == ([0], None)


def test_params_do_not_wait_long_for_an_actor_that_has_become_slow(learner):
    learner.links[EXPERIENCE].release(0, 2)
    learner.outbox.reply_to(ACTOR)
    learner.publish()
    assert learner.take_packets() == []
    learner.now += PIGGYBACK_SECONDS
    learner.publish()
    assert summary(learner.take_packets()[0]) == ([1], None)


def test_an_idle_replica_sends_what_others_wait_for_and_the_rest_a_little_later(learner):
    learner.links[EXPERIENCE].release(0)
    assert learner.take_packets() == []
    assert not learner.outbox.flush()  # the actor has used up its credit, so it gets an update
    assert summary(learner.take_packets()[0]) == ([], 1)
    learner.links[EXPERIENCE].release(0)
    assert learner.outbox.flush()
    assert learner.take_packets() == []
    assert not learner.outbox.flush(everything=True)
    assert summary(learner.take_packets()[0]) == ([], 2)
    assert not learner.outbox.flush(everything=True)
    assert learner.take_packets() == []


def test_a_credit_goes_at_once_if_no_traffic_is_expected():
    learner = Learner()
    learner.receive_unroll(1.0)
    learner.links[EXPERIENCE].release(0)
    assert summary(learner.take_packets()[0]) == ([], 1)
    learner.publish()  # a message: another is likely to follow
    learner.take_packets()
    learner.receive_unroll(NEXT_MESSAGE_SECONDS / 2)
    learner.links[EXPERIENCE].release(0)
    assert learner.take_packets() == []
    learner.now += NEXT_MESSAGE_SECONDS
    learner.receive_unroll(0)
    learner.links[EXPERIENCE].release(0)
    assert summary(learner.take_packets()[0]) == ([], 3)


def test_params_that_do_not_fit_into_a_reply_go_as_a_call():
    learner = Learner(np.zeros(INLINE_BYTES, np.uint8))
    learner.receive_unroll(1.0)
    learner.receive_unroll(PIGGYBACK_SECONDS / 2)
    learner.links[EXPERIENCE].release(0, 2)
    learner.outbox.reply_to(ACTOR)
    learner.publish()
    assert learner.take_packets() == []
    assert learner.receive_unroll(PIGGYBACK_SECONDS / 2) is None
    assert summary(learner.take_packets()[0]) == ([0], None)


class SharedNode:
    """A learner with two actors that share the memory of their node, and one elsewhere."""

    LEARNER, MATES, ALONE = 0, (1, 2), 3

    def __init__(self) -> None:
        self.now, self.packets, self.lost = 100.0, [], set()
        specs = {
            (0, p): LinkSpec(like=SMALL, readers=(self.LEARNER,), writer=p, capacity=1)
            for p in (*self.MATES, self.ALONE)
        }
        specs[PARAMS] = LinkSpec(like=SMALL, readers=(*self.MATES, self.ALONE), writer=self.LEARNER, capacity=1)
        self.links: dict[LinkName, RpcLink] = {}
        identity = Sender(self.LEARNER, 1, HERE)
        self.outbox = Outbox(
            specs, self.links.__getitem__, lambda: identity, self, lambda: self.now,
            lambda place: self.MATES if place in self.MATES and place not in self.lost else (),
        )  # fmt: skip
        fan_out = FanOut(groups=((0, 1),), reachable=lambda place: place not in self.lost)
        for name, spec in specs.items():
            self.links[name] = RpcLink(
                name,
                spec,
                self.LEARNER,
                self.outbox,
                lambda: None,
                lambda place: HERE,
                fan_out if name == PARAMS else None,
            )

    def store_payload(self, content: np.ndarray) -> Payload:
        return RemotePayload(content)

    def send_packet(self, place: int, data: bytes, attachments: list[Payload]) -> None:
        self.packets.append((place, decode(data)[0]))

    def process_replies(self) -> None:
        """There are no replies."""

    def update(self, number: int) -> list[tuple[int, Packet]]:
        """Take an unroll of each actor and publish params; what was sent."""
        for (channel, place), link in self.links.items():
            if channel == 0:
                link.receive(MessageHeader((0, place), number, 0, 0), np.zeros(64, np.uint8))
                link.release(0)
        for reader in range(3):
            self.links[PARAMS].receive_credit(reader, number)
        self.links[PARAMS].put(SMALL, number)
        sent, self.packets = self.packets, []
        return sent


def test_credits_for_all_actors_of_a_node_go_with_the_params_that_one_of_them_gets():
    node = SharedNode()
    node.update(0)
    first, second = node.update(1)
    assert (first[0], second[0]) == (1, 3)
    assert first[1].credits == {((0, 1), 0): 2, ((0, 2), 0): 2}
    assert second[1].credits == {((0, 3), 0): 2}


def test_credits_that_a_relay_takes_with_it_are_sent_again():
    node = SharedNode()
    node.update(0)
    node.update(1)
    node.lost.add(1)
    node.outbox.repeat_credits(1, node.MATES)
    node.outbox.flush(everything=True)
    assert [(place, packet.credits) for place, packet in node.packets] == [(2, {((0, 2), 0): 2})]
    node.packets.clear()
    sent = dict(node.update(2))
    assert set(sent) == {2, 3}  # another actor is the relay


def test_credits_for_others_do_not_travel_with_a_reply():
    node = SharedNode()
    node.update(0)
    node.links[0, 2].receive(MessageHeader((0, 2), 1, 0, 0), np.zeros(64, np.uint8))
    node.links[0, 2].release(0)
    assert node.outbox.reply_to(1) == b""
    assert decode(node.outbox.reply_to(2))[0].credits == {((0, 2), 0): 2}
