"""Replays in checkpoints: written and read piece by piece, so that no second copy is ever needed."""

from __future__ import annotations

import errno
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
import ml_dtypes
import numpy as np
import pytest

import tessera
from tessera import TesseraError, train
from tessera.engines.base import Engine, SnapshotLost
from tessera.engines.local import LocalEngine
from tessera.engines.serial import SerialEngine
from tessera.planning.prepare import prepare_plan
from tessera.runs import array_files
from tessera.runs.checkpoint import Checkpoints, SaveFailed, flatten
from tessera.runs.run_loop import Run
from tessera.runs.saved_run import load_run
from tessera.support import streamed_arrays
from tessera.support.streamed_arrays import HeldArray, JoinedArrays, Piece, StreamedArray, filled

CARTPOLE = "gymnax:CartPole-v1"
SMALL: dict[str, Any] = {"unroll": 4, "draws": 1, "batch": 16, "warmup": 8, "widths": (8,), "prioritised": True}
ONE = "fused:devices=1"
SHARDS = "distributed_replay:stores=2"


def go(folder: Path, updates: int, policy: str = ONE, capacity: int = 512, **options: Any) -> Any:
    given = {"envs": 8, "groups": 4, "seed": 1, "eval_episodes": 1, "quiet": True, **options}
    steps = 8 * 4 * (updates + 8)
    return train(tessera.DQN(capacity=capacity, **SMALL), CARTPOLE, policy, steps=steps, run_dir=folder, **given)


def arrays_of(folder: Path) -> dict[str, np.ndarray]:
    checkpoints = Checkpoints(folder / "checkpoints", read_only=True)
    arrays, _ = checkpoints.load(checkpoints.latest() or 0)
    checkpoints.close()
    return {name: np.asarray(x) for name, x in arrays.items()}


def assert_same_bytes(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    assert not [k for k in a if a[k].dtype != b[k].dtype or a[k].tobytes() != b[k].tobytes()]


@pytest.fixture
def tiny_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything of more than a few rows counts as large in this process."""
    monkeypatch.setattr(streamed_arrays, "PIECE_BYTES", 192)


# Memory.


def memory(pid: int, name: str) -> int:
    """A line of /proc/pid/status, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def wait_until(condition: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def growth_of(pids: list[int], call: Any) -> int:
    """Bytes by which processes grow at the most during a call, each by itself."""
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # forgets the peak so far
    before = {pid: memory(pid, "VmRSS") for pid in pids}
    call()
    return sum(memory(pid, "VmHWM") - rss for pid, rss in before.items())


@pytest.mark.slow  # what else this process has freed before counts too, so it is run alone
@pytest.mark.parametrize("policy", [ONE, SHARDS])
def test_neither_a_checkpoint_nor_a_resume_holds_a_second_copy_of_the_replay(policy, monkeypatch, tmp_path):
    grown: dict[str, int] = {}

    def watch(method: str) -> None:
        original = getattr(Run, method)

        def watched(run: Run, *more: Any) -> Any:
            out: list[Any] = []
            engine = run.engine
            wait_until(
                lambda: all(replica.state == "idle" for replica in engine.status()), 60
            )  # each has its empty replay
            pids = [os.getpid(), *engine.processes().values()]
            grown[method] = growth_of(pids, lambda: out.append(original(run, *more)))
            return out[0]

        monkeypatch.setattr(Run, method, watched)

    go(tmp_path / "warm", 2, policy)  # what is imported on the way is not counted
    go(tmp_path / "warm", 3, policy, resume=True)
    watch("_save")
    go(tmp_path / "run", 2, policy, capacity=2**22)
    watch("_try_begin")
    go(tmp_path / "run", 3, policy, capacity=2**22, resume=True)
    replay = sum(x.nbytes for name, x in arrays_of(tmp_path / "run").items() if name.startswith("buffer/"))
    assert replay > 200e6
    assert {method: bytes_ / replay for method, bytes_ in grown.items() if bytes_ > 0.5 * replay} == {}


# The same bits.


def early(whole: Path, folder: Path) -> Path:
    """A copy of a run without its last checkpoint, as if it had been killed after an earlier one."""
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "checkpoints" / "12")
    return folder


def format_of(folder: Path) -> int:
    (notes,) = sorted((folder / "checkpoints").glob("*/meta/metadata"))
    return json.loads(notes.read_text())["format"]


def test_a_run_goes_on_to_the_same_bits_whether_its_replay_is_in_files_or_not(monkeypatch, tmp_path):
    """Checkpoints of earlier versions, and those of small replays, have all arrays in Orbax."""
    plain, files = tmp_path / "plain", tmp_path / "files"
    go(plain, 12, checkpoint_every=0.0)
    assert format_of(early(plain, tmp_path / "a")) == 1
    monkeypatch.setattr(streamed_arrays, "PIECE_BYTES", 192)
    go(files, 12, checkpoint_every=0.0)
    assert format_of(early(files, tmp_path / "b")) == 2
    reference = arrays_of(plain)
    assert_same_bytes(reference, arrays_of(files))
    for folder in ("a", "b"):
        go(tmp_path / folder, 12, resume=True)
        assert (tmp_path / folder / "checkpoints" / "12" / "large").is_dir()
        assert_same_bytes(reference, arrays_of(tmp_path / folder))


@pytest.mark.slow
def test_checkpoints_with_large_arrays_do_not_depend_on_engine_or_replicas(tmp_path):
    """With a replay whose observations are more than a piece in every replica."""
    capacity = 2**20
    for folder, engine in (("serial", "serial"), ("local", "local")):
        go(tmp_path / folder, 4, SHARDS, capacity, engine=engine)
    assert (tmp_path / "local" / "checkpoints" / "4" / "large").is_dir()
    assert_same_bytes(arrays_of(tmp_path / "serial"), arrays_of(tmp_path / "local"))
    go(tmp_path / "serial", 8, SHARDS, capacity, engine="serial", resume=True)
    go(tmp_path / "local", 8, SHARDS, capacity, engine="local", resume=True)
    assert_same_bytes(arrays_of(tmp_path / "serial"), arrays_of(tmp_path / "local"))


@pytest.mark.usefixtures("tiny_pieces")
def test_a_replay_in_files_may_be_resumed_with_another_capacity(tmp_path):
    go(tmp_path / "run", 12)
    full = arrays_of(tmp_path / "run")
    go(tmp_path / "run", 14, capacity=128, resume=True)
    shrunk = arrays_of(tmp_path / "run")
    assert (full["buffer/version"].shape, shrunk["buffer/version"].shape) == ((4, 128), (4, 32))
    for group in range(4):
        kept = {row.tobytes() for row in shrunk["buffer/rows/observation"][group]}
        newest = [k % 128 for k in range(int(full["buffer/head"][group]) - 8, int(full["buffer/head"][group]))]
        assert all(row.tobytes() in kept for row in full["buffer/rows/observation"][group][newest])


# Replicas.


def engine_for(kind: type[Engine], policy: str, **options: Any) -> Engine:
    """An engine for a replay whose observations are more than a piece in every replica."""
    bound, env, plan = prepare_plan(tessera.DQN(capacity=2**20, **SMALL), CARTPOLE, policy, envs=8, groups=4)
    return kind(plan, bound, env, seed=1, horizon=1_000, **options)


@pytest.mark.slow
def test_a_replay_goes_to_replicas_and_comes_back_the_same():
    serial, local = (engine_for(kind, SHARDS) for kind in (SerialEngine, LocalEngine))
    try:
        serial.start()
        serial.advance(2)
        with serial.open_snapshot() as given:
            assert isinstance(given["buffer"].rows.observation, StreamedArray)
            local.restore(given)
            with local.open_snapshot() as back:
                assert isinstance(back["buffer"].rows.observation, StreamedArray)
                assert_same_bytes(*({k: np.asarray(x) for k, x in flatten(s).items()} for s in (given, back)))
    finally:
        local.close()


def test_a_store_stands_still_while_it_is_read_and_one_that_is_replaced_loses_the_snapshot_and_no_more():
    engine = engine_for(LocalEngine, "distributed_replay:stores=2,mode=async", note=lambda _: None)
    try:
        engine.start()
        engine.advance(4)
        with engine.open_snapshot() as snapshot:
            rows, piece = snapshot["buffer"].rows.observation, Piece(3, 0, 10_000)
            first = rows.read(piece)
            for _ in range(20):  # the others go on meanwhile
                np.testing.assert_array_equal(rows.read(piece), first)
            os.kill(engine.processes()["store/1"], signal.SIGKILL)
            with pytest.raises(SnapshotLost):
                rows.read(piece)
        with engine.open_snapshot() as snapshot:
            assert np.asarray(snapshot["buffer"].rows.observation).shape == rows.shape
        engine.advance(8)
        assert engine.restarts == 1
    finally:
        engine.close()


def test_a_run_takes_another_snapshot_if_one_is_lost(monkeypatch, tmp_path):
    lost: list[int] = []
    save = Checkpoints.save

    def saving(checkpoints: Checkpoints, update: int, *more: Any) -> None:
        if len(lost) < 2:
            lost.append(update)
            raise SnapshotLost("gone")
        save(checkpoints, update, *more)

    monkeypatch.setattr(Checkpoints, "save", saving)
    go(tmp_path, 3)
    assert lost == [3, 3]
    assert load_run(tmp_path).update == 3


# Files.

LARGE = np.arange(4 * 50 * 3, dtype=np.float32).reshape(4, 50, 3)
SNAPSHOT = {"state": np.arange(3.0), "buffer": {"rows": HeldArray(LARGE), "wide": HeldArray(LARGE.astype("bfloat16"))}}


def saved(folder: Path, *updates: int) -> Checkpoints:
    checkpoints = Checkpoints(folder)
    for update in updates:
        checkpoints.save(update, SNAPSHOT, {"algorithm": "x"})
    return checkpoints


@pytest.mark.usefixtures("tiny_pieces")
def test_large_arrays_are_plain_files_that_numpy_reads(tmp_path):
    arrays, meta = saved(tmp_path, 3).load(3)
    assert set(arrays) == {"state", "buffer/rows", "buffer/wide"} == set(meta["checksums"])
    np.testing.assert_array_equal(np.asarray(arrays["buffer/rows"]), LARGE)
    assert arrays["buffer/wide"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(np.asarray(arrays["buffer/wide"]), LARGE.astype("bfloat16"))
    file = tmp_path / "3" / "large" / meta["large"]["buffer/rows"]["file"]
    np.testing.assert_array_equal(np.load(file, allow_pickle=False), LARGE)


KILLED_WHILE_WRITING = """
import os, pathlib, signal, sys
from test_large_arrays import saved
from tessera.support import streamed_arrays
saved(pathlib.Path(sys.argv[1]), 3).close()
streamed_arrays.PIECE_BYTES = 192
left = [int(sys.argv[2])]
def die(*arguments):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments)
module, name = (os, "rename") if sys.argv[3] == "rename" else (streamed_arrays.HeldArray, "read")
original = getattr(module, name)
setattr(module, name, die)
saved(pathlib.Path(sys.argv[1]), 7)
"""


@pytest.mark.parametrize(("count", "moment"), [(2, "read"), (2, "rename")], ids=["while writing", "while moving"])
def test_a_kill_while_large_arrays_are_written_leaves_the_checkpoint_before(count, moment, tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", KILLED_WHILE_WRITING, str(tmp_path), str(count), moment]
    assert subprocess.run(command, env=environment, timeout=120).returncode == -signal.SIGKILL
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("7.")], "something was left half done"
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["3"]
    np.testing.assert_array_equal(np.asarray(checkpoints.load(3)[0]["buffer/rows"]), LARGE)
    checkpoints.save(7, SNAPSHOT, {"algorithm": "x"})
    np.testing.assert_array_equal(np.asarray(checkpoints.load(7)[0]["buffer/rows"]), LARGE)


def test_a_disk_that_fills_up_while_a_large_array_is_written_leaves_the_checkpoint_before(monkeypatch, tmp_path):
    checkpoints = saved(tmp_path, 3)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(array_files, "write_npy", full)
        with pytest.raises(SaveFailed, match=r"No space left on device\); the last good one is of update 3"):
            checkpoints.save(7, SNAPSHOT, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["3"]
    checkpoints.save(7, SNAPSHOT, {})
    assert checkpoints.latest() == 7


def test_what_reading_a_replica_raises_is_raised_and_leaves_the_checkpoint_before(monkeypatch, tmp_path):
    checkpoints = saved(tmp_path, 3)

    def gone(*_: Any) -> None:
        raise SnapshotLost("gone")

    monkeypatch.setattr(HeldArray, "read", gone)
    with pytest.raises(SnapshotLost):
        checkpoints.save(7, SNAPSHOT, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["3"]


def change_a_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def link_elsewhere(file: Path) -> None:
    file.rename(file.parent.parent / "elsewhere.npy")
    file.symlink_to(file.parent.parent / "elsewhere.npy")


@pytest.mark.parametrize("damage", [change_a_byte, cut_short, link_elsewhere, Path.unlink])
def test_damage_to_a_large_array_is_found_and_an_earlier_checkpoint_offered(damage, tmp_path):
    saved(tmp_path, 3, 7).close()
    damage(tmp_path / "7" / "large" / "0.npy")
    with pytest.raises(TesseraError, match=r"checkpoint 7 in .* is damaged .* go on from 3") as caught:
        Checkpoints(tmp_path).load(7)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["../../3/large/0.npy", "/etc/passwd", "0.npy/..", ""])
def test_a_list_of_large_arrays_leads_nowhere_else(name, tmp_path):
    with pytest.raises(ValueError, match="is no name of a file"):
        array_files.open_arrays(tmp_path, {"buffer/rows": {"file": name, "dtype": "float32"}})


def test_a_large_array_beyond_memory_is_refused_before_it_is_read(monkeypatch, tmp_path):
    checkpoints = saved(tmp_path, 3)
    monkeypatch.setattr("tessera.runs.checkpoint.available_memory", lambda: LARGE.nbytes)
    with pytest.raises(TesseraError, match=r"declares 0 GB of arrays, available: .* delete that folder"):
        checkpoints.load(3)


@pytest.mark.usefixtures("tiny_pieces")
def test_evaluating_a_run_does_not_read_its_replay(tmp_path):
    go(tmp_path, 3)
    for file in (tmp_path / "checkpoints" / "3" / "large").iterdir():
        change_a_byte(file)
    assert load_run(tmp_path).update == 3
    with pytest.raises(TesseraError, match="damaged"):
        go(tmp_path, 4, resume=True)


# Arrays.


@pytest.mark.usefixtures("tiny_pieces")
def test_pieces_cover_an_array_once_in_order():
    array = JoinedArrays([LARGE[:1], HeldArray(LARGE[1:])])
    pieces = list(array.pieces())
    assert max(piece.stop - piece.start for piece in pieces) * 12 <= 192
    np.testing.assert_array_equal(np.concatenate([array.read(piece) for piece in pieces]), LARGE.reshape(-1, 3))
    np.testing.assert_array_equal(np.asarray(array[1:3]), LARGE[1:3])


@pytest.mark.usefixtures("tiny_pieces")
@pytest.mark.parametrize("devices", [1, 4])
def test_an_array_is_filled_in_its_own_buffers(devices):
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:devices]), ("groups",))
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("groups"))
    array = jax.jit(lambda: jax.numpy.zeros(LARGE.shape), out_shardings=where if devices > 1 else None)()
    before, committed = [s.data.unsafe_buffer_pointer() for s in array.addressable_shards], array.committed
    array = filled(array, HeldArray(LARGE))
    assert [s.data.unsafe_buffer_pointer() for s in array.addressable_shards] == before
    assert array.committed == committed  # else the next program would be compiled again
    np.testing.assert_array_equal(np.asarray(array), LARGE)
    np.testing.assert_array_equal(np.asarray(HeldArray(array)), LARGE)
