"""Costs as JSON: a profile of another machine, or made by hand. A file is data, and nonsense in it is refused."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tessera.engines.simulated.costs import Costs, Curve, ExchangeCosts, LinkCosts, Timing, Work
from tessera.errors import TesseraError, unknown_name
from tessera.support.data_files import read_data

NUMBERS = ("dispatch", "per_node", "wake", "switch", "process_memory")
MOST_NUMBERS = 1_000_000


def costs_to_json(costs: Costs) -> dict[str, Any]:
    """Plain data, which `costs_from_json` reads."""
    return {
        "ops": {name: [list(point) for point in curve] for name, curve in costs.ops.items()},
        "timings": timings_to_json(costs.timings),
        "factors": dict(costs.factors),
        "after_wait": dict(costs.after_wait),
        "wakes": dict(costs.wakes),
        "switches": dict(costs.switches),
        "exchanges": {name: dataclasses.asdict(exchange) for name, exchange in costs.exchanges.items()},
        "links": dataclasses.asdict(costs.links),
        "remote_links": dataclasses.asdict(costs.remote_links),
        "slowdown": list(costs.slowdown),
        "device_switches": [list(point) for point in costs.device_switches],
        "fragment_memory": dict(costs.fragment_memory),
        **{name: getattr(costs, name) for name in NUMBERS},
    }


def timings_to_json(timings: Mapping[str, tuple[Timing, ...]]) -> dict[str, Any]:
    """Plain data, which `timings_from_json` reads."""
    return {
        name: [{"envs": t.envs, "threads": t.threads, "calls": [list(call) for call in t.calls]} for t in timed]
        for name, timed in timings.items()
    }


def load_costs(path: Path) -> tuple[Costs, int]:
    """Read costs from a file, or from a profile: also how many accelerators the machine had, if that is known."""
    where = f"costs file {path}"
    data = read_data(path, where, "json")
    if isinstance(data, Mapping) and "costs" in data:
        machine = _table(data.get("machine", {}), f"{where}: machine")
        return costs_from_json(data["costs"], where), int(_number(machine.get("accelerators", 0), where))
    return costs_from_json(data, where), 0


def costs_from_json(data: Any, where: str) -> Costs:
    """The costs that `costs_to_json` described; anything may be left out."""
    known = [f.name for f in dataclasses.fields(Costs)]
    table = _table(data, where, known)
    fields: dict[str, Any] = {}
    for key, value in table.items():
        at = f"{where}: {key}"
        match key:
            case "ops":
                fields[key] = {name: _curve(curve, f"{at}[{name!r}]") for name, curve in _table(value, at).items()}
            case "timings":
                fields[key] = timings_from_json(value, at)
            case "factors" | "after_wait" | "wakes" | "switches":
                fields[key] = {name: _number(x, f"{at}[{name!r}]") for name, x in _table(value, at).items()}
            case "links" | "remote_links":
                fields[key] = LinkCosts(**_numbers(value, at, LinkCosts))
            case "exchanges":
                each = _table(value, at).items()
                fields[key] = {name: ExchangeCosts(**_numbers(x, f"{at}[{name!r}]", ExchangeCosts)) for name, x in each}
            case "slowdown":
                fields[key] = tuple(_number(x, at, positive=True) for x in _list(value, at))
            case "fragment_memory":
                fields[key] = {name: int(_number(x, f"{at}[{name!r}]")) for name, x in _table(value, at).items()}
            case "device_switches":
                fields[key] = _curve(value, at)
            case "process_memory":
                fields[key] = int(_number(value, at))
            case _:
                fields[key] = _number(value, at)
    return Costs(**fields)


def timings_from_json(data: Any, where: str) -> dict[str, tuple[Timing, ...]]:
    """The timings that `timings_to_json` described."""
    return {name: _timings(timed, f"{where}[{name!r}]") for name, timed in _table(data, where).items()}


def _numbers(data: Any, where: str, kind: type[LinkCosts | ExchangeCosts]) -> dict[str, float]:
    """Fields of a dataclass that has numbers only."""
    given = _table(data, where, [f.name for f in dataclasses.fields(kind)])
    return {name: _number(x, f"{where}.{name}") for name, x in given.items()}


def _curve(data: Any, where: str) -> Curve:
    points = [_list(point, where, 2) for point in _list(data, where)]
    curve = tuple((_whole(number, where), _number(seconds, where)) for number, seconds in points)
    if any(b[0] <= a[0] for a, b in itertools.pairwise(curve)):
        raise TesseraError(f"{where}: the first number must grow from point to point, as in [[1, 0.001], [8, 0.004]]")
    return curve


def _timings(data: Any, where: str) -> tuple[Timing, ...]:
    found = []
    for entry in _list(data, where):
        table = _table(entry, where, ["envs", "threads", "calls"])
        for key in ("envs", "threads", "calls"):
            if key not in table:
                raise TesseraError(f"{where} needs {key!r} for each timing")
        calls = [_list(call, where, 2) for call in _list(table["calls"], where)]
        if not calls:
            raise TesseraError(f"{where} has no calls: at least one is needed, as [seconds, seconds of cores]")
        work = tuple(Work(_number(a, where), _number(b, where)) for a, b in calls)
        found.append(Timing(_whole(table["envs"], where), _whole(table["threads"], where), work))
    if not found:
        raise TesseraError(f"{where} has no timings: leave it out, or time it")
    return tuple(found)


def _table(data: Any, where: str, known: list[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise TesseraError(f"{where} must be a table, not {_shown(data)}")
    for key in data if known is not None else ():
        if key not in (known or ()):
            raise unknown_name(f"key in {where}:", str(key), known or ())
    return data


def _list(data: Any, where: str, length: int | None = None) -> list[Any]:
    if not isinstance(data, list) or (length is not None and len(data) != length) or len(data) > MOST_NUMBERS:
        words = "a list" if length is None else f"a list of {length}"
        raise TesseraError(f"{where} must be {words}, not {_shown(data)}")
    return data


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**53:
        raise TesseraError(f"{where}: {_shown(value)} is not a whole number of at least 1")
    return value


def _number(value: Any, where: str, positive: bool = False) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18
    if not good or not math.isfinite(value) or value < 0 or (positive and not value):
        raise TesseraError(f"{where}: {_shown(value)} is not a number of {'more than' if positive else 'at least'} 0")
    return float(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:60]}…"
