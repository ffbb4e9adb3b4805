"""Every position of every game that ends is handed on once, with its outcome and the version of its own move."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tessera.algorithms.parts.finished_games import GamePosition, Moves, hand_on, nothing_waits
from tessera.envs.base import Discrete, Spec

LONGEST = 7
WORLD = Spec((2,), "float32", Discrete(3), time_limit=LONGEST, restricted=True, players=2)


def games(seed: int, moves: int) -> list[list[tuple[int, int, float, bool]]]:
    """Games of 1 to LONGEST moves: (number of the move, player, reward of who moved, over); players do not always
    alternate."""
    random, found, number = np.random.default_rng(seed), [], 0
    while number < moves:
        length = int(random.integers(1, LONGEST + 1))
        players = random.integers(0, 2, length)
        reward = float(random.choice([-1.0, 0.0, 1.0]))
        found.append(
            [(number + k, int(players[k]), reward * (k == length - 1), k == length - 1) for k in range(length)]
        )
        number += length
    return found


@pytest.mark.parametrize("unroll", [1, 3, 7, 64])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_position_is_handed_on_once_with_the_outcome_for_who_moved(unroll, seed):
    played = games(seed, 400)
    moves = [move for game in played for move in game]
    expected = {}
    for game in played:
        _, last, reward, _ = game[-1]
        for number, player, _, _ in game:
            expected[number] = reward if player == last else -reward
    waiting, handed, add = nothing_waits(WORLD, jnp.float32), [], jax.jit(hand_on)
    unrolls = len(moves) // unroll
    for u in range(unrolls):
        part = moves[u * unroll : (u + 1) * unroll]
        number, player, reward, over = (np.asarray(x) for x in zip(*part, strict=True))
        observation = np.stack([number, -number], -1).astype(np.float32)
        position = GamePosition(observation, np.eye(3)[number % 3], np.ones((unroll, 3), bool), np.zeros(unroll))
        position = jax.tree.map(jnp.asarray, position)
        rest = (jnp.asarray(x) for x in (player.astype(np.int32), (100 + number).astype(np.int32), reward, over))
        rows, valid, version, waiting = add(waiting, Moves(position, *rest))
        assert int(waiting.size) <= LONGEST
        for k in np.nonzero(np.asarray(valid))[0]:
            found = int(rows.observation[k, 0])
            assert int(version[k]) == 100 + found
            assert int(rows.policy[k].argmax()) == found % 3
            handed.append((found, float(rows.outcome[k])))
    numbers = [number for number, _ in handed]
    assert numbers == list(range(len(numbers)))  # each once, in the order of play
    assert len(moves) - unroll - len(numbers) <= LONGEST  # but for those that still wait
    assert all(outcome == expected[number] for number, outcome in handed)
    assert {outcome for _, outcome in handed} == {-1.0, 0.0, 1.0}


def test_outcomes_by_hand():
    """Two games in unrolls of 2: one of 3 moves, which its last mover wins, and one of 1, which is lost at once."""
    waiting = nothing_waits(WORLD, jnp.float32)

    def unrolled(waiting, numbers, players, rewards, over):
        position = GamePosition(
            jnp.stack([jnp.asarray(numbers, jnp.float32)] * 2, -1),
            jnp.zeros((2, 3)),
            jnp.ones((2, 3), bool),
            jnp.zeros(2),
        )
        rest = (jnp.asarray(players), jnp.asarray(numbers), jnp.asarray(rewards), jnp.asarray(over))
        rows, valid, _, waiting = hand_on(waiting, Moves(position, *rest))
        return [(int(o[0]), float(z)) for o, z, v in zip(*rows[::3], valid, strict=True) if v], waiting

    handed, waiting = unrolled(waiting, [0, 1], [0, 1], [0.0, 0.0], [False, False])
    assert handed == []
    handed, waiting = unrolled(waiting, [2, 3], [0, 1], [1.0, -1.0], [True, True])
    assert handed == [(0, 1.0), (1, -1.0)]
    assert (int(waiting.size), int(waiting.over)) == (2, 2)
    handed, waiting = unrolled(waiting, [4, 5], [0, 1], [0.0, 0.0], [False, False])
    assert handed == [(2, 1.0), (3, -1.0)]
    assert (int(waiting.size), int(waiting.over)) == (2, 0)
