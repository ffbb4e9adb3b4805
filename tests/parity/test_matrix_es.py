"""Evolution strategies × every policy, on the serial engine: the params of `fused`, in float64 to 1e-9."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import jax
import numpy as np
import pytest
from matrix import (
    ALGORITHMS,
    IN_LOCK_STEP,
    MOVED,
    SYNCHRONOUS,
    UPDATES,
    assert_parity,
    colouring,
    furthest,
    run,
    with_two_replicas,
)

from tessera import DQN, Schedule, policies

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize("policy", with_two_replicas(SYNCHRONOUS))
def test_every_synchronous_policy_gives_the_params_of_fused(policy):
    assert_parity("es", colouring(policy))


@pytest.mark.parametrize("policy", with_two_replicas(IN_LOCK_STEP))
def test_every_asynchronous_policy_in_lock_step_gives_the_params_of_fused(policy):
    assert_parity("es", colouring(policy))


@dataclass(frozen=True)
class InRounds(DQN):
    """A replay that gets two unrolls for each update."""

    @property
    def schedule(self) -> Schedule:
        return replace(super().schedule, rounds=2)


@pytest.mark.parametrize(
    "policy",
    [pytest.param("single_learner_coarse:actors=2", marks=pytest.mark.slow), "distributed_replay:actors=2,stores=2"],
)
def test_rounds_are_any_algorithms(policy):
    dqn = ALGORITHMS["dqn"]
    twice = InRounds(**{f.name: getattr(dqn, f.name) for f in fields(dqn) if f.init})
    before, alone, reports = run(twice, policies.get("fused", devices=1))
    assert furthest(before.params, alone.params) > MOVED
    assert reports.tally.steps.tolist() == [2 * 8 * 12] * UPDATES
    _, state, _ = run(twice, colouring(policy))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), state, alone)
