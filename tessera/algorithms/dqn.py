"""Deep Q-networks (Mnih et al., 2015), with the usual extensions as flags of the same algorithm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from tessera.algorithms.base import Algorithm, Clock, Feedback, Schedule, State, Transition, View
from tessera.envs.base import Discrete, Spec, Timestep
from tessera.errors import TesseraError
from tessera.maths.exploration import epsilon_greedy, linear
from tessera.maths.losses import double_q_target, huber, q_target, select
from tessera.maths.returns import n_step
from tessera.networks import QNetwork
from tessera.stores.base import Experience, Sample
from tessera.stores.replay import Replay


class Row(NamedTuple):
    """One n-step window as it is stored."""

    observation: jax.Array
    action: jax.Array
    reward: jax.Array
    discount: jax.Array
    """What the bootstrap is multiplied by: 0 if the episode terminated inside the window."""
    bootstrap: jax.Array
    """The observation that the window led to."""


@dataclass(frozen=True)
class DQN(Algorithm):
    """Q-learning from replayed experience, with a target network."""

    name: ClassVar[str] = "dqn"
    summary: ClassVar[str] = "deep Q-network: replay and target network; double, dueling, prioritised, n-step as flags"
    default_envs: ClassVar[int] = 16

    unroll: int = 4
    """Steps that each environment plays between updates."""
    draws: int = 4
    """Batches drawn, and gradients applied, per update."""
    batch: int = 128
    """Rows per draw, over all environments."""
    capacity: int = 100_000
    """Rows that the replay holds, over all environments."""
    warmup: int = 32
    """Unrolls played at random before learning starts."""
    learning_rate: float = 1e-3
    """Step size at the beginning."""
    anneal: bool = True
    """Let the learning rate fall to zero, in a straight line, by the end of the run."""
    gamma: float = 0.99
    """Discount per step."""
    target_period: int = 50
    """Gradients between copies of the params to the target network."""
    epsilon_start: float = 1.0
    """Share of random actions at the beginning."""
    epsilon_end: float = 0.05
    """Share of random actions once exploration has fallen."""
    epsilon_fraction: float = 0.2
    """Part of the run during which exploration falls."""
    double: bool = True
    """Let the online network choose the action that the target network values (van Hasselt et al., 2016)."""
    dueling: bool = False
    """Network with a value and advantages apart (Wang et al., 2016)."""
    prioritised: bool = False
    """Draw rows in proportion to their last error (Schaul et al., 2016)."""
    priority_exponent: float = 0.6
    """How much priorities matter: 0 not at all, 1 in full proportion."""
    importance_exponent: float = 0.4
    """How much importance weights correct for priorities at the beginning; rises to 1 by the end."""
    n_step: int = 1
    """Steps that a reward sum looks ahead before the bootstrap."""
    huber: float | None = None
    """Errors beyond this count linearly and no longer squared (Huber); 0: never. Default 1 for images, else 0."""
    max_gradient_norm: float = 10.0
    """Gradients are scaled down to this global norm; 0 leaves them alone."""
    torso: str = "auto"
    """Network that reads observations: auto, mlp, nature or small."""
    widths: tuple[int, ...] | None = (64, 64)
    """Widths of the fully connected layers."""

    def bind(self, spec: Spec) -> Self:
        """Refuse actions that have no table of values."""
        if not isinstance(spec.actions, Discrete):
            raise TesseraError(f"dqn needs one discrete action, this environment has {spec.actions}: try ppo or a2c")
        huber = float(len(spec.observation_shape) == 3) if self.huber is None else self.huber
        return replace(self, spec=spec, huber=huber)

    def check(self) -> None:
        """A replay must hold at least one draw."""
        super().check()
        if self.capacity < self.batch:
            raise TesseraError(f"--capacity {self.capacity} is below --batch {self.batch}: a replay must hold a draw")

    @property
    def schedule(self) -> Schedule:
        """Unroll, then several draws."""
        return Schedule(self.unroll, draws=self.draws, warmup=max(self.warmup, -(-self.n_step // self.unroll)))

    @property
    def store(self) -> Replay:
        """A replay of n-step windows."""
        return Replay(self.capacity, self.batch, prioritised=self.prioritised, alpha=self.priority_exponent)

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam."""
        return optax.scale_by_adam()

    @property
    def network(self) -> Any:
        """The network, as a Flax module."""
        return QNetwork(self.world, self.widths, self.torso, self.dueling)

    def rate(self, clock: Clock) -> Any:
        """Learning rate now."""
        return self.learning_rate * (1.0 - clock.progress) if self.anneal else self.learning_rate

    def init(self, key: jax.Array) -> Any:
        """Make the network's params."""
        return self.network.init(key, jnp.zeros(self.world.observation_shape, self.world.observation_dtype))

    def start(self, params: Any) -> State:
        """Begin with the target equal to the params."""
        return super().start(params)._replace(target=params)

    def memory(self, env_id: jax.Array) -> Any:
        """The last n - 1 transitions, whose windows are not full yet; none at first."""
        if self.n_step == 1:
            return ()
        w, n = self.world, self.n_step - 1
        observation = jnp.zeros((n, *w.observation_shape), w.observation_dtype)
        flag = jnp.zeros(n, bool)
        reward = jnp.zeros(n, jnp.result_type(float))
        none = jnp.zeros(n, jnp.int32)
        return Transition(observation, none, (), reward, flag, flag, observation, flag, none)

    def act(self, view: View, memory: Any, timestep: Timestep, key: jax.Array) -> tuple[Any, Any, Any]:
        """Take the best action, or now and then any."""
        epsilon = linear(view.clock.progress, self.epsilon_start, self.epsilon_end, self.epsilon_fraction)
        return epsilon_greedy(key, self.network.apply(view.params, timestep.observation), epsilon), memory, ()

    def greedy(self, view: View, memory: Any, timestep: Timestep, key: jax.Array) -> tuple[Any, Any]:
        """Take the best action."""
        del key
        return self.network.apply(view.params, timestep.observation).argmax().astype(jnp.int32), memory

    def digest(self, view: View, memory: Any, trajectory: Transition) -> tuple[Experience, Any]:
        """Windows of n steps: those that the last unroll began and this one completes, and so on."""
        if self.n_step > 1:
            valid = trajectory.valid
            valid = jnp.ones(trajectory.reward.shape, bool) if valid is None else valid
            trajectory = jax.tree.map(
                lambda *x: jnp.concatenate(x), memory, trajectory._replace(valid=valid, extras=())
            )
            memory = jax.tree.map(lambda x: x[1 - self.n_step :], trajectory)
        t = trajectory
        window = n_step(t.reward, t.terminated, t.truncated, self.gamma, self.n_step)
        begin = window.reward.shape[0]
        bootstrap = t.next_observation[window.last]
        row = Row(t.observation[:begin], t.action[:begin], window.reward, window.discount, bootstrap)
        return Experience(row, None if t.valid is None else t.valid[:begin], version=t.version[:begin]), memory

    def prepare(self, view: View, sample: Sample) -> tuple[Any, Any]:
        """Importance weights, to be scaled by the largest of all groups."""
        if sample.weight is None:
            return (sample.rows, None), ()
        weight = sample.weight ** linear(view.clock.progress, self.importance_exponent, 1.0)
        return (sample.rows, weight), weight.max()

    def gradient(self, view: View, batch: Any, summary: Any, key: jax.Array) -> tuple[Any, Feedback]:
        """Gradient of the loss of temporal-difference errors."""
        del key
        rows, weight = batch
        q_t = self.network.apply(view.target, rows.bootstrap)
        target = q_target(rows.reward, rows.discount, q_t)
        if self.double:
            target = double_q_target(rows.reward, rows.discount, q_t, self.network.apply(view.params, rows.bootstrap))
        scale = 1.0 if weight is None else weight / summary.max()

        def loss(params: Any) -> tuple[jax.Array, Any]:
            value = select(self.network.apply(params, rows.observation), rows.action)
            error = value - target
            total = jnp.mean(scale * (huber(error, self.huber) if self.huber else 0.5 * jnp.square(error)))
            return total, ({"loss": total, "q_mean": value.mean(), "td_error": jnp.abs(error).mean()}, error)

        gradients, (metrics, error) = jax.grad(loss, has_aux=True)(view.params)
        return gradients, Feedback(metrics, jnp.abs(error) + 1e-3 if self.prioritised else None)

    def apply(self, state: State, gradients: Any, norm: jax.Array) -> State:
        """Step, and now and then copy the params to the target."""
        state = super().apply(state, gradients, norm)
        copy = (state.clock.applies + 1) % self.target_period == 0
        return state._replace(target=jax.tree.map(lambda t, p: jnp.where(copy, p, t), state.target, state.params))
