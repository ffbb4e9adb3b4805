"""Peak memory of a run that checkpoints a large replay, and of one that goes on from it.

    python benchmarks/checkpoint_memory.py
    python benchmarks/checkpoint_memory.py --capacity 1000000 --policies fused

Each run trains DQN on MinAtar for a few updates in a process of its own, saves a checkpoint with its replay, and ends;
a second one resumes it. Meanwhile the memory of the process and of all replicas is read every few milliseconds: private
memory of each, and memory without a name (rings, blocks of bytes) once, whether mapped or not. Files are not counted:
the kernel drops their pages when it needs room. `fixed` is the peak of the same run with a replay of 1,000 rows;
`ratio` is (peak - fixed) / replay, of which 1 is the replay itself.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ENV = "gymnax:Breakout-MinAtar"
SMALL = 1_000
SAMPLE_SECONDS = 0.005
MB = 2**20
RUN = """
import json, sys, time
import tessera
from tessera.runs.run_loop import Run

save = Run._save

def timed(run, engine):
    before = time.perf_counter()
    out = save(run, engine)
    print(json.dumps({"save_seconds": round(time.perf_counter() - before, 2)}), flush=True)
    return out

if __name__ == "__main__":
    Run._save = timed
    options = json.loads(sys.argv[1])
    algorithm = tessera.DQN(capacity=options.pop("capacity"), unroll=8, warmup=16, batch=32, prioritised=True)
    tessera.train(algorithm, options.pop("env"), options.pop("policy"), **options)
"""


def family(pid: int) -> list[int]:
    """A process and all of its descendants."""
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        for task in Path(f"/proc/{found[-1]}/task").glob("*/children"):
            try:
                waiting += [int(child) for child in task.read_text().split()]
            except OSError:
                continue
    return found


def memory_of(pids: list[int]) -> int:
    """Bytes that processes hold: private memory of each, and memory without a name once."""
    private, shared = 0, {}
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            private += sum(int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Pss_Anon:"))
            for link in os.scandir(f"/proc/{pid}/fd"):
                if os.readlink(link.path).startswith("/memfd:"):
                    found = os.stat(link.path)
                    shared[found.st_ino] = found.st_blocks * 512
        except OSError:  # it has ended meanwhile
            continue
    return private + sum(shared.values())


def watched(options: dict) -> tuple[int, list[float]]:
    """Train in a process of its own: the peak of its memory, and the seconds of each checkpoint."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(RUN)
        script.flush()
        command = [sys.executable, script.name, json.dumps(options)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        peak = 0
        while process.poll() is None:
            peak = max(peak, memory_of(family(process.pid)))
            time.sleep(SAMPLE_SECONDS)
    assert process.stdout is not None
    lines = [line for line in process.stdout.read().splitlines() if line.startswith("{")]
    if process.returncode:
        raise SystemExit(f"a run failed with exit code {process.returncode}")
    return peak, [json.loads(line)["save_seconds"] for line in lines]


def replay_bytes(policy: str, capacity: int) -> int:
    """Bytes of the replay, by its shapes."""
    import jax

    from tessera import DQN
    from tessera.engines.replica.replica import make_training
    from tessera.planning.prepare import prepare_plan
    from tessera.program.shapes import slot_shapes

    algorithm = DQN(capacity=capacity, unroll=8, warmup=16, batch=32, prioritised=True)
    bound, env, plan = prepare_plan(algorithm, ENV, policy, envs=16)
    buffer = slot_shapes(make_training(plan, bound, env), plan)["buffer"]
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(buffer))


def measure(policy: str, capacity: int) -> dict:
    """Peaks of saving and of going on, at this capacity and with a small replay."""
    peaks, seconds = {}, []
    for rows in (SMALL, capacity):
        with tempfile.TemporaryDirectory() as folder:
            options = {"capacity": rows, "env": ENV, "policy": policy, "envs": 16, "eval_episodes": 1, "quiet": True}
            for steps, resume in ((8 * 16 * 20, False), (8 * 16 * 24, True)):
                more = {"steps": steps, "resume": resume}
                watched({**options, **more, "run_dir": f"{folder}/first"})  # compiling takes memory, too
                peaks[rows, resume], seconds = watched({**options, **more, "run_dir": f"{folder}/run"})
    replay = replay_bytes(policy, capacity)
    row = {"policy": policy, "rows": capacity, "replay_mb": round(replay / MB), "save_seconds": seconds[-1]}
    for name, resume in (("save", False), ("resume", True)):
        fixed, peak = peaks[SMALL, resume], peaks[capacity, resume]
        row |= {f"{name}_fixed_mb": round(fixed / MB), f"{name}_peak_mb": round(peak / MB)}
        row[f"{name}_ratio"] = round((peak - fixed) / replay, 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacity", type=int, default=100_000)
    parser.add_argument("--policies", nargs="+", default=["fused", "distributed_replay"])
    arguments = parser.parse_args()
    for policy in arguments.policies:
        print(json.dumps(measure(policy, arguments.capacity)), flush=True)


if __name__ == "__main__":
    main()
