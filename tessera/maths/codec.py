"""Compression of gradients with error feedback (Strom, 2015)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def threshold_code(gradients: Any, residual: Any, threshold: float) -> tuple[Any, Any]:
    """Round every element of a tree to 0 or plus or minus `threshold`: (values to send, new residual).

    An element is sent once its residual reaches the threshold. All values sent so far plus the residual are the sum of
    all gradients so far.
    """
    total = jax.tree.map(jnp.add, residual, gradients)
    sent = jax.tree.map(lambda x: jnp.where(jnp.abs(x) >= threshold, threshold * jnp.sign(x), 0), total)
    return sent, jax.tree.map(jnp.subtract, total, sent)
