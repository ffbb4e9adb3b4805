"""Soft actor-critic for continuous actions (Haarnoja et al., 2018), with an automatic temperature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from tessera.algorithms.contract import Part, State, View
from tessera.algorithms.parts.continuous_control import ContinuousControl
from tessera.algorithms.parts.n_step_windows import Row, ValueMemory
from tessera.envs.base import Timestep
from tessera.networks import SquashedGaussianActor, output_dtype, unscaled_action
from tessera.support.fields import option


@dataclass(frozen=True)
class SAC(ContinuousControl):
    """Two critics learn returns with a bonus for entropy, which the actor climbs; both weigh it by the temperature.

    The temperature rises while the actor's entropy is below its target, and falls while it is above. Before the first
    gradient, actions are uniform in their range. `digest`, `prepare` and `apply` are in parts/replay_learning.py.
    """

    name: ClassVar[str] = "sac"
    summary: ClassVar[str] = "soft actor-critic for continuous actions: two critics, automatic temperature"

    unroll: int = option(1, low=1)
    """Steps that each environment plays between updates."""
    warmup: int = 320
    """Unrolls of random actions before learning starts."""
    batch: int = option(256, low=1)
    """Rows per draw, over all environments."""
    n_step: int | None = option(1, low=1)
    """Steps whose rewards are summed before the bootstrap; the bonus for entropy counts there only."""
    anneal: bool = False
    """Let the learning rate fall to zero, in a straight line, by the end of the run."""
    actor_rate: float | None = option(3e-4, low=0, tunable=True)
    """Step size of the actor at the beginning."""
    temperature: float = option(1.0, low=1e-6)
    """Weight of the entropy at the beginning, or for good if it does not adapt."""
    adapt_temperature: bool = True
    """Learn the temperature."""
    target_entropy: float = option(0.0, low=-1e6, high=1e6, tunable=True)
    """Entropy that the temperature aims at, of actions scaled to -1 to 1. Below 0, where the paper has minus the
    numbers of an action, each step costs something, which favours episodes that end early."""

    @property
    def actor(self) -> Any:
        """The network that makes distributions over actions, as a Flax module."""
        return SquashedGaussianActor(self.world, self.widths, self.torso)

    @property
    def parts(self) -> dict[str, Part]:
        """The actor has a step size of its own."""
        return {"actor": Part(learning_rate=self.actor_rate), "critic": Part(), "temperature": Part()}

    @property
    def noisy_loss(self) -> bool:
        """Losses are of actions that are drawn."""
        return True

    def init(self, key: jax.Array) -> Any:
        """Make the params of actor and critics, and the temperature's logarithm."""
        real = output_dtype(self.world.precision)
        return {**super().init(key), "temperature": jnp.log(jnp.asarray(self.temperature, real))}

    def start(self, params: Any) -> State:
        """Begin with the targets equal to the critics; nothing else has one."""
        state = super().start(params)
        return state._replace(target={"critic": params["critic"]})

    def act(self, view: View, memory: ValueMemory, timestep: Timestep, key: jax.Array) -> tuple[Any, Any, Any]:
        """Draw an action; before the first gradient, a uniform one."""
        action, _ = self.actor.apply(view.params["actor"], timestep.observation).sample(key)
        # one key serves both: only one of the two is taken
        return self.uniform_unless_learned(view, unscaled_action(self.world, action), key), memory, ()

    def greedy(self, view: View, memory: ValueMemory, timestep: Timestep, key: jax.Array) -> tuple[Any, Any]:
        """Take the middle of the distribution."""
        del key
        action = self.actor.apply(view.params["actor"], timestep.observation).mode()
        return unscaled_action(self.world, action), memory

    def drawn(self, actor: Any, observations: jax.Array, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draw an action for each row, from its own key: (actions [B, *shape], log-densities [B])."""
        distribution = self.actor.apply(actor, observations)
        action, log_prob = jax.vmap(lambda d, key: d.sample(key))(distribution, keys)
        return unscaled_action(self.world, action), log_prob

    def targets(self, params: Any, target: Any, rows: Row, keys: jax.Array) -> jax.Array:
        """What the values of the actions taken should be, [B]: with the entropy of what is done next."""
        action, log_prob = self.drawn(params["actor"], rows.bootstrap, keys)
        q_t = self.critic.apply(target["critic"], rows.bootstrap, action).min(axis=-1)
        return rows.reward + rows.discount * (q_t - jnp.exp(params["temperature"]) * log_prob)

    def row_errors(self, params: Any, target: Any, rows: Row) -> jax.Array:
        """Size of the temporal-difference errors, [B], where the next action is the middle of the distribution."""
        action = unscaled_action(self.world, self.actor.apply(params["actor"], rows.bootstrap).mode())
        q_t = self.critic.apply(target["critic"], rows.bootstrap, action).min(axis=-1)
        error, _ = self.td_errors(params["critic"], rows.reward + rows.discount * q_t, rows)
        return jnp.abs(error).mean(axis=-1)

    def loss_gradient(self, view: View, rows: Row, scale: Any, key: jax.Array) -> tuple[Any, Any]:
        """Gradients of the three losses; none reaches another's params."""
        params = view.params
        next_keys, keys = jnp.moveaxis(jax.vmap(jax.random.split)(key), 1, 0)
        targets = self.targets(params, view.target, rows, next_keys)
        critic_gradient, metrics, error = self.critic_gradient(params["critic"], targets, rows, scale)
        temperature = jnp.exp(params["temperature"])

        def actor_loss(actor: Any) -> tuple[jax.Array, jax.Array]:
            action, log_prob = self.drawn(actor, rows.observation, keys)
            value = self.critic.apply(params["critic"], rows.observation, action).min(axis=-1)
            return jnp.mean(scale * (temperature * log_prob - value)), jnp.mean(scale * log_prob)

        (loss, log_prob), actor_gradient = jax.value_and_grad(actor_loss, has_aux=True)(params["actor"])
        missing = self.target_entropy * jnp.mean(scale * jnp.ones_like(error)) + log_prob
        temperature_gradient = -missing if self.adapt_temperature else jnp.zeros_like(missing)
        metrics |= {"actor_loss": loss, "entropy": -log_prob, "temperature": temperature}
        gradients = {"actor": actor_gradient, "critic": critic_gradient, "temperature": temperature_gradient}
        return gradients, (metrics, error)
