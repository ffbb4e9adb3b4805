"""The dashboard beside a run: serves a socket that it inherits until the run, at the other end of a pipe, is gone."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from tessera.dash.places import ServePlace
from tessera.dash.serve import serve


def main() -> None:
    """Serve ROOT, and RUN in it which may come later, on the socket of a descriptor; standard input is the pipe.

    What follows is a command that gives advice.
    """
    root, run, descriptor, *advice = sys.argv[1:]
    serve(Path(root), socket.socket(fileno=int(descriptor)), ServePlace(), run or None, sys.stdin.fileno(), advice)


if __name__ == "__main__":
    main()
