"""Errors that the user can solve: a short message (what, why, what to do) and an exit code, no stack trace."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TesseraError(Exception):
    """A request that cannot be met; nothing was started and nothing was written."""

    exit_code = 2


class RunFailed(TesseraError):
    """A run that started could not continue."""

    exit_code = 1


class EnvironmentFailed(RunFailed):
    """An environment raised; its exception is the cause, and is shown once."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> TesseraError:
    """The error for an unknown name, with the nearest known one."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}."
    return TesseraError(f"unknown {kind} {name!r}: {hint}")
