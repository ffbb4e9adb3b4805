"""Actions that are not allowed are never taken and never bootstrapped from, under any algorithm with discrete ones."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from envs.worlds import Forbidding, ForbiddingHost, ForbiddingPairs, ForbiddingTeam
from parity.matrix import MOVED, assert_same_state, furthest, run

import tessera
from tessera import policies
from tessera.algorithms.parts.n_step_windows import Row
from tessera.envs import Discrete, MultiDiscrete, Spec
from tessera.maths.distributions import for_actions
from tessera.maths.exploration import best_action, best_value, epsilon_greedy

LEGAL = jnp.asarray([[True, False, True, False], [False, True, False, False], [True, True, True, True]])


def test_distributions_have_only_legal_actions_and_the_gradient_of_those():
    logits = jnp.asarray([[1.0, 9.0, 2.0, 3.0]] * 3)
    masked = for_actions(Discrete(4), logits, LEGAL)
    chosen = jax.vmap(lambda key: masked.sample(key))(jax.random.split(jax.random.key(0), 500))
    assert bool(jnp.take_along_axis(jnp.broadcast_to(LEGAL, (500, 3, 4)), chosen[..., None], -1).all())
    assert masked.mode().tolist() == [2, 1, 1]
    among_two = for_actions(Discrete(2), logits[:1, jnp.asarray([0, 2])])
    np.testing.assert_allclose(masked.entropy()[0], among_two.entropy()[0], rtol=1e-6)
    np.testing.assert_allclose(masked.log_prob(jnp.asarray([2, 1, 0]))[0], among_two.log_prob(jnp.asarray([1]))[0])

    def loss(logits: Any) -> Any:
        one = for_actions(Discrete(4), logits, LEGAL)
        return (one.entropy() + one.log_prob(jnp.asarray([2, 1, 0]))).sum()

    gradient = jax.grad(loss)(logits)
    assert bool(jnp.isfinite(gradient).all())
    assert not bool(jnp.where(LEGAL, 0, gradient).any())


def test_of_several_choices_each_has_its_part_of_the_mask():
    legal = jnp.asarray([False, True, True, False, True])
    several = for_actions(MultiDiscrete((2, 3)), jnp.asarray([5.0, 0.0, 0.0, 9.0, 1.0]), legal)
    assert several.mode().tolist() == [1, 2]
    drawn = jax.vmap(several.sample)(jax.random.split(jax.random.key(1), 200))
    assert set(drawn[:, 0].tolist()) == {1}
    assert set(drawn[:, 1].tolist()) == {0, 2}


def test_random_and_best_actions_are_legal_and_every_legal_one_is_drawn_as_often():
    values = jnp.asarray([[0.0, 5.0, 1.0, 9.0]] * 3)
    assert best_action(values, LEGAL).tolist() == [2, 1, 3]
    assert best_value(values, LEGAL).tolist() == [1.0, 5.0, 9.0]
    keys = jax.random.split(jax.random.key(2), 4000)
    drawn = np.asarray(jax.vmap(lambda key: epsilon_greedy(key, values, 1.0, LEGAL))(keys))
    for row, legal in enumerate(np.asarray(LEGAL)):
        shares = np.bincount(drawn[:, row], minlength=4) / len(drawn)
        np.testing.assert_allclose(shares, legal / legal.sum(), atol=0.03)
    assert epsilon_greedy(keys[0], values, 0.0, LEGAL).tolist() == [2, 1, 3]


def test_where_nothing_is_legal_values_stay_finite():
    assert bool(jnp.isfinite(best_value(jnp.ones((2, 3)), jnp.zeros((2, 3), bool))).all())


@pytest.mark.parametrize("double", [True, False])
def test_targets_bootstrap_from_the_best_legal_action(double):
    algorithm = tessera.DQN(double=double).bind(Spec((1,), "float32", Discrete(4), restricted=True))
    params = jax.tree.map(jnp.zeros_like, algorithm.init(jax.random.key(0)))
    params["params"]["q"]["bias"] = jnp.asarray([1.0, 7.0, 3.0, 9.0])
    rows = Row(
        jnp.zeros((3, 1)), jnp.zeros(3, jnp.int32), jnp.ones(3), jnp.full(3, 0.5), jnp.zeros((3, 1)), LEGAL
    )  # fmt: skip
    assert algorithm.targets(params, params, rows).tolist() == [1 + 3 / 2, 1 + 7 / 2, 1 + 9 / 2]


SMALL: dict[str, Any] = {
    "ppo": tessera.PPO(unroll=8, epochs=2, minibatches=2, widths=(8,), learning_rate=0.01),
    "dqn": tessera.DQN(unroll=8, draws=2, batch=48, capacity=480, warmup=2, widths=(8,), learning_rate=0.01, n_step=3),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", SMALL)
def test_policies_that_place_it_otherwise_give_the_same_params(name):
    before, after, _ = run(SMALL[name], policies.get("fused", devices=1), env=Forbidding())
    assert furthest(before.params, after.params) > MOVED
    assert_same_state(SMALL[name], "single_learner_coarse:actors=2", after, Forbidding())


def test_no_illegal_action_reaches_an_environment_on_the_host():
    result = tessera.train(SMALL["ppo"], ForbiddingHost, "fused", steps=6_000, seed=3, quiet=True, eval_episodes=8)
    seen, info = (env := ForbiddingHost()).reset(seed=1)
    assert result.env.spec.restricted
    for _ in range(30):
        seen, _, ended, late, info = env.step(result.act(seen, legal=info["action_mask"]) + 3)
        if ended or late:
            seen, info = env.reset()
    with pytest.raises(tessera.TesseraError, match="pass legal=mask"):
        result.act(seen)


@pytest.mark.parametrize("observed", [False, True], ids=["in info", "in observations"])
def test_agents_of_pettingzoo_have_masks_of_their_own(observed):
    algorithm = tessera.MAPPO(unroll=12, epochs=2, minibatches=2, widths=(16,), learning_rate=0.01)
    team = functools.partial(ForbiddingTeam, observed=observed)
    result = tessera.train(algorithm, team, "fused", steps=6_000, envs=8, seed=3, quiet=True, eval_episodes=4)
    assert result.env.spec.restricted
    assert result.env.spec.observation_shape == (2, 4)
    legal = np.array([[True, False, True, False], [False, True, False, False]])
    assert result.act(legal.astype(np.float32), legal=legal)[1] == 1


DISCRETE = [
    tessera.PPO(), tessera.PPO(core="lstm"), tessera.A2C(), tessera.IMPALA(), tessera.DQN(),
    tessera.C51(n_step=3, noisy=True, prioritised=True, dueling=True), tessera.QRDQN(), tessera.PQN(), tessera.R2D2(),
    *(tessera.QLearning(kind=kind) for kind in ("one_step", "sarsa", "n_step")), tessera.ES(),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", DISCRETE, ids=lambda algorithm: algorithm.name)
def test_in_a_million_steps_no_illegal_action_is_taken(algorithm):
    result = tessera.train(algorithm, Forbidding(), "fused", steps=1_000_000, seed=5, quiet=True, eval_episodes=8)
    assert np.isfinite(result.summary["train_return_mean"])  # an illegal action has ended the run by a reward of NaN


@pytest.mark.slow
def test_in_a_million_steps_no_illegal_pair_of_choices_is_taken():
    result = tessera.train(tessera.PPO(), ForbiddingPairs(), "fused", steps=1_000_000, quiet=True, eval_episodes=8)
    assert result.summary["train_return_mean"] == 12.0
