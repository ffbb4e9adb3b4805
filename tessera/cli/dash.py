"""`tessera dash`: runs in a browser."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from tessera.cli.flags import check_flags, read_flags
from tessera.cli.more_actors import COMMAND
from tessera.dash.places import ServePlace, address, listen
from tessera.dash.tree import is_run
from tessera.errors import TesseraError
from tessera.support.extras import install_hint
from tessera.support.files import write_text

TOKEN_VARIABLE = "TESSERA_DASH_TOKEN"


@dataclass
class DashOptions:
    """Show runs in a browser: how they do, what they wait for, and their curves. Nothing is written."""

    folder: tyro.conf.Positional[Path] = Path("runs")
    """A folder with runs, or one run."""
    host: str = "127.0.0.1"
    """Address to listen on; one that other machines can reach needs --token."""
    port: int | None = None
    """Port to listen on; default: the first free one from 8642 on."""
    token: str | None = None
    """What a browser must know, of 16 characters or more; also read from TESSERA_DASH_TOKEN, where other users of this
    machine do not see it."""
    export: Path | None = None
    """Instead of serving, write the page of one run as this HTML file, which needs nothing else."""


def dash_command(arguments: list[str]) -> None:
    """Run `tessera dash`."""
    check_flags(arguments, DashOptions)
    options = read_flags(DashOptions, arguments, "tessera dash")
    if not options.folder.is_dir():
        what = "is a file" if options.folder.exists() else "is not there"
        raise TesseraError(f"{options.folder} {what}: name a folder with runs, or train one with --run-dir")
    if options.export is not None:
        export(options.folder, options.export)
        return
    serving = import_server()
    place = ServePlace(options.host, options.port, options.token or os.environ.get(TOKEN_VARIABLE) or None)
    listening = listen(place)
    run = "." if is_run(options.folder) else None
    print(f"{options.folder} is shown at {address(place, listening, run)} (Ctrl-C ends it)", flush=True)
    try:
        serving.serve(options.folder, listening, place, advice=COMMAND)
    except KeyboardInterrupt:
        print()


def export(folder: Path, file: Path) -> None:
    """Write the page of a run as one file."""
    if not is_run(folder):
        raise TesseraError(f"{folder} is no run: --export writes one run, so name its folder")
    if file.suffix != ".html":
        raise TesseraError(f"--export {file}: a page for browsers is written, so name a file that ends in .html")
    from tessera.dash.report import report

    whole = folder.resolve()
    named = (whole.parent, whole.name) if whole.name.isprintable() and whole.name else (whole, ".")
    try:
        write_text(file, report(*named))
    except OSError as error:
        raise TesseraError(f"cannot write {file} ({error.strerror}): choose another place") from error
    print(f"wrote {file}")


def import_server() -> Any:
    """The server; without the packages that it needs, how to install them."""
    try:
        from tessera.dash import serve
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise TesseraError(f"the dashboard needs {error.name}: {install_hint('dash')}") from None
    return serve
