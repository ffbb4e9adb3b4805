"""Importance weighted actor-learners (Espeholt et al., 2018): actor-critic for experience that is not quite fresh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from tessera.algorithms.a2c import A2C
from tessera.algorithms.contract import Transition
from tessera.algorithms.parts.actor_critic import UnrollEstimates
from tessera.envs.base import Spec
from tessera.errors import TesseraError
from tessera.maths.returns import v_trace
from tessera.support.fields import option


@dataclass(frozen=True)
class IMPALA(A2C):
    """A2C's gradient on V-trace targets, which correct for params that have changed since the experience was made."""

    name: ClassVar[str] = "impala"
    summary: ClassVar[str] = "actor-critic with V-trace: corrects experience of older params, RMSProp"

    unroll: int | None = None
    """Steps that each environment plays between updates; default 8, and 20 for pixels."""
    learning_rate: float | None = None
    """Step size at the beginning; default 3e-3, 1e-2 for boards, 6e-4 for pixels."""
    gae_lambda: float = 1.0
    """How far corrections look ahead: 0 one step, 1 to the end of the unroll."""
    normalise_advantages: bool = False
    """Shift and scale each batch's advantages to mean 0 and deviation 1."""
    rho_bar: float = option(1.0, low=0, tunable=True)
    """Cap on the weight of a step that is likelier now than when it was played; decides what values converge to."""
    c_bar: float = option(1.0, low=0, tunable=True)
    """Cap on the weight of later steps for earlier ones; at most rho_bar."""
    corrections: bool = True
    """Correct by V-trace; without it, experience counts as fresh."""

    def check(self) -> None:
        """Refuse corrections that converge to nothing in particular."""
        super().check()
        if self.c_bar > self.rho_bar:
            raise TesseraError(f"--c-bar {self.c_bar:g}: must be at most --rho-bar {self.rho_bar:g}")

    def defaults_for(self, spec: Spec) -> dict[str, Any]:
        """The paper's settings for pixels; small networks take larger steps, and more of them."""
        if spec.pixels:
            return {"unroll": 20, "learning_rate": 6e-4}
        return super().defaults_for(spec)

    def advantages_and_targets(self, estimates: UnrollEstimates, rows: Transition) -> tuple[jax.Array, jax.Array]:
        """Advantages and targets of the value function by V-trace, [T, n] each."""
        log_ratios = estimates.distribution.log_prob(rows.action) - rows.extras.log_prob
        corrected = v_trace(
            log_ratios if self.corrections else jnp.zeros_like(log_ratios),
            estimates.rewards,
            estimates.values,
            estimates.next_values,
            rows.terminated,
            rows.truncated,
            self.discount(rows),
            self.gae_lambda,
            self.rho_bar,
            self.c_bar,
        )
        return corrected.advantage, corrected.target
