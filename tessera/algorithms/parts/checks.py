"""Which values the usual hyper-parameters may take."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from tessera.errors import TesseraError

Number = TypeVar("Number", int, float)


def resolved(value: Number | None) -> Number:
    """A field that `bind` chose if the user did not."""
    if value is None:
        raise TesseraError("a field is still to be chosen: bind the algorithm to an environment first")
    return value


BOUNDS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("unroll", "draws", "epochs", "minibatches", "batch", "capacity"), (1, math.inf)),
    **dict.fromkeys(("n_step", "target_period"), (1, math.inf)),
    **dict.fromkeys(("warmup", "learning_rate", "clip", "max_gradient_norm", "huber"), (0, math.inf)),
    **dict.fromkeys(("burn_in", "rho_bar", "c_bar"), (0, math.inf)),
    **dict.fromkeys(("core_width", "actor_delay"), (1, math.inf)),
    **dict.fromkeys(("smoothing", "smoothing_clip", "noise"), (0, math.inf)),
    **dict.fromkeys(("value_coefficient", "entropy_coefficient"), (0, math.inf)),
    **dict.fromkeys(("gamma", "gae_lambda", "rms_decay", "epsilon_start", "epsilon_end"), (0, 1)),
    **dict.fromkeys(("epsilon_fraction", "priority_exponent", "importance_exponent", "importance_end"), (0, 1)),
    **dict.fromkeys(("polyak", "ladder_base"), (0, 1)),
    **dict.fromkeys(("rate_envs", "population"), (1, math.inf)),
    **dict.fromkeys(("sigma", "weight_decay"), (0, math.inf)),
    "rate_warmup": (0, 1),
    **dict.fromkeys(("outliers", "ladder_exponent"), (0, math.inf)),
}
"""Field -> what it may be, in any algorithm that has a field of this name."""


def check_fields(algorithm: Any) -> None:
    """Refuse values that make no sense, by the name of the flag."""
    for name, (low, high) in BOUNDS.items():
        value = getattr(algorithm, name, None)
        if isinstance(value, int | float) and not (low <= value <= high and math.isfinite(value)):
            limit = f"at least {low}" if math.isinf(high) else f"between {low} and {high}"
            raise TesseraError(f"--{name.replace('_', '-')} {value}: must be {limit}")
    widths = getattr(algorithm, "widths", None)
    if widths is not None and (not widths or min(widths) < 1):
        raise TesseraError(f"--widths {' '.join(map(str, widths))}: name one or more layers of at least 1 unit")
