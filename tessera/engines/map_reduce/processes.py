"""Maps items on processes of this machine, from the same pool as replicas."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tessera.channels.packing import pack, read_block
from tessera.engines.driver.pool import PooledProcess, assign, keep_processes, start_process, wait_for_any
from tessera.engines.map_reduce.base import Call, ItemQueue, MapOptions, map_item
from tessera.errors import TesseraError
from tessera.graph.plan import Placement
from tessera.support.machine import cores

LOOK_SECONDS = 0.5
START_SECONDS = 120.0
"""How long a process may take to begin with an item, where there is a timeout."""
GOODBYE_SECONDS = 3.0


@dataclass(frozen=True)
class MapJob:
    """The job of a process that maps items."""

    call: Call

    def work(self, connection: Connection) -> None:
        """Map each item that comes, until the driver says stop."""
        function = self.call.import_in_worker()
        with keep_processes():  # for maps that train on processes of their own
            while True:
                command = json.loads(connection.recv_bytes())
                if command["do"] == "stop":
                    return
                arrays = read_block(*command["block"])[1] if "block" in command else {}
                connection.send_bytes(pack({"kind": "started"}, {}))
                connection.send_bytes(pack(*map_item(function, command["item"], arrays)))


class MapWorker:
    """A process that maps items, as the driver sees it."""

    def __init__(self, process: PooledProcess) -> None:
        self.process = process
        self.number: int | None = None
        """The item in progress."""
        self._deadline = 0.0

    def assign(self, number: int, queue: ItemQueue, timeout: float | None) -> None:
        """Have the process map an item."""
        plain, arrays = queue.item(number)
        self.number = number
        self._deadline = time.monotonic() + (timeout or 0.0) + START_SECONDS
        self.process.send({"do": "map", "item": plain}, arrays)

    def receive(self, queue: ItemQueue, timeout: float | None) -> bool:
        """Handle the messages of the process; whether it can go on."""
        alive = self.process.alive()  # before its messages, so that those of a process that has died are all handled
        for meta, arrays in self.process.received():
            if meta["kind"] == "started":
                self._deadline = time.monotonic() + (timeout or 0.0)
            elif meta["kind"] in ("done", "raised"):
                assert self.number is not None
                number, self.number = self.number, None
                queue.record_outcome(number, meta, arrays)
            elif meta["kind"] == "refused":  # it could not import the function
                raise TesseraError(meta["text"])
        if alive and self.number is not None and timeout is not None and time.monotonic() > self._deadline:
            self.process.terminate()
            self._lose_item(queue, f"did not finish within {timeout:g} s")
            return False
        if not alive and self.number is not None:
            self._lose_item(queue, self.process.last_words())
        return alive

    def _lose_item(self, queue: ItemQueue, how: str) -> None:
        assert self.number is not None
        number, self.number = self.number, None
        queue.record_loss(number, how)

    def close(self) -> None:
        """End the process if it is busy; otherwise return it to the pool."""
        if self.number is None and self._stop():
            self.process.release()
        else:
            self.process.kill()

    def _stop(self) -> bool:
        """Ask the process to finish its job; whether it did in time."""
        self.process.send({"do": "stop"})
        end = time.monotonic() + GOODBYE_SECONDS
        while self.process.alive() and time.monotonic() < end:
            if any(meta["kind"] == "finished" for meta, _ in self.process.received()):
                return True
            wait_for_any([self.process], LOOK_SECONDS)
        return False


def map_on_processes(queue: ItemQueue, call: Call, options: MapOptions) -> None:
    """Map items on processes; one that dies or hangs is replaced."""
    placed = Placement(operators=("map",), groups=((0,),), platform=options.platform)
    limit = min(options.workers or cores(), len(queue))
    workers: list[MapWorker] = []
    try:
        while not queue.done:
            while any(w.number is None for w in workers) or len(workers) < limit:
                number = queue.take()
                if number is None:
                    break
                worker = next((w for w in workers if w.number is None), None)
                if worker is None:
                    worker = MapWorker(start_process(placed, ()))
                    workers.append(worker)
                    assign(worker.process, MapJob(call))
                worker.assign(number, queue, options.timeout)
            wait_for_any([w.process for w in workers if w.number is not None], LOOK_SECONDS)
            for worker in list(workers):
                if not worker.receive(queue, options.timeout):
                    workers.remove(worker)
                    worker.process.kill()
    finally:
        for worker in workers:
            worker.close()
