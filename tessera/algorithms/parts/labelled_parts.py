"""Labelled parts of the params: how each is learned, and what one step knows about their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from tessera.errors import TesseraError


@dataclass(frozen=True)
class Part:
    """How a labelled part of the params is learned; what is not given is as for the others."""

    learning_rate: float | None = None
    """Step size at the beginning; default: the algorithm's."""
    max_gradient_norm: float | None = None
    """Largest norm of this part's gradient by itself; default: the algorithm's, of all parts together."""
    period: int = 1
    """Gradients from one step of this part to the next; the others leave it and its moments as they are."""
    optimizer: optax.GradientTransformation | None = None
    """Default: the algorithm's."""


class Step(NamedTuple):
    """What `apply` needs to know about all gradients; it may itself hold only some of the elements."""

    norm: jax.Array
    """Global norm of the gradients."""
    norms: dict[str, jax.Array] = {}  # noqa: RUF012 - never changed
    """Norm of each labelled part's gradient."""
    due: dict[str, jax.Array] = {}  # noqa: RUF012
    """Whether each part that has a period is due at this gradient."""
    summary: Any = ()
    """The draw's summary, where the algorithm absorbs it."""


def same_labels(tree: Any, parts: Mapping[str, Part], made: str) -> None:
    """Refuse a tree that has not exactly the labelled parts."""
    if not isinstance(tree, dict) or set(tree) != set(parts):
        found = ", ".join(tree) if isinstance(tree, dict) else f"a {type(tree).__name__}"
        raise TesseraError(f"{made} {found}, but `parts` names {', '.join(parts)}: make a dict with just these keys")


def scaled_to(gradients: Any, limit: float | None, norm: jax.Array) -> Any:
    """Gradients, scaled down if their norm is above the limit; 0 or None: as they are."""
    if not limit:
        return gradients
    scale = jnp.minimum(1.0, limit / (norm + 1e-6))
    return jax.tree.map(lambda g: g * scale, gradients)
