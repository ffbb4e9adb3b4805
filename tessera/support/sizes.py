"""Sizes in words."""

from __future__ import annotations


def size_in_words(nbytes: float) -> str:
    """Bytes with a unit, in three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 999.5:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:,.3g} TB"
