"""A process beside a run that is given params now and then, and never blocks training: the driver's end and its own."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any, ClassVar, Generic, TypeVar

import jax

from tessera.algorithms.contract import Algorithm, View
from tessera.channels.packing import from_leaves, leaves_of, pack, read_block, unpack, write_block
from tessera.engines.driver.pool import PooledProcess, assign_packed, needs_main, pack_job, start_process
from tessera.graph.plan import Placement

PLACE = Placement(operators=("env", "act"), groups=((0,),))
MAX_DEATHS = 3
"""Deaths in a row, without a result in between, after which no process is started."""
PROGRESS_SECONDS = 1.0
"""The least time between two messages that say that episodes are being played."""

Found = TypeVar("Found")


class SideProcess(Generic[Found]):
    """The driver's end: sends params when the process is idle, and collects what comes of them.

    The process starts when it is first asked for. One that dies, or is silent for too long, is replaced.
    """

    title: ClassVar[str]
    """What the process is called in notes."""
    niceness: ClassVar[int] = 10
    """How far training goes first, from the process's first import on."""

    def __init__(
        self,
        job: Any,
        note: Callable[[str], None] = print,
        timeout: float = 60.0,
        start_timeout: float = 300.0,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`timeout` is how many seconds it may be silent as it plays, `start_timeout` until it first plays; `variables`
        are environment variables that it needs besides those of a replica."""
        self._job, self._variables = pack_job(job), variables or {}
        self._note, self._timeout, self._start_timeout = note, timeout, start_timeout
        self._worker: PooledProcess | None = None
        self._block: int | None = None
        """File descriptor of the params that the process has not read yet."""
        self._busy = False
        self._withdrawn = False
        """What is under way is of params that no longer count."""
        self._played = False
        """Whether the process has played a step: until then it starts and compiles."""
        self._heard = 0.0
        """When the process last had something to say."""
        self._deaths = 0
        self._error = ""
        """The error that the process reported before it died."""
        self._offered: tuple[int, View] | None = None
        """The update and the params that were sent last."""
        self._arrived: Found | None = None
        """What was found since the last call of `take`."""

    def found(self, update: int, view: View, meta: dict[str, Any], arrays: dict[str, Any]) -> Found:
        """What the process says of the params of an update."""
        raise NotImplementedError

    @property
    def pid(self) -> int | None:
        """Process id, if it runs."""
        return None if self._worker is None else self._worker.process.pid

    @property
    def given_up(self) -> bool:
        """Whether the process died so often that none is started again."""
        return self._deaths >= MAX_DEATHS

    @property
    def idle(self) -> bool:
        """Whether there is a process, and it has nothing to do."""
        return self._worker is not None and not self._busy

    def ready(self) -> bool:
        """Whether the process is idle; where there is none, it is started first."""
        self._watch()
        if self._worker is None and not self.given_up:
            self._start_process()
        return self.idle

    def offer(self, update: int, view: View) -> None:
        """Send the params of an update to the idle process."""
        assert self._worker is not None
        self._free()
        view = jax.device_get(view)
        self._offered = update, view
        self._block, size = write_block({}, leaves_of({"view": view}))
        message = {"update": update, "block": (os.getpid(), self._block, size)}
        try:
            self._worker.connection.send_bytes(json.dumps(message).encode())
            self._busy, self._heard = True, time.monotonic()
        except OSError:
            return  # the process died: `ready` starts another

    def take(self) -> Found | None:
        """What has come since the last call."""
        self._watch()
        arrived, self._arrived = self._arrived, None
        return arrived

    def withdraw(self) -> None:
        """Forget what is under way: the run has gone back, and other updates will have these numbers."""
        self._withdrawn, self._arrived = self._busy, None

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None
        self._busy = self._withdrawn = False
        self._free()

    def _start_process(self) -> None:
        self._worker = start_process(PLACE, (), main=needs_main(self._job), variables=self._variables)
        with contextlib.suppress(ProcessLookupError):  # it has died, which is noticed later
            os.setpriority(os.PRIO_PROCESS, self._worker.pid, self.niceness)
        self._played, self._error, self._heard = False, "", time.monotonic()
        assign_packed(self._worker, self._job)

    def _watch(self) -> None:
        """Take messages; end a process that has died or is silent."""
        self._poll()
        if self._worker is None:
            return
        if not self._worker.process.is_alive():
            self._poll()
            self._handle_death(self._error or f"exit code {self._worker.process.exitcode}")
        elif self._busy and time.monotonic() - self._heard > self._limit():
            self._handle_death(f"no sign of life for {self._limit():g} s")

    def _limit(self) -> float:
        return self._timeout if self._played else self._start_timeout

    def _handle_death(self, reason: str) -> None:
        """Note why the process died, and whether another is started."""
        self._deaths += 1
        self._note(f"the {self.title} died ({reason}): {'not started again' if self.given_up else 'started again'}")
        self.close()

    def _poll(self) -> None:
        try:
            while self._worker is not None and self._worker.connection.poll(0):
                meta, arrays = unpack(self._worker.connection.recv_bytes())
                self._heard = time.monotonic()
                self._handle_message(meta, arrays)
        except (EOFError, OSError):
            return

    def _handle_message(self, meta: dict[str, Any], arrays: dict[str, Any]) -> None:
        match meta["kind"]:
            case "taken":
                self._free()
            case "playing":
                self._played = True
            case "found":
                if not self._withdrawn and self._offered is not None:
                    self._arrived = self.found(*self._offered, meta, arrays)
                self._busy = self._withdrawn = False
                self._deaths = 0
            case _:  # an error: the process ends
                self._error = meta.get("text", "")

    def _free(self) -> None:
        """Release the params that were sent."""
        if self._block is not None:
            os.close(self._block)
            self._block = None


def prepare_beside(x64: bool) -> None:
    """Make this process one beside a run: numbers are as wide as there, and what is compiled is kept."""
    from tessera.support.cache import use_compilation_cache

    jax.config.update("jax_enable_x64", x64)
    use_compilation_cache()
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a restarted process compiles nothing


def offers(connection: Connection, algorithm: Algorithm) -> Iterator[tuple[int, View]]:
    """The updates and params that the driver sends, until it closes the connection."""
    from tessera.program.initial import initial_state
    from tessera.program.training_program import published

    like = jax.eval_shape(lambda key: published(initial_state(algorithm, key, 1)), jax.random.key(0))
    while True:
        offer = json.loads(connection.recv_bytes())
        _, arrays = read_block(*offer["block"])
        connection.send_bytes(pack({"kind": "taken"}, {}))
        yield offer["update"], from_leaves(arrays, {"view": like})["view"]


def answer(connection: Connection, meta: dict[str, Any], arrays: dict[str, Any] | None = None) -> None:
    """Tell the driver what came of the params that it sent last."""
    connection.send_bytes(pack({**meta, "kind": "found"}, arrays or {}))


def progress_messages(connection: Connection) -> Callable[[], None]:
    """A function that says, now and then, that episodes are being played."""
    last = 0.0

    def progress() -> None:
        nonlocal last
        if time.monotonic() - last > PROGRESS_SECONDS:
            last = time.monotonic()
            connection.send_bytes(pack({"kind": "playing"}, {}))

    return progress
