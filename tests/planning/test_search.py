"""Searches whose answer can be worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tessera import A2C, TesseraError, envs
from tessera.engines.simulated.costs import Costs, LinkCosts, Timing, Work
from tessera.engines.simulated.machine import Machine
from tessera.planning.colourings import Colouring
from tessera.planning.demands import Demands, node_name
from tessera.planning.explain import explanation, why_best
from tessera.planning.prepare import reference_plan
from tessera.planning.ranking import Candidate, Ranking, time_for
from tessera.planning.ranking_table import SHOWN, render_ranking
from tessera.planning.search import search_plans
from tessera.planning.workload import Workload

QUEUE = A2C(unroll=4, widths=(8,))
DEVICE, HOST = "gymnax:CartPole-v1", "CartPole-v1"
ACTING, LEARNING = "act observed -> actions", "grad batch+summary -> gradients"
STEPPING, APPLYING = "env actions -> timesteps", "apply gradients+squares -> state"
EVERYTHING = "env+act+store+grad+apply"
GB = 2**30


def costs(acting: float = 0.0, learning: float = 0.0, applying: float = 0.0, **more: Any) -> Costs:
    """Seconds of a step of all 8 environments, of their gradient, and of applying it to all params."""
    ops = {ACTING: ((1, acting / 8), (8, acting)), LEARNING: ((1, learning / 8), (8, learning))}
    return Costs({**ops, APPLYING: ((8, applying),)}, **more)


def stepping(share_awake: float) -> dict[str, tuple[Timing, ...]]:
    """A host environment that takes a second for a step, and needs a core for a share of it."""
    return {STEPPING: tuple(Timing(n, 1, (Work(1.0 * n, share_awake * n),)) for n in (1, 8))}


def search(given: Costs, cores: int, env: Any = DEVICE, groups: int = 8, lag: int | None = 0, **how: Any) -> Ranking:
    machine = how.pop("machine", Machine(cores, 0, 64 * GB, 0))
    return search_plans(QUEUE, env, given, machine, envs=8, groups=groups, lag=lag, **how)


def seconds(candidate: Candidate) -> float:
    """Of one update, which is 4 steps of 8 environments."""
    return 32 / candidate.steps_per_second


def test_peers_share_all_work_where_nobody_may_lag():
    """Each of 4 plays 2 environments for 4 steps, 1 s each, and learns from them for a quarter of a second."""
    found = search(costs(acting=4.0, learning=1.0), cores=4)
    assert found.best.policy.name == f"{EVERYTHING}@4"
    assert seconds(found.best) == pytest.approx(4.25)
    assert found.best.at_most == pytest.approx(found.best.steps_per_second)
    assert found.best.why == ""


def test_no_bound_forgets_that_one_half_steps_while_the_other_is_acted_for():
    """One process: 4 s to act for the first half, and 8 steps of 4 s, beside which the other half is acted for."""
    env = envs.make(HOST)
    env.threaded = True
    found = search(costs(acting=8.0, learning=1.0, timings=stepping(1.0)), cores=2, env=env)
    assert all(c.at_most >= c.steps_per_second * (1 - 1e-9) for c in found.candidates)
    alone = next(c for c in found.candidates if c.policy.name == EVERYTHING)
    assert seconds(alone) == pytest.approx(4.0 + 8 * 4.0 + 1.0)


def test_a_learner_of_its_own_pays_where_acting_may_lag_and_a_core_is_left():
    """Four actors take 4 s, and the fifth core learns for 1 s meanwhile; peers would take 4.25 s."""
    found = search(costs(acting=4.0, learning=1.0), cores=5, groups=4, lag=1)
    assert seconds(found.best) == pytest.approx(4.0)
    assert [f.runs for f in found.best.policy.fragments] == [4, 1]
    assert found.best.prediction.bottleneck == found.best.policy.fragments[0].title
    peers = next(c for c in found.candidates if c.policy.name == f"{EVERYTHING}@4")
    assert seconds(peers) == pytest.approx(4.25)
    assert peers.why == f"{EVERYTHING} does everything, one after the other"
    assert "waits 75%" in explanation(found)


def test_dear_messages_let_a_learner_of_its_own_win():
    """4 cores, 17 s of work. Peers wait twice for each other in an update, for 1 s; actors that lag do not."""
    cheap, dear = (costs(acting=4.0, learning=1.0, links=LinkCosts(latency=s)) for s in (0.0, 1.0))
    before, after = search(cheap, cores=4, lag=1), search(dear, cores=4, lag=1)
    assert before.best.policy.name == f"{EVERYTHING}@4"
    assert before.best.prediction.bottleneck == EVERYTHING
    assert seconds(before.best) == pytest.approx(4.25)
    assert [f.runs for f in after.best.policy.fragments] == [4, 1]
    assert after.best.prediction.bottleneck == after.best.policy.fragments[0].title
    assert seconds(after.best) == pytest.approx(4.25, rel=0.01)
    peers = next(c for c in after.candidates if c.policy.name == f"{EVERYTHING}@4")
    assert seconds(peers) == pytest.approx(4.0 + 0.25 + 2.0)
    assert peers.why == "32% of its time goes into messages, above all summary and gradients"


def test_environments_that_sleep_get_processes_of_their_own():
    """One core. Awake, environments take 32 s in any case, and 2 s are for applying. Asleep, 8 processes take 4 s."""
    awake, asleep = (search(costs(applying=2.0, timings=stepping(share)), cores=1, env=HOST) for share in (1.0, 0.0))
    assert awake.best.policy.name == EVERYTHING
    assert seconds(awake.best) == pytest.approx(32.0 + 2.0)
    assert awake.best.prediction.bottleneck == EVERYTHING
    best = asleep.best
    assert best.policy.replicas("env") == 8
    assert best.policy.replicas("apply") == 1
    assert seconds(best) == pytest.approx(4.0 + 2.0)
    assert "env" in best.prediction.bottleneck.split("+")
    assert "apply" not in best.prediction.bottleneck.split("+")


def test_what_is_applied_once_is_not_repeated_by_peers():
    """One core and sleeping environments: 8 peers take 4 s, but each would apply for itself."""
    free, dear = (search(costs(applying=applying, timings=stepping(0.0)), cores=1, env=HOST) for applying in (0.0, 6.0))
    assert free.best.policy.name == f"{EVERYTHING}@8"
    assert free.best.prediction.bottleneck == EVERYTHING
    assert seconds(free.best) == pytest.approx(4.0)
    assert dear.best.policy.replicas("env") == 8
    assert "apply" in dear.best.prediction.bottleneck.split("+")
    assert seconds(dear.best) == pytest.approx(4.0 + 6.0)


def test_learning_from_all_experience_pays_while_learning_is_cheap():
    """Messages take 1 s. Peers that average gradients wait twice; those that learn the same from all wait once."""
    cheap, dear = (
        search(costs(acting=4.0, learning=learning, links=LinkCosts(latency=1.0)), cores=4) for learning in (1.0, 2.0)
    )
    assert (cheap.best.policy.name, seconds(cheap.best)) == (f"{EVERYTHING}@4:gather", pytest.approx(4 + 1 + 1))
    assert (dear.best.policy.name, seconds(dear.best)) == (f"{EVERYTHING}@4", pytest.approx(4 + 2 / 4 + 2))


def test_one_more_core_or_replica_is_simulated_too():
    found = search(costs(acting=4.0), cores=2, groups=8)
    assert found.best.policy.name == f"{EVERYTHING}@2"
    gains = {gain.what: gain.steps_per_second / found.best.steps_per_second for gain in found.gains}
    assert gains == {"core": pytest.approx(1.0), f"replica of {EVERYTHING}": pytest.approx(1.0, rel=0.15)}
    assert "One more core would bring nothing" in explanation(found)
    crowded = search(costs(acting=4.0), cores=2, env=DEVICE, groups=2)
    assert [gain.what for gain in crowded.gains] == ["core"]  # each group has a replica


def test_plans_that_do_not_wait_are_ranked_apart_with_the_lag_that_they_bring():
    work = costs(acting=0.5, applying=4.0)
    assert search(work, cores=2, lag=None).other_recipes == ()
    found = search(work, cores=2, lag=None, allow_async=True)
    assert found.other_recipes
    assert all(c.policy.name.endswith(":async") and c.plan.asynchronous for c in found.other_recipes)
    assert not any(c.plan.asynchronous for c in found.candidates)
    assert seconds(found.best) == pytest.approx(1.0 + 4.0)  # two of everything, which takes turns
    assert seconds(found.other_recipes[0]) == pytest.approx(4.0)  # the learner never waits
    assert found.other_recipes[0].lag >= 2
    assert "another recipe" in explanation(found)
    asked = search(work, cores=2, lag=None, asks_async=True)
    assert asked.best.plan.asynchronous  # it is what the system does anyway
    assert asked.other_recipes == ()
    assert len(found.candidates) + len(found.other_recipes) <= 20


def test_all_candidates_learn_from_the_same_environments_groups_and_lag():
    found = search(costs(acting=1.0, learning=1.0), cores=3, lag=1)
    assert {(c.plan.envs, c.plan.groups, c.plan.lag, c.plan.batches) for c in found.candidates} == {(8, 8, 1, 8)}
    assert all(placed.replicas <= 8 for c in found.candidates for placed in c.plan.fragments)


def test_a_plan_that_does_not_fit_says_what_it_asks_for():
    found = search(costs(acting=4.0), cores=4, machine=Machine(4, 0, 1 * GB, 0))
    assert found.best.policy.name == f"{EVERYTHING}@2"
    reasons = {r.colouring: r.reason for r in found.refused}
    assert reasons[f"{EVERYTHING}@4"] == (f"it takes 4 × 0.4 GB for {EVERYTHING}, in all 1.8 GB; available: 1.0 GB")
    with pytest.raises(TesseraError, match=r"is possible here: env.* takes 1 × 0.4 GB .*available: 0.1 GB"):
        search(costs(acting=4.0), cores=4, machine=Machine(4, 0, GB // 8, 0))


def test_accelerators_serve_one_program_after_the_other():
    """Two accelerators: peers on both halve the 4 s of playing; four would wait for each other."""
    machine = Machine(8, 2, 64 * GB, 64 * GB)
    found = search(costs(acting=4.0), cores=8, machine=machine)
    assert seconds(found.best) == pytest.approx(16.0 / 2)
    assert {gain.what for gain in found.gains} >= {"core", "accelerator"}


def test_the_objective_may_be_time():
    found = search(costs(acting=4.0), cores=2, objective=time_for(steps=3200))
    assert found.objective.value(found.best.prediction) == pytest.approx(3200 / found.best.steps_per_second)
    order = [found.objective.value(c.prediction) for c in found.candidates[1:]]
    assert order == sorted(order)


def test_the_choice_is_explained_in_one_clause():
    found = search(costs(acting=4.0, learning=1.0), cores=5, groups=4, lag=1)
    assert why_best(found).startswith("predicted 8 steps/s, against 8 of the next best, env+act+")


def test_the_same_is_found_twice():
    slow = Timing(8, 1, tuple(Work(s, s) for s in (1.0, 1.0, 1.0, 5.0)))
    work = costs(applying=1.0, timings={STEPPING: (slow,)})
    first, second = (search(work, cores=1, env=HOST, groups=1) for _ in range(2))
    assert first.to_json() == second.to_json()
    assert first.best.low < first.best.steps_per_second < first.best.high  # some steps take longer


def test_of_a_profile_that_knows_one_program_nothing_else_is_foretold():
    workload = Workload(*reference_plan(QUEUE, DEVICE, envs=8, groups=8, lag=0), Costs(), Machine(2, 0, 64 * GB, 0), 0)
    together = Colouring((("env", "act", "store", "grad", "apply"),), ((1, 1),))
    (program,) = Demands(workload).template(together).programs
    (call,) = program.calls
    found = search(Costs(timings={node_name(call.node): (Timing(8, 1, (Work(1.0, 1.0),)),)}, dispatch=0.001), cores=2)
    assert [c.policy.name for c in found.candidates] == [EVERYTHING]
    assert why_best(found).endswith("and no other plan can be predicted here: `tessera plan` says why")
    assert [gain.what for gain in found.gains] == ["core"]  # one more replica would be other programs
    assert sum("the profile was cut short" in line for line in render_ranking(found).splitlines()) <= SHOWN
