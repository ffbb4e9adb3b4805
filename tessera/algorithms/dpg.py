"""Deterministic policy gradients for continuous actions (DDPG, Lillicrap et al., 2016), with TD3 as flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from tessera.algorithms.contract import Part, View
from tessera.algorithms.parts.n_step_windows import Row, ValueMemory
from tessera.algorithms.parts.replay_learning import ReplayAlgorithm
from tessera.envs.base import Box, Spec, Timestep
from tessera.errors import TesseraError
from tessera.networks import ActionCritic, DeterministicActor, action_range, output_dtype
from tessera.support.fields import option


@dataclass(frozen=True)
class DPG(ReplayAlgorithm):
    """Critics learn the value of actions from replayed experience; the actor ascends the first critic's value.

    Before the first gradient, actions are uniform in their range; then they are the actor's, with noise. By default it
    is TD3 (Fujimoto et al., 2018), except that targets move at every gradient. `digest`, `prepare` and `apply` are in
    parts/replay_learning.py.
    """

    name: ClassVar[str] = "dpg"
    summary: ClassVar[str] = "deterministic policy gradient for continuous actions: DDPG, with TD3's changes as flags"
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
    """Gradients are scaled down to this global norm, of actor and critics together; 0 leaves them alone."""
    widths: tuple[int, ...] | None = (256, 256)
    """Widths of the fully connected layers."""
    twin: bool = True
    """Learn two critics, and use the lower of their values in targets (clipped double Q)."""
    actor_delay: int = option(2, low=1)
    """Gradients from one step of the actor to the next, by the version of the params that a gradient is taken at."""
    actor_rate: float | None = option(None, low=0)
    """Step size of the actor at the beginning; default: that of the critics."""
    smoothing: float = option(0.2, low=0)
    """Deviation of the noise on the target's actions, as a share of half their range; 0: none."""
    smoothing_clip: float = option(0.5, low=0)
    """Largest noise on the target's actions, as a share of half their range."""
    noise: float = option(0.1, low=0)
    """Deviation of the noise on actions that are played, as a share of half their range."""

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
        return DeterministicActor(self.world, self.widths, self.torso)

    @property
    def critic(self) -> Any:
        """The network, or the two networks, that value actions."""
        return ActionCritic(self.world, self.widths, self.torso, 2 if self.twin else 1)

    @property
    def parts(self) -> dict[str, Part]:
        """The actor has its own step size, and moves less often."""
        return {"actor": Part(learning_rate=self.actor_rate, period=self.actor_delay), "critic": Part()}

    @property
    def noisy_loss(self) -> bool:
        """Noise on the target's actions."""
        return self.smoothing > 0

    def init(self, key: jax.Array) -> Any:
        """Make the params of actor and critics."""
        actor_key, critic_key = jax.random.split(key)
        observation = jnp.zeros(self.world.observation_shape, self.world.observation_dtype)
        critic = self.critic.init(critic_key, observation, self.zero_actions(1)[0])
        return {"actor": self.actor.init(actor_key, observation), "critic": critic}

    def zero_actions(self, n: int) -> jax.Array:
        """Actions of steps that were never played, [n, *shape]."""
        middle, _ = action_range(self.world)
        return jnp.zeros((n, *middle.shape), output_dtype(self.world.precision))

    def act(self, view: View, memory: ValueMemory, timestep: Timestep, key: jax.Array) -> tuple[Any, Any, Any]:
        """Take the actor's action, with noise; before the first gradient, a uniform one."""
        action = self.actor.apply(view.params["actor"], timestep.observation)
        middle, half = action_range(self.world)
        noisy = action + self.noise * half * jax.random.normal(key, action.shape, action.dtype)
        # one key serves both: only one of the two is taken
        uniform = middle + half * jax.random.uniform(key, action.shape, action.dtype, -1.0, 1.0)
        return self.clip_action(jnp.where(view.clock.fresh, uniform, noisy)), memory, ()

    def greedy(self, view: View, memory: ValueMemory, timestep: Timestep, key: jax.Array) -> tuple[Any, Any]:
        """Take the actor's action."""
        del key
        return self.actor.apply(view.params["actor"], timestep.observation), memory

    def clip_action(self, action: jax.Array) -> jax.Array:
        """Clip actions to their range."""
        middle, half = action_range(self.world)
        return jnp.clip(action, middle - half, middle + half)

    def add_target_noise(self, action: jax.Array, keys: jax.Array) -> jax.Array:
        """Add clipped noise to target actions, each row's from its own key."""
        noise = self.smoothing * jax.vmap(lambda k: jax.random.normal(k, action.shape[1:], action.dtype))(keys)
        _, half = action_range(self.world)
        return self.clip_action(action + half * jnp.clip(noise, -self.smoothing_clip, self.smoothing_clip))

    def targets(self, target: Any, rows: Row, keys: jax.Array | None) -> jax.Array:
        """What the values of the actions taken should be, [B]; without keys there is no noise."""
        action = self.actor.apply(target["actor"], rows.bootstrap)
        if self.smoothing and keys is not None:
            action = self.add_target_noise(action, keys)
        q_t = self.critic.apply(target["critic"], rows.bootstrap, action).min(axis=-1)
        return rows.reward + rows.discount * q_t

    def td_errors(self, critic: Any, targets: jax.Array, rows: Row) -> tuple[jax.Array, jax.Array]:
        """Temporal-difference errors, value minus target, and the values: [B, critics] each."""
        q_tm1 = self.critic.apply(critic, rows.observation, rows.action)
        return q_tm1 - targets[:, None], q_tm1

    def row_errors(self, params: Any, target: Any, rows: Row) -> jax.Array:
        """Size of the temporal-difference errors, [B]; of two critics the mean."""
        error, _ = self.td_errors(params["critic"], self.targets(target, rows, None), rows)
        return jnp.abs(error).mean(axis=-1)

    def loss_gradient(self, view: View, rows: Row, scale: Any, key: jax.Array) -> tuple[Any, Any]:
        """Gradients of both losses; neither reaches the other's params. The actor's is computed when it is due."""
        actor, critic = view.params["actor"], view.params["critic"]
        targets = self.targets(view.target, rows, key)

        def critic_loss(critic: Any) -> tuple[jax.Array, Any]:
            error, values = self.td_errors(critic, targets, rows)
            total = jnp.mean(scale * self.row_loss(error).sum(axis=-1))
            return total, (values.mean(), jnp.abs(error).mean(axis=-1))

        def actor_loss(actor: Any) -> jax.Array:
            action = self.actor.apply(actor, rows.observation)
            return -jnp.mean(scale * self.critic.apply(critic, rows.observation, action)[..., 0])

        def not_due(actor: Any) -> tuple[jax.Array, Any]:
            return actor_loss(actor), jax.tree.map(jnp.zeros_like, actor)

        (loss, (value, error)), critic_gradient = jax.value_and_grad(critic_loss, has_aux=True)(critic)
        due = self.due(view.clock).get("actor", True)
        actor_loss_value, actor_gradient = jax.lax.cond(due, jax.value_and_grad(actor_loss), not_due, actor)
        metrics = {"loss": loss, "actor_loss": actor_loss_value, "q_mean": value, "td_error": error.mean()}
        return {"actor": actor_gradient, "critic": critic_gradient}, (metrics, error)
