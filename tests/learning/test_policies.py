"""Every policy solves CartPole, each replica a process: the runs of docs/policies.md, with another seed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera import policies
from tessera.engines.pool import kept

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from policies import CASES, measure

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def processes() -> Iterator[None]:
    """Processes that are used again by the next test, optimised as users have them and the other tests have not."""
    with pytest.MonkeyPatch.context() as patch, kept():
        patch.delenv("XLA_FLAGS", raising=False)
        yield


def test_no_policy_is_forgotten():
    assert {policies.split(text)[0] for text in CASES} == set(policies.names())


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("text", CASES)
def test_every_policy_solves_cartpole_on_processes(text):
    row = measure(text, seed=2)
    assert row.solved, row
