from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tessera.maths import evolution


@pytest.mark.parametrize(
    ("reward", "over", "expected"),
    [
        ([1, 1, 1, 1], [0, 0, 0, 0], 4.0),  # nothing ended: what was earned
        ([1, 2, 3, 4], [0, 1, 0, 1], 5.0),  # 3 and 7
        ([1, 2, 3, 4], [0, 1, 0, 0], 3.0),  # what came after the only end does not count
        ([1, 2, 3, 4], [1, 1, 0, 0], 1.5),
    ],
)
def test_a_score_is_the_mean_return_of_episodes_that_ended(reward, over, expected):
    score = evolution.mean_return(jnp.asarray(reward, jnp.float32), jnp.asarray(over, bool))
    assert float(score) == expected


def test_ranks_are_centred_and_equal_scores_share_theirs():
    among = jnp.asarray([[3.0, 1.0], [2.0, 2.0], [7.0, -5.0]])
    ranks = evolution.centred_ranks(among, among)
    # in order -5, 1, 2, 2, 3, 7: places 0 1 2.5 2.5 4 5 of 5, less a half
    np.testing.assert_allclose(ranks, np.asarray([[4, 1], [2.5, 2.5], [5, 0]]) / 5 - 0.5, atol=1e-7)
    assert float(jnp.abs(ranks.sum())) < 1e-6


def test_ranks_of_some_are_their_ranks_among_all():
    among = jnp.arange(8.0)
    np.testing.assert_allclose(
        evolution.centred_ranks(among[2:4], among), evolution.centred_ranks(among, among)[2:4], atol=0
    )


@pytest.mark.parametrize("size", [1, 40, 10**6])
def test_noise_is_summed_in_chunks_of_any_size(size, monkeypatch):
    like = {"a": jnp.zeros((3, 2)), "b": jnp.zeros(4)}
    seeds = jax.vmap(lambda i: jax.random.key_data(jax.random.fold_in(jax.random.key(3), i)))(jnp.arange(7))
    weights = jnp.arange(1.0, 8.0)
    each = [evolution.noise(seed, like) for seed in seeds]
    expected = jax.tree.map(lambda *xs: sum(w * x for w, x in zip(weights, xs, strict=True)), *each)
    monkeypatch.setattr(evolution, "CHUNK_SIZE", size)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5),
        evolution.weighted_noise(seeds, weights, like),
        expected,
    )
