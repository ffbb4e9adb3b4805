"""What a replica sends to others at once, and what goes with something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.channels.link import HERE, LinkSpec
from tessera.channels.rpc.link import LocalPayload, Payload, RpcLink
from tessera.channels.rpc.outbox import AGAIN_SECONDS, INLINE_BYTES, OFTEN_SECONDS, Outbox
from tessera.channels.rpc.wire import MessageHeader, Name, Packet, Sender, decode

ACTOR, LEARNER = 0, 1
EXPERIENCE, PARAMS = (0, 0), (1, 0)
SMALL = np.zeros(16, np.float32)


class Laid(LocalPayload):
    """Bytes that others fetch."""

    def here(self) -> np.ndarray | None:
        return None


class Replica:
    """The post of a learner that an actor sends experience to and gets params from, on a clock set by hand."""

    def __init__(self, params: np.ndarray = SMALL, patient: bool = True) -> None:
        self.now, self.letters = 100.0, []
        lines = {
            EXPERIENCE: LinkSpec(SMALL, (LEARNER,), ACTOR, capacity=2, patient=patient),
            PARAMS: LinkSpec(params, (ACTOR,), LEARNER, capacity=1, register=True, patient=patient),
        }
        self.links: dict[Name, RpcLink] = {}
        me = Sender(LEARNER, 1, HERE)
        self.outgoing = Outbox(lines, self.links.__getitem__, lambda: me, self, lambda: self.now)
        for name, spec in lines.items():
            self.links[name] = RpcLink(name, spec, LEARNER, self.outgoing, lambda: None, lambda place: HERE)
        self.numbers = {EXPERIENCE: 0, PARAMS: 0}

    def store(self, content: np.ndarray) -> Payload:
        return Laid(content)

    def carry(self, place: int, data: bytes, attachments: list[Payload]) -> None:
        assert place == ACTOR
        self.letters.append(decode(data, [payload.open() for payload in attachments])[0])

    def collect(self) -> None:
        """There are no answers."""

    def hear(self, after: float, got_params: int = 0) -> Packet | None:
        """An unroll comes after some seconds, and the actor says how many params it has got; the answer."""
        self.now += after
        self.outgoing.hear(ACTOR)
        if got_params:
            self.links[PARAMS].note_taken(0, got_params)
        header = MessageHeader(EXPERIENCE, self.numbers[EXPERIENCE], 0, 0)
        self.links[EXPERIENCE].take_in(header, np.zeros(64, np.uint8))
        self.numbers[EXPERIENCE] += 1
        data = self.outgoing.answer(ACTOR)
        return decode(data)[0] if data else None

    def learn(self) -> None:
        """Take one unroll and publish params."""
        self.links[EXPERIENCE].release(0)
        self.publish()

    def publish(self) -> None:
        self.links[PARAMS].put(self.links[PARAMS].like, self.numbers[PARAMS])
        self.numbers[PARAMS] += 1

    def take_letters(self) -> list[Packet]:
        found, self.letters = self.letters, []
        return found


@pytest.fixture
def learner() -> Replica:
    """One that has heard from its actor twice, a moment apart."""
    replica = Replica()
    replica.hear(1.0)
    replica.hear(OFTEN_SECONDS / 2)
    return replica


def shown(packet: Packet | None) -> Any:
    """Versions of params in a packet, and what it says of experience."""
    assert packet is not None
    assert all(header.name == PARAMS for header in packet.headers)
    return [header.version for header in packet.headers], packet.credits.get((EXPERIENCE, 0))


def test_who_sends_often_gets_the_newest_params_with_the_answer(learner):
    learner.learn()
    assert shown(learner.take_letters()[0]) == ([0], 1)  # by what it was told it could not send any more
    learner.learn()
    learner.learn()
    assert learner.take_letters() == []
    assert shown(learner.hear(OFTEN_SECONDS / 2, got_params=1)) == ([2], 3)
    assert learner.take_letters() == []


def test_who_does_not_say_that_it_got_params_gets_no_more(learner):
    learner.learn()
    assert shown(learner.take_letters()[0]) == ([0], 1)
    learner.learn()
    assert shown(learner.hear(OFTEN_SECONDS / 2)) == ([], 2)


def test_who_sends_seldom_gets_params_at_once():
    learner = Replica()
    learner.hear(1.0)
    learner.hear(OFTEN_SECONDS * 2)
    learner.publish()
    assert shown(learner.take_letters()[0]) == ([0], None)


def test_params_that_somebody_may_wait_for_are_sent_at_once():
    learner = Replica(patient=False)
    for _ in range(3):
        learner.hear(OFTEN_SECONDS / 4)
        learner.links[EXPERIENCE].release(0)
    learner.outgoing.answer(ACTOR)
    learner.take_letters()
    learner.publish()
    assert shown(learner.take_letters()[0]) == ([0], None)


def test_params_do_not_wait_for_long_for_one_that_has_become_slow(learner):
    learner.links[EXPERIENCE].release(0, 2)
    learner.outgoing.answer(ACTOR)
    learner.publish()
    assert learner.take_letters() == []
    learner.now += OFTEN_SECONDS
    learner.publish()
    assert shown(learner.take_letters()[0]) == ([1], None)


def test_a_replica_that_has_nothing_to_do_sends_what_others_wait_for_and_the_rest_a_little_later(learner):
    learner.links[EXPERIENCE].release(0)
    assert learner.take_letters() == []
    assert not learner.outgoing.clear()  # the actor has no room, so it is told
    assert shown(learner.take_letters()[0]) == ([], 1)
    learner.links[EXPERIENCE].release(0)
    assert learner.outgoing.clear()
    assert learner.take_letters() == []
    assert not learner.outgoing.clear(everything=True)
    assert shown(learner.take_letters()[0]) == ([], 2)
    assert not learner.outgoing.clear(everything=True)
    assert learner.take_letters() == []


def test_who_is_not_met_soon_is_told_at_once():
    learner = Replica()
    learner.hear(1.0)
    learner.links[EXPERIENCE].release(0)
    assert shown(learner.take_letters()[0]) == ([], 1)
    learner.publish()  # a message: another is likely to follow
    learner.take_letters()
    learner.hear(AGAIN_SECONDS / 2)
    learner.links[EXPERIENCE].release(0)
    assert learner.take_letters() == []
    learner.now += AGAIN_SECONDS
    learner.hear(0)
    learner.links[EXPERIENCE].release(0)
    assert shown(learner.take_letters()[0]) == ([], 3)


def test_params_that_do_not_fit_into_an_answer_go_by_themselves():
    learner = Replica(np.zeros(INLINE_BYTES, np.uint8))
    learner.hear(1.0)
    learner.hear(OFTEN_SECONDS / 2)
    learner.links[EXPERIENCE].release(0, 2)
    learner.outgoing.answer(ACTOR)
    learner.publish()
    assert learner.take_letters() == []
    assert learner.hear(OFTEN_SECONDS / 2) is None
    assert shown(learner.take_letters()[0]) == ([0], None)
