"""Traces: what the trace of a run shows, and what of it survives a kill."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tessera import A2C, train
from tessera.engines.replica import trace as tracer
from tessera.engines.replica.trace import TraceWriter, activity, clear_traces, merge_traces, part_file
from tessera.program.nodes import HOST, WIRING, Every, Op, Recv, Repeat, Segment, Send

ALGORITHM = A2C(unroll=16, widths=(32, 32))
Event = dict[str, Any]


def traced(folder: Path, policy: str, env: str = "gymnasium:CartPole-v1", **options: Any) -> list[Event]:
    """Events of a short run."""
    path = folder / "trace.json"
    given = {"steps": 16 * 8 * 30, "envs": 8, "lag": 0, "eval_episodes": 1, "quiet": True, **options}
    train(ALGORITHM, env, policy, trace=path, **given)
    assert list(folder.glob("*.part")) == []
    return json.loads(path.read_text())["traceEvents"]


@pytest.fixture(scope="module")
def in_step(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    return traced(tmp_path_factory.mktemp("sync"), "single_learner_coarse:actors=1")


@pytest.fixture(scope="module")
def at_own_pace(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    return traced(tmp_path_factory.mktemp("async"), "single_learner_coarse:actors=1,mode=async", lag=None)


def titles(events: list[Event]) -> dict[int, str]:
    return {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}


def names(events: list[Event], title: str) -> set[str]:
    return {e["name"] for e in events if e["ph"] == "X" and titles(events)[e["pid"]].startswith(title)}


def spans(events: list[Event], title: str, *does: str) -> list[tuple[float, float]]:
    """When replicas did something of a kind: (begin, end) in seconds."""
    called = titles(events)
    return [
        (e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6)
        for e in events
        if e["ph"] == "X" and called[e["pid"]].startswith(title) and any(d in e["name"].split("+") for d in does)
    ]


def overlap(these: list[tuple[float, float]], those: list[tuple[float, float]]) -> float:
    """Seconds that these and those have in common."""
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in these for b in those)


def share(events: list[Event], *does: str) -> float:
    """Seconds in which actors did something while the learner learned, for each second of learning after the first."""
    learning = spans(events, "store", "learning")[1:]
    return overlap(spans(events, "env+act", *does), learning) / sum(end - begin for begin, end in learning)


def assert_rows(events: list[Event], actors: int) -> None:
    """Every replica has one row, in which one thing is done after the other."""
    acting = {k: f"env+act/{k}" for k in range(actors)}
    assert titles(events) == {**acting, actors: "store+grad+apply/0"}
    for place in titles(events):
        mine = [e for e in events if e["ph"] == "X" and e["pid"] == place]
        assert all(e["dur"] >= 0 for e in mine)
        for one, then in itertools.pairwise(mine):
            assert then["ts"] >= one["ts"] + one["dur"] - 0.01  # what is left of rounding, in microseconds


def test_a_trace_has_a_row_for_each_replica_and_names_what_it_does(in_step: list[Event]) -> None:
    assert_rows(in_step, actors=1)
    acts = {"acting", "stepping", "stepping+acting", "sending", "receiving", "waiting"}
    assert names(in_step, "env+act") == acts
    assert names(in_step, "store") == {"learning", "sending", "receiving", "waiting"}
    assert len(spans(in_step, "store", "learning")) == 30
    assert {e["args"]["slot"] for e in in_step if e["name"] == "sending"} == {"experience", "acting"}


def test_times_are_microseconds_from_the_first_span_on(in_step: list[Event]) -> None:
    timed = [e for e in in_step if e["ph"] == "X"]
    assert timed[0]["ts"] == 0.0
    assert [e["ts"] for e in timed] == sorted(e["ts"] for e in timed)
    # 16 steps of 8 environments take more than 100 microseconds and less than some seconds
    stepping = sum(e["dur"] for e in timed if e["name"] == "stepping") / 30
    assert 100 < stepping < 4e6


def test_under_sync_no_actor_acts_while_the_learner_learns(in_step: list[Event]) -> None:
    assert share(in_step, "acting", "stepping") < 0.01
    assert share(in_step, "waiting") > 0.02  # it does wait; how long is a matter of the machine


def test_under_async_actors_go_on_while_the_learner_learns(at_own_pace: list[Event]) -> None:
    assert_rows(at_own_pace, actors=1)
    assert share(at_own_pace, "acting", "stepping") > 0.2


def test_replicas_that_take_turns_in_one_thread_have_rows_too(tmp_path: Path) -> None:
    left = part_file(tmp_path / "trace.json", 7)  # by a run that was killed
    left.write_text('{"name": "learning", "ph": "X", "ts": 1.0, "dur": 1.0, "pid": 7, "tid": 0}\n')
    events = traced(tmp_path, "single_learner_coarse", engine="serial")
    assert_rows(events, actors=2)
    assert share(events, "acting", "stepping") < 0.01
    assert share(events, "waiting") > 1.9  # both actors


def test_a_device_environment_is_stepped_in_the_program_that_acts(tmp_path: Path) -> None:
    events = traced(tmp_path, "single_learner_coarse", "gymnax:CartPole-v1", engine="serial")
    assert_rows(events, actors=2)
    assert len(spans(events, "env+act/1", "acting")) == 30
    assert names(events, "env+act") == {"stepping", "stepping+acting", "sending", "receiving", "waiting"}


def op(operator: str, kind: str = HOST) -> Op:
    return Op(operator, lambda: (), (), (), kind)


@pytest.mark.parametrize(
    ("node", "name"),
    [
        (Send("experience", 0), "sending"),
        (Recv("acting", 1), "receiving"),
        (op("env"), "stepping"),
        (op("act", WIRING), ""),
        (Segment((op("act"), Repeat("t", 8, (op("env"),))), lambda a, b: (a, b), (), ()), "stepping+acting"),
        (Segment((op("store"), op("grad")), lambda a, b: (a, b), (), ()), "learning"),
        (Segment((Every(2, (op("apply"),)),), lambda a, b: (a, b), (), ()), "learning"),
    ],
)
def test_a_node_is_named_by_the_operators_in_it(node: Any, name: str) -> None:
    assert activity(node) == name


def written(path: Path) -> list[Event]:
    merge_traces(path)
    return json.loads(path.read_text())["traceEvents"]


def test_neighbours_of_one_kind_are_one_span(tmp_path: Path) -> None:
    clock = itertools.count(100.0, 10e-6)  # each look at it takes ten microseconds
    line = TraceWriter(str(tmp_path / "t"), 0, "env+act/0", clock=lambda: next(clock))
    step, wire, wait = op("env"), op("act", WIRING), Recv("acting", 0)
    now = next(clock)
    for node in (step, wire, step):
        now = line.span(node, now)
    for _ in range(3):
        now = line.span(wait, now, waiting=True)
    now = line.span(wait, now)
    now = line.span(step, now)
    line.span(step, now + 2 * tracer.GAP)
    line.close()
    events = [e for e in written(tmp_path / "t") if e["ph"] == "X"]
    assert [e["name"] for e in events] == ["stepping", "waiting", "receiving", "stepping", "stepping"]
    assert [e["dur"] for e in events[:4]] == pytest.approx([30.0, 30.0, 10.0, 10.0])
    assert [e["ts"] for e in events[:4]] == pytest.approx([0.0, 30.0, 60.0, 70.0])
    assert [e.get("args") for e in events[:2]] == [None, {"slot": "acting"}]


def test_a_kill_loses_the_last_spans_only_and_a_newcomer_goes_on_in_the_same_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracer, "HELD_SECONDS", -1.0)
    path = tmp_path / "t"
    killed = TraceWriter(str(path), 3, "env+act/3")
    for node in (op("act"), op("env"), op("act"), op("env")):
        killed.span(node, time.monotonic())
    with part_file(path, 3).open("a") as file:  # it died while it wrote a line
        file.write('{"name": "acti')
    newcomer = TraceWriter(str(path), 3, "env+act/3")
    newcomer.span(op("grad"), time.monotonic())
    newcomer.close()
    events = written(path)
    assert titles(events) == {3: "env+act/3"}
    assert len([e for e in events if e["ph"] == "M"]) == 2  # its title, and the place of its row
    assert [e["name"] for e in events if e["ph"] == "X"] == ["acting", "stepping", "acting", "learning"]


def test_only_parts_of_the_same_trace_are_joined_and_removed(tmp_path: Path) -> None:
    mine, longer, special = tmp_path / "out", tmp_path / "out.json", tmp_path / "out[1].json"
    for path in (mine, longer, special):
        for place in (2, 10):
            TraceWriter(str(path), place, f"{path.name}/{place}").close()
    assert titles(written(mine)) == {2: "out/2", 10: "out/10"}
    clear_traces(longer)
    assert [part.name for part in sorted(tmp_path.glob("*.part"))] == ["out[1].json.10.part", "out[1].json.2.part"]
    assert titles(written(special)) == {2: "out[1].json/2", 10: "out[1].json/10"}


def test_a_run_that_did_nothing_leaves_a_trace_that_can_be_opened(tmp_path: Path) -> None:
    assert written(tmp_path / "t") == []
