"""What each way of joining gradients, updates and experience promises: what it equals, and how late it may be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest import mock

import jax
import numpy as np
import optax
import pytest
from matrix import ALGORITHMS, engine_for, furthest, run

from tessera import A2C, DQN, Policy, policies
from tessera.channels.in_process import InProcessLink
from tessera.channels.inboxes import Versions, make_inbox
from tessera.channels.routes import Route
from tessera.engines.serial import SerialEngine
from tessera.program.keys import count_of

pytestmark = pytest.mark.usefixtures("x64")


@dataclass(frozen=True)
class Plain(A2C):
    """A2C with nothing that is not linear in the gradient: no optimiser, no clipping, no batch statistics."""

    name: ClassVar[str] = "plain"
    max_gradient_norm: float = 0.0
    normalise_advantages: bool = False
    anneal: bool = False
    heard: ClassVar[list[Any]] = []

    @property
    def optimizer(self) -> optax.GradientTransformation:
        return optax.identity()


PLAIN = Plain(unroll=8, widths=(8,), learning_rate=0.01)


def state_under(text: str, algorithm: Any = PLAIN, **options: Any) -> Any:
    """The learner's state after a few updates."""
    return run(algorithm, policies.parse(text), **options)[1]


def same(a: Any, b: Any) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), a, b)


@contextmanager
def started(algorithm: Any, policy: Policy | str, **options: Any) -> Iterator[SerialEngine]:
    engine = engine_for(algorithm, policies.parse(policy) if isinstance(policy, str) else policy, **options)
    try:
        engine.start()
        yield engine
    finally:
        engine.close()


@pytest.mark.parametrize("carries", ["params", "state"])
@pytest.mark.parametrize("workers", [2, 3])
def test_averaging_after_every_update_with_plain_sgd_equals_synchronous_sgd(workers, carries):
    averaged = state_under(f"averaging:workers={workers},every=1,carries={carries}")
    same(averaged, state_under(f"multi_learner:learners={workers}"))


def test_averaging_less_often_is_something_else_and_leaves_peers_apart_in_between():
    often, seldom = (state_under(f"averaging:workers=2,every={k}", updates=3) for k in (1, 3))
    assert furthest(often.params, seldom.params) > 1e-6
    with started(PLAIN, "averaging:workers=2,every=3") as engine:
        apart = []
        for _ in range(3):
            engine.advance(1)
            first, second = (r.slots["state"].params for r in engine.replicas)
            apart.append(furthest(first, second))
    assert min(apart[:2]) > 1e-6
    assert apart[2] < 1e-12


@dataclass(frozen=True)
class Listened(Plain):
    """Tells every gradient that it computes."""

    name: ClassVar[str] = "listened"

    def gradient(self, *arguments: Any) -> tuple[Any, Any]:
        gradients, feedback = super().gradient(*arguments)
        jax.debug.callback(lambda g: self.heard.append(jax.tree.map(np.array, g)), gradients)
        return gradients, feedback


def total(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *xs: np.sum(xs, axis=0, dtype=np.float64), *trees)


@contextmanager
def recorded(kind: str) -> Iterator[list[tuple[Any, int]]]:
    """What links carry of one kind of value, as NumPy arrays, with its version."""
    sent: list[tuple[Any, int]] = []
    put = InProcessLink.put

    def noted(link: InProcessLink, value: Any, version: int) -> None:
        if type(value).__name__ == kind:
            sent.append((jax.tree.map(np.array, value), version))
        put(link, value, version)

    with mock.patch.object(InProcessLink, "put", noted):
        yield sent


def test_what_decentralised_peers_sent_and_what_they_kept_is_the_sum_of_their_gradients():
    Listened.heard.clear()
    listened = Listened(unroll=8, widths=(8,), learning_rate=0.01)
    policy = "decentralised:workers=2,threshold=0.002"
    # in 32 bits, since callbacks run in a thread that knows of no others
    with jax.enable_x64(False), recorded("dict") as sent, started(listened, policy, precision="f32") as engine:
        engine.advance(4)
        jax.effects_barrier()
        kept = [jax.tree.map(np.array, r.slots["residual"]) for r in engine.replicas]
    coded = [value for value, _ in sent]
    assert len(coded) == len(Listened.heard) == 8
    values = np.unique(np.abs(np.concatenate([x.ravel() for x in jax.tree.leaves(coded)])))
    np.testing.assert_allclose(values, [0, 0.002], rtol=1e-6)  # nothing but plus or minus the threshold travels
    assert furthest(total(kept), total(Listened.heard)) > 0.002
    both, whole = total([*coded, *kept]), total(Listened.heard)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), both, whole)


@pytest.mark.parametrize("shards", [2, 3])
@pytest.mark.parametrize("mode", ["workers=2", "workers=1,mode=async,lag=0"])
def test_a_sharded_server_clips_by_the_norm_of_all_shards(shards, mode):
    tight = Plain(unroll=8, widths=(8,), learning_rate=0.01, max_gradient_norm=1e-3)
    policy = policies.parse(f"central:{mode},shards={shards}")
    before, state, reports = run(tight, policy)
    norms = np.sqrt(reports.guard.gradients.sum(-1))
    assert norms.min() > 1e-2  # every gradient is far beyond the limit
    moved = jax.tree.map(np.subtract, state.params, before.params)
    assert np.sqrt(sum(np.square(x).sum() for x in jax.tree.leaves(moved))) <= 3 * 0.01 * 1e-3 * (1 + 1e-9)
    same(state, state_under(f"central:{mode}", tight))
    same(state, state_under("fused:devices=1", tight))


def test_an_asynchronous_server_applies_each_gradient_by_itself():
    """Two workers' gradients at the same params, one after the other, move by the sum of what each moves alone."""
    begin, after, reports = run(PLAIN, policies.parse("central:workers=2,mode=async"), updates=2)
    assert int(after.clock.applies) == reports.flows["gradients"].messages == 2
    with started(PLAIN, "averaging:workers=2,every=9") as alone:
        alone.advance(1)
        first, second = (jax.tree.map(np.array, r.slots["state"].params) for r in alone.replicas)
    same(after.params, jax.tree.map(lambda a, b, p: a + b - p, first, second, begin.params))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_asynchronous_server_counts_lag_and_without_a_bound_drops_nothing(name):
    _, state, reports = run(ALGORITHMS[name], policies.parse("central:workers=3,mode=async"), updates=6)
    flow = reports.flows["gradients"]
    assert flow.messages == flow.lags == int(state.clock.applies) == 6 * ALGORITHMS[name].schedule.applies
    assert flow.dropped == 0
    assert flow.lag_max > 1
    assert 0 < flow.lag_sum / flow.lags <= flow.lag_max


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_bound_on_lag_drops_older_gradients_and_lets_none_through(name, lag):
    _, state, reports = run(ALGORITHMS[name], policies.parse(f"central:workers=3,mode=async,lag={lag}"), updates=6)
    flow = reports.flows["gradients"]
    assert int(state.clock.applies) == flow.messages == 6 * ALGORITHMS[name].schedule.applies
    assert flow.dropped > 0
    assert flow.lag_max <= lag


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("name", ["a2c", "ppo"])
def test_async_actors_never_play_with_params_older_than_the_bound(name, lag):
    policy = policies.parse(f"single_learner_coarse:actors=3,mode=async,lag={lag}")
    _, _, reports = run(ALGORITHMS[name], policy, updates=6)
    assert reports.lag_max.max() == reports.flows["experience"].lag_max
    assert reports.lag_max.max() <= lag
    if lag:
        assert reports.lag_max.max() > 0


@pytest.mark.parametrize("lag", [0, 2])
def test_updates_that_wait_for_the_first_actors_drop_what_comes_too_late(lag):
    policy = policies.parse(f"single_learner_coarse:actors=3,mode=first,first=2,lag={lag}")
    _, _, reports = run(ALGORITHMS["a2c"], policy, updates=6)
    flow = reports.flows["experience"]
    assert reports.lag_max.max() <= lag
    assert flow.lag_max <= lag
    if lag == 0:  # the third actor is always late
        assert flow.dropped > 0


def inbox(text: str, slot: str, bound_algorithm: Any = PLAIN) -> tuple[Any, list[InProcessLink], Versions]:
    """One receiver's end of a channel, and the links that lead to it."""
    with started(bound_algorithm, text) as engine:
        number = next(k for k, c in enumerate(engine.plan.channels) if c.slot == slot)
        route = Route(engine.plan, engine.plan.channels[number])
    links = {p: InProcessLink(1, 4) for p in route.writers(0)}
    versions = Versions(1, 1)
    return make_inbox(route, 0, dict(links), versions), list(links.values()), versions


def test_experience_older_than_the_bound_is_dropped_and_counted():
    box, (link, *_), versions = inbox("single_learner_coarse:actors=1,mode=async,lag=1", "experience")
    versions.newest = 3
    for version in (1, 2, 3):
        link.put(np.full(6, version), version)
    assert [box.receive() for _ in range(2)][1][1].tolist() == [3] * 6
    assert (box.flow.dropped, box.flow.messages, box.flow.lag_max) == (1, 2, 1)
    assert box.receive() == (False, None)


def test_experience_that_was_held_over_is_dropped_once_it_is_too_old():
    box, links, versions = inbox("single_learner_coarse:actors=3,mode=first,first=2", "experience")
    for p, link in enumerate(links):
        link.put(np.full(2, p), 0)
    assert box.receive()[1].tolist() == [0, 0, 1, 1]
    versions.newest = 1  # what the third actor sent is late by now, though it had been taken in time
    assert box.receive() == (False, None)
    assert box.flow.dropped == 1


def test_an_update_takes_so_many_groups_of_whoever_sends_them_and_leaves_the_rest_to_wait():
    box, links, _ = inbox("single_learner_coarse:actors=3,mode=async,take=2", "experience")
    assert len(box.route.wanted(0)) == 2  # groups; each actor has two
    for p, link in enumerate(links[1:], 1):
        link.put(np.full(2, p), 0)
    assert box.receive()[1].tolist() == [1, 1]  # nobody waits for the first actor
    links[0].put(np.full(2, 0), 0)
    assert [link.waiting(0) for link in links] == [1, 0, 1]  # and nothing is taken before it is wanted
    assert [box.receive()[1].tolist() for _ in range(2)] == [[2, 2], [0, 0]]  # in turn
    assert box.receive() == (False, None)


def test_several_learners_take_from_actors_of_their_own():
    with started(PLAIN, "multi_learner_coarse:actors=3,learners=3,mode=async,take=3") as engine:
        number = next(k for k, c in enumerate(engine.plan.channels) if c.slot == "experience")
        route = Route(engine.plan, engine.plan.channels[number])
    assert [route.writers(q) for q in range(3)] == [[0], [1], [2]]
    assert [len(route.wanted(q)) for q in range(3)] == [1, 1, 1]


@pytest.mark.parametrize(
    "policy",
    [
        "single_learner_coarse:actors=3,mode=async,take=2",
        "single_learner_coarse:actors=3,mode=async,take=2,lag=1",
        "single_learner_coarse:actors=3,mode=first,first=1",
        "distributed_replay:actors=3,stores=2,mode=async,take=2,lag=1,ahead=0",
    ],
)
def test_what_is_played_before_learning_is_kept_where_an_update_takes_a_part_of_it(policy):
    algorithm = DQN(n_step=1, unroll=8, draws=1, batch=24, capacity=12 * 8 * 64, warmup=12, widths=(8,))
    with started(algorithm, policy) as engine:
        kept = int(engine.snapshot()["buffer"].filled.sum())
        engine.advance(3)
        taken = int(engine.snapshot()["buffer"].filled.sum()) - kept
    played = algorithm.unroll * engine.plan.envs
    assert kept == algorithm.warmup * played
    assert taken >= 3 * played * engine.plan.batches // engine.plan.groups  # a store may be further than the learner


@pytest.mark.parametrize("stores", [1, 2])
def test_a_replay_draws_exactly_as_many_samples_for_each_row_as_the_schedule_says(stores):
    algorithm = DQN(n_step=1, unroll=8, draws=3, batch=24, capacity=12 * 8 * 64, warmup=2, widths=(8,))
    with started(algorithm, f"distributed_replay:actors=2,stores={stores},mode=async") as engine:
        engine.advance(7)
        snapshot = engine.snapshot()
    rows_per_unroll = algorithm.unroll * engine.plan.envs
    inserted = int(snapshot["buffer"].filled.sum()) - algorithm.warmup * rows_per_unroll
    drawn = count_of(snapshot["store_clock"])
    unrolls, left = divmod(inserted, rows_per_unroll)
    assert left == 0
    assert unrolls >= 7
    # whole updates, but for the one that a store may be in the middle of
    assert (unrolls - 1) * algorithm.draws <= drawn <= unrolls * algorithm.draws


@pytest.mark.parametrize("lag", [0, 2])
@pytest.mark.parametrize("policy", ["fused:devices=1", "single_learner_coarse:actors=2"])
@pytest.mark.parametrize("name", ["a2c", "ppo"])
def test_lag_is_exact_and_told_for_each_update(name, policy, lag):
    _, _, reports = run(ALGORITHMS[name], policies.parse(policy), updates=5, lag=lag)
    expected = np.minimum(np.arange(5), lag)
    np.testing.assert_array_equal(reports.lag_mean, expected)
    np.testing.assert_array_equal(reports.lag_max, expected)


@pytest.mark.parametrize("policy", ["fused:devices=1", "single_learner_coarse:actors=2"])
def test_rows_drawn_from_a_replay_are_as_old_as_the_params_that_made_them(policy):
    _, _, reports = run(ALGORITHMS["dqn"], policies.parse(policy), updates=5)
    assert reports.lag_max[0] == 0.5  # the second of two draws, from rows of the first params
    assert (reports.lag_max <= np.arange(5) + 0.5).all()
    assert (np.diff(reports.lag_mean) > 0).all()
    assert (reports.lag_mean < reports.lag_max).all()


@pytest.mark.parametrize("lag", [0, 2])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_row_of_experience_carries_the_version_of_the_params_that_made_it(name, lag):
    s = ALGORITHMS[name].schedule
    with recorded("Experience") as sent, started(ALGORITHMS[name], "single_learner_coarse:actors=1", lag=lag) as engine:
        engine.advance(4)
    played = sent[s.warmup :]
    assert len(played) == 4
    for update, (experience, version) in enumerate(played):
        rows, made_with = experience.version, max(update - lag, 0) * s.applies
        assert rows.shape == (6, 8, 2)
        assert version == rows.max() == made_with
        late = 2 if name == "dqn" else 0  # windows of 3 steps that the last unroll began
        assert (rows[:, late:] == made_with).all()


def test_samples_carry_the_versions_of_their_rows_to_grad():
    with recorded("Sample") as sent, started(ALGORITHMS["a2c"], "distributed_replay:actors=1,stores=1") as engine:
        engine.advance(3)
    versions = [sample.version for sample, _ in sent]
    assert [v.shape for v in versions] == [(6, 8, 2)] * 3
    assert [np.unique(v).tolist() for v in versions] == [[0], [1], [2]]
