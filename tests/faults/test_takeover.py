"""The driver asks for snapshots as replicas die: it gets them all, of newcomers too, and waits for no dead one."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import jax
import numpy as np
import pytest
from test_faults import wait_until

import tessera
from tessera.channels.rings import make_ends
from tessera.engines.base import Interrupted, RestartsSpent
from tessera.engines.local import LocalEngine
from tessera.engines.replica import takeover
from tessera.envs.base import Timestep
from tessera.planning.prepare import prepare_plan
from tessera.support.trees import shapes_by_path

SMALL = tessera.A2C(unroll=8, widths=(8,))
SECONDS = 90.0
"""Far more than any answer takes; only what would wait for ever gets there."""


def opened(policy: str, **options: Any) -> LocalEngine:
    """An engine that has made some updates."""
    bound, made, plan = prepare_plan(SMALL, "gymnax:CartPole-v1", policy, envs=16)
    engine = LocalEngine(plan, bound, made, seed=1, horizon=1000, **{"note": lambda _: None, **options})
    engine.start()
    engine.advance(4)
    return engine


def within(seconds: float, call: Any) -> Any:
    """What a call gives, if it ends in time."""
    out: list[Any] = []
    thread = threading.Thread(target=lambda: out.append(call()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert out, "it waits for ever"
    return out[0]


def kill(engine: LocalEngine, title: str) -> None:
    """End a replica and leave the watcher no time to see it."""
    os.kill(engine.processes()[title], signal.SIGKILL)


@pytest.mark.parametrize(
    "policy",
    ["single_learner_coarse:actors=2,mode=async", pytest.param("central:mode=async,workers=2", marks=pytest.mark.slow)],
)
def test_a_snapshot_is_whole_though_a_replica_dies_as_it_is_asked(policy):
    engine = opened(policy)
    try:
        like = {k: jax.tree.map(np.shape, v) for k, v in engine.template().items()}
        for _ in range(2):
            kill(engine, next(title for title in engine.processes() if title.startswith("env+act")))
            found = within(SECONDS, engine.snapshot)
            told = {k: jax.tree.map(np.shape, v) for k, v in found.items()}
            assert told == {k: like[k] for k in told}
            assert "env_state" in told
            engine.advance(4)
    finally:
        engine.close()


def test_a_replica_that_dies_as_it_takes_what_several_have_sent_holds_nobody_up():
    engine = opened("central:workers=2,shards=2", timeout=20.0)
    place = engine.supervisor.titles.index("apply/1")
    link, _ = make_ends(engine.layout, engine.arena, engine.launcher._bell)
    gradients = next(k for k, channel in enumerate(engine.plan.channels) if channel.stream == "gradients")
    lines = {name: line for name, line in engine.link_specs.items() if name[0] == gradients and place in line.readers}
    ends = [(link(*name), line.readers.index(place)) for name, line in lines.items()]
    assert len(ends) == 2

    def die_in_between() -> None:
        wait_until(lambda: all(end.waiting(reader) for end, reader in ends), SECONDS)
        first, reader = ends[0]
        first.release(reader)
        kill(engine, "apply/1")

    try:
        os.kill(engine.processes()["apply/1"], signal.SIGSTOP)
        killer = threading.Thread(target=die_in_between)
        killer.start()
        within(SECONDS, lambda: engine.advance(8))
        killer.join()
        assert engine.restarts == 1
    finally:
        engine.close()


def test_when_restarts_are_spent_the_living_give_what_they_hold_now():
    engine = opened("single_learner_coarse:actors=2,mode=async", restarts=0)
    try:
        last = engine.snapshot()
        engine.advance(8)
        kill(engine, "env+act/0")
        with pytest.raises(RestartsSpent):
            advance_for_ever(engine)
        done, saved = within(SECONDS, lambda: engine.salvage(last))
        assert done == int(saved["state"].clock.applies) >= 12
        assert done > int(last["state"].clock.applies)
        assert shapes_by_path(saved) == shapes_by_path(engine.template())
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("policy", "title"),
    [("single_learner_coarse:actors=2", "env+act/0"), ("central:mode=async,workers=2", "apply/0")],
    ids=["in lock step", "a server died"],
)
def test_when_restarts_are_spent_nothing_is_saved_that_is_no_whole_update(policy, title):
    """A checkpoint of a later number than its params, or from the midst of an update, would lose updates silently."""
    engine = opened(policy, restarts=0)
    try:
        last = engine.snapshot()
        engine.advance(8)
        kill(engine, title)
        with pytest.raises(RestartsSpent):
            advance_for_ever(engine)
        assert within(SECONDS, lambda: [engine.salvage(last)]) == [None]
    finally:
        engine.close()


def advance_for_ever(engine: LocalEngine) -> None:
    """Until something goes wrong."""
    while True:
        engine.advance(4)


def test_a_server_that_dies_before_it_reports_is_not_waited_for():
    engine = opened("central:mode=async,workers=2")
    try:
        server = next(k for k, title in enumerate(engine.supervisor.titles) if title.startswith("apply"))
        told = engine.report_log._reported[server]
        engine.advance(4)
        engine.report_log._reported[server] = told  # as if the last report had been lost with its process
        kill(engine, engine.supervisor.titles[server])
        engine.done = told
        within(SECONDS, lambda: engine.advance(4))
    finally:
        engine.close()


def test_when_all_wait_and_nothing_can_come_the_run_goes_back():
    engine = opened("single_learner_coarse:actors=2,mode=async", timeout=2.0)
    try:  # the learner may go no further, so actors soon have no room; and the driver waits for what nobody will do
        with pytest.raises(Interrupted):
            engine._until(lambda: False)
        engine.rebuild()
        engine.start()
        engine.advance(4)
        assert engine.restarts == 1
    finally:
        engine.close()


class LastMessage:
    """A link that has carried one timestep."""

    sent = 1

    def __init__(self, value: Timestep) -> None:
        self.value = value

    def at(self, number: int) -> Timestep:
        assert number == 0
        return self.value


@pytest.mark.parametrize("masks", [True, False], ids=["next-step autoreset", "same-step autoreset"])
def test_a_successor_ends_lost_episodes_and_none_that_were_over(masks, monkeypatch):
    monkeypatch.setattr(takeover, "_durable", lambda link: link)
    over = np.array([[True, False, False]])
    valid = np.array([[True, True, False]]) if masks else None
    observed, fresh = np.array([[1.0, 2.0, 3.0]]), np.array([[7.0, 8.0, 9.0]])
    no = np.zeros((1, 3), bool)
    before = Timestep(observed, np.ones((1, 3)), over, no, observed, valid)
    first = Timestep(fresh, np.ones((1, 3)), no, no, fresh, ~no if masks else None)
    patched = takeover._ending_the_lost_episode(LastMessage(before), first)
    lost = np.array([[False, True, True]]) if masks else ~no
    np.testing.assert_array_equal(patched.truncated, lost)
    assert not patched.terminated.any()
    assert not patched.reward.any()
    np.testing.assert_array_equal(patched.final[lost], observed[lost])
    np.testing.assert_array_equal(patched.observation, fresh)
    if masks:
        np.testing.assert_array_equal(patched.valid, lost)  # the reset of an episode that was over is no step
    else:
        assert patched.valid is None


def test_a_successor_ends_a_lost_game_where_it_was_the_turn_of_who_was_to_move(monkeypatch):
    monkeypatch.setattr(takeover, "_durable", lambda link: link)
    board, no, legal = np.zeros((1, 2)), np.zeros((1, 2), bool), np.ones((1, 2, 3), bool)
    players = {"player": np.array([[1, 0]]), "final_player": np.array([[1, 0]])}
    before = Timestep(board, np.zeros((1, 2, 2)), no, no, board, legal=legal, final_legal=legal, **players)
    fresh = {"player": np.array([[0, 0]]), "final_player": np.array([[0, 0]])}
    patched = takeover._ending_the_lost_episode(LastMessage(before), before._replace(**fresh))
    np.testing.assert_array_equal(patched.final_player, before.player)
    np.testing.assert_array_equal(patched.player, fresh["player"])
