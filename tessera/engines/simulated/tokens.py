"""Tokens: what stands for a value in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Token:
    """What channels need to know of a value."""

    version: int = 0
    """Gradients that were applied to the newest params it was made from."""
    groups: int = 1
    """Entries along the axis of groups."""
    nbytes: int = 0
    job: int = 0
    """The compiled program of its replica that makes it, by number; 0: it is there."""
    stands_for: int = 1
    """Replicas that its own one stands for."""


NOTHING = Token()


class TokenValues:
    """The operations of channels on tokens: sizes add up, and what is made of several is as new as the newest."""

    def slice(self, value: Token, axis: int, part: slice) -> Token:
        """Some of the groups."""
        del axis
        groups = len(range(*part.indices(value.groups)))
        return replace(value, groups=groups, nbytes=value.nbytes * groups // max(value.groups, 1))

    def join(self, values: Sequence[Token], axis: int) -> Token:
        """The groups of all, there when the one that was begun last is."""
        del axis
        job = max(v.job for v in values)
        return Token(newest(values), sum(v.groups for v in values), sum(v.nbytes for v in values), job)

    def mean(self, values: Sequence[Token], weights: Sequence[int]) -> Token:
        """One value of the same size."""
        del weights
        return replace(values[0], version=newest(values))

    def sum(self, values: Sequence[Token]) -> Token:
        """One value of the same size."""
        return replace(values[0], version=newest(values))

    def scale(self, value: Token, factor: float) -> Token:
        """The same."""
        del factor
        return value

    def own(self, value: Token) -> Token:
        """The same."""
        return value

    def zeros(self, like: Any) -> Token:
        """Nothing."""
        del like
        return NOTHING

    def batch(self, size: int, axis: int) -> TokenBatch:
        """An empty batch."""
        return TokenBatch(size, axis)

    def nbytes(self, value: Token) -> int:
        """Size in bytes."""
        return value.nbytes

    def version(self, view: Token) -> int:
        """Gradients that were applied to published params."""
        return view.version

    def accumulator(self, every: int) -> TokenAccumulator:
        """What several gradients are added up in."""
        return TokenAccumulator(every)


class TokenBatch:
    """Tokens that are put together position by position."""

    def __init__(self, size: int, axis: int) -> None:
        self._size, self._axis = size, axis
        self._parts: dict[int, Token] = {}

    def put(self, position: int, part: Token) -> None:
        """Set one position."""
        self._parts[position] = part

    def finish(self) -> Token:
        """The whole."""
        return TOKENS.join([self._parts[k] for k in range(self._size)], self._axis)


class TokenAccumulator:
    """Several gradients that are sent as one."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._held: list[tuple[Token, int]] = []

    @property
    def full(self) -> bool:
        """Whether all gradients of the next message are there."""
        return len(self._held) == self._every

    def add(self, value: Token, version: int) -> None:
        """Add a gradient."""
        self._held.append((value, version))

    def take(self) -> tuple[Token, int]:
        """One for all, and the version of the oldest; then it is empty."""
        held, self._held = self._held, []
        return held[-1][0], held[0][1]


class TokenShards:
    """Flat ranges of params: each a part of the bytes."""

    def __init__(self, count: int) -> None:
        self.count = count

    def part(self, value: Token, shard: int) -> Token:
        """One range."""
        del shard
        return replace(value, nbytes=value.nbytes // self.count)

    def join(self, values: Sequence[Token], whole: Any) -> Token:
        """All ranges; params are as new as their oldest range."""
        del whole
        return Token(min(v.version for v in values), values[0].groups, sum(v.nbytes for v in values))


def newest(values: Sequence[Token]) -> int:
    """The newest version."""
    return max(v.version for v in values)


def there(token: Token) -> Token:
    """The token once it is sent, so that its own replica has made it."""
    return replace(token, job=0) if token.job else token


TOKENS = TokenValues()
