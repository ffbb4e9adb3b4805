"""The first number that is not finite stops a run, by name and update."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import pytest

import tessera
from tessera import policies
from tessera.algorithms.contract import State, View
from tessera.api import train
from tessera.cli.main import main
from tessera.engines.replica.reports import Reports, collect_reports
from tessera.errors import RunFailed
from tessera.planning.prepare import prepare_plan
from tessera.program.accounting import Tally
from tessera.program.training_program import Guard
from tessera.runs.guards import absurd_number, first_broken
from tessera.runs.metrics import Meter

HEAD = "policy_head"


@dataclass(frozen=True)
class Breaking(tessera.PPO):
    """PPO that breaks: `what` becomes `value` with the gradient number `at`, counted from 0."""

    name: ClassVar[str] = "breaking"

    what: str = "loss"
    """Which of loss, gradient and params breaks."""
    at: int = 0
    """How many gradients are applied before it does."""
    value: float = float("nan")
    """What it becomes."""

    def gradient(self, view: View, batch: Any, summary: Any, key: Any) -> Any:
        gradients, feedback = super().gradient(view, batch, summary, key)
        now = view.clock.applies == self.at
        if self.what == "loss":
            feedback.metrics["loss"] = jnp.where(now, self.value, feedback.metrics["loss"])
        if self.what == "gradient":
            gradients = self._break(gradients, now)
        return gradients, feedback

    def apply(self, state: State, gradients: Any, step: Any) -> State:
        before = state.clock.applies
        state = super().apply(state, gradients, step)
        return state._replace(params=self._break(state.params, before == self.at)) if self.what == "params" else state

    def _break(self, tree: Any, now: Any) -> Any:
        kernel = tree["params"][HEAD]["kernel"]
        head = {**tree["params"][HEAD], "kernel": kernel.at[0, 0].set(jnp.where(now, self.value, kernel[0, 0]))}
        return {"params": {**tree["params"], HEAD: head}}


TINY = {"widths": (4,), "unroll": 4, "epochs": 1, "minibatches": 1}


def run(algorithm: Breaking, folder: Path | None) -> None:
    one = policies.get("fused", devices=1)
    train(algorithm, "gymnax:CartPole-v1", one, envs=4, steps=4 * 4 * 50, run_dir=folder, quiet=True)


def check_dump(dump: Path, update: int, name: str, message: str) -> None:
    """All slots are there and load without pickle, beside a report that names the tensor."""
    assert str(dump) in message
    with np.load(dump / "slots.npz", allow_pickle=False) as slots:
        assert slots[f"state/params/params/{HEAD}/kernel"].shape == (4, 2)
        assert all(slots[key].dtype != object for key in slots)
    report = json.loads((dump / "report.json").read_text())
    assert (report["update"], report["tensor"]) == (update, name)
    assert 1 <= len(report["last"]["loss"]) <= update


@pytest.mark.parametrize(
    ("what", "value", "name"),
    [
        ("loss", "nan", "metric loss"),
        ("params", "-inf", f"params params/{HEAD}/kernel"),
    ],
)
def test_what_breaks_is_named_with_its_update_and_dumped(what: str, value: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(RunFailed) as caught:
        run(Breaking(**TINY, what=what, at=6, value=float(value)), tmp_path / "run")
    message = str(caught.value)
    assert message.startswith(f"{name} is not finite at update 7:")
    assert caught.value.exit_code == 1
    check_dump(tmp_path / "run" / "dump-7", 7, name, message)
    rows = [json.loads(row) for row in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["update"] for row in rows] == list(range(1, 7))


def test_on_the_command_line_an_infinite_gradient_exits_1_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here with several gradients per update: numbers 8 to 11 belong to update 3."""
    flags = "--envs 1 --widths 4 --unroll 4 --epochs 2 --minibatches 2 --what gradient --at 11 --value inf --quiet"
    with pytest.raises(SystemExit) as left:
        main(["train", "py:test_guards.Breaking", "gymnax:CartPole-v1", *flags.split(), "--run-dir", str(tmp_path)])
    shown = capsys.readouterr()
    assert left.value.code == 1
    assert shown.out == ""
    name = f"gradient of params/{HEAD}/kernel"
    assert re.fullmatch(rf"tessera: {name} is not finite at update 3: .*\n", shown.err)
    check_dump(tmp_path / "dump-3", 3, name, shown.err)


def reports(loss: list[float], gradients: list[list[float]], params: list[list[float]], tensors_at: int = 0) -> Reports:
    """Three updates of which everything broken broke at its first gradient; tensors at `tensors_at`."""
    tally = Tally(*[np.zeros(len(loss)) for _ in Tally._fields])
    at = np.full(np.shape(gradients), tensors_at)
    guard = Guard(np.asarray(gradients), at, np.asarray(params))
    return Reports(tally, {"loss": np.asarray(loss)}, {"loss": np.full(len(loss), 1)}, guard)


def test_the_earliest_update_counts_before_the_order_of_tensors() -> None:
    params = {"a": np.zeros(1), "b": np.zeros(1)}
    fine = [[1.0, 1.0]] * 3
    assert first_broken(reports([1.0] * 3, fine, fine), params) is None
    late = reports([1.0, 1.0, np.nan], [[1.0, 1.0], [1.0, np.inf], [1.0, 1.0]], fine)
    assert first_broken(late, params) == (1, "gradient of b")


def test_within_an_update_the_earliest_gradient_counts_and_within_that_the_loss() -> None:
    params = {"a": np.zeros(1), "b": np.zeros(1)}
    broken = ([1.0, np.nan, 1.0], [[1.0, 1.0], [np.nan, 1.0], [1.0, 1.0]], [[1.0, 1.0], [np.nan, 1.0], [1.0, 1.0]])
    assert first_broken(reports(*broken, tensors_at=0), params) == (1, "gradient of a")
    same = reports(*broken, tensors_at=1)
    same.metrics.update(entropy=same.metrics["loss"])
    same.broken_at.update(entropy=same.broken_at["loss"])
    assert first_broken(same, params) == (1, "metric loss")


def test_without_a_run_directory_the_dump_goes_to_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RunFailed) as caught:
        run(Breaking(**TINY, what="loss", at=6), None)
    (dump,) = tmp_path.glob("tessera-*/dump-7/slots.npz")
    assert str(dump.parent) in str(caught.value)


def test_a_gradient_that_breaks_amid_an_update_is_named_and_not_what_it_broke_afterwards(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"^gradient of .* is not finite at update 3:"):
        run(Breaking(**{**TINY, "epochs": 2, "minibatches": 2}, what="gradient", at=9), tmp_path)


def test_updates_that_a_dead_server_never_reported_are_no_error() -> None:
    """After the deaths of all shards an update may count as made of which no row has come."""
    params = {"a": np.zeros(1), "b": np.zeros(1)}
    unreported = collect_reports(prepare_plan(tessera.A2C(), "gymnax:CartPole-v1", "fused:devices=1")[2], {}, 3)
    assert first_broken(unreported, params) is None
    row = Meter().row(unreported)
    assert math.isnan(row["learn/gradient_norm"])


def test_a_loss_that_returns_cannot_explain_is_said_once_with_its_update(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--policy fused:devices=1 --envs 8 --unroll 8 --widths 8 --epochs 1 --minibatches 1 --steps 2560"
    flags += " --eval-episodes 2 --learning-rate 1e9 --run-dir"
    main(["train", "ppo", "gymnax:CartPole-v1", *flags.split(), str(tmp_path)])
    said = [line for line in capsys.readouterr().out.splitlines() if "probably diverged" in line]
    assert len(said) == 1, said
    assert re.match(r"metric loss is \d\.\de\+\d\d at update \d+, far beyond what returns of", said[0])
    assert "--learning-rate" in said[0]


@pytest.mark.parametrize(
    ("loss", "gradient", "mean_return", "absurd"),
    [
        (2e16, 1.0, 20.0, "metric loss is 2.0e+16 at update 12,"),
        (-2e16, 1.0, 20.0, "metric loss is -2.0e+16 at update 12,"),
        (1.0, 1e24, 20.0, "the gradient norm is 1.0e+12 at update 12,"),
        (1e6, 1e8, 20.0, None),  # values that are off by 1,000
        (1e12, 1e12, 1e6, None),  # returns in another unit
        (1e12, 1e12, -1e6, None),
        (1e12, 1.0, math.nan, None),  # before the first episode has ended
        (1e19, 1.0, math.nan, "metric loss is 1.0e+19 at update 12,"),
        (math.nan, math.nan, 20.0, None),  # the other guard's business
    ],
)
def test_whether_a_number_is_absurd_follows_from_returns(
    loss: float, gradient: float, mean_return: float, absurd: str | None
) -> None:
    made = reports([1.0, loss, loss], [[1.0], [gradient], [1.0]], [[1.0]] * 3)
    said = absurd_number(made, 10, mean_return)
    assert (said is None) is (absurd is None)
    assert said is None or said.startswith(str(absurd))
