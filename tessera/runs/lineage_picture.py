"""The lineage of a population as a picture: who goes on from whom, and with which values of what is tuned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tessera.errors import TesseraError
from tessera.runs import directory
from tessera.runs.curves import AXES, TRAINED, Look, check_picture, picture, smoothed, without_metric
from tessera.runs.lineage import FILE, Row, read_lineage
from tessera.runs.lives import Life, LineageRow, best_member, line_of_descent, lives_of, newest_lives
from tessera.runs.metrics import read_metrics
from tessera.runs.seed_folders import seed_folder
from tessera.runs.seeds import is_number

WIDTH, RETURNS_HEIGHT, PANEL_HEIGHT = 8.0, 2.8, 2.0
"""Inches of a picture, of the panel of returns, and of that of a hyper-parameter."""
THIN, BOLD, OUTLINE = 1.2, 2.4, 4.2
"""Width of a life's line, of one that the best member comes from, and of the dark line beneath it."""
MARK, MANY = 16.0, 500
"""Size of a cross where a life ends, and how many are too many for it."""
COLOURS = "viridis"
FEW_DECADES = 50.0
"""A range of a logarithm below it has numbers between the powers of ten too."""
COPY, UNKNOWN = "0.6", "0.75"
"""Greys: of the line from a parent to its copy, and of a life whose return is not known."""

Point = tuple[float, float]


class LifeLine(NamedTuple):
    """A life in the panel of a hyper-parameter."""

    life: int
    """Its place among all lives."""
    begin: float
    end: float
    value: float


class CopyLine(NamedTuple):
    """From a parent's value to that of its copy."""

    life: int
    """The copy's place among all lives."""
    parent: Point
    copy: Point


@dataclass(frozen=True)
class StepsByUpdate:
    """The steps of a member at its updates, from 0 on."""

    updates: np.ndarray
    values: np.ndarray

    def at(self, update: int) -> float:
        """The steps at an update; between two rows of metrics, and beyond the last, in proportion."""
        if len(self.updates) > 1 and update > self.updates[-1]:
            return float(self.values[-1] * update / self.updates[-1])
        return float(np.interp(update, self.updates, self.values))


@dataclass(frozen=True)
class LineagePicture:
    """What is drawn."""

    title: str
    by: str
    metric: str
    smooth: int
    is_log: dict[str, bool]
    """Tuned hyper-parameter -> whether its range is that of a logarithm."""
    lives: list[Life]
    rows: dict[int, list[Row]]
    """Seed -> its rows of metrics."""
    best: int | None
    """Seed of the best member; None if nothing is known yet."""

    @cached_property
    def descent(self) -> list[int]:
        """The places of the lives that the best member comes from, the oldest first."""
        return [] if self.best is None else line_of_descent(self.lives, self.best)

    @cached_property
    def ends(self) -> list[int]:
        """The update that each life has come to: of those that go on, the newest row of metrics."""
        newest = {seed: max([0, *(int(row["update"]) for row in rows)]) for seed, rows in self.rows.items()}
        return [life.end if life.is_replaced else max(life.end, newest[life.seed]) for life in self.lives]

    @cached_property
    def scores(self) -> list[float | None]:
        """The training return that each life has come to."""
        now = {seed: newest_return(rows) for seed, rows in self.rows.items()}
        return [life.score if life.is_replaced else first_known(now[life.seed], life.score) for life in self.lives]

    @cached_property
    def steps(self) -> dict[int, StepsByUpdate]:
        """Seed -> where its updates are on the horizontal axis."""
        return {seed: steps_by_update(rows, AXES[self.by][0]) for seed, rows in self.rows.items()}

    def x(self, seed: int, update: int) -> float:
        """Where an update of a member is on the horizontal axis."""
        return float(update) if self.by == "updates" else self.steps[seed].at(update)

    def life_lines(self, name: str) -> list[LifeLine]:
        """The lives in the panel of a hyper-parameter."""
        return [
            LifeLine(place, self.x(life.seed, life.begin), self.x(life.seed, end), life.tuned[name])
            for place, (life, end) in enumerate(zip(self.lives, self.ends, strict=True))
            if self._can_show(life, name)
        ]

    def copy_lines(self, name: str) -> list[CopyLine]:
        """The copies in the panel of a hyper-parameter."""
        found = []
        for place, life in enumerate(self.lives):
            parent = None if life.parent is None else self.lives[life.parent]
            if parent is not None and self._can_show(life, name) and self._can_show(parent, name):
                begin = [(self.x(each.seed, life.begin), each.tuned[name]) for each in (parent, life)]
                found.append(CopyLine(place, begin[0], begin[1]))
        return found

    def _can_show(self, life: Life, name: str) -> bool:
        return name in life.tuned and (life.tuned[name] > 0 or not self.is_log[name])

    @cached_property
    def returns(self) -> list[np.ndarray]:
        """The curve of each life, [points, 2]."""
        curves = {seed: self._curve(seed) for seed in self.rows}
        found = []
        for life, end in zip(self.lives, self.ends, strict=True):
            updates, points = curves[life.seed]
            begin, last = np.searchsorted(updates, [life.begin, end], "right")
            found.append(np.stack([points[begin:last, 0], smoothed(points[begin:last, 1], self.smooth)], axis=-1))
        return found

    def _curve(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """The updates of a member at which its return is known, and its points there, [updates, 2]."""
        known = {int(row["update"]): row[self.metric] for row in self.rows[seed] if is_number(row.get(self.metric))}
        points = [(self.x(seed, update), known[update]) for update in sorted(known)]
        return np.array(sorted(known), np.float64), np.array(points, np.float64).reshape(-1, 2)


def newest_return(rows: Sequence[Row]) -> float | None:
    """The newest training return of a member."""
    return next((float(row[TRAINED]) for row in reversed(rows) if is_number(row.get(TRAINED))), None)


def steps_by_update(rows: Sequence[Row], column: str) -> StepsByUpdate:
    """Where the updates of a member are on the horizontal axis."""
    points = {int(row["update"]): float(row[column]) for row in rows if is_number(row.get(column))}
    found = sorted({**points, 0: 0.0}.items())
    updates, values = np.array([point for point in found if point[0] >= 0], np.float64).T
    return StepsByUpdate(updates, values)


def lineage_picture(folder: Path, look: Look) -> LineagePicture:
    """What is drawn of a population's folder; any other is refused."""
    look.check()
    if look.by == "seconds":
        raise TesseraError("--by seconds: with its parent's state a member has its parent's time; use steps or updates")
    config = directory.read_config(folder)
    is_log = tuned_fields(folder, config)
    lives = lives_of(rows_of(folder))
    if not lives:
        raise TesseraError(f"{folder} has no {FILE} yet: it comes with the first update, so train a little longer")
    seeds = sorted(newest_lives(lives))
    rows = {seed: metrics_of(folder, seed) for seed in seeds}
    if not any(rows.values()):
        raise TesseraError(f"the members in {folder} have no metrics yet: train a little longer")
    if look.metric is not None and not any(is_number(row.get(look.metric)) for each in rows.values() for row in each):
        raise without_metric(folder, look.metric, [row for each in rows.values() for row in each])
    scores = {seed: lives[place].score for seed, place in newest_lives(lives).items()}
    trained = {seed: x for seed in seeds if (x := first_known(newest_return(rows[seed]), scores[seed])) is not None}
    best = best_member(seeds, evaluations(folder), trained)
    title = f"{directory.run_name(config)} × {config['policy']} on {config['env']}, a population of {len(seeds)}"
    metric = look.metric or TRAINED
    return LineagePicture(
        f"{title} ({folder.absolute().name})", look.by, metric, look.smooth, is_log, lives, rows, best
    )


def metrics_of(folder: Path, seed: int) -> list[Row]:
    """The rows of metrics of a member; none before its first."""
    run = seed_folder(folder, seed)
    return [] if run is None else [row for row in read_metrics(run) if is_number(row["update"])]


def first_known(*values: float | None) -> float | None:
    """The first that there is."""
    return next((x for x in values if x is not None), None)


def tuned_fields(folder: Path, config: dict[str, Any]) -> dict[str, bool]:
    """Tuned hyper-parameter -> whether its range is that of a logarithm; a folder of anything else is refused."""
    described = config.get("population")
    if described is None:
        raise TesseraError(
            f"{folder} is no population: --lineage draws a run with --population; leave it out for learning curves"
        )
    if "seeds" not in config:
        raise TesseraError(f"{folder} is one member of a population: name the folder around it for its lineage")
    tune = described.get("tune") if isinstance(described, dict) else None
    if not isinstance(tune, dict) or not all(isinstance(text, str) for text in tune.values()):
        raise TesseraError(f"{folder / 'config.json'} is damaged: 'population' does not say what is tuned")
    return {name: text.startswith("log:") for name, text in tune.items()}


def rows_of(folder: Path) -> Iterator[LineageRow]:
    """The rows of a lineage, without values that are no numbers."""
    for row in read_lineage(folder):
        parent, score = row.get("parent"), row.get("score")
        yield LineageRow(
            row["update"],
            row["seed"],
            parent if isinstance(parent, int) else None,
            float(score) if score is not None and is_number(score) else None,
            {name: float(value) for name, value in row["tuned"].items() if is_number(value)},
        )


def evaluations(folder: Path) -> dict[int, float]:
    """Seed -> what it reached in the evaluation at the end; nothing before that."""
    if not (folder / "summary.json").exists():
        return {}
    found = directory.read_summary(folder).get("eval_returns")
    known = found.items() if isinstance(found, dict) else ()
    return {int(seed): float(x) for seed, x in known if is_number(x) and seed.lstrip("-").isdecimal()}


def plot_lineage(folder: Path, out: Path, look: Look | None = None) -> None:
    """Draw the lineage of a population."""
    check_picture(out)
    found = lineage_picture(folder, look or Look())
    with picture(out, WIDTH, RETURNS_HEIGHT + PANEL_HEIGHT * len(found.is_log)) as figure:
        heights = [RETURNS_HEIGHT, *[PANEL_HEIGHT] * len(found.is_log)]
        panels = figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        colours = _Colours(found)
        _draw_returns(panels[0], found, colours)
        for axes, name in zip(panels[1:], found.is_log, strict=True):
            _draw_values(axes, found, name, colours)
        panels[0].set_title(found.title, fontsize="medium")
        panels[-1].locator_params(axis="x", nbins=7)
        panels[-1].set_xlabel(AXES[found.by][1])
        colours.add_bar(figure, panels)


class _Colours:
    """The colour of each life, by the training return that it has come to."""

    def __init__(self, found: LineagePicture) -> None:
        from matplotlib import colormaps
        from matplotlib.colors import LinearSegmentedColormap, Normalize

        known = [score for score in found.scores if score is not None] or [0.0, 1.0]
        low, high = min(known), max(known)
        self._scale = Normalize(low, high if high > low else low + 1.0)
        shades = colormaps[COLOURS](np.linspace(0.0, 0.94, 256))  # brighter ones cannot be seen on white
        self._map = LinearSegmentedColormap.from_list("scores", shades)
        self._scores = found.scores
        self.is_known = any(score is not None for score in found.scores)

    def __getitem__(self, life: int) -> Any:
        score = self._scores[life]
        return UNKNOWN if score is None else self._map(self._scale(score))

    def add_bar(self, figure: Any, panels: Any) -> None:
        """Say what the colours mean."""
        from matplotlib.cm import ScalarMappable

        if self.is_known:
            bar = figure.colorbar(ScalarMappable(self._scale, self._map), ax=list(panels), aspect=40, pad=0.02)
            bar.set_label("training return at a line's end")


def descent_returns(found: LineagePicture) -> list[tuple[int, np.ndarray]]:
    """The returns that the best member comes from: of each life its place and curve, until it is copied."""
    path: list[tuple[int, np.ndarray]] = []
    for life, copy in zip(found.descent, [*found.descent[1:], None], strict=False):
        curve = found.returns[life]
        end = np.inf if copy is None else found.x(found.lives[life].seed, found.lives[copy].begin)
        begun = path[-1][1][-1:] if path else np.zeros((0, 2))
        path.append((life, np.concatenate([begun, curve[curve[:, 0] <= end]])))
    return path


def _draw_returns(axes: Any, found: LineagePicture, colours: _Colours) -> None:
    """The training returns of all members, and in bold those that the best one comes from."""
    curves = [(place, curve) for place, curve in enumerate(found.returns) if len(curve)]
    _lines(axes, [curve for _, curve in curves], [colours[place] for place, _ in curves], THIN)
    _end_marks(axes, [(life, *curve[-1]) for life, curve in curves if found.lives[life].is_replaced], colours)
    bold = descent_returns(found)
    if bold:
        label = f"line of descent of the best member, seed {found.best}"
        _outline(axes, np.concatenate([curve for _, curve in bold]), label)
    for place, curve in bold:
        axes.plot(curve[:, 0], curve[:, 1], color=colours[place], linewidth=BOLD, zorder=4, solid_capstyle="butt")
    if any(life.is_replaced for life in found.lives):
        axes.plot([], [], "x", color="0.4", markersize=4, label="replaced by a copy of a better member")
    axes.set_ylabel("training return" if found.metric == TRAINED else found.metric)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize="small", loc="best")
    axes.grid(alpha=0.3)


def _draw_values(axes: Any, found: LineagePicture, name: str, colours: _Colours) -> None:
    """The values of a hyper-parameter, and which are copied."""
    life_lines = found.life_lines(name)
    copy_lines = [(copy.parent, copy.copy) for copy in found.copy_lines(name)]
    lines = [((each.begin, each.value), (each.end, each.value)) for each in life_lines]
    _lines(axes, copy_lines, COPY, 0.7)
    _lines(axes, lines, [colours[each.life] for each in life_lines], THIN)
    replaced = [each for each in life_lines if found.lives[each.life].is_replaced]
    _end_marks(axes, [(each.life, each.end, each.value) for each in replaced], colours)
    path = descent_path(found, name)
    _outline(axes, np.array([point for _, points in path for point in points]).reshape(-1, 2))
    for life, points in path:
        x, y = zip(*points, strict=True)
        axes.plot(x, y, color=colours[life], linewidth=BOLD, zorder=4, solid_capstyle="butt")
    axes.autoscale_view()
    if found.is_log[name]:
        _logarithmic(axes)
    axes.set_ylabel(name.replace("_", " "))
    axes.grid(alpha=0.3)


def descent_path(found: LineagePicture, name: str) -> list[tuple[int, list[Point]]]:
    """The values that the best member comes from: of each life its place and points, from that of its copy on."""
    shown = {each.life: each for each in found.life_lines(name)}
    copied = dict(pairwise(found.descent))
    begins = {copy.life: copy.parent for copy in found.copy_lines(name)}
    path = []
    for life in found.descent:
        if life in shown:
            here = shown[life]
            end = begins[copied[life]][0] if copied.get(life) in begins else here.end
            points = [(here.begin, here.value), (end, here.value)]
            path.append((life, [begins[life], *points] if life in begins else points))
    return path


def _logarithmic(axes: Any) -> None:
    """Make the vertical axis that of a logarithm, with plain numbers: a formula would need what is turned off."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    plainly = FuncFormatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(plainly)
    few = high / low < FEW_DECADES
    axes.yaxis.set_minor_locator(LogLocator(subs=(2, 3, 5) if few else "auto"))
    axes.yaxis.set_minor_formatter(plainly if few else NullFormatter())


def _outline(axes: Any, points: np.ndarray, label: str | None = None) -> None:
    """A dark line beneath the bold one."""
    axes.plot(
        points[:, 0], points[:, 1], color="black", linewidth=OUTLINE, zorder=3.5, label=label, solid_capstyle="butt"
    )


def _lines(axes: Any, lines: Sequence[Any], colours: Any, width: float) -> None:
    """Many lines: as one, since there may be thousands."""
    from matplotlib.collections import LineCollection

    axes.add_collection(LineCollection(lines, colors=colours, linewidths=width))
    axes.autoscale_view()


def _end_marks(axes: Any, marks: Sequence[tuple[int, float, float]], colours: _Colours) -> None:
    """A cross where a life ends: (its place, x, y)."""
    if marks:
        _, x, y = zip(*marks, strict=True)
        axes.scatter(
            x,
            y,
            c=[colours[life] for life, _, _ in marks],
            marker="x",
            s=MARK if len(marks) < MANY else MARK / 4,
            linewidths=1.0,
            zorder=3,
        )
