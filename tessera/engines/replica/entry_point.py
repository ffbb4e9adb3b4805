"""A process that becomes one replica: builds its part of the program and drives it, as the driver's words allow."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from tessera.errors import EnvironmentFailed, TesseraError


def serve(connection: Connection, cores: tuple[int, ...]) -> None:
    """Take jobs until the driver hangs up. What has to be said before JAX is imported is in the environment already."""
    _die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):  # both may go to a whole group: the driver decides what they mean
        signal.signal(number, lambda *_: None)
    if cores:
        os.sched_setaffinity(0, cores)
    while True:
        try:
            told = connection.recv_bytes()
        except (EOFError, OSError):
            return
        if told.startswith(b"{"):  # a command that came when the job that it was for had ended
            continue
        job = ForkingPickler.loads(told)
        if not _attempt(job, connection):
            sys.exit(1)


def _die_with_parent() -> None:
    """Let the kernel end this process when the driver ends, however it ends."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
    if os.getppid() != parent:  # it ended in between
        os._exit(1)


def _attempt(job: Any, connection: Connection) -> bool:
    """Do a job; whether this process may take another one."""
    from tessera.channels.packing import pack

    try:
        job.work(connection)
        connection.send_bytes(pack({"kind": "finished"}, {}))
        return True
    except (EOFError, BrokenPipeError):
        os._exit(0)
    except BaseException as error:
        connection.send_bytes(pack(describe(error), {}))
    time.sleep(0.01)
    return False


def describe(error: BaseException) -> dict[str, Any]:
    """What a replica tells the driver of what it dies of: `refused` ends the run, after an `error` others may go on."""
    told = {"kind": "error", "text": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    if isinstance(error, TesseraError):
        told["text"] = str(error)
    if isinstance(error, TesseraError) and not isinstance(error, EnvironmentFailed):  # a new one would do no better
        return {**told, "kind": "refused", "code": error.exit_code}
    return told
