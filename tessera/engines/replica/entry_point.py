"""The entry point of a process of the pool: it takes one job after another."""

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
    """Take jobs until the driver closes the connection. The environment already holds what JAX reads on import."""
    _die_with_parent()
    # these may reach the whole process group: the driver decides
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    if cores:
        os.sched_setaffinity(0, cores)
    while True:
        try:
            data = connection.recv_bytes()
        except (EOFError, OSError):
            return
        if data.startswith(b"{"):  # a command for a job that has ended
            continue
        job = ForkingPickler.loads(data)
        if not _run_job(job, connection):
            sys.exit(1)


def _die_with_parent() -> None:
    """Have the kernel end this process when the driver ends, for whatever reason."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
    if os.getppid() != parent:  # the driver ended in between
        os._exit(1)


def _run_job(job: Any, connection: Connection) -> bool:
    """Run a job; whether this process may take another one."""
    from tessera.channels.packing import pack

    try:
        job.work(connection)
        connection.send_bytes(pack({"kind": "finished"}, {}))
        return True
    except (EOFError, BrokenPipeError):
        os._exit(0)
    except BaseException as error:
        connection.send_bytes(pack(describe_failure(error), {}))
    time.sleep(0.01)
    return False


def describe_failure(error: BaseException) -> dict[str, Any]:
    """A replica's last message to the driver: `refused` ends the run, after an `error` other replicas may go on."""
    message = {"kind": "error", "text": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    if isinstance(error, TesseraError):
        message["text"] = str(error)
    if isinstance(error, EnvironmentFailed):
        message["trace"] = error.trace()
    if isinstance(error, TesseraError) and not isinstance(error, EnvironmentFailed):  # a restart would not help
        return {**message, "kind": "refused", "code": error.exit_code}
    return message
