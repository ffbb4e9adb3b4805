"""A replay of sequences, for recurrent networks: acting with memory, making sequences, normalising what they saw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from tessera.algorithms.contract import State, Transition, View
from tessera.algorithms.parts.actor_critic_acting import normalised_observation
from tessera.algorithms.parts.epsilon_greedy import EpsilonGreedyAlgorithm
from tessera.algorithms.parts.n_step_windows import ValueMemory, append_unroll, invalid_steps
from tessera.algorithms.parts.replay_learning import DrawSummary, ReplayAlgorithm
from tessera.algorithms.parts.sequences import Sequence, SequenceExtras, SequenceStatistics, sequence_of
from tessera.envs.base import Timestep
from tessera.errors import TesseraError, unknown_name
from tessera.maths.exploration import best_action, epsilon_greedy
from tessera.maths.statistics import Moments, merge, merge_all, moments_of, no_moments
from tessera.networks import CORES, RecurrentQNetwork, is_own
from tessera.stores.base import Experience, Sample
from tessera.stores.replay import Replay
from tessera.support.fields import option


@dataclass(frozen=True)
class SequenceReplayAlgorithm(EpsilonGreedyAlgorithm, ReplayAlgorithm):
    """Q-learning whose rows are sequences of steps. An algorithm adds `row_errors` and `loss_gradient`."""

    unroll: int = 12
    """Steps that each environment plays between updates, and between the beginnings of two sequences."""
    sequence: int = option(36, low=2)
    """Steps of a sequence, with its burn-in; at least --unroll, and what is longer overlaps with the one before."""
    burn_in: int = option(12, low=0)
    """Steps at the beginning of each sequence that only bring the core's state up to date; nothing is learned there."""
    draws: int = 6
    """Batches drawn, and gradients applied, per update."""
    batch: int = 32
    """Sequences per draw, over all environments."""
    capacity: int = 10_000
    """Sequences that the replay holds, over all environments."""
    target_period: int = 100
    """Gradients between copies of the params to the target network."""
    core: Any = "lstm"
    """Recurrent core between the torso and the heads: lstm, gru, or one of Flax's recurrent cells, by name
    py:module.Class?features=64."""
    core_width: int | None = option(None, low=1)
    """Numbers that the core remembers; default 64 behind mlp, 256 behind images."""
    widths: tuple[int, ...] | None = (64,)
    """Widths of the fully connected layers before the core."""
    normalise_observations: bool = False
    """Shift and scale observations by running moments of those that were drawn. Faster at first; but what is drawn
    changes as it learns, and with it the scale."""

    def check(self) -> None:
        """Refuse a network without a core, and sequences that leave out steps or have none to learn from."""
        super().check()
        if not is_own(self.core) and self.core not in CORES[1:]:
            raise unknown_name("core", self.core, CORES[1:])
        if self.network is not None:
            raise TesseraError(f"{self.name} needs a core, which --network does not have: give --torso and --core")
        if self.sequence < self.unroll:
            raise TesseraError(
                f"--sequence {self.sequence} is below --unroll {self.unroll}: steps between sequences would be lost"
            )
        if self.burn_in >= self.sequence:
            raise TesseraError(f"--burn-in {self.burn_in}: must be below --sequence {self.sequence}")

    @property
    def model(self) -> Any:
        """The network, as a Flax module."""
        return RecurrentQNetwork(self.world, self.widths, self.torso, self.dueling, self.core, self.core_width)

    @property
    def store(self) -> Replay:
        """A replay whose rows are sequences; stacked frames are stored as they are."""
        return Replay(self.capacity, self.batch, self.prioritised, self.priority_exponent)

    def init(self, key: jax.Array) -> Any:
        """Make the network's params."""
        return self.model.init(key, self.world.zeros(jnp, 1), self.model.empty(), jnp.zeros(1, bool))

    def start(self, params: Any) -> State:
        """Begin with empty statistics."""
        state = super().start(params)
        seen: Any = ()
        if self.normalise_observations:
            seen = no_moments(self.world.array.shape, jnp.result_type(float))
        return state._replace(statistics=SequenceStatistics(seen, state.statistics))

    def memory(self, env_id: jax.Array) -> ValueMemory:
        """An empty core, no steps yet, and the environment's own exploration rate."""
        carry, overlap = self.model.empty(), self.sequence - self.unroll
        before = jax.tree.map(lambda x: jnp.broadcast_to(x, (overlap, *x.shape)), carry)
        extras = SequenceExtras(jnp.zeros(overlap, bool), before)
        window = invalid_steps(self.world, self.zero_actions(overlap), extras)
        return ValueMemory(window, self.exploration_rate(env_id), carry)

    def act(self, view: View, memory: ValueMemory, timestep: Timestep, key: jax.Array) -> tuple[Any, Any, Any]:
        """Take the best action, or with probability epsilon a random one."""
        values, after = self.remembered_values(view, memory, timestep)
        action = epsilon_greedy(key, values, self.epsilon(view, memory.exploration), timestep.legal)
        return action, after, SequenceExtras(timestep.first, memory.carry)

    def greedy(self, view: View, memory: ValueMemory, timestep: Timestep, key: jax.Array) -> tuple[Any, Any]:
        """Take the best action."""
        del key
        values, after = self.remembered_values(view, memory, timestep)
        return best_action(values, timestep.legal), after

    def remembered_values(self, view: View, memory: ValueMemory, timestep: Timestep) -> tuple[jax.Array, ValueMemory]:
        """The value of each action at a timestep, [n], and the memory after it."""
        observation = normalised_observation(view.statistics, timestep.observation)
        values, carry = self.model.apply(view.params, observation, memory.carry, timestep.first, method="step")
        return values, memory._replace(carry=carry)

    def digest(self, view: View, memory: ValueMemory, trajectory: Transition) -> tuple[Experience, Any]:
        """Make one sequence of the last steps before the unroll and the unroll."""
        steps, last = append_unroll(memory.window, trajectory)
        row = jax.tree.map(lambda x: x[None], sequence_of(steps))
        priority = self.first_priority(view, self.normalised(view, row))
        return Experience(row, None, priority, steps.version[:1]), memory._replace(window=last)

    def normalised(self, view: View, rows: Sequence) -> Sequence:
        """Normalise the observations of sequences, if that is switched on."""
        now, then = (normalised_observation(view.statistics, x) for x in (rows.observation, rows.next_observation))
        return rows._replace(observation=now, next_observation=then)

    def prepare(self, view: View, sample: Sample) -> tuple[Any, DrawSummary]:
        """Normalise what was drawn by the moments so far, and share its own moments."""
        rows = sample.rows
        batch, summary = super().prepare(view, sample._replace(rows=self.normalised(view, rows)))
        if self.normalise_observations:
            real = rows.observation.astype(jnp.result_type(float))
            summary = summary._replace(observation=moments_of(real, 2, rows.valid))
        return batch, summary

    def dropped(self, statistics: SequenceStatistics, summary: DrawSummary) -> jax.Array:
        """Whether a draw's loss is an outlier, so that its gradient is not applied."""
        return super().dropped(statistics.loss, summary)

    @property
    def absorbs(self) -> bool:
        """Statistics change if observations are normalised, or outliers dropped."""
        return self.normalise_observations or super().absorbs

    def absorb(self, state: State, summary: DrawSummary) -> State:
        """Merge a draw's moments into the running ones."""
        observation, loss = state.statistics
        if isinstance(observation, Moments):
            observation = merge(observation, merge_all(summary.observation))
        if self.outliers:
            loss = super().absorb(state._replace(statistics=loss), summary).statistics
        return state._replace(statistics=SequenceStatistics(observation, loss))
