"""Files that a user names: TOML or JSON, read as plain data, or refused in one sentence."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from tessera.errors import TesseraError


def read_data(path: Path, where: str, form: str) -> Any:
    """The content of a file in the form `json` or `toml`; `where` names the file in errors."""
    if not path.is_file():
        raise TesseraError(f"{where} does not exist")
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text) if form == "json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # the errors of JSON, TOML and Unicode derive from ValueError
        raise TesseraError(f"{where} is not {form.upper()}: {error}") from None
    except OSError as error:
        raise TesseraError(f"{where} cannot be read ({error.strerror})") from None
