"""Ready batching: the same results, whichever environments are ready first."""

from __future__ import annotations

import random
from collections import Counter

import matrix
import numpy as np
import pytest
from matrix import assert_parity

from tessera import policies
from tessera.channels.inboxes import Inbox
from tessera.errors import TesseraError
from tessera.graph.plan import Needs, make_plan
from tessera.graph.policy import Cut, Fragment, Policy
from tessera.program.overlap.partial_segment import pad_groups, padded_size
from tessera.program.overlap.ready_batching import ReadyBatchedLoop

pytestmark = pytest.mark.usefixtures("x64")


@pytest.fixture
def seen_ready(monkeypatch) -> Counter[int]:
    """Let what environments send come late, by chance; count how many slices were acted for at once."""
    chance = random.Random(5)
    receive, act = Inbox.receive_from, ReadyBatchedLoop.act
    counts: Counter[int] = Counter()

    def late(self, p):
        link = self.links[p]
        if chance.random() < 0.6:
            link.moved += 1  # no replica is stuck: the message is on its way
            return False, None
        return receive(self, p)

    def counted(self, segment, ready, run):
        counts[len(ready)] += 1
        act(self, segment, ready, run)

    monkeypatch.setattr(Inbox, "receive_from", late)
    monkeypatch.setattr(ReadyBatchedLoop, "act", counted)
    return counts


@pytest.mark.parametrize("form", ["auto", "jit"])
@pytest.mark.parametrize("name", ["a2c", "dqn", "ppo_lstm", pytest.param("impala_gru", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "policy", ["single_learner_fine:actors=3,wait=0", "split_inference:workers=3,inference=2,learners=2,wait=0"]
)
def test_whichever_slice_is_ready_the_params_are_those_of_fused(name, policy, form, seen_ready, monkeypatch):
    monkeypatch.setenv("TESSERA_LOWERING", form)
    monkeypatch.setattr(matrix, "SHARED", {})
    assert_parity(name, policies.parse(policy))
    assert seen_ready[1]
    assert seen_ready[2]


def test_with_a_long_wait_all_are_acted_for_at_once(seen_ready):
    assert_parity("a2c", policies.parse("single_learner_fine:actors=3,wait=1000"))
    assert set(seen_ready) == {3}


@pytest.mark.parametrize(
    ("count", "most", "size"), [(1, 8, 1), (2, 8, 2), (3, 8, 4), (5, 8, 8), (8, 8, 8), (2, 6, 2), (3, 6, 3), (4, 6, 6)]
)
def test_few_sizes_are_compiled(count, most, size):
    assert padded_size(count, most) == size


def test_padding_is_of_zeros_on_the_axis_of_groups():
    padded = pad_groups({"x": np.ones((2, 3))}, 2, 0)
    np.testing.assert_array_equal(padded["x"], [[1, 1, 1], [1, 1, 1], [0, 0, 0], [0, 0, 0]])


def test_one_server_of_environments_is_waited_for():
    needs = Needs("a2c", "x", device_env=True, batch=None, priorities=False, absorbs=False)
    one, two = (make_plan(policies.parse(f"single_learner_fine:actors={n},wait=0.5"), needs, 8) for n in (1, 2))
    assert [(c.discipline.batching, c.link_per_receiver) for c in one.channels] == [(None, False), (None, False)]
    assert [(c.slot, c.discipline.batching, c.link_per_receiver) for c in two.channels] == [
        ("timesteps", 0.5, False),
        ("actions", None, True),
    ]


@pytest.mark.parametrize(("stream", "wait"), [("actions", 0.1), ("timesteps", -1.0), ("timesteps", float("nan"))])
def test_a_wait_that_makes_no_sense_is_refused(stream, wait):
    with pytest.raises(TesseraError, match="only 'timesteps' has one, in seconds, 0 or more"):
        Policy("odd", (Fragment("env", 2), Fragment("act store grad apply")), {stream: Cut(wait=wait)})


def test_several_devices_cannot_act_for_some_only():
    policy = Policy(
        "wide", (Fragment("env", 2), Fragment("act store grad apply", devices=2)), {"timesteps": Cut(wait=0.0)}
    )
    needs = Needs("a2c", "x", device_env=True, batch=None, priorities=False, absorbs=False)
    with pytest.raises(TesseraError, match="one device can do, not 2"):
        make_plan(policy, needs, 8, available=2)
