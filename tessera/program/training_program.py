"""The one training program of all algorithms, environments and policies. Fragments are its projections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tessera.algorithms.contract import Algorithm, State, Transition, View, same_labels
from tessera.envs.base import Box, Environment, HostEnvironment, Timestep
from tessera.errors import TesseraError
from tessera.maths.codec import threshold_code
from tessera.maths.shuffle import permutation
from tessera.program.accounting import Episode, account, count, no_episode, no_tally, numbers_in, total
from tessera.program.environment_calls import call_environment
from tessera.program.exchange import (
    PartNorms,
    SoloGradient,
    gradient_values,
    squared_sums,
)
from tessera.program.faults import Fault, find_fault, first_of_rounds
from tessera.program.keys import derive, derive_each, derive_rows, later
from tessera.program.minibatches import all_rows, flat_rows, pick, rows_per_group
from tessera.program.nodes import HOST, REPORTS, TRACED, WIRING, Node, Op, Repeat
from tessera.program.peers import Contribution, peer_nodes


class Learned(NamedTuple):
    """Metrics of one update: means over its gradients, and the first gradient at which each was not finite."""

    mean: Any
    broken_at: Any
    lag_mean: Any
    """Updates between the params that samples were made with and those that learn from them."""
    lag_max: Any


class Guard(NamedTuple):
    """Squared sums of one update, per tensor: not finite where something broke."""

    gradients: Any
    broken_at: Any
    """The first gradient of the update that was not finite, for each tensor."""
    params: Any


def published(state: State) -> View:
    """The part of the state that `grad` reads."""
    return View(state.params, state.target, state.statistics, state.clock)


def acting(view: View) -> View:
    """The part of the view that `act` reads."""
    return view._replace(target=())


def over_envs(function: Callable[..., Any], *, time: bool = False) -> Callable[..., Any]:
    """Vectorise a function of one environment over [groups, environments]; second argument [groups, time, ...]."""
    if not time:
        return _flattened(jax.vmap(function))
    # a group is time-major, [T, n], in and out, so nothing is transposed
    return jax.vmap(jax.vmap(function, in_axes=(0, 1), out_axes=(1, 0)))


def _flattened(function: Callable[..., Any]) -> Callable[..., Any]:
    """Call a function of [environments, ...] with [groups, environments, ...]: one long axis makes faster loops."""

    def call(*values: Any) -> Any:
        groups, size = jax.tree.leaves(values)[0].shape[:2]
        out = function(*jax.tree.map(lambda x: x.reshape(groups * size, *x.shape[2:]), values))
        return jax.tree.map(lambda x: x.reshape(groups, size, *x.shape[1:]), out)

    return call


@dataclass(frozen=True)
class Training:
    """Builds the program of a bound algorithm and an environment, which is the same for every policy."""

    algorithm: Algorithm
    env: Environment
    groups: int
    lag: int = 0
    """Updates by which the params of `act` lag within a fragment; if params cross a channel, the channel lags."""
    greedy: bool = False
    """Act without exploring, for evaluation."""
    solo: bool = False
    """Apply each gradient alone and not in a mean, so that it brings its own norm."""
    threshold: float = 0.0
    """Gradients are sent as plus or minus this, or nothing; the rest is kept for later. 0: they are sent unchanged."""
    exchange: str = ""
    """How peers join their updates: mean, shared, or empty for not at all."""
    every: int = 1
    """Updates between two exchanges."""
    carries: str = "state"
    """What peers exchange: state or params."""
    together: int = 1
    """Replicas that each make every update, while one clock counts the gradients of all of them."""
    batches_per_unroll: int = 1
    """Batches that one unroll of all environments makes, where an update learns from some of the groups only."""

    def start(self) -> tuple[Node, ...]:
        """The program that runs once, before the first update."""
        warmup = self.algorithm.schedule.warmup
        reports = {"report_env": "report_env", "report_act": "report_act"}
        # all that is played is kept: what nobody took would hold its senders up
        fill = (Repeat("w", warmup, self.collect(), reports, self.batches_per_unroll),) if warmup else ()
        return (self._reset(), *fill)

    def updates(self) -> tuple[Node, ...]:
        """The program of the updates, as many as the engine says."""
        before, after = peer_nodes(self.algorithm, self.exchange, self.every, self.carries)
        body = (*before, *self.collect(), self.learn(), *after, *self.publish())
        return (Repeat("u", None, body, {report: report for report in REPORTS}),)

    def play(self, steps: int) -> tuple[Node, ...]:
        """Play a number of steps and keep the account of each, for evaluation."""
        return (*self._keys(steps), Repeat("t", steps, self._step_nodes(), {"episode_step": "episode_steps"}))

    def collect(self) -> tuple[Node, ...]:
        """One unroll of every environment, or several rounds of unrolls, into the store."""
        algorithm, s = self.algorithm, self.algorithm.schedule

        def ready(view: View, memory: Any, root: jax.Array, clock: jax.Array) -> tuple[Any]:
            key = derive(root, "ready", clock)
            return (over_envs(lambda m: algorithm.tuned_by(view.clock).ready(view, m, key))(memory),)

        def digest(view: View, memory: Any, trajectory: Transition, ids: jax.Array) -> tuple[Any, Any, Fault]:
            trajectory = by_movers(trajectory)
            version = jnp.broadcast_to(view.clock.applies, trajectory.truncated.shape)
            function = over_envs(lambda m, x: algorithm.tuned_by(view.clock).digest(view, m, x), time=True)
            experience, memory = function(memory, trajectory._replace(version=version))
            rows = jax.tree.leaves(experience.rows)[0].shape[:3]
            if experience.version is None and rows == version.shape:
                experience = experience._replace(version=version)
            return experience, memory, find_fault(trajectory, experience.rows, ids)

        def gather(harvests: Any, faults: Fault) -> tuple[Any, Fault]:
            joined = jax.tree.map(lambda x: x.reshape(x.shape[0], -1, *x.shape[3:]), harvests)
            return joined, first_of_rounds(faults, s.unroll)

        store = algorithm.store.split(self.groups)
        begin: tuple[Node, ...] = (self._reset(),) if s.episodic else ()
        if type(algorithm).ready is not Algorithm.ready:
            begin += (Op("act", ready, ("acting", "memory", "root", "act_clock"), ("memory",)),)
        steps = (*self._step_nodes(), *self._record())
        unroll: tuple[Node, ...] = (
            *begin,
            *self._keys(s.unroll),
            Repeat("t", s.unroll, steps, {"transition": "trajectory"}),
        )
        once, fault = ("experience", "report_act") if s.rounds == 1 else ("harvest", "fault")
        digested = Op("act", digest, ("acting", "memory", "trajectory", "ids"), (once, "memory", fault))
        if s.rounds > 1:
            unroll = (Repeat("r", s.rounds, (*unroll, digested), {"harvest": "harvests", "fault": "faults"}),)
            digested = Op("act", gather, ("harvests", "faults"), ("experience", "report_act"))
        return (
            self._no_tally(),
            *unroll,
            Op("env", partial(total, steps=s.steps), ("tally",), ("report_env",)),
            digested,
            Op("store", lambda b, e: (jax.vmap(store.put)(b, e),), ("buffer", "experience"), ("buffer",))
            if store.persistent
            else Op("store", lambda e: (store.put((), e),), ("experience",), ("handed",), WIRING),
        )

    def learn(self) -> Repeat:
        """Draws, epochs and minibatches: from the store to new params."""
        algorithm, s = self.algorithm, self.algorithm.schedule
        store = algorithm.store.split(self.groups)
        if store.prioritised and s.epochs * s.minibatches > 1:
            raise TesseraError(
                f"{algorithm.name}: a prioritised store needs 1 epoch and 1 minibatch per draw, not {s.epochs} and "
                f"{s.minibatches}: priorities are updated once per draw (raise `draws` instead)"
            )

        def sample(buffer: Any, root: jax.Array, ids: jax.Array, clock: jax.Array) -> tuple[Any, Any]:
            return jax.vmap(store.sample)(buffer, derive_each(root, "sample", clock, ids)), later(clock, 1)

        def prepare(view: View, samples: Any) -> tuple[Any, Any]:
            return jax.vmap(lambda x: algorithm.tuned_by(view.clock).prepare(view, x))(samples)

        def shuffle(batch: Any, root: jax.Array, ids: jax.Array, clock: jax.Array) -> tuple[Any]:
            rows = rows_per_group(batch, s.minibatches, algorithm.name)
            order = jax.vmap(lambda k: permutation(k, rows))(derive_each(root, "shuffle", clock, ids))
            return (order.reshape(order.shape[0], s.minibatches, -1),)

        def lags(view: View, samples: Any) -> tuple[Any]:
            version = jnp.zeros((), jnp.int32) if samples.version is None else samples.version
            behind = (view.clock.applies - version) / (s.applies * self.together)
            return (jnp.stack([behind.mean(), behind.max()]),)

        def absorb(state: State, summary: Any, *own: Contribution) -> tuple[Any, ...]:
            summary = summary.summary if self.solo else summary
            learner = algorithm.tuned_by(state.clock)
            mine = [learner.absorb(state._replace(statistics=o.statistics), summary).statistics for o in own]
            return learner.absorb(state, summary), *(o._replace(statistics=m) for o, m in zip(own, mine, strict=True))

        epoch: tuple[Node, ...] = (
            Repeat("m", s.minibatches, self._minibatch(), {"metrics": "metrics_m", "squares": "squares_m"}),
        )
        if s.minibatches > 1:
            epoch = (Op("grad", shuffle, ("batch", "root", "group_ids", "grad_clock"), ("order",)), *epoch)
        absorbing: tuple[Node, ...] = ()
        if algorithm.absorbs:
            source = "gradients" if self.solo else "summary"
            own = ("contribution",) if self.exchange == "shared" else ()
            absorbing = (Op("apply", absorb, ("state", source, *own), ("state", *own)), self._view())
        buffer = "buffer" if store.persistent else "handed"
        body = (
            Op("store", sample, (buffer, "root", "group_ids", "store_clock"), ("samples", "store_clock")),
            Op("grad", lags, ("view", "samples"), ("lags",)),
            Op("grad", prepare, ("view", "samples"), ("batch", "summary")),
            Repeat("e", s.epochs, epoch, {"metrics_m": "metrics_e", "squares_m": "squares_e"}),
            *absorbing,
        )
        stacks = {"metrics_e": "metrics_d", "squares_e": "squares_d", "lags": "lags_d"}
        return Repeat("d", s.draws, body, stacks)

    def publish(self) -> tuple[Node, ...]:
        """The end of an update: params for `act`, and reports for the driver."""

        def report(metrics: Any, lags: jax.Array) -> tuple[Learned]:
            broken_at = jax.tree.map(lambda x: first_broken(x.reshape(-1)), metrics)
            return (Learned(jax.tree.map(jnp.mean, metrics), broken_at, lags[:, 0].mean(), lags[:, 1].max()),)

        def guard(state: State, squares: jax.Array, tensors: Any) -> tuple[Guard]:
            squares = squares.reshape(-1, squares.shape[-1])
            return (Guard(squares.sum(0), first_broken(squares), squared_sums(state.params, tensors)),)

        def deliver(view: View, queue: tuple[View, ...]) -> tuple[View, tuple[View, ...]]:
            return queue[0], (*queue[1:], view)

        reports = (
            Op("grad", report, ("metrics_d", "lags_d"), ("report_grad",)),
            Op("apply", guard, ("state", "squares_d", "tensors"), ("report_apply",)),
        )
        fresh = "published" if self.lag else "acting"
        nodes = (*reports, Op("apply", lambda view: (acting(view),), ("view",), (fresh,), floating=True))
        if not self.lag:
            return nodes
        return (*nodes, Op("act", deliver, ("published", "acting_queue"), ("acting", "acting_queue"), WIRING))

    def _step_nodes(self) -> tuple[Node, ...]:
        algorithm = self.algorithm

        def observe(timesteps: Timestep) -> tuple[Timestep]:
            return (timesteps._replace(final=None, final_legal=None, final_player=None),)

        def act(view: View, memory: Any, seen: Timestep, keys: jax.Array, t: Any) -> tuple[Any, ...]:
            actor = algorithm.tuned_by(view.clock)
            if self.greedy:
                return *over_envs(lambda *x: actor.greedy(view, *x))(memory, seen, keys[t]), ()
            return over_envs(lambda *x: actor.act(view, *x))(memory, seen, keys[t])

        reads = ("acting", "memory", "observed", "act_keys", "t")
        return (
            Op("act", observe, ("timesteps",), ("observed",), WIRING),
            Op("act", act, reads, ("actions", "memory", "extras")),
            self._step(),
        )

    def _record(self) -> tuple[Node, ...]:
        def record(seen: Timestep, action: Any, extras: Any, then: Timestep) -> tuple[Transition]:
            return (recorded(seen, action, extras, then),)

        counted = count if self._kind == HOST else _flattened(count)
        return (
            Op("env", counted, ("tally", "episode_step"), ("tally",), self._kind),
            Op("act", record, ("observed", "actions", "extras", "timesteps"), ("transition",), WIRING),
        )

    def _no_tally(self) -> Op:
        if self._kind == HOST:
            return Op("env", partial(no_tally, masks=self._masks), ("episode",), ("tally",), HOST)

        def begin(episode: Episode, state: Any) -> tuple[Any]:
            info = jax.eval_shape(lambda s: self._info(jax.tree.map(lambda x: x[0, 0], s)), state)
            return no_tally(episode, masks=False, names=info)

        return Op("env", begin, ("episode", "env_state"), ("tally",))

    def _info(self, state: Any) -> dict[str, Any]:
        """Numbers that a compiled environment tells of the step that led to a state; an evaluation reads none."""
        env: Any = self.env
        return {} if self.greedy else numbers_in(env.info(state), env.spec.agents)

    @property
    def _masks(self) -> bool:
        """Whether some steps do not count."""
        return isinstance(self.env, HostEnvironment) and self.env.masks

    @property
    def _kind(self) -> str:
        """How Ops of `env` run."""
        return HOST if isinstance(self.env, HostEnvironment) else TRACED

    def _keys(self, steps: int) -> tuple[Node, ...]:
        """Derive the keys of all steps of an unroll, [T, G, n], at once: a hash within the loop costs far more."""

        def derive_steps(root: Any, purpose: str, clock: Any, ids: Any) -> jax.Array:
            times = jnp.arange(steps, dtype=jnp.uint32)
            return jax.vmap(lambda t: derive_each(root, purpose, later(clock, t), ids))(times)

        def act_keys(root: Any, ids: Any, clock: Any) -> tuple[Any, Any]:
            return derive_steps(root, "act", clock, ids), later(clock, steps)

        def env_keys(root: Any, ids: Any, clock: Any) -> tuple[Any, Any]:
            keys = derive_steps(root, "env", clock, ids)
            both = jax.vmap(jax.random.split)(keys.reshape(-1)).reshape(*keys.shape, 2)
            return both, later(clock, steps)

        nodes: tuple[Node, ...] = (Op("act", act_keys, ("root", "ids", "act_clock"), ("act_keys", "act_clock")),)
        if not isinstance(self.env, HostEnvironment):
            nodes += (Op("env", env_keys, ("root", "ids", "env_clock"), ("env_keys", "env_clock")),)
        return nodes

    def _described(self, timestep: Timestep, state: Any) -> Timestep:
        """What a compiled environment says of the state that an observation is of."""
        env: Any = self.env
        kept = env.position(state) if self.algorithm.reads_state else None
        return timestep._replace(alive=env.alive(state), legal=env.legal(state), player=env.player(state), state=kept)

    def _reset(self) -> Op:
        env = self.env
        if isinstance(env, HostEnvironment):

            def host_reset(vector: Any) -> tuple[Any, ...]:
                timestep = call_environment(env.name, lambda: "in reset()", vector.reset)
                return vector, timestep, no_episode(timestep, np)

            return Op("env", host_reset, ("env_state",), ("env_state", "timesteps", "episode"), HOST)

        def reset(root: Any, ids: Any, clock: Any) -> tuple[Any, ...]:
            state, observation = over_envs(env.reset)(derive_each(root, "reset", clock, ids))
            nothing = jnp.zeros(ids.shape, bool)
            reward = jnp.zeros((*ids.shape, *env.spec.reward_shape), jnp.result_type(float))
            timestep = Timestep(observation, reward, nothing, nothing, observation)
            timestep = over_envs(self._described)(timestep, state)
            timestep = timestep._replace(final_legal=timestep.legal, final_player=timestep.player)
            return state, timestep, no_episode(timestep, jnp)

        return Op("env", reset, ("root", "ids", "env_clock"), ("env_state", "timesteps", "episode"))

    def _step(self) -> Op:
        env, bound = self.env, bounded(self.env)
        writes = ("env_state", "timesteps", "episode", "episode_step")
        if isinstance(env, HostEnvironment):

            def host_step(vector: Any, actions: Any, episode: Episode) -> tuple[Any, ...]:
                vector.played += 1
                when = partial("in step {:,}".format, vector.played)
                timestep = call_environment(env.name, when, vector.step, bound(np.asarray(actions), np))
                return vector, timestep, *account(episode, timestep, np)

            return Op("env", host_step, ("env_state", "actions", "episode"), writes, HOST)

        def one(state: Any, action: Any, keys: jax.Array) -> tuple[Any, Timestep, Any]:
            key_step, key_reset = keys[0], keys[1]
            state, final, reward, terminated, truncated = env.step(state, bound(action, jnp), key_step)
            over = terminated | truncated
            ended = {"final_legal": env.legal(state), "final_player": env.player(state)}
            info = self._info(state)
            fresh, first = env.restart(state, key_reset)
            state, observation = jax.tree.map(lambda a, b: jnp.where(over, a, b), (fresh, first), (state, final))
            timestep = Timestep(observation, reward, terminated, truncated, final, **ended)
            return state, self._described(timestep, state), info

        def step(state: Any, actions: Any, episode: Episode, keys: jax.Array, t: Any) -> tuple[Any, ...]:
            state, timestep, info = over_envs(one)(state, actions, keys[t])
            episode, played = _flattened(partial(account, xp=jnp))(episode, timestep)
            return state, timestep, episode, played._replace(info=info or None)

        return Op("env", step, ("env_state", "actions", "episode", "env_keys", "t"), writes)

    def _view(self) -> Op:
        return Op("apply", lambda state: (published(state),), ("state",), ("view",))

    def _minibatch(self) -> tuple[Node, ...]:
        algorithm, s = self.algorithm, self.algorithm.schedule
        store = algorithm.store.split(self.groups)

        def gradient(
            view: View, batch: Any, summary: Any, root: Any, clock: Any, ids: jax.Array, *more: Any
        ) -> tuple[Any, ...]:
            numbers = more[0][:, more[1]] if where else None
            picked = jax.tree.map(flat_rows, batch) if numbers is None else pick(batch, numbers)
            if algorithm.noisy_loss:
                numbers = all_rows(batch) if numbers is None else numbers
                key = derive_rows(root, "gradient", clock, ids, numbers)
            else:
                key = derive(root, "gradient", clock)
            gradients, feedback = algorithm.tuned_by(view.clock).gradient(view, picked, summary, key)
            if algorithm.parts:
                same_labels(gradients, algorithm.parts, f"`gradient` of {algorithm.name} makes")
            made = gradients if self.threshold else ready_to_send(gradients, summary, view)
            return made, feedback.metrics, feedback.priorities, later(clock, 1)

        def encode(gradients: Any, summary: Any, view: View, residual: Any) -> tuple[Any, Any]:
            # clipped first, or the rest of one large gradient would be sent for a long time
            gradients = algorithm.tuned_by(view.clock).clipped(gradients, norms.step(squared_sums(gradients)))
            sent, residual = threshold_code(gradients, residual, self.threshold)
            return ready_to_send(sent, summary, view), residual

        def ready_to_send(gradients: Any, summary: Any, view: View) -> Any:
            if not self.solo:
                return gradients
            absorbed = summary if algorithm.absorbs else ()
            return SoloGradient(gradients, squared_sums(gradients), absorbed, algorithm.due(view.clock))

        def address(samples: Any, rows: jax.Array) -> tuple[Any]:
            return ((samples.index, rows.reshape(samples.index.shape)),)

        def refresh(buffer: Any, priorities: Any) -> tuple[Any]:
            return (jax.vmap(store.update)(buffer, *priorities),)

        def squares(gradients: Any, tensors: Any) -> tuple[jax.Array]:
            alone = isinstance(gradients, SoloGradient)
            return (gradients.squares if alone else squared_sums(gradients, tensors),)

        def apply(state: State, gradients: Any, squares: jax.Array, *summary: Any) -> tuple[State]:
            step = norms.step(squares)
            if isinstance(gradients, SoloGradient):  # it was made with params that may be older
                step = step._replace(due=gradients.due, summary=gradients.summary)
            else:
                step = step._replace(due=algorithm.due(state.clock), summary=summary[0] if summary else ())
            state = algorithm.tuned_by(state.clock).apply(state, gradient_values(gradients), step)
            return (state._replace(clock=state.clock.next()),)

        norms = PartNorms.of(algorithm)
        feed: tuple[Node, ...] = ()
        coding: tuple[Node, ...] = ()
        if store.prioritised:
            feed = (
                Op("grad", address, ("samples", "row_priorities"), ("priorities",)),
                Op("store", refresh, ("buffer", "priorities"), ("buffer",)),
            )
        where = ("order", "m") if s.minibatches > 1 else ()
        reads = ("view", "batch", "summary", "root", "grad_clock", "group_ids", *where)
        absorbed = ("summary",) if algorithm.absorbs and not self.solo else ()
        made = "gradients"
        if self.threshold:  # what a replica keeps for later is of the mean over its devices
            made, writes = "uncoded", ("gradients", "residual")
            coding = (Op("grad", encode, ("uncoded", "summary", "view", "residual"), writes, whole=True),)
        return (
            Op("grad", gradient, reads, (made, "metrics", "row_priorities", "grad_clock")),
            *coding,
            *feed,
            Op("apply", squares, ("gradients", "tensors"), ("squares",)),
            Op("apply", apply, ("state", "gradients", "squares", *absorbed), ("state",)),
            self._view(),
        )


def recorded(seen: Timestep, action: Any, extras: Any, then: Timestep) -> Transition:
    """The step from one timestep to the next, as learning sees it."""
    end = (then.reward, then.terminated, then.truncated, then.final, then.valid)
    more = {"alive": then.alive, "legal": seen.legal, "next_legal": then.final_legal}
    return Transition(seen.observation, action, extras, *end, **more, player=seen.player, turn=then.final_player)


def by_movers(trajectory: Transition) -> Transition:
    """Steps of a game as the player sees them who moved: the own reward, and whether the other one moves next."""
    player = trajectory.player
    if player is None:
        return trajectory
    reward = jnp.take_along_axis(trajectory.reward, player[..., None], axis=-1)[..., 0]
    turn = jnp.where(trajectory.turn == player, 1, -1).astype(reward.dtype)
    return trajectory._replace(reward=reward, turn=turn)


def first_broken(x: jax.Array) -> jax.Array:
    """Index on the leading axis of the first entry that is not finite; the length of the axis if all are."""
    finite = jnp.isfinite(x)
    return jnp.where(finite.all(0), x.shape[0], jnp.argmin(finite, axis=0)).astype(jnp.int32)


def bounded(env: Environment) -> Callable[[Any, Any], Any]:
    """Make the function that clips actions to the bounds of the environment."""
    actions = env.spec.actions
    if not isinstance(actions, Box):
        return lambda action, xp: action
    low, high = actions.bounds()
    return lambda action, xp: xp.clip(action, low, high)
