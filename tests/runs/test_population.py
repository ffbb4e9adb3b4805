"""Population-based training: one program and processes agree, and a run that was interrupted goes on exactly."""

from __future__ import annotations

import importlib
import json
import math
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import tessera
from tessera.cli.main import main
from tessera.errors import RunFailed, TesseraError
from tessera.program.accounting import Tally
from tessera.runs.checkpoint import Checkpoints
from tessera.runs.lineage import read_lineage
from tessera.runs.metrics import Meter, read_metrics
from tessera.runs.population import Population, Tuned
from tessera.runs.seed_folders import run_folders

CARTPOLE = "gymnax:CartPole-v1"
SMALL = tessera.A2C(unroll=8, widths=(8,))
UPDATE = 8 * 8
"""Environment steps of one update of `SMALL`."""
RANGES = {"learning_rate": "log:1e-4:1e-1", "gamma": "0.9:0.999"}
POPULATION = Population(4, RANGES, every=5)
OPTIONS: dict[str, Any] = {"envs": 8, "eval_episodes": 2, "quiet": True, "steps": 23 * UPDATE}
CUT = "single_learner_coarse:actors=1"
"""Members of a plan in which something is cut have processes of their own."""


def difference(a: Any, b: Any) -> float:
    """The largest difference between two trees of arrays."""
    return max(jax.tree.leaves(jax.tree.map(lambda x, y: float(np.abs(np.subtract(x, y)).max()), a, b)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tessera.SeedResults:
    """Four members, four exchanges; tests leave the folder as it is."""
    folder = tmp_path_factory.mktemp("runs") / "population"
    return tessera.train(SMALL, CARTPOLE, population=POPULATION, run_dir=folder, keep=100, seed=3, **OPTIONS)


def folder_of(results: tessera.SeedResults) -> Path:
    assert results.run_dir is not None
    return results.run_dir


def test_each_exchange_is_in_the_lineage_and_the_worst_has_the_state_of_a_better_one(whole) -> None:
    rows = read_lineage(folder_of(whole))
    assert [(row["update"], row["seed"]) for row in rows] == [(u, s) for u in (0, 5, 10, 15, 20) for s in (3, 4, 5, 6)]
    for at in range(4, len(rows), 4):
        before, now = rows[at - 4 : at], rows[at : at + 4]
        scores = {row["seed"]: row["score"] for row in now if row["score"] is not None}
        for old, row in zip(before, now, strict=True):
            if row["parent"] == row["seed"]:
                assert row["tuned"] == old["tuned"]
            else:
                assert scores[row["parent"]] == max(scores.values())
                assert row["tuned"] != old["tuned"]
    assert any(row["parent"] not in (None, row["seed"]) for row in rows)


def test_metrics_tell_the_values_and_members_are_runs_that_can_be_loaded(whole) -> None:
    folder = folder_of(whole)
    newest = {row["seed"]: row["tuned"] for row in read_lineage(folder)[-4:]}
    first = {row["seed"]: row["tuned"] for row in read_lineage(folder)[:4]}
    for seed, member in zip((3, 4, 5, 6), run_folders(folder), strict=True):
        rows = read_metrics(member)
        assert {name: rows[0][f"tuned/{name}"] for name in RANGES} == first[seed]
        assert {name: rows[-1][f"tuned/{name}"] for name in RANGES} == newest[seed]
        held = whole.runs[seed].state.clock.tuned
        assert {name: float(held[name]) for name in RANGES} == pytest.approx(newest[seed])
        config = json.loads((member / "config.json").read_text())
        assert config["algorithm"]["gamma"] == first[seed]["gamma"]
        assert config["population"]["tune"] == RANGES
        agent = tessera.load(member)
        assert int(agent.act(np.zeros(4, np.float32))) in (0, 1)
        assert difference(agent.params, whole.runs[seed].params) == 0


@pytest.mark.usefixtures("x64")
def test_without_an_exchange_a_member_is_the_lone_run_with_its_values() -> None:
    never = Population(2, RANGES, every=0)
    together = tessera.train(SMALL, CARTPOLE, population=never, seed=3, precision="f64", **OPTIONS)
    for member, seed in enumerate((3, 4)):
        values: Any = never.first(3, member)
        algorithm = tessera.A2C(unroll=8, widths=(8,), **values)
        alone = tessera.train(algorithm, CARTPOLE, "fused:devices=1", seed=seed, precision="f64", **OPTIONS)
        assert difference(alone.params, together.runs[seed].params) < 1e-9


def resumed(folder: Path, **changed: Any) -> tessera.SeedResults:
    options = {**OPTIONS, "population": POPULATION, "keep": 100, "seed": 3, **changed}
    return tessera.train(SMALL, CARTPOLE, run_dir=folder, resume=True, **options)


def assert_same(found: tessera.SeedResults, expected: tessera.SeedResults) -> None:
    for seed, run in expected.runs.items():
        assert difference(found.runs[seed].state, run.state) == 0
    assert read_lineage(folder_of(found)) == read_lineage(folder_of(expected))


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param({4: 5, 6: 15}, id="some"),
        pytest.param({3: 20}, id="one", marks=pytest.mark.slow),
    ],
)
def test_members_go_on_together_from_the_newest_update_that_all_have_saved(whole, tmp_path, lost) -> None:
    folder = Path(shutil.copytree(folder_of(whole), tmp_path / "copy"))
    for seed, last in lost.items():
        Checkpoints(folder / f"seed-{seed}" / "checkpoints", keep=None).forget_after(last)
    found = resumed(folder)
    assert_same(found, whole)
    for member in run_folders(folder):
        updates = [row["update"] for row in read_metrics(member)]
        assert updates == sorted(set(updates))


def test_members_without_an_update_in_common_are_refused_and_lose_nothing(whole, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folder_of(whole), tmp_path / "copy"))
    shutil.rmtree(folder / "seed-3")
    with pytest.raises(TesseraError, match="no checkpoint of one update in common"):
        resumed(folder)
    for seed in (4, 5, 6):
        assert Checkpoints(folder / f"seed-{seed}" / "checkpoints", read_only=True).updates() == [5, 10, 15, 20, 23]


def test_all_members_have_a_checkpoint_in_common_however_few_are_kept(tmp_path: Path) -> None:
    options = {**OPTIONS, "population": Population(2, RANGES, every=5), "steps": 12 * UPDATE, "keep": 1}
    tessera.train(SMALL, CARTPOLE, run_dir=tmp_path / "run", **options)
    for member in run_folders(tmp_path / "run"):
        assert Checkpoints(member / "checkpoints", read_only=True).updates() == [10, 12]


def test_a_random_search_in_parts_has_a_lineage_of_all_members(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(importlib.import_module("tessera.api"), "members_at_once", lambda *_: 2)
    options = {**OPTIONS, "population": Population(3, RANGES, every=0), "steps": 2 * UPDATE}
    tessera.train(SMALL, CARTPOLE, run_dir=tmp_path / "run", **options)
    assert [(row["update"], row["seed"]) for row in read_lineage(tmp_path / "run")] == [(0, 0), (0, 1), (0, 2)]
    with pytest.raises(TesseraError, match="memory holds 2 of 3 members at once, and they have to meet"):
        tessera.train(SMALL, CARTPOLE, **{**options, "population": Population(3, RANGES, every=1)})


def test_a_copy_is_judged_by_the_episodes_that_it_has_played_itself() -> None:
    def played(returns: list[float]) -> Tally:
        ones = np.ones(len(returns))
        return Tally(steps=ones, episodes=ones, return_sum=np.array(returns), length_sum=ones, info=None)

    meter = Meter()
    meter.count(played([10.0, 20.0]))
    copy = Meter.from_json(json.loads(json.dumps(meter.to_json())))
    assert (copy.mean_return, copy.own_return) == (15.0, 15.0)
    copy.own.clear()
    assert math.isnan(copy.own_return)
    copy.count(played([60.0]))
    assert (copy.mean_return, copy.own_return) == (30.0, 60.0)


def test_a_signal_at_an_exchange_leaves_all_to_be_done_again(whole, tmp_path: Path) -> None:
    sent: list[int] = []

    class Stop(tessera.Callback):
        def on_update(self, event: tessera.UpdateEvent) -> None:
            if event.update == 10 and not sent:
                sent.append(signal.SIGTERM)
                signal.raise_signal(signal.SIGTERM)

    options = {**OPTIONS, "population": POPULATION, "keep": 100, "seed": 3}
    with pytest.raises(SystemExit):
        tessera.train(SMALL, CARTPOLE, run_dir=tmp_path / "run", callbacks=[Stop()], **options)
    assert_same(resumed(tmp_path / "run"), whole)


@dataclass(frozen=True)
class Given(Population):
    """A population whose members begin with these learning rates."""

    rates: tuple[float, ...] = ()

    def first(self, seed: int, member: int) -> Tuned:
        return {"learning_rate": self.rates[member]}


def test_a_member_that_breaks_goes_on_from_a_better_one(tmp_path: Path) -> None:
    population = Given(3, {"learning_rate": "1e-3:1e-2"}, every=5, rates=(1e-3, 1e30, 2e-3))
    options = {**OPTIONS, "steps": 12 * UPDATE}
    found = tessera.train(tessera.PPO(unroll=8, widths=(8,)), CARTPOLE, population=population,
                          run_dir=tmp_path / "run", **options)  # fmt: skip
    (row,) = [row for row in read_lineage(tmp_path / "run") if row["update"] == 5 and row["seed"] == 1]
    assert row["score"] is None
    assert row["parent"] in (0, 2)
    assert all(run.summary["updates"] == 12 for run in found.runs.values())
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(found.runs[1].params))


@pytest.mark.slow
def test_the_run_fails_where_all_members_break() -> None:
    population = Given(2, {"learning_rate": "1e-3:1e-2"}, every=5, rates=(1e30, 1e30))
    with pytest.raises(RunFailed, match="2 of 2 seeds failed"):
        tessera.train(tessera.PPO(unroll=8, widths=(8,)), CARTPOLE, population=population, **OPTIONS)


@pytest.mark.usefixtures("x64")
def test_members_on_processes_make_the_exchanges_of_one_program(tmp_path: Path) -> None:
    population = Population(3, RANGES, every=5)
    options = {**OPTIONS, "population": population, "precision": "f64", "steps": 12 * UPDATE}
    apart = tessera.train(SMALL, CARTPOLE, CUT, engine="serial", run_dir=tmp_path / "apart", **options)
    together = tessera.train(SMALL, CARTPOLE, run_dir=tmp_path / "together", **options)
    assert read_lineage(tmp_path / "apart") == read_lineage(tmp_path / "together")
    assert any(row["parent"] not in (None, row["seed"]) for row in read_lineage(tmp_path / "apart"))
    for seed, run in together.runs.items():
        assert difference(run.params, apart.runs[seed].params) < 1e-9
        assert difference(run.state.clock.tuned, apart.runs[seed].state.clock.tuned) < 1e-12
    again = tessera.train(SMALL, CARTPOLE, CUT, engine="serial", run_dir=tmp_path / "apart", resume=True, **options)
    assert difference({s: r.params for s, r in again.runs.items()}, {s: r.params for s, r in apart.runs.items()}) == 0


STRATEGY = Population(4, every=5, sigma=0.05)


@pytest.mark.usefixtures("x64")
def test_an_evolution_strategy_goes_on_near_the_mean_of_the_better_half(tmp_path: Path) -> None:
    """A step of plain numbers: weights of 1, 1 and a rate of 0 leave the mean of what the members began with."""
    options = {**OPTIONS, "population": STRATEGY, "precision": "f64", "steps": 12 * UPDATE, "keep": 100}
    frozen = tessera.A2C(unroll=8, widths=(8,), learning_rate=0.0)
    tessera.train(frozen, CARTPOLE, run_dir=tmp_path / "run", **options)
    rows = [row for row in read_lineage(tmp_path / "run") if row["update"] == 5]
    weights = np.array([row["weight"] for row in rows])
    assert (weights > 0).sum() == 2
    assert weights.argmax() == np.argmax([row["score"] for row in rows])
    paths = [tmp_path / "run" / f"seed-{seed}" / "checkpoints" for seed in range(4)]
    before, after = ([Checkpoints(path, read_only=True).load(update)[0] for path in paths] for update in (5, 10))
    kernels = [path for path in before[0] if path.startswith("state/params/") and path.endswith("kernel")]
    assert kernels
    for name in kernels:
        mean = np.tensordot(weights, [arrays[name] for arrays in before], 1)
        moved = np.array([arrays[name] for arrays in after]) - mean
        assert moved[0] == pytest.approx(-moved[1], abs=1e-12)  # neighbours have opposite noise
        assert moved[2] == pytest.approx(-moved[3], abs=1e-12)
        assert 0.02 < moved.std() < 0.08
        assert np.abs(moved[0] - moved[2]).max() > 0.01
        copies = [path for path in after[0] if path.endswith(name.removeprefix("state/")) and "/params/" in path]
        assert any(path.startswith("acting/") for path in copies)
        for arrays in after:
            assert all(np.array_equal(arrays[path], arrays[name]) for path in copies if "optimizer" not in path)


@pytest.mark.usefixtures("x64")
def test_an_evolution_strategy_on_processes_is_that_of_one_program_and_goes_on_exactly(tmp_path: Path) -> None:
    options = {**OPTIONS, "population": STRATEGY, "precision": "f64", "steps": 12 * UPDATE, "keep": 100}
    apart = tessera.train(SMALL, CARTPOLE, CUT, engine="serial", run_dir=tmp_path / "apart", **options)
    together = tessera.train(SMALL, CARTPOLE, run_dir=tmp_path / "together", **options)
    for mine, theirs in zip(*(read_lineage(tmp_path / name) for name in ("apart", "together")), strict=True):
        assert mine == theirs
    for seed, run in together.runs.items():
        assert difference(run.params, apart.runs[seed].params) < 1e-9
    assert difference(together.runs[0].params, together.runs[2].params) > 1e-3
    Checkpoints(tmp_path / "together" / "seed-1" / "checkpoints", keep=None).forget_after(5)
    again = tessera.train(SMALL, CARTPOLE, run_dir=tmp_path / "together", resume=True, **options)
    for seed, run in together.runs.items():
        assert difference(run.state, again.runs[seed].state) == 0


COMMAND = ["train", "a2c", CARTPOLE, "--population", "3", "--pbt-every", "5",
           "--unroll", "8", "--widths", "8", "--envs", "8", "--eval-episodes", "2", "--engine", "serial",
           "--policy", CUT, "--steps", str(17 * UPDATE), "--quiet"]  # fmt: skip


def test_a_random_search_on_processes_has_the_values_that_were_drawn(tmp_path: Path) -> None:
    never = Population(2, RANGES, every=0)
    options = {**OPTIONS, "population": never, "steps": 2 * UPDATE}
    found = tessera.train(SMALL, CARTPOLE, CUT, engine="serial", run_dir=tmp_path / "run", **options)
    rows = read_lineage(tmp_path / "run")
    assert [row["tuned"] for row in rows] == [never.first(0, 0), never.first(0, 1)]
    for member, run in found.runs.items():
        held = run.state.clock.tuned
        assert {name: float(held[name]) for name in RANGES} == never.first(0, member)


def test_a_copy_that_a_kill_left_beside_the_checkpoints_takes_their_place(tmp_path: Path) -> None:
    options = {**OPTIONS, "population": Population(3, RANGES, every=5), "steps": 12 * UPDATE, "keep": 100}
    tessera.train(SMALL, CARTPOLE, CUT, engine="serial", run_dir=tmp_path / "run", **options)
    (*_, copied) = (row for row in read_lineage(tmp_path / "run") if row["parent"] not in (None, row["seed"]))
    assert copied["update"] == 10
    rows = [row for row in read_lineage(tmp_path / "run") if row["update"] <= copied["update"]]
    states = {}
    for seed in range(3):  # as the exchange of `copied` left them, but that a kill came before its last step
        checkpoints = tmp_path / "run" / f"seed-{seed}" / "checkpoints"
        Checkpoints(checkpoints, keep=None).forget_after(copied["update"])
        states[seed] = Checkpoints(checkpoints, read_only=True).load(copied["update"])[0]
    (tmp_path / "run" / "lineage.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    member = tmp_path / "run" / f"seed-{copied['seed']}"
    (member / "inheriting").mkdir()
    (member / "checkpoints" / str(copied["update"])).rename(member / "inheriting" / str(copied["update"]))
    again = tessera.train(SMALL, CARTPOLE, CUT, engine="serial", run_dir=tmp_path / "run", resume=True, **options)
    assert all(run.summary["updates"] == 12 for run in again.runs.values())
    assert not (member / "inheriting").exists()
    found = Checkpoints(member / "checkpoints", read_only=True).load(copied["update"])[0]
    assert all(np.array_equal(found[path], x) for path, x in states[copied["seed"]].items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [["--pbt", "learning_rate=log:1e-4:1e-1"], ["--es-sigma", "0.05"]], ids=["pbt", "es"])
def test_a_population_on_processes_survives_kill_9_at_any_moment(kind: list[str], tmp_path: Path) -> None:
    def run(folder: Path, *more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tessera", *COMMAND, *kind, "--run-dir", str(folder), *more]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    assert run(tmp_path / "whole").wait(300) == 0
    expected = read_lineage(tmp_path / "whole")
    seen = 0
    killed = run(tmp_path / "killed")
    end = time.monotonic() + 600
    while killed.poll() is None:  # killed each time it has written more of the lineage
        assert time.monotonic() < end
        rows = read_lineage(tmp_path / "killed") if (tmp_path / "killed" / "config.json").exists() else []
        if len(rows) > seen:
            seen = len(rows)
            killed.kill()
            killed.wait()
            killed = run(tmp_path / "killed", "--resume")
        time.sleep(0.02)
    assert killed.returncode == 0, killed.communicate()[0]
    assert seen == len(expected)
    assert read_lineage(tmp_path / "killed") == expected
    for name in ("seed-0", "seed-1", "seed-2"):
        whole, found = (
            Checkpoints(tmp_path / run / name / "checkpoints", read_only=True) for run in ("whole", "killed")
        )
        update = whole.latest()
        assert update is not None
        arrays, others = whole.load(update)[0], found.load(update)[0]
        assert all(np.array_equal(arrays[path], others[path]) for path in arrays)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--population", "1"], "at least two members"),
        (["--population", "2", "--seeds", "2"], "give one of them"),
        (["--population", "2", "--pbt", "learning_rat=0:1"], "did you mean 'learning_rate'"),
        (["--population", "2", "--pbt", "unroll=1:9"], "known: |did you mean"),
        (["--population", "2", "--pbt", "learning_rate"], "write field=low:high"),
        (["--population", "2", "--pbt", "learning_rate=log:0:1"], "a logarithm needs numbers above zero"),
        (["--population", "2", "--pbt", "clap=0:1"], "unknown field of ppo to tune 'clap': did you mean 'clip'"),
        (["--population", "2", "--pbt", "gamma=0.5:1.5"], "must lie between 0 and 1"),
        (["--population", "2", "--pbt-every", "-1"], "cannot be below zero"),
        (["--population", "2", "--patience", "1", "--evaluate-every", "1"], "--patience would end a member"),
        (["--pbt", "gamma=0.5:0.9"], "--pbt needs --population"),
        (["--es-sigma", "0.1"], "--es-sigma needs --population"),
        (["--population", "4", "--es-sigma", "-1"], "cannot be below zero"),
        (["--population", "4", "--es-sigma", "0.1", "--pbt-every", "0"], "leave out --pbt-every 0"),
        (["--population", "4", "--es-sigma", "0.1", "--pbt", "gamma=0.5:0.9"], "leave out what --pbt"),
    ],
)
def test_what_makes_no_sense_is_refused(flags, words, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["train", "ppo", CARTPOLE, *flags])
    assert stopped.value.code == 2
    shown = capsys.readouterr()
    assert any(word in shown.out + shown.err for word in words.split("|"))
    assert list(tmp_path.iterdir()) == []


def test_ranges_that_the_algorithm_refuses_beside_each_other_are_refused() -> None:
    with pytest.raises(
        TesseraError, match=r"may come to rho_bar=0\.5, where --c-bar 1: must be at most --rho-bar 0\.5"
    ):
        tessera.train(tessera.IMPALA(), CARTPOLE, population=Population(2, {"rho_bar": "0.5:2"}), **OPTIONS)
    with pytest.raises(TesseraError, match="gae_lambda decides which moves of a game with hidden cards"):
        tessera.train(tessera.PPO(), "pgx:kuhn_poker", population=Population(2, {"gae_lambda": "0.9:1"}), **OPTIONS)
    given: Any = {"gamma": (0.9, 1.0)}
    with pytest.raises(TesseraError, match="write a text such as"):
        tessera.train(tessera.PPO(), CARTPOLE, population=Population(2, given), **OPTIONS)


def test_a_folder_of_a_population_goes_on_as_one_only(whole, tmp_path: Path) -> None:
    with pytest.raises(TesseraError, match="holds a run of a population: add --population"):
        tessera.train(SMALL, CARTPOLE, run_dir=folder_of(whole), resume=True, **OPTIONS)
    with pytest.raises(TesseraError, match="was run with"):
        resumed(folder_of(whole), population=Population(4, RANGES, every=6))
    with pytest.raises(TesseraError, match="was run with seeds = 4, not 5"):
        resumed(folder_of(whole), population=Population(5, RANGES, every=5))
    assert not math.isnan(whole.summary["eval_return_iqm"])
