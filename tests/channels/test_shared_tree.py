"""The memory that peers share: what is added to in place, and what each of them writes alone."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
import pytest

from tessera.channels.inboxes import SharedExchange
from tessera.channels.shared_memory import Arena
from tessera.channels.shared_tree import PlacedTree, PlainMemory, SharedTree
from tessera.maths.statistics import Moments, merge_stacked, variance
from tessera.program.peers import SharedParts


def parts(added: float, own: float) -> SharedParts:
    """A value whose parts are these numbers."""
    return SharedParts(
        {"w": np.full((2, 3), added, np.float32), "b": np.full(2, added, np.float64)},
        [np.full(3, own, np.float32)],
        {"count": np.full(1, own, np.int32)},
        np.full((), own, np.float32),
    )


def ends(peers: int) -> list[SharedTree]:
    placed = PlacedTree(0, parts(0, 0), peers)
    memory = PlainMemory(placed.nbytes)
    return [SharedTree(memory, placed, p) for p in range(peers)]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_the_first_peer_says_what_all_add_to_whoever_begins_first(order):
    peers = ends(3)
    for p in order:
        peers[p].begin(parts(10.0 if p == 0 else 77.0, p))
    for p in order:
        peers[p].add(parts(1.0, p + 1))
    for p, peer in enumerate(peers):
        found = peer.read()
        assert found.added["w"].tolist() == [[13.0] * 3] * 2
        assert found.added["b"].tolist() == [13.0] * 2
        assert found.averaged[0].tolist() == [2.0] * 3
        assert found.listed["count"].tolist() == [1, 2, 3]
        assert (float(found.kept), peer.sent, peer.sent_by_others) == (p + 1, 1, 2)


def test_a_value_that_is_begun_again_forgets_what_was_added():
    peers = ends(2)
    for value in (3.0, 5.0):
        for peer in reversed(peers):
            peer.begin(parts(value, 0))
        assert peers[1].read().added["b"].tolist() == [value] * 2
        peers[1].add(parts(1.0, 9))
        assert (peers[1].sent, peers[0].sent) == (1, 0)


def test_what_is_read_is_a_copy():
    first, second = ends(2)
    first.begin(parts(1.0, 1))
    second.begin(parts(1.0, 1))
    found = first.read()
    second.add(parts(1.0, 5))
    assert (found.added["b"][0], found.averaged[0][0], found.listed["count"].tolist()) == (1.0, 1.0, [1, 1])


def test_lag_is_what_others_have_added_since_one_read_last():
    first, second = (SharedExchange(end) for end in ends(2))
    for _ in range(4):
        second.send(parts(1.0, 1))
    first.read()  # whoever takes a place begins with what is there
    first.receive()
    assert (first.flow.lags, first.flow.lag_sum) == (1, 0.0)
    second.send(parts(1.0, 1))
    first.receive()
    assert (first.flow.lags, first.flow.lag_sum) == (2, 0.5)  # one of the two workers has made one update


def measure(handle: tuple[int, int, int], placed: PlacedTree, me: int, times: int) -> None:
    """Be one of two peers that see numbers of mean 50 and variance 1, and share what they know of them."""
    tree = SharedTree(Arena.attach(*handle), placed, me)
    numbers = np.random.default_rng(me).normal(50.0, 1.0, (times, 16))
    for k in range(1, times + 1):
        seen = numbers[:k]
        own = Moments(*(np.float32([x]) for x in (seen.size, seen.mean(), seen.var())))
        tree.add(SharedParts((), (), own, ()))
        assert 0.5 < float(variance(merge_stacked(tree.read().listed))) < 2.0


def test_moments_of_two_processes_are_those_of_all_numbers_at_any_time():
    none: Any = Moments(*np.zeros((3, 1), np.float32))
    placed = PlacedTree(0, SharedParts((), (), none, ()), 2)
    arena = Arena(placed.nbytes)
    for p in range(2):
        SharedTree(arena, placed, p).begin(SharedParts((), (), none, ()))
    other = multiprocessing.get_context("spawn").Process(target=measure, args=(arena.handle, placed, 1, 100))
    other.start()
    measure(arena.handle, placed, 0, 100)
    other.join()
    assert other.exitcode == 0
    found = merge_stacked(SharedTree(arena, placed, 0).read().listed)
    numbers = np.concatenate([np.random.default_rng(p).normal(50.0, 1.0, (100, 16)) for p in range(2)])
    assert float(found.count) == numbers.size
    np.testing.assert_allclose([found.mean, variance(found)], [numbers.mean(), numbers.var()], rtol=1e-4)
