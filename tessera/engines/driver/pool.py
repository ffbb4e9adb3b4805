"""Processes that wait to become replicas. Spawned, never forked, by one thread that lives as long as the driver."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from tessera.channels.packing import Arrays, read_block, unpack, write_block
from tessera.engines.replica.entry_point import serve
from tessera.errors import TesseraError
from tessera.graph.plan import Placement

_spawner = ThreadPoolExecutor(1, thread_name_prefix="tessera-spawner")
"""The kernel ends a process when the thread that spawned it ends: this one ends with the driver."""
_environment = threading.Lock()
_idle: dict[tuple[tuple[str, str], ...], list[PooledProcess]] = {}
_keeping = 0


@dataclass
class PooledProcess:
    """One process and the driver's end of its pipe."""

    process: Any
    connection: Connection
    kind: tuple[tuple[str, str], ...]
    """What its environment says; only a replica that wants the same may use it."""
    lent: list[int] = field(default_factory=list)
    """Memory that is open until it has been read."""

    def alive(self) -> bool:
        """Whether it lives."""
        return self.process.is_alive()

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid

    def send(self, command: dict[str, Any], arrays: Arrays | None = None) -> None:
        """Tell it something; arrays go through memory that it opens."""
        if arrays:
            fd, size = write_block({}, arrays)
            self.lent.append(fd)
            command = {**command, "block": (os.getpid(), fd, size)}
        with contextlib.suppress(OSError):  # it has died, and whoever watches it will see
            self.connection.send_bytes(json.dumps(command).encode())

    def received(self) -> Iterator[tuple[dict[str, Any], Arrays]]:
        """What it has said since this was last asked."""
        try:
            while self.connection.poll(0):
                meta, arrays = unpack(self.connection.recv_bytes())
                if meta["kind"] == "started":
                    self._free()
                if "block" in meta:
                    try:
                        arrays = read_block(*meta.pop("block"))[1]
                    except OSError:  # it has died since, and whoever takes its place is asked again
                        continue
                    self.send({"do": "free"})
                yield meta, arrays
        except (EOFError, OSError):
            return

    def exit_reason(self) -> tuple[str, bool]:
        """How it died, and whether by its own doing."""
        self.process.join()
        code = self.process.exitcode or 0
        return (f"killed by {_signal(-code)}", False) if code < 0 else (f"exit code {code}", True)

    def terminate(self) -> None:
        """End it now, and wait until it has ended; what it said can still be heard."""
        self.process.kill()
        self.process.join()

    def kill(self) -> None:
        """End it, and be done with it."""
        self.terminate()
        self.connection.close()
        self._free()

    def release(self) -> None:
        """Take it back once it has finished its job; it waits for another only within `kept`."""
        self._free()
        if _keeping and self.process.is_alive():
            _idle.setdefault(self.kind, []).append(self)
        else:
            self.kill()

    def _free(self) -> None:
        while self.lent:
            os.close(self.lent.pop())


def _signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"{name}{', maybe for want of memory' if number == signal.SIGKILL else ''}"


def wait_for_any(members: list[PooledProcess], seconds: float) -> None:
    """Wait until one of them has said something or has died, or the seconds are over."""
    wait([end for m in members for end in (m.connection, m.process.sentinel)], seconds)


def start_process(placed: Placement, cores: tuple[int, ...]) -> PooledProcess:
    """Give a process for a replica of a fragment: one that waits, or a new one."""
    kind = (*sorted(wanted_environment(placed).items()), ("cores", ",".join(map(str, cores))))
    while _idle.get(kind):
        member = _idle[kind].pop()
        if member.process.is_alive():
            return member
    return _spawner.submit(_spawn, kind, cores).result()


def assign(member: PooledProcess, job: Any) -> None:
    """Send a process its job; one that cannot be sent is refused, and the process ended."""
    try:
        member.connection.send(job)
    except OSError:
        return  # it died at once, and whoever watches it will see
    except Exception as error:  # whatever pickling raises
        member.kill()
        raise TesseraError(
            f"the environment or algorithm cannot be sent to another process ({error}): define it at the top level "
            "of a module, or use --engine serial without --evaluate-every"
        ) from None


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Keep processes between runs, which saves each next run the seconds that a start takes."""
    global _keeping
    _keeping += 1
    try:
        yield
    finally:
        _keeping -= 1
        if not _keeping:
            close_idle()


def close_idle() -> None:
    """End every process that waits."""
    for members in _idle.values():
        while members:
            members.pop().kill()


atexit.register(close_idle)


def wanted_environment(placed: Placement) -> dict[str, str]:
    """Environment variables of a replica's process: platform and threads, before JAX is imported."""
    flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ.get("XLA_FLAGS", "")).split()
    wanted = {"JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    if placed.platform == "cpu":
        wanted["JAX_PLATFORMS"] = "cpu"
        if placed.devices * placed.model > 1:
            flags.append(f"--xla_force_host_platform_device_count={placed.devices * placed.model}")
        if placed.threads == 1 and "--xla_cpu_multi_thread_eigen=false" not in flags:
            flags.append("--xla_cpu_multi_thread_eigen=false")
        threads = str(placed.threads)
        wanted |= {"NPROC": threads, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
    else:  # several processes share the accelerator, so none may take all of its memory
        wanted["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    return {**wanted, "XLA_FLAGS": " ".join(flags)}


@contextlib.contextmanager
def _importable_main() -> Iterator[None]:
    """Hide the name of a main module that no other process can find, such as a program read from standard input."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    hidden = path is not None and not os.path.exists(path)
    if hidden:
        del main.__file__
    try:
        yield
    finally:
        if hidden:
            main.__file__ = path


def _spawn(kind: tuple[tuple[str, str], ...], cores: tuple[int, ...]) -> PooledProcess:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    wanted = {k: v for k, v in kind if k != "cores"}
    with _environment, _importable_main():
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
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
    return PooledProcess(process, ours, kind)
