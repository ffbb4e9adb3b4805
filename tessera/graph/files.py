"""Policies of one's own in small files: JSON, TOML or Python."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tessera.errors import TesseraError, unknown_name
from tessera.graph.policy import Cut, Fragment, Policy

SUFFIXES = (".json", ".toml", ".py")


def load(path: Path) -> Policy | Callable[..., Policy]:
    """Read a policy from a file; of a Python file its `POLICY`, or its function `policy`."""
    if path.suffix not in SUFFIXES:
        raise TesseraError(f"policy file {path}: must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if not path.is_file():
        raise TesseraError(f"policy file {path} does not exist")
    if path.suffix == ".py":
        return _from_python(path)
    try:
        text = path.read_text()
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:  # JSON's, TOML's and Unicode's errors are all of this kind
        raise TesseraError(f"policy file {path} is not {path.suffix[1:].upper()}: {error}") from None
    return from_data(data, str(path), path.stem)


def from_data(data: Any, where: str, name: str) -> Policy:
    """Make a policy of plain data: name, fragments, cuts by stream, summary, mirrors."""
    fields = _table(data, Policy, where)
    fragments, cuts = fields.pop("fragments", None), fields.pop("cuts", {})
    if not isinstance(fragments, list) or not fragments:
        raise TesseraError(f"{where}: `fragments` must be a list of fragments, each with `operators`")
    if not isinstance(cuts, Mapping):
        raise TesseraError(f"{where}: `cuts` must be a table by stream, such as {{'params': {{'lag': 1}}}}")
    made = []
    for k, fragment in enumerate(fragments):
        inside = f"{where}: fragments[{k}]"
        table = _table(fragment, Fragment, inside)
        if "operators" not in table:
            raise TesseraError(f"{inside} needs `operators`, such as 'env act'")
        made.append(Fragment(**table))
    disciplines = {stream: Cut(**_table(cut, Cut, f"{where}: cuts.{stream}")) for stream, cut in cuts.items()}
    return Policy(**{"name": name, **fields}, fragments=tuple(made), cuts=disciplines)


def _table(data: Any, cls: type, where: str) -> dict[str, Any]:
    """The fields of a dataclass that a table holds, each of the right type."""
    if not isinstance(data, Mapping):
        raise TesseraError(f"{where} must be a table, not {data!r}")
    known = {f.name: str(f.type) for f in dataclasses.fields(cls)}
    out = {}
    for key, value in data.items():
        if key not in known:
            raise unknown_name(f"field in {where}:", key, known)
        if key == "operators" and isinstance(value, list):
            value = " ".join(map(str, value))
        if not _fits(value, known[key]):
            raise TesseraError(f"{where}: {key} must be {known[key]}, not {value!r}")
        out[key] = value
    return out


def _fits(value: Any, wanted: str) -> bool:
    """Whether a value is what a field's annotation says; tables and lists are looked into by who reads them."""
    kinds: dict[str, Any] = {"int": int, "float": int | float, "str": str, "None": type(None)}
    named = [part.strip() for part in wanted.split("|")]
    if not all(part in kinds for part in named):
        return True
    return not isinstance(value, bool) and any(isinstance(value, kinds[part]) for part in named)


def _from_python(path: Path) -> Policy | Callable[..., Policy]:
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
    found = getattr(module, "POLICY", None) or getattr(module, "policy", None)
    if found is None:
        raise TesseraError(f"policy file {path} has neither `POLICY` nor a function `policy`")
    return found
