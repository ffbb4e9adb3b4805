"""Is an algorithm's gradient the mean over its rows, wherever they lie? Policies share rows out, so it has to be."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tessera.algorithms.contract import Algorithm
from tessera.envs.base import Environment
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.program.initial import initial_state
from tessera.program.shapes import slot_shapes
from tessera.program.training_program import Training, published

ROWS = 8
TOLERANCE = 1e-3
"""Relative difference that rounding does not reach."""


def warn_of_shared_noise(algorithm: Algorithm, env: Environment, plan: Plan) -> None:
    """Warn an author whose gradient of all rows is not the mean of those of two halves; ours are tested instead."""
    if type(algorithm).__module__.startswith("tessera."):
        return
    try:
        difference = difference_of_halves(algorithm, env, plan)
    except (TypeError, ValueError, IndexError):
        if not algorithm.noisy_loss and _takes_keys_of_rows(algorithm, env, plan):
            raise TesseraError(
                f"`gradient` of {algorithm.name} takes a key for each row, and gets one for all unless the algorithm "
                "says `noisy_loss = True`"
            ) from None
        return  # the run says what is wrong, where it is wrong
    if difference > TOLERANCE:
        warnings.warn(
            f"the gradient of {algorithm.name} is not the mean over its rows: for two halves of a batch it differs by "
            f"{difference:.0%}, so policies that share rows out will learn other params. If the loss draws noise, say "
            "`noisy_loss = True` and draw each row's from its own key; what depends on all rows goes through `summary` "
            "(docs/extending.md)",
            stacklevel=3,
        )


def difference_of_halves(algorithm: Algorithm, env: Environment, plan: Plan) -> float:
    """By how much the gradient of some rows differs from the mean of those of two halves, as a share; 0 if unknown."""
    shapes = slot_shapes(Training(algorithm, env, plan.batches), plan)
    numbers = np.random.default_rng(0)
    rows = jax.tree.map(lambda x: _random(numbers, (ROWS, *x.shape[2:]), x.dtype), shapes["batch"])
    summary = jax.tree.map(lambda x: _random(numbers, x.shape, x.dtype), shapes["summary"])
    key = jax.random.key(0)
    keys = jax.random.split(key, ROWS) if algorithm.noisy_loss else key
    view = published(jax.jit(lambda key: initial_state(algorithm, key, 1))(key))

    @jax.jit
    def gradient(rows: Any, keys: jax.Array) -> Any:
        return algorithm.gradient(view, rows, summary, keys)[0]

    def half(part: slice) -> Any:
        return gradient(jax.tree.map(lambda x: x[part], rows), keys[part] if algorithm.noisy_loss else keys)

    whole = gradient(rows, keys)
    halves = half(slice(ROWS // 2)), half(slice(ROWS // 2, None))
    size = _norm(whole)
    difference = _norm(jax.tree.map(lambda g, a, b: g - (a + b) / 2, whole, *halves)) / size if size else 0.0
    return difference if math.isfinite(difference) else 0.0


def _takes_keys_of_rows(algorithm: Algorithm, env: Environment, plan: Plan) -> bool:
    """Whether the algorithm would do if it said `noisy_loss`."""
    kind, noisy = type(algorithm), copy.copy(algorithm)
    object.__setattr__(noisy, "__class__", type(kind.__name__, (kind,), {"noisy_loss": True}))
    try:
        slot_shapes(Training(noisy, env, plan.batches), plan)
    except Exception:
        return False
    return True


def _random(numbers: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Numbers that an algorithm may meet: reals between 0 and 1, the first two choices, true."""
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.asarray(numbers.uniform(0.1, 0.9, shape), dtype)
    if dtype == jnp.bool_:
        return jnp.ones(shape, dtype)
    return jnp.asarray(numbers.integers(0, 2, shape), dtype)


def _norm(tree: Any) -> float:
    return float(jnp.sqrt(sum(jnp.sum(jnp.square(x.astype(jnp.float32))) for x in jax.tree.leaves(tree))))
