"""What the command line says of one's own modules, of files that are not text, and of a disk that is full."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera
from tessera.cli.main import main
from tessera.engines.replica.trace import TraceWriter, merge_traces
from tessera.errors import RunFailed, TesseraError
from tessera.program.nodes import Send
from tessera.runs.guards import stop_if_broken
from tessera.support.imports import import_again

TINY = ["--policy", "fused:devices=1", "--envs", "8", "--unroll", "8", "--widths", "8", "--eval-episodes", "2"]
TINY += ["--steps", "128", "--quiet"]
ENV = "gymnax:CartPole-v1"
MODULE = """
import tessera
from gymnasium.envs.classic_control import CartPoleEnv


class Mine(tessera.A2C):
    name = "mine"


class Cart(CartPoleEnv):
    pass
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))


def sentence(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must exit 2; its one sentence."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    shown = capsys.readouterr().err
    assert left.value.code == 2, shown
    assert shown.count("\n") == 1, shown
    return shown


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `tessera` as its console script does: without the current folder on sys.path."""
    code = "import sys; from tessera.cli.main import main; main()"
    root = str(Path(tessera.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": root, "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    command = [sys.executable, "-P", "-c", code, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_the_script_finds_ones_own_classes_in_the_current_folder() -> None:
    """In training, in another process, as the run goes on, and in evaluation here and by workers."""
    Path("own_module.py").write_text(MODULE)
    own = ["train", "py:own_module.Mine", "py:own_module.Cart", *TINY, "--run-dir", "run"]
    own[own.index("fused:devices=1")] = "single_learner_coarse:actors=1"
    more = [*own, "--resume"]
    more[more.index("128")] = "256"
    evaluate = ["eval", "run", "--episodes", "2"]
    named = ["--algorithm", "py:own_module.Mine", "--env", "py:own_module.Cart"]
    commands = [own, more, [*evaluate, "--trust"], [*evaluate, *named, "--engine", "local", "--workers", "2"]]
    for command in [*commands, ["pairs", "--env", "py:own_module.Cart"]]:
        shown = script(*command)
        assert shown.returncode == 0, shown.stderr
        assert "cannot be imported" not in shown.stdout
    assert "is not one of Tessera's" in script(*evaluate).stderr


def test_pairs_looks_into_the_current_folder(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own_cart.py").write_text(MODULE)
    main(["pairs", "--env", "py:own_cart.Cart"])
    assert "cannot be imported" not in capsys.readouterr().out


def test_a_class_of_a_script_is_called_that() -> None:
    with pytest.raises(TesseraError, match="defined in a script, and only that script has it"):
        import_again("__main__.NoSuchClass", "it cannot be imported")


@pytest.mark.parametrize("name", ["p.json", "p.toml", "p.py"])
@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b'{"a":' * 100_000], ids=["not text", "deeply nested"])
def test_a_policy_file_that_is_not_text_is_one_sentence(name: str, content: bytes, capsys: Any) -> None:
    Path(name).write_bytes(content)
    assert f"policy file {name}" in sentence(capsys, "plan", "a2c", ENV, "--policy", name)


def test_a_policy_file_that_may_not_be_read_is_one_sentence(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    Path("p.json").write_text("{}")
    monkeypatch.setattr(Path, "read_text", forbidden)
    said = sentence(capsys, "plan", "a2c", ENV, "--policy", "p.json")
    assert "policy file p.json cannot be read (Permission denied)" in said


def test_a_run_folder_whose_name_is_not_text_is_refused_before_training(capsys: Any) -> None:
    assert "is not UTF-8" in sentence(capsys, "train", "a2c", ENV, *TINY, "--run-dir", os.fsdecode(b"r\xff"))
    assert not os.listdir(b".")


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_output_that_finds_no_room_is_one_sentence() -> None:
    with open("/dev/full", "w") as nowhere:
        command = [sys.executable, "-m", "tessera", "--version"]
        shown = subprocess.run(command, stdout=nowhere, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert shown.returncode == 1
    assert shown.stderr.startswith("tessera: a file, or the output, cannot be written (No space left on device)")
    assert shown.stderr.count("\n") == 1


def test_a_timeline_that_finds_no_room_is_said_and_the_run_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessera.runs.timeline.merge_traces", full)
    with pytest.raises(SystemExit) as left:
        main(["train", "a2c", ENV, *TINY, "--run-dir", "run", "--trace", "trace.json"])
    assert left.value.code == 1
    assert Path("run/summary.json").exists()


def test_a_timeline_may_lie_in_the_folder_that_the_run_makes() -> None:
    main(["train", "a2c", ENV, *TINY, "--run-dir", "new/run", "--trace", "new/run/trace.json"])
    assert json.loads(Path("new/run/trace.json").read_text())["traceEvents"]


def test_a_replica_goes_on_without_a_timeline() -> None:
    writer = TraceWriter("trace.json", 0, "act/0")
    writer._file.close()
    writer._file = Path("/dev/full").open("w", buffering=1)  # noqa: SIM115
    writer.span(Send("params", 0), 0.0)
    writer.flush()
    writer.close()
    merge_traces(Path("trace.json"))


def test_what_broke_is_named_even_if_there_is_no_room_for_the_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __init__(self) -> None:
            self.params_like = {"a": np.zeros(1)}

        def open_snapshot(self) -> Any:
            return contextlib.nullcontext({"a": np.zeros(1)})

    from tessera.engines.replica.reports import Reports
    from tessera.program.accounting import Tally
    from tessera.program.training_program import Guard

    guard = Guard(np.ones((1, 1)), np.ones((1, 1)), np.ones((1, 1)))
    tally = Tally(*[np.zeros(1) for _ in Tally._fields])
    reports = Reports(tally, {"loss": np.array([np.nan])}, {"loss": np.zeros(1, int)}, guard)
    monkeypatch.setattr("tessera.runs.guards.write_npz", full)
    with pytest.raises(RunFailed, match=r"metric loss is not finite at update 8: .* could not be dumped \(No space"):
        stop_if_broken(reports, Broken(), 7, Path("run"))
    assert not Path("run/dump-8").exists()
