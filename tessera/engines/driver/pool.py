"""Processes of this machine that run jobs, one after another. They are spawned, never forked."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from tessera.channels.packing import Arrays, read_block, unpack, write_block
from tessera.engines.replica.entry_point import serve
from tessera.errors import TesseraError
from tessera.graph.plan import Placement
from tessera.support.accelerators import PREALLOCATE

Configuration = tuple[tuple[str, str], ...]
"""Environment variables of a process, and what `NOT_VARIABLES` names."""
NOT_VARIABLES = ("cores", "main")
"""Its cores, and whether it imports the main module, where classes of a script are."""

_spawner = ThreadPoolExecutor(1, thread_name_prefix="tessera-spawner")
"""The kernel ends a process when the thread that spawned it ends: this thread lives as long as the driver."""
_environment_lock = threading.Lock()
"""Held while the environment and the main module of this process are those of a process being spawned."""
_idle: dict[Configuration, list[PooledProcess]] = {}
_keepers = 0
"""How many `keep_processes` blocks are open."""


@dataclass
class PooledProcess:
    """One process and the driver's end of its pipe: the `ProcessHandle` of a replica on this machine.

    For a replica, the supervisor's thread receives; that thread and the driver's both send.
    """

    node = ""
    """This machine."""
    process: Any
    connection: Connection
    configuration: Configuration
    """Only a job that needs the same one may use the process."""
    open_blocks: list[int] = field(default_factory=list)
    """File descriptors of memory that the process has yet to read."""

    def alive(self) -> bool:
        """Whether the process lives."""
        return self.process.is_alive()

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def send(self, command: dict[str, Any], arrays: Arrays | None = None) -> None:
        """Send a command; its arrays go through shared memory."""
        if arrays:
            fd, size = write_block({}, arrays)
            self.open_blocks.append(fd)
            command = {**command, "block": (os.getpid(), fd, size)}
        with contextlib.suppress(OSError):  # it has died, which its owner notices
            self.connection.send_bytes(json.dumps(command).encode())

    def received(self) -> Iterator[tuple[dict[str, Any], Arrays]]:
        """Messages since the last call."""
        try:
            while self.connection.poll(0):
                meta, arrays = unpack(self.connection.recv_bytes())
                if meta["kind"] in ("started", "filled"):
                    self._close_blocks()
                if "block" in meta:
                    try:
                        arrays = read_block(*meta.pop("block"))[1]
                    except OSError:  # it has died since, and its successor gets the same request
                        continue
                    self.send({"do": "free"})
                yield meta, arrays
        except (EOFError, OSError):
            return

    def exit_reason(self) -> tuple[str, bool]:
        """How the process died, and whether it ended on its own."""
        self.process.join()
        code = self.process.exitcode or 0
        return (f"killed by {_describe_signal(-code)}", False) if code < 0 else (f"exit code {code}", True)

    def last_words(self) -> str:
        """How the process died, as the end of a sentence about it."""
        reason, on_its_own = self.exit_reason()
        return f"ended with {reason}" if on_its_own else f"was {reason}"

    def pause(self) -> None:
        """Stop the process until `resume`, and wait until it stands still."""
        if self.process.is_alive():  # else its number may be another's by now
            os.kill(self.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a process go on that was stopped."""
        if self.process.is_alive():
            os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> None:
        """End the process now, and wait for that; its last messages can still be received."""
        self.process.kill()
        self.process.join()

    def kill(self) -> None:
        """End the process and close its connection."""
        self.terminate()
        self.connection.close()
        self._close_blocks()

    def release(self) -> None:
        """Take the process back after its job; it waits for another one only within `keep_processes`."""
        self._close_blocks()
        if _keepers and self.process.is_alive():
            _idle.setdefault(self.configuration, []).append(self)
        else:
            self.kill()

    def _close_blocks(self) -> None:
        while self.open_blocks:
            os.close(self.open_blocks.pop())


def _describe_signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"{name}{', maybe for want of memory' if number == signal.SIGKILL else ''}"


def wait_for_any(processes: list[PooledProcess], seconds: float) -> None:
    """Wait until a process has sent a message or has died, or the time is over."""
    wait([end for p in processes for end in (p.connection, p.process.sentinel)], seconds)


def start_process(
    placed: Placement, cores: tuple[int, ...], main: bool = True, variables: Mapping[str, str] | None = None
) -> PooledProcess:
    """A process for a replica of a fragment: an idle one, or a new one; without `main` it imports no main module.

    `variables` are environment variables besides those of a replica.
    """
    environment = sorted({**process_environment(placed), **(variables or {})}.items())
    configuration = (*environment, ("cores", ",".join(map(str, cores))), ("main", str(main)))
    while _idle.get(configuration):
        process = _idle[configuration].pop()
        if process.alive():
            return process
    return _spawner.submit(_spawn, configuration, cores, main).result()


def assign(process: PooledProcess, job: Any) -> None:
    """Send a process its job; a job that cannot be pickled is refused, and the process ended."""
    try:
        packed = pack_job(job)
    except TesseraError:
        process.kill()
        raise
    assign_packed(process, packed)


def pack_job(job: Any) -> bytes:
    """A job as it is sent to a process; one that cannot be pickled, or not be unpickled there, is refused."""
    try:
        packed = bytes(ForkingPickler.dumps(job))
    except Exception as error:  # whatever pickling raises
        raise TesseraError(
            f"the environment or algorithm cannot be sent to another process ({error}): define it at the top level "
            "of a module, or use --engine serial"
        ) from None
    if needs_main(packed) and not _has_main_file():
        raise TesseraError(
            "the environment or algorithm is defined in a notebook or at a prompt, where other processes cannot import "
            "it: put it into a file of its own and import it from there, or use --engine serial"
        )
    return packed


def _has_main_file() -> bool:
    """Whether the main module is a file or a module, which other processes can import too."""
    main = sys.modules["__main__"]
    with _environment_lock:  # else the main module may be hidden, for a process being spawned
        return getattr(main, "__spec__", None) is not None or Path(getattr(main, "__file__", "")).is_file()


def needs_main(packed: bytes) -> bool:
    """Whether a packed job names anything of the main module."""
    return b"__main__" in packed


def assign_packed(process: PooledProcess, packed: bytes) -> None:
    """Send a process a job that is packed already."""
    with contextlib.suppress(OSError):  # it died at once, which its owner notices
        process.connection.send_bytes(packed)


@contextlib.contextmanager
def keep_processes() -> Iterator[None]:
    """Keep processes between runs, which saves every later run the seconds that a start takes."""
    global _keepers
    _keepers += 1
    try:
        yield
    finally:
        _keepers -= 1
        if not _keepers:
            close_idle()


def close_idle() -> None:
    """End every idle process."""
    for processes in _idle.values():
        while processes:
            processes.pop().kill()


atexit.register(close_idle)


def process_environment(placed: Placement) -> dict[str, str]:
    """Environment variables of a replica's process: what JAX reads on import, such as platform and threads."""
    flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ.get("XLA_FLAGS", "")).split()
    variables = {"JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    if placed.platform == "cpu":
        variables["JAX_PLATFORMS"] = "cpu"
        if placed.devices * placed.model > 1:
            flags.append(f"--xla_force_host_platform_device_count={placed.devices * placed.model}")
        if placed.threads == 1 and "--xla_cpu_multi_thread_eigen=false" not in flags:
            flags.append("--xla_cpu_multi_thread_eigen=false")
        threads = str(placed.threads)
        variables |= {"NPROC": threads, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
    else:  # several processes share the accelerator, so none may take all of its memory
        variables[PREALLOCATE] = "false"
    return {**variables, "XLA_FLAGS": " ".join(flags)}


@contextlib.contextmanager
def _importable_main(wanted: bool) -> Iterator[None]:
    """Hide the main module unless it is wanted, and one that no other process can find, such as standard input.

    A process that imports a script runs all of it that is not under `if __name__ == "__main__"`.
    """
    main = sys.modules["__main__"]
    path, spec = getattr(main, "__file__", None), main.__spec__
    hidden = path is not None and (not wanted or not os.path.exists(path))
    if hidden:
        del main.__file__
        main.__spec__ = None if not wanted else spec
    try:
        yield
    finally:
        if hidden:
            main.__file__, main.__spec__ = path, spec


def _spawn(configuration: Configuration, cores: tuple[int, ...], main: bool) -> PooledProcess:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    variables = {k: v for k, v in configuration if k not in NOT_VARIABLES}
    with _environment_lock, _importable_main(main):
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            process = context.Process(target=serve, args=(theirs, cores), name="tessera-replica")
            process.start()
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
    theirs.close()
    return PooledProcess(process, ours, configuration)
