"""A dashboard beside a run: it ends with the run, and the run goes on without it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from recorded_runs import write_run

from tessera.dash.beside import dashboard_beside

RUN = """
import sys
from pathlib import Path
from tessera.dash.beside import dashboard_beside

with dashboard_beside(Path(sys.argv[1]), None, lambda text: print(text, flush=True)):
    sys.stdin.readline()
print("the run is over", flush=True)
"""


def ask(address: str) -> dict:
    """What the dashboard says of the run; nothing if nobody answers."""
    base, _, name = address.partition("#run=")
    try:
        with urllib.request.urlopen(f"{base}api/run?name={name}", timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError:
        raise
    except OSError:
        return {}


@pytest.fixture
def beside(runs, until):
    """A process with a dashboard beside it, the address of its run, and the process of the dashboard."""
    started = []

    def start(name="new"):
        command = [sys.executable, "-c", RUN, str(runs / name)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        address = process.stdout.readline().removeprefix("dashboard: ").strip()
        return process, address, until(lambda: dashboard_of(runs))

    yield start
    for process in started:
        process.kill()
        process.communicate()


def dashboard_of(runs: Path) -> int | None:
    """The process of the dashboard that shows a folder; a process that has just begun has no name yet."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0") if folder.name.isdecimal() else []
            if b"tessera.dash" in words and os.fsencode(runs) in words:
                return int(folder.name)
    return None


def is_gone(process: int) -> bool:
    """Whether a process has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_it_shows_a_run_that_comes_later_and_ends_with_it(runs, beside, until):
    process, address, dashboard = beside()
    assert address.endswith("#run=new")
    assert until(lambda: ask(address))["header"]["state"] == "starting"
    write_run(runs / "new")
    assert ask(address)["header"]["update"] == 10
    assert os.getpriority(os.PRIO_PROCESS, dashboard) == 10
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "the run is over\n"
    assert is_gone(dashboard)
    assert process.wait(30) == 0


def test_it_ends_when_its_run_is_killed(beside, until):
    process, address, dashboard = beside()
    until(lambda: ask(address))
    process.kill()
    process.wait(30)
    until(lambda: is_gone(dashboard))


def test_a_run_goes_on_when_its_dashboard_is_killed(beside, until):
    process, address, dashboard = beside()
    until(lambda: ask(address))
    os.kill(dashboard, signal.SIGKILL)
    assert "the dashboard has ended" in process.stdout.readline()
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "the run is over\n"


def test_ctrl_c_is_the_runs_alone(beside, until):
    process, address, dashboard = beside()
    until(lambda: ask(address))
    assert os.getsid(dashboard) != os.getsid(process.pid)


def test_a_run_goes_on_without_a_dashboard_that_cannot_start(runs, monkeypatch):
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with dashboard_beside(runs / "a", taken.getsockname()[1], said.append):
            said.append("training")
        monkeypatch.setattr("tessera.dash.beside.importlib.util.find_spec", lambda name: None)
        with dashboard_beside(runs / "a", None, said.append):
            said.append("training")
    assert said[0].startswith("no dashboard: --dash-port")
    assert "it needs starlette and uvicorn" in said[2]
    assert said[1::2] == ["training", "training"]


@pytest.mark.slow
def test_training_with_a_dashboard_is_shown_while_it_goes_on(runs, until):
    command = [sys.executable, "-m", "tessera", "train", "impala", "CartPole-v1", "--dash"]
    command += ["--steps", "30000000", "--run-dir", str(runs / "new"), "--eval-episodes", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().removeprefix("dashboard: ").strip()
        header = until(lambda: (h := ask(address).get("header")) and h["update"] and h, seconds=120)
        assert header["algorithm"] == "impala"
        until(lambda: ask(address)["header"]["state"] == "running")
        dashboard = until(lambda: dashboard_of(runs))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert is_gone(dashboard)
