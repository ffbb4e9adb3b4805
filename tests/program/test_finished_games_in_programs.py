"""Self-play through the whole training program: what the replay holds are the games, as they are played outside of it.

Moves are random here, by the keys that a search would get; the games are played again by rules written down here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pgx
import pytest

from tessera import AlphaZero
from tessera.engines.serial import SerialEngine
from tessera.envs.base import Timestep
from tessera.planning.prepare import prepare_plan
from tessera.program.keys import clock_at, derive_each, root_key
from tessera.program.shapes import slot_shapes

GAME = "pgx:tic_tac_toe"
ENVS, SEED, STEPS = 4, 7, 70
LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


@dataclass(frozen=True)
class RandomMoves(AlphaZero):
    """AlphaZero whose search finds something else for every key, at once."""

    name = "random_moves"

    def searched(self, params: Any, timestep: Timestep, key: jax.Array, explores: bool) -> tuple[jax.Array, jax.Array]:
        """Any legal move, and any distribution."""
        del params, explores
        drawn = jnp.where(timestep.legal, jax.random.uniform(key, (9,), minval=0.1), 0)
        return jnp.argmax(drawn).astype(jnp.int32), drawn / drawn.sum()


def algorithm(unroll: int) -> RandomMoves:
    return RandomMoves(
        unroll=unroll, draws=2, batch=8, capacity=1000, warmup=1, channels=2, blocks=1, exploring_moves=3
    )


def engine_for(unroll: int, policy: str) -> SerialEngine:
    bound, env, plan = prepare_plan(algorithm(unroll), GAME, policy, envs=ENVS, groups=ENVS)
    engine = SerialEngine(plan, bound, env, SEED, horizon=1000)
    engine.start()
    return engine


def played_outside(unroll: int, warmup: int, draws: int, steps: int) -> list[list[dict[str, Any]]]:
    """For each environment all positions of games that are over, with outcome and version; by hand but for keys."""
    choices = _choices(steps)
    out = []
    for env in range(ENVS):
        done: list[dict[str, Any]] = []
        game: list[dict[str, Any]] = []
        own, other = set[int](), set[int]()
        for step in range(steps):
            free = [c for c in range(9) if c not in own | other]
            best, drawn, policy = choices(env, step, tuple(free))
            board = np.zeros((9, 2), bool)
            board[sorted(own), 0] = board[sorted(other), 1] = True
            update = max(0, step // unroll - warmup)
            game.append({"board": board.reshape(3, 3, 2), "version": update * draws, "policy": policy, "free": free})
            own.add(int(drawn if len(game) <= 3 else best))
            won = any(own.issuperset(line) for line in LINES)
            own, other = other, own
            if won or len(own | other) == 9:
                for k, position in enumerate(reversed(game)):
                    position["outcome"] = (1.0 if k % 2 == 0 else -1.0) * won  # the last to move has won, or nobody
                done, game, own, other = done + game, [], set(), set()
        out.append(done)
    return out


def _choices(steps: int) -> Any:
    """What `act` finds, by environment, step and free cells."""
    ids = jnp.arange(ENVS)
    keys = [derive_each(root_key(SEED), "act", clock_at(s), ids) for s in range(steps)]

    @jax.jit
    def chosen(key: jax.Array, legal: jax.Array) -> tuple[jax.Array, ...]:
        search_key, move_key = jax.random.split(key)
        seen: Any = Timestep(None, None, None, None, None, legal=legal)
        best, policy = RandomMoves().searched(None, seen, search_key, True)
        return best, jax.random.categorical(move_key, jnp.log(policy)), policy

    def choices(env: int, step: int, free: tuple[int, ...]) -> tuple[Any, Any, Any]:
        legal = np.zeros(9, bool)
        legal[list(free)] = True
        return jax.device_get(chosen(keys[step][env], legal))

    return choices


FUSED, COARSE = "fused:devices=1", "single_learner_coarse:actors=2"
CASES = [
    pytest.param(unroll, policy, marks=() if (unroll, policy) in {(3, FUSED), (64, COARSE)} else pytest.mark.slow)
    for policy in (FUSED, COARSE)
    for unroll in (1, 3, 7, 64)
]


@pytest.mark.parametrize(("unroll", "policy"), CASES)
def test_the_replay_holds_every_position_of_every_game_that_is_over_once(unroll, policy):
    engine = engine_for(unroll, policy)
    s = engine.training.algorithm.schedule
    assert (s.draws, s.unroll) == (2, unroll)
    updates = max(1, -(-STEPS // unroll) - s.warmup)
    engine.advance(updates)
    slots = engine.snapshot()
    engine.close()
    buffer, waiting = slots["buffer"], slots["memory"].waiting
    steps = (updates + s.warmup) * unroll
    expected = played_outside(unroll, s.warmup, s.draws, steps)
    for env, positions in enumerate(expected):
        # an unroll hands on at most as many as it has moves, the oldest first
        filled, size = int(buffer.filled[env]), int(waiting.size[env, 0])
        assert filled + size == steps
        assert len(positions) - filled == int(waiting.over[env, 0])
        assert filled > 0.5 * steps or unroll == 64
        rows = jax.tree.map(lambda x, e=env, n=filled: np.asarray(x)[e, :n], buffer.rows)
        versions = np.asarray(buffer.version)[env, :filled]
        for k, position in enumerate(positions[:filled]):
            np.testing.assert_array_equal(rows.observation[k], position["board"])
            np.testing.assert_array_equal(np.flatnonzero(rows.legal[k]), position["free"])
            np.testing.assert_allclose(rows.policy[k], position["policy"], atol=1e-6)
            assert rows.outcome[k] == position["outcome"]
            assert versions[k] == position["version"]
    outcomes = {p["outcome"] for positions in expected for p in positions}
    assert outcomes == {-1.0, 0.0, 1.0}
    assert len({p["version"] for positions in expected for p in positions}) > 1 or unroll == 64


def holds_a_game(tree: Any) -> bool:
    """Whether the state of a game is anywhere in a tree."""
    return any(isinstance(x, pgx.State) for x in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, pgx.State)))


@pytest.mark.parametrize("policy", ["single_learner_coarse:actors=2", "split_inference:workers=2"])
def test_the_state_of_a_game_reaches_the_search_and_nothing_that_is_kept(policy):
    bound, env, plan = prepare_plan(algorithm(3), GAME, policy, envs=ENVS, groups=ENVS)
    engine = SerialEngine(plan, bound, env, SEED, horizon=1000)
    shapes = slot_shapes(engine.training, plan)
    engine.close()
    assert holds_a_game(shapes["timesteps"])
    assert holds_a_game(shapes["observed"])
    kept = ("transition", "trajectory", "experience", "memory", "buffer", "samples", "batch", "extras", "actions")
    for slot in kept:
        assert slot in shapes
        assert not holds_a_game(shapes[slot]), slot
    travels = [c.stream for c in plan.channels if holds_a_game(shapes[c.slot])]
    assert travels == (["timesteps"] if policy.startswith("split") else [])
