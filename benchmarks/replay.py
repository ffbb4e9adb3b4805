"""The replay: rows per second of inserting and drawing at once, beside cpprb; memory and speed of the replay of frames.

    python benchmarks/replay.py
    python benchmarks/replay.py --cpprb /tmp/cpprb-venv/bin/python

Set-up of cpprb, once:

    python3.11 -m venv /tmp/cpprb-venv
    /tmp/cpprb-venv/bin/pip install -r benchmarks/requirements-cpprb.txt

`mix` is one process that inserts small transitions (two observations of 4 floats, action, reward, discount), a chunk at
a time, and draws 2 rows for every 5 inserted: batches by priority, as NumPy arrays and with importance weights, each
followed by new priorities for it. The buffer is full from the start. cpprb's PrioritizedReplayBuffer does the same in a
process of its own, in interleaved pairs; the ratio is our speed to theirs.

`memory` fills a prioritised `FrameReplay` of Atari rows (two stacks of 4 frames of 84 x 84) more than once over and
reads how much the process has grown, beside what the shapes say; a smaller one is filled and dropped before, so that
what does not grow with rows is left out. `million` is what shapes say for 1,000,000 rows, and what was measured scaled
up to them. `speed` compares draws and puts of a `FrameReplay` to those of a plain `Replay` of the same rows.
"""

import argparse
import inspect
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

from tessera.algorithms.parts.n_step_windows import Row
from tessera.stores import Experience, Replay
from tessera.stores.frames import FrameReplay

GIB = 2**30
MILLION = 1_000_000
DRAWN = 0.4
"""Rows drawn for each row inserted: 20,000 per second to 50,000."""
PUT = (4, 16)
"""Steps and environments of one put of Atari rows."""

Told = dict[str, Any]


def scalar(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def row_of(observation: jax.ShapeDtypeStruct) -> Row:
    return Row(observation, scalar(jnp.int32), scalar(jnp.float32), scalar(jnp.float32), observation)


def mixer(capacity: int, chunk: int, batch: int) -> Callable[[int], float]:
    """Ours: a function that inserts a number of rows, draws in proportion, and gives the seconds that it took."""
    store = Replay(capacity, batch, prioritised=True)
    put, update = (jax.jit(function, donate_argnums=0) for function in (store.put, store.update))
    sample_rows = jax.jit(store.sample)
    buffer = store.init(row_of(scalar(jnp.float32, 4)), chunk)
    rng = np.random.default_rng(0)
    shape = (1, chunk)
    rows = Row(
        rng.normal(size=(*shape, 4)).astype(np.float32),
        np.zeros(shape, np.int32),
        np.ones(shape, np.float32),
        np.ones(shape, np.float32),
        rng.normal(size=(*shape, 4)).astype(np.float32),
    )
    keys = list(jax.random.split(jax.random.key(0), 4096))
    priorities = rng.exponential(size=(64, batch)).astype(np.float32)
    for _ in range(-(-capacity // chunk)):
        buffer = put(buffer, Experience(rows))

    def run(count: int) -> float:
        nonlocal buffer
        begin, due, draws = time.perf_counter(), 0.0, 0
        for _ in range(count // chunk):
            buffer = put(buffer, Experience(rows))
            due += DRAWN * chunk
            while due >= batch:
                due -= batch
                sample = jax.tree.map(np.asarray, sample_rows(buffer, keys[draws % len(keys)]))
                weight = sample.weight**0.4
                weight /= weight.max()
                buffer = update(buffer, sample.index, priorities[draws % 64])
                draws += 1
        jax.block_until_ready(buffer)
        return time.perf_counter() - begin

    return run


def serve_cpprb(capacity: int, chunk: int, batch: int, drawn: float) -> None:
    """In an interpreter that has cpprb: the same, for each number of rows that is read."""
    import sys
    import time

    import numpy as np
    from cpprb import PrioritizedReplayBuffer

    small = {"dtype": np.float32}
    fields = {
        "observation": {"shape": 4, **small},
        "action": {"dtype": np.int32},
        "reward": small,
        "discount": small,
        "bootstrap": {"shape": 4, **small},
    }
    replay, rng = PrioritizedReplayBuffer(capacity, fields, alpha=0.6), np.random.default_rng(0)
    rows = {name: rng.normal(size=(chunk, f.get("shape", 1))).astype(f["dtype"]) for name, f in fields.items()}
    priorities = rng.exponential(size=(64, batch)).astype(np.float32)
    for _ in range(-(-capacity // chunk)):
        replay.add(**rows)

    for line in sys.stdin:
        begin, due, draws = time.perf_counter(), 0.0, 0
        for _ in range(int(line) // chunk):
            replay.add(**rows)
            due += drawn * chunk
            while due >= batch:
                due -= batch
                sample = replay.sample(batch, beta=0.4)
                replay.update_priorities(sample["indexes"], priorities[draws % 64])
                draws += 1
        print(time.perf_counter() - begin, flush=True)


def start_cpprb(python: str, *arguments: float) -> subprocess.Popen:
    """A process of its own, which runs once for each line that it is sent."""
    code = f"{inspect.getsource(serve_cpprb)}\nserve_cpprb(*{arguments})"
    return subprocess.Popen([python, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process: subprocess.Popen, count: int) -> float:
    """Have the process insert so many rows: seconds."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{count}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def mix(options: argparse.Namespace, chunk: int) -> Told:
    """Medians over interleaved pairs; the first pair is a warm-up and left out."""
    shape = (options.capacity, chunk, options.batch)
    sides: dict[str, Callable[[int], float]] = {"tessera": mixer(*shape)}
    peer = start_cpprb(options.cpprb, *shape, DRAWN) if options.cpprb else None
    if peer is not None:
        sides["cpprb"] = lambda count: ask(peer, count)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for k in range(options.pairs + 1):
        for name in list(sides) if k % 2 else list(sides)[::-1]:
            seconds[name].append(sides[name](options.rows))
    told: Told = {"chunk": chunk, "batch": options.batch, "capacity": options.capacity, "pairs": options.pairs}
    for name, times in seconds.items():
        inserted = options.rows / statistics.median(times[1:])
        told[f"{name}_inserted_per_second"] = round(inserted)
        told[f"{name}_drawn_per_second"] = round(DRAWN * inserted)
    if peer is not None:
        ratios = [b / a for a, b in zip(seconds["tessera"][1:], seconds["cpprb"][1:], strict=True)]
        told |= {"ratio": round(statistics.median(ratios), 2), "lowest": round(min(ratios), 2)}
        peer.communicate()
    return told


def games(length: float = 200) -> Iterator[Experience]:
    """Puts of Atari-like rows: frames are noise, and episodes of about `length` steps begin with zeros."""
    rng, (steps, n), frame = np.random.default_rng(0), PUT, (84, 84)

    def start() -> np.ndarray:
        stack = np.zeros((n, 4, *frame), np.uint8)
        stack[:, -1] = rng.integers(0, 256, (n, *frame), np.uint8)
        return stack

    now = start()
    while True:
        before, after = [], []
        for _ in range(steps):
            before.append(now)
            now = np.concatenate([now[:, 1:], rng.integers(0, 256, (n, 1, *frame), np.uint8)], axis=1)
            after.append(now)
            now = np.where(rng.random((n, 1, 1, 1)) < 1 / length, start(), now)
        number = np.ones(PUT, np.float32)
        yield Experience(Row(np.stack(before), np.zeros(PUT, np.int32), number, number, np.stack(after)))


def nbytes(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def resident() -> int:
    """Bytes of main memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def atari(store: Replay, rows: int) -> tuple[Any, Callable[..., Any], int, int]:
    """Fill a store with Atari rows: (buffer, compiled put, bytes grown by, bytes of its shapes)."""
    row, per_put = row_of(scalar(jnp.uint8, 4, 84, 84)), PUT[0] * PUT[1]
    puts = games()
    first = next(puts)
    make = jax.jit(lambda: store.init(row, per_put)).lower().compile()
    shapes = jax.eval_shape(lambda: store.init(row, per_put))
    put = jax.jit(store.put, donate_argnums=0).lower(shapes, first).compile()
    before = resident()
    buffer = make()
    for _ in range(-(-rows // per_put)):
        buffer = put(buffer, next(puts))
    jax.block_until_ready(buffer)
    return buffer, put, resident() - before, nbytes(shapes)


def memory(rows: int) -> Told:
    """Memory of a share of a million rows, measured; and of all."""
    atari(FrameReplay(rows // 8, 32, prioritised=True), rows // 4)
    buffer, _, grown, shaped = atari(FrameReplay(rows, 32, prioritised=True), rows + rows // 4)
    held, row = int(buffer.filled), row_of(scalar(jnp.uint8, 4, 84, 84))
    told: Told = {
        "rows": rows,
        "held": held,
        "gib_measured": round(grown / GIB, 3),
        "gib_shapes": round(shaped / GIB, 3),
    }
    for name, kind in (("frames", FrameReplay), ("plain", Replay)):
        store = kind(MILLION, 32, prioritised=True)
        shapes = jax.eval_shape(lambda: store.init(row, PUT[0] * PUT[1]))  # noqa: B023
        told[f"million_gib_{name}"] = round(nbytes(shapes) / GIB, 2)
    return told | {"million_gib_measured_scaled": round(grown / held * MILLION / GIB, 2)}


def speed(rows: int, batches: tuple[int, ...] = (32, 128, 512), rounds: int = 30) -> Iterator[Told]:
    """Draws and puts of either kind, in turns: microseconds per row."""
    filled = {kind.__name__: atari(kind(rows, 32, prioritised=True), rows)[:2] for kind in (Replay, FrameReplay)}
    for batch in batches:
        times: dict[str, list[float]] = {name: [] for name in filled}
        draw = {k.__name__: jax.jit(k(rows, batch, prioritised=True).sample) for k in (Replay, FrameReplay)}
        for key in jax.random.split(jax.random.key(0), rounds + 2):
            for name, (buffer, _) in filled.items():
                begin = time.perf_counter()
                jax.block_until_ready(draw[name](buffer, key))
                times[name].append(time.perf_counter() - begin)
        yield {"what": "draw", "batch": batch, **per_row(times, batch)}
    times, puts = {name: [] for name in filled}, games()
    for _ in range(rounds + 2):
        experience = next(puts)
        for name, (buffer, put) in filled.items():
            begin = time.perf_counter()
            buffer = jax.block_until_ready(put(buffer, experience))
            times[name].append(time.perf_counter() - begin)
            filled[name] = (buffer, put)
    yield {"what": "put", "rows": PUT[0] * PUT[1], **per_row(times, PUT[0] * PUT[1])}


def per_row(times: dict[str, list[float]], rows: int) -> Told:
    """Medians in microseconds per row, and the ratio of the time that frames take to the plain one's."""
    told = {name: round(statistics.median(x[2:]) / rows * 1e6, 2) for name, x in times.items()}
    ratios = [b / a for a, b in zip(times["Replay"][2:], times["FrameReplay"][2:], strict=True)]
    return {**told, "ratio": round(statistics.median(ratios), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpprb", help="interpreter that has cpprb")
    parser.add_argument("--capacity", type=int, default=MILLION, help="rows of the replay of small transitions")
    parser.add_argument("--chunks", type=int, nargs="+", default=[16, 64, 256], help="rows inserted at a time")
    parser.add_argument("--batch", type=int, default=512, help="rows drawn at a time")
    parser.add_argument("--rows", type=int, default=512_000, help="inserted in each run of a pair")
    parser.add_argument("--pairs", type=int, default=7, help="interleaved pairs")
    parser.add_argument("--frames", type=int, default=50_000, help="Atari rows that are really stored, 8 KB each")
    options = parser.parse_args()
    for chunk in options.chunks:
        print(json.dumps({"mix": mix(options, chunk)}), flush=True)
    print(json.dumps({"memory": memory(options.frames)}), flush=True)
    for told in speed(min(options.frames, 10_000)):
        print(json.dumps({"speed": told}), flush=True)


if __name__ == "__main__":
    main()
