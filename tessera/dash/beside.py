"""A dashboard beside a run: a process of its own, which ends with the run and can never hold it up."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tessera.dash.places import ServePlace, address, listen
from tessera.errors import PACKAGE, TesseraError
from tessera.support.extras import install_hint

NICENESS = 10
"""How far the run goes first, from the first import on."""
PATIENCE = 3.0
"""Seconds that it has to end."""


@contextmanager
def dashboard_beside(
    folder: Path, port: int | None, note: Callable[[str], None], advice: Sequence[str] = ()
) -> Iterator[int | None]:
    """Show the runs beside `folder`, and first the one that will be there, within this block; yields the process.

    `advice` is a command that says of a run's folder what more actors would bring.
    """
    try:
        process = start(folder, port, note, advice)
    except (TesseraError, OSError) as error:
        note(f"no dashboard: {error}")
        yield None
        return
    ending = threading.Event()
    watch = threading.Thread(target=tell_of_end, args=(process, ending, note), daemon=True)
    watch.start()
    try:
        yield process.pid
    finally:
        ending.set()
        assert process.stdin is not None
        process.stdin.close()
        watch.join(PATIENCE)
        process.kill()


def start(folder: Path, port: int | None, note: Callable[[str], None], advice: Sequence[str]) -> subprocess.Popen[str]:
    """Begin to listen, and start the process that answers. Its standard input ends when this process does."""
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise TesseraError(f"it needs {' and '.join(missing)}: {install_hint('dash')}")
    root, name = os.path.split(os.path.abspath(folder))
    run = name if name.isprintable() else ""
    path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
    place = ServePlace(port=port)
    with listen(place, "--dash-port") as listening:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tessera.dash", root, run, str(listening.fileno()), *advice],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[listening.fileno()],
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is the run's, which saves first
            text=True,
            errors="replace",
        )
        with suppress(ProcessLookupError):  # it has ended, which is reported
            os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
        note(f"dashboard: {address(place, listening, run or None)}")
    return process


def tell_of_end(process: subprocess.Popen[str], ending: threading.Event, note: Callable[[str], None]) -> None:
    """Wait for the end of the dashboard; one that is early is reported."""
    last = ""
    assert process.stderr is not None
    for line in process.stderr:
        last = line.strip() or last
    process.wait()
    if not ending.is_set():
        note(f"the dashboard has ended{f' ({last})' if last else ''}: see the run with `tessera dash`")
