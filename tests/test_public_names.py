"""The public names: type checkers and the interpreter see the same ones."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import tessera

SOURCE = ast.parse(Path(tessera.__file__).read_text())
FUNCTIONS = ("check_env", "compare", "evaluate_run", "evaluate_runs", "load", "map_reduce", "preset", "train")


def assigned(name: str) -> Any:
    """The literal that the package assigns to a name."""
    for node in SOURCE.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{name} is not assigned")


def typed() -> dict[str, tuple[str, ...]]:
    """Module -> names that the package imports for type checkers."""
    (block,) = (n for n in SOURCE.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert len(imports) == len(block.body)
    assert all(alias.asname is None for node in imports for alias in node.names)
    return {str(node.module): tuple(alias.name for alias in node.names) for node in imports}


def names(modules: Mapping[str, tuple[str, ...]]) -> list[str]:
    return sorted(name for found in modules.values() for name in found)


def test_type_checkers_import_every_public_name_from_where_it_is_loaded():
    assert typed() == assigned("_MODULES")
    assert names(typed()) == sorted(set(assigned("__all__")) - {"__version__"})


@pytest.mark.parametrize("name", tessera.__all__)
def test_a_public_name_is_loaded_and_documented(name):
    value = getattr(tessera, name)
    assert name in dir(tessera)
    assert name == "__version__" or inspect.getdoc(value)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_has_types_and_documents_every_argument(name):
    function = getattr(tessera, name)
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(p.annotation is not p.empty for p in signature.parameters.values())
    text = inspect.getdoc(tessera.evaluate_runs if name == "evaluate_run" else function) or ""
    documented = {line.partition(":")[0].strip() for line in text.partition("Args:")[2].splitlines()}
    renamed = {"folder": "folders"} if name == "evaluate_run" else {}
    assert {renamed.get(p, p) for p in signature.parameters} <= documented


def test_there_is_no_other_public_function():
    assert {n for n in tessera.__all__ if inspect.isfunction(getattr(tessera, n))} == set(FUNCTIONS)
