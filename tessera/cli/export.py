"""`tessera export`: the greedy act function of a run, as a file that needs no Tessera."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tessera.cli.flags import check_flags, read_flags
from tessera.cli.options import TrustOptions


@dataclass
class ExportOptions(TrustOptions):
    """Write the greedy act function of a run: (observation, memory) -> (action, memory)."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run directory, or an agent that was saved."""
    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """File to write: NAME.stablehlo (jax.export) or NAME.onnx (needs the extra onnx)."""
    checkpoint: str = "newest"
    """newest, best, or the number of the update whose checkpoint to take."""
    seed: int | None = None
    """Which of the seeds in a directory of several."""


def export_command(arguments: list[str]) -> None:
    """Run `tessera export`."""
    check_flags(arguments, ExportOptions)
    options = read_flags(ExportOptions, arguments, "tessera export")
    from tessera.agent.agent import load

    agent = load(options.run, checkpoint=options.checkpoint, seed=options.seed, trust=options.trusted())
    written = agent.export(options.file)
    print(f"wrote {written.path}: {', '.join(written.inputs)} -> {', '.join(written.outputs)}")
