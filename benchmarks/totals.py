"""What crossed in runs, and how old it was: for the exercises of docs/systems.

    python benchmarks/totals.py RUN [RUN …]

For each run folder a line with its steps, updates, lag and returns, and one for each stream that its policy cuts: how
many messages arrived, how many bytes were sent for each environment step, and how many messages were dropped for their
age. Lag is the mean over all rows of metrics.jsonl, and the largest.
"""

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

COUNTS = ("messages", "bytes", "dropped")


def totals(rows: Iterable[dict[str, Any]]) -> dict[str, Counter[str]]:
    """Stream -> messages, bytes and dropped messages of the whole run: rows count since the row before."""
    found: dict[str, Counter[str]] = {}
    for row in rows:
        for name, value in row.items():
            kind, _, rest = name.partition("/")
            stream, _, count = rest.partition("/")
            if kind == "stream" and count in COUNTS:
                found.setdefault(stream, Counter())[count] += value or 0
    return found


def lag(rows: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Mean over the rows that have one, and the largest."""
    known = [row for row in rows if row.get("lag/mean") is not None]
    if not known:
        return math.nan, math.nan
    return sum(row["lag/mean"] for row in known) / len(known), max(row["lag/max"] for row in known)


def lines(run: Path) -> list[str]:
    """What is printed of a run."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((run / "summary.json").read_text())
    steps, (mean, most) = summary["env_steps"], lag(rows)
    returns = f"training return {summary['train_return_mean']:.1f}, greedy {summary['eval_return_mean']:.1f}"
    found = [f"{run}: {steps:,} steps, {summary['updates']:,} updates, lag {mean:.2f} (at most {most:g}), {returns}"]
    for stream, count in sorted(totals(rows).items()):
        each = f"{count['bytes'] / steps:.4g} bytes a step"
        found.append(f"  {stream}: {count['messages']:,} messages, {each}, {count['dropped']:,} dropped")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run folders")
    for run in parser.parse_args().runs:
        print("\n".join(lines(run)))


if __name__ == "__main__":
    main()
