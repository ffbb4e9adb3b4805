"""Items that are mapped by processes of this machine, from the same pool as replicas."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tessera.channels.packing import pack, read_block
from tessera.engines.driver.pool import PooledProcess, assign, kept, start_process, wait_for_any
from tessera.engines.map_reduce.board import Board, Call, Terms, attempt
from tessera.errors import TesseraError
from tessera.graph.plan import Placement
from tessera.support.system import cores

LOOK_SECONDS = 0.5
START_SECONDS = 120.0
"""How long a process may take until it begins with an item, where there is a timeout."""
GOODBYE_SECONDS = 3.0


@dataclass(frozen=True)
class MapJob:
    """All that a process needs to map items."""

    call: Call

    def work(self, connection: Connection) -> None:
        """Map whatever items come, until there are no more."""
        function = self.call.find_there()
        with kept():  # for maps that train, on processes of their own
            while True:
                told = json.loads(connection.recv_bytes())
                if told["do"] == "stop":
                    return
                arrays = read_block(*told["block"])[1] if "block" in told else {}
                connection.send_bytes(pack({"kind": "started"}, {}))
                connection.send_bytes(pack(*attempt(function, told["item"], arrays)))


class Mapper:
    """One process that maps items, and the one that it has."""

    def __init__(self, member: PooledProcess) -> None:
        self.member = member
        self.number: int | None = None
        """The item under way."""
        self._until = 0.0

    def give(self, number: int, board: Board, timeout: float | None) -> None:
        """Let it map an item."""
        plain, arrays = board.item(number)
        self.number = number
        self._until = time.monotonic() + (timeout or 0.0) + START_SECONDS
        self.member.send({"do": "map", "item": plain}, arrays)

    def listen(self, board: Board, timeout: float | None) -> bool:
        """Hear what it has to say; whether it can go on."""
        alive = self.member.alive()  # before listening, so that the last words of one that has died are heard
        for meta, arrays in self.member.received():
            if meta["kind"] == "started":
                self._until = time.monotonic() + (timeout or 0.0)
            elif meta["kind"] in ("done", "raised"):
                assert self.number is not None
                number, self.number = self.number, None
                board.tell(number, meta, arrays)
            elif meta["kind"] == "refused":  # it did not find the function
                raise TesseraError(meta["text"])
        if alive and self.number is not None and timeout is not None and time.monotonic() > self._until:
            self.member.terminate()
            self._lose(board, f"did not finish within {timeout:g} s")
            return False
        if not alive and self.number is not None:
            self._lose(board, self._exit_reason())
        return alive

    def _exit_reason(self) -> str:
        how, itself = self.member.exit_reason()
        return f"ended with {how}" if itself else f"was {how}"

    def _lose(self, board: Board, how: str) -> None:
        assert self.number is not None
        number, self.number = self.number, None
        board.lose(number, how)

    def leave(self) -> None:
        """End it if it is at work, else let it wait for another job."""
        if self.number is None and self._stopped():
            self.member.release()
        else:
            self.member.kill()

    def _stopped(self) -> bool:
        self.member.send({"do": "stop"})
        end = time.monotonic() + GOODBYE_SECONDS
        while self.member.alive() and time.monotonic() < end:
            if any(meta["kind"] == "finished" for meta, _ in self.member.received()):
                return True
            wait_for_any([self.member], LOOK_SECONDS)
        return False


def map_on_processes(board: Board, call: Call, terms: Terms) -> None:
    """Work through a board with processes; one that dies or hangs is replaced by another."""
    placed = Placement(operators=("map",), groups=((0,),), platform=terms.platform)
    most = min(terms.workers or cores(), len(board))
    mappers: list[Mapper] = []
    try:
        while not board.over:
            while any(m.number is None for m in mappers) or len(mappers) < most:
                number = board.take()
                if number is None:
                    break
                mapper = next((m for m in mappers if m.number is None), None)
                if mapper is None:
                    mapper = Mapper(start_process(placed, ()))
                    mappers.append(mapper)
                    assign(mapper.member, MapJob(call))
                mapper.give(number, board, terms.timeout)
            wait_for_any([m.member for m in mappers if m.number is not None], LOOK_SECONDS)
            for mapper in list(mappers):
                if not mapper.listen(board, terms.timeout):
                    mappers.remove(mapper)
                    mapper.member.kill()
    finally:
        for mapper in mappers:
            mapper.leave()
