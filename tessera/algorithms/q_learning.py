"""Q-learning without a replay: one-step Q, one-step Sarsa and n-step Q (Mnih et al., 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from tessera.algorithms.contract import Schedule, State, Step, Transition, View
from tessera.algorithms.parts.n_step_windows import ValueMemory, append_unroll, invalid_steps
from tessera.algorithms.parts.target_network import update_target
from tessera.algorithms.parts.values_of_unrolls import TargetBatch, ValuesOfUnrolls
from tessera.errors import unknown_name
from tessera.maths.exploration import best_value
from tessera.maths.losses import select
from tessera.maths.returns import returns_to_go
from tessera.stores.base import Experience, Sample
from tessera.support.fields import option

KINDS = ("one_step", "sarsa", "n_step")


@dataclass(frozen=True)
class QLearning(ValuesOfUnrolls):
    """Learns from each unroll once. It is stable where many environments with different exploration play at once.

    A gradient is the mean over an unroll, as if it had been accumulated step by step. `act` is in
    parts/epsilon_greedy.py.
    """

    name: ClassVar[str] = "q_learning"
    default_envs: ClassVar[int] = 16
    summary: ClassVar[str] = "Q-learning without a replay: one-step Q, one-step Sarsa or n-step Q, RMSProp"

    kind: str = "one_step"
    """Target of a value. one_step: the reward and the best next action's value. sarsa: the reward and the value of the
    next action taken. n_step: all rewards to the end of the unroll, and the best action's value there."""
    rms_decay: float = option(0.99, low=0, high=1, tunable=True)
    """How slowly RMSProp forgets squared gradients."""
    target_period: int = option(10, low=1)
    """Gradients between copies of the params to the target network, which all learners share."""
    exploration: str = "mixture"
    """anneal: the same rate everywhere, which falls. ladder: a fixed rate that falls from one environment to the next
    (Ape-X). mixture: a rate that falls to 0.1, 0.01 or 0.5 (asynchronous Q-learning)."""

    def check(self) -> None:
        """Refuse an unknown kind of target."""
        super().check()
        if self.kind not in KINDS:
            raise unknown_name("kind", self.kind, KINDS)

    @property
    def schedule(self) -> Schedule:
        """One gradient for each unroll."""
        return Schedule(self.unroll)

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """RMSProp."""
        return optax.scale_by_rms(decay=self.rms_decay, eps=1e-5)

    def start(self, params: Any) -> State:
        """Begin with the target equal to the params."""
        return super().start(params)._replace(target=params)

    def memory(self, env_id: jax.Array) -> ValueMemory:
        """The environment's own exploration rate and, for Sarsa, the last step, whose next action is not known yet."""
        last = invalid_steps(self.world, jnp.zeros(1, jnp.int32)) if self.kind == "sarsa" else ()
        return ValueMemory(last, self.exploration_rate(env_id))

    def digest(self, view: View, memory: ValueMemory, trajectory: Transition) -> tuple[Experience, Any]:
        """Hand the trajectory on; for Sarsa one step late, and each step with the action that followed."""
        if self.kind == "sarsa":
            steps, last = append_unroll(memory.window, trajectory)
            memory = memory._replace(window=last)
            trajectory = jax.tree.map(lambda x: x[:-1], steps)._replace(extras=steps.action[1:])
        return super().digest(view, memory, trajectory)

    def prepare(self, view: View, sample: Sample) -> tuple[TargetBatch, Any]:
        """Compute targets of one group's unroll [T, n], and turn it into rows."""
        rows = sample.rows
        q_t = self.model.apply(view.target, rows.next_observation)
        v_t = best_value(q_t, rows.next_legal)
        if self.kind == "sarsa":  # no action follows a truncation: the best stands in for it
            v_t = jnp.where(rows.truncated, v_t, select(q_t, rows.extras))
        if self.kind == "n_step":
            target = returns_to_go(rows.reward, v_t, rows.terminated, rows.truncated, self.gamma)
        else:
            target = rows.reward + self.gamma * (1.0 - rows.terminated) * v_t
        return self.rows_of(rows, target)

    def apply(self, state: State, gradients: Any, step: Step) -> State:
        """Step, and copy the params to the target every `target_period` gradients."""
        return update_target(super().apply(state, gradients, step), self.target_period)
