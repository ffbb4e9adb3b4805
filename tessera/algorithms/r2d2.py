"""R2D2: recurrent Q-learning from a replay of sequences (Kapturowski et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from tessera.algorithms.contract import Transition, View
from tessera.algorithms.parts.epsilon_greedy import EpsilonGreedyAlgorithm
from tessera.algorithms.parts.n_step_windows import ValueMemory, append_unroll, invalid_steps
from tessera.algorithms.parts.replay_learning import ReplayAlgorithm
from tessera.algorithms.parts.sequences import Sequence, SequenceExtras, sequence_of, time_major
from tessera.envs.base import Spec, Timestep
from tessera.errors import TesseraError, unknown_name
from tessera.maths.bootstrap import next_values
from tessera.maths.exploration import epsilon_greedy
from tessera.maths.losses import select
from tessera.maths.rescaling import signed_hyperbolic, signed_parabolic
from tessera.maths.returns import n_step_within
from tessera.networks import CORES, Carry, RecurrentQNetwork
from tessera.stores.base import Experience
from tessera.stores.replay import Replay
from tessera.support.fields import option


@dataclass(frozen=True)
class R2D2(EpsilonGreedyAlgorithm, ReplayAlgorithm):
    """Double Q-learning with a recurrent network, on sequences that start from what the actor remembered there.

    One update, step by step:

    1. `act` takes epsilon-greedy actions, and records the core's state before each step.
    2. `digest` makes one sequence of each unroll and the steps before it, so that sequences overlap.
    3. `loss_gradient` runs both networks through a sequence. The burn-in only brings their states up to date; behind it
       errors are those of n-step double Q-learning, of rescaled values.
    4. A sequence's priority mixes its largest and its mean error: `row_errors`.
    5. `apply` takes the step and updates the target network: parts/replay_learning.py.
    """

    name: ClassVar[str] = "r2d2"
    summary: ClassVar[str] = "recurrent Q-learning: replay of sequences with stored states, burn-in, prioritised"

    unroll: int = 12
    """Steps that each environment plays between updates, and between the beginnings of two sequences."""
    sequence: int = option(24, low=2)
    """Steps of a sequence, with its burn-in; at least --unroll, and what is longer overlaps with the one before."""
    burn_in: int = option(8, low=0)
    """Steps at the beginning of each sequence that only bring the core's state up to date; nothing is learned there."""
    draws: int = 6
    """Batches drawn, and gradients applied, per update."""
    batch: int = 32
    """Sequences per draw, over all environments."""
    capacity: int = 10_000
    """Sequences that the replay holds, over all environments."""
    target_period: int = 100
    """Gradients between copies of the params to the target network."""
    core: str = "lstm"
    """Recurrent core between the torso and the heads: lstm or gru."""
    core_width: int | None = option(None, low=1)
    """Numbers that the core remembers; default 64 behind mlp, 256 behind images."""
    widths: tuple[int, ...] | None = (64,)
    """Widths of the fully connected layers before the core."""
    rescale: bool = True
    """Learn values on the scale of their square root (Pohlen et al., 2018)."""
    exploration: str = "ladder"
    """anneal: the same rate everywhere, which falls. ladder: a fixed rate that falls from one environment to the next
    (Ape-X). mixture: a rate that falls to 0.1, 0.01 or 0.5 (asynchronous Q-learning)."""
    prioritised: bool = True
    """Draw sequences in proportion to their last errors (Schaul et al., 2016)."""
    priority_mixture: float = option(0.9, low=0, high=1)
    """Weight of a sequence's largest error in its priority; the rest is its mean error's."""

    def defaults_for(self, spec: Spec) -> dict[str, Any]:
        """Windows of 3 steps."""
        return {**super().defaults_for(spec), "n_step": 3}

    def check(self) -> None:
        """Refuse a network without a core, and sequences that leave out steps or have none to learn from."""
        super().check()
        if self.core not in CORES[1:]:
            raise unknown_name("core", self.core, CORES[1:])
        if self.sequence < self.unroll:
            raise TesseraError(
                f"--sequence {self.sequence} is below --unroll {self.unroll}: steps between sequences would be lost"
            )
        if self.burn_in >= self.sequence:
            raise TesseraError(f"--burn-in {self.burn_in}: must be below --sequence {self.sequence}")

    @property
    def network(self) -> Any:
        """The network, as a Flax module."""
        return RecurrentQNetwork(self.world, self.widths, self.torso, self.dueling, self.core, self.core_width)

    @property
    def store(self) -> Replay:
        """A replay whose rows are sequences; stacked frames are stored as they are."""
        return Replay(self.capacity, self.batch, self.prioritised, self.priority_exponent)

    def init(self, key: jax.Array) -> Any:
        """Make the network's params."""
        observation = jnp.zeros((1, *self.world.observation_shape), self.world.observation_dtype)
        return self.network.init(key, observation, self.network.empty(), jnp.zeros(1, bool))

    def memory(self, env_id: jax.Array) -> ValueMemory:
        """An empty core, no steps yet, and the environment's own exploration rate."""
        carry, overlap = self.network.empty(), self.sequence - self.unroll
        before = jax.tree.map(lambda x: jnp.broadcast_to(x, (overlap, *x.shape)), carry)
        extras = SequenceExtras(jnp.zeros(overlap, bool), before)
        window = invalid_steps(self.world, self.zero_actions(overlap), extras)
        return ValueMemory(window, self.exploration_rate(env_id), carry)

    def act(self, view: View, memory: ValueMemory, timestep: Timestep, key: jax.Array) -> tuple[Any, Any, Any]:
        """Take the best action, or with probability epsilon a random one."""
        values, after = self.remembered_values(view, memory, timestep)
        action = epsilon_greedy(key, values, self.epsilon(view, memory.exploration))
        return action, after, SequenceExtras(timestep.first, memory.carry)

    def greedy(self, view: View, memory: ValueMemory, timestep: Timestep, key: jax.Array) -> tuple[Any, Any]:
        """Take the best action."""
        del key
        values, after = self.remembered_values(view, memory, timestep)
        return values.argmax().astype(jnp.int32), after

    def remembered_values(self, view: View, memory: ValueMemory, timestep: Timestep) -> tuple[jax.Array, ValueMemory]:
        """The value of each action at a timestep, [n], and the memory after it."""
        given = (view.params, timestep.observation, memory.carry, timestep.first)
        values, carry = self.network.apply(*given, method="step")
        return values, memory._replace(carry=carry)

    def digest(self, view: View, memory: ValueMemory, trajectory: Transition) -> tuple[Experience, Any]:
        """Make one sequence of the last steps before the unroll and the unroll."""
        steps, last = append_unroll(memory.window, trajectory)
        row = jax.tree.map(lambda x: x[None], sequence_of(steps))
        return Experience(row, None, self.first_priority(view, row), steps.version[:1]), memory._replace(window=last)

    def sequence_errors(self, params: Any, target: Any, rows: Sequence) -> tuple[jax.Array, jax.Array]:
        """Errors (value minus target) and values of the actions taken after the burn-in, [T, B] each, of rows [T, B].

        Gradients flow through the values only.
        """
        q_tm1, carries = self.network.apply(params, rows.observation, rows.start, rows.first, self.burn_in)
        online = jax.lax.stop_gradient((params, q_tm1, carries))
        value = select(q_tm1, rows.action)
        error = value - jax.lax.stop_gradient(self.targets(target, online, rows))
        return error[self.burn_in :], value[self.burn_in :]

    def targets(self, target: Any, online: tuple[Any, jax.Array, Carry], rows: Sequence) -> jax.Array:
        """What the values of the actions taken should be, [T, B]; `online` are params, and values and carries by them.

        Windows end with an episode or the sequence, and bootstrap from the observation that their last step led to.
        """
        q_tm1, carries = self.network.apply(target, rows.observation, rows.start, rows.first)
        best = self.next_action_values(*online, rows).argmax(axis=-1)
        v_t = select(self.next_action_values(target, q_tm1, carries, rows), best)
        v_t = signed_parabolic(v_t) if self.rescale else v_t
        window = n_step_within(rows.reward, rows.terminated, rows.truncated, self.gamma, self.window)
        total = window.reward + window.discount * jnp.take_along_axis(v_t, window.last, axis=0)
        return signed_hyperbolic(total) if self.rescale else total

    def next_action_values(self, params: Any, q_tm1: jax.Array, carries: Carry, rows: Sequence) -> jax.Array:
        """Action values of the observations that steps led to, [T, B, n], given the core's state after each step."""

        def values(at: tuple[jax.Array, Carry]) -> jax.Array:
            observation, carry = at
            within = jnp.zeros(observation.shape[:1], bool)
            return self.network.apply(params, observation, carry, within, method="step")[0]

        return next_values(values, q_tm1, (rows.next_observation, carries), rows.truncated)

    def mixed_errors(self, error: jax.Array, valid: jax.Array) -> jax.Array:
        """The largest and the mean size of each sequence's errors, mixed: [T, B], [T, B] -> [B]."""
        size = jnp.where(valid, jnp.abs(error), 0)
        mean = size.sum(axis=0) / jnp.maximum(valid.sum(axis=0), 1)
        return self.priority_mixture * size.max(axis=0) + (1 - self.priority_mixture) * mean

    def row_errors(self, params: Any, target: Any, rows: Sequence) -> jax.Array:
        """One error for each sequence, [B], for priorities and outliers."""
        rows = time_major(rows)
        error, _ = self.sequence_errors(params, target, rows)
        return self.mixed_errors(error, rows.valid[self.burn_in :])

    def loss_gradient(self, view: View, rows: Sequence, scale: Any, key: jax.Array) -> tuple[Any, Any]:
        """Gradient of the mean loss; a sequence's loss is the mean over its steps, those not played counting zero."""
        del key
        rows = time_major(rows)
        valid = rows.valid[self.burn_in :]

        def loss(params: Any) -> tuple[jax.Array, Any]:
            error, value = self.sequence_errors(params, view.target, rows)
            total = jnp.mean(scale * jnp.where(valid, self.row_loss(error), 0))
            metrics = {"loss": total, "q_mean": value.mean(), "td_error": jnp.abs(error).mean()}
            return total, (metrics, self.mixed_errors(error, valid))

        return jax.grad(loss, has_aux=True)(view.params)
