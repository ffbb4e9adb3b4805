"""What a replica sends at once, and what travels with something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.channels.link import HERE, LinkSpec
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
