"""`tessera video`: what it writes, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from PIL import Image

from tessera import evaluate_run
from tessera.cli.main import main

TINY = ("--unroll", "8", "--envs", "8", "--widths", "8", "--quiet", "--steps", "64", "--eval-episodes", "2")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("video") / "cart"
    main(["train", "ppo", "gymnax:CartPole-v1", *TINY, "--run-dir", str(folder)])
    return folder


def video(capsys, *arguments: object) -> list[str]:
    capsys.readouterr()
    main(["video", *map(str, arguments)])
    return capsys.readouterr().out.splitlines()


def refused(capsys, *arguments: object) -> str:
    with pytest.raises(SystemExit) as ended:
        video(capsys, *arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_video_shows_the_episode_that_an_evaluation_plays(run, tmp_path, capsys):
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    played = evaluate_run(run, 1, seed=7)
    said = video(capsys, run, "-o", tmp_path / "out.mp4", "--seed", 7, "--size", 100, "--fps", 25)
    steps = int(played.length_mean)
    assert said[-1] == (
        f"wrote {tmp_path / 'out.mp4'} ({steps + 1} frames, {(steps + 1) / 25:.1f} s, return {played.return_mean:g})"
    )
    decode = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", tmp_path / "out.mp4", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    decoded = subprocess.run(decode, capture_output=True, check=True)
    assert len(decoded.stdout) == (steps + 1) * 150 * 100 * 3
    assert b"h264" in decoded.stderr
    assert b"25 fps" in decoded.stderr
    assert names_in(tmp_path) == ["out.mp4"]


def test_episodes_follow_each_other_until_the_steps_are_spent(run, tmp_path, capsys):
    one = int(evaluate_run(run, 1).length_mean)
    said = video(capsys, run, "-o", tmp_path / "a.gif", "--episodes", 2, "--max-steps", one + 3, "--size", 60)
    assert said[:2] == [
        f"episode 1: {one} steps, return {one}",
        "episode 2: 3 steps, return 3, cut by --max-steps",
    ]
    assert f"({one + 5} frames," in said[2]
    assert f"mean return {(one + 3) / 2:g} over 2 episodes" in said[2]
    with Image.open(tmp_path / "a.gif") as image:
        assert image.size == (90, 60)
        shown = [image.seek(k) or image.info["duration"] for k in range(image.n_frames)]
    assert sum(shown) == pytest.approx(1000 * (one + 5) / 50, abs=20)


def test_an_animation_is_xml_without_scripts_in_which_each_frame_has_its_turn(run, tmp_path, capsys):
    said = video(capsys, run, "-o", tmp_path / "a.svg", "--max-steps", 5)
    assert "(6 frames," in said[-1]
    root = ET.fromstring((tmp_path / "a.svg").read_text())
    assert root.attrib["height"] == "480"
    assert {element.tag.partition("}")[2] for element in root.iter()} == {
        "svg", "rect", "polyline", "circle", "g", "animate",
    }  # fmt: skip
    turns = [element.attrib for element in root.iter() if element.tag.endswith("animate")]
    assert len(turns) == 6
    assert turns[0]["keyTimes"] == "0;0.166667"
    assert turns[0]["values"] == "visible;hidden"
    assert turns[5]["keyTimes"] == "0;0.833333"
    assert turns[5]["values"] == "hidden;visible"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "a.avi"], "-o a.avi: a video is one of .mp4, .gif, .svg"),
        (["-o", "nowhere/a.gif"], "there is no folder"),
        (["-o", "a.gif", "--episodes", "0"], "--episodes 0: at least one"),
        (["-o", "a.gif", "--max-steps", "0"], "--max-steps 0: at least one"),
        (["-o", "a.gif", "--seed", "-1"], "--seed -1: it cannot be below zero"),
        (["-o", "a.gif", "--seed", str(2**63)], f"--seed {2**63}: it cannot be above {2**63 - 1}"),
        (["-o", "a.gif", "--fps", "0"], "--fps 0: it must be above 0"),
        (["-o", "a.gif", "--size", "9"], "--size 9: rows of pixels are from 16 to 4320"),
        (["-o", "a.gif", "--checkpoint", "12345"], "has no checkpoint 12345"),
        (["-o", "a.gif", "--opponent", "random"], "no game of two players"),
    ],
)
def test_what_makes_no_video_is_refused_before_anything_is_written(run, tmp_path, arguments, said, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, run, *arguments)
    assert names_in(tmp_path) == []


def test_without_ffmpeg_the_extra_is_named(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    said = refused(capsys, run, "-o", tmp_path / "a.mp4")
    assert "mp4 needs imageio-ffmpeg, which is missing: run pip install" in said


def test_a_host_environment_shows_what_it_renders_itself(tmp_path, capsys):
    pytest.importorskip("pygame")
    main(["train", "ppo", "CartPole-v1?time_limit=9", *TINY, "--policy", "fused", "--run-dir", str(tmp_path / "cart")])
    said = video(capsys, tmp_path / "cart", "-o", tmp_path / "a.gif", "--episodes", "2")
    assert said[:2] == ["episode 1: 9 steps, return 9", "episode 2: 9 steps, return 9"]
    assert "(20 frames, 0.4 s," in said[2]
    with Image.open(tmp_path / "a.gif") as image:
        assert image.size == (600, 400)
    assert "svg needs shapes, and this environment draws pixels" in refused(
        capsys, tmp_path / "cart", "-o", tmp_path / "b.svg"
    )
    assert names_in(tmp_path) == ["a.gif", "cart"]
