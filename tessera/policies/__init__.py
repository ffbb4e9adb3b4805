"""Named distribution policies: one short file of data each."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import itertools
import pkgutil
import typing
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import UnionType
from typing import Any

from tessera.errors import TesseraError, unknown_name
from tessera.graph.colouring import is_colouring, read_colouring
from tessera.graph.policy import MODES, Cut, Policy
from tessera.graph.policy_files import SUFFIXES, load
from tessera.support.imports import import_target

Maker = Callable[..., Policy]


def names() -> tuple[str, ...]:
    """Every named policy."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__)))


def maker(name: str) -> Maker:
    """The function of a named policy; its arguments are the policy's options."""
    if name not in names():
        raise unknown_name("policy", name, names())
    return importlib.import_module(f"tessera.policies.{name}").policy


def get(name: str, **options: Any) -> Policy:
    """Return a named policy; options, such as numbers of replicas, go to the function of its file."""
    function = maker(name)
    _check_names(name, function, options)
    return function(**options)


def parse(text: str) -> Policy:
    """Return the policy that a text names.

    `central`, `central:workers=4,mode=async`, `path/to/file.json`, `file.toml`, `file.py:workers=4`,
    `py:module.attribute` (a Policy, or a function that makes one), `env+act@2/store+grad+apply` (a colouring).
    """
    if is_colouring(text):
        return read_colouring(text)
    name, given = split(text)
    target = find(name)
    if isinstance(target, Policy):
        if given:
            raise TesseraError(f"policy {name!r} has no options, got {', '.join(given)}: leave them out")
        return target
    _check_names(name, target, given)
    types = typing.get_type_hints(target)
    values = {key: _convert(name, key, value, types.get(key, str)) for key, value in given.items()}
    missing = [key for key, p in _parameters(target).items() if p.default is p.empty and key not in values]
    if missing:
        raise TesseraError(f"policy {name!r} needs {', '.join(f'{key}=…' for key in missing)}")
    policy = target(**values)
    if not isinstance(policy, Policy):
        raise TesseraError(f"policy {name!r} gave {type(policy).__name__} instead of a Policy")
    return policy


def find(name: str) -> Policy | Maker:
    """The policy, or the function that makes one, of a name, a file or `py:module.attribute`."""
    if is_colouring(name):
        return read_colouring(name)
    if name.startswith("py:"):
        target = import_target(name.removeprefix("py:"))
    elif name.endswith(SUFFIXES) or "/" in name:
        target = load(Path(name))
    else:
        target = maker(name)
    if not isinstance(target, Policy) and (isinstance(target, type) or not callable(target)):
        raise TesseraError(f"{name!r} is neither a Policy nor a function that makes one")
    return target


def split(text: str) -> tuple[str, dict[str, str]]:
    """Split `name:option=value,option=value` into the name and its options."""
    prefix = "py:" if text.startswith("py:") else ""
    name, _, rest = text.removeprefix(prefix).partition(":")
    given: dict[str, str] = {}
    for pair in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key:
            raise TesseraError(f"policy {prefix + name!r}: {pair!r} is not an option: write option=value")
        if key in given:
            raise TesseraError(f"policy {prefix + name!r}: option {key!r} is given twice")
        given[key] = value
    return prefix + name.strip(), given


def named(policy: Policy) -> tuple[Policy, str]:
    """A policy under the name that it has here, and the text for `--policy`; its own name if nobody has named it."""
    sizes = {size for f in policy.fragments for size in (f.replicas, f.devices, f.model)}
    found = []
    for name in names():
        function = maker(name)
        defaults, types = options(function), typing.get_type_hints(function)
        if [f.names for f in function().fragments] != [f.names for f in policy.fragments]:
            continue
        known = {key: sorted({default, *sizes}) for key, default in defaults.items() if types[key] is int}
        known |= {"mode": list(MODES)} if "mode" in defaults else {}
        known |= {"lag": list({defaults["lag"], policy.cut("params").lag})} if "lag" in defaults else {}
        for values in itertools.product(*known.values()):
            given = dict(zip(known, values, strict=True))
            with contextlib.suppress(TesseraError):  # this policy does not take such a value
                if _shape(function(**given)) == _shape(policy):
                    found.append((name, [f"{key}={value}" for key, value in given.items() if value != defaults[key]]))
    if not found:
        return policy, policy.name
    name, changed = min(found, key=lambda each: (len(each[1]), each))
    return replace(policy, name=name), f"{name}:{','.join(changed)}" if changed else name


def _shape(policy: Policy) -> tuple[Any, ...]:
    """All that decides what a policy does: cuts that say nothing are left out."""
    fragments = tuple(replace(f, operators=" ".join(f.names)) for f in policy.fragments)
    return fragments, {stream: cut for stream, cut in policy.cuts.items() if cut != Cut()}


def options(function: Maker) -> dict[str, Any]:
    """The options of a policy and their defaults."""
    return {key: p.default for key, p in _parameters(function).items()}


def _parameters(function: Maker) -> dict[str, inspect.Parameter]:
    """The parameters that a function takes by name."""
    loose = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {key: p for key, p in inspect.signature(function).parameters.items() if p.kind not in loose}


def _check_names(name: str, function: Maker, given: Mapping[str, Any]) -> None:
    known = options(function)
    if len(known) < len(inspect.signature(function).parameters):
        return  # it takes any option
    for key in given:
        if key not in known:
            choices = f"its options are {', '.join(known)}" if known else "it has no options"
            raise TesseraError(f"{unknown_name(f'option of policy {name!r}:', key, known)} {choices}")


def _convert(name: str, key: str, value: str, annotation: Any) -> Any:
    """Read a value by the type of its option."""
    kinds = typing.get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    for kind in kinds:
        if kind is type(None) and value.lower() in ("none", "null"):
            return None
        if kind is bool and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
        if kind is str:
            return value
    words = {int: "a whole number", float: "a number", bool: "true or false", type(None): "none"}
    expected = " or ".join(words.get(kind, str(kind)) for kind in kinds)
    raise TesseraError(f"policy {name!r}: option {key}={value} must be {expected}")
