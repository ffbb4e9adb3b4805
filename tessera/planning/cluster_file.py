"""Cluster files: kinds of nodes, in TOML, that a plan is simulated on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tessera.engines.simulated.cluster import Cluster, NodeKind
from tessera.errors import TesseraError, unknown_name
from tessera.support.data_files import read_data


class Key(NamedTuple):
    """A key of a kind of nodes."""

    field: str
    """Of `NodeKind`."""
    unit: float
    """What one of it is in the unit of that field."""
    whole: bool = False
    least: float = 0.0
    may_be_least: bool = True


KEYS: dict[str, Key] = {
    "count": Key("count", 1, whole=True, least=1),
    "cores": Key("cores", 1, whole=True, least=1),
    "accelerators": Key("accelerators", 1, whole=True),
    "memory_gb": Key("memory", 1e9, may_be_least=False),
    "accelerator_memory_gb": Key("accelerator_memory", 1e9, may_be_least=False),
    "speed": Key("speed", 1, may_be_least=False),
    "accelerator_speed": Key("accelerator_speed", 1, may_be_least=False),
    "bandwidth_gbit_s": Key("bandwidth", 1e9 / 8, may_be_least=False),
    "latency_ms": Key("latency", 1e-3),
    "price_per_hour": Key("price", 1),
}
"""Key of a file -> what it sets. Each has one unit, which its name says."""
NEEDED = ("count", "cores")
IN_BYTES = ("memory", "accelerator_memory")
MOST_NODES = 1_000_000
LARGEST = 1e15
"""No number of a machine is larger."""


def load_cluster(path: Path) -> Cluster:
    """Read a cluster from a file."""
    where = f"cluster file {path}"
    if path.suffix != ".toml":
        raise TesseraError(f"{where}: must end in .toml")
    return cluster_of(read_data(path, where, "toml"), where)


def cluster_of(data: Mapping[str, Any], where: str) -> Cluster:
    """Make a cluster from plain data: `nodes`, a table of kinds by name."""
    for key in data:
        if key != "nodes":
            raise unknown_name(f"key in {where}:", key, ["nodes"])
    kinds = data.get("nodes")
    if not isinstance(kinds, Mapping) or not kinds:
        raise TesseraError(f"{where} has no nodes: describe at least one kind in a table [nodes.NAME]")
    cluster = Cluster(tuple(_kind(name, table, f"{where}: nodes.{name}") for name, table in kinds.items()))
    total = sum(kind.count for kind in cluster.kinds)
    if total > MOST_NODES:
        raise TesseraError(f"{where} has {total:,} nodes: at most {MOST_NODES:,} can be simulated")
    return cluster


def _kind(name: str, table: Any, where: str) -> NodeKind:
    if not isinstance(table, Mapping):
        raise TesseraError(f"{where} must be a table with {', '.join(NEEDED)}, not {table!r}")
    fields: dict[str, Any] = {"name": name}
    for key, value in table.items():
        if key not in KEYS:
            raise unknown_name(f"key in {where}:", key, KEYS)
        fields[KEYS[key].field] = _number(KEYS[key], value, f"{where}: {key}")
    for key in NEEDED:
        if key not in table:
            raise TesseraError(f"{where} needs {key!r}")
    return NodeKind(**fields)


def _number(key: Key, value: Any, where: str) -> int | float:
    """A value of the file, in the unit of its field."""
    kind = "a whole number" if key.whole else "a number"
    if isinstance(value, bool) or not isinstance(value, int if key.whole else int | float):
        raise TesseraError(f"{where} must be {kind}, not {value!r}")
    enough = value >= key.least if key.may_be_least else value > key.least
    if not enough or not math.isfinite(value) or value > LARGEST:
        words = f"at least {key.least:g}" if key.may_be_least else f"more than {key.least:g}"
        raise TesseraError(f"{where} is {value!r}: {kind} of {words} is needed")
    return value if key.unit == 1 else int(value * key.unit) if key.field in IN_BYTES else value * key.unit
