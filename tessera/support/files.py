"""Files that are written atomically."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a kill leaves either the old file or the new one."""
    draft = path.with_suffix(path.suffix + ".tmp")
    draft.write_text(json.dumps(value, indent=2) + "\n")
    draft.replace(path)
