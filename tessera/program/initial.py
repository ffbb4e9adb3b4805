"""The slots that a fragment's replica begins with: derived from the seed and its groups, never sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from tessera.algorithms.base import Algorithm, Clock, State, Transition
from tessera.envs.base import Environment, HostEnvironment, Timestep
from tessera.graph.plan import Plan
from tessera.program.compile import partition
from tessera.program.keys import derive, root_key
from tessera.program.training import Training, acting, over_envs, published


def initial_state(algorithm: Algorithm, root: jax.Array, horizon: Any) -> State:
    """Make the state that a run starts from."""
    state = algorithm.start(algorithm.init(derive(root, "init")))
    return state._replace(clock=Clock(jnp.int32(0), jnp.asarray(horizon, jnp.int32)))


def initial_slots(
    training: Training, plan: Plan, index: int, replica: int, seed: int, horizon: int, mesh: Mesh | None
) -> dict[str, Any]:
    """Make the slots of one replica, all arrays in one compiled call."""
    algorithm, env = training.algorithm, training.env
    placed = plan.fragments[index]
    operators = placed.operators
    groups = np.asarray(placed.groups[replica], np.int32)
    size = plan.envs_per_group
    ids = groups[:, None] * size + np.arange(size, dtype=np.int32)

    def make(root: jax.Array, group_ids: Any, ids: Any, horizon: Any) -> dict[str, Any]:
        state = initial_state(algorithm, root, horizon)
        slots = {"root": root, "group_ids": group_ids, "ids": ids}
        clocks = {"env": "env_clock", "act": "act_clock", "store": "store_clock", "grad": "grad_clock"}
        slots |= {clock: jnp.int32(0) for operator, clock in clocks.items() if operator in operators}
        if "act" in operators:
            slots["memory"] = over_envs(algorithm.memory)(ids)
            slots["acting"] = acting(published(state))
            if training.lag:
                slots["acting_queue"] = (slots["acting"],) * training.lag
        store = algorithm.store.split(plan.groups)
        if "store" in operators and store.persistent:
            experience = experience_shape(algorithm, env)
            steps = jax.tree.leaves(experience.rows)[0].shape[0]
            row = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), experience.rows)
            slots["buffer"] = jax.vmap(lambda _: store.init(row, steps * size))(group_ids)
        if "apply" in operators:
            slots["state"] = state
        elif "grad" in operators:
            slots["view"] = published(state)
        return slots

    arguments = (root_key(seed), groups, ids, np.int32(horizon))
    slots = jax.jit(make, out_shardings=_shardings(make, arguments, mesh))(*arguments)
    if "env" in operators and isinstance(env, HostEnvironment):
        slots |= {"env_state": env.open(ids, seed), "env_clock": np.int32(0)}
    return slots


def _shardings(make: Callable[..., dict[str, Any]], arguments: tuple[Any, ...], mesh: Mesh | None) -> Any:
    if mesh is None:
        return None
    return {slot: NamedSharding(mesh, partition(slot)) for slot in jax.eval_shape(make, *arguments)}


def timestep_shape(env: Environment) -> Timestep:
    """Shapes and dtypes of one environment's timestep."""
    spec, host = env.spec, isinstance(env, HostEnvironment)
    observation = jax.ShapeDtypeStruct(spec.observation_shape, jnp.dtype(spec.observation_dtype))
    flag = jax.ShapeDtypeStruct((), jnp.dtype(bool))
    reward = jax.ShapeDtypeStruct((), jnp.dtype(jnp.float32) if host else jnp.result_type(float))
    valid = flag if isinstance(env, HostEnvironment) and env.masks else None
    return Timestep(observation, reward, flag, flag, observation, valid)


def experience_shape(algorithm: Algorithm, env: Environment) -> Any:
    """Shapes and dtypes of what one environment's unroll becomes, [T, ...]."""

    def play(key: jax.Array, timestep: Timestep) -> Any:
        view = acting(published(initial_state(algorithm, key, 1)))
        memory = algorithm.ready(view, algorithm.memory(jnp.int32(0)), key)
        action, memory, extras = algorithm.act(view, memory, timestep._replace(final=None), key)
        end = (timestep.reward, timestep.terminated, timestep.truncated, timestep.final, timestep.valid)
        one = Transition(timestep.observation, action, extras, *end)
        unroll = algorithm.schedule.unroll
        trajectory = jax.tree.map(lambda x: jnp.broadcast_to(x, (unroll, *jnp.shape(x))), one)
        return algorithm.digest(view, memory, trajectory)[0]

    return jax.eval_shape(play, jax.random.key(0), timestep_shape(env))
