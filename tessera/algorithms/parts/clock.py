"""The clock of a run: gradients applied so far, of how many, and the hyper-parameters that are tuned on the way."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Clock(NamedTuple):
    """Global counters that travel with the params, so that no schedule depends on a replica's own clock.

    They go beyond 32 bits, and JAX has no wider integers by default. So schedules use `progress`, `modulo` and `fresh`,
    not the words that these are made of.
    """

    applies: jax.Array
    """int32: gradients applied so far, modulo 2**32, from -2**31; also the version of the params."""
    horizon: jax.Array
    """Gradients that the whole run will apply; a float, since only ratios to it matter."""
    wraps: Any = 0
    """int32: how often `applies` has come round to 0 again."""
    tuned: Any = ()
    """Hyper-parameters that change while the run goes on, by the names of their fields; () if none does."""

    @property
    def progress(self) -> jax.Array:
        """How much of the run is over, from 0 to 1."""
        real = jnp.result_type(float)
        applied = self._low.astype(real) + jnp.asarray(self.wraps, real) * 2.0**32
        return jnp.minimum(applied / jnp.maximum(self.horizon, 1), 1.0)

    @property
    def fresh(self) -> jax.Array:
        """Whether no gradient was applied yet."""
        return (jnp.asarray(self.applies) == 0) & (jnp.asarray(self.wraps) == 0)

    def modulo(self, period: int) -> jax.Array:
        """uint32: gradients applied so far modulo `period`, which is below 2**31."""
        total, term, factor = self._low % period, jnp.asarray(self.wraps, jnp.uint32) % period, 2**32 % period
        while factor:  # wraps * 2**32 modulo the period, by doubling: a product would need 64 bits
            if factor % 2:
                total = (total + term) % period
            term, factor = 2 * term % period, factor // 2
        return total

    def next(self) -> Clock:
        """The clock after one more gradient."""
        applies = self.applies + 1
        return self._replace(applies=applies, wraps=self.wraps + (applies == 0))

    def near(self, applies: Any) -> Clock:
        """The clock with this value of `applies`, which is less than 2**31 gradients away."""
        applies = jnp.asarray(applies, jnp.int32)
        low, before = applies.astype(jnp.uint32), self._low
        ahead = applies - jnp.asarray(self.applies, jnp.int32) >= 0
        wraps = self.wraps + jnp.where(ahead, low < before, 0) - jnp.where(ahead, 0, low > before)
        return self._replace(applies=applies, wraps=wraps)

    def at(self, applied: int) -> Clock:
        """The clock after so many gradients, on the host."""
        low: Any = np.asarray(applied % 2**32, np.uint32).astype(np.int32)
        return self._replace(applies=low, wraps=np.asarray(applied >> 32, np.int32))

    def applied(self) -> int:
        """Gradients applied so far, on the host."""
        return int(self.applies) % 2**32 + (int(self.wraps) << 32)

    @property
    def _low(self) -> jax.Array:
        return jnp.asarray(self.applies).astype(jnp.uint32)
