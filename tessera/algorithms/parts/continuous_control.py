"""What DPG and SAC share: an actor and critics that value continuous actions, in a replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from tessera.algorithms.contract import View
from tessera.algorithms.parts.n_step_windows import Row
from tessera.algorithms.parts.replay_learning import ReplayAlgorithm
from tessera.envs.base import Box, Spec
from tessera.errors import TesseraError
from tessera.networks import ActionCritic, action_range, output_dtype, unscaled_action
from tessera.support.fields import option


@dataclass(frozen=True)
class ContinuousControl(ReplayAlgorithm):
    """Fields and functions common to DPG and SAC. An algorithm adds its actor and its losses."""

    default_envs: ClassVar[int] = 16

    draws: int = 16
    """Batches drawn, and gradients applied, per update."""
    capacity: int = 1_000_000
    """Rows that the replay holds, over all environments."""
    warmup: int = 64
    """Unrolls of random actions before learning starts."""
    polyak: float = 0.005
    """Share of the difference by which the target moves to the params at each gradient; 0: by copies."""
    max_gradient_norm: float = 0.0
    """Gradients are scaled down to this global norm, of all networks together; 0 leaves them alone."""
    widths: tuple[int, ...] | None = (256, 256)
    """Widths of the fully connected layers."""
    actor_rate: float | None = option(None, low=0, tunable=True)
    """Step size of the actor at the beginning; default: that of the critics."""

    layer_norm: bool = False
    """Normalise each of the critics' layers before its activation (layer normalisation)."""

    def bind(self, spec: Spec) -> Self:
        """Refuse actions that are not continuous."""
        if not isinstance(spec.actions, Box):
            raise TesseraError(
                f"{self.name} needs continuous actions (a Box), this environment has {spec.actions}: "
                "try dqn, ppo or a2c"
            )
        return super().bind(spec)

    @property
    def actor(self) -> Any:
        """The network that chooses actions, as a Flax module."""
        raise NotImplementedError

    @property
    def critics(self) -> int:
        """Networks that value actions."""
        return 2

    @property
    def critic(self) -> Any:
        """The networks that value actions, as one Flax module."""
        return ActionCritic(self.world, self.widths, self.torso, self.critics, normalised=self.layer_norm)

    def init(self, key: jax.Array) -> Any:
        """Make the params of actor and critics."""
        actor_key, critic_key = jax.random.split(key)
        observation = self.world.zeros(jnp)
        critic = self.critic.init(critic_key, observation, self.zero_actions(1)[0])
        return {"actor": self.actor.init(actor_key, observation), "critic": critic}

    def zero_actions(self, n: int) -> jax.Array:
        """Actions of steps that were never played, [n, *shape]."""
        middle, _ = action_range(self.world)
        return jnp.zeros((n, *middle.shape), output_dtype(self.world.precision))

    def uniform_unless_learned(self, view: View, action: jax.Array, key: jax.Array) -> jax.Array:
        """The action, but before the first gradient any action of the range."""
        uniform = jax.random.uniform(key, (action.size,), action.dtype, -1.0, 1.0)
        return jnp.where(view.clock.fresh, unscaled_action(self.world, uniform), action)

    def td_errors(self, critic: Any, targets: jax.Array, rows: Row) -> tuple[jax.Array, jax.Array]:
        """Temporal-difference errors, value minus target, and the values: [B, critics] each."""
        q_tm1 = self.critic.apply(critic, rows.observation, rows.action)
        return q_tm1 - targets[:, None], q_tm1

    def critic_gradient(
        self, critic: Any, targets: jax.Array, rows: Row, scale: Any
    ) -> tuple[Any, dict[str, jax.Array], jax.Array]:
        """Gradient of the critics' loss, metrics, and the size of each row's error, [B]; of two critics the mean."""

        def loss(critic: Any) -> tuple[jax.Array, Any]:
            error, values = self.td_errors(critic, targets, rows)
            total = jnp.mean(scale * self.row_loss(error).sum(axis=-1))
            return total, (values.mean(), jnp.abs(error).mean(axis=-1))

        (total, (value, error)), gradient = jax.value_and_grad(loss, has_aux=True)(critic)
        return gradient, {"loss": total, "q_mean": value, "td_error": error.mean()}, error
