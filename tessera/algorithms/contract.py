"""The contract between an algorithm and the framework: the functions an author writes, and the types they exchange.

An algorithm is a frozen dataclass: its fields are the hyper-parameters, its methods are pure JAX functions. No method
knows where it runs.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from tessera.algorithms.parts.clock import Clock
from tessera.algorithms.parts.first_params import FirstParams
from tessera.algorithms.parts.labelled_parts import Part, Step, same_labels, scaled_to
from tessera.algorithms.parts.large_batch import LAYERWISE, SCALINGS, rate_factor
from tessera.algorithms.parts.target_network import follow_params
from tessera.envs.base import Environment, Spec, Timestep, is_device
from tessera.errors import TesseraError, unknown_name
from tessera.networks.own import check_torso, is_own
from tessera.stores.base import Experience, Sample, Store
from tessera.stores.queue import Queue
from tessera.support.fields import SET_BY_FRAMEWORK, check_bounds, option


@dataclass(frozen=True)
class Schedule:
    """How often each operator runs within one update."""

    unroll: int
    """Steps that each environment plays in one round."""
    draws: int = 1
    """Draws from the store per update."""
    epochs: int = 1
    """Passes over one draw."""
    minibatches: int = 1
    """Gradients per pass."""
    warmup: int = 0
    """Unrolls stored before the first draw."""
    episodic: bool = False
    """Whether every environment is reset before each unroll."""
    rounds: int = 1
    """Unrolls that each environment plays per update, one after the other; `ready` runs before each."""

    @property
    def steps(self) -> int:
        """Steps that each environment plays per update."""
        return self.unroll * self.rounds

    @property
    def applies(self) -> int:
        """Gradients applied per update."""
        return self.draws * self.epochs * self.minibatches


class State(NamedTuple):
    """What `apply` owns. All but `statistics` and `clock` is element-wise in the params."""

    params: Any
    optimizer: Any
    target: Any = ()
    """A slow copy of the params, or ()."""
    statistics: Any = ()
    """Running moments (observation and reward normalisers), or (). Where replicas do not wait for each other, their
    `Moments` are merged by counts, and other numbers are averaged."""
    clock: Any = None
    """Kept by the framework."""


class View(NamedTuple):
    """The published part of the state: all but the optimiser's. `act` gets it without `target`."""

    params: Any
    target: Any
    statistics: Any
    clock: Clock


class Transition(NamedTuple):
    """One step of one environment as `act` records it; a trajectory is the same with a leading time axis."""

    observation: Any
    action: Any
    extras: Any
    """What `act` records for learning: log-probabilities, say."""
    reward: Any
    terminated: Any
    truncated: Any
    next_observation: Any
    """The observation that the step led to, before any autoreset."""
    valid: Any = None
    """False on reset steps, where nothing was played; None if the environment has none."""
    version: Any = None
    """Gradients that had been applied to the params which chose this action; set by the framework."""
    alive: Any = None
    """[agents] which of several agents go on after the step; None if there is one agent, or none ever drops out."""
    legal: Any = None
    """Which actions were allowed at `observation`; None if all always are."""
    next_legal: Any = None
    """Which are at `next_observation`."""
    player: Any = None
    """Who moved, in a game; None if there is one player."""
    turn: Any = None
    """1 where the same player moves at `next_observation`, -1 where the other one does, so that a value there counts
    as much less; None if there is one player."""


class Feedback(NamedTuple):
    """What `gradient` returns besides the gradient."""

    metrics: dict[str, jax.Array]
    """Scalars, means over rows."""
    priorities: jax.Array | None = None
    """[rows] new priorities, for stores that keep them."""


@dataclass(frozen=True)
class Algorithm:
    """The base class. Required: `schedule`, `init`, `act`, `prepare`, `gradient`, `optimizer`; the rest has defaults.

    Methods are in the order in which a run calls them. `ready`, `act`, `greedy` and `digest` see one environment,
    `prepare` one group, `gradient` rows; the framework vectorises.
    """

    name: ClassVar[str] = "algorithm"
    summary: ClassVar[str] = ""
    """One line for `tessera algorithms`."""
    teams: ClassVar[bool] = False
    """Whether it is for environments with several agents; others are for environments with one."""
    default_envs: ClassVar[int] = 64
    """Environments where the user gives no number; host environments take at most 16."""
    default_steps: ClassVar[int] = 500_000
    """Environment steps of a run where the user gives no number."""
    reads_state: ClassVar[bool] = False
    """Whether `act` and `greedy` read `Timestep.state` and the field `game`, as a search does: for compiled
    environments in which nothing is hidden."""
    takes_turns: ClassVar[bool] = False
    """Whether it learns games in which two players take turns, by playing both (`Transition.turn`)."""
    together: ClassVar[int] = 1
    """Number of neighbouring environments that must stay in one group, such as the two of an antithetic pair."""

    spec: Spec | None = field(default=None, kw_only=True, repr=False, metadata=SET_BY_FRAMEWORK)
    """Shapes, dtypes and actions of the environment; set by `bind`, not by users."""
    rate_scaling: str = field(default="none", kw_only=True)
    """How the learning rate grows with the batch: none, linear or sqrt, by the ratio of environments to --rate-envs.
    Gradients are averaged over learners, so more learners change the batch by their environments."""
    rate_envs: int | None = option(None, low=1, kw_only=True)
    """Environments that the learning rate is meant for; default: as many as the algorithm has by default."""
    rate_warmup: float = option(0.0, low=0, high=1, kw_only=True)
    """Share of the run in which the learning rate rises from its unscaled to its scaled value."""
    layerwise: str = field(default="none", kw_only=True)
    """Optimiser whose steps are in proportion to each layer's weights, instead of the algorithm's own: none, lars or
    lamb."""
    game: Any = field(default=None, kw_only=True, repr=False, compare=False, metadata=SET_BY_FRAMEWORK)
    """The environment itself, for algorithms that search (`reads_state`); set by the framework."""
    tuned: tuple[str, ...] = field(default=(), kw_only=True, repr=False, metadata=SET_BY_FRAMEWORK)
    """Fields whose values the clock holds, since they change while a population trains; set by the framework."""
    envs: int = field(default=1, kw_only=True, repr=False, metadata=SET_BY_FRAMEWORK)
    """Environments of the whole run, for settings that differ from one to the next; set by the framework."""
    first_params: FirstParams | None = field(default=None, kw_only=True, repr=False, metadata=SET_BY_FRAMEWORK)
    """What a run starts from instead of the params that `init` makes; set by the framework."""

    def bind(self, spec: Spec) -> Self:
        """Return this algorithm for one kind of environment, with the defaults that depend on it filled in."""
        return dataclasses.replace(self, spec=spec)

    def tuned_by(self, clock: Clock) -> Self:
        """Return this algorithm with the values that the clock holds of what is tuned."""
        return dataclasses.replace(self, **clock.tuned) if clock.tuned else self

    def bound_to(self, env: Environment) -> Self:
        """Return this algorithm for an environment: for its spec and, if it searches, for the environment itself."""
        bound = self.bind(env.spec)
        if not self.reads_state:
            return bound
        if not is_device(env):
            raise TesseraError(
                f"{self.name} searches in the game itself, so it must be compiled, and {env.name} is not: choose one "
                "that is, such as pgx:connect_four"
            )
        return dataclasses.replace(bound, game=env)

    def check(self) -> None:
        """Refuse values that make no sense, once bound."""
        check_bounds(self)
        widths = getattr(self, "widths", None)
        if widths is not None and (not widths or min(widths) < 1):
            raise TesseraError(f"--widths {' '.join(map(str, widths))}: name one or more layers of at least 1 unit")
        torso = getattr(self, "torso", None)
        if is_own(torso):
            check_torso(self.world, torso)
        for name, known in (("rate_scaling", SCALINGS), ("layerwise", ("none", *LAYERWISE))):
            if getattr(self, name) not in known:
                raise unknown_name(f"--{name.replace('_', '-')}", getattr(self, name), known)
        if self.world.players > 1 and not self.takes_turns:
            raise TesseraError(
                f"{self.name} cannot learn a game of {self.world.players} players who take turns: choose one that can, "
                "such as alphazero, ppo or dqn, or let another play the other side, as in ?opponent=random"
            )
        if self.reads_state and self.world.hidden:
            raise TesseraError(
                f"{self.name} searches what may happen, and here a player does not see all: choose an algorithm that "
                "does not search, such as ppo"
            )
        if bool(self.world.agents) != self.teams:
            kind = f"{self.world.agents} agents" if self.world.agents else "one agent"
            other = "one for several agents, such as mappo" if self.world.agents else "one for one agent, such as ppo"
            raise TesseraError(f"{self.name} cannot play this world, which has {kind}: choose {other}")

    @property
    def world(self) -> Spec:
        """The spec; only a bound algorithm has one."""
        if self.spec is None:
            raise TesseraError(f"{self.name} is not bound to an environment: call bind(spec) first")
        return self.spec

    @property
    def schedule(self) -> Schedule:
        """How often each operator runs within one update."""
        raise NotImplementedError

    @property
    def store(self) -> Store:
        """Where experience waits; by default it is used once, as it comes."""
        return Queue()

    def init(self, key: jax.Array) -> Any:
        """Make the params."""
        raise NotImplementedError

    @property
    def parts(self) -> dict[str, Part]:
        """How each labelled part is learned, where params are a dict of such parts; {}: all alike."""
        return {}

    def due(self, clock: Clock) -> dict[str, jax.Array]:
        """Whether each part that has a period is due at the gradient which comes next."""
        return {label: clock.modulo(part.period) == 0 for label, part in self.parts.items() if part.period > 1}

    def start(self, params: Any) -> State:
        """Make the state around params; element-wise, so that it also starts a flat shard."""
        if not self.parts:
            return State(params, self.stepper.init(params))
        same_labels(params, self.parts, f"`init` of {self.name} makes")
        return State(params, {label: self.stepper_of(part).init(params[label]) for label, part in self.parts.items()})

    def memory(self, env_id: jax.Array) -> Any:
        """What `act` carries from step to step for one environment; () if nothing."""
        del env_id
        return ()

    def unsent(self, memory: Any) -> Any:
        """Rows of experience that `memory` keeps back until later, in each of many environments or over all of them.

        They are lost with a replica that dies, and counted then.
        """
        del memory
        return 0

    def ready(self, view: View, memory: Any, key: jax.Array) -> Any:
        """Prepare the memory for the next unroll; every environment gets the same key."""
        del view, key
        return memory

    def act(self, view: View, memory: Any, timestep: Timestep, key: jax.Array) -> tuple[Any, Any, Any]:
        """Choose an action: (action, memory, extras)."""
        raise NotImplementedError

    def greedy(self, view: View, memory: Any, timestep: Timestep, key: jax.Array) -> tuple[Any, Any]:
        """Choose without exploring: (action, memory)."""
        action, memory, _ = self.act(view, memory, timestep, key)
        return action, memory

    @property
    def greedy_draws(self) -> bool:
        """Whether what `greedy` chooses is drawn at random, so that it must not get the same key again and again."""
        return False

    def digest(self, view: View, memory: Any, trajectory: Transition) -> tuple[Experience, Any]:
        """Turn one unroll of one environment, [T, ...], into experience; every leaf keeps a leading axis."""
        del view
        return Experience(trajectory._replace(version=None), trajectory.valid, version=trajectory.version), memory

    def prepare(self, view: View, sample: Sample) -> tuple[Any, Any]:
        """Once per draw and group: (batch with a leading axis of rows, summary shared with all groups)."""
        raise NotImplementedError

    @property
    def noisy_loss(self) -> bool:
        """Whether `gradient` draws noise: it then gets a key for each row, and must draw a row's noise from that key.

        Noise from one key for all rows would differ with the rows that a replica happens to hold.
        """
        return False

    def gradient(self, view: View, batch: Any, summary: Any, key: jax.Array) -> tuple[Any, Feedback]:
        """Mean gradient over rows; the summary's leaves have a leading axis over all groups.

        `key` is one key, the same for all rows, or with `noisy_loss` one for each row, [rows].
        """
        raise NotImplementedError

    def apply(self, state: State, gradients: Any, step: Step) -> State:
        """Take one step, element by element."""
        gradients = self.clipped(gradients, step)
        if not self.parts:
            params, optimizer = self._stepped(Part(), gradients, state.params, state.optimizer, state.clock)
            return state._replace(params=params, optimizer=optimizer)
        params, optimizer = {}, {}
        for label, part in self.parts.items():
            before = state.params[label], state.optimizer[label]
            after = self._stepped(part, gradients[label], *before, state.clock)
            if label in step.due:
                after = jax.tree.map(partial(jnp.where, step.due[label]), after, before)
            params[label], optimizer[label] = after
        return state._replace(params=params, optimizer=optimizer)

    def _stepped(self, part: Part, gradients: Any, params: Any, optimizer: Any, clock: Clock) -> tuple[Any, Any]:
        """Params and optimiser's state of one part after a step."""
        steps, optimizer = self.stepper_of(part).update(gradients, optimizer, params)
        rate = self.rate(clock, part.learning_rate)
        return jax.tree.map(lambda p, s: (p - rate * s).astype(p.dtype), params, steps), optimizer

    def catch_up(self, state: State, gradients: jax.Array) -> State:
        """Do what fell due while others have applied so many gradients to the params.

        By default the target follows, if there is a field `target_period`.
        """
        period = getattr(self, "target_period", None)
        return state if period is None else follow_params(state, gradients, period, getattr(self, "polyak", 0.0))

    def clipped(self, gradients: Any, step: Step) -> Any:
        """Scale gradients down to the field `max_gradient_norm`, if there is one, and parts to their own norms."""
        limit = getattr(self, "max_gradient_norm", None)
        own = {label: part.max_gradient_norm for label, part in self.parts.items()}
        if not any(x is not None for x in own.values()):
            return scaled_to(gradients, limit, step.norm)
        return {
            label: scaled_to(gradients[label], *((limit, step.norm) if most is None else (most, step.norms[label])))
            for label, most in own.items()
        }

    def rate(self, clock: Clock, learning_rate: float | None = None) -> Any:
        """Learning rate now: that of a part, or the field `learning_rate`; falls to zero by the end with `anneal`."""
        rate = getattr(self, "learning_rate", None) if learning_rate is None else learning_rate
        if rate is None:
            raise TesseraError(f"{self.name} has no learning rate: give its field `learning_rate` a value")
        if self.rate_scaling != "none":
            usual_envs = self.rate_envs or min(self.default_envs, self.envs)
            rate = rate * rate_factor(self.rate_scaling, self.envs / usual_envs, self.rate_warmup, clock.progress)
        return rate * (1.0 - clock.progress) if getattr(self, "anneal", False) else rate

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """An element-wise optax transform, without the learning rate and without clipping by norm."""
        raise NotImplementedError

    @property
    def stepper(self) -> optax.GradientTransformation:
        """The optimiser in use: the algorithm's own, or the one that `layerwise` names."""
        return self.optimizer if self.layerwise == "none" else LAYERWISE[self.layerwise]()

    def stepper_of(self, part: Part) -> optax.GradientTransformation:
        """The optimiser of a part."""
        return self.stepper if part.optimizer is None or self.layerwise != "none" else part.optimizer

    @property
    def absorbs(self) -> bool:
        """Whether `absorb` changes the state; if not, the program leaves it out."""
        return False

    def absorb(self, state: State, summary: Any) -> State:
        """Merge a draw's summary into the running statistics, after the draw's gradients."""
        del summary
        return state

    @property
    def apart(self) -> int:
        """Agents with params of their own, so that a replica may learn for some of them; 0 if all agents share params.

        If not 0, params and memory have a leading axis of agents.
        """
        return 0

    def only(self, agents: tuple[int, ...]) -> Self:
        """Return the same algorithm for some of the agents: their params and actions, in environments with all."""
        raise NotImplementedError(f"{self.name} cannot be shared out by agents: {agents}")
