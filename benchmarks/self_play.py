"""AlphaZero fused against the same written by hand over mctx and pgx: ratios of interleaved pairs in one process.

    python benchmarks/self_play.py --games 1024 --blocks 6 --channels 128 --simulations 32 --precision bf16    # GPU
    python benchmarks/self_play.py connect_four --games 16 --blocks 1 --channels 8 --simulations 4 --unroll 4 \
        --batch 32 --capacity 2000 --seconds 0.2 --pairs 4                                                     # CPU

Two things are timed: self-play alone (unrolls of searched moves, stored), and whole iterations (an unroll and its
gradients). A ratio above 1 means that Tessera is the faster one. What limits self-play is said by its parts, each timed
alone: as many calls of the network, and of the rules, as the searches make; the rest is the search.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from handwritten_alphazero import Settings, make
from jax import lax

from tessera.algorithms.alphazero import AlphaZero
from tessera.engines.serial import SerialEngine
from tessera.planning.prepare import prepare_plan
from tessera.program.compile import CHUNK

HORIZON = 10_000_000
"""Updates over which the learning rate falls: so many that it does not matter here."""
FIRST = 3
"""Unrolls or updates of the first timed call, from which the number for a measurement follows."""

Timed = Callable[[int], float]
"""Runs so many unrolls or updates; returns seconds."""


def seconds_of(call: Callable[[], Any]) -> float:
    """Seconds of a call, until its arrays are there."""
    begin = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - begin


class Ours:
    """Tessera's program: everything in one fragment on one device."""

    def __init__(self, s: Settings) -> None:
        options = dataclasses.asdict(s)
        game, games, precision = (options.pop(name) for name in ("game", "games", "precision"))
        algorithm = AlphaZero(**options, warmup=0)
        self.algorithm, self.env, plan = prepare_plan(
            algorithm, f"pgx:{game}", "fused:devices=1", envs=games, precision=precision
        )
        self.engine = SerialEngine(plan, self.algorithm, self.env, 0, HORIZON)
        self.engine.start()
        self.unrolls = self.algorithm.schedule.warmup
        """Unrolls that one call of `self_play` makes."""

    def self_play(self, calls: int) -> float:
        """Fill the replay so many times: unrolls and nothing else."""
        (replica,) = self.engine.replicas

        def play() -> Any:
            for _ in range(calls):
                for _ in replica.run(replica.programs.fill):
                    pass
            return replica.slots["buffer"], replica.slots["memory"]

        return seconds_of(play)

    def updates(self, count: int) -> float:
        """Whole iterations."""
        begin = time.perf_counter()
        made = 0
        while made < count:
            made += len(self.engine.advance(min(count - made, CHUNK)).tally.steps)
        return time.perf_counter() - begin


class ByHand:
    """The program written by hand, with as many unrolls in a call of `self_play` as Tessera's."""

    def __init__(self, s: Settings, longest: int, symmetries: Any, unrolls: int) -> None:
        self.programs, self.unrolls = make(s, longest, symmetries), unrolls
        self.carry = self.programs.self_play(self.programs.init(0), unrolls)

    def self_play(self, calls: int) -> float:
        """Unrolls and nothing else."""

        def play() -> Any:
            for _ in range(calls):
                self.carry = self.programs.self_play(self.carry, self.unrolls)
            return self.carry

        return seconds_of(play)

    def updates(self, count: int) -> float:
        """Whole iterations."""

        def learn() -> Any:
            self.carry = self.programs.updates(self.carry, count)
            return self.carry

        return seconds_of(learn)


def interval(ratios: np.ndarray) -> tuple[float, float]:
    """95 % interval of the median, by bootstrap."""
    draws = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return float(low), float(high)


def compare(mine: Timed, theirs: Timed, seconds: float, pairs: int) -> tuple[int, np.ndarray]:
    """How many unrolls or updates a measurement has, and the seconds of each pair [pairs, 2]."""
    for run in (mine, theirs):
        run(FIRST)
    count = max(1, round(seconds / (mine(FIRST) / FIRST)))
    for run in (mine, theirs):  # with that number, and warm
        run(count)
    found = []
    for k in range(pairs):
        order = (mine, theirs) if k % 2 else (theirs, mine)
        times = [run(count) for run in order]
        found.append(times if k % 2 else times[::-1])
    return count, np.asarray(found)


def figures(positions: int, count: int, pairs: np.ndarray) -> dict[str, Any]:
    """What was measured, of so many positions in each unroll or update."""
    ratios = pairs[:, 1] / pairs[:, 0]
    mine, theirs = np.median(pairs, axis=0)
    return {
        "ratio": round(float(np.median(ratios)), 4),
        "interval": [round(x, 4) for x in interval(ratios)],
        "pairs": len(ratios),
        "per_measurement": count,
        "tessera_per_second": round(count / mine, 3),
        "handwritten_per_second": round(count / theirs, 3),
        "tessera_positions_per_second": round(count * positions / mine, 1),
        "handwritten_positions_per_second": round(count * positions / theirs, 1),
    }


def parts(ours: Ours, s: Settings, unroll_seconds: float) -> dict[str, float]:
    """Shares of self-play's time: the network, the rules, and the rest, which is the search and what is kept."""
    algorithm, env = ours.algorithm, ours.env
    calls = s.unroll * (s.simulations + 1)
    state, board = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), s.games))
    view = ours.engine.replicas[0].slots["acting"]
    judge = jax.vmap(lambda params, x, legal: algorithm.judged(params, x, legal), (None, 0, 0))

    @jax.jit
    def network(params: Any, board: Any, legal: Any) -> Any:
        def once(carry: Any, _: Any) -> Any:
            board, total = carry
            logits, value = judge(params, board, legal)
            return (jnp.roll(board, 1, 0), total + logits.sum() + value.sum()), None

        return lax.scan(once, (board, 0.0), None, calls)[0][1]

    @jax.jit
    def rules(state: Any, key: Any) -> Any:
        def once(state: Any, key: Any) -> Any:
            legal = jax.vmap(env.legal)(state)
            action = jnp.argmax(legal * jax.random.uniform(key, legal.shape), -1)
            after = jax.vmap(env.step)(state, action, jax.random.split(key, s.games))[0]
            return after, None

        return lax.scan(once, state, jax.random.split(key, calls))[0]

    given = (view.params, board, jax.vmap(env.legal)(state)), (state, jax.random.key(1))
    shares = {}
    for name, function, arguments in (("network", network, given[0]), ("rules", rules, given[1])):
        seconds_of(lambda f=function, a=arguments: f(*a))
        seconds = min(seconds_of(lambda f=function, a=arguments: f(*a)) for _ in range(3))
        shares[name] = round(seconds / unroll_seconds, 3)
    return shares | {"search_and_rest": round(1 - sum(shares.values()), 3)}


def measure(s: Settings, options: argparse.Namespace) -> dict[str, Any]:
    """All figures of one game."""
    ours = Ours(s)
    world = ours.env.spec
    turned = None
    if len(world.symmetries) > 1:
        turned = tuple(jnp.asarray(x) for x in zip(*world.symmetries, strict=True))
    theirs = ByHand(s, world.time_limit, turned, ours.unrolls)
    row: dict[str, Any] = {"game": s.game, "device": jax.devices()[0].device_kind, "settings": dataclasses.asdict(s)}
    moves = s.games * s.unroll
    if "self_play" in options.what:
        found = compare(ours.self_play, theirs.self_play, options.seconds, options.pairs)
        row["self_play"] = figures(moves * ours.unrolls, *found)
        row["shares"] = parts(ours, s, moves / row["self_play"]["tessera_positions_per_second"])
    if "iterations" in options.what:
        row["iterations"] = figures(moves, *compare(ours.updates, theirs.updates, options.seconds, options.pairs))
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The figures as a table."""
    lines = ["| game | what | positions/s | by hand | ratio | 95 % |", "| --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        for what in ("self_play", "iterations"):
            if what in row:
                f = row[what]
                speeds = (f[f"{who}_positions_per_second"] for who in ("tessera", "handwritten"))
                low, high = f["interval"]
                cells = (row["game"], what, *(f"{x:,.0f}" for x in speeds), f"{f['ratio']:.3f}")
                lines.append(f"| {' | '.join(cells)} | {low:.3f} to {high:.3f} |")
        if "shares" in row:
            shares = ", ".join(f"{name} {share:.0%}" for name, share in row["shares"].items())
            lines.append(f"time of self-play in {row['game']}: {shares}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=["connect_four", "go_9x9"], help="games of pgx")
    for field in dataclasses.fields(Settings):
        if field.name != "game":
            kind = type(field.default)
            parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)
    parser.add_argument("--what", nargs="+", default=["self_play", "iterations"], help="self_play, iterations or both")
    parser.add_argument("--pairs", type=int, default=20, help="interleaved pairs")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of one measurement, about")
    parser.add_argument("--json", type=Path, default=Path("self_play.json"), help="file for all figures")
    options = parser.parse_args()
    settings = {f.name: getattr(options, f.name) for f in dataclasses.fields(Settings) if f.name != "game"}
    rows = []
    for game in options.names:
        rows.append(measure(Settings(game, **settings), options))
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
        print(table(rows[-1:]), flush=True)


if __name__ == "__main__":
    main()
