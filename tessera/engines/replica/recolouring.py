"""Checkpoints of one colouring, read by another: which slots a snapshot has depends on what is cut.

All synchronous colourings hold the same values at the end of an update. What differs is where: params that `act` will
use later wait in a queue beside it or are on their way to it, and `grad` holds a view of its own where `apply` is in
another fragment.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tessera.algorithms.contract import View

Leaf = TypeVar("Leaf")
WAITING, ON_THE_WAY = "acting_queue", "in_flight_acting"
"""Params that `act` trails behind by, the oldest first: beside it, or sent to it."""
DERIVED = "view"
"""What `grad` reads of the state, where it is not beside `apply`."""


def recoloured(arrays: dict[str, Leaf], like: dict[str, Any]) -> dict[str, Leaf]:
    """A checkpoint's arrays, by path, under the names that a snapshot of `like`'s slots has for them."""
    names = {WAITING: ON_THE_WAY, ON_THE_WAY: WAITING}
    out: dict[str, Leaf] = {}
    for name, array in arrays.items():
        slot, _, rest = name.partition("/")
        if slot == DERIVED and slot not in like:
            continue
        other = names.get(slot)
        out[name if other is None or slot in like or other not in like else f"{other}/{rest}"] = array
    if DERIVED in like and not any(name.startswith(f"{DERIVED}/") for name in out):
        out |= _viewed(arrays)
    return out


def _viewed(arrays: dict[str, Leaf]) -> dict[str, Leaf]:
    """The view of a state, by path."""
    paths = {name: name.partition("/")[2] for name in arrays if name.startswith("state/")}
    return {f"{DERIVED}/{path}": arrays[name] for name, path in paths.items() if path.partition("/")[0] in View._fields}
