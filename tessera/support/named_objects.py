"""Objects by name: `py:package.module.Class?width=64` says which class, and with which keyword arguments."""

from __future__ import annotations

import ast
import dataclasses
import functools
import sys
from pathlib import Path
from typing import Any

from tessera.errors import TesseraError
from tessera.support.fields import options_of
from tessera.support.imports import import_target

PREFIX = "py:"
PLAIN = (bool, int, float, str)


def parse_options(text: str, name: str) -> dict[str, Any]:
    """Read key=value&key=value behind a name; numbers, true and false are read as such, and a bare key is true."""
    options: dict[str, Any] = {}
    for pair in text.split("&"):
        key, equals, value = pair.partition("=")
        if key in options:
            raise TesseraError(f"{name!r} sets {key} twice: leave one of them out")
        if not key.isidentifier() or (equals and not value):
            raise TesseraError(f"{name!r}: options are written ?key=value&key=value, and {pair!r} is not")
        try:
            options[key] = ast.literal_eval({"true": "True", "false": "False"}.get(value, value)) if equals else True
        except (ValueError, SyntaxError):
            options[key] = value
    return options


def is_foreign(value: Any) -> bool:
    """Whether it names an object outside of Tessera."""
    return isinstance(value, str) and value.startswith(PREFIX)


def import_named(name: str) -> Any:
    """Import what a user names; with options, a function that makes it with these."""
    path, question, text = name.removeprefix(PREFIX).partition("?")
    target = import_target(path)
    return functools.partial(target, **parse_options(text, name)) if question else target


def name_of(value: Any, flag: str) -> Any:
    """The name from which an object can be made again; plain data stay what they are.

    An object is a class, a partial of one with keyword arguments, or an instance of a dataclass.
    """
    if value is None or isinstance(value, (*PLAIN, tuple, list)):
        return value
    cls, given = value, {}
    if isinstance(value, functools.partial) and not value.args:
        cls, given = value.func, value.keywords
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        cls = type(value)
        fields = [f for f in options_of(value) if f.init and f.name not in ("parent", "name")]
        given = {f.name: getattr(value, f.name) for f in fields if getattr(value, f.name) != f.default}
    path = f"{module_of(cls)}.{getattr(cls, '__qualname__', '')}"
    wrong = [key for key, x in given.items() if not isinstance(x, PLAIN) and not _is_flat(x)]
    if wrong or not isinstance(cls, type) or "<locals>" in path:
        why = "it is no class of a module"
        if wrong or isinstance(cls, functools.partial):
            why = f"its {wrong[0]} is no plain number, text or tuple" if wrong else "arguments are not given by keyword"
        raise TesseraError(
            f"{flag}: a run notes its settings as text, and {cls} cannot be noted, because {why}: define a class at "
            "the top of a module, with plain arguments"
        )
    options = "&".join(f"{key}={_written(x)}" for key, x in given.items())
    return f"{PREFIX}{path}" + (f"?{options}" if options else "")


def module_of(cls: Any) -> str:
    """The module of a class; of a class in the script that runs, the module that the script is for others."""
    module = getattr(cls, "__module__", "")
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(script).stem if module == "__main__" and script else module


def _is_flat(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(x, PLAIN) for x in value)


def _written(value: Any) -> str:
    return value if isinstance(value, str) else repr(value).replace(" ", "")
