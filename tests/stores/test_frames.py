"""The replay of frames: rows that are drawn against rows that were put, and against a plain replay of the same rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tessera
from tessera import DQN, policies
from tessera.algorithms.contract import Transition
from tessera.algorithms.parts.n_step_windows import Row, n_step_rows
from tessera.errors import TesseraError
from tessera.stores import Experience, Replay
from tessera.stores import frames as module
from tessera.stores.frames import FrameReplay

FRAME = (5, 6)  # 30 pixels: no whole number of words
GIB = 2**30


class Game:
    """Environments that stack the last k frames, which are noise; the rows they make, and each of them by its number.

    Episodes end at random, `still` of the frames repeat the one before, and a stack begins with zeros or other noise.
    """

    def __init__(self, seed, n=3, k=4, ends=0.05, still=0.1, begin="zeros", frame=FRAME):
        self.rng, self.n, self.k, self.frame = np.random.default_rng(seed), n, k, frame
        self.ends, self.still, self.begin = ends, still, begin
        self.steps, self.made, self.rows = [], 0, {}
        self.starts, self.now = n, np.stack([self.start() for _ in range(n)])

    def noise(self, *shape):
        return self.rng.integers(0, 256, (*shape, *self.frame), np.uint8)

    def start(self):
        stack = self.noise(self.k)
        if self.begin == "zeros":
            stack[:-1] = 0
        return stack

    def step(self):
        fresh = np.where(self.rng.random((self.n, 1, 1)) < self.still, self.now[:, -1], self.noise(self.n))
        after = np.concatenate([self.now[:, 1:], fresh[:, None]], axis=1)
        terminated, truncated = self.rng.random((2, self.n)) < self.ends
        ids = np.arange(self.made, self.made + self.n, dtype=np.int32)
        reward = self.rng.normal(size=self.n).astype(np.float32)
        self.steps.append(Transition(self.now, ids, (), reward, terminated, truncated, after))
        self.made += self.n
        self.starts += int((terminated | truncated).sum())
        over = (terminated | truncated)[:, None, None, None]
        self.now = np.where(over, np.stack([self.start() for _ in range(self.n)]), after)

    def unroll(self, time, n_step=1, valid=None, priority=None):
        """Rows [T, n] of the next steps, with n - 1 more steps played ahead."""
        while len(self.steps) < time + n_step - 1:
            self.step()
        trajectory = jax.tree.map(lambda *x: np.stack(x), *self.steps[: time + n_step - 1])
        rows = jax.tree.map(np.asarray, _windows(trajectory, n_step))
        del self.steps[:time]
        for t, e in np.ndindex(time, self.n):
            if valid is None or valid[t, e]:
                self.rows[int(rows.action[t, e])] = jax.tree.map(lambda x: x[t, e], rows)  # noqa: B023
        return Experience(rows, valid, priority, version=rows.action // 7)

    def listed(self, numbers):
        """Stack the rows with these numbers."""
        return jax.tree.map(lambda *x: np.stack(x), *[self.rows[i] for i in numbers])

    def check(self, sample):
        """Every row drawn is the row of its number, bit for bit."""
        assert_equal(sample.rows, self.listed(np.asarray(sample.rows.action).tolist()))
        np.testing.assert_array_equal(sample.version, sample.rows.action // 7)


@partial(jax.jit, static_argnums=1)
def _windows(trajectory, n_step):
    return jax.vmap(lambda t: n_step_rows(t, 0.9, n_step), in_axes=1, out_axes=1)(trajectory)


def row(k=4, frame=FRAME):
    number, stack = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((k, *frame), jnp.uint8)
    return Row(stack, jax.ShapeDtypeStruct((), jnp.int32), number, number, stack)


def compiled(store):
    return jax.jit(store.put, donate_argnums=0), jax.jit(store.sample), jax.jit(store.update, donate_argnums=0)


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def alive(buffer):
    """Slots of the rows that may be drawn, oldest first."""
    capacity, live = buffer.table.version.shape[0], int(buffer.live)
    return (int(buffer.table.head) - live + np.arange(live)) % capacity


def assert_intact(store, buffer, game):
    """The rows that may be drawn are the newest ones, as they were put; no other has a priority."""
    slots = alive(buffer)
    rows = jax.tree.map(lambda x: np.asarray(x)[slots], buffer.table.rows.row)
    stacks = {name: np.asarray(buffer.frames)[getattr(rows, name)] for name in store.stacks}
    numbers = sorted(game.rows)[-len(slots) :]
    assert rows.action.tolist() == numbers
    assert_equal(rows._replace(**stacks), game.listed(numbers))
    if store.prioritised:
        np.testing.assert_array_equal(np.flatnonzero(buffer.table.tree[0]), np.sort(slots))


@pytest.mark.parametrize("prioritised", [False, True], ids=["uniform", "prioritised"])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "some"])
@pytest.mark.parametrize(("n_step", "begin"), [(1, "zeros"), (3, "noise")])
def test_draws_are_those_of_a_plain_replay_bit_for_bit(n_step, begin, masked, prioritised):
    game, time = Game(1, begin=begin), 4
    store, plain = FrameReplay(100, 32, prioritised, margin=2.0), Replay(100, 32, prioritised)
    (put, sample, update), others = compiled(store), compiled(plain)
    buffer, other = store.init(row(), time * game.n), plain.init(row(), time * game.n)
    for i in range(40):  # three or four times around
        valid = game.rng.random((time, game.n)) < 0.7 if masked else None
        priority = game.rng.random((time, game.n)).astype(np.float32) if i % 2 and prioritised else None
        experience = game.unroll(time, n_step, valid, priority)
        buffer, other = put(buffer, experience), others[0](other, experience)
        assert int(buffer.filled) == int(other.filled)
        key = jax.random.key(i)
        drawn = sample(buffer, key)
        assert_equal(drawn, others[1](other, key))
        game.check(drawn)
        if prioritised:  # distinct slots: which of two priorities a slot drawn twice keeps is not promised
            index = game.rng.permutation(int(other.filled))[:6].astype(np.int32)
            fresh = game.rng.exponential(size=6).astype(np.float32)
            buffer, other = update(buffer, index, fresh), others[2](other, index, fresh)


@pytest.mark.parametrize("prioritised", [False, True], ids=["uniform", "prioritised"])
@pytest.mark.parametrize(("n", "time", "ends"), [(1, 4, 0.5), (3, 4, 0.4), (6, 1, 0.6)])
def test_rows_with_lost_frames_are_never_drawn_however_short_episodes_are(n, time, ends, prioritised):
    game = Game(2, n=n, ends=ends, still=0.3, begin="noise")
    store = FrameReplay(40 * n * time, 64, prioritised, margin=0.0)
    put, sample, _ = compiled(store)
    buffer = store.init(row(), time * n)
    held = set()
    for i in range(130):
        valid = game.rng.random((time, n)) < 0.8 if i % 50 > 40 else np.ones((time, n), bool)
        buffer = put(buffer, game.unroll(time, valid=valid))
        if i % 9 == 0 or i > 124:
            assert_intact(store, buffer, game)
            game.check(sample(buffer, jax.random.key(i)))
        held.add(int(buffer.table.filled) - int(buffer.live))
    assert len(held) > 3  # some were lost, now more, now less
    assert int(buffer.live) >= n * time


def test_every_row_that_is_left_is_as_likely_to_be_drawn():
    game = Game(3, n=2, ends=0.4, begin="noise")
    store = FrameReplay(60, 4096, margin=0.0)
    put, sample, _ = compiled(store)
    buffer = store.init(row(), 4)
    for i in range(70):
        buffer = put(buffer, game.unroll(2))
        lost = int(buffer.table.filled) - int(buffer.live)
        if lost and i % 4 == 0:
            drawn = np.asarray(sample(buffer, jax.random.key(i)).rows.action)
            numbers = sorted(game.rows)[-int(buffer.live) :]
            counts = np.bincount(np.searchsorted(numbers, drawn), minlength=len(numbers))
            assert counts.min() > 0.4 * 4096 / len(numbers)
            assert counts.max() < 1.8 * 4096 / len(numbers)
    assert lost


def test_a_priority_that_comes_late_does_not_bring_a_row_back():
    game = Game(4, ends=0.5, begin="noise")
    store = FrameReplay(120, 16, prioritised=True, margin=0.0)
    put, sample, update = compiled(store)
    buffer = store.init(row(), 12)
    gone = 0
    for i in range(60):
        drawn = sample(buffer, jax.random.key(i)) if i else None
        buffer = put(buffer, game.unroll(4))
        if drawn is not None:
            gone += len(set(np.asarray(drawn.index).tolist()) - set(alive(buffer).tolist()))
            buffer = update(buffer, drawn.index, np.full(16, 5.0, np.float32))
        assert_intact(store, buffer, game)
    assert gone
    total = float(jnp.sum(buffer.table.tree[0]))
    drawn = sample(buffer, jax.random.key(0))
    entry = np.asarray(buffer.table.tree[0])[drawn.index]
    np.testing.assert_allclose(drawn.weight, total / (int(buffer.live) * entry), rtol=1e-5)


def test_a_screen_that_never_changes_is_stored_again_before_it_is_overwritten():
    game = Game(5, ends=0.0)
    store = FrameReplay(60, 32, prioritised=True)
    put, sample, _ = compiled(store)
    buffer = store.init(row(), 12)
    still = game.now[0, -1].copy()
    for i in range(80):
        for _ in range(4):
            game.step()
            last = game.steps[-1]
            last.next_observation[0] = np.concatenate([last.observation[0, 1:], still[None]])
            game.now[0] = last.next_observation[0]
        buffer = put(buffer, game.unroll(4))
        assert_intact(store, buffer, game)
        game.check(sample(buffer, jax.random.key(i)))
    assert int(buffer.live) == 60


def test_a_row_takes_one_slot_and_an_episode_two_more():
    game = Game(6, n=2, ends=0.02, still=0.0)
    store = FrameReplay(10_000, 8)
    put = jax.jit(store.put, donate_argnums=0)
    buffer = store.init(row(), 64)
    for _ in range(30):
        buffer = put(buffer, game.unroll(32))
    rows = 30 * 64
    assert int(buffer.live) == rows
    assert game.starts > 50
    assert rows + game.starts < int(buffer.head) <= rows + 2 * game.starts


def test_frames_that_share_a_mark_cost_rows_but_never_give_wrong_ones(monkeypatch):
    monkeypatch.setattr(module, "_marks", lambda stack: (stack[..., :1, 0] // 32).astype(jnp.uint32).repeat(2, -1))
    game = Game(7, frame=(4, 4))  # a size of its own: what was compiled for others does not see the patch
    store = FrameReplay(60, 64)
    buffer = store.init(row(frame=game.frame), 12)
    for i in range(30):
        buffer = store.put(buffer, game.unroll(4))
        if int(buffer.live):
            game.check(store.sample(buffer, jax.random.key(i)))
    assert int(buffer.live) > 0
    assert np.asarray(buffer.table.rows.row.action)[alive(buffer)].min() < game.made - 60


@pytest.mark.parametrize("prioritised", [False, True], ids=["uniform", "prioritised"])
def test_vmapped_groups_are_what_each_group_is_alone(prioritised):
    store = FrameReplay(96, 16, prioritised).split(2)
    assert store == FrameReplay(48, 8, prioritised)
    games = [Game(8), Game(9, ends=0.3, begin="noise")]
    alone = [store.init(row(), 12) for _ in games]
    both = jax.vmap(lambda _: store.init(row(), 12))(jnp.arange(2))
    put, sample, _ = compiled(store)
    puts, samples = (jax.jit(jax.vmap(f), donate_argnums=d) for f, d in ((store.put, (0,)), (store.sample, ())))
    for _ in range(25):
        given = [game.unroll(4, n_step=2) for game in games]
        alone = [put(buffer, x) for buffer, x in zip(alone, given, strict=True)]
        both = puts(both, jax.tree.map(lambda *x: np.stack(x), *given))
    keys = jax.random.split(jax.random.key(0), 2)
    drawn = samples(both, keys)
    for g, game in enumerate(games):
        assert_equal(jax.tree.map(lambda x: x[g], drawn), sample(alone[g], keys[g]))  # noqa: B023
        game.check(jax.tree.map(lambda x: x[g], drawn))  # noqa: B023


@pytest.mark.usefixtures("x64")
def test_it_works_with_numbers_of_64_bits():
    game, store = Game(10, ends=0.3), FrameReplay(48, 16, prioritised=True)
    put, sample, update = compiled(store)
    buffer = store.init(row(), 12)
    for i in range(20):
        buffer = put(buffer, game.unroll(4))
        drawn = sample(buffer, jax.random.key(i))
        game.check(drawn)
        buffer = update(buffer, drawn.index, jnp.ones(16))


@pytest.mark.parametrize("axis", [2, -1])
def test_the_axis_of_frames_may_be_another(axis):
    game, store = Game(11), FrameReplay(48, 16, axis=axis)
    turn = lambda rows, a, b: rows._replace(**{s: np.moveaxis(getattr(rows, s), a, b) for s in store.stacks})  # noqa: E731
    last = jax.ShapeDtypeStruct((*FRAME, 4), jnp.uint8)
    buffer = store.init(row()._replace(observation=last, bootstrap=last), 12)
    assert buffer.frames.shape[1:] == FRAME
    for i in range(12):
        experience = game.unroll(4)
        buffer = store.put(buffer, experience._replace(rows=turn(experience.rows, 2, -1)))
        drawn = store.sample(buffer, jax.random.key(i))
        assert drawn.rows.observation.shape == (16, *FRAME, 4)
        game.check(drawn._replace(rows=turn(drawn.rows, -1, 1)))


def nbytes(store, rows_per_put, groups=1):
    share = store.split(groups)
    atari = row(frame=(84, 84))
    shapes = jax.eval_shape(jax.vmap(lambda _: share.init(atari, rows_per_put)), jnp.arange(groups))
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))


@pytest.mark.parametrize(("rows_per_put", "groups"), [(4, 1), (64, 1), (4 * 256, 1), (64, 8)])
def test_a_million_atari_rows_take_less_than_8_gib(rows_per_put, groups):
    store = FrameReplay(1_000_000, 32, prioritised=True)
    assert nbytes(store, rows_per_put, groups) < 7.4 * GIB
    assert nbytes(Replay(1_000_000, 32, prioritised=True), rows_per_put, groups) > 52 * GIB


def test_a_put_into_donated_groups_needs_no_second_ring():
    store, atari = FrameReplay(10_000, 8, prioritised=True), row(frame=(84, 84))
    shapes = jax.eval_shape(jax.vmap(lambda _: store.init(atari, 8)), jnp.arange(2))
    experience = Experience(jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, 4, 2, *x.shape), x.dtype), atari))
    used = jax.jit(jax.vmap(store.put), donate_argnums=0).lower(shapes, experience).compile().memory_analysis()
    assert used.alias_size_in_bytes > 2 * 10_000 * 84 * 84
    assert used.temp_size_in_bytes < 0.02 * used.alias_size_in_bytes


def test_what_cannot_be_stored_as_frames_is_refused():
    number = jax.ShapeDtypeStruct((4,), jnp.float32)
    with pytest.raises(TesseraError, match="observation is float32"):
        FrameReplay(10, 2).init(row()._replace(observation=number, bootstrap=number), 2)
    with pytest.raises(TesseraError, match="different shapes"):
        FrameReplay(10, 2).init(row()._replace(bootstrap=jax.ShapeDtypeStruct((4, 7, 7), jnp.uint8)), 2)
    with pytest.raises(TesseraError, match="less than the 8 frames"):
        FrameReplay(10, 2, reach=7).init(row(), 2)
    store = FrameReplay(12, 2)
    with pytest.raises(ValueError, match="does not fit"):
        store.put(store.init(row(), 3), Game(0).unroll(8))


class Pixels(tessera.DeviceEnvironment):
    """A point moves up or down a screen of 6 x 6, seen as the last 4 frames; episodes are cut or lost now and then."""

    spec = tessera.Spec((4, 6, 6), "uint8", tessera.Discrete(2))

    def reset(self, key):
        position = jax.random.randint(key, (), 1, 5)
        stack = jnp.zeros((4, 6, 6), jnp.uint8).at[-1, position, 0].set(255)
        return (position, jnp.int32(0), stack), stack

    def step(self, state, action, key):
        position, time, stack = state
        position, time = position + jnp.where(action == 1, 1, -1), time + 1
        shown = jnp.zeros((1, 6, 6), jnp.uint8).at[0, position, time % 6].set(jnp.uint8(255) - time.astype(jnp.uint8))
        stack = jnp.concatenate([stack[1:], shown])
        lost = (position <= 0) | (position >= 5)
        return (position, time, stack), stack, jnp.where(lost, -1.0, 0.1), lost, (time == 9) & ~lost


@dataclass(frozen=True)
class FrameDQN(DQN):
    """DQN with a replay of frames."""

    @property
    def store(self):
        plain = super().store
        return FrameReplay(plain.capacity, plain.batch, prioritised=plain.prioritised, alpha=plain.alpha, margin=1.0)


@pytest.mark.parametrize(("prioritised", "n_step"), [pytest.param(False, 1, marks=pytest.mark.slow), (True, 3)])
def test_dqn_learns_the_very_same_params_from_a_replay_of_frames(prioritised, n_step):
    options = {"widths": (16,), "capacity": 256, "batch": 16, "warmup": 4, "torso": "mlp", "n_step": n_step}
    results = [
        tessera.train(
            algorithm(prioritised=prioritised, **options),
            Pixels,
            policies.get("fused", devices=1),
            steps=1200,
            envs=8,
            groups=2,
            eval_episodes=1,
            quiet=True,
        )
        for algorithm in (DQN, FrameDQN)
    ]
    assert results[0].summary["updates"] == results[1].summary["updates"] > 20
    assert_equal(results[0].params, results[1].params)
