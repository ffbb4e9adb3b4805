"""PPO on a board game of MinAtar, step by step between two sets of settings, over seeds in one program each.

    python benchmarks/board_settings.py --seeds 16 --steps 1e7                   # Breakout; 8 minutes on an H200
    python benchmarks/board_settings.py --env gymnax:Asterix-MinAtar --only "small CNN" ours

One line a setting: seconds in all, the mean training return over seeds, the worst and the best seed. `--output` keeps
the curves.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import tessera

MLP: dict[str, Any] = {"torso": "mlp", "widths": (64, 64), "activation": "relu"}
SETTINGS: dict[str, dict[str, Any]] = {
    "MLP, 5e-3, 8 minibatches": {**MLP, "learning_rate": 5e-3, "minibatches": 8},
    "MLP, 5e-3, 4 minibatches": {**MLP, "learning_rate": 5e-3, "minibatches": 4},
    "MLP, 2e-3, 8 minibatches": {**MLP, "learning_rate": 2e-3, "minibatches": 8},
    "small CNN, 5e-3, 8 minibatches": {"torso": "small", "learning_rate": 5e-3, "minibatches": 8},
    "small CNN, 2e-3, 4 minibatches": {"torso": "small", "learning_rate": 2e-3, "minibatches": 4},
}
"""From the settings of PureJaxRL's authors for this game to those of Tessera's defaults."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="gymnax:Breakout-MinAtar")
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--steps", type=float, default=1e7)
    parser.add_argument("--only", nargs="+", default=[""], help="settings whose names contain one of these")
    parser.add_argument("--output", type=Path, help="JSON lines: every seed's return, and the curve")
    options = parser.parse_args()
    for name, settings in SETTINGS.items():
        if not any(part in name for part in options.only):
            continue
        begun = time.monotonic()
        result = tessera.train(
            tessera.PPO(**settings), options.env, seeds=options.seeds, seed=options.first_seed,
            steps=int(options.steps), eval_episodes=32, quiet=True,
        )  # fmt: skip
        returns = sorted(run.summary["train_return_mean"] for run in result.runs.values())
        mean, seconds = sum(returns) / len(returns), time.monotonic() - begun
        print(
            f"{name:32s} {seconds:6.1f} s  mean {mean:6.1f}  worst {returns[0]:6.1f}  best {returns[-1]:6.1f}",
            flush=True,
        )
        if options.output is not None:
            with options.output.open("a") as file:
                row = {"env": options.env, "settings": name, "returns": returns, "curve": result.metrics}
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
