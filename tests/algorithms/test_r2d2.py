"""R2D2: its targets by hand and against rlax, burn-in, priorities, ends of episodes, and every policy alike."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from parity.matrix import MOVED, REPLAY_POLICIES, assert_same_state, engine_for, furthest, run

from tessera import R2D2, Discrete, Spec, TesseraError, Timestep, Transition, View, policies
from tessera.algorithms.contract import Clock
from tessera.algorithms.parts.sequences import Sequence, SequenceStatistics, time_major
from tessera.runs.checkpoint import flatten, unflatten
from tessera.stores.base import Sample

SPEC = Spec((3,), "float32", Discrete(2))
STEPS, ROWS = 8, 3
CLOSE: dict[str, float] = {"rtol": 1e-4, "atol": 1e-5}


def made(**flags: Any) -> tuple[R2D2, Any, Any]:
    """A bound algorithm, its params, and those of its target."""
    given = {"sequence": STEPS, "unroll": 4, "burn_in": 0, "gamma": 0.99, "widths": (8,), "core_width": 4, **flags}
    algorithm = R2D2(**given).bind(SPEC)
    algorithm.check()
    return algorithm, algorithm.init(jax.random.key(0)), algorithm.init(jax.random.key(1))


def sequences(algorithm: R2D2, **ends: jax.Array) -> Sequence:
    """Random sequences, [B, T, ...], of steps that follow each other; `ends` say where episodes end."""
    keys = jax.random.split(jax.random.key(2), 6)
    seen = jax.random.normal(keys[0], (ROWS, STEPS + 1, 3))
    never = jnp.zeros((ROWS, STEPS), bool)
    terminated, truncated = ends.get("terminated", never), ends.get("truncated", never)
    over = terminated | truncated
    final = jnp.where(over[..., None], jax.random.normal(keys[1], (ROWS, STEPS, 3)), seen[:, 1:])
    action = jax.random.randint(keys[2], (ROWS, STEPS), 0, 2)
    reward = 3 * jax.random.normal(keys[3], (ROWS, STEPS))
    first = jnp.concatenate([never[:, :1], over[:, :-1]], axis=1)
    start = jax.tree.map(lambda x: jax.random.normal(keys[4], (ROWS, *x.shape)), algorithm.model.empty())
    return Sequence(seen[:, :-1], action, reward, terminated, truncated, final, first, ~never, start)


def step_by_step(algorithm: R2D2, params: Any, rows: Sequence) -> tuple[jax.Array, jax.Array]:
    """Action values of observations, and of those that steps led to, [B, T, n]: one step of the network at a time."""
    step = jax.jit(lambda *given: algorithm.model.apply(params, *given, method="step"))
    carry, now, then = rows.start, [], []
    for t in range(STEPS):
        values, carry = step(rows.observation[:, t], carry, rows.first[:, t])
        now.append(values)
        then.append(step(rows.next_observation[:, t], carry, jnp.zeros(ROWS, bool))[0])
    return jnp.stack(now, 1), jnp.stack(then, 1)


def errors(algorithm: R2D2, params: Any, target: Any, rows: Sequence) -> np.ndarray:
    return np.asarray(algorithm.sequence_errors(params, target, time_major(rows))[0]).T


def ends_at(*places: tuple[int, int]) -> jax.Array:
    return jnp.zeros((ROWS, STEPS), bool).at[tuple(zip(*places, strict=True))].set(True)


def view_of(params: Any, target: Any) -> View:
    return View(params, target, SequenceStatistics(), Clock(jnp.int32(1), jnp.int32(100)))


@pytest.mark.parametrize(("n", "rescale", "core"), [(1, False, "lstm"), (3, True, "lstm"), (3, True, "gru")])
def test_errors_are_rlaxs(n, rescale, core):
    algorithm, params, target = made(n_step=n, rescale=rescale, core=core)
    rows = sequences(algorithm, terminated=ends_at((0, 2), (1, 6)))
    pair = rlax.SIGNED_HYPERBOLIC_PAIR if rescale else rlax.IDENTITY_PAIR
    (now, judged), (_, then) = (step_by_step(algorithm, p, rows) for p in (params, target))
    discount = 0.99 * (1.0 - rows.terminated)

    def expected(now, action, then, best, reward, discount):
        return rlax.transformed_n_step_q_learning(now, action, then, best, reward, discount, n, tx_pair=pair)

    wanted = jax.vmap(expected)(now, rows.action, then, judged.argmax(-1), rows.reward, discount)
    found = errors(algorithm, params, target, rows)
    np.testing.assert_allclose(found, -wanted, rtol=1e-3, atol=1e-4)  # rlax's inverse loses digits in float32


def test_a_truncated_window_bootstraps_from_the_final_observation():
    algorithm, params, target = made(n_step=3, rescale=False)
    rows = sequences(algorithm, truncated=ends_at((0, 2), (2, 4)))
    (now, judged), (_, then) = (map(np.asarray, step_by_step(algorithm, p, rows)) for p in (params, target))
    reward, action, found = *map(np.asarray, (rows.reward, rows.action)), errors(algorithm, params, target, rows)
    for row, end in ((0, 2), (2, 4)):
        for k in range(3):  # steps before the end see the rewards up to it
            t = end - k
            rewards = sum(0.99**i * reward[row, t + i] for i in range(k + 1))
            wanted = rewards + 0.99 ** (k + 1) * then[row, end, judged[row, end].argmax()]
            assert found[row, t] == pytest.approx(now[row, t, action[row, t]] - wanted, rel=1e-3, abs=1e-4)


def test_nothing_flows_back_into_the_burn_in_and_both_networks_warm_up():
    algorithm, params, target = made(burn_in=3, n_step=2)
    rows = sequences(algorithm)
    gradients, (metrics, _) = algorithm.loss_gradient(view_of(params, target), rows, 1.0, jax.random.key(0))

    def warm(params: Any) -> Any:
        _, carries = algorithm.model.apply(params, rows.observation.swapaxes(0, 1)[:3], rows.start, no)
        return jax.tree.map(lambda x: x[-1], carries)

    no = jnp.zeros((3, ROWS), bool)
    late = jax.tree.map(lambda x: x[:, 3:], rows._replace(start=()))
    cold, _, _ = made(burn_in=0, n_step=2)
    ours, theirs = (time_major(late._replace(start=warm(p))) for p in (params, target))

    def loss(varied: Any) -> jax.Array:
        values, _ = cold.model.apply(varied, ours.observation, ours.start, ours.first)
        held = cold.model.apply(params, ours.observation, ours.start, ours.first)
        wanted = cold.targets(target, (params, *held), theirs)
        chosen = jnp.take_along_axis(values, ours.action[..., None], -1)[..., 0]
        return 0.5 * jnp.mean((chosen - wanted) ** 2)

    total, expected = jax.value_and_grad(loss)(params)
    assert float(metrics["loss"]) == pytest.approx(float(total), rel=1e-5)
    jax.tree.map(lambda g, e: np.testing.assert_allclose(g, e, **CLOSE), gradients, expected)


def test_priorities_mix_the_largest_and_the_mean_error_of_the_steps_that_were_played():
    algorithm, params, target = made(burn_in=2)
    error = jnp.asarray([[1.0, 0.0], [-4.0, 9.0], [100.0, 3.0]])
    valid = jnp.asarray([[True, True], [True, True], [False, True]])
    np.testing.assert_allclose(algorithm.mixed_errors(error, valid), [3.85, 8.5], rtol=1e-6)
    rows = sequences(algorithm)
    by_hand = np.abs(errors(algorithm, params, target, rows))
    assert by_hand.shape == (ROWS, STEPS - 2)
    wanted = 0.9 * by_hand.max(1) + 0.1 * by_hand.mean(1)
    np.testing.assert_allclose(algorithm.row_errors(params, target, rows), wanted, rtol=1e-5)
    feedback = algorithm.gradient(view_of(params, target), (rows, None), (), jax.random.key(0))[1]
    np.testing.assert_allclose(feedback.priorities, wanted + 1e-3, rtol=1e-5)


def test_steps_that_were_not_played_count_for_nothing():
    algorithm, params, target = made(n_step=2)
    over = ends_at((0, 2), (1, 3))
    rows = sequences(algorithm, terminated=over)
    idle = jnp.concatenate([jnp.zeros((ROWS, 1), bool), over[:, :-1]], axis=1)  # the reset steps
    after = jnp.concatenate([jnp.zeros((ROWS, 1), bool), idle[:, :-1]], axis=1)
    rows = rows._replace(valid=~idle, first=rows.first | after)
    other = rows._replace(
        reward=jnp.where(idle, 50.0, rows.reward), observation=jnp.where(idle[..., None], 7.0, rows.observation)
    )
    given = [algorithm.loss_gradient(view_of(params, target), x, 1.0, jax.random.key(0)) for x in (rows, other)]
    jax.tree.map(lambda g, e: np.testing.assert_allclose(g, e, **CLOSE), given[0][0], given[1][0])
    np.testing.assert_allclose(given[0][1][1], given[1][1][1], **CLOSE)


def test_observations_are_normalised_by_the_steps_drawn_that_were_played():
    algorithm, params, target = made(burn_in=2, normalise_observations=True)
    state = algorithm.start(params)._replace(clock=Clock(jnp.int32(0), jnp.int32(10)))
    rows = sequences(algorithm)
    rows = rows._replace(valid=rows.valid.at[0, :5].set(False))
    view = View(params, target, state.statistics, state.clock)
    batch, summary = algorithm.prepare(view, Sample(rows))
    np.testing.assert_array_equal(batch[0].observation, rows.observation)  # nothing is known yet
    known = algorithm.absorb(state, jax.tree.map(lambda x: x[None], summary)).statistics
    seen = np.asarray(rows.observation)[np.asarray(rows.valid)]
    np.testing.assert_allclose(known.observation.mean, seen.mean(0), rtol=1e-5)
    (after, _), _ = algorithm.prepare(view._replace(statistics=known), Sample(rows))
    for name in ("observation", "next_observation"):
        wanted = (getattr(rows, name) - seen.mean(0)) / seen.std(0)
        np.testing.assert_allclose(getattr(after, name), wanted, rtol=1e-4, atol=1e-5)


def played(algorithm: R2D2, params: Any, unrolls: int) -> list[Any]:
    """What greedy acting stores, one unroll after the other: (experience, values that acting saw)."""
    view, memory, out = view_of(params, ()), algorithm.memory(jnp.int32(0)), []
    seen = jax.random.normal(jax.random.key(9), (unrolls * algorithm.unroll + 1, 3))
    over = jnp.zeros(len(seen), bool).at[6].set(True)  # the step that leads to observation 6 ends an episode
    no = jnp.zeros((), bool)
    for unroll in range(unrolls):
        steps, values = [], []
        for t in range(unroll * algorithm.unroll, (unroll + 1) * algorithm.unroll):
            timestep = Timestep(seen[t], jnp.zeros(()), over[t], no, None)
            values.append(algorithm.remembered_values(view, memory, timestep)[0])
            action, memory, extras = algorithm.act(view, memory, timestep, jax.random.key(t))
            steps.append(
                Transition(seen[t], action, extras, 1.0 * t, over[t + 1], no, seen[t + 1], version=jnp.int32(t))
            )
        trajectory = jax.tree.map(lambda *x: jnp.stack(x), *steps)
        experience, memory = algorithm.digest(view, memory, trajectory)
        out.append((experience, jnp.stack(values)))
    return out


def test_sequences_overlap_and_replay_what_the_actor_remembered():
    algorithm, params, _ = made(exploration="anneal", epsilon_end=0.0, epsilon_start=0.0)
    stored = played(algorithm, params, 4)
    rows = [jax.tree.map(lambda x: x[0], experience.rows) for experience, _ in stored]
    np.testing.assert_array_equal(rows[0].valid, [False] * 4 + [True] * 4)
    np.testing.assert_array_equal(rows[2].reward, np.arange(4.0, 12.0))
    np.testing.assert_array_equal(rows[3].reward, np.arange(8.0, 16.0))
    assert [int(e.version[0]) for e, _ in stored] == [0, 0, 4, 8]
    saw = jnp.concatenate([values for _, values in stored])
    for k, row in enumerate(rows):
        values, _ = algorithm.model.apply(params, row.observation, row.start, row.first)
        late = slice(4, 8) if k == 0 else slice(0, 8)
        expected = saw[max(k - 1, 0) * 4 : (k + 1) * 4]
        np.testing.assert_allclose(values[late], expected, **CLOSE)
        np.testing.assert_array_equal(row.action[late], expected.argmax(-1))


def test_without_overlap_a_sequence_is_an_unroll():
    algorithm, params, _ = made(unroll=STEPS)
    (experience, _), _ = played(algorithm, params, 2)
    np.testing.assert_array_equal(experience.rows.reward[0], np.arange(8.0))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"core": "none"}, "core"),
        ({"unroll": 9}, "--sequence 8 is below --unroll 9"),
        ({"burn_in": 8}, "--burn-in 8: must be below --sequence 8"),
    ],
)
def test_settings_that_make_no_sense_are_refused(flags, said):
    with pytest.raises(TesseraError, match=said):
        made(**flags)


SMALL = R2D2(
    unroll=6, sequence=12, burn_in=2, draws=2, batch=24, capacity=240, warmup=2, widths=(8,), core_width=4,
    learning_rate=0.01, target_period=4, dueling=True, actor_priorities=True, normalise_observations=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def on_one_device() -> Any:
    with jax.enable_x64(True):
        before, after, _ = run(SMALL, policies.get("fused", devices=1))
    assert furthest(before.params, after.params) > MOVED
    assert furthest(before.target, after.target) > MOVED
    assert furthest(before.statistics, after.statistics) > MOVED
    return after


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("policy", REPLAY_POLICIES)
def test_every_policy_gives_the_params_of_fused(policy, on_one_device):
    assert_same_state(SMALL, policy, on_one_device)


@pytest.mark.usefixtures("x64")
def test_a_run_goes_on_from_a_checkpoint_to_the_same_bits():
    whole, again = (engine_for(SMALL, policies.get("fused", devices=1)) for _ in range(2))
    whole.start()
    whole.advance(2)
    saved = flatten(jax.device_get(whole.snapshot()))
    again.restore(unflatten(again.template(), saved, "the checkpoint"))
    for engine in (whole, again):
        engine.advance(2)
    jax.tree.map(np.testing.assert_array_equal, *(jax.device_get(e.snapshot()) for e in (whole, again)))
