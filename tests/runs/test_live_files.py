"""What a run writes for those who watch it: whole at any time, bounded, and never in the run's way."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_drift import reports

import tessera
from tessera.channels.link import Flow
from tessera.engines.base import ReplicaEvent, ReplicaStatus
from tessera.engines.replica.reports import Reports
from tessera.graph.plan import Plan
from tessera.planning.prepare import prepare_plan
from tessera.runs import live_files, live_status
from tessera.runs.live_files import LiveFiles
from tessera.runs.live_status import MOST_SPANS, LiveStatus, Standing

ALGORITHM = tessera.A2C(unroll=8, widths=(8,))
STANDING = Standing(update=7, updates=10, env_steps=700, seconds=3.5)
REPLICAS = [
    ReplicaStatus(0, "env+act/0", "running", 7, process=11),
    ReplicaStatus(1, "env+act/1", "waiting", 6, stream="experience", sending=True, process=12, node="ab12"),
    ReplicaStatus(2, "store+grad+apply/0", "dead", 7, restarts=1),
]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return prepare_plan(ALGORITHM, "gymnax:CartPole-v1", "single_learner_coarse:actors=2", envs=8, groups=4)[2]


def wait_until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)


def read(folder: Path, name: str = "status.json") -> dict[str, Any]:
    return json.loads((folder / "live" / name).read_text())


def marks(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "live" / "marks.jsonl").read_text().splitlines()]


def has_marks(folder: Path, count: int) -> bool:
    return (folder / "live" / "marks.jsonl").exists() and len(marks(folder)) == count


def reported(flows: dict[str, Flow] | None = None, **more: Any) -> Reports:
    found = reports(64)
    found.flows.update(flows or {})
    for name, value in more.items():
        getattr(found, name).clear()
        getattr(found, name).update(value)
    return found


def test_waits_are_shares_of_the_replicas_time_and_rates_are_per_second(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(live_status.time, "monotonic", lambda: now[0])
    status = LiveStatus(plan)
    status.begin(plan)
    for waited, size in ((0.5, 1_000), (1.5, 3_000)):
        now[0] += 1.0
        flow = Flow(messages=4, bytes=size, fill=2.0, dropped=1, lag_sum=6.0, lag_max=2.0, lags=4)
        waits = {"env+act": {"experience": waited}, "store+grad+apply": {"params": 0.1}}
        status.report(reported({"experience": flow}, waits=waits), STANDING)
    found = status.status("running", "", REPLICAS, {0: 5.0})
    assert found["waited_for"]["env+act"] == {"experience": pytest.approx(2.0 / (2 * 2.0))}
    assert found["waited"] == {"env+act": pytest.approx(0.5), "store+grad+apply": pytest.approx(0.1)}
    assert found["streams"]["experience"] == {
        "bytes_per_second": 2_000.0, "messages_per_second": 4.0, "fill": 0.5, "lag_mean": 1.5, "lag_max": 2.0,
        "dropped": 2,
    }  # fmt: skip
    assert found["streams"]["params"]["fill"] is None
    now[0] += 8.0  # nothing came: rates fall as time passes
    assert status.status("running", "", REPLICAS, {})["streams"]["experience"]["bytes_per_second"] < 500
    assert (found["update"], found["env_steps"], found["seconds"]) == (7, 700, 3.5)


def test_replicas_are_shown_as_they_are_and_at_the_end_as_finished(plan: Plan) -> None:
    status = LiveStatus(plan)
    shown = status.status("running", "", REPLICAS, {0: 5.0})["replicas"]
    assert [replica["state"] for replica in shown] == ["working", "waiting", "dead"]
    assert [replica["stream"] for replica in shown] == ["", "experience", ""]
    assert [(replica["fragment"], replica["number"]) for replica in shown] == [
        ("env+act", 0), ("env+act", 1), ("store+grad+apply", 0),
    ]  # fmt: skip
    assert [replica["process"] for replica in shown] == [11, 12, None]
    assert shown[1]["node"] == "ab12"
    assert {replica["state"] for replica in status.status("finished", "", REPLICAS, {})["replicas"]} == {"finished"}
    alone = status.status("running", "", [], {})["replicas"]
    assert [replica["title"] for replica in alone] == [title for *_, title in plan.places]
    assert {replica["state"] for replica in alone} == {"working"}


def test_samples_are_a_ring_with_a_table_of_names(plan: Plan) -> None:
    status = LiveStatus(plan)
    assert status.spans() is None
    rows = [("acting", "", 50.0 + k, 0.5, 0) for k in range(MOST_SPANS + 10)]
    status.report(reported(spans={0: rows}), STANDING)
    status.report(reported(spans={2: [("waiting", "experience", 60.25, 2.0, 0)]}), STANDING)
    found = status.spans()
    assert found is not None
    assert status.spans() is None  # nothing new
    assert [(r["place"], r["title"], len(r["spans"])) for r in found["replicas"]] == [
        (0, "env+act/0", MOST_SPANS), (2, "store+grad+apply/0", 1),
    ]  # fmt: skip
    assert found["begin"] == 60.0
    name, slot, begin, seconds, thread = found["replicas"][1]["spans"][0]
    assert (found["names"][name], found["slots"][slot]) == ("waiting", "experience")
    assert (begin, seconds, thread) == (0.25, 2.0, 0)


def test_readers_never_see_half_a_file_and_a_death_is_written_at_once(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_files, "INTERVAL", 60.0)
    files = LiveFiles(plan, pytest.fail)
    files.report(reported(), STANDING)
    files.open(tmp_path, lambda: REPLICAS)
    wait_until((tmp_path / "live" / "status.json").exists)
    over, seen = threading.Event(), set()

    def watch() -> None:
        while not over.is_set():
            seen.add(len(read(tmp_path)["replicas"]))

    reader = threading.Thread(target=watch)
    reader.start()
    for number in range(100):
        files.on_event(ReplicaEvent("death", 2, f"store+grad+apply/0 died ({number})"))
        wait_until(
            lambda count=number + 1: (tmp_path / "live" / "marks.jsonl").exists() and len(marks(tmp_path)) == count
        )
    over.set()
    reader.join()
    files.end("finished", "target return reached")
    files.close()
    assert seen == {3}
    assert marks(tmp_path)[0]["kind"] == "death"
    assert marks(tmp_path)[-1]["text"] == "finished: target return reached"
    assert (read(tmp_path)["state"], read(tmp_path)["why"]) == ("finished", "target return reached")
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "tessera-live"])


def test_marks_are_bounded_and_go_on_after_a_line_that_a_kill_cut_short(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_files, "MOST_MARKS", 50)
    folder = tmp_path / "live"
    folder.mkdir()
    (folder / "marks.jsonl").write_text('{"kind": "death", "te')
    files = LiveFiles(plan, pytest.fail)
    files.open(tmp_path, list)
    files.mark("checkpoint", "first")
    wait_until(lambda: (files.write(), (folder / "marks.jsonl").read_text().endswith('"first"}\n'))[1])
    assert json.loads((folder / "marks.jsonl").read_text().splitlines()[1])["text"] == "first"
    for number in range(200):
        files.mark("checkpoint", str(number))
        files.write()
    files.close()
    assert 25 <= len(marks(tmp_path)) <= 50
    assert marks(tmp_path)[-1]["text"] == "199"


def test_a_folder_that_cannot_be_written_to_is_said_once_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "live").write_text("in the way")
    result = tessera.train(
        ALGORITHM, "gymnax:CartPole-v1", "fused", steps=64 * 200, envs=8, run_dir=tmp_path / "run", eval_episodes=2,
    )  # fmt: skip
    assert result.summary["updates"] == 200
    assert (tmp_path / "run" / "live").read_text() == "in the way"


def test_replicas_are_finished_since_the_run_has_ended(plan: Plan, tmp_path: Path) -> None:
    live = LiveFiles(plan, print)
    live.open(tmp_path, lambda: REPLICAS)
    live.write()
    ended = time.time()
    live.end("finished", "")
    live.close()
    assert all(replica["since"] >= ended for replica in read(tmp_path)["replicas"])


@pytest.mark.parametrize("policy", ["fused", "single_learner_coarse:actors=2"])
def test_a_run_leaves_its_last_state_and_its_marks(policy: str, tmp_path: Path) -> None:
    tessera.train(
        ALGORITHM, "gymnax:CartPole-v1", policy, steps=64 * 100, envs=8, run_dir=tmp_path, eval_episodes=2, quiet=True,
        checkpoint_every=1000,  # however slow the machine: one checkpoint, at the end
    )  # fmt: skip
    found = read(tmp_path)
    assert (found["state"], found["update"], found["updates"]) == ("finished", 100, 100)
    assert {replica["state"] for replica in found["replicas"]} == {"finished"}
    kinds = [mark["kind"] for mark in marks(tmp_path)]
    assert kinds == ["checkpoint", "evaluation", "end"]


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    class Broken(tessera.Callback):
        def on_update(self, event: Any) -> None:
            raise ValueError("out of ideas")

    with pytest.raises(tessera.errors.RunFailed):
        tessera.train(
            ALGORITHM, "gymnax:CartPole-v1", "fused", steps=6400, envs=8, run_dir=tmp_path, callbacks=[Broken()]
        )
    assert read(tmp_path)["state"] == "failed"
    assert "out of ideas" in read(tmp_path)["why"]
