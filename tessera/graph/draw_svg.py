"""A plan as a picture: SVG that needs no other tool, for light and dark pages."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape, quoteattr

from tessera.graph.layout import MARGIN, Points, plan_layout
from tessera.graph.plan import Plan

HEAD = 58
FOOT = 34
LEAST_WIDTH = 360
CORNER = 10
ARROW = 8

LIGHT = """--ink: #1c2430; --soft: #5d6878; --line: #7b8798; --paper: #ffffff; --pill: #ffffff; --rim: #c9d1dc;
    --hue0: #e8f1fb; --hue1: #eaf6ee; --hue2: #fdf3e1; --hue3: #f3ecfa; --hue4: #fdecec; --dot: #3f7fc4"""
DARK = """--ink: #e6eaf0; --soft: #98a4b5; --line: #8793a5; --paper: #12161d; --pill: #12161d; --rim: #3c4655;
    --hue0: #1b2838; --hue1: #1a2b24; --hue2: #2d2719; --hue3: #282138; --hue4: #321f22; --dot: #6aa7e8"""
STYLE = """
  svg { font-family: system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; font-size: 12.5px }
  .paper { fill: var(--paper) } text { fill: var(--ink) } .soft { fill: var(--soft); font-size: 11.5px }
  .head { font-size: 16px; font-weight: 600 } .stream { font-weight: 600 }
  .pill { fill: var(--pill); stroke: var(--rim) }
  .hue0 { fill: var(--hue0) } .hue1 { fill: var(--hue1) } .hue2 { fill: var(--hue2) } .hue3 { fill: var(--hue3) }
  .hue4 { fill: var(--hue4) } .node { stroke: var(--rim) } .dot { fill: var(--dot) }
  .head-of-arrow { fill: var(--line) }
  .wire { fill: none; stroke: var(--line); stroke-width: 1.8 } .async { stroke-dasharray: 6 4 }
  .halo { fill: none; stroke: var(--paper); stroke-width: 7 }
"""
COLOURS = {
    "auto": f"svg {{ {LIGHT} }}\n  @media (prefers-color-scheme: dark) {{ svg {{ {DARK} }} }}",
    "light": f"svg {{ {LIGHT} }}",
    "dark": f"svg {{ {DARK} }}",
}
"""Scheme -> its colours; `auto` is that of whoever looks."""


def svg(plan: Plan) -> str:
    """The plan as an SVG document: fragments as boxes with a dot for each replica, cut streams as arrows."""
    layout = plan_layout(plan)
    legend = _legend(MARGIN, layout["height"] + HEAD + 10, layout)
    height = layout["height"] + HEAD + (FOOT if legend else 0)
    about = f"{plan.algorithm} on {plan.env} · {plan.envs} environments · {plan.engine} engine"
    width = max(layout["width"], LEAST_WIDTH, 2 * MARGIN + round(6.4 * len(about)))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-labelledby="title about">',
        f'<title id="title">{escape(plan.policy)}</title>',
        f'<desc id="about">{escape(_in_words(layout))}</desc>',
        f"<style>\n  {COLOURS['auto']}{STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        _text(MARGIN, 28, plan.policy, "head", "start"),
        _text(MARGIN, 48, about, "soft", "start"),
        f'<g transform="translate(0 {HEAD})">',
        *(_edge(e) for e in layout["edges"]),
        *(_node(n, i) for i, n in enumerate(layout["nodes"])),
        "</g>",
        legend,
        "</svg>",
    ]
    return "\n".join(part for part in parts if part)


def rounded(points: Points, radius: float = CORNER) -> str:
    """The path along the points, with round corners."""
    path = [f"M{points[0][0]:g} {points[0][1]:g}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        a, b = _towards(corner, before, radius), _towards(corner, after, radius)
        path.append(f"L{a[0]:g} {a[1]:g}Q{corner[0]:g} {corner[1]:g} {b[0]:g} {b[1]:g}")
    return "".join([*path, f"L{points[-1][0]:g} {points[-1][1]:g}"])


def _towards(a: tuple[float, float], b: tuple[float, float], distance: float) -> tuple[float, float]:
    """The point at a distance from a on the way to b, at most in the middle."""
    length = abs(b[0] - a[0]) + abs(b[1] - a[1])
    share = min(distance / length, 0.5) if length else 0.0
    return a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share


def _edge(edge: dict[str, Any]) -> str:
    *way, tip = edge["points"]
    end = _towards(tip, way[-1], ARROW)
    path = rounded([*way, end])
    across = ((tip[1] - end[1]) / 2, (end[0] - tip[0]) / 2)
    corners = [tip, *((end[0] + s * across[0], end[1] + s * across[1]) for s in (1, -1))]
    head = " ".join(f"{x:g},{y:g}" for x, y in corners)
    box = edge["label_box"]
    x, y = box["x"] + box["w"] / 2, box["y"] + box["h"] / 2
    kind = "wire async" if edge["mode"] in ("async", "first") else "wire"
    return "\n".join(
        [
            f'<path class="halo" d="{path}"/>',
            f'<path class="{kind}" d="{path}"/>',
            f'<polygon class="head-of-arrow" points="{head}"/>',
            _text(x, y - 7, edge["label"], "stream"),
            _text(x, y + 15, edge["detail"], "soft"),
        ]
    )


def _node(node: dict[str, Any], index: int) -> str:
    parts = [_box(f"node hue{index}", node, 10)]
    for pill in node["pills"]:
        parts.append(_box("pill", pill, 6))
        parts.append(_text(pill["x"] + pill["w"] / 2, pill["y"] + 16.5, pill["operator"], "stream"))
    parts.append(_text(node["x"] + node["w"] / 2, node["y"] + node["caption"], node["caption_text"], "soft"))
    parts += [f'<circle class="dot" cx="{cx:g}" cy="{cy:g}" r="{node["radius"]}"/>' for cx, cy in node["dots"]]
    return "\n".join(parts)


def _box(kind: str, box: dict[str, Any], radius: float) -> str:
    x, y, w, h = (box[k] for k in "xywh")
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{radius}"/>'


def _text(x: float, y: float, words: str, kind: str, anchor: str = "middle") -> str:
    return f'<text class={quoteattr(kind)} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def _legend(x: float, y: float, layout: dict[str, Any]) -> str:
    """What solid and dashed arrows mean, where there are both or dashed ones."""
    if not any(e["mode"] in ("async", "first") for e in layout["edges"]):
        return ""
    return "\n".join(
        [
            f'<path class="wire" d="M{x} {y - 4}h28"/>',
            _text(x + 36, y, "waited for", "soft", "start"),
            f'<path class="wire async" d="M{x + 120} {y - 4}h28"/>',
            _text(x + 156, y, "not waited for", "soft", "start"),
        ]
    )


def _in_words(layout: dict[str, Any]) -> str:
    boxes = "; ".join(f"{n['title']}, {n['caption_text']}" for n in layout["nodes"])
    arrows = "; ".join(f"{e['stream']} from {e['source']} to {e['target']}, {e['detail']}" for e in layout["edges"])
    return f"Fragments: {boxes}. Streams: {arrows or 'none is cut'}."
