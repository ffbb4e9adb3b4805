"""What a replica sends to others at once, and what goes with something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.engines.channels.base import HERE, Line
from tessera.engines.channels.letters import Letter, Name, Sender, Stamp, unseal
from tessera.engines.channels.remote import Here, Parcel, RemoteLink
from tessera.engines.outgoing import AGAIN_SECONDS, INLINE_BYTES, OFTEN_SECONDS, Outgoing

ACTOR, LEARNER = 0, 1
EXPERIENCE, PARAMS = (0, 0), (1, 0)
SMALL = np.zeros(16, np.float32)


class Laid(Here):
    """Bytes that others fetch."""

    def here(self) -> np.ndarray | None:
        return None


class Replica:
    """The post of a learner that an actor sends experience to and gets params from, on a clock set by hand."""

    def __init__(self, params: np.ndarray = SMALL, patient: bool = True) -> None:
        self.now, self.letters = 100.0, []
        lines = {
            EXPERIENCE: Line(SMALL, (LEARNER,), ACTOR, capacity=2, patient=patient),
            PARAMS: Line(params, (ACTOR,), LEARNER, capacity=1, register=True, patient=patient),
        }
        self.links: dict[Name, RemoteLink] = {}
        me = Sender(LEARNER, 1, HERE)
        self.outgoing = Outgoing(lines, self.links.__getitem__, lambda: me, self, lambda: self.now)
        for name, line in lines.items():
            self.links[name] = RemoteLink(name, line, LEARNER, self.outgoing, lambda: None, lambda place: HERE)
        self.numbers = {EXPERIENCE: 0, PARAMS: 0}

    def store(self, content: np.ndarray) -> Parcel:
        return Laid(content)

    def carry(self, place: int, sealed: bytes, beside: list[Parcel]) -> None:
        assert place == ACTOR
        self.letters.append(unseal(sealed, [parcel.open() for parcel in beside])[0])

    def collect(self) -> None:
        """There are no answers."""

    def hear(self, after: float, got_params: int = 0) -> Letter | None:
        """An unroll comes after some seconds, and the actor says how many params it has got; the answer."""
        self.now += after
        self.outgoing.hear(ACTOR)
        if got_params:
            self.links[PARAMS].note_taken(0, got_params)
        stamp = Stamp(EXPERIENCE, self.numbers[EXPERIENCE], 0, 0)
        self.links[EXPERIENCE].take_in(stamp, np.zeros(64, np.uint8))
        self.numbers[EXPERIENCE] += 1
        sealed = self.outgoing.answer(ACTOR)
        return unseal(sealed)[0] if sealed else None

    def learn(self) -> None:
        """Take one unroll and publish params."""
        self.links[EXPERIENCE].release(0)
        self.publish()

    def publish(self) -> None:
        self.links[PARAMS].put(self.links[PARAMS].like, self.numbers[PARAMS])
        self.numbers[PARAMS] += 1

    def take_letters(self) -> list[Letter]:
        found, self.letters = self.letters, []
        return found


@pytest.fixture
def learner() -> Replica:
    """One that has heard from its actor twice, a moment apart."""
    replica = Replica()
    replica.hear(1.0)
    replica.hear(OFTEN_SECONDS / 2)
    return replica


def shown(letter: Letter | None) -> Any:
    """Versions of params in a letter, and what it says of experience."""
    assert letter is not None
    assert all(stamp.name == PARAMS for stamp in letter.stamps)
    return [stamp.version for stamp in letter.stamps], letter.owed.get((EXPERIENCE, 0))


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
