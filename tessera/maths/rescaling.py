"""Value rescaling: learn values on a smaller scale, and read them back (Pohlen et al., 2018)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

EPSILON = 1e-3


def signed_hyperbolic(x: jax.Array, epsilon: float = EPSILON) -> jax.Array:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x; [...]."""
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1) - 1) + epsilon * x


def signed_parabolic(x: jax.Array, epsilon: float = EPSILON) -> jax.Array:
    """The inverse of `signed_hyperbolic`; [...].

    z = (sqrt(1 + 4 epsilon a) - 1) / (2 epsilon), written without a difference of numbers that are nearly equal.
    """
    a = jnp.abs(x) + 1 + epsilon
    z = 2 * a / (jnp.sqrt(1 + 4 * epsilon * a) + 1)
    return jnp.sign(x) * (jnp.square(z) - 1)
