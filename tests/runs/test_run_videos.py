"""`--video-every`: videos of a run as it trains, by a process beside it that never disturbs it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import pytest

from tessera import A2C, Callback, train
from tessera.envs import make
from tessera.errors import TesseraError
from tessera.evaluation.side_filming import MOST_VIDEOS, SideFilming, keep_newest, remove_drafts
from tessera.program.initial import initial_state
from tessera.program.training_program import published
from tessera.runs.run_videos import RunVideos

ALGORITHM = A2C(unroll=8, widths=(8,))
CARTPOLE = "gymnax:CartPole-v1?time_limit=30"
TIMEOUT = 120.0


def wait_for(condition: Callable[[], Any], timeout: float = TIMEOUT) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def decoded(path: Path) -> int:
    """Bytes of pixels in a video; 0 if it cannot be read."""
    import imageio_ffmpeg

    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, check=False)
    return 0 if done.stderr else len(done.stdout)


class UntilFilmed(Callback):
    """Ends a run once there is a video; it gives up with the time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.end = folder, time.monotonic() + TIMEOUT

    def on_update(self, event: Any) -> None:
        if any(name.startswith("update_") for name in names_in(self.folder)):
            event.stop("filmed")
        assert time.monotonic() < self.end
        time.sleep(0.05)  # the process that films goes last, and here training has nothing else to do


def test_a_run_is_filmed_as_it_trains_and_nothing_is_left_of_the_process(tmp_path, capsys):
    pytest.importorskip("imageio_ffmpeg")
    videos = tmp_path / "run" / "videos"
    result = train(
        ALGORITHM, CARTPOLE, policy="fused:devices=1", steps=10**9, envs=8, video_every=7, eval_episodes=2,
        run_dir=tmp_path / "run", callbacks=[UntilFilmed(videos)],
    )  # fmt: skip
    assert result.summary["stop_reason"] == "filmed"
    (name,) = names_in(videos)
    assert int(name.removeprefix("update_").removesuffix(".mp4")) % 7 == 0
    pixels = 720 * 480 * 3
    assert decoded(videos / name) % pixels == 0
    assert 8 <= decoded(videos / name) // pixels <= 31
    assert "no more videos" not in capsys.readouterr().out


class Stub:
    """A process that is told when to be idle."""

    def __init__(self) -> None:
        self.idle, self.given_up, self.offered, self.found, self.closed = False, False, [], [], False

    def ready(self) -> bool:
        self.idle = True
        return True

    def offer(self, update: int, view: Any) -> None:
        self.offered.append(update)
        self.idle = False

    def take(self) -> int | None:
        return self.found.pop() if self.found else None


def run_videos(every: int, folder: Path) -> tuple[RunVideos, Stub]:
    videos = object.__new__(RunVideos)
    stub = Stub()
    videos.__dict__.update(_every=every, _folder=folder, _written=0, _side=stub, _rests_until=0.0)
    return videos, stub


def test_params_are_given_where_a_video_falls_due_and_the_run_has_settled(tmp_path):
    videos, stub = run_videos(10, tmp_path)
    assert videos.updates_to_next(3) is None  # no process yet, so nobody waits
    videos.after(3, lambda: None, settled=True)
    assert stub.offered == []
    assert videos.updates_to_next(3) == 7
    videos.after(10, lambda: None, settled=False)
    assert stub.offered == []
    videos.after(20, lambda: None, settled=True)
    assert stub.offered == [20]
    assert videos.updates_to_next(20) is None
    assert "the run was over before the first video was; `tessera video" in videos.none_came()
    stub.idle, stub.found = True, [1000.0]
    assert videos.none_came() == ""
    videos.after(30, lambda: None, settled=True)
    assert stub.offered == [20]  # a video that took long is followed by a long rest
    assert videos.updates_to_next(31) is None
    videos._rests_until = 0.0
    videos.after(40, lambda: None, settled=True)
    assert stub.offered == [20, 40]


def test_only_the_newest_videos_are_kept_and_other_files_are_left_alone(tmp_path):
    for update in range(MOST_VIDEOS + 5):
        (tmp_path / f"update_{update * 100000:06}.mp4").write_text("")
    others = ("update_x.mp4", "notes.txt", ".update_000001.7.mp4")
    for name in others:
        (tmp_path / name).write_text("")
    keep_newest(tmp_path)
    left = names_in(tmp_path)
    assert len(left) == MOST_VIDEOS + len(others)
    assert f"update_{(MOST_VIDEOS + 4) * 100000}.mp4" in left
    assert "update_000000.mp4" not in left
    assert "update_400000.mp4" not in left
    assert "update_500000.mp4" in left
    remove_drafts(tmp_path)
    assert set(left) - set(names_in(tmp_path)) == {others[2]}


def test_a_failure_is_one_note_and_no_process_is_started_again(tmp_path):
    env = make("gymnax:SimpleBandit-bsuite")
    algorithm = ALGORITHM.bind(env.spec)
    notes: list[str] = []
    side = SideFilming(algorithm, env, 0, tmp_path / "videos", notes.append)
    try:
        assert side.ready()
        pid = side.pid
        assert pid is not None
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19
        side.offer(1, published(initial_state(algorithm, jax.random.key(1), 1)))
        wait_for(lambda: not side.ready())
        wait_for(lambda: side.take() or notes)
        assert side.given_up
        assert not side.ready()
    finally:
        side.close()
    assert len(notes) == 1
    assert notes[0].startswith("no more videos: gymnax:SimpleBandit-bsuite cannot be drawn")
    assert not Path(f"/proc/{pid}").exists()
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"video_every": -1, "run_dir": "x"}, "--video-every -1: it cannot be below zero"),
        ({"video_every": 1}, "--video-every needs --run-dir"),
        ({"video_every": 1, "seeds": 2, "run_dir": "x"}, "--video-every films one run: leave --seeds out"),
    ],
)
def test_what_cannot_be_filmed_is_refused_before_it_trains(options, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TesseraError, match=said):
        train(ALGORITHM, CARTPOLE, steps=64, **options)
    assert names_in(tmp_path) == []


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_no_video_that_cannot_be_seen(tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    run, command = tmp_path / "run", [sys.executable, "-m", "tessera", "train", "a2c", "gymnax:CartPole-v1"]
    command += ["--steps", "1e9", "--video-every", "1", "--run-dir", run, "--quiet", "--checkpoint-every", "1"]
    for resume in ([], ["--resume"]):
        process = subprocess.Popen([*map(str, command), *resume])
        try:
            wait_for(partial(_is_writing_after_one, run / "videos", frozenset(names_in(run / "videos"))))
        finally:
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
        wait_for(lambda: not _writers(run))
        for path in (run / "videos").glob("update_*"):
            assert decoded(path) > 0


def _is_writing_after_one(folder: Path, before: frozenset[str]) -> bool:
    """Whether a new video is there, and the next one is being written."""
    new = set(names_in(folder)) - before
    return any(name.startswith("update_") for name in new) and any(name.startswith(".update_") for name in new)


def _writers(run: Path) -> list[str]:
    """Processes that name the folder of a run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(run).encode() in path.read_bytes():
                found.append(path.parent.name)
    return found
