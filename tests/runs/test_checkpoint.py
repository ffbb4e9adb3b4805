"""Checkpoints: resume is exact, saves are atomic, and damage is noticed."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_metrics import documented_names

import tessera
from tessera import policies
from tessera.api import evaluate_run, train
from tessera.cli.main import main
from tessera.engines.local import LocalEngine
from tessera.engines.serial import SerialEngine
from tessera.errors import TesseraError
from tessera.runs.checkpoint import Checkpoints, flatten, unflatten
from tessera.runs.metrics import read_metrics

ENV = "gymnax:CartPole-v1"
ENVS = 8
ALGORITHMS = {
    "ppo": tessera.PPO(widths=(8,), unroll=8, epochs=2, minibatches=2),
    "ppo_lstm": tessera.PPO(widths=(8,), unroll=8, epochs=2, minibatches=1, core="lstm", core_width=4),
    "a2c": tessera.A2C(widths=(8,), unroll=8),
    "dqn": tessera.DQN(
        widths=(8,), unroll=8, draws=2, batch=16, capacity=512, warmup=2, prioritised=True, n_step=3, target_period=7
    ),
    "r2d2": tessera.R2D2(
        widths=(8,), core_width=4, unroll=8, draws=2, batch=16, capacity=512, warmup=2, n_step=3, target_period=7
    ),
}
UPDATES = 20


def go(name: str, folder: Path | None, resume: bool = False, policy: str = "fused", **options: Any) -> tessera.Result:
    """Train for UPDATES updates on one device."""
    algorithm = ALGORITHMS[name]
    chosen = policies.get("fused", devices=1) if policy == "fused" else policies.get(policy)
    steps = ENVS * 8 * (UPDATES + algorithm.schedule.warmup)
    given = {"checkpoint_every": 0.0, "eval_episodes": 1, "quiet": True, **options}
    return train(algorithm, ENV, chosen, steps=steps, envs=ENVS, run_dir=folder, resume=resume, **given)


def slots(folder: Path) -> dict[str, np.ndarray]:
    """All arrays of the newest checkpoint."""
    checkpoints = Checkpoints(folder / "checkpoints", read_only=True)
    latest = checkpoints.latest()
    assert latest is not None
    arrays, _ = checkpoints.load(latest)
    checkpoints.close()
    return arrays


def assert_same_bytes(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    different = [k for k in a if a[k].dtype != b[k].dtype or a[k].tobytes() != b[k].tobytes()]
    assert not different


def assert_continuous(folder: Path, updates: int, steps_per_update: int, before: int = 0) -> None:
    """No update is missing from metrics.jsonl and none is there twice."""
    rows = read_metrics(folder)
    made = [row["update"] for row in rows]
    assert made == sorted(set(made))
    assert made[0] == 1
    assert made[-1] == updates
    assert [row["env_steps"] for row in rows] == [before + u * steps_per_update for u in made]
    assert all(a["seconds"] < b["seconds"] for a, b in itertools.pairwise(rows))


def after_calls(monkeypatch: pytest.MonkeyPatch, calls: int, act: Callable[[], None]) -> None:
    """Call `act` once, right after the engine has advanced for the `calls`-th time."""
    left = [calls]

    def watch(kind: Any) -> None:
        advance = kind.advance

        def counted(self: Any, count: int, ahead: int = 0) -> Any:
            reports = advance(self, count, ahead)
            left[0] -= 1
            if left[0] == 0:
                act()
            return reports

        monkeypatch.setattr(kind, "advance", counted)

    watch(SerialEngine)
    watch(LocalEngine)


def crash() -> None:
    raise RuntimeError("crash")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The directory of an uninterrupted run, made when first asked for."""
    made: dict[tuple[str, str], Path] = {}

    def get(name: str, policy: str = "fused") -> Path:
        if (name, policy) not in made:
            folder = tmp_path_factory.mktemp(f"{name}-{policy}") / "run"
            result = go(name, folder, policy=policy)
            assert result.summary["updates"] == UPDATES
            assert set(result.metrics[0]) <= documented_names("metrics.jsonl")
            made[name, policy] = folder
        return made[name, policy]

    return get


@pytest.mark.parametrize(
    ("name", "policy", "number"),
    [
        ("ppo", "fused", signal.SIGTERM),
        pytest.param("ppo_lstm", "fused", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("a2c", "fused", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("dqn", "fused", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("r2d2", "fused", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("ppo", "single_learner_coarse", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("a2c", "single_learner_coarse", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("dqn", "single_learner_coarse", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_a_signal_stopped_goes_on_to_the_same_bits(
    name: str,
    policy: str,
    number: signal.Signals,
    whole: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reference = whole(name, policy)
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        after_calls(patch, 6, lambda: signal.raise_signal(number))
        with pytest.raises(SystemExit if number == signal.SIGTERM else KeyboardInterrupt) as left:
            go(name, tmp_path, policy=policy)
    if number == signal.SIGTERM:
        assert left.value.code == 143
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    stopped = int(read_metrics(tmp_path)[-1]["update"])
    assert 0 < stopped < UPDATES
    assert Checkpoints(tmp_path / "checkpoints", read_only=True).latest() == stopped
    assert not (tmp_path / "summary.json").exists()
    go(name, tmp_path, resume=True, policy=policy)
    assert_same_bytes(slots(reference), slots(tmp_path))
    assert_continuous(tmp_path, UPDATES, ENVS * 8, ALGORITHMS[name].schedule.warmup * ENVS * 8)
    final, original = (json.loads((f / "summary.json").read_text()) for f in (tmp_path, reference))
    for same in ("updates", "env_steps", "episodes", "train_return_mean", "eval_return_mean"):
        assert final[same] == original[same]


def test_a_crash_goes_on_from_the_checkpoint_before_it(
    whole: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        after_calls(patch, 5, crash)
        with pytest.raises(RuntimeError, match="crash"):
            go("ppo", tmp_path)
    saved = Checkpoints(tmp_path / "checkpoints", read_only=True).latest()
    assert saved is not None
    assert saved < read_metrics(tmp_path)[-1]["update"], "rows after the checkpoint are what resume must drop"
    go("ppo", tmp_path, resume=True)
    assert_same_bytes(slots(whole("ppo")), slots(tmp_path))
    assert_continuous(tmp_path, UPDATES, ENVS * 8)


@pytest.mark.slow
def test_a_crash_before_the_first_checkpoint_starts_from_the_beginning(
    whole: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        after_calls(patch, 3, crash)
        with pytest.raises(RuntimeError, match="crash"):
            go("ppo", tmp_path, checkpoint_every=1e9)
    assert (tmp_path / "config.json").exists()
    go("ppo", tmp_path, resume=True)
    assert_same_bytes(slots(whole("ppo")), slots(tmp_path))
    assert_continuous(tmp_path, UPDATES, ENVS * 8)


def command(name: str, folder: Path, updates: int, policy: str = "fused") -> list[str]:
    """The command line of a run of `updates` updates, ENVS × 8 steps each."""
    a = ALGORITHMS[name]
    flags = [f"--steps={ENVS * 8 * (updates + a.schedule.warmup)}", f"--envs={ENVS}", f"--policy={policy}"]
    flags += ["--widths", "8", "--unroll=8", "--eval-episodes=1", "--checkpoint-every=0", f"--run-dir={folder}"]
    if name == "ppo":
        flags += ["--epochs=2", "--minibatches=2"]
    if name == "dqn":
        replay = "--draws 2 --batch 16 --capacity 512 --warmup 2 --prioritised --n-step 3 --target-period 7"
        flags += replay.split()
    return [sys.executable, "-m", "tessera", "train", name, ENV, *flags]


def start(arguments: list[str]) -> subprocess.Popen[str]:
    """Start a run in a process with one device."""
    environment = {**os.environ, "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    if os.environ.get("TESSERA_CACHE"):  # as conftest does it: small programs are worth keeping too
        environment["JAX_COMPILATION_CACHE_DIR"] = str(Path(os.environ["TESSERA_CACHE"], "xla"))
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        environment["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    return subprocess.Popen(arguments, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(process: subprocess.Popen[str], seconds: float = 120) -> tuple[int, str]:
    """Exit code and output."""
    try:
        output, _ = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, output


def wait_for_update(process: subprocess.Popen[str], folder: Path, update: int, seconds: float = 120) -> None:
    """Return once the run has checkpointed at all and has made `update` updates."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        rows = read_metrics(folder)
        saved = (folder / "checkpoints").is_dir() and any(p.name.isdigit() for p in (folder / "checkpoints").iterdir())
        if saved and rows and rows[-1]["update"] >= update:
            return
        if process.poll() is not None:
            pytest.fail(f"the run ended before update {update}: {process.communicate()[0]}")
        time.sleep(0.002)
    process.kill()
    pytest.fail(f"update {update} was not reached in {seconds} s")


@pytest.mark.parametrize(
    ("name", "policy", "updates", "kills"),
    [
        ("ppo", "fused", 1_000, 1),
        pytest.param("ppo", "fused", 8_000, 4, marks=pytest.mark.slow),
        pytest.param("a2c", "fused", 8_000, 3, marks=pytest.mark.slow),
        pytest.param("dqn", "fused", 6_000, 3, marks=pytest.mark.slow),
        pytest.param("ppo", "single_learner_coarse", 1_000, 2, marks=pytest.mark.slow),
    ],
)
def test_after_sigkill_at_a_random_moment_resume_gives_the_same_bits(
    name: str, policy: str, updates: int, kills: int, tmp_path: Path
) -> None:
    """Kills fall anywhere, saves included; every slot of the last checkpoint is compared."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    code, output = finish(start(command(name, whole, updates, policy)), 300)
    assert code == 0, output
    moments = sorted(random.randrange(2, int(updates * 0.9)) for _ in range(kills))
    for k, moment in enumerate(moments):
        process = start([*command(name, killed, updates, policy), *(["--resume"] if k else [])])
        wait_for_update(process, killed, moment)
        os.kill(process.pid, signal.SIGKILL)
        assert finish(process)[0] == -signal.SIGKILL
    code, output = finish(start([*command(name, killed, updates, policy), "--resume"]), 300)
    assert code == 0, output
    assert f"resuming {killed} from update" in output
    assert_same_bytes(slots(whole), slots(killed))
    assert_continuous(killed, updates, ENVS * 8, ALGORITHMS[name].schedule.warmup * ENVS * 8)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT, signal.SIGHUP])
def test_a_process_that_is_signalled_saves_and_exits_as_shells_expect(number: signal.Signals, tmp_path: Path) -> None:
    # tests may have been started by nohup, under which SIGHUP is ignored
    process = start(["env", "--default-signal=HUP", *command("ppo", tmp_path / "run", 1_000_000)])
    wait_for_update(process, tmp_path / "run", 2)
    process.send_signal(number)
    code, output = finish(process)
    assert code == {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}[number]
    saved = Checkpoints(tmp_path / "run" / "checkpoints", read_only=True).latest()
    assert output.splitlines()[-1].startswith(f"{number.name}: saved update {saved} in")
    assert "Traceback" not in output


@pytest.mark.slow
def test_a_run_on_eight_devices_goes_on_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = ALGORITHMS["dqn"]
    options = {"steps": 8 * 8 * 22, "envs": 8, "eval_episodes": 1, "quiet": True}
    whole = train(algorithm, ENV, "fused", run_dir=tmp_path / "whole", **options)
    assert whole.plan.fragments[0].devices == 8
    with monkeypatch.context() as patch:
        after_calls(patch, 6, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(SystemExit):
            train(algorithm, ENV, "fused", run_dir=tmp_path / "cut", **options)
    train(algorithm, ENV, "fused", run_dir=tmp_path / "cut", resume=True, **options)
    assert_same_bytes(slots(tmp_path / "whole"), slots(tmp_path / "cut"))


def test_a_finished_run_that_is_resumed_stays_as_it_is(whole: Callable[..., Path], tmp_path: Path) -> None:
    shutil.copytree(whole("ppo"), tmp_path / "run")
    before = json.loads((tmp_path / "run" / "summary.json").read_text())
    go("ppo", tmp_path / "run", resume=True)
    after = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert {k: after[k] for k in ("updates", "env_steps", "eval_return_mean", "train_return_mean")} == {
        k: before[k] for k in ("updates", "env_steps", "eval_return_mean", "train_return_mean")
    }
    assert_same_bytes(slots(whole("ppo")), slots(tmp_path / "run"))
    assert_continuous(tmp_path / "run", UPDATES, ENVS * 8)


SNAPSHOT = {"state": {"a": np.arange(3.0), "b": (np.int32(4), np.ones((2, 2), bool))}}


def saved(folder: Path, *updates: int, keep: int = 3) -> Checkpoints:
    checkpoints = Checkpoints(folder, keep)
    for update in updates:
        checkpoints.save(update, SNAPSHOT, {"algorithm": "x"})
    return checkpoints


def test_only_the_last_n_checkpoints_are_kept(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2, 5, 9, keep=2)
    assert checkpoints.latest() == 9
    assert sorted(p.name for p in tmp_path.iterdir()) == ["5", "9"]
    with pytest.raises(TesseraError, match="--keep 0"):
        Checkpoints(tmp_path, keep=0)


def test_what_is_saved_comes_back_by_path_with_its_type(tmp_path: Path) -> None:
    arrays, meta = saved(tmp_path, 3).load(3)
    assert set(arrays) == {"state/a", "state/b/0", "state/b/1"}
    assert meta["algorithm"] == "x"
    assert_same_bytes(arrays, flatten(SNAPSHOT))
    back = unflatten(SNAPSHOT, arrays, "checkpoint 3")
    assert back["state"]["b"][0].dtype == np.int32


@pytest.mark.parametrize("leftover", ["7.orbax-checkpoint-tmp", "7.orbax-checkpoint-tmp-1700000000"])
def test_a_save_that_was_interrupted_is_ignored(leftover: str, tmp_path: Path) -> None:
    saved(tmp_path, 3).close()
    shutil.copytree(tmp_path / "3", tmp_path / leftover)
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() == 3
    checkpoints.save(7, SNAPSHOT, {"algorithm": "x"})
    assert checkpoints.latest() == 7
    checkpoints.load(7)


KILLED_WHILE_SAVING = """
import os, pathlib, signal, sys
from test_checkpoint import saved
checkpoints = saved(pathlib.Path(sys.argv[1]), 3)
def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)
os.rename = os.replace = pathlib.Path.rename = pathlib.Path.replace = die  # the moment before a save counts
saved(pathlib.Path(sys.argv[1]), 7)
"""


def test_a_kill_in_the_middle_of_a_save_leaves_the_one_before_usable(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    process = subprocess.Popen([sys.executable, "-c", KILLED_WHILE_SAVING, str(tmp_path)], env=environment)
    assert process.wait(timeout=120) == -signal.SIGKILL
    assert [p.name for p in tmp_path.iterdir() if "tmp" in p.name], "something was left half done"
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() == 3
    assert_same_bytes(checkpoints.load(3)[0], flatten(SNAPSHOT))
    checkpoints.save(7, SNAPSHOT, {"algorithm": "x"})
    assert_same_bytes(checkpoints.load(7)[0], flatten(SNAPSHOT))


def test_notes_that_are_no_object_or_of_another_version_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, 3).close()
    (notes,) = [p for p in (tmp_path / "3" / "meta").iterdir() if p.name == "metadata"]
    assert json.loads(notes.read_text())["format"] == 1
    notes.write_text("3")
    assert "damaged" in load(tmp_path)[1]
    notes.write_text('{"format": 99}')
    assert "has format 99, this version reads 1" in load(tmp_path)[1]


def load(folder: Path) -> tuple[dict[str, np.ndarray] | None, str]:
    """Arrays of the newest checkpoint, or the message of the error."""
    checkpoints = Checkpoints(folder, read_only=True)
    try:
        return checkpoints.load(checkpoints.latest() or 0)[0], ""
    except TesseraError as error:
        return None, str(error)
    finally:
        checkpoints.close()


def test_a_file_cut_short_is_an_error_or_changes_nothing(tmp_path: Path) -> None:
    saved(tmp_path / "whole", 3).close()
    files = [p.relative_to(tmp_path / "whole") for p in (tmp_path / "whole" / "3").rglob("*") if p.is_file()]
    assert files
    errors = 0
    for k, file in enumerate(files):
        folder = tmp_path / str(k)
        shutil.copytree(tmp_path / "whole", folder)
        content = (folder / file).read_bytes()
        (folder / file).write_bytes(content[: len(content) // 2])
        arrays, error = load(folder)
        if arrays is not None:
            assert_same_bytes(arrays, flatten(SNAPSHOT))
            continue
        errors += 1
        assert "checkpoint 3 in" in error
        assert "damaged" in error
        assert "\n" not in error
    assert errors


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must exit 2; its one line."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    err = capsys.readouterr().err
    assert left.value.code == 2, err
    assert err.count("\n") == 1
    return err


def test_a_damaged_checkpoint_exits_2_with_what_to_do(
    whole: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole("ppo"), run)
    data = [p for p in (run / "checkpoints" / str(UPDATES) / "slots").rglob("*") if p.is_file()]
    for path in data:
        path.write_bytes(os.urandom(len(path.read_bytes())))
    message = fails(capsys, "eval", str(run))
    assert f"checkpoint {UPDATES} in" in message
    earlier = max(int(p.name) for p in (run / "checkpoints").iterdir() if p.name.isdigit() and int(p.name) < UPDATES)
    assert f"delete the folders of later updates to go on from {earlier}, the newest one that is intact" in message
    with pytest.raises(TesseraError, match="damaged"):
        go("ppo", run, resume=True)
    shutil.rmtree(run / "checkpoints" / str(UPDATES))
    go("ppo", run, resume=True)
    assert_same_bytes(slots(whole("ppo")), slots(run))


def test_a_checkpoint_of_another_algorithm_or_other_widths_is_refused(
    whole: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole("ppo"), run)
    base = ["--run-dir", str(run), "--resume", "--policy", "fused", "--envs", str(ENVS), "--quiet"]
    assert "was run with algorithm = 'ppo', not 'a2c'" in fails(capsys, "train", "a2c", ENV, *base)
    assert "was run with widths = [8], not [16]" in fails(
        capsys, "train", "ppo", ENV, *base, "--unroll", "8", "--epochs=2", "--minibatches=2", "--widths", "16"
    )
    config = json.loads((run / "config.json").read_text())
    config["algorithm"]["widths"] = [16]
    (run / "config.json").write_text(json.dumps(config))
    assert "of shape" in fails(capsys, "eval", str(run))
    config["algorithm"] = {"name": "a2c", "class": "tessera.algorithms.a2c.A2C", "widths": [8]}
    (run / "config.json").write_text(json.dumps(config))
    assert "made by another algorithm" in fails(capsys, "eval", str(run))


class Bomb:
    """A pickle that leaves a mark when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (Path.touch, (self.mark,))


def test_a_checkpoint_folder_made_by_hand_cannot_run_code(whole: Callable[..., Path], tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists(), "the bomb itself works"
    mark.unlink()
    every = [p for p in (whole("ppo") / "checkpoints" / str(UPDATES)).rglob("*") if p.is_file()]
    for k, file in enumerate([None, *every]):
        run = tmp_path / str(k)
        shutil.copytree(whole("ppo"), run)
        for path in every if file is None else [file]:
            (run / path.relative_to(whole("ppo"))).write_bytes(pickle.dumps(Bomb(mark)))
        arrays, error = load(run / "checkpoints")
        assert arrays is not None or "damaged" in error
        assert not mark.exists(), file


def test_an_array_that_only_claims_to_be_huge_is_refused_before_it_is_made(tmp_path: Path) -> None:
    import tensorstore

    Checkpoints(tmp_path).save(1, {"a": np.ones(4, np.float32)}, {})
    kvstore = {"driver": "ocdbt", "base": f"file://{tmp_path}/1/slots/", "path": "a/"}
    array = tensorstore.open({"driver": "zarr", "kvstore": kvstore}, open=True).result()
    array.resize(exclusive_max=[2**45]).result()
    with pytest.raises(TesseraError, match=r"declares 131,072 GB of arrays, available: .* delete that folder"):
        Checkpoints(tmp_path).load(1)


def test_a_name_that_leads_out_of_the_folder_is_a_name_like_any_other(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    checkpoints.save(1, {"../../../outside": np.ones(4, np.float32)}, {})
    arrays, _ = checkpoints.load(1)
    with pytest.raises(TesseraError, match=r"holds '\.\./\.\./\.\./outside', so it was made by another algorithm"):
        unflatten({}, arrays, "checkpoint 1")
    assert not outside.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


def test_a_configuration_cannot_name_something_that_is_no_algorithm(whole: Callable[..., Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole("ppo"), run)
    config = json.loads((run / "config.json").read_text())
    config["algorithm"]["class"] = "os.system"
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(TesseraError, match=r"'py:os\.system' is not one of Tessera's"):
        evaluate_run(run)
    with pytest.raises(TesseraError, match=r"os\.system is not an Algorithm"):
        evaluate_run(run, trust=True)
