"""The same PPO under three policies: their curves, on top of each other, and the graph that each of them colours.

    python benchmarks/three_policies.py                        # says by how much params and curves differ
    python benchmarks/three_policies.py --gif docs/pictures/three_policies.gif

Runs are in float64, have large batches and therefore few updates. What the order of a sum changes, 1e-16 at first,
grows with every gradient, since learning is chaotic: with 64 environments and 120 updates it flips a sampled action at
last, from where on two runs play different games. In float32 that comes sooner.
"""

import argparse
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["JAX_ENABLE_X64"] = "1"  # before JAX is imported, here and in the processes of replicas

import jax
import numpy as np

from tessera import PPO, train
from tessera.engines.driver.pool import keep_processes
from tessera.envs.drawing.shapes import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    Circle,
    Label,
    Picture,
    Polygon,
    Rectangle,
    Shape,
    Stroke,
    around,
)
from tessera.evaluation.video_files import write_video
from tessera.graph.layout import plan_layout
from tessera.graph.plan import Plan

ENV = "gymnax:CartPole-v1"
POLICIES = {"fused:devices=1": BLUE, "single_learner_coarse:actors=4": ORANGE, "central:workers=3": GREEN}
ENVS, UNROLL = 512, 32
HUES = ("#e8f1fb", "#eaf6ee", "#fdf3e1", "#f3ecfa", "#fdecec")
WIDTH, HEIGHT = 1200, 400
FPS, DRAWING, HOLD = 15, 30, 60
"""Frames of a second, frames in which a curve is drawn, and frames at the end."""


@dataclass(frozen=True)
class Run:
    """A policy's run: its plan, params, and greedy returns over environment steps."""

    policy: str
    plan: Plan
    params: Any
    steps: np.ndarray
    returns: np.ndarray


def measure(policy: str, updates: int, seed: int) -> Run:
    """Train, with a greedy evaluation after every update."""
    algorithm = PPO(learning_rate=1e-3, unroll=UNROLL)
    how = {"steps": updates * ENVS * UNROLL, "envs": ENVS, "seed": seed, "precision": "f64", "quiet": True}
    result = train(algorithm, ENV, policy, engine="local", evaluate_every=1, **how)
    rows = {row["eval/update"]: row["eval/return_mean"] for row in result.metrics if "eval/update" in row}
    each = result.summary["env_steps"] / result.summary["updates"]
    return Run(policy, result.plan, result.params, np.array([x * each for x in rows]), np.array(list(rows.values())))


def largest_difference(runs: Sequence[Run]) -> float:
    """Between any param of the first run and the same one of another."""
    first, *others = (jax.tree.leaves(run.params) for run in runs)
    return max(float(np.abs(np.asarray(a) - b).max()) for other in others for a, b in zip(first, other, strict=True))


def frames(runs: Sequence[Run]) -> Iterator[Picture]:
    """Each curve is drawn beside its graph, in front of those before."""
    for number, run in enumerate(runs):
        graph = graph_shapes(run.plan, POLICIES[run.policy])
        for k in range(DRAWING + (HOLD if number == len(runs) - 1 else FPS)):
            share = min(1.0, (k + 1) / DRAWING)
            curves = [curve for j, each in enumerate(runs[: number + 1])
                      for curve in curve_shapes(each, j, share if j == number else 1.0)]  # fmt: skip
            yield Picture(WIDTH, HEIGHT, (*axes(runs), *curves, *graph))


def graph_shapes(plan: Plan, colour: str) -> list[Shape]:
    """The coloured graph, on the left."""
    layout = plan_layout(plan)
    scale = min(560 / layout["width"], 240 / layout["height"], 1.15)
    x0, y0 = 300 - scale * layout["width"] / 2, 215 - scale * layout["height"] / 2

    def at(x: float, y: float) -> tuple[float, float]:
        return x0 + scale * x, y0 + scale * y

    shapes: list[Shape] = [Label(300, 40, f'policy="{plan.policy}"', 24, colour)]
    for edge in layout["edges"]:
        points = [at(*point) for point in edge["points"]]
        box = edge["label_box"]
        x, y = at(box["x"] + box["w"] / 2, box["y"] + box["h"] / 2)
        shapes += [Stroke(tuple(points), GREY, 2.4), arrow_head(*points[-2:])]
        shapes += [Label(x, y - 11 * scale, edge["label"], 14), Label(x, y + 11 * scale, edge["detail"], 12, GREY)]
    for index, node in enumerate(layout["nodes"]):
        shapes.append(Rectangle(*at(node["x"], node["y"]), scale * node["w"], scale * node["h"], HUES[index], GREY, 1))
        for pill in node["pills"]:
            shapes.append(
                Rectangle(*at(pill["x"], pill["y"]), scale * pill["w"], scale * pill["h"], "#ffffff", PALE, 1)
            )
            shapes.append(Label(*at(pill["x"] + pill["w"] / 2, pill["y"] + pill["h"] / 2), pill["operator"], 14))
        middle = at(node["x"] + node["w"] / 2, node["y"] + node["caption"] - 4)
        shapes.append(Label(*middle, node["caption_text"], 13, GREY))
        shapes += [Circle(*at(*dot), node["radius"] * scale, colour) for dot in node["dots"]]
    return shapes


def arrow_head(before: tuple[float, float], tip: tuple[float, float]) -> Polygon:
    """Where a stream arrives."""
    angle = math.atan2(tip[1] - before[1], tip[0] - before[0])
    return Polygon(around(tip, ((2, 0), (-11, -6), (-11, 6)), angle), GREY)


LEFT, RIGHT, TOP, BOTTOM = 680, 1160, 70, 330


def axes(runs: Sequence[Run]) -> list[Shape]:
    """What curves are drawn on, on the right."""
    most = max(run.steps[-1] for run in runs)
    shapes: list[Shape] = [Label((LEFT + RIGHT) / 2, 40, "greedy return, CartPole, one seed", 18)]
    for value in range(0, 501, 100):
        y = height_of(value)
        shapes += [Stroke(((LEFT, y), (RIGHT, y)), PALE, 1), Label(LEFT - 26, y, str(value), 14, GREY)]
    for steps in range(0, int(most) + 1, 100_000):
        shapes.append(Label(LEFT + (RIGHT - LEFT) * steps / most, BOTTOM + 18, f"{steps // 1000} k", 14, GREY))
    return [*shapes, Label((LEFT + RIGHT) / 2, BOTTOM + 44, "environment steps", 14, GREY)]


def height_of(value: float) -> float:
    """Where a return lies."""
    return BOTTOM - (BOTTOM - TOP) * value / 500


def curve_shapes(run: Run, number: int, share: float) -> list[Shape]:
    """The first part of a curve; later curves are thinner, so that those below them can be seen."""
    count = max(2, round(share * len(run.steps)))
    xs = LEFT + (RIGHT - LEFT) * run.steps[:count] / run.steps[-1]
    points = tuple((float(x), height_of(float(y))) for x, y in zip(xs, run.returns[:count], strict=True))
    colour = POLICIES[run.policy]
    name = run.policy.partition(":")[0]
    return [
        Stroke(points, colour, 9 - 3 * number),
        Circle(*points[-1], 6, colour),
        Label(RIGHT - 110, BOTTOM - 80 + 24 * number, name, 15, colour),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gif", type=Path, help="where to write the picture; default: nowhere")
    options = parser.parse_args()
    with keep_processes():
        runs = [measure(policy, options.updates, options.seed) for policy in POLICIES]
    for run in runs:
        print(f"{run.policy:32s} return {run.returns[-1]:.1f} after {run.steps[-1]:,.0f} steps")
    print(f"params after the last update differ by at most {largest_difference(runs):.1e}")
    print(f"returns of {len(runs[0].returns)} evaluations differ by at most",
          max(float(np.abs(run.returns - runs[0].returns).max()) for run in runs[1:]))  # fmt: skip
    if options.gif:
        count = write_video(options.gif, frames(runs), FPS, HEIGHT)
        print(f"wrote {options.gif} ({count} frames)")


if __name__ == "__main__":
    main()
