"""A Ray cluster of several nodes on this machine, for trials and tests: `tessera cluster up` and `… down`.

Its nodes listen on loopback unless a host is named, and answer only to clients with its token. The token is in a file
that only the user can read.
"""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tessera.engines.ray_backend.loopback import LOOPBACK, LOOPBACK_ONLY
from tessera.errors import TesseraError
from tessera.support.extras import install_hint
from tessera.support.files import private_folder, write_json

UP_SECONDS = 60.0
DOWN_SECONDS = 4.0
HEALTH = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "5",
}
"""A node that does not answer counts as lost after some 10 seconds instead of Ray's minute."""


def folder() -> Path:
    """The folder of the cluster that was started here: TESSERA_CLUSTER, or one in the user's state folder."""
    if "TESSERA_CLUSTER" in os.environ:
        return Path(os.environ["TESSERA_CLUSTER"])
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "tessera" / "cluster"


def current() -> dict[str, Any] | None:
    """The cluster that was started here, if it still runs: its address, the path of its token, its nodes."""
    cluster = _last_started()
    return cluster if cluster is not None and any(_runs(node) for node in cluster["nodes"]) else None


def _last_started() -> dict[str, Any] | None:
    """The cluster that was last started here, whether it runs or not."""
    try:
        return json.loads((folder() / "cluster.json").read_text())
    except (OSError, ValueError):
        return None


def join(cluster: dict[str, Any]) -> str:
    """Set the environment variables by which Ray, once imported, connects to a cluster started here; its address."""
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": cluster["token"]}
    os.environ.pop("RAY_AUTH_TOKEN", None)
    if cluster["address"].startswith(f"{LOOPBACK}:"):
        os.environ |= LOOPBACK_ONLY
    return cluster["address"]


def check_address(address: str | None, engine: str | None) -> None:
    """Refuse the address of a cluster that would not be used."""
    if address is not None and engine != "ray":
        raise TesseraError("--address names a Ray cluster, which only --engine ray uses: add that, or leave it out")


def prepare(address: str | None) -> str | None:
    """The address of the cluster that a run uses, None for one of its own; call it before Ray is imported."""
    cluster = current()
    if address is None:
        address = os.environ.get("RAY_ADDRESS")
    if cluster is not None and address in (None, cluster["address"]):
        return join(cluster)
    if address is None:
        os.environ |= {**LOOPBACK_ONLY, "RAY_AUTH_MODE": "token"}
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    return address


def check_host(host: str, mode: str) -> None:
    """Refuse to listen in public without a token."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise TesseraError(f"--host {host}: give the address of one of this machine's networks, as 10.0.0.5") from None
    if not address.is_loopback and mode != "token":
        raise TesseraError(
            f"--host {host} can be reached from other machines, and RAY_AUTH_MODE={mode} would let anybody run code "
            "there: unset RAY_AUTH_MODE, or listen on 127.0.0.1"
        )


def up(nodes: int, cpus: int, memory: int, host: str = LOOPBACK) -> dict[str, Any]:
    """Start a head and further nodes, and wait until all answer; `cpus` and `memory` (object store) are per node."""
    if nodes < 1 or cpus < 1:
        raise TesseraError(f"--nodes {nodes} --cpus {cpus}: at least one of each is needed")
    check_host(host, os.environ.get("RAY_AUTH_MODE", "token"))
    if importlib.util.find_spec("ray") is None:
        raise TesseraError(f"tessera cluster needs Ray, which is not installed: run {install_hint('ray')}")
    running = current()
    if running is not None:
        raise TesseraError(f"a cluster is up already, at {running['address']}: tessera cluster down ends it")
    home = folder()
    private_folder(home)
    token = home / "token"
    token.unlink(missing_ok=True)
    with os.fdopen(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    cluster: dict[str, Any] = {"address": f"{host}:{_free_port(host)}", "token": str(token), "nodes": []}
    try:
        for _ in range(nodes):
            grow(cluster, cpus, memory)
    except BaseException:
        down()
        raise
    return cluster


def grow(cluster: dict[str, Any], cpus: int, memory: int) -> None:
    """Start one more node, the head if there is none, and wait until it answers."""
    host, _, port = cluster["address"].rpartition(":")
    number = len(cluster["nodes"])
    role = [f"--address={cluster['address']}"] if number else ["--head", f"--port={port}"]
    cluster["nodes"].append(_start(number, role, host, cpus, memory, folder(), Path(cluster["token"])))
    write_json(folder() / "cluster.json", cluster)
    _wait_until_started(folder(), number, cluster["nodes"][-1])


def down() -> int:
    """End every node that was started here; how many were running."""
    cluster = _last_started()
    if cluster is None:
        return 0
    ended = [node for node in reversed(cluster["nodes"]) if end_node(node)]
    for name in ("cluster.json", "token"):
        (folder() / name).unlink(missing_ok=True)
    return len(ended)


def end_node(node: dict[str, Any]) -> bool:
    """End all processes of a node; whether it was running."""
    running = _runs(node)
    members = list(_members(node["pid"]))
    if running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(node["pid"], signal.SIGTERM)
        _wait_until(lambda: not list(_members(node["pid"])), DOWN_SECONDS)
    for pid in {*members, *_members(node["pid"])}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return running


def processes_of(node: dict[str, Any], name: str) -> list[int]:
    """Processes of a node whose command contains a name, such as raylet."""
    pids = []
    for pid in _members(node["pid"]):
        with contextlib.suppress(OSError):
            if name in Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]:
                pids.append(pid)
    return pids


def _start(number: int, role: list[str], host: str, cpus: int, memory: int, home: Path, token: Path) -> dict[str, Any]:
    """Start the processes of one node, in a session of their own."""
    dashboard = number == 0 and all(importlib.util.find_spec(name) for name in ("aiohttp", "opencensus"))
    ray = "tessera.engines.ray_backend.loopback" if host == LOOPBACK else "ray.scripts.scripts"
    command = [
        *(sys.executable, "-m", ray, "start", "--block", "--disable-usage-stats", *role),
        *(f"--node-ip-address={host}", f"--num-cpus={cpus}", f"--object-store-memory={memory}"),
        "--log-style=record",
    ]
    if number == 0:
        command += [f"--include-dashboard={str(dashboard).lower()}", f"--dashboard-host={LOOPBACK}"]
        command += [f"--temp-dir={session_folder()}"]
    variables = {**os.environ, **HEALTH, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    for name in ("RAY_AUTH_TOKEN", "RAY_ADDRESS", *LOOPBACK_ONLY):
        variables.pop(name, None)
    with (home / f"node-{number}.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables, start_new_session=True
        )
    return {"pid": process.pid, "began": _start_ticks(process.pid), "cpus": cpus}


def session_folder() -> Path:
    """A folder for Ray's sockets, whose paths may have no more than 107 characters.

    Ray opens it to everybody, so it lies in one that only the user can enter.
    """
    home = folder() if len(str(folder())) < 36 else Path(f"/tmp/tessera-ray-{os.getuid()}")
    return private_folder(home) / "ray"


def _wait_until_started(home: Path, number: int, node: dict[str, Any]) -> None:
    """Wait until the log of a node says that it runs."""
    log = home / f"node-{number}.log"
    ready = _wait_until(lambda: "Ray runtime started" in log.read_text() or not _runs(node), UP_SECONDS)
    if not ready or not _runs(node):
        last = [line for line in log.read_text().splitlines() if line.strip()][-3:]
        raise TesseraError(f"node {number} did not start within {UP_SECONDS:g} s; it said: {' / '.join(last)}")


def _wait_until(condition: Any, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return bool(condition())


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise TesseraError(f"--host {host}: this machine has no such address ({error.strerror})") from None
        return probe.getsockname()[1]


def _members(session: int) -> Iterator[int]:
    """Living processes of a session."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    yield int(entry)


def _start_ticks(pid: int) -> int:
    """When a process began, in clock ticks: it tells apart two processes with the same id."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def _runs(node: dict[str, Any]) -> bool:
    try:
        return _start_ticks(node["pid"]) == node["began"] and node["pid"] in set(_members(node["pid"]))
    except OSError:
        return False
