"""Rules for large batches: a learning rate that grows with the batch, and steps in proportion to each layer."""

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


def rate_factor(scaling: str, ratio: float, warmup: float, progress: Any) -> Any:
    """Factor of the learning rate for a batch `ratio` times as large as usual.

    It rises to its full value in a straight line during `warmup`, a share of the run (Goyal et al., 2017); `progress`
    is how much of the run is over.
    """
    full = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[scaling]
    return full if not warmup else 1.0 + (full - 1.0) * jnp.minimum(progress / warmup, 1.0)
