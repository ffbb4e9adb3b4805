"""Where each fragment and each cut stream of a plan lies in a picture: plain data, which every drawing starts from.

Fragments lie in a line, in the order in which data flows. A stream between neighbours crosses the gap between them; any
other runs around the fragments: peers' and forward streams on one side, streams that go back on the other. Coordinates
are *along* the line and *across* it; the line lies from left to right or, for narrow screens, from top to bottom.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tessera.errors import TesseraError
from tessera.graph.operators import OPERATORS
from tessera.graph.plan import Plan

MARGIN = 16
FACE = 12
"""From the side of a fragment to the nearest stream that leaves there."""
PORT = 18
"""Between two streams that leave a fragment on the same side, towards the same end."""
MOST_CHANNELS = 64
DOTS = 240
"""Replicas that are drawn one by one; the rest is a number."""

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Orientation:
    """Distances of a picture that lies, or stands."""

    tall: bool
    gap: float
    """Between neighbours, if no label needs more."""
    column: float
    """Between two streams of one gap."""
    first: float
    """From the fragments to the nearest stream around them."""
    lane: float
    """Between two of these."""
    loop: float
    """Half of the narrowest stream among peers."""
    label: tuple[float, float]
    """The least width and the height of a label."""


LYING = Orientation(tall=False, gap=200, column=50, first=36, lane=50, loop=90, label=(168, 42))
STANDING = Orientation(tall=True, gap=90, column=112, first=22, lane=116, loop=22, label=(100, 60))


@dataclass
class FragmentBox:
    """A fragment: its place along the line, and what leaves it at the sides."""

    operators: tuple[str, ...]
    replicas: int
    place: str
    begin: float = 0.0
    length: float = 0.0
    ports: dict[tuple[int, int], float] = field(default_factory=dict)
    """(index of a stream, 0 or 1 for its end) -> where along the line it leaves."""

    @property
    def title(self) -> str:
        """As in the plan."""
        return "+".join(self.operators)

    @property
    def middle(self) -> float:
        """Of its place along the line."""
        return self.begin + self.length / 2


@dataclass(frozen=True)
class Arrow:
    """A cut stream between two boxes, by their position in the line."""

    stream: str
    source: int
    target: int
    mode: str
    detail: str

    @property
    def low(self) -> int:
        """The nearer end."""
        return min(self.source, self.target)

    @property
    def high(self) -> int:
        """The farther end."""
        return max(self.source, self.target)

    @property
    def span(self) -> int:
        """How many gaps it crosses."""
        return self.high - self.low

    @property
    def back(self) -> bool:
        """Whether it runs against the line."""
        return self.target < self.source


def plan_layout(plan: Plan | Mapping[str, Any]) -> dict[str, Any]:
    """The picture of a plan, or of what plan.json says of it, from left to right; under `tall` from top to bottom."""
    data = plan.to_json() if isinstance(plan, Plan) else plan
    boxes, arrows = _read(data)
    return {**_Picture(boxes, arrows, LYING).data(), "tall": _Picture(*_read(data), STANDING).data()}


def pill_width(operator: str) -> float:
    """How wide an operator's name is, with what is around it."""
    return 20 + 7.4 * len(operator)


def text_width(text: str) -> float:
    """About how wide a stream's label is."""
    return 6.4 * len(text)


class _Picture:
    """Boxes and arrows with coordinates."""

    def __init__(self, boxes: list[FragmentBox], arrows: list[Arrow], how: Orientation) -> None:
        self.boxes, self.arrows, self.how = boxes, arrows, how
        self.lanes = self._stack()
        self.sizes = [_content(b) for b in boxes]
        self.columns = [[k for k, w in enumerate(arrows) if w.span == 1 and w.low == g] for g in range(len(boxes) - 1)]
        for columns in self.columns:
            columns.sort(key=lambda k: arrows[k].back)
        for b in range(len(boxes)):
            self._place_ports(b)
        least = max(len(c) for c in [[], *self.columns]) * how.column
        self.depth = max(least, *(size[0 if how.tall else 1] for size in self.sizes))
        self._place_boxes()

    def data(self) -> dict[str, Any]:
        """All of it, moved to where no coordinate is negative."""
        nodes = [self._node(b, size) for b, size in zip(self.boxes, self.sizes, strict=True)]
        edges = [self._edge(k) for k in range(len(self.arrows))]
        corners = [(n["x"], n["y"]) for n in nodes] + [(n["x"] + n["w"], n["y"] + n["h"]) for n in nodes]
        for e in edges:
            box = e["label_box"]
            corners += [*e["points"], (box["x"], box["y"]), (box["x"] + box["w"], box["y"] + box["h"])]
        left, top = (min(c[i] for c in corners) - MARGIN for i in (0, 1))
        right, bottom = (max(c[i] for c in corners) + MARGIN for i in (0, 1))
        for part in [*nodes, *(pill for n in nodes for pill in n["pills"]), *(e["label_box"] for e in edges)]:
            part["x"], part["y"] = round(part["x"] - left, 1), round(part["y"] - top, 1)
        for n in nodes:
            n["dots"] = [[round(x - left, 1), round(y - top, 1)] for x, y in n["dots"]]
        for e in edges:
            e["points"] = [[round(x - left, 1), round(y - top, 1)] for x, y in e["points"]]
        return {"width": round(right - left), "height": round(bottom - top), "nodes": nodes, "edges": edges}

    def _side(self, arrow: Arrow) -> int:
        """+1: where peers and forward streams run; -1: where streams run back."""
        return -1 if arrow.back else 1

    def _stack(self) -> dict[int, int]:
        """How far out each arrow around the boxes runs: outside of all that it goes over or across."""
        lanes: dict[int, int] = {}
        around = [k for k, w in enumerate(self.arrows) if w.span != 1]
        for k in sorted(around, key=lambda k: self.arrows[k].span):
            w = self.arrows[k]
            under = [self.arrows[j] for j in lanes]
            met = [
                lanes[j]
                for j, other in zip(lanes, under, strict=True)
                if self._side(other) == self._side(w) and other.low <= w.high and w.low <= other.high
            ]
            lanes[k] = max(met, default=-1) + 1
        return lanes

    def _place_ports(self, b: int) -> None:
        """Where the arrows around the boxes leave box b: those from before it, peers' loops, those to after it."""
        box, length = self.boxes[b], self._least_length(b)
        for side in (1, -1):
            mine = [k for k in self.lanes if self._side(self.arrows[k]) == side]
            before = [k for k in mine if self.arrows[k].high == b and self.arrows[k].span]
            after = [k for k in mine if self.arrows[k].low == b and self.arrows[k].span]
            loops = [k for k in mine if self.arrows[k].low == b and not self.arrows[k].span]
            before.sort(key=lambda k: (self.arrows[k].span, self.lanes[k]))
            after.sort(key=lambda k: (-self.arrows[k].span, -self.lanes[k]))
            half = self._loops(loops)
            wide = 2 * half[-1] if half else 0.0
            joints = len(before) + len(after) + bool(loops) - 1
            x = -(wide + PORT * joints) / 2
            for k in before:
                box.ports[k, 1] = x
                x += PORT
            for k, h in zip(loops, half, strict=True):
                box.ports[k, 0], box.ports[k, 1] = x + wide / 2 - h, x + wide / 2 + h
            x += wide + PORT if loops else 0
            for k in after:
                box.ports[k, 0] = x
                x += PORT
            length = max(length, wide + PORT * joints + 2 * FACE)
        box.length = length

    def _loops(self, loops: list[int]) -> list[float]:
        """Half the length of each of these arrows, from the inmost on: outside of the one before, and of its
        own label."""
        halves: list[float] = []
        for k in loops:
            own = 0.0 if self.how.tall else self._label_size(self.arrows[k])[0] / 2 + 8
            halves.append(max(self.how.loop, own, *(h + PORT for h in halves[-1:])))
        return halves

    def _least_length(self, b: int) -> float:
        width, height = self.sizes[b]
        return height if self.how.tall else width

    def _place_boxes(self) -> None:
        """Put boxes in line, with room for the labels between them."""
        x = 0.0
        for b, box in enumerate(self.boxes):
            box.begin = x
            box.ports = {end: box.middle + at for end, at in box.ports.items()}
            labels = [self._label_size(self.arrows[k])[0] for k in self.columns[b]] if b < len(self.columns) else []
            x += box.length + max([self.how.gap, *(w + 28 for w in labels)] if not self.how.tall else [self.how.gap])

    def _label_size(self, arrow: Arrow) -> tuple[float, float]:
        width, height = self.how.label
        texts = arrow.detail.split(" · ") if self.how.tall else [arrow.detail]
        return max(width, *map(text_width, [arrow.stream, *texts])), height

    def _point(self, along: float, across: float) -> tuple[float, float]:
        """Peers' side is above, or on the right."""
        return (across, along) if self.how.tall else (along, -across)

    def _edge(self, k: int) -> dict[str, Any]:
        w = self.arrows[k]
        points, label = self._across_gap(k) if w.span == 1 else self._around(k)
        width, height = self._label_size(w)
        x, y = label
        box = {"x": x + 8 if self.how.tall else x - width / 2, "y": y - height / 2, "w": width, "h": height}
        return {
            "stream": w.stream,
            "source": self.boxes[w.source].title,
            "target": self.boxes[w.target].title,
            "label": w.stream,
            "detail": w.detail,
            "mode": w.mode,
            "points": points,
            "label_box": {name: round(v, 1) for name, v in box.items()},
        }

    def _across_gap(self, k: int) -> tuple[Points, tuple[float, float]]:
        """A straight arrow between neighbours, beside the others of its gap."""
        w = self.arrows[k]
        columns = self.columns[w.low]
        rank = (len(columns) - 1) / 2 - columns.index(k)
        across = rank * self.how.column if not self.how.tall else -rank * self.how.column - self.how.column / 2 + 12
        begin = self.boxes[w.low].begin + self.boxes[w.low].length
        end = self.boxes[w.high].begin
        points = [self._point(begin, across), self._point(end, across)]
        return points[:: -1 if w.back else 1], self._point((begin + end) / 2, across)

    def _around(self, k: int) -> tuple[Points, tuple[float, float]]:
        """An arrow that runs beside the boxes."""
        w, side = self.arrows[k], self._side(self.arrows[k])
        begin, end = self.boxes[w.low].ports[k, 0], self.boxes[w.high].ports[k, 1]
        first = self.how.lane if self.how.tall and side < 0 else self.how.first  # labels stand on the right of arrows
        face = side * self.depth / 2
        out = face + side * (first + self.lanes[k] * self.how.lane)
        ends = [(begin, face), (begin, out), (end, out), (end, face)]
        points = [self._point(*p) for p in ends]
        return points[:: -1 if w.back else 1], self._point(self._free(k, begin, end), out)

    def _free(self, k: int, begin: float, end: float) -> float:
        """The middle of the longest part of a lane that no arrow further out goes across."""
        outer = [j for j in self.lanes if self.lanes[j] > self.lanes[k] and self._same_side(j, k)]
        ports = [p for j in outer for (i, _), p in self._ports() if i == j and begin < p < end]
        cuts = sorted([begin, end, *ports])
        a, b = max(itertools.pairwise(cuts), key=lambda pair: pair[1] - pair[0])
        return (a + b) / 2

    def _same_side(self, j: int, k: int) -> bool:
        return self._side(self.arrows[j]) == self._side(self.arrows[k])

    def _ports(self) -> list[tuple[tuple[int, int], float]]:
        return [port for box in self.boxes for port in box.ports.items()]

    def _node(self, box: FragmentBox, size: tuple[float, float]) -> dict[str, Any]:
        (x, y), w, h = self._point(box.begin, self.depth / 2), box.length, self.depth
        if self.how.tall:
            x, y, w, h = -self.depth / 2, box.begin, self.depth, box.length
        pills, dots = _inside(box, x + w / 2, y + (h - size[1]) / 2)
        return {
            "id": box.title,
            "title": box.title,
            "x": x,
            "y": y,
            "w": round(w, 1),
            "h": round(h, 1),
            "replicas": box.replicas,
            "operators": list(box.operators),
            "place": box.place,
            "pills": pills,
            "caption": round((h - size[1]) / 2 + 54, 1),
            "caption_text": _caption(box.replicas, box.place),
            "dots": dots,
            "radius": round(0.34 * _dots_per_row(box)[1], 1),
        }


def _dots_per_row(box: FragmentBox) -> tuple[int, float]:
    """How many replicas are drawn side by side, and how far apart; many of them closer together."""
    width = _inner_width(box)
    normal = int(width // 16)
    return (normal, 16) if box.replicas <= 3 * normal else (int(width // 9), 9)


def _inner_width(box: FragmentBox) -> float:
    """What operators and words need."""
    pills = sum(map(pill_width, box.operators)) + 6 * (len(box.operators) - 1)
    return max(pills, *(text_width(_caption(box.replicas, say)) for say in (box.place, "waits 100 %")))


def _content(box: FragmentBox) -> tuple[float, float]:
    """Width and height that a box needs for its operators and replicas."""
    per_row, pitch = _dots_per_row(box)
    rows = -(-min(box.replicas, DOTS) // per_row)
    return _inner_width(box) + 28, 66 + rows * pitch + 12


def _inside(box: FragmentBox, middle: float, top: float) -> tuple[list[dict[str, Any]], Points]:
    """A box's operators in a row and, below, its replicas in rows."""
    widths = [pill_width(o) for o in box.operators]
    x = middle - (sum(widths) + 6 * (len(widths) - 1)) / 2
    pills = []
    for operator, width in zip(box.operators, widths, strict=True):
        pills.append({"operator": operator, "x": x, "y": top + 12, "w": width, "h": 24})
        x += width + 6
    per_row, pitch = _dots_per_row(box)
    shown = min(box.replicas, DOTS)
    dots = []
    for i in range(shown):
        row, column = divmod(i, per_row)
        here = min(per_row, shown - row * per_row)
        dots.append((middle + (column - (here - 1) / 2) * pitch, top + 70 + row * pitch))
    return pills, dots


def _caption(replicas: int, place: str) -> str:
    return f"{replicas} replica{'' if replicas == 1 else 's'} · {place}"


def _read(data: Mapping[str, Any]) -> tuple[list[FragmentBox], list[Arrow]]:
    """Boxes in the order in which data flows and the arrows between them, from a plan as it is saved."""
    try:
        fragments, channels = list(data["fragments"]), list(data["channels"])
        found = [FragmentBox(_operators(f["operators"]), _count(f["replicas"]), _where(f)) for f in fragments]
        order = sorted(range(len(found)), key=lambda i: list(OPERATORS).index(found[i].operators[0]))
        position = {fragment: i for i, fragment in enumerate(order)}
        arrows = [_arrow(c, position) for c in channels[:MOST_CHANNELS]]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as e:
        raise TesseraError(f"this is no plan ({type(e).__name__}: {e}): draw one that `tessera plan` made") from e
    held = [o for box in found for o in box.operators]
    if not found or len(set(held)) != len(held):
        raise TesseraError("this is no plan: every operator is in one fragment; draw one that `tessera plan` made")
    return [found[i] for i in order], arrows


def _operators(names: Sequence[Any]) -> tuple[str, ...]:
    found = tuple(o for o in OPERATORS if o in names)
    if not found or len(found) != len(names):
        raise ValueError(f"operators {names!r}")
    return found


def _count(replicas: Any) -> int:
    if not isinstance(replicas, int) or not 1 <= replicas <= 10**6:
        raise ValueError(f"replicas {replicas!r}")
    return replicas


def _where(fragment: Mapping[str, Any]) -> str:
    """What a replica computes on, in a word or two."""
    platform, devices = str(fragment["platform"])[:16], _count(fragment["devices"]) * _count(fragment.get("model", 1))
    return platform if devices == 1 else f"{devices} × {platform}"


def _arrow(channel: Mapping[str, Any], position: Mapping[int, int]) -> Arrow:
    stream, mode = str(channel["stream"])[:24], str(channel["mode"])[:16]
    bound, shared = channel.get("bound"), channel.get("kind") == "shared"
    how = "one memory" if shared else {"sync": "", "first": f"first {channel.get('first', 0)}"}.get(mode, mode)
    if isinstance(bound, int) and mode != "sync":
        how = f"{how}, lag ≤ {bound}"
    detail = " · ".join(part for part in (str(channel["rate"])[:24], how[:24]) if part)
    return Arrow(stream, position[channel["source"]], position[channel["target"]], "shared" if shared else mode, detail)
