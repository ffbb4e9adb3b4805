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
    from tessera.engines.packing import pack

    try:
        job.work(connection)
        connection.send_bytes(pack({"kind": "finished"}, {}))
        return True
    except (EOFError, BrokenPipeError):
        os._exit(0)
    except EnvironmentFailed as error:  # others may go on, and a new one may do better
        connection.send_bytes(pack({"kind": "error", "text": str(error), "trace": traceback.format_exc()}, {}))
    except TesseraError as error:
        message = {"kind": "refused", "text": str(error), "code": error.exit_code, "trace": traceback.format_exc()}
        connection.send_bytes(pack(message, {}))
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
        connection.send_bytes(pack({"kind": "error", "text": text, "trace": traceback.format_exc()}, {}))
    time.sleep(0.01)
    return False
