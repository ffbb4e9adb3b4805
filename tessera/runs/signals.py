"""SIGINT, SIGTERM and SIGHUP: a run ends at a checkpoint, or at once where there is nothing to save."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

from tessera.errors import Signalled

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE = 10.0
"""Seconds that replicas have to finish what they were at when a signal came."""


class StopSignals:
    """Notes the first signal. A second one acts as if nobody had caught it."""

    def __init__(self, on_late: Callable[[], None]) -> None:
        """`on_late` is called, by another thread, if the work under way does not end soon after a signal."""
        self.number: int | None = None
        """The signal that came."""
        self._on_late = on_late
        self._at_once = False
        self._patient = False
        self._timer: threading.Timer | None = None
        self._old: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self.number is not None

    @property
    def name(self) -> str:
        """Name of the signal that came."""
        return "" if self.number is None else signal.Signals(self.number).name

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()  # by nohup
            self._old = {number: signal.signal(number, self._note) for number in SIGNALS if number not in ignored}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.be_patient()
        self._give_back()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within this block a signal ends the run immediately: replicas start, and there is nothing new to save."""
        before, self._at_once = self._at_once, True
        try:
            if self:
                raise self.ending()
            yield
        finally:
            self._at_once = before

    @contextmanager
    def patience(self) -> Iterator[None]:
        """Within this block the work under way may take as long as it takes: a checkpoint is written."""
        before, self._patient = self._patient, True
        self.be_patient()
        try:
            yield
        finally:
            self._patient = before
            if self and not before:
                self.be_patient(PATIENCE)

    def ending(self) -> BaseException:
        """What ends the process as shells expect it of one that was signalled."""
        assert self.number is not None
        return KeyboardInterrupt() if self.number == signal.SIGINT else Signalled(128 + self.number)

    def be_patient(self, seconds: float | None = None) -> None:
        """Wait `seconds` from now on before `on_late` is called; None: for ever."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = threading.Timer(seconds, self._on_late)
            self._timer.daemon = True
            self._timer.start()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self._give_back()
        if number == signal.SIGHUP:
            _leave_terminal()
        if self._at_once:
            raise self.ending()
        if not self._patient:
            self.be_patient(PATIENCE)

    def _give_back(self) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old = {}


def _leave_terminal() -> None:
    """Print nothing more where the terminal is gone: that would be an error, before anything is saved."""
    with open(os.devnull, "w") as nowhere:
        for output in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # one that is no file, or closed
                if os.isatty(output.fileno()):
                    os.dup2(nowhere.fileno(), output.fileno())
