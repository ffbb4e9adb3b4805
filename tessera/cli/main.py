"""The command line: finds the command, and turns errors into one sentence and an exit code."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from tessera.errors import PACKAGE, EnvironmentFailed, TesseraError, unknown_name

COMMANDS = {
    "train": "tessera.cli.train:train_command",
    "compare": "tessera.cli.compare:compare_command",
    "eval": "tessera.cli.evaluate:evaluate_command",
    "match": "tessera.cli.match:match_command",
    "play": "tessera.cli.play:play_command",
    "export": "tessera.cli.export:export_command",
    "video": "tessera.cli.video:video_command",
    "plot": "tessera.cli.plot:plot_command",
    "dash": "tessera.cli.dash:dash_command",
    "plan": "tessera.cli.plan:plan_command",
    "profile": "tessera.cli.profile:profile_command",
    "simulate": "tessera.cli.simulate:simulate_command",
    "check": "tessera.cli.check:check_command",
    "pairs": "tessera.cli.pairs:pairs_command",
    "systems": "tessera.cli.lists:systems_command",
    "algorithms": "tessera.cli.lists:algorithms_command",
    "policies": "tessera.cli.lists:policies_command",
    "doctor": "tessera.cli.doctor:doctor_command",
    "cluster": "tessera.cli.cluster:cluster_command",
}
"""Name -> the function that takes its arguments, imported when the command runs."""

FORMAT_WARNING = warnings.formatwarning
"""How Python shows a warning."""
DISK_FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)
"""What a full or broken disk says."""

USAGE = """usage: tessera COMMAND …

  train SYSTEM ENV [flags]      train a system or algorithm; flags: `tessera train ppo --help`
  compare SYSTEM ENV --policies a,b,c [flags]
                                train under several policies; one table
  eval RUN…                     play greedy episodes with runs' params: means with intervals
  match RUN RUN…                let runs of one game play each other: points and Elo with intervals
  play RUN                      play a game against a run in the terminal
  export RUN FILE               write a run's greedy act function as FILE.stablehlo or FILE.onnx
  video RUN -o out.mp4          write greedy episodes of a run as a video (.mp4, .gif, .svg)
  plot RUN… -o out.png          draw learning curves
  dash [FOLDER | RUN]           show runs in a browser, also while they train
  plan SYSTEM ENV [flags]       show what would run where
  profile SYSTEM ENV [flags]    measure what its parts cost on this machine, for predictions
  simulate SYSTEM ENV [flags]   how fast that would be, on this machine or a cluster, without running it
  check ENV                     play an environment of yours and say what is wrong with it
  pairs                         which algorithm runs under which policy
  systems | algorithms | policies
                                what there is
  doctor                        what this machine offers
  cluster up | down             start or end a Ray cluster of several nodes on this machine, for --engine ray"""


def main(argv: list[str] | None = None) -> None:
    """Run a command; exit 2 with one sentence for a user's mistake, 1 for a run that failed."""
    arguments = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that is not text is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    warnings.formatwarning = _format_warning
    try:
        _dispatch(arguments)
        sys.stdout.flush()
    except TesseraError as error:
        if isinstance(error, EnvironmentFailed):
            print(error.trace(), file=sys.stderr)
        print(f"tessera: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:
        _drop_output()
        raise SystemExit(0) from None
    except OSError as error:
        if error.errno not in DISK_FAILURES:
            raise
        what = f"{error.filename} cannot be written" if error.filename else "a file, or the output, cannot be written"
        print(f"tessera: {what} ({error.strerror}): make room, or write elsewhere", file=sys.stderr)
        _drop_output()
        raise SystemExit(1) from None


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: Any = None
) -> str:
    """A warning of ours as one line; others as Python shows them."""
    if PACKAGE in Path(filename).parents:
        return f"tessera: {message}\n"
    return FORMAT_WARNING(message, category, filename, lineno, line)


def _drop_output() -> None:
    """Let what is still to be printed go nowhere, so that it fails no more when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return
    if arguments[0] == "--version":
        from tessera import __version__

        print(__version__)
        return
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        raise unknown_name("command", name, COMMANDS)
    module, _, function = COMMANDS[name].partition(":")
    getattr(importlib.import_module(module), function)(rest)


if __name__ == "__main__":
    main()
