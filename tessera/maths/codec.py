"""Compression of gradients with error feedback (Strom, 2015)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def threshold_code(gradients: Any, residual: Any, threshold: float) -> tuple[Any, Any]:
    """Round a tree to plus or minus `threshold` or nothing: (what is sent, what is kept for later).

    An element is sent once what has gathered in its residual passes the threshold; sent + residual is always the sum of
    all gradients so far.
    """
    gathered = jax.tree.map(jnp.add, residual, gradients)
    sent = jax.tree.map(lambda x: jnp.where(jnp.abs(x) >= threshold, threshold * jnp.sign(x), 0), gathered)
    return sent, jax.tree.map(jnp.subtract, gathered, sent)
