"""The slots that a replica starts with: derived from the seed and its groups, never sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from tessera.algorithms.contract import Algorithm, Clock, State
from tessera.envs.base import Environment, HostEnvironment, Timestep
from tessera.program.exchange import shards_of
from tessera.program.keys import clock_at, derive, root_key
from tessera.program.nodes import member_axis
from tessera.program.overlap.double_buffer import open_environments
from tessera.program.peers import Contribution
from tessera.program.sharding import shardings
from tessera.program.training_program import Training, acting, by_movers, over_envs, published, recorded

if TYPE_CHECKING:  # whoever only acts plans nothing
    from tessera.graph.plan import Plan


def initial_state(algorithm: Algorithm, root: jax.Array, horizon: Any, first: tuple[Any, Any] | None = None) -> State:
    """Make the state that a run starts from; `first` are params and statistics instead of the algorithm's own."""
    params, statistics = first or (algorithm.init(derive(root, "init")), None)
    state = algorithm.start(params)
    state = state if statistics is None else state._replace(statistics=statistics)
    real = jnp.result_type(float)
    tuned = {name: jnp.asarray(getattr(algorithm, name), real) for name in algorithm.tuned}
    return state._replace(clock=Clock(jnp.int32(0), jnp.asarray(horizon, real), jnp.int32(0), tuned or ()))


def initial_slots(
    training: Training,
    plan: Plan,
    index: int,
    replica: int,
    seed: int,
    horizon: int,
    mesh: Mesh | None,
    environment_seed: int | None = None,
) -> dict[str, Any]:
    """Make the slots of one replica; host environments are seeded by `environment_seed`, or by `seed` too."""
    make, learned, ids = _maker(training, plan, index, replica)
    root = root_key(seed)
    state = _starter(training.algorithm, mesh)(root, np.asarray(horizon, jnp.result_type(float)))
    arguments = (root, learned, ids, state)
    slots = jax.jit(make, out_shardings=_shardings(make, arguments, mesh))(*arguments)
    env = training.env
    if "env" in plan.fragments[index].operators and isinstance(env, HostEnvironment):
        seeded = seed if environment_seed is None else environment_seed
        slots |= {"env_state": open_environments(env, ids, seeded), "env_clock": clock_at(0)}
    return slots


def population_slots(training: Training, plan: Plan, seeds: Sequence[int], horizon: int) -> dict[str, Any]:
    """The slots of a population, one member for each seed; all operators are in its one fragment."""
    make, learned, ids = _maker(training, plan, 0, 0)
    roots = jnp.stack([root_key(seed) for seed in seeds])
    ends = np.asarray(horizon, jnp.result_type(float))
    # one after the other: a batched QR decomposition, of which orthogonal weights are made, takes minutes on a CPU
    start = _starter(training.algorithm, None)
    states = jax.jit(lambda roots: jax.lax.map(lambda root: start(root, ends), roots))(roots)
    like = jax.eval_shape(make, roots[0], learned, ids, jax.tree.map(lambda x: x[0], states))
    members = jax.vmap(make, in_axes=(0, None, None, 0), out_axes={slot: member_axis(slot) for slot in like})
    return jax.jit(members)(roots, learned, ids, states)


def initial_shapes(training: Training, plan: Plan, index: int, replica: int) -> dict[str, Any]:
    """Shapes and dtypes of a replica's first slots, without those of host environments."""
    make, learned, ids = _maker(training, plan, index, replica)
    root = jax.random.key(0)
    state = jax.eval_shape(lambda key: initial_state(training.algorithm, key, 1), root)
    return jax.eval_shape(make, root, learned, ids, state)


def _maker(
    training: Training, plan: Plan, index: int, replica: int
) -> tuple[Callable[..., dict[str, Any]], np.ndarray, np.ndarray]:
    """The traceable function that makes a replica's slots, and the groups and environments that the replica holds."""
    algorithm, env = training.algorithm, training.env
    placed = plan.fragments[index]
    operators = placed.operators
    groups = np.asarray(placed.held("env")[replica], np.int32)
    learned = np.asarray(placed.held("grad")[replica], np.int32)
    size = plan.envs_per_group
    ids = groups[:, None] * size + np.arange(size, dtype=np.int32)

    def make(root: jax.Array, group_ids: Any, ids: Any, state: State) -> dict[str, Any]:
        state = jax.tree.map(jnp.copy, state)  # its own buffers, since programs reuse those that they are given
        slots = {"root": root, "group_ids": group_ids, "ids": ids}
        clocks = {"env": "env_clock", "act": "act_clock", "store": "store_clock", "grad": "grad_clock"}
        slots |= {clock: jnp.zeros(2, jnp.uint32) for operator, clock in clocks.items() if operator in operators}
        if "act" in operators:
            slots["memory"] = over_envs(algorithm.memory)(ids)
            slots["acting"] = acting(published(state))
            if training.lag:
                slots["acting_queue"] = (slots["acting"],) * training.lag
        store = algorithm.store.split(training.groups)
        if "store" in operators and store.persistent:
            experience = experience_shape(algorithm, env)
            steps = jax.tree.leaves(experience.rows)[0].shape[0]
            row = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), experience.rows)
            slots["buffer"] = jax.vmap(lambda _: store.init(row, steps * size))(group_ids)
        if "grad" in operators and training.threshold:
            slots["residual"] = jax.tree.map(jnp.zeros_like, state.params)
        if "apply" in operators:
            slots |= {"state": state, "tensors": ()}
            if placed.sharded:
                shards = shards_of(algorithm, placed.replicas)
                part = algorithm.start(shards.traced_part(state.params, replica))
                slots |= {"state": part._replace(clock=state.clock), "tensors": shards.tensors(replica)}
            if training.exchange == "shared":
                slots["contribution"] = Contribution(state.clock.applies, state.statistics)
            if training.every > 1:
                slots["update_clock"] = jnp.zeros(2, jnp.uint32)
        elif "grad" in operators:
            slots["view"] = published(state)
        return slots

    return make, learned, ids


def _starter(algorithm: Algorithm, mesh: Mesh | None) -> Callable[..., State]:
    """A compiled function that makes the state. It takes most of the compile time, and all replicas share it."""
    first = None if algorithm.first_params is None else algorithm.first_params.trees
    algorithm = replace(algorithm, first_params=None)
    try:
        start = _compiled_starter(algorithm, mesh)
    except TypeError:  # a field of the algorithm cannot be hashed
        start = _compiled_starter.__wrapped__(algorithm, mesh)
    return partial(start, first=first)


@cache
def _compiled_starter(algorithm: Algorithm, mesh: Mesh | None) -> Callable[..., State]:
    make = partial(initial_state, algorithm)
    shapes = jax.eval_shape(make, jax.random.key(0), 0.0)
    return jax.jit(make, out_shardings=shardings(mesh, "state", shapes) if mesh else None)


def _shardings(make: Callable[..., dict[str, Any]], arguments: tuple[Any, ...], mesh: Mesh | None) -> Any:
    if mesh is None:
        return None
    return {slot: shardings(mesh, slot, shape) for slot, shape in jax.eval_shape(make, *arguments).items()}


def clocks_at(training: Training, update: int) -> dict[str, np.ndarray]:
    """The clocks of all operators after `update` updates."""
    s = training.algorithm.schedule
    steps = (s.warmup + update) * s.steps
    clocks = {
        "env_clock": steps,
        "act_clock": steps,
        "store_clock": update * s.draws,
        "grad_clock": update * s.applies,
    }
    return {name: clock_at(value) for name, value in {**clocks, "update_clock": update}.items()}


def timestep_shape(env: Environment, with_state: bool = False) -> Timestep:
    """Shapes and dtypes of one environment's timestep; of its state too if an algorithm reads it."""
    spec, host = env.spec, isinstance(env, HostEnvironment)
    observation = jax.eval_shape(lambda: spec.zeros(jnp))
    flag = jax.ShapeDtypeStruct((), jnp.dtype(bool))
    agents = (spec.agents,) if spec.agents else ()
    reward = jax.ShapeDtypeStruct(spec.reward_shape, jnp.dtype(jnp.float32) if host else jnp.result_type(float))
    valid = flag if isinstance(env, HostEnvironment) and env.masks else None
    timestep = Timestep(observation, reward, flag, flag, observation, valid)
    if isinstance(env, HostEnvironment):
        alive = jax.ShapeDtypeStruct(agents, jnp.dtype(bool)) if env.mortal else None
        legal = jax.ShapeDtypeStruct(spec.mask_shape, jnp.dtype(bool)) if spec.restricted else None
        player = jax.ShapeDtypeStruct((), jnp.dtype(jnp.int32)) if spec.players > 1 else None
        return timestep._replace(alive=alive, legal=legal, final_legal=legal, player=player, final_player=player)

    def described(key: jax.Array) -> Timestep:
        state, _ = env.reset(key)
        legal, player = env.legal(state), env.player(state)
        more = {"alive": env.alive(state), "legal": legal, "final_legal": legal}
        kept = env.position(state) if with_state else None
        return timestep._replace(**more, player=player, final_player=player, state=kept)

    return jax.eval_shape(described, jax.random.key(0))


def experience_shape(algorithm: Algorithm, env: Environment) -> Any:
    """Shapes and dtypes of the experience from one environment's unroll, [T, ...]."""

    def play(key: jax.Array, timestep: Timestep) -> Any:
        view = acting(published(initial_state(algorithm, key, 1)))
        memory = algorithm.ready(view, algorithm.memory(jnp.int32(0)), key)
        seen = timestep._replace(final=None, final_legal=None, final_player=None)
        action, memory, extras = algorithm.act(view, memory, seen, key)
        one = recorded(timestep, action, extras, timestep)._replace(version=jnp.int32(0))
        s = algorithm.schedule
        trajectory = by_movers(jax.tree.map(lambda x: jnp.broadcast_to(x, (s.unroll, *jnp.shape(x))), one))
        experience = algorithm.digest(view, memory, trajectory)[0]._replace(version=trajectory.version)
        return jax.tree.map(lambda x: jnp.concatenate([x] * s.rounds), experience)

    return jax.eval_shape(play, jax.random.key(0), timestep_shape(env, algorithm.reads_state))
