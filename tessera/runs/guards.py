"""Guards: a run stops at the first number that is not finite, and names it; absurdly large ones are said once."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tessera.engines.replica.reports import Reports
from tessera.errors import RunFailed
from tessera.runs.array_files import write_npz
from tessera.runs.checkpoint import flatten, paths

FAR_BEYOND = 1e6
"""By how much a loss may exceed the square of returns, which is the size of the loss of a value that is all wrong."""
RETURNS_UNKNOWN = 1e6
"""The return that is assumed before the first episode has ended."""


def first_broken(reports: Reports, params: Any) -> tuple[int, str] | None:
    """Find the first update in `reports` with a number that is not finite, counted from 0, and name that number.

    The earliest gradient of the update counts; within a gradient the loss, then other metrics, then tensors.
    """
    metrics = sorted(reports.metrics, key=lambda k: k != "loss")
    guard = reports.guard
    names = paths(params) if len(guard.params) else []  # a server that died may have made updates it never reported
    columns = [(f"metric {k}", reports.metrics[k], reports.broken_at[k]) for k in metrics]
    columns += [(f"gradient of {n}", guard.gradients[:, k], guard.broken_at[:, k]) for k, n in enumerate(names)]
    last = np.full(len(guard.params), np.iinfo(np.int32).max)  # params are checked after the last gradient
    columns += [(f"params {n}", guard.params[:, k], last) for k, n in enumerate(names)]
    broken = []
    for order, (name, values, gradient) in enumerate(columns):
        if not np.isfinite(values).all():
            update = int(np.argmin(np.isfinite(values)))
            broken.append((update, int(gradient[update]), order, name))
    return (min(broken)[0], min(broken)[3]) if broken else None


def stop_if_broken(reports: Reports, engine: Any, updates: int, folder: Path | None) -> None:
    """Dump all slots and raise RunFailed if a number is not finite; `updates` were made before `reports`."""
    guard = reports.guard
    if all(np.isfinite(x).all() for x in (*reports.metrics.values(), guard.gradients, guard.params)):
        return
    broken = first_broken(reports, engine.params_like)
    if broken is None:
        return
    index, name = broken
    update = updates + index + 1
    columns = {**reports.metrics, "gradient_norm": np.sqrt(reports.guard.gradients.sum(-1))}
    rows = {k: [repr(float(x)) for x in np.asarray(v)[: index + 1][-20:]] for k, v in columns.items()}
    with engine.open_snapshot() as snapshot:
        try:
            dump = _dump(folder, flatten(snapshot), {"update": update, "tensor": name, "last": rows})
            where = f"and its slots dumped to {dump}"
        except OSError as error:
            where = f"but its slots could not be dumped ({error.strerror})"
    raise RunFailed(
        f"{name} is not finite at update {update}: the run was stopped {where}; "
        "try a smaller learning rate, --max-gradient-norm, or --precision f32"
    )


def _dump(folder: Path | None, snapshot: dict[str, Any], report: dict[str, Any]) -> Path:
    """Write all slots and a report to the run's folder, or to a temporary one: where they are."""
    dump = (folder or Path(tempfile.mkdtemp(prefix="tessera-"))) / f"dump-{report['update']}"
    dump.mkdir(parents=True, exist_ok=True)
    try:
        write_npz(dump / "slots.npz", snapshot)
        (dump / "report.json").write_text(json.dumps(report, indent=2))
    except OSError:
        shutil.rmtree(dump, ignore_errors=True)  # half of it is of no use, and takes the last room
        raise
    return dump


class AbsurdNumbers:
    """Finds the first loss or gradient norm of a run that returns cannot explain, and is silent from then on."""

    def __init__(self) -> None:
        self._found = False

    def first_in(self, reports: Reports, updates: int, mean_return: float) -> str | None:
        """What to say of it, if it is in `reports`; `updates` were made before them."""
        absurd = None if self._found else absurd_number(reports, updates, mean_return)
        self._found = self._found or absurd is not None
        return absurd


def absurd_number(reports: Reports, updates: int, mean_return: float) -> str | None:
    """What to say of the first loss or gradient norm that returns cannot explain; None if all are ordinary.

    `updates` were made before `reports`. Losses of values are squares of returns at the most, whatever their unit, so
    the limit needs no history: it holds for the first update, and after a resume.
    """
    scale = RETURNS_UNKNOWN if math.isnan(mean_return) else max(1.0, abs(mean_return))
    columns = {f"metric {name}": np.asarray(x) for name, x in reports.metrics.items() if "loss" in name}
    if len(reports.guard.gradients):
        columns["the gradient norm"] = np.sqrt(reports.guard.gradients.sum(-1))
    for name, values in columns.items():
        beyond = np.abs(values) > FAR_BEYOND * scale**2
        if beyond.any():
            row = int(np.argmax(beyond))
            return (
                f"{name} is {values[row]:.1e} at update {updates + row + 1}, far beyond what returns of {scale:.3g} "
                "explain, so learning has probably diverged: try a smaller --learning-rate or --max-gradient-norm"
            )
    return None
