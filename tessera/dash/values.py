"""Values from files that anybody may have written: numbers that are finite, text of bounded length, nothing deep."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

DEEPEST = 12
"""Levels of lists and objects that are passed on."""
MOST_VALUES = 300_000
"""Values of one file that are passed on."""
LONGEST_TEXT = 4000
LARGEST_WHOLE = 2**53
"""Beyond it a browser cannot tell whole numbers apart."""

Shape = Mapping[str, Callable[[Any], Any]]
"""Name -> what makes a usable value of whatever stands there."""


def parse(data: bytes) -> Any:
    """The value of a JSON text; None if it is none, or too deep to read."""
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError, MemoryError):
        return None


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def whole(value: Any) -> int:
    """A whole number that a browser can hold; 0 if it is none."""
    found = number(value)
    return int(found) if found is not None and abs(found) <= LARGEST_WHOLE else 0


def text(value: Any) -> str:
    """A text of bounded length; of what is none, nothing."""
    return value[:LONGEST_TEXT] if isinstance(value, str) else ""


def listed(value: Any) -> list[Any]:
    """A list; of what is none, an empty one."""
    return value if isinstance(value, list) else []


def named(value: Any) -> dict[str, Any]:
    """An object; of what is none, an empty one."""
    return value if isinstance(value, dict) else {}


def shaped(value: Any, shape: Shape) -> dict[str, Any]:
    """An object with exactly these entries."""
    entries = named(value)
    return {name: make(entries.get(name)) for name, make in shape.items()}


def plain(value: Any) -> Any:
    """The value as JSON can hold it: what is not finite becomes null, and what is too deep or too much is left out."""
    left = [MOST_VALUES]

    def cut(value: Any, depth: int) -> Any:
        left[0] -= 1
        match value:
            case None | bool():
                return value
            case str():
                return value[:LONGEST_TEXT]
            case int():
                return value if abs(value) <= LARGEST_WHOLE else number(value)
            case float():
                return number(value)
            case list() if depth < DEEPEST:
                return [cut(x, depth + 1) for x in value if left[0] > 0]
            case dict() if depth < DEEPEST:
                return {str(k)[:LONGEST_TEXT]: cut(x, depth + 1) for k, x in value.items() if left[0] > 0}
        return None

    return cut(value, 0)


def flat(value: Any, prefix: str = "") -> dict[str, str]:
    """Entries of nested objects under names with dots, each as text."""
    found: dict[str, str] = {}
    for name, entry in named(value).items():
        if isinstance(entry, dict):
            found |= flat(entry, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = entry if isinstance(entry, str) else json.dumps(entry)
    return found


def to_json(value: Any) -> str:
    """A compact JSON text in ASCII, without numbers that browsers refuse."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
