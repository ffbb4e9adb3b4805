"""Where the dashboard listens, and what it refuses to do there."""

from __future__ import annotations

import errno
import ipaddress
import secrets
import socket
from dataclasses import dataclass
from urllib.parse import urlencode

from tessera.errors import TesseraError

PORT = 8642
HIGHEST_PORT = 65535
TRIED = 20
"""Ports that are tried from PORT on, where none is named."""
SHORTEST_TOKEN = 16
"""Characters of a token, so that nobody guesses it."""
ANYWHERE = ("0.0.0.0", "::")


@dataclass(frozen=True)
class ServePlace:
    """Where a server listens."""

    host: str = "127.0.0.1"
    port: int | None = None
    token: str | None = None


def check_place(place: ServePlace, flag: str = "--port") -> None:
    """Refuse ports that there are not, to listen where strangers could read, and tokens that can be guessed.

    `flag` names the port in messages.
    """
    if place.port is not None and not 0 <= place.port <= HIGHEST_PORT:
        raise TesseraError(f"{flag} {place.port}: ports are from 1 to {HIGHEST_PORT}; 0 takes any that is free")
    if place.token is not None and len(place.token) < SHORTEST_TOKEN:
        raise TesseraError(
            f"--token has {len(place.token)} characters, and short ones can be guessed: give at least "
            f"{SHORTEST_TOKEN}, such as {secrets.token_urlsafe(16)}"
        )
    if place.token is None and not is_loopback(place.host):
        raise TesseraError(
            f"--host {place.host} can be reached from other machines, and whoever does could read every run: add "
            f"--token {secrets.token_urlsafe(16)}, or leave --host out and forward the port by ssh"
        )


def listen(place: ServePlace, flag: str = "--port") -> socket.socket:
    """A socket that listens there: on the port that was named, or on the first free one."""
    check_place(place, flag)
    ports = range(PORT, PORT + TRIED) if place.port is None else [place.port]
    for port in ports:
        try:
            return bound(place.host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port == ports[-1]:
                raise TesseraError(unusable(place, port, error, flag)) from None
        except UnicodeError:
            raise TesseraError(f"--host {place.host} is no name of a machine; 127.0.0.1 is this one") from None
    raise AssertionError("unreachable")


def bound(host: str, port: int) -> socket.socket:
    """A listening socket."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(128)
    except BaseException:
        found.close()
        raise
    return found


def unusable(place: ServePlace, port: int, error: OSError, flag: str) -> str:
    """Why a port cannot be listened on, and what to do."""
    if error.errno == errno.EADDRINUSE and place.port is None:
        return f"ports {PORT} to {port} are all taken: name a free one with {flag}"
    if error.errno == errno.EADDRINUSE:
        return f"{flag} {port} is taken: name another, or leave it out for the next free one from {PORT} on"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{flag} {port} is not for this user: name one of 1024 or more"
    return f"--host {place.host}: nothing can listen there ({error.strerror}); 127.0.0.1 is this machine"


def address(place: ServePlace, listening: socket.socket, run: str | None = None) -> str:
    """The address to open in a browser; with a run, at its page."""
    host = socket.gethostname() if place.host in ANYWHERE else place.host
    name = f"[{host}]" if ":" in host else host
    query = "?" + urlencode({"token": place.token}) if place.token else ""
    shown = "#" + urlencode({"run": run}) if run else ""
    return f"http://{name}:{listening.getsockname()[1]}/{query}{shown}"


def is_loopback(host: str) -> bool:
    """Whether an address is one that only this machine can reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
