from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tessera import DQN, PPO, TesseraError, envs
from tessera.algorithms.contract import Schedule
from tessera.envs.base import Timestep
from tessera.program import accounting, minibatches, training_program
from tessera.program.accounting import Episode, Tally
from tessera.program.training_program import Training

# Two environments, five steps. The first terminates at its second step and is reset at its third (which is masked
# where there is a mask); the second is truncated at its fourth.
REWARDS = np.asarray([[1, 1], [2, 1], [64, 1], [1, 1], [1, 1]], np.float32)
TERMINATED = np.asarray([[0, 0], [1, 0], [0, 0], [0, 0], [0, 0]], bool)
TRUNCATED = np.asarray([[0, 0], [0, 0], [0, 0], [0, 1], [0, 0]], bool)
VALID = np.asarray([[1, 1], [1, 1], [0, 1], [1, 1], [1, 1]], bool)


def played(xp, valid):
    """Go through the five steps; the running episodes and the tally after them."""
    nothing = xp.zeros(2, bool)
    episode = accounting.no_episode(Timestep(nothing, xp.zeros(2, xp.float32), nothing, nothing, nothing), xp)
    (tally,) = accounting.no_tally(episode, masks=valid is not None)
    for t in range(5):
        mask = None if valid is None else xp.asarray(valid[t])
        step = Timestep(None, *(xp.asarray(x[t]) for x in (REWARDS, TERMINATED, TRUNCATED)), None, mask)
        episode, play = accounting.account(episode, step, xp)
        (tally,) = accounting.count(tally, play)
    return episode, tally


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, a), b)


@pytest.mark.parametrize("xp", [np, jnp])
def test_episodes_end_by_termination_or_truncation_and_start_again_at_nothing(xp):
    episode, tally = played(xp, None)
    same(tally, Tally([1, 1], [3.0, 4.0], [2, 4], None))
    same(accounting.total(jax.tree.map(jnp.asarray, tally), 5)[0], Tally(2, 7.0, 6, 10))
    same(episode, Episode([66.0, 1.0], [3, 1]))


@pytest.mark.parametrize("xp", [np, jnp])
def test_a_masked_step_counts_neither_as_a_step_nor_towards_an_episode(xp):
    episode, tally = played(xp, VALID)
    same(tally, Tally([1, 1], [3.0, 4.0], [2, 4], [4, 5]))
    same(episode, Episode([2.0, 1.0], [2, 1]))


def test_counting_on_the_host_keeps_the_dtypes_of_counting_on_a_device():
    on_host, on_device = played(np, VALID), played(jnp, VALID)
    assert [x.dtype for x in jax.tree.leaves(on_host)] == [x.dtype for x in jax.tree.leaves(on_device)]


def test_rows_that_minibatches_do_not_divide_are_refused_with_the_numbers():
    batch = (jnp.zeros((4, 10, 3)), jnp.zeros((4, 10)))
    assert minibatches.rows_per_group(batch, 5, "ppo") == 10
    with pytest.raises(TesseraError, match="ppo: 10 rows per group do not divide into 4 minibatches"):
        minibatches.rows_per_group(batch, 4, "ppo")


@dataclasses.dataclass(frozen=True)
class Greedier(DQN):
    """A DQN that goes over each draw several times."""

    epochs: int = 1
    minibatches: int = 1

    @property
    def schedule(self):
        return dataclasses.replace(super().schedule, epochs=self.epochs, minibatches=self.minibatches)


def learning(**options):
    env = envs.make("gymnax:CartPole-v1")
    return Training(Greedier(**options).bind(env.spec), env, 1).learn()


@pytest.mark.parametrize("options", [{"epochs": 2}, {"minibatches": 2}])
def test_priorities_are_refused_where_a_draw_makes_more_than_one_gradient(options):
    with pytest.raises(TesseraError, match="prioritised store needs 1 epoch and 1 minibatch"):
        learning(prioritised=True, **options)
    assert learning(prioritised=True, draws=3).count == 3
    assert learning(prioritised=False, **options)


def test_minibatches_of_an_epoch_pick_every_row_of_every_group_once():
    batch = jnp.arange(12).reshape(2, 6)
    order = jnp.asarray([[3, 0, 5, 1, 2, 4], [5, 4, 3, 2, 1, 0]]).reshape(2, 3, 2)
    picked = [minibatches.pick(batch, order[:, m]).tolist() for m in range(3)]
    assert picked == [[3, 0, 11, 10], [5, 1, 9, 8], [2, 4, 7, 6]]


def test_actions_are_kept_within_the_bounds_of_the_environment():
    bound = training_program.bounded(envs.make("gymnax:Pendulum-v1"))
    assert bound(np.asarray([5.0], np.float32), np).tolist() == [2.0]
    assert bound(np.asarray([-0.5], np.float32), np).tolist() == [-0.5]
    assert training_program.bounded(envs.make("gymnax:CartPole-v1"))(7, np) == 7


def test_gradients_applied_in_an_update_are_draws_times_epochs_times_minibatches():
    assert Schedule(8, draws=2, epochs=3, minibatches=5).applies == 30
    assert PPO(unroll=4, epochs=2, minibatches=8).schedule.applies == 16
