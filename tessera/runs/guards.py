"""Guards: the first number that is not finite stops a run, by name."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tessera.engines.replica.reports import Reports
from tessera.errors import RunFailed
from tessera.runs.checkpoint import flatten, paths


def first_broken(reports: Reports, params: Any) -> tuple[int, str] | None:
    """Find the first update (counted from 0 in `reports`) that broke, and what is not finite there first.

    Within an update by gradient; within a gradient the loss comes before other metrics, and those before tensors.
    """
    metrics = sorted(reports.metrics, key=lambda k: k != "loss")
    guard, names = reports.guard, paths(params)
    columns = [(f"metric {k}", reports.metrics[k], reports.broken_at[k]) for k in metrics]
    columns += [(f"gradient of {n}", guard.gradients[:, k], guard.broken_at[:, k]) for k, n in enumerate(names)]
    last = np.full(len(guard.params), np.iinfo(np.int32).max)  # params are looked at when the update is over
    columns += [(f"params {n}", guard.params[:, k], last) for k, n in enumerate(names)]
    broken = []
    for order, (name, values, at) in enumerate(columns):
        if not np.isfinite(values).all():
            update = int(np.argmin(np.isfinite(values)))
            broken.append((update, int(at[update]), order, name))
    return (min(broken)[0], min(broken)[3]) if broken else None


def stop_if_broken(reports: Reports, engine: Any, updates: int, folder: Path | None) -> None:
    """Raise RunFailed if something is not finite, after dumping all slots; `updates` were made before these."""
    found = first_broken(reports, engine.params_like)
    if found is None:
        return
    update, name = updates + found[0] + 1, found[1]
    where = (folder or Path(tempfile.mkdtemp(prefix="tessera-"))) / f"dump-{update}"
    where.mkdir(parents=True, exist_ok=True)
    np.savez(where / "slots.npz", allow_pickle=False, **flatten(engine.snapshot()))
    columns = {**reports.metrics, "gradient_norm": np.sqrt(reports.guard.gradients.sum(-1))}
    rows = {k: [repr(float(x)) for x in np.asarray(v)[: found[0] + 1][-20:]] for k, v in columns.items()}
    (where / "report.json").write_text(json.dumps({"update": update, "tensor": name, "last": rows}, indent=2))
    raise RunFailed(
        f"{name} is not finite at update {update}: the run was stopped and its slots dumped to {where}; "
        "try a smaller learning rate, --max-gradient-norm, or --precision f32"
    )
