"""A folder of runs, what the dashboard answers about it, and the dashboard as a process."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tessera.dash.answers import Answers


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder for runs, beside a file that is nobody's business."""
    (tmp_path / "secret.json").write_text('{"secret": 1}')
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def answers(runs: Path) -> Answers:
    """What the dashboard answers about it."""
    return Answers(runs)


@pytest.fixture
def until() -> Callable[..., Any]:
    """Waits for something to be there, for a while."""

    def wait(look: Callable[[], Any], seconds: float = 30.0) -> Any:
        end = time.monotonic() + seconds
        while not (found := look()):
            assert time.monotonic() < end, "it did not come"
            time.sleep(0.02)
        return found

    return wait


class Dashboard:
    """`tessera dash` as a process, and what it answers."""

    def __init__(self, *arguments: Any) -> None:
        command = [sys.executable, "-m", "tessera", "dash", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        self.address = next((word for word in self.said.split() if word.startswith("http")), "")

    def connect(self) -> http.client.HTTPConnection:
        """A connection to it."""
        return http.client.HTTPConnection("127.0.0.1", urlsplit(self.address).port, timeout=30)

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content of an answer."""
        connection = self.connect()
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        connection.close()
        return found

    def json(self, path: str) -> Any:
        """What an answer holds."""
        return json.loads(self.ask(path)[2])

    def events(self, path: str) -> Iterator[tuple[str, Any]]:
        """Events as they come."""
        connection = self.connect()
        connection.request("GET", path)
        kind = ""
        for line in connection.getresponse():
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                yield kind, json.loads(value)
        connection.close()

    def stop(self, number: int = signal.SIGINT) -> int:
        """End it as Ctrl-C does: its exit code."""
        self.process.send_signal(number)
        return self.process.wait(30)


@pytest.fixture
def dashboard() -> Iterator[Callable[..., Dashboard]]:
    """Starts dashboards, which end with the test."""
    started: list[Dashboard] = []

    def start(*arguments: Any) -> Dashboard:
        started.append(Dashboard(*arguments))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()
