"""Rules for large batches: how the learning rate follows the batch, and steps in proportion to each layer."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import optax

SCALINGS = ("none", "linear", "sqrt")

LAYERWISE = {
    # You et al. (2017): the layer's weights over its gradient, then momentum
    "lars": lambda: optax.chain(optax.scale_by_trust_ratio(trust_coefficient=0.001), optax.trace(decay=0.9)),
    # You et al. (2020): the same of Adam's step
    "lamb": lambda: optax.chain(optax.scale_by_adam(eps=1e-6), optax.scale_by_trust_ratio()),
}


def growth(scaling: str, times: float, warmup: float, progress: Any) -> Any:
    """What the learning rate is multiplied with for a batch so many times as large, `progress` of the run being over.

    It rises to that in a straight line during `warmup`, a share of the run (Goyal et al., 2017).
    """
    full = {"none": 1.0, "linear": times, "sqrt": math.sqrt(times)}[scaling]
    return full if not warmup else 1.0 + (full - 1.0) * jnp.minimum(progress / warmup, 1.0)
