"""Pictures of plans: nothing overlaps, nothing is missing, and what is drawn is text and not markup."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from tessera import policies
from tessera.errors import TesseraError
from tessera.graph.draw import render
from tessera.graph.layout import plan_layout
from tessera.graph.operators import OPERATORS
from tessera.graph.plan import Needs, Plan, make_plan
from tessera.graph.policy import Cut, Fragment, Policy

NEEDS = Needs("dqn", "cartpole", device_env=True, batch=32, priorities=True, absorbs=True)
SVG = "{http://www.w3.org/2000/svg}"


def partitions(names: list[str]) -> Iterator[list[list[str]]]:
    """Every way to put names into sets."""
    if not names:
        yield []
        return
    for rest in partitions(names[1:]):
        yield [[names[0]], *rest]
        for i in range(len(rest)):
            yield [*rest[:i], [names[0], *rest[i]], *rest[i + 1 :]]


COLOURINGS = list(partitions(list(OPERATORS)))
POLICIES = [policies.get(name) for name in policies.names()]


def plan(policy: Policy) -> Plan:
    return make_plan(policy, NEEDS, 32)


def coloured(colours: list[list[str]]) -> dict[str, Any]:
    """A plan as it is saved, in which every stream of the graph is cut wherever it can be."""
    data = json.loads(json.dumps(plan(policies.get("gorila")).to_json()))
    home = {o: i for i, c in enumerate(colours) for o in c}
    data["fragments"] = [{**data["fragments"][0], "operators": c, "replicas": 2} for c in colours]
    streams = [(s, a, b) for s, a, b in STREAMS if home[a] != home[b] or a == b]
    channel = data["channels"][0]
    data["channels"] = [{**channel, "stream": s, "source": home[a], "target": home[b]} for s, a, b in streams]
    return data


STREAMS = [
    ("timesteps", "env", "act"),
    ("actions", "act", "env"),
    ("experience", "act", "store"),
    ("samples", "store", "grad"),
    ("priorities", "grad", "store"),
    ("summary", "grad", "grad"),
    ("summary", "grad", "apply"),
    ("gradients", "grad", "apply"),
    ("norm", "apply", "apply"),
    ("params", "apply", "grad"),
    ("params", "apply", "act"),
]


def overlap(a: dict[str, float], b: dict[str, float]) -> bool:
    return (
        min(a["x"] + a["w"], b["x"] + b["w"]) - max(a["x"], b["x"]) > 0.5
        and min(a["y"] + a["h"], b["y"] + b["h"]) - max(a["y"], b["y"]) > 0.5
    )


def segments(edge: dict[str, Any]) -> list[dict[str, float]]:
    """The pieces of an edge as boxes of width one."""
    found = []
    for (x1, y1), (x2, y2) in itertools.pairwise(edge["points"]):
        assert x1 == x2 or y1 == y2, "edges run straight"
        found.append({"x": min(x1, x2), "y": min(y1, y2), "w": abs(x1 - x2), "h": abs(y1 - y2)})
    return found


def crossed(segment: dict[str, float], box: dict[str, float]) -> bool:
    """Whether a segment enters a box, and does not only touch it."""
    inside = {"x": box["x"] + 1, "y": box["y"] + 1, "w": box["w"] - 2, "h": box["h"] - 2}
    return overlap({**segment, "w": segment["w"] + 1, "h": segment["h"] + 1}, inside)


def assert_clear(picture: dict[str, Any]) -> None:
    """No two things lie on each other, and all lie within the picture."""
    nodes, edges = picture["nodes"], picture["edges"]
    labels = [e["label_box"] for e in edges]
    for a, b in itertools.combinations([*nodes, *labels], 2):
        assert not overlap(a, b)
    for part in [*nodes, *labels]:
        assert part["x"] >= 0
        assert part["y"] >= 0
        assert part["x"] + part["w"] <= picture["width"]
        assert part["y"] + part["h"] <= picture["height"]
    for e in edges:
        assert not any(crossed(s, node) for s in segments(e) for node in nodes)
        others = [other["label_box"] for other in edges if other is not e]
        assert not any(crossed(s, box) for s in segments(e) for box in others)
        assert len({tuple(p) for other in edges for p in (other["points"][0], other["points"][-1])}) == 2 * len(edges)


@pytest.mark.parametrize("colours", COLOURINGS, ids=lambda c: "-".join("".join(o[0] for o in f) for f in c))
def test_no_colouring_of_the_graph_gives_a_picture_with_overlaps(colours):
    picture = plan_layout(coloured(colours))
    assert_clear(picture)
    assert_clear(picture["tall"])


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
def test_every_policy_is_drawn_with_all_its_fragments_and_streams(policy):
    made = plan(policy)
    for picture in (plan_layout(made), plan_layout(made)["tall"]):
        assert_clear(picture)
        assert {n["id"] for n in picture["nodes"]} == {f.title for f in made.fragments}
        titles = [f.title for f in made.fragments]
        drawn = sorted((e["stream"], e["source"], e["target"]) for e in picture["edges"])
        assert drawn == sorted((c.stream, titles[c.source], titles[c.target]) for c in made.channels)
        assert [len(n["dots"]) for n in picture["nodes"]] == [n["replicas"] for n in picture["nodes"]]
    assert plan_layout(made) == plan_layout(json.loads(json.dumps(made.to_json())))


def test_an_edge_begins_at_its_source_and_ends_at_its_target():
    for policy in POLICIES:
        picture = plan_layout(plan(policy))
        boxes = {n["id"]: n for n in picture["nodes"]}
        for e in picture["edges"]:
            for point, end in ((e["points"][0], e["source"]), (e["points"][-1], e["target"])):
                around = {name: boxes[end][name] + by for name, by in (("x", -1), ("y", -1), ("w", 2), ("h", 2))}
                assert overlap({"x": point[0], "y": point[1], "w": 1, "h": 1}, around)


def test_dots_of_many_replicas_stay_in_their_box():
    data = coloured([["env", "act"], ["store", "grad", "apply"]])
    for replicas in (1, 7, 12, 40, 200, 100_000):
        data["fragments"][0]["replicas"] = replicas
        for node in plan_layout(data)["nodes"]:
            assert len(node["dots"]) == min(node["replicas"], 240)
            for x, y in node["dots"]:
                assert node["x"] < x - node["radius"]
                assert x + node["radius"] < node["x"] + node["w"]
                assert node["y"] < y - node["radius"]
                assert y + node["radius"] < node["y"] + node["h"]
            for (x1, y1), (x2, y2) in itertools.combinations(node["dots"], 2):
                assert max(abs(x1 - x2), abs(y1 - y2)) > 2 * node["radius"]
        assert_clear(plan_layout(data))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
def test_a_picture_is_well_formed_and_needs_nothing_else(policy):
    made = plan(policy)
    drawn = render(made, "svg")
    root = ElementTree.fromstring(drawn)
    words = [t.text for t in root.iter(f"{SVG}text")]
    assert policy.name in words
    assert sorted(c.stream for c in made.channels) == sorted(
        w for w in words if w in {s for s, _, _ in STREAMS} | {"updates"}
    )
    assert len(list(root.iter(f"{SVG}circle"))) == sum(f.replicas for f in made.fragments)
    assert not any(word in drawn for word in ("href", "url(", "script", "@import"))


def test_dashed_arrows_are_those_that_nobody_waits_for():
    cuts = {"experience": Cut(mode="async"), "params": Cut(mode="async", lag=2)}
    made = plan(Policy("mine", (Fragment("env act", 2), Fragment("store grad apply")), cuts=cuts))
    drawn = render(made, "svg")
    assert "not waited for" in drawn
    assert "every update · async, lag ≤ 2" in drawn
    assert "not waited for" not in render(plan(policies.get("single_learner_coarse")), "svg")


def test_names_are_drawn_as_text():
    made = replace(plan(policies.get("fused")), env='<script>alert("1")</script>', policy="a & b")
    root = ElementTree.fromstring(render(made, "svg"))
    assert not list(root.iter(f"{SVG}script"))
    assert any("<script>" in (t.text or "") for t in root.iter(f"{SVG}text"))
    assert "a & b" in [t.text for t in root.iter(f"{SVG}text")]


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"fragments": [], "channels": []},
        {"fragments": [{"operators": ["env"], "replicas": -1, "platform": "cpu", "devices": 1}], "channels": []},
        {"fragments": [{"operators": ["evil"], "replicas": 1, "platform": "cpu", "devices": 1}], "channels": []},
        {"fragments": [{"operators": ["env"], "replicas": 1, "platform": "cpu", "devices": 1}] * 2, "channels": []},
        {"fragments": 3, "channels": "no"},
        {
            "fragments": [{"operators": ["env"], "replicas": 1, "platform": "cpu", "devices": 1}],
            "channels": [{"stream": 1}],
        },
    ],
)
def test_what_is_no_plan_is_refused(broken):
    with pytest.raises(TesseraError, match="this is no plan"):
        plan_layout(broken)
