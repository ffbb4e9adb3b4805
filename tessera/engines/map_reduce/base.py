"""Map-reduce over independent items, which every engine offers besides running plans."""

from __future__ import annotations

import functools
import json
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from tessera.channels.packing import Arrays, join_arrays, pack, split_arrays, unpack
from tessera.engines.replica.entry_point import describe_failure
from tessera.engines.replica.replica import wide_numbers
from tessera.errors import RunFailed, TesseraError
from tessera.support.cache import use_compilation_cache
from tessera.support.imports import import_again


def _warn(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class MapOptions:
    """How items are mapped."""

    first: int | None = None
    """How many results are enough; None: all."""
    retries: int = 3
    """How often an item may be tried again after it was lost."""
    workers: int | None = None
    """Items in progress at a time; None: one for each core."""
    timeout: float | None = None
    """Seconds after which an item in progress counts as lost; None: no limit."""
    platform: str = "cpu"
    """The platform of JAX in a worker."""
    note: Callable[[str], None] = _warn
    """Called with a line for each lost item."""

    def check(self, count: int) -> None:
        """Refuse values that make no sense for `count` items."""
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
    """A function by name, so that any process can import it, and its arguments besides an item."""

    name: str
    """module:function."""
    arguments: bytes
    """Arguments of a partial, packed."""
    x64: bool
    """Whether JAX uses 64 bits in the calling process; workers do the same."""

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Call:
        """Name a function, or refuse one that other processes could not import."""
        arguments: tuple[Any, dict[str, Any]] = ((), {})
        inner = function
        if isinstance(function, functools.partial):
            inner, arguments = function.func, (function.args, function.keywords)
        module, name = getattr(inner, "__module__", ""), getattr(inner, "__qualname__", "")
        if not name.isidentifier() or getattr(sys.modules.get(module), name, None) is not inner:
            raise TesseraError(
                f"map {name or repr(inner)} cannot be found by other processes: give a function that is defined at "
                "the top level of a module, or a functools.partial of one"
            )
        plain, arrays = split_arrays(arguments)
        return cls(f"{module}:{name}", pack({"arguments": plain}, arrays), wide_numbers())

    def import_in_worker(self) -> Callable[[Any], Any]:
        """Import the function in a worker, and configure JAX there: same precision, compiled programs are cached."""
        jax.config.update("jax_enable_x64", self.x64)
        use_compilation_cache()
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        return self.import_function()

    def import_function(self) -> Callable[[Any], Any]:
        """Import the function."""
        path = self.name.replace(":", ".")
        function = import_again(path, f"a worker cannot import {path}")
        meta, arrays = unpack(self.arguments)
        args, keywords = join_arrays(meta["arguments"], arrays)
        return functools.partial(function, *args, **keywords)


def map_item(function: Callable[[Any], Any], plain: Any, arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
    """Call a function with an item, in any process: a message with the result, or with the error."""
    try:
        value, found = split_arrays(function(join_arrays(plain, arrays)))
    except Exception as error:
        return {**describe_failure(error), "kind": "raised", "code": getattr(error, "exit_code", None)}, {}
    return {"kind": "done", "value": value}, found


class _WorkerTraceback(Exception):
    """The traceback of an error in a worker, as the cause of the one raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class ItemQueue:
    """The items that wait for a worker, and the results of the others."""

    def __init__(self, items: Sequence[Any], options: MapOptions) -> None:
        self._items = [split_arrays(item) for item in items]
        self._options = options
        self._waiting = deque(range(len(items)))
        self._losses = [0] * len(items)
        self._results: dict[int, Any] = {}
        self._needed = len(items) if options.first is None else options.first

    def __len__(self) -> int:
        return len(self._items)

    @property
    def done(self) -> bool:
        """Whether there are enough results."""
        return len(self._results) >= self._needed

    @property
    def results(self) -> list[Any]:
        """Results, in the order of their items."""
        return [self._results[k] for k in sorted(self._results)]

    def take(self) -> int | None:
        """The number of the next item that waits, if any."""
        return self._waiting.popleft() if self._waiting else None

    def item(self, number: int) -> tuple[Any, Arrays]:
        """An item as JSON and arrays."""
        return self._items[number]

    def record_outcome(self, number: int, meta: dict[str, Any], arrays: Arrays) -> None:
        """Keep a result, or raise the error of a map, which ends everything: it would be raised again."""
        if meta["kind"] == "done":
            if not self.done:  # `first` results at most
                self._results[number] = join_arrays(meta["value"], arrays)
            return
        cause = _WorkerTraceback(meta["trace"])
        if meta["code"] is not None:  # a TesseraError, whose text says what to do
            error = TesseraError(meta["text"])
            error.exit_code = meta["code"]
            raise error from cause
        raise RunFailed(f"{self._name(number)} cannot be mapped: {meta['text']}") from cause

    def record_loss(self, number: int, how: str) -> None:
        """Queue an item again that was lost with its worker, behind the others; raise if that was too often."""
        self._losses[number] += 1
        times = self._losses[number]
        if times > self._options.retries:
            raise RunFailed(
                f"{self._name(number)} was lost {times} time{'s' * (times > 1)}, the last time because its worker "
                f"{how}: mend what ends it, or allow more than {self._options.retries} retries"
            )
        self._options.note(f"{self._name(number)} was lost, because its worker {how}: tried again")
        self._waiting.append(number)

    def _name(self, number: int) -> str:
        text = json.dumps(self._items[number][0])
        return f"item {number} of {len(self)} ({text if len(text) <= 80 else text[:79] + '…'})"


class MapReduce:
    """The part of an engine that maps items."""

    @classmethod
    def map_reduce(
        cls,
        map: Callable[[Any], Any],
        reduce: Callable[[list[Any]], Any],
        items: Sequence[Any],
        **terms: Any,
    ) -> Any:
        """Call `map` with each item, in any order and in any process; return what `reduce` makes of the results.

        `map` is a function at the top level of a module, or a functools.partial of one. Items and results are plain
        data: numbers, texts, lists, dicts and arrays (tuples come as lists). `reduce` is called once, in this process,
        with the list of results in the order of items.

        An item whose worker dies or hangs is tried again by another worker, so `map` may be called more than once with
        it. An error in `map` is not tried again and ends everything. `terms` are the fields of `MapOptions`: with
        `first=k` the results of the first k finished items are enough, and the other items are given up.
        """
        items = list(items)
        options = MapOptions(**terms)
        if items:
            options.check(len(items))
        queue = ItemQueue(items, options)
        call = Call.of(map)
        if not queue.done:
            cls.map_items(queue, call, options)
        return reduce(queue.results)

    @staticmethod
    def map_items(queue: ItemQueue, call: Call, options: MapOptions) -> None:
        """Map items until the queue is done."""
        raise NotImplementedError


def map_here(queue: ItemQueue, call: Call, options: MapOptions) -> None:
    """Map items in this thread, in their order."""
    del options
    function = call.import_function()
    while not queue.done:
        number = queue.take()
        assert number is not None
        queue.record_outcome(number, *map_item(function, *queue.item(number)))
