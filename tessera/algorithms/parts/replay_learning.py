"""What DQN and DPG share: a replay of n-step windows, priorities, a target network, dropping of outliers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from tessera.algorithms.contract import Algorithm, Feedback, Schedule, State, Step, Transition, View
from tessera.algorithms.parts.n_step_windows import ValueMemory, append_unroll, invalid_steps, n_step_rows
from tessera.algorithms.parts.target_network import update_target
from tessera.envs.base import Spec
from tessera.errors import TesseraError, unknown_name
from tessera.maths.exploration import linear
from tessera.maths.outliers import add_loss, is_outlier
from tessera.maths.statistics import no_moments
from tessera.networks.torsos import channels_first
from tessera.stores.base import Experience, Sample
from tessera.stores.frames import FrameReplay
from tessera.stores.replay import Replay
from tessera.support.fields import option, resolved

OPTIMISERS = {
    "adam": optax.scale_by_adam,
    "rmsprop": lambda: optax.scale_by_stddev(decay=0.95, eps=0.01),  # centred, as Mnih et al. (2015)
    "adagrad": optax.scale_by_rss,
}


class DrawSummary(NamedTuple):
    """What all groups share about a draw; () for what is not needed."""

    weight: Any = ()
    """The largest importance weight."""
    loss: Any = ()
    """The mean loss, where outliers are dropped."""
    observation: Any = ()
    """Moments of the observations, where these are normalised."""


@dataclass(frozen=True)
class ReplayAlgorithm(Algorithm):
    """Fields and functions common to DQN and DPG. An algorithm adds networks, `row_errors` and `loss_gradient`."""

    unroll: int = option(4, low=1)
    """Steps that each environment plays between updates."""
    draws: int = option(4, low=1)
    """Batches drawn, and gradients applied, per update."""
    batch: int = option(128, low=1)
    """Rows per draw, over all environments."""
    capacity: int = option(100_000, low=1)
    """Rows that the replay holds, over all environments."""
    warmup: int = option(32, low=0)
    """Unrolls played before learning starts."""
    learning_rate: float | None = option(None, low=0, tunable=True)
    """Step size at the beginning; default: the algorithm's own."""
    anneal: bool = True
    """Let the learning rate fall to zero, in a straight line, by the end of the run."""
    optimiser: str = "adam"
    """How steps are scaled: adam, rmsprop (centred) or adagrad."""
    gamma: float = option(0.99, low=0, high=1, tunable=True)
    """Discount per step."""
    n_step: int | None = option(None, low=1)
    """Steps whose rewards are summed before the bootstrap; default: the algorithm's own."""
    target_period: int = option(50, low=1)
    """Gradients between copies of the params to the target network."""
    polyak: float = option(0.0, low=0, high=1)
    """Instead of copies: share of the difference by which the target moves to the params at each gradient; 0: by
    copies."""
    prioritised: bool = False
    """Draw rows in proportion to their last error (Schaul et al., 2016)."""
    priority_exponent: float = option(0.6, low=0, high=1)
    """How much priorities matter: 0 not at all, 1 in full proportion."""
    importance_exponent: float = option(0.4, low=0, high=1, tunable=True)
    """How much importance weights correct for priorities at the beginning."""
    importance_end: float = option(1.0, low=0, high=1, tunable=True)
    """How much they correct at the end; linear in between."""
    actor_priorities: bool = False
    """Let actors compute the first priorities of what they send (Ape-X); else new rows get the largest so far."""
    outliers: float = option(0.0, low=0)
    """Drop gradients whose loss exceeds its running mean by this many deviations (Gorila); 0: none are dropped."""
    max_gradient_norm: float = option(10.0, low=0)
    """Gradients are scaled down to this global norm; 0 leaves them alone."""
    torso: Any = "auto"
    """Network that reads observations: auto, mlp, nature, small, resnet, or a Flax module of yours, by name
    py:module.Class?width=64."""
    widths: tuple[int, ...] | None = (64, 64)
    """Widths of the fully connected layers."""

    def bind(self, spec: Spec) -> Self:
        """Fill in the defaults that depend on the observations."""
        unset = {name: value for name, value in self.defaults_for(spec).items() if getattr(self, name) is None}
        return dataclasses.replace(super().bind(spec), **unset)

    def defaults_for(self, spec: Spec) -> dict[str, Any]:
        """Values of fields that the user did not set."""
        del spec
        return {"learning_rate": 1e-3, "n_step": 1}

    @property
    def window(self) -> int:
        """Steps of a window; only a bound algorithm knows."""
        return resolved(self.n_step)

    def row_errors(self, params: Any, target: Any, rows: Any) -> jax.Array:
        """One temporal-difference error for each row, [B], without noise, for priorities and outliers."""
        raise NotImplementedError

    def loss_gradient(
        self, view: View, rows: Any, scale: Any, key: jax.Array
    ) -> tuple[Any, tuple[dict[str, jax.Array], jax.Array]]:
        """Gradient of the mean loss, with each row's weight in `scale`: (gradients, (metrics, row errors))."""
        raise NotImplementedError

    def row_loss(self, error: jax.Array) -> jax.Array:
        """Loss of each error: half its square."""
        return 0.5 * jnp.square(error)

    def check(self) -> None:
        """Refuse an unknown optimiser, and a replay that is smaller than a draw."""
        super().check()
        if self.optimiser not in OPTIMISERS:
            raise unknown_name("optimiser", self.optimiser, OPTIMISERS)
        if self.capacity < self.batch:
            raise TesseraError(f"--capacity {self.capacity} is below --batch {self.batch}: a replay must hold a draw")

    @property
    def schedule(self) -> Schedule:
        """Unroll, then several draws."""
        return Schedule(self.unroll, draws=self.draws, warmup=max(self.warmup, -(-self.window // self.unroll)))

    @property
    def store(self) -> Replay:
        """A replay of n-step windows; stacked frames are stored once each (three planes are colours, not a stack)."""
        drawing = (self.capacity, self.batch, self.prioritised, self.priority_exponent)
        planes = self.world.array.shape[0] if channels_first(self.world) else 0
        if planes in (0, 1, 3):
            return Replay(*drawing)
        return FrameReplay(*drawing, reach=max(16, 2 * planes + self.window + 1))

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """The optimiser by its name."""
        return OPTIMISERS[self.optimiser]()

    def start(self, params: Any) -> State:
        """Begin with the target equal to the params."""
        loss_moments = no_moments((), jnp.result_type(float)) if self.outliers else ()
        return super().start(params)._replace(target=params, statistics=loss_moments)

    def memory(self, env_id: jax.Array) -> ValueMemory:
        """The last n - 1 transitions: none at first."""
        del env_id
        if self.window == 1:
            return ValueMemory()
        return ValueMemory(invalid_steps(self.world, self.zero_actions(self.window - 1)))

    def zero_actions(self, n: int) -> jax.Array:
        """Actions of steps that were never played, [n, ...]."""
        return jnp.zeros(n, jnp.int32)

    def digest(self, view: View, memory: ValueMemory, trajectory: Transition) -> tuple[Experience, Any]:
        """Make windows of n steps; those that the last unroll began are completed by this one."""
        if self.window > 1:
            trajectory, last = append_unroll(memory.window, trajectory)
            memory = memory._replace(window=last)
        row = n_step_rows(trajectory, self.gamma, self.window)
        count = row.reward.shape[0]
        valid = None if trajectory.valid is None else trajectory.valid[:count]
        return Experience(row, valid, self.first_priority(view, row), version=trajectory.version[:count]), memory

    def first_priority(self, view: View, rows: Any) -> jax.Array | None:
        """Priorities of new rows as actors judge them, which have no target network: their params stand in."""
        if not (self.prioritised and self.actor_priorities):
            return None
        return self.priority(self.row_errors(view.params, view.params, rows))

    def priority(self, error: jax.Array) -> jax.Array:
        """Priority of a row with this error."""
        return jnp.abs(error) + 1e-3

    def prepare(self, view: View, sample: Sample) -> tuple[Any, DrawSummary]:
        """Compute importance weights, not yet divided by the largest of all, and the loss if outliers are dropped."""
        summary, weight = DrawSummary(), None
        if sample.weight is not None:
            weight = sample.weight ** linear(view.clock.progress, self.importance_exponent, self.importance_end)
            summary = summary._replace(weight=weight.max())
        if self.outliers:
            error = self.row_errors(view.params, view.target, sample.rows)
            summary = summary._replace(loss=self.row_loss(error).mean())
        return (sample.rows, weight), summary

    def gradient(self, view: View, batch: Any, summary: DrawSummary, key: jax.Array) -> tuple[Any, Feedback]:
        """Gradient of the loss of temporal-difference errors."""
        rows, weight = batch
        scale = 1.0 if weight is None else weight / summary.weight.max()
        gradients, (metrics, error) = self.loss_gradient(view, rows, scale, key)
        if self.outliers:
            metrics["dropped"] = self.dropped(view.statistics, summary).astype(error.dtype)
        return gradients, Feedback(metrics, self.priority(error) if self.prioritised else None)

    def dropped(self, statistics: Any, summary: DrawSummary) -> jax.Array:
        """Whether a draw's loss is an outlier, so that its gradient is not applied."""
        return is_outlier(statistics, summary.loss.mean(), self.outliers)

    def apply(self, state: State, gradients: Any, step: Step) -> State:
        """Step, unless the draw's loss is an outlier, and update the target."""
        stepped = super().apply(state, gradients, step)
        if self.outliers:
            dropped = self.dropped(state.statistics, step.summary)
            stepped = jax.tree.map(lambda new, old: jnp.where(dropped, old, new), stepped, state)
        return update_target(stepped, self.target_period, self.polyak)

    @property
    def absorbs(self) -> bool:
        """The running mean of losses is kept only to judge outliers."""
        return self.outliers > 0

    def absorb(self, state: State, summary: DrawSummary) -> State:
        """Merge a draw's loss into the running mean."""
        return state._replace(statistics=add_loss(state.statistics, summary.loss.mean()))
