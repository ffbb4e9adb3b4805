"""The user's own policies, in small files: JSON, TOML or Python."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tessera.errors import TesseraError, unknown_name
from tessera.graph.policy import Cut, Fragment, Policy
from tessera.support.data_files import read_data

SUFFIXES = (".json", ".toml", ".py")


def load(path: Path) -> Policy | Callable[..., Policy]:
    """Read a policy from a file; of a Python file its `POLICY`, or its function `policy`."""
    if path.suffix not in SUFFIXES:
        raise TesseraError(f"policy file {path}: must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if path.suffix == ".py":
        return _from_python(path)
    return from_data(read_data(path, f"policy file {path}", path.suffix[1:]), str(path), path.stem)


def from_data(data: Any, where: str, name: str) -> Policy:
    """Make a policy from plain data: name, fragments, cuts by stream, summary, mirrors."""
    fields = _fields(data, Policy, where)
    tables, cuts = fields.pop("fragments", None), fields.pop("cuts", {})
    if not isinstance(tables, list) or not tables:
        raise TesseraError(f"{where}: `fragments` must be a list of fragments, each with `operators`")
    if not isinstance(cuts, Mapping):
        raise TesseraError(f"{where}: `cuts` must be a table by stream, such as {{'params': {{'lag': 1}}}}")
    fragments = []
    for k, table in enumerate(tables):
        fragment = _fields(table, Fragment, f"{where}: fragments[{k}]")
        if "operators" not in fragment:
            raise TesseraError(f"{where}: fragments[{k}] needs `operators`, such as 'env act'")
        fragments.append(Fragment(**fragment))
    disciplines = {stream: Cut(**_fields(cut, Cut, f"{where}: cuts.{stream}")) for stream, cut in cuts.items()}
    return Policy(**{"name": name, **fields}, fragments=tuple(fragments), cuts=disciplines)


def _fields(data: Any, cls: type, where: str) -> dict[str, Any]:
    """The fields of a dataclass in a table of the file, each of the right type."""
    if not isinstance(data, Mapping):
        raise TesseraError(f"{where} must be a table, not {data!r}")
    known = {f.name: str(f.type) for f in dataclasses.fields(cls)}
    values = {}
    for key, value in data.items():
        if key not in known:
            raise unknown_name(f"field in {where}:", key, known)
        if key == "operators" and isinstance(value, list):
            value = " ".join(map(str, value))
        if not _fits(value, known[key]):
            raise TesseraError(f"{where}: {key} must be {known[key]}, not {value!r}")
        values[key] = value
    return values


def _fits(value: Any, annotation: str) -> bool:
    """Whether a value has the type of a field; tables and lists, which `from_data` checks, always fit."""
    types: dict[str, Any] = {"int": int, "float": int | float, "str": str, "None": type(None)}
    names = [part.strip() for part in annotation.split("|")]
    if not all(name in types for name in names):
        return True
    return not isinstance(value, bool) and any(isinstance(value, types[name]) for name in names)


def _from_python(path: Path) -> Policy | Callable[..., Policy]:
    if not path.is_file():
        raise TesseraError(f"policy file {path} does not exist")
    spec = importlib.util.spec_from_file_location(f"tessera_policy_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except TesseraError as error:
        raise TesseraError(f"policy file {path}: {error}") from None
    except Exception as error:
        raise TesseraError(f"policy file {path} failed: {type(error).__name__}: {error}") from None
    policy = getattr(module, "POLICY", None) or getattr(module, "policy", None)
    if policy is None:
        raise TesseraError(f"policy file {path} has neither `POLICY` nor a function `policy`")
    return policy
