"""The web application: every path of the dashboard, and what answers it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tessera.dash.answers import STATIC, VIDEO_TYPES, Answers
from tessera.dash.guard import AccessGuard, refusal
from tessera.dash.tree import RequestRefused, check_part
from tessera.dash.values import to_json
from tessera.dash.watching import News, RunsWatch, RunWatch

STATIC_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
CHUNK = 1 << 18
POLL, POLL_RUNS = 0.5, 2.0
"""Seconds between two looks at the files of a run, and at those of all runs, while a browser is connected."""
HEARTBEAT = 10.0
"""Seconds after which a connection without news gets a sign of life."""


def make_app(answers: Answers, host: str, token: str | None, closing: asyncio.Event) -> AccessGuard:
    """The application; event streams end once `closing` is set."""

    def asked(request: Request) -> str:
        return request.query_params.get("name", ".")

    def runs(_: Request) -> Response:
        return as_json(answers.runs())

    def run(request: Request) -> Response:
        return as_json(answers.run(asked(request)))

    def compare(request: Request) -> Response:
        return as_json(answers.compare(request.query_params.getlist("names")))

    def curves(request: Request) -> Response:
        query = request.query_params
        points = query.get("points", "1000")
        if not points.isascii() or not points.isdigit() or len(points) > 6:
            raise RequestRefused(400, "points is a number such as 1000")
        merge = query.get("merge", "0") not in ("", "0")
        names = query.getlist("run"), query.getlist("metric")
        return as_json(answers.curves(*names, query.get("by", ""), int(points), merge))

    def spans(request: Request) -> Response:
        return as_json(answers.spans(asked(request)))

    def trace(request: Request) -> Response:
        file = answers.trace(asked(request))
        answer = file_response(request, None if file is None else answers.tree.open(asked(request), file))
        answer.headers["Content-Disposition"] = 'attachment; filename="trace.json"'
        return answer

    def video(request: Request) -> Response:
        file = request.query_params.get("file", "")
        check_part(file)
        kind = VIDEO_TYPES.get(Path(file).suffix)
        return file_response(request, answers.tree.open(asked(request), "videos", file) if kind else None, kind)

    async def events(request: Request) -> Response:
        watch = await run_in_threadpool(watch_of, request)
        interval = POLL_RUNS if isinstance(watch, RunsWatch) else POLL
        return StreamingResponse(stream(watch, interval, closing), media_type="text/event-stream")

    def watch_of(request: Request) -> RunWatch | RunsWatch:
        if "name" not in request.query_params:
            return RunsWatch(answers)
        return RunWatch(answers, asked(request), request.query_params.getlist("metric"))

    def static(request: Request) -> Response:
        return static_file(request.path_params["name"])

    def page(_: Request) -> Response:
        return static_file("index.html")

    paths = {
        "/": page,
        "/static/{name}": static,
        "/api/runs": runs,
        "/api/run": run,
        "/api/compare": compare,
        "/api/curves": curves,
        "/api/spans": spans,
        "/api/trace": trace,
        "/api/events": events,
        "/video": video,
    }
    app = Starlette(
        routes=[Route(path, endpoint) for path, endpoint in paths.items()],
        exception_handlers={HTTPException: on_http_error, RequestRefused: on_refusal, Exception: on_error},
    )
    return AccessGuard(app, host, token)


def as_json(value: Any) -> Response:
    """An answer as JSON."""
    return Response(to_json(value), media_type="application/json")


def static_file(name: str) -> Response:
    """A file of the page."""
    kind = STATIC_TYPES.get(Path(name).suffix)
    path = STATIC / name
    if kind is None or path.parent != STATIC or not path.is_file():
        raise RequestRefused(404, "the dashboard has no such page")
    return Response(path.read_bytes(), media_type=kind)


def file_response(request: Request, descriptor: int | None, kind: str | None = None) -> Response:
    """The content of a file, or the part of it that a player asks for."""
    if descriptor is None:
        raise RequestRefused(404, "there is no such run or file")
    file: BinaryIO = os.fdopen(descriptor, "rb", buffering=0)
    size = os.fstat(descriptor).st_size
    begin, end = 0, size
    asked = request.headers.get("range", "")
    if asked:
        begin, end = wanted_range(asked, size)
        if begin >= end:
            file.close()
            return Response(status_code=416, headers={"Content-Range": f"bytes */{size}"})
    headers = {"Accept-Ranges": "bytes", "Content-Length": str(end - begin)}
    if asked:
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
    return StreamingResponse(
        parts(file, begin, end), 206 if asked else 200, headers, kind or "application/octet-stream"
    )


def wanted_range(asked: str, size: int) -> tuple[int, int]:
    """Begin and end of the one range of bytes that is asked for; nothing if that is not understood."""
    unit, _, span = asked.partition("=")
    first, _, last = span.strip().partition("-")
    texts = [text for text in (first, last) if text]
    if unit != "bytes" or not texts or not all(t.isascii() and t.isdigit() and len(t) < 16 for t in texts):
        return 0, 0
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size


def parts(file: BinaryIO, begin: int, end: int) -> Iterator[bytes]:
    """The bytes of a file between two places; it is closed then."""
    with file:
        file.seek(begin)
        while begin < end and (data := file.read(min(CHUNK, end - begin))):
            yield data
            begin += len(data)


async def stream(watch: RunWatch | RunsWatch, interval: float, closing: asyncio.Event) -> AsyncIterator[str]:
    """Events as they happen, until the browser is gone or the server ends."""
    said = time.monotonic()
    yield ": hello\n\n"
    while True:
        is_last = closing.is_set()
        for news in await run_in_threadpool(watch.poll):
            said = time.monotonic()
            yield event(news)
        if is_last:
            return
        if time.monotonic() - said >= HEARTBEAT:
            said = time.monotonic()
            yield ": still here\n\n"
        try:
            await asyncio.wait_for(closing.wait(), interval)
        except TimeoutError:
            continue


def event(news: News) -> str:
    """An event in the form that browsers read."""
    return f"event: {news.event}\ndata: {to_json(news.data)}\n\n"


async def on_refusal(_: Request, error: Exception) -> Response:
    """The answer to a request that is refused."""
    assert isinstance(error, RequestRefused)
    return refusal(error.status, str(error))


async def on_http_error(_: Request, error: Exception) -> Response:
    """The answer to a path that there is not."""
    assert isinstance(error, HTTPException)
    return refusal(error.status_code, "the dashboard has no such page")


async def on_error(_: Request, error: Exception) -> Response:
    """The answer where reading failed."""
    return refusal(500, f"this could not be read ({type(error).__name__})")
