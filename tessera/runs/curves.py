"""Learning curves of runs, drawn to a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tessera.errors import TesseraError, unknown_name
from tessera.runs import directory
from tessera.runs.joined_curves import Line, identity, joined
from tessera.runs.metrics import read_metrics
from tessera.runs.seed_folders import run_folders
from tessera.runs.seeds import is_number
from tessera.support.files import replaced_file

TRAINED, EVALUATED = "train_return_mean", "eval/return_mean"
AXES = {
    "steps": ("env_steps", "environment steps"),
    "seconds": ("seconds", "seconds"),
    "updates": ("update", "updates"),
}
"""What curves may be drawn over -> its column, and how it is written."""
MOST_POINTS = 1000
"""Points of a curve of several runs together."""
ENDINGS = (".png", ".svg", ".pdf")
MOST_INSIDE = 10
"""Curves that are named inside the axes, each in a colour of its own; the names of more stand beside them."""
NAMES_IN_A_COLUMN = 24
WIDTH, HEIGHT = 7.0, 4.2
"""Inches of a picture, without names that stand beside it."""
LETTER = 0.066
"""Inches of a letter of a name, about."""


@dataclass(frozen=True)
class Look:
    """What is drawn, and how."""

    metric: str | None = None
    """Column of metrics.jsonl; None: returns."""
    by: str = "steps"
    """What it is drawn over: steps, seconds or updates."""
    smooth: int = 1
    """Neighbouring rows whose mean is drawn."""
    merge: bool = False
    """Whether runs that differ in their seed only are drawn as one curve."""

    def check(self) -> None:
        """Refuse what makes no sense."""
        if self.by not in AXES:
            raise unknown_name("axis", self.by, AXES)
        if self.smooth < 1:
            raise TesseraError(f"--smooth {self.smooth}: it is a number of rows, at least 1")


class Drawn(NamedTuple):
    """One curve: of a run, or of several that differ in their seed."""

    label: str
    line: Line
    seeds: int
    env: str
    opponent: str = ""
    """Who was played against; nobody in training."""


def plot(folders: Sequence[Path], out: Path, labels: Sequence[str] | None = None, look: Look | None = None) -> None:
    """Draw curves of runs; they are labelled by what they are, or by `labels`."""
    look = look or Look()
    look.check()
    check_picture(out)
    curves = curves_of(folders, look)
    if labels is not None:
        curves = [curve._replace(label=label) for curve, label in zip(curves, labels, strict=True)]
    _draw(curves, out, look)


def check_picture(out: Path) -> None:
    """Refuse a picture that cannot be written."""
    if out.suffix.lower() not in ENDINGS:
        raise TesseraError(f"cannot write {out}: a picture is one of {', '.join(ENDINGS)}: let the name end with it")
    if not out.absolute().parent.is_dir():
        raise TesseraError(f"cannot write {out}: there is no folder {out.absolute().parent}: choose another place")


def curves_of(folders: Sequence[Path], look: Look) -> list[Drawn]:
    """The curves of run folders, each of one seed or of several."""
    found: dict[str, list[tuple[Path, dict[str, Any], list[Path]]]] = {}
    for number, folder in enumerate(folders):
        config = directory.read_config(folder)
        key = identity({**config, "seeds": None}) if look.merge else str(number)
        found.setdefault(key, []).append((folder, config, run_folders(folder)))
    return [_drawn(group, look) for group in found.values()]


def _drawn(group: Sequence[tuple[Path, dict[str, Any], list[Path]]], look: Look) -> Drawn:
    """The curve of runs that differ in their seed at the most."""
    folder, config, _ = group[0]
    runs = [run for _, _, members in group for run in members]
    lines, opponents = [], set()
    for run in runs:
        line, against = _line(run, config.get("opponent"), look)
        lines.append(line)
        opponents.add(against)
    if not any(len(line.x) for line in lines):
        raise TesseraError(f"{folder} has no finished episode to draw: train longer")
    several = len(runs) > 1 or "seeds" in config
    which = f"{len(runs)} seeds" if several else f"seed {config['seed']}"
    label = f"{directory.run_name(config)} × {config['policy']}, {which} ({folder.name})"
    return Drawn(label, joined(lines, MOST_POINTS), len(runs), str(config["env"]), str(max(opponents)))


def _line(run: Path, opponent: Any, look: Look) -> tuple[Line, str]:
    """A run's curve, and who was played against.

    Where a run has played evaluations against an opponent, its returns are of these: in self-play nobody wins on
    average.
    """
    rows, column = read_metrics(run), AXES[look.by][0]
    evaluated = opponent is not None and any(is_number(row.get(EVALUATED)) for row in rows)
    metric = look.metric or (EVALUATED if evaluated else TRAINED)
    points = [(row[column], row[metric]) for row in rows if is_number(row.get(metric)) and is_number(row.get(column))]
    if look.metric is not None and not points:
        raise without_metric(run, look.metric, rows)
    x, y = np.array(points, np.float64).reshape(-1, 2).T
    order = np.argsort(x, kind="stable")
    y = smoothed(y[order], look.smooth)
    return Line(x[order], y, y, y), str(opponent) if metric == EVALUATED and evaluated else ""


def without_metric(run: Path, metric: str, rows: Sequence[dict[str, Any]]) -> TesseraError:
    """The error for a run that lacks a metric."""
    known = {name for row in rows for name, value in row.items() if is_number(value)} - {c for c, _ in AXES.values()}
    if not known:
        return TesseraError(f"{run} has no metrics yet: train longer")
    return TesseraError(f"{run}: {unknown_name('metric', metric, known)}")


def smoothed(values: np.ndarray, rows: int) -> np.ndarray:
    """Means of so many neighbouring values, half before and half after; fewer at the ends."""
    if rows <= 1 or len(values) < 2:
        return values
    sums = np.concatenate([[0.0], np.cumsum(values)])
    here = np.arange(len(values))
    begin, end = np.maximum(here - (rows - 1) // 2, 0), np.minimum(here + rows // 2 + 1, len(values))
    return (sums[end] - sums[begin]) / (end - begin)


@contextmanager
def picture(out: Path, width: float, height: float) -> Iterator[Any]:
    """A figure of so many inches to draw on, which is written once it is whole."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # the same curves give the same file, words stay words, and a dollar in a name begins no formula
    with matplotlib.rc_context({"svg.hashsalt": "tessera", "svg.fonttype": "none", "text.parse_math": False}):
        figure = plt.figure(figsize=(width, height), layout="constrained")
        try:
            yield figure
            with replaced_file(out) as draft:
                figure.savefig(draft, dpi=150, metadata={"Date": None} if out.suffix.lower() == ".svg" else None)
        except OSError as error:
            raise TesseraError(f"cannot write {out} ({error.strerror}): choose another place") from error
        finally:
            plt.close(figure)


def _draw(curves: Sequence[Drawn], out: Path, look: Look) -> None:
    columns = -(-len(curves) // NAMES_IN_A_COLUMN) if len(curves) > MOST_INSIDE else 0
    names = columns * (0.6 + LETTER * max(len(curve.label) for curve in curves))
    with picture(out, WIDTH + names, HEIGHT) as figure:
        import matplotlib.pyplot as plt

        axes = figure.subplots()
        axes.set_prop_cycle(plt.cycler(linestyle=["-", "--", ":", "-."]) * plt.rcParams["axes.prop_cycle"])
        for curve in curves:
            (drawn,) = axes.plot(curve.line.x, curve.line.y, label=curve.label)
            if curve.seeds > 1:
                axes.fill_between(
                    curve.line.x, curve.line.low, curve.line.high, color=drawn.get_color(), alpha=0.2, linewidth=0
                )
        axes.set(xlabel=AXES[look.by][1], ylabel=_words(curves, look), title=", ".join(sorted({c.env for c in curves})))
        axes.grid(alpha=0.3)
        if columns:
            figure.legend(loc="outside right upper", fontsize="small", ncols=columns)
        else:
            axes.legend(fontsize="small")


def _words(curves: Sequence[Drawn], look: Look) -> str:
    """What the curves are of."""
    against = sorted({curve.opponent for curve in curves if curve.opponent})
    returns = f"mean return against {', '.join(against)}" if against else "mean return of the last 100 episodes"
    words = [look.metric or returns]
    if any(curve.seeds > 1 for curve in curves):
        words.append("interquartile mean over seeds, 95 % band")
    if look.smooth > 1:
        words.append(f"means of {look.smooth} rows")
    return "\n".join([words[0], *(f"({note})" for note in words[1:])])
