"""Flags, read into dataclasses; every mistake is answered in one sentence."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import decimal
import inspect
import io
import itertools
import re
import textwrap
from collections.abc import Collection, Mapping
from typing import Annotated, Any, get_type_hints

import tyro

from tessera.errors import TesseraError, unknown_name
from tessera.support.fields import options_of

MOST_DIGITS = 100
"""Digits of the longest number that is read; no option can be so large, and longer ones take long to read."""


def hyper_parameters(cls: type, defaults: Mapping[str, Any] | None = None) -> type:
    """A dataclass with the fields of an algorithm and their docstrings, for the command line to fill.

    `defaults` replace defaults of the algorithm.
    """
    replaced = {name: dataclasses.field(default=value) for name, value in (defaults or {}).items()}
    fields = options_of(cls)
    hints, helps = get_type_hints(cls), field_docs(cls)

    def annotated(name: str) -> Any:
        # what may be any object in Python is its name here
        hint = (str | None if defaults_of[name] is None else str) if hints[name] is Any else hints[name]
        return Annotated[hint, tyro.conf.arg(help=helps.get(name, ""))]

    defaults_of = {f.name: f.default for f in fields}
    options = [(f.name, annotated(f.name), replaced.get(f.name, f)) for f in fields]
    options_class = dataclasses.make_dataclass(cls.__name__, options)
    options_class.__doc__ = f"Hyper-parameters of {cls.name}."  # type: ignore[attr-defined]
    return options_class


def with_few_shown(cls: type, shown: Collection[str]) -> type:
    """The same options, of which the help shows some."""
    hints, helps = get_type_hints(cls, include_extras=True), field_docs(cls)

    def annotated(name: str) -> Any:
        described: Any = Annotated[hints[name], tyro.conf.arg(help=helps[name])] if helps.get(name) else hints[name]
        return described if name in shown else Annotated[described, tyro.conf.Suppress]

    fields = [(f.name, annotated(f.name), f) for f in dataclasses.fields(cls)]
    few = dataclasses.make_dataclass(cls.__name__, fields)
    few.__doc__ = cls.__doc__
    return few


def with_value(arguments: list[str], flag: str, value: str) -> list[str]:
    """The arguments, with a value for a flag that may be given without one."""
    return [
        f"{flag}={value}" if argument == flag and after.startswith("--") else argument
        for argument, after in itertools.pairwise([*arguments, "--"])
    ]


def check_flags(arguments: list[str], *classes: type) -> None:
    """Refuse the first flag that none of the dataclasses has, naming the nearest."""
    names = {"help", "help-all"} | {f.name.replace("_", "-") for cls in classes for f in dataclasses.fields(cls)}
    for argument in arguments:
        given = argument.removeprefix("--").partition("=")[0].replace("_", "-")
        if argument.startswith("--") and given.removeprefix("no-") not in names:
            raise unknown_name("flag", f"--{given}", [f"--{name}" for name in names])


def read_flags(target: Any, arguments: list[str], prog: str, description: str | None = None) -> Any:
    """Parse with tyro; an error, which tyro prints as a box of several lines, becomes one sentence."""
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            return tyro.cli(target, args=arguments, prog=prog, description=description, registry=_NUMBERS)
    except SystemExit as stop:
        if not stop.code:
            raise
        rows = [row.strip("│ ") for row in box.getvalue().splitlines()[1:]]  # the first is the title
        body = itertools.dropwhile(_is_rule, rows)
        message = " ".join(itertools.takewhile(lambda row: not _is_rule(row), body)).rstrip(".")
        raise TesseraError(f"{_plainly(message)}: see `{prog} --help`") from None


_NUMBERS = tyro.constructors.ConstructorRegistry()
"""How flags are read where it differs from tyro's own ways."""


@_NUMBERS.primitive_rule
def _whole_numbers(asked: Any) -> tyro.constructors.PrimitiveConstructorSpec[int] | None:
    """Read whole numbers, also those in powers of ten."""
    if asked.type is not int:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda given: whole_number(given[0]),
        is_instance=lambda x: isinstance(x, int),
        str_from_instance=lambda x: [str(x)],
    )


def whole_number(text: str) -> int:
    """The number that a text names: 1000000 or 1e6, but not 1.5."""
    try:
        return int(text)
    except ValueError:
        with contextlib.suppress(decimal.InvalidOperation):
            number = decimal.Decimal(text)
            if number.is_finite() and abs(number.adjusted()) < MOST_DIGITS and number == int(number):
                return int(number)
        raise


def _plainly(message: str) -> str:
    """A message about a number that is none, in plain words."""
    found = re.search(r"parsing (--\S+): .*?(?:\[| 10: |float: )'([^']*)'", message)
    wanted = re.search(r"\b(INT|int|FLOAT|float)\b", message)
    if not found or not wanted:
        return message
    kind = "a whole number" if wanted[1].lower() == "int" else "a number"
    return f"{found[1]} {found[2]}: {kind} is needed"


def _is_rule(row: str) -> bool:
    return set(row) <= set("─-╰╯")


def field_docs(cls: type) -> dict[str, str]:
    """The docstrings under the fields of a dataclass and of its bases."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base) or base.__module__ == "types":  # made here, without a source
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, body.body[1:], strict=False):
            match field, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                    docs[name] = " ".join(text.split())
    return docs
