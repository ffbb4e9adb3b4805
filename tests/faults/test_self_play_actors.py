"""A self-play actor is killed: the run goes on, and positions that waited in its memory are counted as lost."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

import tessera
from tessera.engines.local import LocalEngine

SMALL = tessera.AlphaZero(unroll=3, simulations=4, draws=1, batch=32, capacity=2_000, channels=4, blocks=1)
ENVS, LONGEST = 8, 9
PLAYER = "env+act/0"


def kill_once(monkeypatch: pytest.MonkeyPatch, after: int) -> list[int]:
    """Kill a self-play actor after some updates; says how many positions it said that it kept back."""
    kept, advance = list[int](), LocalEngine.advance

    def advancing(engine: LocalEngine, count: int, ahead: int = 0) -> Any:
        if not kept and engine.done >= after:
            os.kill(engine.processes()[PLAYER], signal.SIGSTOP)  # it writes nothing any more
            kept.append(engine.controls[engine.supervisor.titles.index(PLAYER)].unsent)
            os.kill(engine.processes()[PLAYER], signal.SIGKILL)
        return advance(engine, min(count, after), ahead)

    monkeypatch.setattr(LocalEngine, "advance", advancing)
    return kept


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_run_outlives_its_player_and_counts_the_positions_that_were_lost(mode, monkeypatch, tmp_path):
    kept = kill_once(monkeypatch, after=10)
    warmup = 3 + SMALL.warmup  # unrolls of the longest game, and more
    result = tessera.train(
        SMALL, "pgx:tic_tac_toe", f"single_learner_coarse:actors=2,mode={mode}", seed=1, envs=ENVS,
        steps=(warmup + 40) * SMALL.unroll * ENVS, run_dir=tmp_path / "run", eval_episodes=2, quiet=True,
    )  # fmt: skip
    assert len(kept) == 1
    assert 0 < kept[0] <= LONGEST * ENVS // 2
    assert result.summary["restarts"] == 1
    assert result.summary["lost_rows"] == kept[0]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["lost_rows"] == 0
    assert rows[-1]["lost_rows"] == kept[0]
    updates = [row["update"] for row in rows]
    assert updates == sorted(set(updates))  # nobody went back to a checkpoint
    assert updates[-1] == result.summary["updates"]
