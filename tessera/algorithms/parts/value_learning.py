"""What DQN, C51 and QR-DQN share: action values from a replay, with noisy networks as a flag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from tessera.algorithms.contract import View
from tessera.algorithms.parts.epsilon_greedy import EpsilonGreedyAlgorithm
from tessera.algorithms.parts.n_step_windows import Row, ValueMemory
from tessera.algorithms.parts.replay_learning import ReplayAlgorithm
from tessera.envs.base import Spec
from tessera.maths.exploration import best_action
from tessera.networks import QNetwork
from tessera.support.fields import option


@dataclass(frozen=True)
class ValueLearning(EpsilonGreedyAlgorithm, ReplayAlgorithm):
    """Fields and functions common to DQN and its kin. An algorithm adds `targets` and `row_losses`."""

    n_step: int | None = option(None, low=1)
    """Steps whose rewards are summed before the bootstrap; default 1 for images, else 3."""
    learning_rate: float | None = option(None, low=0, tunable=True)
    """Step size at the beginning; default 5e-4 for images, else 1e-3."""
    double: bool = True
    """Let the online network choose the action that the target network values (van Hasselt et al., 2016)."""
    noisy: bool = False
    """Explore by noise on the network's weights, whose size is learned, instead of random actions (Fortunato et al.,
    2018)."""

    def defaults_for(self, spec: Spec) -> dict[str, Any]:
        """Images: small steps and windows of one step, with which no game of MinAtar collapses."""
        if spec.images:
            return {"learning_rate": 5e-4, "n_step": 1}
        return {"learning_rate": 1e-3, "n_step": 3}

    @property
    def model(self) -> Any:
        """The network, as a Flax module."""
        atoms = self.outputs_per_action
        return self.own_or(QNetwork(self.world, self.widths, self.torso, self.dueling, atoms=atoms, noisy=self.noisy))

    @property
    def noisy_loss(self) -> bool:
        """Noise on weights, drawn for each row."""
        return self.noisy

    def memory(self, env_id: jax.Array) -> ValueMemory:
        """No steps yet, and the environment's own exploration rate."""
        return super().memory(env_id)._replace(exploration=self.exploration_rate(env_id))

    def epsilon(self, view: View, exploration_rate: Any) -> jax.Array:
        """Share of random actions now; none where weights are noisy."""
        return jnp.zeros(()) if self.noisy else super().epsilon(view, exploration_rate)

    def outputs(self, params: Any, observation: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """What the network computes; with a key, or one for each row, noise is on its weights."""
        if key is None or not self.noisy:
            return self.model.apply(params, observation)

        def noisily(observation: jax.Array, key: jax.Array) -> jax.Array:
            return self.model.apply(params, observation, rngs={"noise": key})

        return jax.vmap(noisily)(observation, key) if key.ndim else noisily(observation, key)

    def mean_values(self, outputs: jax.Array) -> jax.Array:
        """Action values, [..., n], from what the network computes."""
        return outputs

    def action_values(self, params: Any, observation: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """The value of each action, [..., n]; with a key, noise is on weights that are noisy."""
        return self.mean_values(self.outputs(params, observation, key))

    def next_outputs(
        self, params: Any, target: Any, rows: Row, keys: tuple[Any, Any] = (None, None)
    ) -> tuple[jax.Array, jax.Array]:
        """What the target network computes for the bootstraps, and the action to take there, [B]."""
        outputs = self.outputs(target, rows.bootstrap, keys[0])
        judged = self.action_values(params, rows.bootstrap, keys[1]) if self.double else self.mean_values(outputs)
        return outputs, best_action(judged, rows.legal)

    def targets(self, params: Any, target: Any, rows: Row, keys: tuple[Any, Any] = (None, None)) -> jax.Array:
        """What the network should compute for the actions taken, [B] or [B, atoms]; no gradient flows into it."""
        raise NotImplementedError

    def row_losses(
        self, params: Any, targets: jax.Array, rows: Row, key: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Loss, error (what priorities are judged by) and value of each row, [B] each."""
        raise NotImplementedError

    def row_errors(self, params: Any, target: Any, rows: Row) -> jax.Array:
        """Each row's error, [B], without noise."""
        return self.row_losses(params, self.targets(params, target, rows), rows)[1]

    def loss_gradient(self, view: View, rows: Row, scale: Any, key: jax.Array) -> tuple[Any, Any]:
        """Gradient of the mean loss."""
        own, *others = jnp.moveaxis(jax.vmap(lambda k: jax.random.split(k, 3))(key), 1, 0) if self.noisy else [None] * 3
        targets = jax.lax.stop_gradient(self.targets(view.params, view.target, rows, (others[0], others[1])))

        def loss(params: Any) -> tuple[jax.Array, Any]:
            losses, error, value = self.row_losses(params, targets, rows, own)
            total = jnp.mean(scale * losses)
            return total, ({"loss": total, "q_mean": value.mean(), "td_error": jnp.abs(error).mean()}, error)

        return jax.grad(loss, has_aux=True)(view.params)
