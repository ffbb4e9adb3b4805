"""Replay shards, learners and server shards are killed: those that are left go on, and newcomers join them."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import tessera
from tessera import policies
from tessera.channels.in_process import InProcessLink
from tessera.channels.inboxes import SamplesInbox, Versions, make_inbox
from tessera.channels.routes import Route
from tessera.engines.driver.supervisor import replaceable
from tessera.engines.local import LocalEngine
from tessera.planning.prepare import prepare_plan
from tessera.stores.base import NOWHERE, Sample

SMALL = tessera.DQN(unroll=8, draws=2, batch=32, capacity=2_000, warmup=8, widths=(8,), outliers=3.0)
EIGHT = ("env+act/0", "env+act/1", "store/0", "store/1", "grad/0", "grad/1", "apply/0", "apply/1")
GORILA = "gorila:actors=2,stores=2,learners=2,shards=2,lag=20"
APEX = "distributed_replay:mode=async,stores=2,publish=2"


def kill(monkeypatch: pytest.MonkeyPatch, titles: list[str], every: int) -> list[int]:
    """Kill each of these once, `every` so many updates; says when each was."""
    left, advance, when = list(titles), LocalEngine.advance, []

    def advancing(engine: LocalEngine, count: int, ahead: int = 0) -> Any:
        if left and engine.done >= every * (1 + len(when)):
            when.append(engine.done)
            os.kill(engine.processes()[left.pop(0)], signal.SIGKILL)
        return advance(engine, min(count, every), ahead)

    monkeypatch.setattr(LocalEngine, "advance", advancing)
    return when


@pytest.mark.parametrize(
    ("policy", "titles"),
    [
        (GORILA, ["store/1", "grad/0"]),
        (APEX, ["store/0"]),
        pytest.param(GORILA, EIGHT, marks=pytest.mark.slow),
    ],
)
def test_whoever_of_a_value_based_system_is_killed_the_run_goes_on(policy, titles, monkeypatch, tmp_path):
    when = kill(monkeypatch, list(titles), every=40)
    algorithm = replace(SMALL, prioritised=policy == APEX, outliers=0.0)
    steps = 40 * (len(titles) + 2) * 8 * 16
    result = tessera.train(
        algorithm, "gymnax:CartPole-v1", policy, steps=steps, seed=1, envs=16, run_dir=tmp_path / "run",
        eval_episodes=4, quiet=True,
    )  # fmt: skip
    assert len(when) == len(titles)
    assert result.summary["restarts"] == len(titles)
    updates = [row["update"] for row in result.metrics]
    assert updates == sorted(set(updates))  # nobody went back to a checkpoint
    assert updates[-1] == result.summary["updates"]


class Away(InProcessLink):
    """A link whose sender has died."""

    def away(self) -> bool:
        return True


@pytest.mark.parametrize("prioritised", [True, False])
def test_samples_of_a_store_that_died_are_drawn_from_the_others_and_their_priorities_go_nowhere(prioritised):
    algorithm = tessera.DQN(unroll=8, batch=16, widths=(8,), prioritised=prioritised)
    _, _, plan = prepare_plan(algorithm, "gymnax:CartPole-v1", policies.parse(APEX), envs=8, groups=4)
    channel = next(c for c in plan.channels if c.stream == "samples")
    route = Route(plan, channel)
    links: dict[int, Any] = {0: InProcessLink(1, 2), 1: Away(1, 2)}
    inbox = make_inbox(route, 0, links, Versions(1, 1))
    assert isinstance(inbox, SamplesInbox)
    index = np.arange(8, dtype=np.int32).reshape(2, 4) if prioritised else None
    sample = Sample({"x": np.arange(8.0).reshape(2, 4)}, None, index, np.zeros((2, 4), np.int32))
    assert inbox.receive() == (False, None)  # nobody has anything
    links[0].put(sample, 0)
    arrived, got = inbox.receive()
    assert arrived
    np.testing.assert_array_equal(got.rows["x"], np.concatenate([sample.rows["x"], sample.rows["x"]]))
    if prioritised:
        np.testing.assert_array_equal(got.index[:2], index)
        assert (got.index[2:] == NOWHERE).all()
    links[0].put(sample, 0)
    links[1].put(jax.tree.map(lambda x: x + 100, sample), 0)  # what it had sent before it died is used
    _, got = inbox.receive()
    np.testing.assert_array_equal(got.rows["x"][2:], sample.rows["x"] + 100)
    links[1] = inbox.links[1] = InProcessLink(1, 2)
    links[0].put(sample, 0)
    assert inbox.receive() == (False, None)  # one that is alive is waited for


@pytest.mark.parametrize(("policy", "wanted"), [(APEX, True), (GORILA, True), ("distributed_replay:stores=2", False)])
def test_a_store_is_replaced_only_where_nobody_waits_for_all_of_them(policy, wanted):
    _, _, plan = prepare_plan(SMALL, "gymnax:CartPole-v1", policy, envs=8, groups=4)
    assert replaceable(plan, plan.home("store")) == wanted


def test_a_snapshot_of_a_sharded_server_beside_bundles_is_whole():
    policy = "gorila:bundled=true,actors=2,shards=2"
    bound, made, plan = prepare_plan(SMALL, "gymnax:CartPole-v1", policy, envs=8, groups=4)
    engine = LocalEngine(plan, bound, made, seed=1, horizon=10)
    try:
        engine.start()
        engine.advance(2)
        snapshot, like = engine.snapshot(), engine.template()
        told = {k: jax.tree.map(np.shape, v) for k, v in snapshot.items() if k != "root"}
        assert told == {k: jax.tree.map(np.shape, like[k]) for k in told}
    finally:
        engine.close()
