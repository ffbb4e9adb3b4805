"""Running the command line while pages are built, so that no page shows what a command printed some time ago."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shlex
from unittest import mock

from tessera.cli.main import main

WIDTH = 110
"""Columns of what commands print."""


@functools.cache
def output_of(command: str) -> str:
    """What a command such as `tessera plan ppo gymnax:CartPole-v1` prints.

    Raises:
        ValueError: It is no command of ours, or it failed.
    """
    program, *arguments = shlex.split(command)
    if program != "tessera":
        raise ValueError(f"{command!r}: only commands that begin with tessera are run")
    printed, complaints = io.StringIO(), io.StringIO()
    settings = {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb"}
    with (
        mock.patch.dict(os.environ, settings),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(complaints),
    ):
        try:
            main(arguments)
        except SystemExit as stop:
            if stop.code:
                raise ValueError(f"{command}: exit code {stop.code}: {complaints.getvalue().strip()}") from None
    return "\n".join(line.rstrip() for line in printed.getvalue().strip("\n").splitlines())
