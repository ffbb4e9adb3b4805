"""Searches for the nodes of a cluster, whose answer can be worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tessera import A2C, TesseraError
from tessera.cli.main import main
from tessera.engines.simulated.cluster import Cluster, NodeKind
from tessera.engines.simulated.costs import Costs, LinkCosts
from tessera.engines.simulated.machine import Machine
from tessera.graph.operators import OPERATORS
from tessera.planning.colourings import MANY, Limits
from tessera.planning.explain import explanation
from tessera.planning.ranking import COST, Candidate, Ranking
from tessera.planning.search import search_plans
from tessera.profiling import profile as profiles
from tessera.profiling.profile import Profile

QUEUE = A2C(unroll=4, widths=(8,))
DEVICE = "gymnax:CartPole-v1"
ACTING, LEARNING = "act observed -> actions", "grad batch+summary -> gradients"
EVERYTHING = "env+act+store+grad+apply"
HERE = Machine(2, 0, 1 << 36, 0)
COSTS = Costs({ACTING: ((1, 0.5), (8, 4.0)), LEARNING: ((1, 0.125), (8, 1.0))})
"""4 s for a step of all 8 environments, and 1 s for their gradient."""


def nodes(count: int = 2, cores: int = 2, **more: Any) -> Cluster:
    return Cluster((NodeKind(name="worker", count=count, cores=cores, **more),))


def search(cluster: Cluster, given: Costs = COSTS, lag: int | None = 0, **how: Any) -> Ranking:
    how = {"groups": 8, "envs": 8, **how}
    return search_plans(QUEUE, DEVICE, given, HERE, lag=lag, cluster=cluster, **how)


def seconds(candidate: Candidate) -> float:
    """Of one update, which is 4 steps of 8 environments."""
    return 32 / candidate.steps_per_second


def named(found: Ranking, policy: str) -> Candidate:
    return next(c for c in found.candidates if c.policy.name == policy)


def test_peers_share_all_work_over_the_cores_of_all_nodes():
    """This machine has 2 cores, and the cluster 4: 4 s to play and a quarter of a second to learn."""
    found = search(nodes())
    assert found.best.policy.name == f"{EVERYTHING}@4"
    assert seconds(found.best) == pytest.approx(4.25)
    assert found.where == "2 × worker with 2 CPU"
    assert [gain.what for gain in found.gains] == ["node of kind worker"]  # there is no core for one more replica


def test_faster_nodes_take_less_time_and_no_bound_forgets_it():
    found = search(nodes(speed=2.0))
    assert seconds(found.best) == pytest.approx(4.25 / 2)
    assert all(c.at_most >= c.steps_per_second * (1 - 1e-9) for c in found.candidates)


def test_a_slow_network_lets_a_learner_of_its_own_win():
    """Peers on 4 nodes wait twice for each other in an update, for 1 s; actors that lag do not."""
    near, far = (search(nodes(4, 1, latency=latency), lag=1) for latency in (0.0, 1.0))
    assert near.best.policy.name == f"{EVERYTHING}@4"
    assert seconds(named(far, f"{EVERYTHING}@4")) > 4.25 + 1.9
    assert far.best.policy.name != f"{EVERYTHING}@4"
    assert len(far.best.policy.fragments) == 2
    assert all(c.at_most >= c.steps_per_second * (1 - 1e-9) for c in (*near.candidates, *far.candidates))


def test_messages_cost_what_those_between_machines_do():
    """Each end of a message works for 100 s: that is dear for peers, and nothing for one process."""
    found = search(nodes(), replace(COSTS, remote_links=LinkCosts(cpu_per_message=100.0)))
    assert found.best.policy.name == EVERYTHING
    assert seconds(found.best) == pytest.approx(17.0)


def test_no_plan_has_more_processes_than_the_cluster_has_cores():
    found = search(nodes(1, 3))
    assert max(len(c.plan.places) for c in found.candidates) <= 3
    assert max(len(c.plan.places) for c in found.candidates) > 1


def test_cost_counts_the_nodes_that_a_plan_uses():
    """17 s of work: one process takes 17 s of one node, and four peers, with messages of 1 s, longer on four nodes."""
    priced = nodes(4, 1, price=3.6, latency=0.5)
    fast, cheap = search(priced), search(priced, objective=COST)
    assert len(fast.best.plan.places) == 4
    assert cheap.best.policy.name == EVERYTHING
    # 3.6 an hour is 0.001 a second; a million steps take 17 s / 32 each
    assert COST.value(cheap.best.prediction) == pytest.approx(1e6 * 17 / 32 * 0.001)
    four = next(c for c in cheap.candidates if len(c.plan.places) == 4)
    assert COST.value(four.prediction) == pytest.approx(1e6 / four.steps_per_second * 0.004)
    assert COST.value(four.prediction) > 1.05 * COST.value(cheap.best.prediction)
    assert "A million steps cost 531" in explanation(cheap)
    values = [COST.value(c.prediction) for c in cheap.candidates[1:]]
    assert values == sorted(values)


def test_one_more_node_may_bring_something():
    """Three cores have to share 8 groups as 3, 3 and 2; the fourth makes that 2 each, but only for another plan."""
    found = search(nodes(3, 1))
    (node,) = (gain for gain in found.gains if gain.what == "node of kind worker")
    assert node.steps_per_second == pytest.approx(found.best.steps_per_second)


def test_too_little_memory_says_asked_and_available():
    costs = replace(COSTS, process_memory=3 << 30)
    with pytest.raises(TesseraError, match=r"no plan for a2c .*asked 3.* GB, available 2.* GB") as refused:
        search(nodes(2, 2, memory=2 << 30), costs)
    assert "\n" not in str(refused.value)


def test_many_replicas_are_tried_in_larger_steps():
    few, many = Limits(MANY, MANY, shared=False), Limits(1024, 1024, shared=False)
    assert few.replicas(["env"]) == [1, 2, 4, 8, 16, 32, 64]
    assert many.replicas(["env"]) == [1, 4, 16, 64, 256, 1024]
    assert Limits(16, 2).replicas(["env"]) == [1, 2, 4, 8, 16]
    assert Limits(16, 2, shared=False).replicas(list(OPERATORS)) == [1, 2]


def test_a_large_cluster_is_searched_too():
    """1,000 actors at the most: as many cores."""
    found = search(nodes(500, 2), lag=1, groups=1024, envs=1024, most=6)
    assert found.best.prediction.replicas > 500
    assert found.best.prediction.simulated < found.best.prediction.replicas


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    saved = Profile(COSTS, HERE, {"algorithm": "a2c"}, {}, taken=0.0, seconds=1.0)
    monkeypatch.setattr(profiles, "find_profile", lambda *planned: saved)
    monkeypatch.setenv("TESSERA_CACHE", str(tmp_path))


FLAGS = ["--envs", "8", "--groups", "8", "--lag", "0", "--unroll", "4", "--widths", "8"]
FILE = """
[nodes.worker]
count = 4
cores = 1
price_per_hour = 3.6
"""


def test_the_command_ranks_plans_for_a_cluster(known, tmp_path: Path, capsys):
    file = tmp_path / "cluster.toml"
    file.write_text(FILE)
    asked = ["plan", "a2c", DEVICE, *FLAGS, "--policy", "auto", "--cluster", str(file)]
    main(asked)
    out = capsys.readouterr().out
    assert "on        4 × worker with 1 CPU" in out
    assert "one more node of kind worker" in out.lower()
    main([*asked, "--objective", "cost", "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    assert found["objective"] == "cost"
    assert found["where"] == "4 × worker with 1 CPU"
    assert found["candidates"][0]["policy"] == EVERYTHING


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--cluster", "FILE"], "--cluster is for --policy auto"),
        (["--policy", "auto", "--objective", "cost"], "--objective cost needs --cluster FILE"),
        (["--policy", "auto", "--cluster", "none.toml"], "none.toml"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(known, flags, said, tmp_path: Path, capsys):
    file = tmp_path / "cluster.toml"
    file.write_text(FILE)
    with pytest.raises(SystemExit) as ended:
        main(["plan", "a2c", DEVICE, *FLAGS, *[str(file) if flag == "FILE" else flag for flag in flags]])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
