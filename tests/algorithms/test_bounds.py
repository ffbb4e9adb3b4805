"""Bounds of hyper-parameters: every number has them, and a value outside is refused by the name of its flag."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import get_type_hints

import pytest

from tessera import PPO, Box, Discrete, Spec, TesseraError, algorithms
from tessera.support.fields import bounds_of, option, options_of

SPECS = {
    "alphazero": Spec((3, 3, 2), "bool", Discrete(9), time_limit=9, restricted=True, players=2),
    "dpg": Spec((3,), "float32", Box((1,), (-1.0,), (1.0,))),
    "sac": Spec((3,), "float32", Box((1,), (-1.0,), (1.0,))),
    "mappo": Spec((2, 3), "float32", Discrete(2), agents=2),
}

AT_LEAST_1 = (
    "actor_delay batch blocks capacity channels considered core_width draws epochs head_planes magnet_period "
    "members minibatches n_step quantiles rate_envs simulations target_period unroll"
)
AT_LEAST_0 = (
    "actor_rate burn_in c_bar clip dirichlet entropy_coefficient entropy_end exploring_moves huber ladder_exponent "
    "learning_rate magnet magnet_end max_gradient_norm noise outliers rho_bar sigma smoothing smoothing_clip "
    "value_coefficient value_weight warmup weight_decay"
)
FROM_0_TO_1 = (
    "epsilon_end epsilon_fraction epsilon_start gae_lambda gamma importance_end importance_exponent ladder_base "
    "look_ahead noise_share polyak priority_exponent priority_mixture rate_warmup rms_decay"
)
EXPECTED = {
    **dict.fromkeys(AT_LEAST_1.split(), (1, math.inf)),
    **dict.fromkeys(AT_LEAST_0.split(), (0, math.inf)),
    **dict.fromkeys(FROM_0_TO_1.split(), (0, 1)),
    **dict.fromkeys(("highest", "lowest", "target_entropy"), (-1e6, 1e6)),
    "atoms": (2, math.inf),
    "sequence": (2, math.inf),
    "temperature": (1e-6, math.inf),
}


def numbers(cls: type) -> list[str]:
    """Hyper-parameters that are numbers, or None until they are resolved."""
    hints = get_type_hints(cls)
    return [f.name for f in options_of(cls) if hints[f.name] in (int, float, int | None, float | None)]


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_every_number_is_refused_outside_its_bounds(name):
    cls = algorithms.get(name)
    bound = cls().bind(SPECS.get(name, Spec((3,), "float32", Discrete(2))))
    bound.check()
    for field in numbers(cls):
        low, high = EXPECTED[field]
        assert bounds_of(cls, field) == (low, high), field
        limit = f"at least {low}" if high == math.inf else f"between {low} and {high}"
        for value in (low - 1, math.nan, math.inf) if high == math.inf else (low - 1, high + 1, math.nan):
            with pytest.raises(TesseraError) as refused:
                replace(bound, **{field: value}).check()
            assert str(refused.value) == f"--{field.replace('_', '-')} {value}: must be {limit}"


def test_a_subclass_with_another_default_keeps_the_bounds_and_may_set_its_own():
    @dataclass(frozen=True)
    class Mine(PPO):
        gamma: float = 0.9
        clip: float = option(0.1, low=0, high=1)

    assert (Mine().gamma, Mine().clip) == (0.9, 0.1)
    assert (bounds_of(Mine, "gamma"), bounds_of(Mine, "clip")) == ((0, 1), (0, 1))
    assert bounds_of(PPO, "clip") == (0, math.inf)


@pytest.mark.parametrize(
    ("widths", "said"), [((), "--widths : name"), ((8, 0), "--widths 8 0: name one or more layers")]
)
def test_layers_have_at_least_one_unit(widths, said):
    with pytest.raises(TesseraError, match=said):
        PPO(widths=widths).bind(Spec((3,), "float32", Discrete(2))).check()
