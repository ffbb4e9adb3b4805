"""Chaos: replicas are killed and stopped at random moments, also while they start, and every run goes on to its end."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
from typing import Any

import pytest

import tessera
from tessera.engines.driver.supervisor import Supervisor
from tessera.engines.local import LocalEngine

SMALL = tessera.A2C(unroll=8, widths=(8,))
VALUE_BASED = tessera.DQN(unroll=8, draws=2, batch=32, capacity=2_000, warmup=8, widths=(8,), outliers=0.0)
TIMEOUT = 4.0
"""Seconds after which a replica that was stopped counts as dead."""
RUNS: dict[str, tuple[Any, float]] = {
    "single_learner_coarse:actors=2,mode=async": (SMALL, 90.0),
    "multi_learner_coarse:actors=2,learners=2,mode=async": (SMALL, 90.0),
    "central:workers=2,mode=async": (SMALL, 90.0),
    "central:workers=2,shards=2,mode=async": (SMALL, 90.0),
    "distributed_replay:mode=async,stores=2,publish=2": (VALUE_BASED, 90.0),
    "decentralised:workers=2": (SMALL, 90.0),
    "hogwild:workers=2": (SMALL, 300.0),
    "gorila:actors=2,stores=2,learners=2,shards=2,lag=20": (VALUE_BASED, 300.0),
}


GO_BACK = ("decentralised:workers=2", "multi_learner_coarse:actors=2,learners=2,mode=async")
"""Peers that nobody can replace alone: all start again after each death, which may take longer than until the next."""


class Chaos(threading.Thread):
    """Kills or stops a replica every 2 to 5 seconds, whatever it is doing; notes whom, and the longest standstill."""

    def __init__(self, seconds: float, seed: int, soon: bool) -> None:
        super().__init__(daemon=True)
        self.engine: LocalEngine | None = None
        self.hit: list[tuple[str, str]] = []
        self.longest = 0.0
        self._until = time.monotonic() + seconds
        self._random, self._soon = random.Random(seed), soon

    @property
    def over(self) -> bool:
        return time.monotonic() > self._until

    def run(self) -> None:
        progressed, last = time.monotonic(), -1
        due = time.monotonic() + 8.0
        while not self.over:
            time.sleep(0.1)
            engine = self.engine
            if engine is None:
                continue
            self.longest = max(self.longest, time.monotonic() - progressed)
            if engine.base + engine.done != last:
                progressed, last = time.monotonic(), engine.base + engine.done
            if time.monotonic() > due:
                due = time.monotonic() + self._random.uniform(2.0, 5.0)
                self._hit(engine.processes())

    def _hit(self, living: dict[str, int]) -> None:
        if not living:
            return
        title = self._random.choice(sorted(living))
        number = self._random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
        with contextlib.suppress(ProcessLookupError):
            os.kill(living[title], number)
            self.hit.append((title, number.name))
        if self._soon:  # whoever takes its place is hit as it starts
            threading.Timer(self._random.uniform(0.0, 1.5), self._hit_again, (title, living[title])).start()

    def _hit_again(self, title: str, old: int) -> None:
        engine = self.engine
        found = engine.processes().get(title) if engine is not None else None
        if found not in (None, old) and not self.over:
            with contextlib.suppress(ProcessLookupError):
                os.kill(found, signal.SIGKILL)
                self.hit.append((title, "SIGKILL at its start"))


@pytest.mark.slow
@pytest.mark.parametrize("soon", [False, True], ids=["at work", "as they start"])
@pytest.mark.parametrize("policy", RUNS)
def test_a_run_ends_whatever_is_killed_or_stopped(policy, soon, monkeypatch, tmp_path):
    algorithm, seconds = RUNS[policy]
    chaos = Chaos(float(os.environ.get("CHAOS_SECONDS", seconds)), seed=1, soon=soon)
    deaths: list[str] = []
    advance, handle_death = LocalEngine.advance, Supervisor._handle_death

    def advancing(engine: LocalEngine, count: int, ahead: int = 0) -> Any:
        chaos.engine = engine
        if chaos.over:
            signal.raise_signal(signal.SIGINT)  # the run is long enough: it ends as if a user had stopped it
        return advance(engine, min(count, 20), 0 if chaos.over else ahead)

    def counting(supervisor: Supervisor, place: int, handle: Any) -> None:
        deaths.append(supervisor.titles[place])
        handle_death(supervisor, place, handle)

    monkeypatch.setattr(LocalEngine, "advance", advancing)
    monkeypatch.setattr(Supervisor, "_handle_death", counting)
    chaos.start()
    with pytest.raises(KeyboardInterrupt):
        tessera.train(
            algorithm, "gymnax:CartPole-v1", policy, steps=10**9, seed=1, envs=16, run_dir=tmp_path / "run",
            checkpoint_every=1.0, eval_episodes=2, quiet=True, timeout=TIMEOUT, start_timeout=30.0, restarts=10_000,
        )  # fmt: skip
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    updates = [row["update"] for row in rows]
    figures = {
        "policy": policy, "hit": len(chaos.hit), "deaths": len(deaths), "restarts": rows[-1]["restarts"],
        "updates": updates[-1], "longest": round(chaos.longest, 1),
    }  # fmt: skip
    print(json.dumps(figures))
    assert chaos.hit
    assert updates == sorted(set(updates))
    assert rows[-1]["restarts"] >= len(deaths) - 1  # the last one may have died after the last row
    if policy not in GO_BACK:
        assert chaos.longest < 60
    monkeypatch.undo()
    result = tessera.train(
        algorithm, "gymnax:CartPole-v1", policy, steps=16 * 8 * (updates[-1] + 50), seed=1, envs=16,
        run_dir=tmp_path / "run", resume=True, eval_episodes=2, quiet=True,
    )  # fmt: skip
    assert result.summary["updates"] > 0
