"""Imports by dotted path, as named by a user or saved by another process."""

from __future__ import annotations

import importlib
from typing import Any

from tessera.errors import TesseraError, unknown_name


def import_target(path: str) -> Any:
    """Import `package.module.Class`, as a user names it after `py:`."""
    module_name, _, attribute = path.rpartition(".")
    if not module_name:
        raise TesseraError(f"'py:{path}' names no module: write py:package.module.Class")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise TesseraError(
            f"'py:{path}' cannot be imported ({error}): is it installed, or its folder on PYTHONPATH?"
        ) from error
    if not hasattr(module, attribute):
        public = [name for name in vars(module) if not name.startswith("_")]
        raise unknown_name(f"class in {module_name}", attribute, public)
    return getattr(module, attribute)


def import_again(path: str, complaint: str) -> Any:
    """Import `package.module.name`, as an earlier or another process has saved it."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        hint = "is its folder on PYTHONPATH?"
        if module == "__main__":
            hint = "it was defined in a script, and only that script has it; move it to a module of its own"
        raise TesseraError(f"{complaint} ({error}): {hint}") from error
