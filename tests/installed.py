"""Uses an installed Tessera as a user without the repository would: trains, loads, plots and shows a run.

    make test-wheel

It is run by the Python of a fresh virtual environment, in an empty folder.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
COMMANDS = (
    "train ppo gymnax:CartPole-v1 --steps 20000 --seed 1 --run-dir run",
    "train impala CartPole-v1 --steps 20000 --seed 1 --run-dir processes",
    "eval run --episodes 4",
    "plot run -o curve.png",
    "plan ppo gymnax:CartPole-v1 --policy single_learner_coarse --format svg",
    "dash run --export report.html",
)
LOADED = """
import tessera, numpy
agent = tessera.load("run")
print(tessera.__file__, agent.act(numpy.zeros(4, numpy.float32)))
"""


def main() -> None:
    tessera = Path(sys.executable).parent / "tessera"
    for command in COMMANDS:
        print(f"tessera {command}", flush=True)
        subprocess.run([tessera, *command.split()], check=True, stdout=subprocess.DEVNULL)
    loaded = subprocess.run([sys.executable, "-c", LOADED], check=True, capture_output=True, text=True).stdout
    assert str(REPOSITORY / "tessera") not in loaded, f"this is the repository's package, not the wheel's: {loaded}"
    page = Path("report.html").read_text()
    assert "uPlot" in page, "the page's files are missing in the wheel"
    assert Path("curve.png").stat().st_size > 1000
    print("the wheel works by itself")


if __name__ == "__main__":
    main()
