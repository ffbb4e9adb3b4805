"""Large arrays of host environments are kept on the accelerator that acts on them, and copied there once."""

from __future__ import annotations

from unittest import mock

import jax
import numpy as np

from tessera.envs.base import Timestep
from tessera.program import compile as compiling
from tessera.program.nodes import HOST, Op


class SharedValue:
    """Open environments are no tree: they are passed on."""


def test_large_arrays_are_put_there_once_and_small_ones_stay():
    large, small, vector = np.ones((2, compiling.LARGE), np.uint8), np.zeros(2), SharedValue()
    timestep = Timestep(large, small, small, small, large)
    same, got = compiling.on_device(lambda: (vector, timestep))()
    assert same is vector
    assert isinstance(got.observation, jax.Array)
    assert got.final is got.observation
    assert got.reward is small


def test_only_where_an_accelerator_acts_on_what_the_environment_gives():
    step = Op("env", lambda: (), (), ("timesteps",), HOST)
    observe = Op("act", lambda: (), ("timesteps",), ("observed",))
    assert not compiling._acted_upon(step, (observe, step))  # there is none here
    with mock.patch.object(jax, "default_backend", return_value="gpu"):
        assert compiling._acted_upon(step, (observe, step))
        assert not compiling._acted_upon(step, (step,))
