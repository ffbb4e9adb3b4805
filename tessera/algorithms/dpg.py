"""Deterministic policy gradients for continuous actions (DDPG, Lillicrap et al., 2016), with TD3 as flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from tessera.algorithms.contract import Part, View
from tessera.algorithms.parts.continuous_control import ContinuousControl
from tessera.algorithms.parts.n_step_windows import Row, ValueMemory
from tessera.envs.base import Timestep
from tessera.networks import DeterministicActor, action_range
from tessera.support.fields import option


@dataclass(frozen=True)
class DPG(ContinuousControl):
    """Critics learn the value of actions from replayed experience; the actor ascends the first critic's value.

    Before the first gradient, actions are uniform in their range; then they are the actor's, with noise. By default it
    is TD3 (Fujimoto et al., 2018), except that targets move at every gradient. `digest`, `prepare` and `apply` are in
    parts/replay_learning.py.
    """

    name: ClassVar[str] = "dpg"
    summary: ClassVar[str] = "deterministic policy gradient for continuous actions: DDPG, with TD3's changes as flags"

    twin: bool = True
    """Learn two critics, and use the lower of their values in targets (clipped double Q)."""
    actor_delay: int = option(2, low=1)
    """Gradients from one step of the actor to the next, by the version of the params that a gradient is taken at."""
    smoothing: float = option(0.2, low=0)
    """Deviation of the noise on the target's actions, as a share of half their range; 0: none."""
    smoothing_clip: float = option(0.5, low=0, tunable=True)
    """Largest noise on the target's actions, as a share of half their range."""
    noise: float = option(0.1, low=0, tunable=True)
    """Deviation of the noise on actions that are played, as a share of half their range."""

    @property
    def actor(self) -> Any:
        """The network that chooses actions, as a Flax module."""
        return DeterministicActor(self.world, self.widths, self.torso)

    @property
    def critics(self) -> int:
        """Networks that value actions."""
        return 2 if self.twin else 1

    @property
    def parts(self) -> dict[str, Part]:
        """The actor has its own step size, and moves less often."""
        return {"actor": Part(learning_rate=self.actor_rate, period=self.actor_delay), "critic": Part()}

    @property
    def noisy_loss(self) -> bool:
        """Noise on the target's actions."""
        return self.smoothing > 0

    def act(self, view: View, memory: ValueMemory, timestep: Timestep, key: jax.Array) -> tuple[Any, Any, Any]:
        """Take the actor's action, with noise; before the first gradient, a uniform one."""
        action = self.actor.apply(view.params["actor"], timestep.observation)
        _, half = action_range(self.world)
        noisy = action + self.noise * half * jax.random.normal(key, action.shape, action.dtype)
        # one key serves both: only one of the two is taken
        return self.clip_action(self.uniform_unless_learned(view, noisy, key)), memory, ()

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

    def row_errors(self, params: Any, target: Any, rows: Row) -> jax.Array:
        """Size of the temporal-difference errors, [B]; of two critics the mean."""
        error, _ = self.td_errors(params["critic"], self.targets(target, rows, None), rows)
        return jnp.abs(error).mean(axis=-1)

    def loss_gradient(self, view: View, rows: Row, scale: Any, key: jax.Array) -> tuple[Any, Any]:
        """Gradients of both losses; neither reaches the other's params. The actor's is computed when it is due."""
        actor, critic = view.params["actor"], view.params["critic"]
        targets = self.targets(view.target, rows, key)

        def actor_loss(actor: Any) -> jax.Array:
            action = self.actor.apply(actor, rows.observation)
            return -jnp.mean(scale * self.critic.apply(critic, rows.observation, action)[..., 0])

        def not_due(actor: Any) -> tuple[jax.Array, Any]:
            return actor_loss(actor), jax.tree.map(jnp.zeros_like, actor)

        critic_gradient, metrics, error = self.critic_gradient(critic, targets, rows, scale)
        due = self.due(view.clock).get("actor", True)
        metrics["actor_loss"], actor_gradient = jax.lax.cond(due, jax.value_and_grad(actor_loss), not_due, actor)
        return {"actor": actor_gradient, "critic": critic_gradient}, (metrics, error)
