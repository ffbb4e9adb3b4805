"""Map-reduce over independent items: what every engine can do besides running plans."""

from __future__ import annotations

import functools
import json
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from tessera.channels.packing import Arrays, pack, put_together, take_apart, unpack
from tessera.engines.replica.entry_point import describe
from tessera.engines.replica.replica import wide_numbers
from tessera.errors import RunFailed, TesseraError
from tessera.support.cache import use_compilation_cache
from tessera.support.imports import import_again


def _warn(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Terms:
    """How items are given out."""

    first: int | None = None
    """How many results are enough; None: all."""
    retries: int = 3
    """How often one item may be tried again after it was lost."""
    workers: int | None = None
    """Items under way at a time; None: one for each core."""
    timeout: float | None = None
    """Seconds after which an item under way counts as lost; None: it may take as long as it takes."""
    platform: str = "cpu"
    """What JAX computes on in a worker."""
    note: Callable[[str], None] = _warn
    """Told of items that were lost."""

    def check(self, count: int) -> None:
        """Refuse what makes no sense for so many items."""
        if self.first is not None and not 1 <= self.first <= count:
            raise TesseraError(f"first={self.first} of {count} items: it must be between 1 and {count}")
        if self.retries < 0:
            raise TesseraError(f"retries={self.retries}: it cannot be below zero")
        if self.workers is not None and self.workers < 1:
            raise TesseraError(f"workers={self.workers}: at least one is needed")
        if self.timeout is not None and self.timeout <= 0:
            raise TesseraError(f"timeout={self.timeout:g}: it must be above zero; None means no limit")


@dataclass(frozen=True)
class Call:
    """A function by its name, by which any process can find it, and what it is given besides an item."""

    name: str
    """module:function."""
    given: bytes
    """Arguments of a partial, packed."""
    x64: bool
    """Whether numbers are 64 bits wide where it is called from, and so are to be where it runs."""

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Call:
        """Name a function, or refuse one that others could not find."""
        given: tuple[Any, dict[str, Any]] = ((), {})
        inner = function
        if isinstance(function, functools.partial):
            inner, given = function.func, (function.args, function.keywords)
        module, name = getattr(inner, "__module__", ""), getattr(inner, "__qualname__", "")
        if not name.isidentifier() or getattr(sys.modules.get(module), name, None) is not inner:
            raise TesseraError(
                f"map {name or repr(inner)} cannot be found by other processes: give a function that is defined at "
                "the top level of a module, or a functools.partial of one"
            )
        plain, arrays = take_apart(given)
        return cls(f"{module}:{name}", pack({"given": plain}, arrays), wide_numbers())

    def find_there(self) -> Callable[[Any], Any]:
        """Import the function in a worker, in which JAX is to compute as it does here and keep what it compiles."""
        jax.config.update("jax_enable_x64", self.x64)
        use_compilation_cache()
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        return self.find()

    def find(self) -> Callable[[Any], Any]:
        """Import the function."""
        path = self.name.replace(":", ".")
        function = import_again(path, f"a worker cannot import {path}")
        meta, arrays = unpack(self.given)
        args, keywords = put_together(meta["given"], arrays)
        return functools.partial(function, *args, **keywords)


def attempt(function: Callable[[Any], Any], plain: Any, arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
    """Call with an item, in whatever process: what to tell of it, be it a result or what was raised."""
    try:
        value, found = take_apart(function(put_together(plain, arrays)))
    except Exception as error:
        return {**describe(error), "kind": "raised", "code": getattr(error, "exit_code", None)}, {}
    return {"kind": "done", "value": value}, found


class _Elsewhere(Exception):
    """Where in a worker something was raised."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Board:
    """Which items wait, and what has become of the others."""

    def __init__(self, items: Sequence[Any], terms: Terms) -> None:
        self._items = [take_apart(item) for item in items]
        self._terms = terms
        self._waiting = deque(range(len(items)))
        self._losses = [0] * len(items)
        self._results: dict[int, Any] = {}
        self.wanted = len(items) if terms.first is None else terms.first

    def __len__(self) -> int:
        return len(self._items)

    @property
    def over(self) -> bool:
        """Whether enough is done."""
        return len(self._results) >= self.wanted

    @property
    def results(self) -> list[Any]:
        """Results, in the order of their items."""
        return [self._results[k] for k in sorted(self._results)]

    def take(self) -> int | None:
        """The next item that waits, by its number."""
        return self._waiting.popleft() if self._waiting else None

    def item(self, number: int) -> tuple[Any, Arrays]:
        """An item, taken apart."""
        return self._items[number]

    def tell(self, number: int, meta: dict[str, Any], arrays: Arrays) -> None:
        """Note what an attempt gave; what a map raises ends everything, since it would raise again."""
        if meta["kind"] == "done":
            if not self.over:  # no more than were asked for
                self._results[number] = put_together(meta["value"], arrays)
            return
        cause = _Elsewhere(meta["trace"])
        if meta["code"] is not None:  # a TesseraError, which says itself what to do
            error = TesseraError(meta["text"])
            error.exit_code = meta["code"]
            raise error from cause
        raise RunFailed(f"{self._name(number)} cannot be mapped: {meta['text']}") from cause

    def lose(self, number: int, how: str) -> None:
        """Note that an item was lost with its worker: it waits again, behind the others, unless that was too often."""
        self._losses[number] += 1
        times = self._losses[number]
        if times > self._terms.retries:
            raise RunFailed(
                f"{self._name(number)} was lost {times} time{'s' * (times > 1)}, the last time because its worker "
                f"{how}: mend what ends it, or allow more than {self._terms.retries} retries"
            )
        self._terms.note(f"{self._name(number)} was lost, because its worker {how}: tried again")
        self._waiting.append(number)

    def _name(self, number: int) -> str:
        text = json.dumps(self._items[number][0])
        return f"item {number} of {len(self)} ({text if len(text) <= 80 else text[:79] + '…'})"


class MapReduce:
    """What every engine has."""

    @classmethod
    def map_reduce(
        cls,
        map: Callable[[Any], Any],
        reduce: Callable[[list[Any]], Any],
        items: Sequence[Any],
        **terms: Any,
    ) -> Any:
        """Call `map` with each item, in any order and maybe elsewhere; give what `reduce` makes of the results.

        `map` is a function at the top level of a module, or a functools.partial of one. Items and results are plain
        data: numbers, texts, lists, dicts and arrays (tuples come as lists). `reduce` is called once, here, with the
        list of results in the order of items, whoever finished first.

        An item whose worker dies or hangs is tried again by another worker, so `map` may be called more than once with
        it; what `map` raises is not tried again and ends everything. `terms` are those of `Terms`: with `first=k`
        results of the first k items that are done are enough, and the other items are given up.
        """
        items = list(items)
        chosen = Terms(**terms)
        if items:
            chosen.check(len(items))
        board = Board(items, chosen)
        call = Call.of(map)
        if not board.over:
            cls.map_items(board, call, chosen)
        return reduce(board.results)

    @staticmethod
    def map_items(board: Board, call: Call, terms: Terms) -> None:
        """Work through a board until it is over."""
        raise NotImplementedError


def map_here(board: Board, call: Call, terms: Terms) -> None:
    """Work through a board in this thread, in the order of items."""
    del terms
    function = call.find()
    while not board.over:
        number = board.take()
        assert number is not None
        board.tell(number, *attempt(function, *board.item(number)))
