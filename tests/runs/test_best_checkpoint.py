"""The best checkpoint: kept beside the newest, whatever is rotated, killed, resumed or damaged."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tessera
from tessera.algorithms.contract import Clock, View
from tessera.cli.main import main
from tessera.errors import TesseraError
from tessera.evaluation.evaluator import Evaluation
from tessera.runs import best_checkpoint
from tessera.runs.best_checkpoint import BestCheckpoint, read_best
from tessera.runs.checkpoint import Checkpoints, SaveFailed
from tessera.runs.run_evaluations import Evaluated

CARTPOLE = "gymnax:CartPole-v1"
SMALL = tessera.A2C(unroll=8, widths=(8,))
UPDATE = 8 * 8
OPTIONS: dict[str, Any] = {"envs": 8, "eval_episodes": 2, "quiet": True, "policy": "fused:devices=1"}
PLAYED: list[Any] = []
"""The params whose evaluation was called the best."""
META = {"algorithm": "a2c", "env": CARTPOLE}


def evaluated(update: int, mean_return: float) -> Evaluated:
    """An evaluation of params that hold the number of their update."""
    clock = Clock(jnp.int32(update), jnp.float32(9), jnp.int32(0))
    played = Evaluation(np.full(2, mean_return), np.ones(2))
    return Evaluated(update, 10 * update, played, View({"w": np.full(3, update)}, (), (), clock))


def offer(best: BestCheckpoint, *figures: tuple[int, float]) -> None:
    for update, mean_return in figures:
        found = evaluated(update, mean_return)
        if best.is_beaten_by(found):
            best.replace(found, META)


def kept(run: Path) -> tuple[int, float, float]:
    """Update, weight and mean return of the best checkpoint."""
    found = read_best(run)
    assert found is not None
    update, arrays, meta = found
    return update, float(arrays["state/params/w"][0]), meta["return_mean"]


def test_the_best_is_kept_and_later_ones_that_are_worse_are_not(tmp_path) -> None:
    notes: list[str] = []
    assert read_best(tmp_path) is None
    best = BestCheckpoint(tmp_path, notes.append)
    offer(best, (1, float("nan")), (2, 5.0), (4, 7.0), (6, 7.0), (8, 6.0))
    best.close()
    assert kept(tmp_path) == (4, 4.0, 7.0)
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["4"]
    assert not notes


def test_a_run_that_went_back_replaces_its_best_by_an_earlier_update(tmp_path) -> None:
    first = BestCheckpoint(tmp_path, print)
    offer(first, (9, 5.0))
    first.close()
    second = BestCheckpoint(tmp_path, print)
    assert (second.update, second.return_mean) == (9, 5.0)
    offer(second, (3, 4.0), (5, 6.0))
    second.close()
    assert kept(tmp_path) == (5, 5.0, 6.0)
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["5"]


def test_the_same_update_may_be_evaluated_again_and_do_better(tmp_path) -> None:
    best = BestCheckpoint(tmp_path, print)
    offer(best, (4, 5.0), (4, 6.0))
    best.close()
    assert kept(tmp_path) == (4, 4.0, 6.0)


def test_a_folder_that_counts_how_often_the_best_was_beaten_is_read_and_goes_on(tmp_path) -> None:
    old = Checkpoints(tmp_path / "best", keep=1)
    old.save(3, {"state": evaluated(40, 5.0).view}, {**META, "meter": {"updates": 40}, "return_mean": 5.0})
    old.close()
    assert kept(tmp_path) == (40, 40.0, 5.0)
    best = BestCheckpoint(tmp_path, print)
    offer(best, (44, 6.0))
    best.close()
    assert kept(tmp_path) == (44, 44.0, 6.0)
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["44"]


def test_without_evaluations_to_keep_the_best_is_known_and_left_alone(tmp_path) -> None:
    best = BestCheckpoint(tmp_path, print)
    offer(best, (4, 5.0))
    best.close()
    later = BestCheckpoint(tmp_path, print, keeps=False)
    assert not later.is_beaten_by(evaluated(8, 4.0))
    assert later.replace(evaluated(8, 6.0), META) is None
    assert kept(tmp_path) == (4, 4.0, 5.0)


def test_what_a_kill_leaves_half_written_or_not_yet_removed_does_no_harm(tmp_path) -> None:
    best = BestCheckpoint(tmp_path, print)
    offer(best, (2, 5.0))
    shutil.copytree(tmp_path / "best" / "2", tmp_path / "old")
    offer(best, (4, 7.0))
    best.close()
    (tmp_path / "old").rename(tmp_path / "best" / "2")  # the one before, which was not removed yet
    shutil.copytree(tmp_path / "best" / "4" / "slots", tmp_path / "best" / "6.orbax-checkpoint-tmp-1" / "slots")
    assert kept(tmp_path) == (4, 4.0, 7.0)
    shutil.rmtree(tmp_path / "best" / "2" / "slots")  # or only in part
    assert kept(tmp_path) == (4, 4.0, 7.0)
    again = BestCheckpoint(tmp_path, print)
    offer(again, (6, 8.0))
    again.close()
    assert kept(tmp_path) == (6, 6.0, 8.0)
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["6"]


def test_a_damaged_best_is_said_and_replaced(tmp_path) -> None:
    best = BestCheckpoint(tmp_path, print)
    offer(best, (2, 5.0))
    best.close()
    shutil.rmtree(tmp_path / "best" / "2" / "slots")
    with pytest.raises(TesseraError, match=r"the best checkpoint of .* is damaged"):
        read_best(tmp_path)
    notes: list[str] = []
    again = BestCheckpoint(tmp_path, notes.append)
    offer(again, (4, 3.0))
    again.close()
    assert kept(tmp_path) == (4, 4.0, 3.0)
    assert len(notes) == 1


def test_if_there_is_no_room_training_goes_on_and_a_later_one_is_kept(tmp_path, monkeypatch) -> None:
    def full(*_: Any) -> None:
        raise SaveFailed("checkpoint 1 could not be written")

    notes: list[str] = []
    best = BestCheckpoint(tmp_path, notes.append)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", full)
        offer(best, (2, 9.0))
    assert notes == ["checkpoint 1 could not be written: training goes on without"]
    offer(best, (4, 5.0))
    best.close()
    assert kept(tmp_path) == (4, 4.0, 5.0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 updates that keeps one checkpoint besides the best; its returns fall, so the first is the best."""
    folder = tmp_path_factory.mktemp("best") / "run"
    replace = BestCheckpoint.replace
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BestCheckpoint, "is_beaten_by", lambda self, found: found.update == 4)
        patch.setattr(BestCheckpoint, "replace", lambda self, found, meta: replace(self, evaluated_like(found), meta))
        tessera.train(
            SMALL, CARTPOLE, steps=12 * UPDATE, run_dir=folder, evaluate_every=4, keep=1, checkpoint_every=0, **OPTIONS
        )
    return folder


def evaluated_like(found: Evaluated) -> Evaluated:
    """The same with a return that no other reaches; its params are noted."""
    PLAYED[:] = [jax.device_get(found.view.params)]
    return Evaluated(found.update, found.env_steps, Evaluation(np.full(2, 500.0), np.ones(2)), found.view)


def test_rotation_never_removes_the_best(trained) -> None:
    assert [path.name for path in (trained / "checkpoints").iterdir()] == ["12"]
    assert tessera.load(trained).update == tessera.load(trained, checkpoint="newest").update == 12
    best = tessera.load(trained, checkpoint="best")
    assert best.update == tessera.load(trained, checkpoint=4).update == 4
    assert jax.tree.all(jax.tree.map(np.array_equal, best.params, PLAYED[0]))
    with pytest.raises(TesseraError, match="has no checkpoint 7: it keeps those of update 12 and, as the best, 4"):
        tessera.load(trained, checkpoint=7)


def test_a_resumed_run_does_not_forget_its_best(trained, tmp_path) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    options = {**OPTIONS, "run_dir": folder, "resume": True, "evaluate_every": 4}
    result = tessera.train(SMALL, CARTPOLE, steps=16 * UPDATE, **options)
    assert (result.summary["best_update"], result.summary["best_return_mean"]) == (4, 500.0)
    assert tessera.load(folder, checkpoint="best").update == 4
    assert tessera.load(folder).update == 16


def test_commands_take_the_best(trained, tmp_path, capsys) -> None:
    main(["export", str(trained), str(tmp_path / "act.stablehlo"), "--checkpoint", "best"])
    for choice, update in (("best", 4), ("4", 4), ("newest", 12)):
        capsys.readouterr()
        main(["eval", str(trained), "--episodes", "2", "--checkpoint", choice, "--format", "json"])
        assert json.loads(capsys.readouterr().out)["runs"][0]["update"] == update
    with pytest.raises(SystemExit) as left:
        main(["eval", str(trained), "--checkpoint", "worst"])
    assert left.value.code == 2
    assert "--checkpoint worst: choose newest, best, or the number of an update" in capsys.readouterr().err


def test_a_saved_agent_may_be_the_best(trained, tmp_path) -> None:
    best = tessera.load(trained, checkpoint="best")
    best.save(tmp_path / "agent")
    assert tessera.load(tmp_path / "agent").update == 4
    with pytest.raises(TesseraError, match=r"this agent is of update 4, and .* goes on from update 12"):
        best.train(100)


SCRIPT = f"""
import sys, tessera
from tessera.runs.best_checkpoint import BestCheckpoint
BestCheckpoint.is_beaten_by = lambda self, found: True  # every evaluation is written
tessera.train(
    tessera.A2C(unroll=8, widths=(8,)), "{CARTPOLE}", "fused:devices=1", envs=8, steps=10**8, eval_episodes=2,
    quiet=True, evaluate_every=2, checkpoint_every=0, run_dir=sys.argv[1], resume=True,
)
"""


@pytest.mark.slow
def test_the_best_is_whole_whenever_a_run_is_killed(tmp_path: Path) -> None:
    folder, random = tmp_path / "run", np.random.default_rng(0)
    before = 0
    for _ in range(6):
        run = subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)])
        try:
            end = time.monotonic() + 120
            while not (folder / best_checkpoint.FOLDER).exists() or _newest(folder) <= before:
                assert run.poll() is None
                assert time.monotonic() < end
                time.sleep(0.01)
            time.sleep(random.uniform(0, 0.3))
        finally:
            os.kill(run.pid, signal.SIGKILL)
            run.wait()
        best = tessera.load(folder, checkpoint="best")
        assert best.update > 0
        before = _newest(folder)


def _newest(folder: Path) -> int:
    return max((int(p.name) for p in (folder / best_checkpoint.FOLDER).iterdir() if p.name.isdecimal()), default=0)
