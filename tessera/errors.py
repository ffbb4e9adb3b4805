"""Errors that the user can solve: a short message (what, why, what to do) and an exit code, no stack trace."""

from __future__ import annotations

import difflib
import itertools
import traceback
from collections.abc import Iterable
from pathlib import Path


class TesseraError(Exception):
    """A request that cannot be met; nothing was started and nothing was written."""

    exit_code = 2


class RunFailed(TesseraError):
    """A run that started could not continue."""

    exit_code = 1


class EnvironmentFailed(RunFailed):
    """An environment raised; its exception is the cause, and is shown once."""

    def followed_by(self, words: str) -> EnvironmentFailed:
        """The same error, with more to say."""
        failure = EnvironmentFailed(f"{self}{words}")
        failure.__cause__ = self.__cause__
        return failure

    def trace(self) -> str:
        """The traceback of the environment's own code, without Tessera's calls around it."""
        if self.__cause__ is None:
            return ""
        shown = traceback.TracebackException.from_exception(self.__cause__)
        own = list(itertools.dropwhile(lambda frame: PACKAGE in Path(frame.filename).parents, shown.stack))
        shown.stack[:] = own or shown.stack
        return "".join(shown.format()).rstrip()


class Signalled(SystemExit):
    """A signal ends the process."""


PACKAGE = Path(__file__).resolve().parent
"""Where Tessera's own files are."""
RAISED_BY_USERS = (Exception, SystemExit)
"""What the code of an environment may raise: an exit, too, is a mistake there, and would end a run without a word."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> TesseraError:
    """The error for an unknown name, with the nearest known one."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}."
    return TesseraError(f"unknown {kind} {name!r}: {hint}")
