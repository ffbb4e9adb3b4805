"""Several agents: the network's axis of agents, which agents are learned from, and parity across policies."""

from __future__ import annotations

import functools
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tessera import MAPPO, PPO, DeviceEnvironment, Discrete, Fragment, Policy, Spec, TesseraError, policies
from tessera.algorithms.contract import Clock, Transition, View
from tessera.algorithms.parts.actor_critic_acting import Extras, Statistics
from tessera.api import train
from tessera.engines import serial
from tessera.engines.local import LocalEngine
from tessera.engines.replica.replica import make_programs
from tessera.engines.serial import SerialEngine
from tessera.networks import TeamActorCritic
from tessera.planning.prepare import prepare_plan
from tessera.stores.base import Sample

AGENTS, LENGTH = 3, 4
SPEC = Spec((AGENTS, 2), "float32", Discrete(2), agents=AGENTS)


class Relay(DeviceEnvironment):
    """Agent k drops out after k + 2 steps; whoever is there earns 1 for choice 1, and observes the clock and itself."""

    name = "relay"
    spec = SPEC

    def _observe(self, clock):
        there = self.alive(clock)
        return jnp.where(there[:, None], jnp.stack([jnp.full(AGENTS, clock / 4.0), jnp.arange(AGENTS) - 1.0], -1), 0)

    def reset(self, key):
        del key
        return jnp.int32(0), self._observe(jnp.int32(0)).astype(jnp.float32)

    def step(self, state, action, key):
        del key
        reward = jnp.where(self.alive(state), action == 1, 0).astype(jnp.result_type(float))
        state = state + 1
        return state, self._observe(state).astype(jnp.float32), reward, state >= LENGTH, jnp.zeros((), bool)

    def alive(self, state):
        return state < jnp.arange(AGENTS) + 2


def network(**options):
    net = TeamActorCritic(SPEC, (8,), core_width=4, **options)
    x = jax.random.normal(jax.random.key(0), (5, 2, AGENTS, 2))
    carry = jax.tree.map(lambda c: jnp.broadcast_to(c, (2, *c.shape)), net.empty())
    first = jnp.zeros((5, 2), bool).at[2, 1].set(True)
    return net, net.init(jax.random.key(1), x, carry, first), x, carry, first


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_steps_and_sequences_of_a_team_agree(core, separate):
    net, params, x, carry, first = network(core=core, separate=separate)
    head, value, carries = net.apply(params, x, carry, first)
    assert (head.shape, value.shape) == ((5, 2, AGENTS, 2), (5, 2, AGENTS))
    for t in range(5):
        got, carry = net.apply(params, x[t], carry, first[t], method="policy")
        np.testing.assert_allclose(got, head[t], rtol=1e-5, atol=1e-6)
        now = jax.tree.map(lambda c, t=t: c[t], carries)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), now, carry)
    if core == "none":
        np.testing.assert_allclose(net.apply(params, x[0], method="value"), value[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("central", [False, True])
def test_policies_see_their_own_agent_and_central_values_see_all(separate, central):
    net, params, x, carry, first = network(separate=separate, central=central)
    head, value, _ = net.apply(params, x, carry, first)
    other_head, other_value, _ = net.apply(params, x.at[..., 0, :].add(1.0), carry, first)
    np.testing.assert_array_equal(head[..., 1:, :], other_head[..., 1:, :])
    assert not np.allclose(head[..., 0, :], other_head[..., 0, :])
    assert np.array_equal(value[..., 1:], other_value[..., 1:]) == (not central)


def test_agents_with_params_of_their_own_learn_apart():
    net, params, x, carry, first = network(separate=True)
    gradient = jax.grad(lambda p: net.apply(p, x, carry, first)[0][..., 1, :].sum())(params)
    for leaf in jax.tree.leaves(gradient):
        np.testing.assert_array_equal(leaf[0], 0)
    assert max(float(jnp.abs(leaf[1]).max()) for leaf in jax.tree.leaves(gradient)) > 0


def test_who_has_dropped_out_is_not_learned_from_and_dropping_out_ends_an_agents_return():
    algorithm = MAPPO(widths=(4,), normalise_rewards=False, gamma=0.5, gae_lambda=1.0).bind(SPEC)
    params = jax.tree.map(jnp.zeros_like, algorithm.init(jax.random.key(0)))  # so that values are zero
    view = View(params, (), Statistics(), Clock(jnp.int32(0), jnp.int32(1)))
    there = jnp.asarray([[t < k + 2 for k in range(AGENTS)] for t in range(LENGTH + 1)])[:, None]
    over = jnp.zeros((LENGTH, 1), bool).at[-1].set(True)
    rows = Transition(
        jnp.zeros((LENGTH, 1, AGENTS, 2)), jnp.zeros((LENGTH, 1, AGENTS), jnp.int32),
        Extras(jnp.zeros((LENGTH, 1, AGENTS)), alive=there[:-1]), jnp.ones((LENGTH, 1, AGENTS)), over,
        jnp.zeros_like(over), jnp.zeros((LENGTH, 1, AGENTS, 2)), alive=there[1:].at[-1].set(True),
    )  # fmt: skip
    batch, summary = algorithm.prepare(view, Sample(rows))
    np.testing.assert_array_equal(batch.valid, there[:-1, 0])
    lived = [[1.5, 1.0], [1.75, 1.5, 1.0], [1.875, 1.75, 1.5, 1.0]]  # sums of halves up to each agent's end
    for k, returns in enumerate(lived):
        np.testing.assert_allclose(batch.target[: k + 2, k], returns, rtol=1e-6)
    assert float(summary.valid) == pytest.approx(9 / 12)


@pytest.mark.parametrize("separate", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_team_whose_agents_drop_out_learns(separate):
    algorithm = MAPPO(unroll=8, widths=(16,), learning_rate=0.01, epochs=4, minibatches=2, separate=separate)
    result = train(algorithm, Relay(), "fused", steps=16_000, envs=16, seed=1, eval_episodes=4, quiet=True)
    assert result.summary["eval_return_mean"] == pytest.approx(9 / 3)  # nine rewards, as a mean over three agents
    assert result.act(np.zeros((AGENTS, 2))).shape == (AGENTS,)


def state_of(kind, policy, env, **options):
    algorithm = MAPPO(unroll=8, widths=(8,), learning_rate=0.01, epochs=2, minibatches=2, core_width=4, **options)
    bound, made, plan = prepare_plan(algorithm, env, policy, envs=12, groups=6, precision="f64", engine=kind.name)
    engine = kind(plan, bound, made, seed=3, horizon=10)
    try:
        engine.start()
        engine.advance(3)
        return jax.tree.map(np.array, engine.state())
    finally:
        engine.close()


SPREAD = "jaxmarl:MPE_simple_spread_v3"
APART = {"core": "lstm", "separate": True}
CUTS = ("single_learner_coarse:actors=3", "environments:workers=2", "central:workers=2,shards=2")


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("env", "options", "cuts"),
    [
        pytest.param(SPREAD, {}, CUTS[:1], id="spread-shared"),
        pytest.param(Relay(), APART, CUTS[1:2], id="relay-separate, lstm"),
        pytest.param(Relay(), APART, CUTS, id="relay-separate, lstm, every cut", marks=pytest.mark.slow),
        pytest.param(Relay(), {}, CUTS, id="relay-shared", marks=pytest.mark.slow),
        pytest.param(SPREAD, {}, CUTS, id="spread-shared, every cut", marks=pytest.mark.slow),
        pytest.param(SPREAD, APART, CUTS, id="spread-separate, lstm", marks=pytest.mark.slow),
    ],
)
def test_every_way_to_cut_a_team_gives_the_params_of_fused(env, options, cuts):
    wanted = state_of(SerialEngine, policies.get("fused", devices=1), env, **options)
    for policy in cuts:
        state = state_of(SerialEngine, policies.parse(policy), env, **options)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), state, wanted)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("policy", "separate"),
    [pytest.param("single_learner_coarse", False, marks=pytest.mark.slow), ("environments:workers=1", True)],
)
def test_a_team_on_processes_gives_the_params_of_fused(policy, separate):
    wanted = state_of(SerialEngine, policies.get("fused", devices=1), Relay(), separate=separate)
    state = state_of(LocalEngine, policies.parse(policy), Relay(), separate=separate)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), state, wanted)


def small_plan(policy, env=None, **options):
    algorithm = MAPPO(unroll=8, widths=(4,), epochs=1, minibatches=2, separate=True, **options)
    return prepare_plan(algorithm, env or Relay(), policy, envs=4, groups=2)


def test_agents_with_params_of_their_own_have_an_actor_learner_each():
    plan = small_plan("environments")[2]
    placed = plan.fragments[plan.home("act")]
    assert placed.agents == ((0,), (1,), (2,))
    assert placed.held("grad") == ((0, 1),) * 3
    assert [(c.stream, c.route) for c in plan.channels] == [
        ("timesteps", "reshard"), ("actions", "agents"), ("summary", "gather"), ("norm", "sum"),
    ]  # fmt: skip
    assert prepare_plan(MAPPO(), Relay(), "environments", envs=4)[2].fragments[1].replicas == 1  # one set of params
    with pytest.raises(TesseraError, match="cannot deal 3 agents evenly to 2 replicas"):
        small_plan("environments:agents=2")


def test_only_who_acts_and_learns_can_be_shared_out_by_agents():
    with pytest.raises(TesseraError, match="its operators must be act, store, grad and apply"):
        Policy("odd", (Fragment("env"), Fragment("act", 3, by="agents"), Fragment("store grad apply")))
    with pytest.raises(TesseraError, match="agents"):
        Policy("odd", (Fragment("env"), Fragment("act store grad apply", 3, by="agent")))


@pytest.mark.slow
def test_agents_apart_go_on_from_a_snapshot_to_the_same_bits(monkeypatch):
    bound, made, plan = small_plan("environments", core="gru")
    compiled = functools.cache(lambda own, fragment: make_programs(own, plan, fragment))
    monkeypatch.setattr(serial, "make_programs", lambda own, plan, fragment: compiled(own, fragment))
    engines = [SerialEngine(plan, bound, made, seed=3, horizon=10) for _ in range(2)]
    engines[0].start()
    engines[0].advance(2)
    snapshot = jax.tree.map(np.array, {k: v for k, v in engines[0].snapshot().items() if k != "root"})
    engines[0].advance(2)
    assert jax.tree.structure(snapshot) == jax.tree.structure(
        {k: v for k, v in engines[1].template().items() if k != "root"}
    )
    engines[1].restore(snapshot)
    engines[1].advance(2)
    both = [jax.tree.map(np.array, engine.state()) for engine in engines]
    jax.tree.map(np.testing.assert_array_equal, *both)
    assert all(len(x) == AGENTS for x in jax.tree.leaves(both[0].params))


@pytest.mark.slow
def test_an_agent_that_is_killed_goes_on_from_the_last_checkpoint(monkeypatch, tmp_path):
    advance, killed = LocalEngine.advance, []

    def killing(engine, count, ahead=0):
        if engine.done >= 20 and not killed:
            killed.append(engine.processes()["act+store+grad+apply/1"])
            os.kill(killed[0], signal.SIGKILL)
        return advance(engine, count, ahead)

    monkeypatch.setattr(LocalEngine, "advance", killing)
    algorithm = MAPPO(unroll=8, widths=(16,), learning_rate=0.01, epochs=4, minibatches=2, separate=True)
    result = train(
        algorithm, Relay(), "environments", steps=16_000, envs=16, seed=1, run_dir=tmp_path / "run",
        checkpoint_every=0.2, eval_episodes=4, quiet=True,
    )  # fmt: skip
    assert killed
    assert result.summary["eval_return_mean"] == pytest.approx(9 / 3)


def test_a_pettingzoo_team_is_trained_on_the_host():
    algorithm = MAPPO(unroll=25, widths=(8,), epochs=1, minibatches=1)
    result = train(
        algorithm, "pettingzoo:mpe2.simple_spread_v3", "fused", steps=400, envs=4, eval_episodes=2, quiet=True
    )
    assert result.summary["env_steps"] == 400
    assert -60 < result.summary["eval_return_mean"] < -5


@pytest.mark.slow
def test_a_pettingzoo_team_of_wide_networks_is_trained_on_processes():
    algorithm = MAPPO(unroll=25, epochs=1, minibatches=1, separate=True)
    result = train(
        algorithm, "pettingzoo:mpe2.simple_spread_v3", "environments", steps=400, envs=4, eval_episodes=2, quiet=True
    )
    assert algorithm.bind(result.algorithm.world).widths == (128, 128)
    assert result.summary["engine"] == "local"
    assert -90 < result.summary["eval_return_mean"] < -5


def test_worlds_of_one_agent_and_of_several_want_algorithms_of_their_own():
    with pytest.raises(TesseraError, match="3 agents: choose one for several agents, such as mappo"):
        prepare_plan(PPO(), Relay())
    with pytest.raises(TesseraError, match="one agent: choose one for one agent, such as ppo"):
        prepare_plan(MAPPO(), "gymnax:CartPole-v1")
