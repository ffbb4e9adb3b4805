"""Fields of an algorithm: hyper-parameters with their bounds, and fields that the framework sets."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from tessera.errors import TesseraError

SET_BY_FRAMEWORK = {"set_by": "framework"}
"""Metadata of fields that are no hyper-parameters."""

Value = TypeVar("Value")


def option(
    default: Value, *, low: float, high: float = math.inf, kw_only: bool = False, tunable: bool = False
) -> Value:
    """Declare a number as a hyper-parameter with bounds, both allowed: `gamma: float = option(0.99, low=0, high=1)`.

    A population may change one that is `tunable` while it trains: no shape and no Python `if` depends on its value. A
    subclass that redefines the field, with a plain default of its own, keeps both.
    """
    metadata = {"bounds": (low, high), "tunable": tunable}
    return dataclasses.field(default=default, kw_only=kw_only, metadata=metadata)


def options_of(algorithm: Any) -> list[dataclasses.Field[Any]]:
    """The fields of an algorithm, or of a class of them, that users set."""
    return [f for f in dataclasses.fields(algorithm) if f.metadata.get("set_by") != "framework"]


def bounds_of(algorithm: type, name: str) -> tuple[float, float] | None:
    """The bounds of a field: those of the nearest class that declares any."""
    return _declared(algorithm, name).get("bounds")


def tunable_fields(algorithm: type) -> list[str]:
    """Names of the fields that a population may change while it trains."""
    return [f.name for f in options_of(algorithm) if _declared(algorithm, f.name).get("tunable")]


def _declared(algorithm: type, name: str) -> Mapping[str, Any]:
    """What the nearest class that declares a field as an `option` says of it."""
    for cls in algorithm.__mro__:
        field = getattr(cls, "__dataclass_fields__", {}).get(name)
        if field is not None and "bounds" in field.metadata:
            return field.metadata
    return {}


def check_bounds(algorithm: Any) -> None:
    """Refuse a number outside its bounds, by the name of its flag; None is left for `bind` to resolve."""
    for field in options_of(algorithm):
        value, bounds = getattr(algorithm, field.name), bounds_of(type(algorithm), field.name)
        if bounds is None or not isinstance(value, int | float):
            continue
        low, high = bounds
        if not (low <= value <= high and math.isfinite(value)):
            limit = f"at least {low}" if math.isinf(high) else f"between {low} and {high}"
            raise TesseraError(f"--{field.name.replace('_', '-')} {value}: must be {limit}")


def resolved(value: Value | None) -> Value:
    """A field that is None until `bind` has set its default."""
    if value is None:
        raise TesseraError("a field is still to be chosen: bind the algorithm to an environment first")
    return value
