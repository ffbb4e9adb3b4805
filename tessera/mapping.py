"""Map-reduce over independent items on any engine, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera import cluster
from tessera.engines.making import mapping_engine


def map_reduce(
    map: Callable[[Any], Any],
    reduce: Callable[[list[Any]], Any],
    items: Sequence[Any],
    *,
    engine: str | None = None,
    workers: int | None = None,
    address: str | None = None,
    **terms: Any,
) -> Any:
    """Call `map` with each item and give what `reduce` makes of the list of results, in the order of items.

    Args:
        map: a function at the top level of a module, or a functools.partial of one; called with one item.
        reduce: called once, here, with all results.
        items: plain data (numbers, texts, lists, dicts, arrays), as results are.
        engine: serial (in this thread), local (processes) or ray (tasks of a cluster); None: local for several workers.
        workers: items under way at a time; None: one if no engine is named, else as many as there are cores.
        address: Ray cluster for "ray"; None: the one that `tessera cluster up` started, else one for this process.
        terms: `first` (so many results are enough), `retries` (of an item whose worker was lost), `timeout` (seconds
            after which it counts as lost), `note`; see `tessera.engines.mapping.Terms`.
    """
    cluster.check_address(address, engine)
    chosen = engine or ("serial" if workers in (None, 1) else "local")
    where = cluster.prepare(address) if chosen == "ray" else None  # before Ray is imported
    return mapping_engine(chosen, where, workers or 1).map_reduce(map, reduce, items, workers=workers, **terms)
