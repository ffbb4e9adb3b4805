"""Writes docs/scores.md and its plots from the results in docs/scores; called by zoo.py."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tessera.evaluation.intervals import bootstrap_interval, interquartile_mean, mean

HEAD = """# Scores

How well each algorithm learns each task, over seeds. Written by `python benchmarks/zoo.py`, from the files in
[scores/](scores); each row is one command, which trains all of its seeds.

- **Return**: the interquartile mean over seeds, with its 95 % percentile bootstrap interval over seeds; then the median
  and the worst seed. A seed counts by its *training* return (mean of the last 100 episodes of training, with whatever
  exploration the algorithm has) or by its *greedy* return (100 episodes after training, without exploration).
- **Beside it**: figures of others on the same task, with their own settings and on their own hardware.
- **Minutes**: for all seeds together. Where several rows shared a machine, the minutes include the waiting.
- Settings are Tessera's defaults unless the command has further flags. `--preset` is explained in
  [command_line.md](command_line.md).
"""


class Row(Protocol):
    """What this module needs of a row of zoo.py."""

    name: str
    algorithm: str
    env: str
    score: str
    beside: list[dict[str, str]]
    why_not: str


def number(x: float) -> str:
    """A return, with three or four digits."""
    return f"{x:.1f}" if abs(x) < 1000 else f"{x:,.0f}"


def return_cells(scores: Sequence[float]) -> list[str]:
    """Interquartile mean with its interval, median, worst."""
    x = np.asarray(scores, np.float64)
    low, high = bootstrap_interval(x, interquartile_mean)
    middle = f"{number(float(interquartile_mean(x)))} ({number(low)} to {number(high)})"
    return [middle, number(float(np.median(x))), number(float(x.min()))]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def cells(row: Row, result: dict[str, Any]) -> list[str]:
    """A row that has been run."""
    others = "; ".join(f"{other['return']} ({other['who']}; {other['source']})" for other in row.beside) or "-"
    return [
        f"`{row.env}`",
        f"{result['steps']:,}",
        f"{len(result['seeds'])}, {row.score}",
        *return_cells(result[row.score]),
        others,
        f"{result['minutes']:g}, {result['hardware']}",
    ]


def plot(algorithm: str, done: Sequence[tuple[Row, dict[str, Any]]], out: Path) -> None:
    """The curves of one algorithm, one panel for each task."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(4, len(done))
    lines = math.ceil(len(done) / columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(3.2 * columns, 2.6 * lines), layout="constrained", squeeze=False
    )
    for panel in axes.flat[len(done) :]:
        panel.axis("off")
    for panel, (row, result) in zip(axes.flat, done, strict=False):
        steps, middle, low, high = zip(*result["curve"], strict=True)
        panel.plot(steps, middle)
        panel.fill_between(steps, low, high, alpha=0.25, linewidth=0)
        panel.set_title(f"{row.env.partition('?')[0]}, {len(result['seeds'])} seeds", fontsize=8)
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.3)
    figure.supxlabel("environment steps", fontsize=8)
    figure.supylabel(f"{algorithm}: training return", fontsize=8)
    figure.savefig(out, dpi=110)
    plt.close(figure)


def peer_lines(folder: Path) -> list[str]:
    """The table of programs written by hand."""
    rows = []
    for path in sorted(folder.glob("*.json")):
        case = json.loads(path.read_text())
        sides = []
        for side in ("hand", "tessera"):
            if side not in case:
                sides += ["not run", "-"]
                continue
            x = np.asarray(case[side])
            low, high = bootstrap_interval(x, mean)
            sides += [f"{number(x.mean())} ({number(low)} to {number(high)})", number(x.min())]
        name, _, _ = case["case"].partition("-")
        rows.append([name, case["env"], f"{case['steps']:,.0f}", str(len(case["seeds"])), *sides, case["hardware"]])
    head = ["algorithm", "task", "steps", "seeds", "by hand", "worst", "Tessera", "worst", "hardware"]
    return table(head, rows)


def write_page(rows: Iterable[Row], results: Path) -> None:
    """Write docs/scores.md and the plots."""
    rows = list(rows)
    found = {row.name: json.loads(path.read_text()) for row in rows if (path := results / f"{row.name}.json").exists()}
    lines = [HEAD]
    head = ["task", "steps", "seeds, score", "return", "median", "worst", "beside it", "minutes"]
    for algorithm in dict.fromkeys(row.algorithm for row in rows):
        done = [(row, found[row.name]) for row in rows if row.algorithm == algorithm and row.name in found]
        if not done:
            continue
        lines += [f"## {algorithm}", "", *table(head, (cells(*both) for both in done)), ""]
        plot(algorithm, done, results / f"{algorithm}.png")
        lines += [f"![training returns of {algorithm}](scores/{algorithm}.png)", ""]
        lines += ["Commands:", "", *(f"    {result['command']}" for _, result in done), ""]
    lines += [
        "## Beside programs written by hand",
        "",
        "The same algorithm with the same settings, written by hand for this one case",
        "(`benchmarks/handwritten_*.py`), and in Tessera. Training returns, mean over seeds with its 95 % interval:",
        "`python benchmarks/peers.py --cases NAME`.",
        "PPO on boards has the settings of PureJaxRL's authors for MinAtar Breakout, not Tessera's.",
        "",
        *peer_lines(results / "peers"),
        "",
    ]
    missing = [row for row in rows if row.name not in found]
    if missing:
        lines += ["## Not run yet", ""]
        lines += [f"- {row.algorithm} on `{row.env}`{f': {row.why_not}' if row.why_not else ''}" for row in missing]
        lines += [""]
    versions = sorted({json.dumps(result["versions"], sort_keys=True) for result in found.values()})
    lines += ["## Versions", "", *(f"- {', '.join(f'{k} {v}' for k, v in json.loads(v).items())}" for v in versions)]
    page = results.parent / "scores.md"
    page.write_text("\n".join(lines) + "\n")
    print(f"wrote {page}: {len(found)} of {len(rows)} rows")
