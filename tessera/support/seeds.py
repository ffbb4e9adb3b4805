"""Seeds that random keys can be made of."""

from __future__ import annotations

from tessera.errors import TesseraError

HIGHEST = 2**63 - 1
"""Keys are made of whole numbers of 64 bits."""


def check_seed(seed: int, count: int = 1, lowest: int = -HIGHEST) -> None:
    """Refuse a seed, or the last of `count` from it on, that no key can be made of."""
    if not lowest <= seed <= HIGHEST - count + 1:
        limit = f"above {HIGHEST - count + 1}" if seed > 0 else f"below {lowest or 'zero'}"
        raise TesseraError(f"--seed {seed}: it cannot be {limit}")
