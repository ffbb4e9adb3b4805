"""Functions that tests map; plain Python, which any process imports at once."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any


def square(item: Any) -> dict[str, Any]:
    return {"square": item["values"] ** 2, "name": item["name"], "pair": (1, 2.5)}


def scaled(item: int, by: int, plus: int = 0) -> int:
    return item * by + plus


def killed_once(item: int, folder: str) -> int:
    """Dies in the middle of item 1, the first time only."""
    mark = Path(folder, "died")
    if item == 1 and not mark.exists():
        mark.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    return item * 10


def hung_once(item: int, folder: str) -> int:
    """Never finishes item 1, the first time only."""
    mark = Path(folder, "hung")
    if item == 1 and not mark.exists():
        mark.write_text(str(os.getpid()))
        threading.Event().wait()
    return item * 10


def straggling(item: int, folder: str) -> int:
    """Never finishes item 0."""
    Path(folder, f"{item}").write_text(str(os.getpid()))
    if item == 0:
        threading.Event().wait()
    return item


def killed(item: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return item


def raising(item: int) -> int:
    if item == 2:
        raise ValueError("two is too much")
    return item


def unplain(item: int) -> Any:
    return {item}
