"""Whoever watches a run folder sees replicas die and come back, and how the run ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_faults import wait_until


def status(run: Path) -> dict[str, Any]:
    return json.loads((run / "live" / "status.json").read_text())


def kinds(run: Path) -> list[str]:
    path = run / "live" / "marks.jsonl"
    return [json.loads(line)["kind"] for line in path.read_text().splitlines()] if path.exists() else []


def test_a_killed_actor_is_seen_to_die_and_to_take_part_again(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tessera", "train", "impala", "CartPole-v1", "--run-dir", str(tmp_path / "run")]
    driver = subprocess.Popen([*command, "--steps", "90000000"], stdout=subprocess.DEVNULL)
    run = tmp_path / "run"
    try:
        wait_until(lambda: (run / "live" / "status.json").exists(), 90)
        wait_until(lambda: all(r["updates"] > 20 for r in status(run)["replicas"]), 60)
        victim = next(r for r in status(run)["replicas"] if r["fragment"] == "env+act")
        os.kill(victim["process"], signal.SIGKILL)
        wait_until(lambda: status(run)["replicas"][victim["place"]]["state"] in ("dead", "restarting"), 10)
        wait_until(lambda: kinds(run)[:2] == ["death", "restart"], 60)

        def works_again() -> bool:
            now = status(run)["replicas"][victim["place"]]
            return now["state"] in ("working", "waiting") and now["process"] not in (None, victim["process"])

        wait_until(works_again, 60)
        assert status(run)["replicas"][victim["place"]]["restarts"] == 1
        driver.send_signal(signal.SIGINT)
        assert driver.wait(60) == 130
    finally:
        driver.kill()
        driver.wait()
    assert status(run)["state"] == "stopped"
    assert kinds(run)[-1] == "end"


@pytest.mark.slow
def test_states_and_samples_of_three_nodes_arrive_in_the_folder_of_the_driver(
    three_nodes: dict[str, Any], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "tessera", "train", "impala", "CartPole-v1", "--policy"]
    command += ["single_learner_coarse:actors=5,mode=async", "--engine", "ray", "--run-dir", str(run)]
    driver = subprocess.Popen([*command, "--steps", "90000000"], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: (run / "live" / "spans.json").exists(), 180)
        titles = {replica["title"] for replica in status(run)["replicas"]}
        assert len(titles) == 6
        wait_until(lambda: len({r["node"] for r in status(run)["replicas"]} - {""}) == 3, 60)

        def sampled() -> set[str]:
            return {r["title"] for r in json.loads((run / "live" / "spans.json").read_text())["replicas"]}

        wait_until(lambda: sampled() == titles, 90)
        assert all(replica["process"] for replica in status(run)["replicas"])
        assert status(run)["streams"]["experience"]["bytes_per_second"] > 0
    finally:
        driver.send_signal(signal.SIGINT)
        try:
            driver.wait(90)
        finally:
            driver.kill()
            driver.wait()
