"""Every policy solves CartPole, each replica a process: the runs of docs/policies.md, with another seed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera import Fragment, Policy, policies
from tessera.api import train
from tessera.engines.driver.pool import keep_processes

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from policies import ALGORITHMS, CASES, measure

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def processes() -> Iterator[None]:
    """Processes that are used again by the next test, optimised as users have them and the other tests have not."""
    with pytest.MonkeyPatch.context() as patch, keep_processes():
        patch.delenv("XLA_FLAGS", raising=False)
        yield


def test_no_policy_is_forgotten():
    assert {policies.split(text)[0] for text in CASES} == set(policies.names())


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("text", CASES)
def test_every_policy_solves_cartpole_on_processes(text):
    row = measure(text, seed=2)
    assert row.solved, row


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_a_colouring_that_nobody_named_solves_cartpole_on_processes(name):
    fragments = (Fragment("env act", replicas=2), Fragment("store grad", replicas=2), Fragment("apply"))
    mine = Policy("mine", fragments)
    goal = {"steps": 500_000, "target_return": 475.0}
    summary = train(ALGORITHMS[name], "gymnax:CartPole-v1", mine, **goal, seed=1, engine="local", quiet=True).summary
    assert summary["eval_return_mean"] >= 475, summary
