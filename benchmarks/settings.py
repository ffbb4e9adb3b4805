"""One algorithm on one task with several settings, many seeds each: which settings hold?

    python benchmarks/settings.py dqn gymnax:CartPole-v1 "" "--target-period 200" "--learning-rate 5e-4"
    python benchmarks/settings.py ppo gymnax:Breakout-MinAtar --steps 1e7 --output breakout \\
        "--torso mlp --activation relu" "--torso mlp --activation relu --minibatches 4" ""

Each setting is a text of flags of `tessera train`, empty for the defaults. Shown is one line a setting: mean of the
seeds' training returns with its 95 % interval, worst and best seed, and the same of greedy returns. `--output` keeps
the run folders, and draws the curves of all settings (`curves.png` in it).
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tessera.evaluation.intervals import bootstrap_interval
from tessera.runs.curves import plot


def figures(scores: list[float]) -> str:
    """Mean with its interval, worst and best."""
    low, high = bootstrap_interval(np.asarray(scores))
    return f"{np.mean(scores):7.1f} ({low:.1f} to {high:.1f}), worst {min(scores):.1f}, best {max(scores):.1f}"


def measure(arguments: list[str], folder: Path) -> dict[str, list[float]]:
    """Train, and return what each seed reached: {training: …, greedy: …}."""
    command = [sys.executable, "-m", "tessera", "train", *arguments, "--run-dir", str(folder), "--quiet"]
    subprocess.run([*command, "--checkpoint-every", "3600"], check=True)
    summaries = [json.loads(path.read_text()) for path in sorted(folder.glob("seed-*/summary.json"))]
    entries = {"training": "train_return_mean", "greedy": "eval_return_mean"}
    return {name: [summary[entry] for summary in summaries] for name, entry in entries.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm")
    parser.add_argument("env")
    parser.add_argument("settings", nargs="+", help="flags of `tessera train`, one text a setting")
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--first-seed", type=int, default=500)
    parser.add_argument("--steps", type=float, default=5e5)
    parser.add_argument("--output", type=Path, help="folder to keep")
    options = parser.parse_args()
    common = ["--seeds", str(options.seeds), "--seed", str(options.first_seed), "--steps", f"{options.steps:.0f}"]
    with tempfile.TemporaryDirectory() as temporary:
        parent, folders = options.output or Path(temporary), []
        for number, setting in enumerate(options.settings):
            folders.append(parent / f"{number}")
            begun = time.monotonic()
            found = measure([options.algorithm, options.env, *shlex.split(setting), *common], folders[-1])
            texts = "; ".join(f"{name} {figures(scores)}" for name, scores in found.items())
            print(f"{setting or 'defaults'}: {texts} [{time.monotonic() - begun:.0f} s]", flush=True)
        if options.output is not None:
            plot(folders, options.output / "curves.png", [setting or "defaults" for setting in options.settings])


if __name__ == "__main__":
    main()
