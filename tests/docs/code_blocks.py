"""Blocks of code in a page, in order, and how a reader would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"(?:^<!-- (?P<note>[^\n]*) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S)
LANGUAGES = ("sh", "python")
"""What is run; other blocks show what is printed."""
LONGEST = 600
"""Seconds for one block."""


@dataclass(frozen=True)
class Block:
    """A block of code. A comment in the line above it says that it is `slow`, or `skip: why` it cannot be run."""

    number: int
    language: str
    text: str
    note: str

    @property
    def slow(self) -> bool:
        """Whether it takes more than 20 seconds."""
        return self.note == "slow"

    @property
    def skipped(self) -> bool:
        """Whether it cannot be run in a test."""
        return self.note.startswith("skip: ")


def blocks_of(page: Path) -> Iterator[Block]:
    """The blocks of a page that a reader would run."""
    for number, found in enumerate(FENCE.finditer(page.read_text()), 1):
        if found["language"] in LANGUAGES:
            yield Block(number, found["language"], found["text"], found["note"] or "")


def run(block: Block, folder: Path) -> None:
    """Run a block as a reader would, in a folder where those before it were run; fail with what it printed."""
    if block.language == "python":
        named = re.match(r"# (\w+\.py)\n", block.text)  # the page says under which name it is to be saved
        script = folder / (named[1] if named else f"block_{block.number}.py")
        script.write_text(block.text)
        command = [sys.executable, script.name]
    else:
        command = ["bash", "-euo", "pipefail", "-c", block.text]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path, "COLUMNS": "100"}, timeout=LONGEST, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"block {block.number} failed:\n{block.text}\n{done.stdout[-4000:]}"
