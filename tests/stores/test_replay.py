"""The replay: against a ring and a list of priorities in plain Python, and by the statistics of what it draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tessera.errors import TesseraError
from tessera.stores import Experience, Replay
from tessera.stores.replay import _FANOUT

ROW = {"id": jax.ShapeDtypeStruct((), jnp.int32), "x": jax.ShapeDtypeStruct((2,), jnp.float32)}


def experience(first, time, n, valid=None, priority=None):
    ids = jnp.arange(first, first + time * n, dtype=jnp.int32).reshape(time, n)
    return Experience({"id": ids, "x": jnp.stack([ids, -ids], -1).astype(jnp.float32)}, valid, priority)


class Ring:
    """A replay as one would write it in plain Python."""

    def __init__(self, capacity, alpha):
        self.ids, self.priorities = [None] * capacity, [0.0] * capacity
        self.head, self.filled, self.largest, self.alpha = 0, 0, 1.0, alpha

    def put(self, ids, valid, priority):
        largest = self.largest
        for i, row in enumerate(ids):
            if valid is not None and not valid[i]:
                continue
            p = largest if priority is None else priority[i]
            self.ids[self.head], self.priorities[self.head] = row, p
            self.largest = max(self.largest, p)
            self.head = (self.head + 1) % len(self.ids)
            self.filled = min(self.filled + 1, len(self.ids))

    def update(self, index, priority):
        for i, p in zip(index, priority, strict=True):
            self.priorities[i] = p
            self.largest = max(self.largest, p)

    def entries(self):
        return np.array([p**self.alpha if p > 0 else 0.0 for p in self.priorities])


def assert_same(buffer, ring):
    assert int(buffer.head) == ring.head
    assert int(buffer.filled) == ring.filled
    held = [i for i in ring.ids if i is not None]
    np.testing.assert_array_equal(buffer.rows["id"][: len(held)], held)
    np.testing.assert_array_equal(buffer.rows["x"][: len(held), 1], -np.array(held, np.float32))
    entries = ring.entries()
    np.testing.assert_allclose(buffer.tree[0][: len(entries)], entries, rtol=1e-5)
    assert not np.any(buffer.tree[0][len(entries) :])
    for below, above in zip(buffer.tree, buffer.tree[1:], strict=False):
        sums = np.asarray(below, np.float64).reshape(-1, _FANOUT).sum(1)
        np.testing.assert_allclose(above[: len(sums)], sums, rtol=1e-5)
        assert not np.any(above[len(sums) :])
    np.testing.assert_allclose(jnp.sum(buffer.tree[-1]), entries.sum(), rtol=1e-5)
    assert float(buffer.largest) == pytest.approx(ring.largest)


@pytest.mark.parametrize("given", [False, True], ids=["largest", "first"])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "some"])
@pytest.mark.parametrize(("capacity", "time", "n"), [(40, 4, 3), (1500, 7, 11), (5, 2, 2)])
def test_it_holds_what_a_plain_ring_holds_through_wraparound(capacity, time, n, masked, given):
    rng = np.random.default_rng(capacity)
    store = Replay(capacity, 8, prioritised=True, alpha=0.7)
    buffer = store.init(ROW, time * n)
    held = buffer.rows["id"].shape[0]
    assert held % (time * n) == 0
    assert capacity <= held < capacity + time * n
    put, update = jax.jit(store.put), jax.jit(store.update)
    ring = Ring(held, 0.7)
    for i in range(2 * held // (time * n) + 3):
        valid = rng.random((time, n)) < 0.6 if masked else None
        priority = rng.random((time, n)).astype(np.float32) * 3 if given else None
        buffer = put(buffer, experience(i * time * n, time, n, valid, priority))
        ids = range(i * time * n, (i + 1) * time * n)
        ring.put(ids, *(None if x is None else x.reshape(-1) for x in (valid, priority)))
        if i % 3 == 2 and ring.filled >= 4:
            index = rng.choice(ring.filled, 4, replace=False).astype(np.int32)
            fresh = rng.exponential(2.0, 4).astype(np.float32)
            buffer = update(buffer, index, fresh)
            ring.update(index.tolist(), fresh.tolist())
        if i % 5 == 0 or i > 2 * held // (time * n):
            assert_same(buffer, ring)


def test_invalid_rows_are_never_stored_even_if_a_whole_put_is_invalid():
    store = Replay(16, 64)
    buffer = store.init(ROW, 8)
    buffer = store.put(buffer, experience(100, 2, 4, jnp.zeros((2, 4), bool)))
    assert int(buffer.filled) == 0
    valid = jnp.arange(8).reshape(2, 4) % 2 == 0
    for i in range(5):
        buffer = jax.jit(store.put)(buffer, experience(8 * i, 2, 4, valid))
    assert (np.asarray(buffer.rows["id"]) % 2 == 0).all()
    assert sorted(np.asarray(buffer.rows["id"]).tolist()) == list(range(8, 40, 2))
    assert (np.asarray(store.sample(buffer, jax.random.key(0)).rows["id"]) % 2 == 0).all()


@pytest.mark.parametrize("prioritised", [False, True])
def test_an_empty_slot_is_never_drawn(prioritised):
    store = Replay(4096, 512, prioritised)
    buffer = store.put(store.init(ROW, 6), experience(1, 2, 3))
    for key in jax.random.split(jax.random.key(0), 5):
        ids = np.asarray(store.sample(buffer, key).rows["id"])
        assert set(ids.tolist()) == {1, 2, 3, 4, 5, 6}


def test_without_priorities_every_row_is_equally_likely_and_there_are_no_weights():
    store = Replay(64, 12_800)
    buffer = store.put(store.init(ROW, 64), experience(0, 8, 8))
    sample = store.sample(buffer, jax.random.key(1))
    assert stats.chisquare(np.bincount(sample.rows["id"], minlength=64)).pvalue > 1e-3
    assert sample.weight is None


@pytest.mark.parametrize("capacity", [20, 3000])
def test_draws_are_in_proportion_to_priority_to_the_power_alpha(capacity):
    store = Replay(capacity, 40_000, prioritised=True, alpha=0.5)
    priority = np.random.default_rng(1).exponential(1.0, (1, capacity)).astype(np.float32) + 0.3
    buffer = store.put(store.init(ROW, capacity), experience(0, 1, capacity, priority=priority))
    sample = jax.jit(store.sample)(buffer, jax.random.key(2))
    p = priority[0].astype(np.float64) ** 0.5
    counts = np.bincount(sample.index, minlength=capacity)
    assert stats.chisquare(counts, 40_000 * p / p.sum()).pvalue > 1e-3
    np.testing.assert_array_equal(sample.rows["id"], sample.index)
    np.testing.assert_allclose(sample.weight, 1 / (capacity * (p / p.sum())[sample.index]), rtol=1e-4)


def test_the_weighted_mean_of_draws_is_the_plain_mean_of_rows():
    store = Replay(50, 50_000, prioritised=True)
    priority = jnp.linspace(0.1, 5.0, 50)[None]
    buffer = store.put(store.init(ROW, 50), experience(0, 1, 50, priority=priority))
    sample = store.sample(buffer, jax.random.key(0))
    assert float(jnp.mean(sample.weight * sample.rows["id"])) == pytest.approx(24.5, rel=0.02)


def test_a_row_of_priority_zero_is_never_drawn_until_it_is_raised():
    store = Replay(100, 4096, prioritised=True)
    buffer = store.put(store.init(ROW, 100), experience(0, 1, 100))
    low = jnp.arange(0, 100, 2)
    buffer = store.update(buffer, low, jnp.zeros(50).at[3].set(jnp.nan).at[4].set(-1.0))
    sample = store.sample(buffer, jax.random.key(0))
    assert (np.asarray(sample.index) % 2 == 1).all()
    assert np.isfinite(sample.weight).all()
    buffer = store.update(buffer, low[:1], jnp.ones(1) * 1000)
    assert 0 in np.asarray(store.sample(buffer, jax.random.key(0)).index)


def test_new_rows_get_the_largest_priority_so_far():
    store = Replay(8, 4, prioritised=True, alpha=1.0)
    buffer = store.put(store.init(ROW, 2), experience(0, 1, 2))
    buffer = store.update(buffer, jnp.array([0, 1]), jnp.array([7.0, 0.5]))
    buffer = store.update(buffer, jnp.array([0]), jnp.array([2.0]))
    buffer = store.put(buffer, experience(2, 1, 2))
    np.testing.assert_allclose(buffer.tree[0][:8], [2.0, 0.5, 7.0, 7.0, 0, 0, 0, 0])


def test_infinite_priorities_do_not_spoil_the_sums():
    store = Replay(8, 16, prioritised=True)
    buffer = store.put(store.init(ROW, 8), experience(0, 1, 8))
    buffer = store.update(buffer, jnp.array([3]), jnp.array([jnp.inf]))
    sample = store.sample(buffer, jax.random.key(0))
    assert np.isfinite(sample.weight).all()
    assert (np.asarray(sample.index) == 3).all()


def test_vmapped_groups_are_what_each_group_is_alone():
    store = Replay(24, 8, prioritised=True).split(2)
    alone = [store.put(store.init(ROW, 4), experience(10 * g, 2, 2, priority=jnp.ones((2, 2)) + g)) for g in range(2)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *[store.init(ROW, 4)] * 2)
    given = [experience(10 * g, 2, 2, priority=jnp.ones((2, 2)) + g) for g in range(2)]
    together = jax.vmap(store.put)(stacked, jax.tree.map(lambda *x: jnp.stack(x), *given))
    keys = jax.random.split(jax.random.key(0), 2)
    drawn = jax.vmap(store.sample)(together, keys)
    for g in range(2):
        for a, b in zip(jax.tree.leaves(drawn), jax.tree.leaves(store.sample(alone[g], keys[g])), strict=True):
            np.testing.assert_array_equal(a[g], b)


def test_a_put_without_invalid_rows_needs_no_scatter():
    store = Replay(64, 4, prioritised=True)
    text = jax.jit(store.put).lower(store.init(ROW, 8), experience(0, 2, 4)).as_text()
    assert "scatter" not in text
    assert "dynamic_update_slice" in text


def test_a_buffer_can_be_donated_from_the_start():
    store = Replay(16, 4, prioritised=True)
    buffer = jax.jit(store.put, donate_argnums=0)(store.init(ROW, 4), experience(0, 2, 2))
    assert int(buffer.filled) == 4


def test_shares_add_up_and_a_batch_that_cannot_be_shared_is_refused():
    assert Replay(1000, 64).split(8) == Replay(125, 8)
    assert Replay(1001, 64, True, 0.5).split(8) == Replay(126, 8, True, 0.5)
    with pytest.raises(TesseraError, match="multiple of 8"):
        Replay(1000, 60).split(8)


def test_a_put_larger_than_the_buffer_is_refused():
    with pytest.raises(ValueError, match="does not fit"):
        Replay(4, 1).put(Replay(4, 1).init(ROW, 4), experience(0, 1, 8))


@pytest.mark.parametrize("masked", [False, True], ids=["all", "some"])
@pytest.mark.parametrize("prioritised", [False, True])
def test_rows_are_drawn_with_the_version_of_the_params_that_made_them(prioritised, masked):
    store = Replay(24, 64, prioritised=prioritised)
    buffer = store.init(ROW, 6)
    for i in range(7):  # three times around
        rows = experience(6 * i, 3, 2, jnp.ones((3, 2), bool).at[1, 1].set(False) if masked else None)
        buffer = store.put(buffer, rows._replace(version=rows.rows["id"] // 6))
    drawn = store.sample(buffer, jax.random.key(1))
    np.testing.assert_array_equal(drawn.version, drawn.rows["id"] // 6)
    assert len(np.unique(drawn.version)) > 2


def test_rows_of_no_known_version_count_as_made_with_the_first_params():
    store = Replay(6, 4)
    buffer = store.put(store.init(ROW, 6), experience(0, 3, 2))
    assert not np.any(store.sample(buffer, jax.random.key(0)).version)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("capacity", [24, 9000])
@pytest.mark.parametrize("prioritised", [False, True])
def test_many_groups_are_put_and_drawn_with_numbers_of_64_bits(prioritised, capacity):
    store = Replay(capacity, 4, prioritised=prioritised)
    buffers = jax.vmap(lambda _: store.init(ROW, 6))(jnp.arange(3))
    one = experience(0, 3, 2)
    many = Experience(jax.tree.map(lambda x: jnp.stack([x] * 3), one.rows))
    buffers = jax.vmap(store.put)(buffers, many)
    drawn = jax.vmap(store.sample)(buffers, jax.random.split(jax.random.key(0), 3))
    assert drawn.rows["id"].shape == (3, 4)
    assert (drawn.rows["id"] < 6).all()
