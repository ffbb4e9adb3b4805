"""How well does each algorithm learn each task? Fills docs/scores.md, row by row, over seeds.

    python benchmarks/zoo.py --list                              # all rows, and which have been run
    python benchmarks/zoo.py                                     # run what is missing here, then write the page
    python benchmarks/zoo.py --rows ppo-breakout dqn-cartpole    # these rows, again if they have been run
    python benchmarks/zoo.py --page                              # only write the page

Rows are in zoo.toml. Each is one `tessera train … --seeds N`; its result is a file in docs/scores, so rows can be run
on several days and machines. A row that is stopped goes on where it was: its run folder is runs/zoo/ROW. Rows for a GPU
are left out on a machine without one, unless they are named. Programs written by hand are run by peers.py.
"""

import argparse
import json
import platform
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from scores_page import write_page

from tessera.support.machine import cores

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "scores"
RUNS = ROOT / "runs" / "zoo"
CURVE_POINTS = 120


@dataclass(frozen=True)
class Row:
    """One line of docs/scores.md."""

    name: str
    algorithm: str
    env: str
    steps: float
    seeds: int
    first_seed: int = 100
    flags: str = ""
    """Further flags of `tessera train`."""
    score: str = "training"
    """Which return is compared with other programs: training (of the last 100 episodes) or greedy."""
    gpu: bool = False
    """Whether it takes too long without a GPU."""
    beside: list[dict[str, str]] = field(default_factory=list)
    """Figures of others: `who`, `return` and `source` of each."""
    why_not: str = ""
    """Why it has not been run."""

    @property
    def arguments(self) -> list[str]:
        """The arguments of `tessera`."""
        seeds = ["--seed", str(self.first_seed), "--seeds", str(self.seeds)]
        return ["train", self.algorithm, self.env, *shlex.split(self.flags), "--steps", f"{self.steps:.0f}", *seeds]


def read_rows() -> dict[str, Row]:
    """All rows, by name."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    return {name: Row(name=name, **table) for name, table in tables.items()}


def hardware() -> str:
    """What this machine computes with."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        return device.device_kind
    return f"{len(jax.devices())} CPU device, {platform.machine()}, {cores()} cores"


def versions() -> dict[str, str]:
    """Versions of what results may depend on."""
    found = {"python": platform.python_version()}
    for package in ("jax", "gymnax", "gymnasium", "mujoco", "ale-py"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def run_row(row: Row, results: Path) -> dict[str, Any]:
    """Train all seeds of a row, or go on with them, and write its result."""
    folder, begun = RUNS / row.name, time.monotonic()
    more = ["--run-dir", str(folder), "--resume", "--checkpoint-every", "60"]
    subprocess.run([sys.executable, "-m", "tessera", *row.arguments, *more], check=True)
    result = {
        "row": row.name,
        "command": shlex.join(["tessera", *row.arguments]),
        "algorithm": row.algorithm,
        "env": row.env,
        **read_folder(folder),
        "minutes": round((time.monotonic() - begun) / 60, 1),
        "hardware": hardware(),
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d"),
    }
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{row.name}.json").write_text(json.dumps(result, indent=1) + "\n")
    shutil.rmtree(folder)
    return result


def read_folder(folder: Path) -> dict[str, Any]:
    """Returns of all seeds of a run, and the curve of their interquartile mean."""
    summaries = [json.loads(path.read_text()) for path in sorted(folder.glob("seed-*/summary.json"))]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    keys = ("env_steps", "train_return_iqm", "train_return_iqm_low", "train_return_iqm_high")
    points = [[round(row[key], 3) for key in keys] for row in rows if row["train_return_iqm"] is not None]
    thin = max(1, -(-len(points) // CURVE_POINTS))
    return {
        "steps": summaries[0]["env_steps"],
        "seeds": [summary["seed"] for summary in summaries],
        "training": [summary["train_return_mean"] for summary in summaries],
        "greedy": [summary["eval_return_mean"] for summary in summaries],
        "curve": points[::thin],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", help="rows to run, even if they have been")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--list", action="store_true", help="show all rows")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    rows = read_rows()
    if unknown := [name for name in options.rows or () if name not in rows]:
        parser.error(f"no row {unknown[0]!r}: see --list")
    done = {name for name in rows if (options.results / f"{name}.json").exists()}
    if options.list:
        for row in rows.values():
            print(f"{'run' if row.name in done else '-':4s} {row.name:22s} {shlex.join(['tessera', *row.arguments])}")
        return
    has_gpu = jax.default_backend() == "gpu"
    missing = [name for name, row in rows.items() if name not in done and (has_gpu or not row.gpu)]
    for name in () if options.page else options.rows or missing:
        result = run_row(rows[name], options.results)
        shown = sorted(result[rows[name].score])
        print(f"{name}: {rows[name].score} returns {shown} in {result['minutes']} minutes", flush=True)
    if options.results == RESULTS:
        write_page(rows.values(), RESULTS)


if __name__ == "__main__":
    main()
