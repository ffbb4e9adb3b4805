"""Errors that are the user's to solve: a short message (what, why, what to do) and an exit code, no stack trace."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TesseraError(Exception):
    """Something the user asked for cannot be done; nothing was started and nothing was written."""

    exit_code = 2


class RunFailed(TesseraError):
    """A run that had started could not go on."""

    exit_code = 1


class EnvironmentFailed(RunFailed):
    """An environment raised; what it raised is the cause, and is shown once."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> TesseraError:
    """Build the error for a name that nobody knows, with the nearest one that somebody does."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}."
    return TesseraError(f"unknown {kind} {name!r}: {hint}")
