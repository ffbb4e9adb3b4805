"""`fused` against the same PPO written by hand, and against rejax: ratios of interleaved pairs in one run.

    python benchmarks/fused.py                        # CPU: 64 and 1,024 environments
    python benchmarks/fused.py --envs 2048 16384 65536 --pairs 10     # GPU

Rejax takes part if `--rejax PYTHON` names an interpreter with benchmarks/requirements-rejax.txt installed.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import handwritten_ppo

from tessera.algorithms.ppo import PPO
from tessera.engines.serial import SerialEngine
from tessera.planning.prepare import prepare_plan

UNROLL, EPOCHS, MINIBATCHES, RATE = 128, 4, 4, 2.5e-4
HORIZON = 100_000
"""Updates over which the learning rate falls: so many that it does not matter here."""

Timed = Callable[[int], tuple[float, float]]
"""Runs a number of updates; returns seconds and the mean return of the episodes that ended."""


def tessera_program(envs: int, precision: str) -> Timed:
    algorithm = PPO(unroll=UNROLL, epochs=EPOCHS, minibatches=MINIBATCHES, learning_rate=RATE, entropy_coefficient=0.01)
    bound, env, plan = prepare_plan(algorithm, "gymnax:CartPole-v1", "fused", envs=envs, precision=precision)
    engine = SerialEngine(plan, bound, env, 0, HORIZON)
    engine.start()

    def run(updates: int) -> tuple[float, float]:
        begin = time.perf_counter()
        reports = engine.advance(updates)
        seconds = time.perf_counter() - begin
        return seconds, float(reports.tally.return_sum.sum() / max(reports.tally.episodes.sum(), 1))

    return run


def by_hand(envs: int, precision: str) -> Timed:
    init, program = handwritten_ppo.make(
        envs,
        unroll=UNROLL,
        epochs=EPOCHS,
        minibatches=MINIBATCHES,
        learning_rate=RATE,
        total_updates=HORIZON,
        dtype={"f32": "float32", "bf16": "bfloat16"}[precision],
    )
    carry = init(0)

    def run(updates: int) -> tuple[float, float]:
        nonlocal carry
        begin = time.perf_counter()
        carry, metrics = jax.block_until_ready(program(carry, updates))
        seconds = time.perf_counter() - begin
        episodes = np.asarray(metrics["episodes"])
        return seconds, float((np.asarray(metrics["mean_return"]) * episodes).sum() / max(episodes.sum(), 1))

    return run


def rejax_program(python: str, envs: int, updates: int) -> Timed:
    """A process of its own, which makes one repetition for each line that it is sent."""
    script = str(Path(__file__).parent / "rejax_ppo.py")
    command = [python, script, "--envs", str(envs), "--updates", str(updates), "--repeat", "0", "--on-demand"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    to, back = process.stdin, process.stdout
    assert to is not None
    assert back is not None

    def run(_: int) -> tuple[float, float]:
        to.write("go\n")
        to.flush()
        return json.loads(back.readline())["seconds"], float("nan")

    return run


def interval(ratios: np.ndarray) -> tuple[float, float]:
    """95 % interval of the median, by bootstrap."""
    draws = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return float(low), float(high)


def compare(envs: int, options: argparse.Namespace) -> dict[str, object]:
    ours = tessera_program(envs, options.precision)
    rivals: dict[str, Timed] = {"handwritten": by_hand(envs, options.precision)}
    ours(1)
    seconds = min(ours(1)[0] for _ in range(3))
    updates = int(np.clip(round(options.seconds / seconds), 1, 500))
    if options.rejax:
        rivals["rejax"] = rejax_program(options.rejax, envs, updates)
    steps = envs * UNROLL * updates
    row: dict[str, object] = {"envs": envs, "updates": updates, "device": jax.devices()[0].device_kind}
    for name, rival in rivals.items():
        rival(updates)
        ours(updates)
        pairs = []
        for k in range(options.pairs):
            order = (ours, rival) if k % 2 else (rival, ours)
            times = [run(updates)[0] for run in order]
            mine, theirs = times if k % 2 else times[::-1]
            pairs.append((mine, theirs))
        mine, theirs = np.asarray(pairs).T
        ratios = theirs / mine
        low, high = interval(ratios)
        row[name] = {
            "ratio": round(float(np.median(ratios)), 3),
            "interval": [round(low, 3), round(high, 3)],
            "tessera_steps_per_second": round(steps / float(np.median(mine))),
            f"{name}_steps_per_second": round(steps / float(np.median(theirs))),
        }
    row["return_tessera"], row["return_handwritten"] = (round(r(updates)[1], 1) for r in (ours, rivals["handwritten"]))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", type=int, nargs="+", default=[64, 1024], help="environments, one comparison each")
    parser.add_argument("--pairs", type=int, default=10, help="interleaved pairs")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of one measurement, about")
    parser.add_argument("--precision", default="f32", choices=["f32", "bf16"], help="of the networks")
    parser.add_argument("--rejax", help="interpreter that has rejax")
    options = parser.parse_args()
    for envs in options.envs:
        row = compare(envs, options)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
