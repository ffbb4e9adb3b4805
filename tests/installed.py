"""Uses an installed Tessera as a user without the repository would: trains, loads, draws, plans and shows a run.

    make test-wheel

It is run by the Python of a fresh virtual environment, which has the extra `dash` and no other, in an empty folder.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
TESSERA = Path(sys.executable).parent / "tessera"
COMMANDS = (
    "train ppo gymnax:CartPole-v1 --steps 20000 --seed 1 --run-dir run",
    "train impala CartPole-v1 --steps 20000 --seed 1 --run-dir processes",
    "eval run --episodes 4",
    "plot run -o curve.png",
    "video run -o film.gif --max-steps 20",
    "export run act.stablehlo",
    "plan ppo gymnax:CartPole-v1 --policy single_learner_coarse --format svg",
    "plan ppo gymnax:Breakout-MinAtar --preset",
    "check gymnax:CartPole-v1",
    "pairs",
    "dash run --export report.html",
)
WRITTEN = ("curve.png", "film.gif", "act.stablehlo", "report.html")
REFUSED = {
    "video run -o film.mp4 --max-steps 20": "imageio-ffmpeg",
    "export run act.onnx": "jax2onnx",
    "train ppo brax:ant": "brax",
    "train ppo pgx:connect_four": "pgx",
    "train impala CartPole-v1 --engine ray": "ray",
}
"""What needs an extra that is not installed -> a package of that extra."""
LOADED = """
import tessera, numpy
agent = tessera.load("run")
print(tessera.__version__, tessera.__file__, agent.act(numpy.zeros(4, numpy.float32)))
"""


def main() -> None:
    os.environ.setdefault("TESSERA_CACHE", str(Path("cache").absolute()))
    check_package()
    for command in COMMANDS:
        done = tessera(command)
        assert done.returncode == 0, done.stderr
    for name in WRITTEN:
        assert Path(name).stat().st_size > 1000, f"{name} is nearly empty"
    assert "uPlot" in Path("report.html").read_text(), "the page's files are missing in the wheel"
    check_loading()
    check_doctor()
    for command, package in REFUSED.items():
        check_refusal(command, package)
    check_server()
    print("the wheel works by itself")


def tessera(command: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    print(f"tessera {command}", flush=True)
    return subprocess.run([TESSERA, *command.split()], check=False, capture_output=True, text=True)


def check_package() -> None:
    """The wheel holds types and licences, and its version is the package's."""
    files = {str(path) for path in importlib.metadata.files("tessera-rl") or ()}
    assert "tessera/py.typed" in files
    assert {Path(name).name for name in files if "/licenses/" in name} == {"LICENSE", "uPlot.LICENSE"}
    assert not [name for name in files if name.split("/")[0] in ("tests", "docs", "benchmarks", "examples")]
    assert tessera("--version").stdout.strip() == importlib.metadata.version("tessera-rl")


def check_loading() -> None:
    """The run can be loaded and acts, by the installed package."""
    done = subprocess.run([sys.executable, "-I", "-c", LOADED], check=True, capture_output=True, text=True)
    assert done.stdout.startswith(importlib.metadata.version("tessera-rl"))
    assert str(REPOSITORY / "tessera") not in done.stdout, f"the repository's package, not the wheel's: {done.stdout}"


def check_doctor() -> None:
    """The doctor knows which extras are there, and how to get the others."""
    lines = [line.split() for line in tessera("doctor").stdout.splitlines() if line.startswith("extra")]
    states = {extra: words for _, extra, *words in lines}
    assert [extra for extra, words in states.items() if words[0] == "installed"] == ["dash"]
    missing = [words for words in states.values() if words[0] != "installed"]
    assert len(missing) > 5
    assert all(words[:3] == ["missing:", "pip", "install"] for words in missing)


def check_refusal(command: str, package: str) -> None:
    """A command whose extra is missing says in one sentence how to install it."""
    done = tessera(command)
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert re.fullmatch(rf"tessera: [^\n]*run pip install [^\n]*'{package}\W[^\n]*\n", done.stderr), done.stderr


def check_server() -> None:
    """The dashboard serves its page, every file that the page names, and the run; an interrupt ends it."""
    print("tessera dash run", flush=True)
    server = subprocess.Popen([TESSERA, "dash", "run"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        said = server.stdout.readline()
        found = re.search(r"http://[\w.:]+/", said)
        assert found, said
        address = found[0]
        page = fetched(address)
        names = re.findall(r'(?:src|href)="/(static/[^"]+)"', page)
        assert len(names) > 5, page
        assert all(len(fetched(address + name)) > 100 for name in names)
        assert json.loads(fetched(f"{address}api/run?name=."))["config"]["algorithm.name"] == "ppo"
    finally:
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=30)
    assert (server.returncode, errors) == (0, "")


def fetched(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return answer.read().decode()


if __name__ == "__main__":
    main()
