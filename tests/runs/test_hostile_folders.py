"""Run folders from elsewhere are data: nothing that they name runs, nothing outside is touched, one sentence each."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import tessera
from tessera.algorithms.contract import Algorithm
from tessera.cli.main import main
from tessera.envs import runs_foreign_code
from tessera.errors import TesseraError
from tessera.runs.checkpoint import Checkpoints
from tessera.runs.metrics import MetricsWriter, read_metrics
from tessera.runs.saved_run import load_run
from tessera.support import files

TRAIN = ["train", "a2c", "gymnax:CartPole-v1", "--policy", "fused:devices=1", "--unroll", "8", "--widths", "8"]
TRAIN += ["--envs", "8", "--eval-episodes", "2", "--quiet", "--seed", "1", "--keep", "2", "--checkpoint-every", "0"]
STEPS = 8 * 8 * 6


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short real run; tests change copies of it."""
    run = tmp_path_factory.mktemp("trained") / "run"
    main([*TRAIN, "--steps", str(STEPS), "--run-dir", str(run)])
    assert len([p for p in (run / "checkpoints").iterdir() if p.name.isdigit()]) == 2
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run; the working folder is an empty one, where a command that ran would leave its mark."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return Path(shutil.copytree(trained, tmp_path / "run"))


def sentence(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must exit 2; its one sentence."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    shown = capsys.readouterr()
    assert left.value.code == 2, shown.err
    assert shown.err.startswith("tessera: ")
    assert shown.err.count("\n") == 1, shown.err
    return shown.err


def change(run: Path, **entries: Any) -> None:
    config = json.loads((run / "config.json").read_text())
    for name, value in entries.items():
        config[name] = {**config[name], **value} if isinstance(value, dict) else value
    (run / "config.json").write_text(json.dumps(config))


MARK = "touch PWNED"
COMMANDS = {
    "a command": {"env": f"py:os.system?command={MARK}"},
    "a command by its output": {"env": f"py:subprocess.getoutput?cmd={MARK}"},
    "a folder deleted": {"env": "py:shutil.rmtree?path=../run"},
    "a class of the standard library": {"env": f"py:subprocess.Popen?args={MARK}&shell=true"},
    "without the prefix": {"env": "os.abort"},
    "a module that Gymnasium imports": {"env": "gymnasium:hostile:CartPole-v1"},
    "a module that PettingZoo imports": {"env": "pettingzoo:hostile.parallel"},
    "an algorithm that is a command": {"algorithm": {"class": "os.abort"}},
    "an algorithm of a module beside": {"algorithm": {"class": "hostile.Mine"}},
    "a name that hides the prefix": {"env": f"PY:os.system?command={MARK}"},
    "a module beside an option": {"env": "gymnasium:hostile:CartPole-v1?autoreset=same_step"},
    "an algorithm that climbs out of the package": {"algorithm": {"class": "tessera.algorithms.ppo.jax.os.abort"}},
    "a function of the package as algorithm": {"algorithm": {"class": "tessera.algorithms.get"}},
    "a wrapper that is a command": {"env": "gymnasium:CartPole-v1?wrap=os:abort"},
    "a wrapper after others": {"env": "gymnasium:CartPole-v1?stack=2&wrap=hostile:Wrapper"},
    "a wrapper without a prefix": {"env": "CartPole-v1?wrap=hostile:Wrapper"},
    "an environment within a wrapper": {"env": f"py:os.system?command={MARK}&sticky=0.1"},
}


@pytest.mark.parametrize("trust", [[], ["--trust"]], ids=["", "trusted"])
@pytest.mark.parametrize("entries", COMMANDS.values(), ids=COMMANDS.keys())
def test_nothing_that_a_folder_names_is_run(entries, trust, run, capsys, monkeypatch):
    if trust and "hostile" in str(entries):
        pytest.skip("whoever trusts a folder imports the modules that it names")
    Path("hostile.py").write_text("open('PWNED', 'w')\n")
    monkeypatch.syspath_prepend(os.getcwd())
    change(run, **entries)
    before = set(run.rglob("*"))
    said = sentence(capsys, "eval", str(run), *trust)
    assert not Path("PWNED").exists()
    assert set(run.rglob("*")) == before
    if not trust and "PY:" not in str(entries) and "tessera.algorithms" not in str(entries):
        assert "is not one of Tessera's" in said
        assert "--trust" in said


UNREAD: dict[str, Callable[[Path], Any]] = {
    "a policy file": lambda run: change(run, policy="hostile.py"),
    "a policy of a module": lambda run: change(run, policy="py:hostile.POLICY"),
    "an engine": lambda run: change(run, engine="py:hostile.Engine"),
    "a plan": lambda run: (run / "plan.json").write_text(json.dumps({"policy": "py:hostile.POLICY", "engine": "x"})),
    "extras": lambda run: change(run, algorithm={"extra": "py:hostile.Torso", "name": "py:hostile"}),
}


@pytest.mark.parametrize("damage", UNREAD.values(), ids=UNREAD.keys())
def test_no_command_imports_what_other_entries_name(damage, run, capsys, monkeypatch):
    """Policy, engine and plan of a folder are never imported: not to plot, to evaluate or to go on."""
    Path("hostile.py").write_text("open('PWNED', 'w')\nPOLICY = Engine = Torso = None\n")
    monkeypatch.syspath_prepend(os.getcwd())
    damage(run)
    resume = [*TRAIN, "--steps", str(2 * STEPS), "--run-dir", str(run), "--resume"]
    for command in (["plot", str(run), "-o", "curves.png"], ["eval", str(run), "--episodes", "2", "--trust"], resume):
        with contextlib.suppress(SystemExit):
            main(command)
        assert "Traceback" not in capsys.readouterr().err
    with contextlib.suppress(TesseraError):
        tessera.evaluate_run(run, episodes=2)
    assert not Path("PWNED").exists()


@pytest.mark.parametrize("field", ["torso", "core", "network"])
def test_a_network_that_a_folder_names_is_imported_only_if_it_is_trusted(field, run, capsys, monkeypatch):
    Path("hostile.py").write_text("open('PWNED', 'w')\nTorso = None\n")
    monkeypatch.syspath_prepend(os.getcwd())
    change(run, algorithm={field: "py:hostile.Torso"})
    resume = [*TRAIN, "--steps", str(2 * STEPS), "--run-dir", str(run), "--resume"]
    for command in (["plot", str(run), "-o", "curves.png"], ["eval", str(run), "--episodes", "2"], resume):
        with contextlib.suppress(SystemExit):
            main(command)
        assert "Traceback" not in capsys.readouterr().err
    with pytest.raises(TesseraError, match="is not one of Tessera's"):
        tessera.load(run)
    assert not Path("PWNED").exists()


class Mine(tessera.A2C):
    """An algorithm of one's own, of the name that the checkpoint notes."""


def mine_from_function() -> Any:
    return tessera.envs.make("gymnax:CartPole-v1")


def test_ones_own_names_are_imported_if_the_user_says_so(run, capsys):
    change(run, algorithm={"class": f"{__name__}.Mine"})
    assert "--algorithm" in sentence(capsys, "eval", str(run))
    for flags in (["--trust"], ["--algorithm", f"py:{__name__}.Mine"]):
        main(["eval", str(run), "--episodes", "2", *flags])
        assert "2 greedy episodes" in capsys.readouterr().out
    change(run, env=f"py:{__name__}.mine_from_function")
    assert "is no class of environments" in sentence(capsys, "eval", str(run), "--trust")
    named = ["--algorithm", f"py:{__name__}.Mine", "--env", f"py:{__name__}.mine_from_function"]
    main(["eval", str(run), "--episodes", "2", *named])
    assert "2 greedy episodes" in capsys.readouterr().out
    assert isinstance(load_run(run, trust=[name.removeprefix("py:") for name in named[1::2]]).algorithm, Algorithm)


@pytest.mark.parametrize(
    ("name", "foreign"),
    [
        ("gymnax:CartPole-v1", False), ("CartPole-v1", False), ("gymnasium:CartPole-v1?autoreset=disabled", False),
        ("gymnasium:my_module:Mine-v0", True), ("py:a.B", True), ("pettingzoo:mpe2.simple_spread_v3", False),
        ("pettingzoo:sisl.pursuit_v4", False), ("pettingzoo:mpe2", True), ("pettingzoo:os.path", True),
        ("nobody:x", True),
    ],
)  # fmt: skip
def test_which_names_of_environments_bring_code_along(name, foreign):
    assert runs_foreign_code(name) is foreign


DAMAGED: dict[str, Callable[[Path], Any]] = {
    "env is a number": lambda run: change(run, env=5),
    "no class": lambda run: change(run, algorithm={"class": None}),
    "widths are words": lambda run: change(run, algorithm={"widths": "many"}),
    "a network larger than memory": lambda run: change(run, algorithm={"widths": [10**9, 10**9]}),
    "a torso that is none": lambda run: change(run, algorithm={"torso": "os.system"}),
    "deeply nested": lambda run: (run / "config.json").write_text('{"a":' * 100_000),
    "not text": lambda run: (run / "config.json").write_bytes(b"\xff\xfe\x00"),
    "a pipe that never ends": lambda run: replace(run / "config.json", os.mkfifo),
    "a device that never ends": lambda run: replace(run / "config.json", lambda path: path.symlink_to("/dev/zero")),
    "envs are a word": lambda run: change(run, envs="many", algorithm={"widths": [{}]}),
    "a precision that is none": lambda run: change(run, precision="f31"),
}


def replace(path: Path, make: Callable[[Path], Any]) -> None:
    path.unlink()
    make(path)


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_folder_that_cannot_be_is_one_sentence(damage, run, capsys):
    damage(run)
    sentence(capsys, "eval", str(run))


@pytest.mark.parametrize("name", ["plan.json.tmp", "summary.json.tmp", "metrics.jsonl", "checkpoints", "logs"])
def test_a_resumed_run_writes_and_deletes_nothing_through_links(name, run, tmp_path, capsys):
    outside = tmp_path / "outside"
    if name == "checkpoints":
        (run / name).rename(outside)
    elif name == "logs":
        outside.mkdir()
    else:
        outside.write_text("mine")
        (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(outside)
    before = contents(outside)
    said = sentence(capsys, *TRAIN, "--steps", str(4 * STEPS), "--run-dir", str(run), "--resume")
    assert f"{name} is a symbolic link" in said
    assert contents(outside) == before


def contents(path: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in [path, *path.rglob("*")] if p.is_file()}


def test_files_are_written_beside_links_and_never_through_them(tmp_path):
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.write_text("mine")
    folder.mkdir()
    for name in ("a.json", "a.json.tmp", "metrics.jsonl"):
        (folder / name).symlink_to(outside)
    files.write_json(folder / "a.json", {"x": 1})
    assert json.loads((folder / "a.json").read_text()) == {"x": 1}
    assert sorted(p.name for p in folder.iterdir()) == ["a.json", "metrics.jsonl"]
    with pytest.raises(TesseraError, match=r"metrics.jsonl is a link or no plain file"):
        files.open_to_append(folder / "metrics.jsonl")
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").hardlink_to(outside)
    with pytest.raises(TesseraError, match=r"metrics.jsonl is a link or no plain file"):
        files.open_to_append(folder / "metrics.jsonl")
    assert outside.read_text() == "mine"


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(tmp_path, monkeypatch):
    files.write_json(tmp_path / "a.json", {"x": 1})

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_json(tmp_path / "a.json", {"x": 2})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_rows_of_metrics_survive_a_kill_while_they_are_cut_off(tmp_path, monkeypatch):
    """The rows after a resume's update are dropped by replacing the file at once."""
    writer = MetricsWriter(tmp_path)
    for update in range(6):
        writer.write({"update": update})
    writer.close()
    whole = read_metrics(tmp_path)

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)  # the last moment before the change
        with pytest.raises(KeyboardInterrupt):
            MetricsWriter(tmp_path, resumed_at=3)
    assert read_metrics(tmp_path) == whole
    MetricsWriter(tmp_path, resumed_at=3).close()
    assert [row["update"] for row in read_metrics(tmp_path)] == [0, 1, 2, 3]


def test_rows_of_metrics_are_on_the_disk_before_a_checkpoint_is(tmp_path, monkeypatch):
    events: list[str] = []
    sync, save = os.fsync, Checkpoints.save

    def synced(descriptor: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    def saved(self: Checkpoints, *arguments: Any) -> None:
        events.append("checkpoint")
        save(self, *arguments)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Checkpoints, "save", saved)
    main([*TRAIN, "--steps", str(STEPS), "--run-dir", str(tmp_path / "run")])
    assert "checkpoint" in events
    assert all(events[k - 1] == "metrics.jsonl" for k, event in enumerate(events) if event == "checkpoint")
    for name in ("config.json.tmp", "plan.json.tmp", "summary.json.tmp", "run"):  # under the names they have then
        assert name in events


def test_damage_to_any_array_is_found_and_the_newest_intact_checkpoint_is_offered(run, capsys):
    saved = sorted(int(p.name) for p in (run / "checkpoints").iterdir() if p.name.isdigit())
    data = max((run / "checkpoints" / str(saved[-1])).rglob("*"), key=lambda p: p.stat().st_size if p.is_file() else 0)
    content = bytearray(data.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 600] = os.urandom(len(content[middle : middle + 600]))
    data.write_bytes(content)
    for command in (["eval", str(run)], [*TRAIN, "--steps", str(2 * STEPS), "--run-dir", str(run), "--resume"]):
        said = sentence(capsys, *command)
        assert f"checkpoint {saved[-1]} in" in said
        assert f"go on from {saved[0]}, the newest one that is intact" in said


def test_arrays_and_metadata_are_compared_with_their_checksums(tmp_path):
    arrays = {"a": np.arange(7.0), "c": np.array(True), "d": jax.numpy.ones(3, "bfloat16")}
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(1, arrays, {"algorithm": "a2c", "meter": {"recent": [[1, 0.1, float("nan")]]}})
    loaded, meta = checkpoints.load(1)
    assert meta["algorithm"] == "a2c"
    jax.tree.map(np.testing.assert_array_equal, loaded, {k: np.asarray(v) for k, v in arrays.items()})
    (found,) = (tmp_path / "checkpoints" / "1" / "meta").glob("*etadata*")
    found.write_text(found.read_text().replace("a2c", "a3c"))
    with pytest.raises(TesseraError, match="metadata has changed"):
        checkpoints.load(1)


def test_what_a_kill_during_a_save_left_is_removed(run):
    draft = run / "checkpoints" / "9.orbax-checkpoint-tmp"
    (draft / "slots").mkdir(parents=True)
    (draft / "slots" / "x").write_text("half")
    Checkpoints(run / "checkpoints", read_only=True).close()
    assert draft.exists()
    Checkpoints(run / "checkpoints").close()
    assert not draft.exists()


def test_a_private_folder_is_nobody_elses(tmp_path, monkeypatch):
    made = files.private_folder(tmp_path / "deep" / "mine")
    assert made.stat().st_mode & 0o777 == 0o700
    made.chmod(0o755)
    assert files.private_folder(made).stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(made)
    with pytest.raises(TesseraError, match="is a link or belongs to another user"):
        files.private_folder(tmp_path / "link")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(TesseraError, match="is a link or belongs to another user"):
        files.private_folder(made)
