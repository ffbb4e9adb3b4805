"""The threshold codec, on numbers worked out by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tessera.maths.codec import threshold_code

THRESHOLD = 0.5
GRADIENTS = [[0.2, 0.7, -0.5, 0.0], [0.2, 0.1, 0.1, -0.4], [0.2, 0.3, -2.0, -0.4]]
SENT = [[0.0, 0.5, -0.5, 0.0], [0.0, 0.0, 0.0, 0.0], [0.5, 0.5, -0.5, -0.5]]
KEPT = [[0.2, 0.2, 0.0, 0.0], [0.4, 0.3, 0.1, -0.4], [0.1, 0.1, -1.4, -0.3]]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jit"])
def test_an_element_is_sent_once_what_has_gathered_passes_the_threshold(wrap):
    residual = {"w": jnp.zeros(4)}
    code = wrap(lambda g, r: threshold_code(g, r, THRESHOLD))
    for gradients, sent, kept in zip(GRADIENTS, SENT, KEPT, strict=True):
        coded, residual = code({"w": jnp.asarray(gradients)}, residual)
        np.testing.assert_allclose(coded["w"], sent, atol=1e-6)
        np.testing.assert_allclose(residual["w"], kept, atol=1e-6)


@pytest.mark.usefixtures("x64")
def test_what_was_sent_and_what_is_kept_is_always_the_sum_of_all_gradients():
    rng = np.random.default_rng(0)
    gradients = [{"a": rng.normal(size=(3, 4)), "b": rng.normal(size=5)} for _ in range(50)]
    residual = jax.tree.map(jnp.zeros_like, gradients[0])
    sent = jax.tree.map(np.zeros_like, gradients[0])
    for k, gradient in enumerate(gradients):
        coded, residual = threshold_code(gradient, residual, 0.7)
        assert set(np.unique(np.abs(coded["a"]))) <= {0.0, 0.7}
        sent = jax.tree.map(np.add, sent, coded)
        total = jax.tree.map(lambda *xs: np.sum(xs, axis=0), *gradients[: k + 1])
        jax.tree.map(lambda s, r, t: np.testing.assert_allclose(s + r, t, atol=1e-12), sent, residual, total)


def test_codes_keep_the_dtype_of_gradients():
    coded, residual = threshold_code(jnp.ones(2, jnp.bfloat16), jnp.zeros(2, jnp.bfloat16), 0.5)
    assert coded.dtype == residual.dtype == jnp.bfloat16
