"""The value-based algorithms: each flag changes the update as its formula says, by hand-computed cases."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from tessera import DQN, Discrete, QLearning, Spec, TesseraError
from tessera.algorithms.contract import Clock, Step, Transition, View
from tessera.algorithms.parts.n_step_windows import Row, ValueMemory
from tessera.algorithms.parts.replay_learning import DrawSummary
from tessera.maths.exploration import mixed_epsilon
from tessera.maths.outliers import ENOUGH, add_loss, is_outlier
from tessera.maths.returns import returns_to_go
from tessera.maths.statistics import Moments, no_moments
from tessera.stores.base import Experience, Sample
from tessera.stores.replay import Replay

SPEC = Spec((3,), "float32", Discrete(2))


class Table:
    """A network whose params are a table: the value of an action is a row of it, by the number that is observed."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def init(self, key, observation):
        del key, observation
        return jnp.zeros((4, 2))

    def apply(self, params, observation):
        return params[observation[..., 0].astype(jnp.int32)]


@pytest.fixture(autouse=True)
def table(monkeypatch):
    """Values that can be written down."""
    monkeypatch.setattr("tessera.algorithms.parts.epsilon_greedy.QNetwork", Table)
    monkeypatch.setattr("tessera.algorithms.parts.value_learning.QNetwork", Table)


PARAMS = jnp.array([[1.0, 2.0], [3.0, 0.5], [0.0, 4.0], [0.0, 0.0]])
TARGET = jnp.array([[0.0, 0.0], [1.0, 2.0], [5.0, 3.0], [0.0, 0.0]])


def seen(*states):
    return jnp.asarray([[s, 0, 0] for s in states], jnp.float32)


def view(params=PARAMS, target=TARGET, statistics=(), progress=0.5):
    return View(params, target, statistics, Clock(jnp.int32(int(progress * 100)), jnp.int32(100)))


ROWS = Row(seen(0, 1), jnp.array([1, 0]), jnp.array([1.0, -1.0]), jnp.array([0.9, 0.5]), seen(2, 1))
"""Values 2 and 3 now; the target network says 5 and 2 at most of what follows, and 3 and 1 of what params prefer."""


@pytest.mark.parametrize(
    ("double", "targets"), [(False, [1 + 0.9 * 5, -1 + 0.5 * 2]), (True, [1 + 0.9 * 3, -1 + 0.5 * 1])]
)
def test_double_lets_the_params_choose_what_the_target_network_values(double, targets):
    dqn = DQN(double=double).bind(SPEC)
    error = np.array([2.0, 3.0]) - targets
    np.testing.assert_allclose(dqn.row_errors(PARAMS, TARGET, ROWS), error, rtol=1e-6)
    gradient, feedback = dqn.gradient(view(), (ROWS, None), DrawSummary(), jax.random.key(0))
    wanted = np.zeros((4, 2))
    wanted[0, 1], wanted[1, 0] = error / 2  # half the square, and the mean over two rows
    np.testing.assert_allclose(gradient, wanted, rtol=1e-6)
    assert float(feedback.metrics["loss"]) == pytest.approx(float((0.5 * error**2).mean()))


def test_huber_counts_large_errors_linearly():
    dqn = DQN(double=False, huber=1.0).bind(SPEC)
    error = np.array([2.0 - 5.5, 3.0 - 0.0])
    gradient, feedback = dqn.gradient(view(), (ROWS, None), DrawSummary(), jax.random.key(0))
    np.testing.assert_allclose([gradient[0, 1], gradient[1, 0]], np.sign(error) / 2, rtol=1e-6)
    assert float(feedback.metrics["loss"]) == pytest.approx(float((np.abs(error) - 0.5).mean()))


@pytest.mark.parametrize(("end", "power"), [(1.0, 0.7), (0.4, 0.4)])
def test_importance_weights_have_the_exponent_of_the_moment_and_the_largest_is_one(end, power):
    dqn = DQN(prioritised=True, importance_exponent=0.4, importance_end=end, double=False).bind(SPEC)
    sample = Sample(ROWS, jnp.array([4.0, 0.5]), jnp.array([7, 9]))
    (rows, weight), summary = dqn.prepare(view(progress=0.5), sample)
    np.testing.assert_allclose(weight, np.array([4.0, 0.5]) ** power, rtol=1e-6)
    everyone = DrawSummary(weight=jnp.array([summary.weight, 10.0]))  # another group has the largest
    gradient, feedback = dqn.gradient(view(), (rows, weight), everyone, jax.random.key(0))
    error = np.array([2.0 - 5.5, 3.0])
    np.testing.assert_allclose([gradient[0, 1], gradient[1, 0]], error * weight / 10.0 / 2, rtol=1e-5)
    np.testing.assert_allclose(feedback.priorities, np.abs(error) + 1e-3, rtol=1e-6)


def test_actors_set_first_priorities_by_their_own_params():
    dqn = DQN(prioritised=True, actor_priorities=True, n_step=1, gamma=0.9).bind(SPEC)
    flags = jnp.zeros(2, bool)
    played = Transition(
        seen(0, 1), jnp.array([1, 0]), (), jnp.array([1.0, -1.0]), flags.at[1].set(True), flags, seen(2, 1),
        version=jnp.zeros(2, jnp.int32),
    )  # fmt: skip
    experience, _ = dqn.digest(view(target=()), ValueMemory(), played)
    np.testing.assert_allclose(experience.priority, [abs(2 - (1 + 0.9 * 4)) + 1e-3, abs(3 - -1) + 1e-3], rtol=1e-6)


def test_the_target_follows_by_copies_or_by_a_little():
    copies = DQN(target_period=2, anneal=False, learning_rate=0.1).bind(SPEC)
    state = copies.start(PARAMS)._replace(target=TARGET, clock=Clock(jnp.int32(0), jnp.int32(10)))
    first = copies.apply(state, jnp.ones_like(PARAMS), Step(jnp.float32(1)))
    np.testing.assert_array_equal(first.target, TARGET)
    second = copies.apply(
        first._replace(clock=Clock(jnp.int32(1), jnp.int32(10))), jnp.ones_like(PARAMS), Step(jnp.float32(1))
    )
    np.testing.assert_array_equal(second.target, second.params)
    little = DQN(polyak=0.25, anneal=False, learning_rate=0.1).bind(SPEC)
    after = little.apply(state, jnp.ones_like(PARAMS), Step(jnp.float32(1)))
    np.testing.assert_allclose(after.target, TARGET + 0.25 * (after.params - TARGET), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "transform"),
    [
        ("adam", optax.adam(0.1)),
        ("adagrad", optax.adagrad(0.1)),
        ("rmsprop", optax.rmsprop(0.1, 0.95, 0.01, centered=True)),
    ],
)
def test_optimisers_are_those_of_their_names(name, transform):
    dqn = DQN(optimiser=name, learning_rate=0.1, anneal=False, max_gradient_norm=0).bind(SPEC)
    state = dqn.start(PARAMS)._replace(clock=Clock(jnp.int32(0), jnp.int32(10)))
    held = transform.init(PARAMS)
    params = PARAMS
    for k in range(3):
        gradient = PARAMS * (k - 0.5)
        state = dqn.apply(state, gradient, Step(jnp.float32(1)))
        step, held = transform.update(gradient, held, params)
        params = optax.apply_updates(params, step)
    np.testing.assert_allclose(state.params, params, rtol=1e-5)


def test_a_loss_that_is_far_above_its_running_mean_is_dropped_and_counted():
    usual = no_moments(())
    for k in range(200):
        usual = add_loss(usual, jnp.float32(1.0 + 0.1 * (-1) ** k))
    assert float(usual.mean) == pytest.approx(1.0, abs=0.01)
    assert [bool(is_outlier(usual, jnp.float32(x), 3.0)) for x in (1.2, 1.4)] == [False, True]
    few = Moments(jnp.float32(ENOUGH - 1), usual.mean, usual.m2)
    assert not is_outlier(few, jnp.float32(100.0), 3.0)

    dqn = DQN(outliers=3.0, double=False).bind(SPEC)
    state = dqn.start(PARAMS)._replace(target=TARGET, statistics=usual, clock=Clock(jnp.int32(0), jnp.int32(10)))
    batch, summary = dqn.prepare(view(statistics=usual), Sample(ROWS))
    assert float(summary.loss) == pytest.approx(0.5 * (3.5**2 + 3.0**2) / 2)
    summary = jax.tree.map(lambda x: x[None], summary)
    gradient, feedback = dqn.gradient(view(statistics=usual), batch, summary, jax.random.key(0))
    assert float(feedback.metrics["dropped"]) == 1.0
    after = dqn.apply(state, gradient, Step(jnp.linalg.norm(gradient), summary=summary))
    jax.tree.map(np.testing.assert_array_equal, after.optimizer, state.optimizer)
    np.testing.assert_array_equal(after.params, PARAMS)
    assert float(dqn.absorb(state, summary).statistics.mean) > 1.0  # what was dropped is remembered all the same


def test_returns_go_to_the_end_of_the_episode_or_of_the_unroll():
    rewards, values = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), np.array([10.0, 20.0, 30.0, 40.0, 50.0, 60.0])
    terminated, truncated = np.array([0, 1, 0, 0, 0, 0], bool), np.array([0, 0, 0, 1, 0, 0], bool)
    got = returns_to_go(*(jnp.asarray(x)[:, None] for x in (rewards, values, terminated, truncated)), 0.5)[:, 0]
    last = 6 + 0.5 * 60
    cut = 4 + 0.5 * 40
    np.testing.assert_allclose(got, [1 + 0.5 * 2, 2, 3 + 0.5 * cut, cut, 5 + 0.5 * last, last], rtol=1e-6)


def unroll():
    """Three steps of one environment [3, 1]: the second terminates, the third is cut."""
    over, cut = jnp.array([0, 1, 0], bool), jnp.array([0, 0, 1], bool)
    return Transition(
        seen(0, 1, 2)[:, None], jnp.array([1, 0, 1])[:, None], (), jnp.array([1.0, 2.0, 3.0])[:, None], over[:, None],
        cut[:, None], seen(1, 3, 2)[:, None], version=jnp.zeros((3, 1), jnp.int32),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "targets"),
    [
        # what follows is worth 2 at most (state 1), 0 (state 3; and nothing where the episode is over) and 5 (state 2)
        ("one_step", {True: [1 + 0.5 * 2, 2, 3 + 0.5 * 5], False: [1 + 0.5 * 2, 2 + 0.5 * 0, 3 + 0.5 * 5]}),
        ("n_step", {True: [1 + 0.5 * 2, 2, 3 + 0.5 * 5], False: [1 + 0.5 * (2 + 0.5 * 5.5), 2 + 0.5 * 5.5, 5.5]}),
    ],
)
@pytest.mark.parametrize("ends", [True, False])
def test_targets_of_q_learning_by_hand(kind, targets, ends):
    algorithm = QLearning(kind=kind, gamma=0.5).bind(SPEC)
    rows = unroll()
    rows = rows if ends else rows._replace(terminated=jnp.zeros((3, 1), bool), truncated=jnp.zeros((3, 1), bool))
    batch, _ = algorithm.prepare(view(), Sample(rows))
    np.testing.assert_allclose(batch.target, targets[ends], rtol=1e-6)


def test_sarsa_is_drawn_to_what_was_done_next_even_in_the_next_unroll():
    algorithm = QLearning(kind="sarsa", gamma=0.5).bind(SPEC)
    steps = jax.tree.map(lambda x: x[:, 0], unroll())._replace(terminated=jnp.zeros(3, bool))
    memory = algorithm.memory(jnp.int32(0))
    experience, memory = algorithm.digest(view(), memory, steps)
    np.testing.assert_array_equal(experience.valid, [False, True, True])  # nothing came before the first step
    again, _ = algorithm.digest(view(), memory, steps)
    np.testing.assert_array_equal(again.valid, [True, True, True])
    np.testing.assert_array_equal(again.rows.reward, [3.0, 1.0, 2.0])
    np.testing.assert_array_equal(again.rows.extras, [1, 0, 1])  # what each step was followed by
    rows = jax.tree.map(lambda x: x[:, None], again.rows._replace(valid=again.valid))
    batch, _ = algorithm.prepare(view(), Sample(rows))
    # cut at state 2: the best of it; then action 0 in state 1; then action 1 in state 3
    np.testing.assert_allclose(batch.target, [3 + 0.5 * 5, 1 + 0.5 * 1, 2 + 0.5 * 0], rtol=1e-6)


def test_rates_of_a_mixture_are_those_of_the_paper():
    rates = jax.vmap(mixed_epsilon)(jnp.arange(3000))
    counts = [int(jnp.isclose(rates, x).sum()) for x in (0.1, 0.01, 0.5)]
    assert stats.chisquare(counts, 3000 * np.array([0.4, 0.3, 0.3])).pvalue > 1e-3


def test_environments_explore_each_in_its_own_way():
    ladder = DQN(exploration="ladder", envs=4).bind(SPEC)
    rates = [float(ladder.epsilon(view(), ladder.memory(jnp.int32(i)).exploration)) for i in range(4)]
    np.testing.assert_allclose(rates, [0.4 ** (1 + 7 * i / 3) for i in range(4)], rtol=1e-5)
    mixture = QLearning(epsilon_fraction=0.5).bind(SPEC)
    rate = mixture.epsilon(view(progress=0.25), jnp.float32(0.1))
    assert float(rate) == pytest.approx(0.55)
    assert float(mixture.epsilon(view(progress=0.9), jnp.float32(0.1))) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (DQN(exploration="lader"), "did you mean 'ladder'"),
        (DQN(optimiser="adagrd"), "did you mean 'adagrad'"),
        (DQN(polyak=2.0), "--polyak 2.0: must be between 0 and 1"),
        (DQN(outliers=-1.0), "--outliers -1.0: must be at least 0"),
        (QLearning(kind="sarza"), "did you mean 'sarsa'"),
    ],
)
def test_what_makes_no_sense_is_refused(algorithm, said):
    with pytest.raises(TesseraError, match=said):
        algorithm.bind(SPEC).check()


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_draws_over_shards_have_the_distribution_that_docs_state(shards):
    groups, rows, draws = 4, 8, 400
    store = Replay(groups * rows, 64, prioritised=True, alpha=0.6).split(groups)
    row = {"id": jax.ShapeDtypeStruct((), jnp.int32)}
    priorities = jax.random.uniform(jax.random.key(1), (groups, rows), minval=0.1, maxval=2.0)
    buffers = jax.vmap(lambda _: store.init(row, rows))(jnp.arange(groups))
    ids = jnp.arange(groups * rows, dtype=jnp.int32).reshape(groups, rows, 1)
    buffers = jax.vmap(store.put)(buffers, Experience({"id": ids}, priority=priorities[..., None]))
    counts, weights = np.zeros(groups * rows), np.zeros(groups * rows)
    for shard in np.array_split(np.arange(groups), shards):  # each shard draws for its groups alone
        held = jax.tree.map(lambda x, shard=shard: x[shard], buffers)
        keys = jax.vmap(lambda g: jax.random.split(jax.random.fold_in(jax.random.key(2), g), draws))(shard)
        drawn = jax.vmap(jax.vmap(store.sample, (None, 0)))(held, keys)
        np.add.at(counts, np.ravel(drawn.rows["id"]), 1)
        weights[np.ravel(drawn.rows["id"])] = np.ravel(drawn.weight)
    within = np.asarray(priorities, np.float64) ** 0.6
    probability = (within / within.sum(1, keepdims=True)).ravel()  # within a group; every group gives as many rows
    assert stats.chisquare(counts, probability * draws * 64 / groups).pvalue > 1e-3
    np.testing.assert_allclose(weights, 1 / (rows * probability), rtol=1e-5)
