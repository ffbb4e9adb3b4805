"""Connect four: how often do an agent's moves give away the game's value, by a perfect solver?

    python benchmarks/connect_four.py positions positions.json                # the solver's machine (needs bitbully)
    python benchmarks/connect_four.py moves runs/c4 positions.json moves.json # where the run is; needs no solver
    python benchmarks/connect_four.py verdict positions.json moves.json --picture curve.png

Positions are reached by mixed play: in a third of the games all moves are random, in a third of them half are, and in a
third none; the others win at once where they can, and else do not lose at once where that can be helped. There are as
many different ones of begin (up to 14 stones), middle (up to 28) and end, each number of stones as often as the others
if possible. A move is a mistake if the best one wins and it does not, or the best one draws and it loses. The share of
mistakes is given over all positions, and over those in which a mistake is possible.

`moves` lets every checkpoint of a run move, with search and by its network alone. Keep many for a curve:
`--checkpoint-every 30 --keep 1000 --no-checkpoint-replay`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

STAGES = {"begin": range(15), "middle": range(15, 29), "end": range(29, 41)}
"""Stones on the board."""
RANDOM_SHARES = (0.0, 0.5, 1.0)
COLUMNS = 7
BATCH = 500
TRIES = 400_000
"""Games, after which there are not enough different positions."""


def make_positions(count: int, seed: int) -> dict[str, list[dict[str, Any]]]:
    """Positions of each stage: the columns that were played, and the solver's score of each legal move."""
    from bitbully import BitBully

    solver, random = BitBully(), np.random.default_rng(seed)
    wanted = {n: math.ceil(count / len(stage)) for stage in STAGES.values() for n in stage}
    found: dict[int, dict[int, list[int]]] = {n: {} for n in wanted}
    for game in range(TRIES):
        board, moves = _played(random, RANDOM_SHARES[game % len(RANDOM_SHARES)], _pick(random, found, wanted))
        if board is not None and len(found[len(moves)]) < wanted[len(moves)]:
            found[len(moves)].setdefault(board.uid(), moves)
        if game % 100 == 0 and all(_full(n, found, wanted) for n in wanted):
            break
    out = {}
    for name, stage in STAGES.items():
        moves = [m for n in stage for m in found[n].values()]
        moves += _more(random, count - len(moves), max(stage), found)
        chosen = [moves[k] for k in sorted(random.permutation(len(moves))[:count])]
        out[name] = [{"moves": m, "scores": _scores(solver, m)} for m in chosen]
        print(f"{name}: {len(out[name]):,} positions", flush=True)
    return out


def _full(stones: int, found: dict[int, dict[int, list[int]]], wanted: dict[int, int]) -> bool:
    """Whether there are enough positions; of the first moves there are only a few."""
    return len(found[stones]) >= min(wanted[stones], COLUMNS**stones // 4 + 1 if stones < 5 else wanted[stones])


def _pick(random: np.random.Generator, found: dict[int, dict[int, list[int]]], wanted: dict[int, int]) -> int:
    """The number of stones of the next position: one of which there are not enough."""
    open_ones = [n for n in wanted if not _full(n, found, wanted)] or list(wanted)
    return int(random.choice(open_ones))


def _played(random: np.random.Generator, share: float, stones: int) -> tuple[Any, list[int]]:
    """A game up to so many stones; (None, moves) if it is over by then."""
    from bitbully import Board

    board, moves = Board(), list[int]()
    while len(moves) < stones:
        legal = board.legal_moves()
        if random.random() >= share:
            wins = [m for m in legal if board.can_win_next(m)]
            legal = wins or board.legal_moves(non_losing=True) or legal
        moves.append(int(random.choice(legal)))
        board.play(moves[-1])
        if board.is_game_over():
            return None, moves
    return board, moves


def _more(random: np.random.Generator, missing: int, most: int, found: Any) -> list[list[int]]:
    """As many more positions as are missing, since the first moves have few: of more stones."""
    known, out = {uid for each in found.values() for uid in each}, list[list[int]]()
    while len(out) < missing:
        board, moves = _played(random, float(random.choice(RANDOM_SHARES)), int(random.integers(most - 6, most + 1)))
        if board is not None and board.uid() not in known:
            known.add(board.uid())
            out.append(moves)
    return out


def _scores(solver: Any, moves: list[int]) -> dict[int, int]:
    """The solver's score of each legal move: above 0 who moves wins, below 0 it loses."""
    from bitbully import Board

    return {int(m): int(x) for m, x in solver.score_all_moves(Board.from_moves(moves)).items()}


def moves_of(folder: Path, positions: dict[str, Any], simulations: list[int], least: int) -> dict[str, Any]:
    """What each checkpoint of a run plays in all positions, by kind: network, or a number of simulations."""
    from tessera.runs.checkpoint import Checkpoints
    from tessera.runs.metrics import read_metrics
    from tessera.runs.saved_run import load_run

    checkpoints = Checkpoints(folder / "checkpoints", read_only=True)
    updates, rows = checkpoints.updates(), read_metrics(folder)
    checkpoints.close()
    played = [p["moves"] for stage in positions.values() for p in stage]
    players: dict[str, Any] = {}
    out: list[dict[str, Any]] = []
    states = _states(load_run(folder).env, played)
    for update in [u for k, u in enumerate(updates) if u == updates[-1] or k % max(1, least) == 0]:
        run = load_run(folder, checkpoint=update)
        row = next((r for r in rows if r["update"] >= update), rows[-1] if rows else {})
        found = {}
        for kind in ("network", *map(str, simulations)):
            if kind not in players:
                players[kind] = _player(run.algorithm, kind)
            found[kind] = _in_batches(players[kind], run.view, states, len(played))
        about = {"update": update, "env_steps": row.get("env_steps"), "seconds": row.get("seconds")}
        out.append({**about, "moves": found})
        print(f"update {update}: {len(played):,} moves each by {', '.join(found)}", flush=True)
    return {"run": str(folder), "checkpoints": out}


def _states(env: Any, played: list[list[int]]) -> Any:
    """States of the game after these moves."""
    import jax
    import jax.numpy as jnp

    longest = max(map(len, played))
    padded = np.asarray([m + [-1] * (longest - len(m)) for m in played], np.int32)

    def replay(moves: Any) -> Any:
        def step(state: Any, move: Any) -> Any:
            after, *_ = env.step(state, jnp.maximum(move, 0), jax.random.key(0))
            return jax.tree.map(lambda a, b: jnp.where(move < 0, a, b), state, after), None

        return jax.lax.scan(step, env.reset(jax.random.key(0))[0], moves)[0]

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(replay))(padded))


def _player(algorithm: Any, kind: str) -> Any:
    """A function of params and states: greedy moves, by the network alone or after a search."""
    import jax
    import jax.numpy as jnp

    from tessera.envs.base import Timestep

    searches = kind != "network"
    player = dataclasses.replace(algorithm, simulations=int(kind)) if searches else algorithm
    game = algorithm.game

    def one(view: Any, state: Any) -> Any:
        no = jnp.zeros((), bool)
        seen = Timestep(
            game.observe(state), 0.0, no, no, None, legal=game.legal(state), player=game.player(state),
            state=state if searches else None,
        )  # fmt: skip
        return player.greedy(view, player.memory(jnp.int32(0)), seen, jax.random.key(0))[0]

    return jax.jit(jax.vmap(one, (None, 0)))


def _in_batches(player: Any, view: Any, states: Any, count: int) -> list[int]:
    import jax

    found: list[int] = []
    for begin in range(0, count, BATCH):
        which = np.minimum(np.arange(begin, begin + BATCH), count - 1)  # one size, one program
        moves = np.asarray(player(view, jax.tree.map(lambda x, w=which: x[w], states)))
        found += [int(m) for m in moves[: count - begin]]
    return found


def judged(positions: dict[str, Any], moves: list[int]) -> dict[str, Any]:
    """Shares of mistakes by stage, and over all of them."""
    out, begin = {}, 0
    mistakes: dict[str, list[tuple[bool, bool]]] = {}
    for name, stage in positions.items():
        mistakes[name] = []
        for position, move in zip(stage, moves[begin : begin + len(stage)], strict=True):
            worth = {int(m): int(np.sign(x)) for m, x in position["scores"].items()}
            if move not in worth:
                raise SystemExit(f"{move} is no legal move after {position['moves']}")
            best = max(worth.values())
            mistakes[name].append((worth[move] < best, min(worth.values()) < best))
        begin += len(stage)
    for name, each in {**mistakes, "all": [x for stage in mistakes.values() for x in stage]}.items():
        made, possible = (sum(column) for column in zip(*each, strict=True))
        low, high = interval(made, len(each))
        out[name] = {
            "positions": len(each), "mistakes": made, "share": made / len(each), "low": low, "high": high,
            "possible": possible, "share_where_possible": made / max(possible, 1),
        }  # fmt: skip
    return out


def interval(made: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z, share = 1.96, made / count
    middle, width = share + z * z / (2 * count), z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return (middle - width) / (1 + z * z / count), (middle + width) / (1 + z * z / count)


def verdict(positions: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The moves of every checkpoint, judged."""
    rows = [
        {**{k: c[k] for k in ("update", "env_steps", "seconds")},
         "kinds": {kind: judged(positions, moves) for kind, moves in c["moves"].items()}}
        for c in found["checkpoints"]
    ]  # fmt: skip
    return {"run": found["run"], "checkpoints": rows}


def table(row: dict[str, Any]) -> str:
    """What one checkpoint gave away."""
    lines = ["| moves by | stage | mistakes | 95 % | where one is possible |", "| --- | --- | --- | --- | --- |"]
    for kind, stages in row["kinds"].items():
        by = "network alone" if kind == "network" else f"{kind} simulations"
        for stage, f in stages.items():
            of = f"{f['share_where_possible']:.1%} of {f['possible']:,}"
            lines.append(f"| {by} | {stage} | {f['share']:.1%} | {f['low']:.1%} to {f['high']:.1%} | {of} |")
    return "\n".join(lines)


def draw(judgement: dict[str, Any], picture: Path) -> None:
    """The shares over time."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = judgement["checkpoints"]
    timed = all(row["seconds"] is not None for row in rows)
    across = [row["seconds"] / 60 if timed else row["update"] for row in rows]
    kinds = list(rows[0]["kinds"])
    figure, panels = plt.subplots(1, len(kinds), figsize=(5 * len(kinds), 3.5), sharey=True, squeeze=False)
    for panel, kind in zip(panels[0], kinds, strict=True):
        for stage in STAGES:
            shares = [100 * row["kinds"][kind][stage]["share"] for row in rows]
            panel.plot(across, shares, marker="o", markersize=3, label=stage)
        panel.set_title("network alone" if kind == "network" else f"{kind} simulations")
        panel.set_xlabel("minutes of training" if timed else "updates")
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("moves that give away the value, %")
    panels[0][0].legend()
    figure.tight_layout()
    figure.savefig(picture, dpi=120)


def read(path: Path) -> Any:
    """A file that another command has written."""
    return json.loads(path.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    p = commands.add_parser("positions", help="make positions and have the solver score them")
    p.add_argument("out", type=Path)
    p.add_argument("--count", type=int, default=1000, help="positions of each stage")
    p.add_argument("--seed", type=int, default=22)
    p = commands.add_parser("moves", help="let the checkpoints of a run move")
    p.add_argument("run", type=Path)
    p.add_argument("positions", type=Path)
    p.add_argument("out", type=Path)
    p.add_argument("--simulations", type=int, nargs="*", default=[64])
    p.add_argument("--every", type=int, default=1, help="take every so many checkpoints, and the newest")
    p = commands.add_parser("verdict", help="judge the moves")
    p.add_argument("positions", type=Path)
    p.add_argument("moves", type=Path)
    p.add_argument("--json", type=Path, default=Path("connect_four.json"))
    p.add_argument("--picture", type=Path)
    options = parser.parse_args()
    if options.command == "positions":
        options.out.write_text(json.dumps(make_positions(options.count, options.seed)) + "\n")
        return 0
    positions = read(options.positions)
    if options.command == "moves":
        found = moves_of(options.run, positions, options.simulations, options.every)
        options.out.write_text(json.dumps(found) + "\n")
        return 0
    judgement = verdict(positions, read(options.moves))
    options.json.write_text(json.dumps(judgement, indent=2) + "\n")
    if options.picture:
        draw(judgement, options.picture)
    for row in judgement["checkpoints"]:
        shares = ", ".join(f"{kind} {found['all']['share']:.1%}" for kind, found in row["kinds"].items())
        print(f"update {row['update']}: mistakes by {shares}")
    print(table(judgement["checkpoints"][-1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
