"""Reading flags: by the fields of dataclasses, with one sentence for every mistake."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import itertools
import textwrap
from collections.abc import Mapping
from typing import Annotated, Any, get_type_hints

import tyro

from tessera.errors import TesseraError, unknown_name
from tessera.support.fields import options_of


def hyper_parameters(cls: type, defaults: Mapping[str, Any] | None = None) -> type:
    """A dataclass with an algorithm's fields, documented as there, for the command line to fill.

    `defaults` are values that a system sets otherwise than the algorithm.
    """
    given = {name: dataclasses.field(default=value) for name, value in (defaults or {}).items()}
    fields = options_of(cls)
    hints, helps = get_type_hints(cls), field_docs(cls)

    def annotated(name: str) -> Any:
        return Annotated[hints[name], tyro.conf.arg(help=helps.get(name, ""))]

    made = dataclasses.make_dataclass(cls.__name__, [(f.name, annotated(f.name), given.get(f.name, f)) for f in fields])
    made.__doc__ = f"Hyper-parameters of {cls.name}."  # type: ignore[attr-defined]
    return made


def given_value(arguments: list[str], flag: str) -> str | None:
    """The value of a flag that decides what other flags default to."""
    for k, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == flag:
            return value if equals else arguments[k + 1] if k + 1 < len(arguments) else None
    return None


def preset(cls: type, name: str | None) -> dict[str, Any]:
    """The settings of one of an algorithm's presets."""
    known = cls.presets  # type: ignore[attr-defined]
    if name is None:
        return {}
    if name not in known:
        raise unknown_name(f"preset of {cls.name}:", name, known)  # type: ignore[attr-defined]
    return dict(known[name])


def check_flags(arguments: list[str], *classes: type) -> None:
    """Refuse the first flag that none of the dataclasses has, naming the nearest."""
    names = {"help"} | {f.name.replace("_", "-") for cls in classes for f in dataclasses.fields(cls)}
    for argument in arguments:
        given = argument.removeprefix("--").partition("=")[0].replace("_", "-")
        if argument.startswith("--") and given.removeprefix("no-") not in names:
            raise unknown_name("flag", f"--{given}", [f"--{name}" for name in names])


def read_flags(target: Any, arguments: list[str], prog: str, description: str | None = None) -> Any:
    """Parse with tyro; what it frames in a box of many lines becomes one sentence."""
    framed = io.StringIO()
    try:
        with contextlib.redirect_stderr(framed):
            return tyro.cli(target, args=arguments, prog=prog, description=description)
    except SystemExit as left:
        if not left.code:
            raise
        rows = [row.strip("│ ") for row in framed.getvalue().splitlines()[1:]]  # the first is the box's title
        body = itertools.dropwhile(_is_rule, rows)
        said = itertools.takewhile(lambda row: not _is_rule(row), body)
        raise TesseraError(f"{' '.join(said).rstrip('.')}: see `{prog} --help`") from None


def _is_rule(row: str) -> bool:
    return set(row) <= set("─-╰╯")


def field_docs(cls: type) -> dict[str, str]:
    """The docstrings under a dataclass's fields, its bases' included."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, body.body[1:], strict=False):
            match field, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                    docs[name] = " ".join(text.split())
    return docs
