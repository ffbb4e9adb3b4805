"""The server: it sleeps until it is asked something, and ends at once."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from tessera.dash.answers import Answers
from tessera.dash.app import make_app
from tessera.dash.places import ServePlace


class Server(uvicorn.Server):
    """Sleeps until it is asked something, and ends at once: uvicorn's own looks ten times a second whether to."""

    def __init__(self, config: uvicorn.Config, closing: asyncio.Event) -> None:
        super().__init__(config)
        self._closing = closing
        self._loop: asyncio.AbstractEventLoop | None = None

    async def main_loop(self) -> None:
        """Wait for the end."""
        self._loop = asyncio.get_running_loop()
        if not self.should_exit:
            await self._closing.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End, as a signal asks for."""
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._closing.set)


def serve(
    root: Path,
    listening: socket.socket,
    place: ServePlace,
    expected: str | None = None,
    lifeline: int | None = None,
    advice: Sequence[str] = (),
) -> None:
    """Serve a folder until a signal ends it, or until the other end of the pipe `lifeline` is closed; see `Answers`."""

    async def main() -> None:
        closing = asyncio.Event()
        app = make_app(Answers(root, expected, advice), place.host, place.token, closing)
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=1,
        )
        server = Server(config, closing)
        if lifeline is not None:
            asyncio.get_running_loop().add_reader(lifeline, on_end(lifeline, closing.set))
        await server.serve([listening])

    asyncio.run(main())


def on_end(lifeline: int, end: Callable[[], None]) -> Callable[[], None]:
    """What is done when something can be read from a pipe: if that is its end, `end`."""

    def look() -> None:
        if not os.read(lifeline, 64):
            asyncio.get_running_loop().remove_reader(lifeline)
            end()

    return look
