"""Run folders as a run writes them."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

CONFIG = {
    "algorithm": {"name": "impala", "learning_rate": 0.003, "unroll": 8},
    "env": "gymnasium:CartPole-v1",
    "policy": "single_learner_coarse",
    "engine": "local",
    "seed": 0,
    "steps": 100_000,
    "system": "impala",
}
ACTORS, LEARNER = "env+act", "store+grad+apply"


def row(update: int, **more: Any) -> dict[str, Any]:
    """A row of metrics."""
    steps = {"update": update, "env_steps": 128 * update, "seconds": 0.5 * update, "steps_per_second": 256.0}
    return {**steps, "train_return_mean": float(update), "learn/loss": 1.0 / update, **more}


def status(state: str = "running", **more: Any) -> dict[str, Any]:
    """A status, as a living run of this machine writes it."""
    replica = {"place": 0, "title": f"{ACTORS}/0", "fragment": ACTORS, "number": 0, "state": "working", "stream": ""}
    learner = {**replica, "place": 1, "title": f"{LEARNER}/0", "fragment": LEARNER, "state": "waiting"}
    return {
        "format": 1,
        "time": time.time(),
        "state": state,
        "why": "",
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "update": 7,
        "updates": 100,
        "env_steps": 896,
        "seconds": 3.5,
        "replicas": [replica, {**replica, "number": 1, "title": f"{ACTORS}/1"}, learner],
        "waited": {ACTORS: 0.1, LEARNER: 0.62},
        "waited_for": {LEARNER: {"experience": 0.6, "params": 0.02}},
        "streams": {"experience": {"bytes_per_second": 1e6, "fill": 0.5, "lag_mean": 1.5, "lag_max": 3, "dropped": 4}},
        **more,
    }


def write_run(folder: Path, rows: int = 10, config: dict[str, Any] | None = None, **live: Any) -> Path:
    """Make a run folder; `live` holds what is written under live/."""
    (folder / "live").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row(k)) + "\n" for k in range(1, rows + 1)))
    for name, value in live.items():
        (folder / "live" / f"{name}.json").write_text(json.dumps(value))
    return folder


DESCENT = [(0, 0, None, None), (0, 1, None, None), (0, 2, None, None),
           (4, 0, 0, 9.0), (4, 1, 1, 8.0), (4, 2, 0, 3.0),
           (8, 0, 2, 10.0), (8, 1, 1, 11.0), (8, 2, 2, 14.0)]  # fmt: skip
"""update, seed, parent, score: seed 2 copies 0, then 0 copies 2."""


def descent_rows() -> list[dict[str, Any]]:
    """Rows of a lineage, of which each copy has a higher learning rate."""
    return [
        {"update": u, "seed": s, "parent": p, "score": x, "tuned": {"learning_rate": 0.01 * (u + s + 1), "clip": 0.2}}
        for u, s, p, x in DESCENT
    ]


def write_lineage(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Replace lineage.jsonl of a population, as a run does."""
    (folder / "draft").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "draft").replace(folder / "lineage.jsonl")


def write_population(folder: Path, rows: list[dict[str, Any]] | None = None) -> Path:
    """A population of three members: seed 1 has the lowest training return, and seed 0 the highest."""
    described = {"tune": {"learning_rate": "log:0.001:1", "clip": "0.1:0.3"}, "every": 4}
    write_run(folder, rows=0, config={"seeds": 3, "population": described})
    for seed in range(3):
        run = write_run(folder / f"seed-{seed}", rows=0, config={"seed": seed, "population": described})
        rewards = {"train_return_mean": 20.0 - (7 * seed) % 10}
        (run / "metrics.jsonl").write_text(json.dumps(row(10, **rewards)) + "\n")
    write_lineage(folder, descent_rows() if rows is None else rows)
    return folder
