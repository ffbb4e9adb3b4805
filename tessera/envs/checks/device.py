"""Checks of device environments: by their shapes alone, and by playing them."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tessera.envs.base import Box, DeviceEnvironment, Discrete, MultiDiscrete
from tessera.envs.checks.findings import EnvironmentCheck, check_length, raised, shown, values_in, where
from tessera.errors import TesseraError

VALUES_NEEDED = (
    jax.errors.ConcretizationTypeError,  # and of a boolean
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.UnexpectedTracerError,
)
"""What JAX raises where Python needs the value of a traced array."""
TOGETHER = 8
"""Environments that are played at a time."""


def refuse_broken_device(env: DeviceEnvironment) -> None:
    """Refuse a device environment whose functions cannot be compiled into a program; nothing is computed."""
    name, key = env.name, jax.random.key(0)
    state, observation = values_in(_traced(env, "reset", key), "state, observation", "reset", name)
    _check_observation(env, observation, "reset")
    names = "state, observation, reward, terminated, truncated"
    action = _action_shape(env)
    stepped = values_in(_traced(env, "step", state, action, key), names, "step", name)
    _check_state(name, state, stepped[0], "step")
    _check_observation(env, stepped[1], "step")
    _check_numbers(env, *stepped[2:])
    again = values_in(_traced(env, "restart", state, key), "state, observation", "restart", name)
    _check_state(name, state, again[0], "restart")
    _check_observation(env, again[1], "restart")
    _check_mask(env, state)
    _check_info(env, state)


def play_device(env: DeviceEnvironment, report: EnvironmentCheck, steps: int, seed: int) -> None:
    """Play random actions, in several environments at once, and note what is wrong with the numbers."""
    rounds = max(1, steps // TOGETHER)

    def one(state: Any, key: Any) -> tuple[Any, Any]:
        key_action, key_step, key_reset = jax.random.split(key, 3)
        action = _random_action(env, key_action, env.legal(state))
        state, observation, reward, terminated, truncated = env.step(state, action, key_step)
        over = jnp.asarray(terminated | truncated)
        fresh, _ = env.restart(state, key_reset)
        state = jax.tree.map(lambda a, b: jnp.where(over, a, b), fresh, state)
        legal = env.legal(state)
        some = jnp.ones((), bool) if legal is None else jnp.asarray(legal).any(-1).all()
        return state, (observation, jnp.asarray(reward), jnp.asarray(terminated), jnp.asarray(truncated), some)

    @jax.jit
    def play(key: Any) -> Any:
        key_reset, key_steps = jax.random.split(key)
        state, first = jax.vmap(env.reset)(jax.random.split(key_reset, TOGETHER))
        keys = jax.random.split(key_steps, (rounds, TOGETHER))
        return first, jax.lax.scan(jax.vmap(one), jax.tree.map(jnp.asarray, state), keys)[1]

    jax.block_until_ready(play(jax.random.key(seed)))  # compiled
    begun = time.perf_counter()
    first, (observations, rewards, terminated, truncated, some) = jax.block_until_ready(play(jax.random.key(seed + 1)))
    report.seconds, report.steps = time.perf_counter() - begun, rounds * TOGETHER
    ended = np.asarray(terminated | truncated)
    report.episodes = int(ended.sum())
    _check_values(env, report, [*jax.tree.leaves(first), *jax.tree.leaves(observations)], np.asarray(rewards))
    if bool((terminated & truncated).any()):
        report.warning(
            f"{env.name} terminates and truncates in the same step, which then counts as terminated: set one of them"
        )
    if not bool(some.all()):
        report.error(
            f"legal() of {env.name} forbids every action while the episode goes on: end the episode, or allow one"
        )
    check_length(report, env.spec.time_limit, ended)


def _check_values(env: DeviceEnvironment, report: EnvironmentCheck, leaves: list[Any], rewards: np.ndarray) -> None:
    if not all(np.isfinite(np.asarray(leaf, np.float64)).all() for leaf in leaves):
        report.error(f"{env.name} observes numbers that are not finite, from which nothing can be learnt: mend them")
    if not np.isfinite(rewards).all():
        report.error(f"{env.name} gives rewards that are not finite, from which nothing can be learnt: mend them")
    bounds = env.observation_bounds
    if bounds is None or len(leaves) != 2:
        return
    low, high = bounds
    if any((np.asarray(leaf) < low - 1e-4).any() or (np.asarray(leaf) > high + 1e-4).any() for leaf in leaves):
        report.error(f"{env.name} observes numbers outside of its bounds: correct the bounds, or clip observations")


def _traced(env: DeviceEnvironment, method: str, *arguments: Any) -> Any:
    """Shapes that a method returns; refuse one that cannot be traced."""
    try:
        return jax.eval_shape(getattr(env, method), *arguments)
    except VALUES_NEEDED as error:
        raise TesseraError(
            f"{method}() of {env.name} needs the value of an array in Python{where(error)} (an if, int() or a NumPy "
            "function), and compiled code has none: use jnp.where, jax.lax.cond or jax.numpy there"
        ) from error
    except TesseraError:
        raise
    except Exception as error:
        raise TesseraError(raised(env.name, method, error)) from error


def _check_observation(env: DeviceEnvironment, observation: Any, method: str) -> None:
    """Refuse an observation that the spec does not describe."""
    spec = env.spec
    found, wanted = (str(jax.tree.structure(tree)) for tree in (observation, spec.observation))
    if found != wanted:
        raise TesseraError(
            f"{method}() of {env.name} returns observations of the form {_short(found)}, and its spec says "
            f"{_short(wanted)}: return the same dicts and tuples"
        )
    for (path, part), leaf in zip(spec.parts.items(), jax.tree.leaves(observation), strict=True):
        dtype = np.dtype(part.dtype)
        floats = jnp.issubdtype(leaf.dtype, jnp.floating) and jnp.issubdtype(dtype, jnp.floating)
        if tuple(leaf.shape) != part.shape or not (floats or leaf.dtype == dtype):
            raise TesseraError(
                f"{method}() of {env.name} returns an observation {shown(leaf.shape, leaf.dtype)}"
                f"{f' as {path}' if path else ''}, and its spec says {shown(part.shape, dtype)}: change one of them"
            )


def _check_mask(env: DeviceEnvironment, state: Any) -> None:
    """Refuse a mask of another form than the actions."""
    legal, wanted = _traced(env, "legal", state), env.spec.mask_shape
    if legal is not None and not (_is_array(legal) and tuple(legal.shape) == wanted and legal.dtype == np.bool_):
        raise TesseraError(
            f"legal() of {env.name} returns {_form(legal)}, and it must be {shown(wanted, bool)}: say of each action "
            "whether it is allowed"
        )


def _check_info(env: DeviceEnvironment, state: Any) -> None:
    """Refuse what is no dict; entries that are no numbers are only left out."""
    info = _traced(env, "info", state)
    if info is not None and not isinstance(info, dict):
        raise TesseraError(
            f"info() of {env.name} returns {_form(info)}, and it must be a dict: return each number under its name"
        )


def _check_state(name: str, start: Any, state: Any, method: str) -> None:
    """Refuse a state that has another form than that of a reset: a loop carries one form."""
    why = "and a compiled loop carries one form"
    before_it, after_it = (str(jax.tree.structure(tree)) for tree in (start, state))
    if before_it != after_it:
        raise TesseraError(
            f"{method}() of {name} returns a state with another structure than reset(), {why}: return the same tuples, "
            f"dicts and classes ({_short(after_it)} against {_short(before_it)})"
        )
    for (path, before), after in zip(jax.tree_util.tree_leaves_with_path(start), jax.tree.leaves(state), strict=True):
        grows = getattr(before, "weak_type", False) and _promoted(before, after) == after.dtype
        shrinks = _promoted(before, after) == before.dtype
        if before.shape != after.shape or not (before.dtype == after.dtype or grows or shrinks):
            leaf = jax.tree_util.keystr(path)
            raise TesseraError(
                f"{method}() of {name} returns {_form(after)} for state{leaf}, which reset() returns as "
                f"{_form(before)}, {why}: make both the same"
            )


def _check_numbers(env: DeviceEnvironment, reward: Any, terminated: Any, truncated: Any) -> None:
    wanted = env.spec.reward_shape
    if not _is_array(reward) or tuple(reward.shape) != wanted or not jnp.issubdtype(reward.dtype, jnp.floating):
        raise TesseraError(
            f"step() of {env.name} returns the reward {_form(reward)}, and it must be {shown(wanted, np.float32)}: "
            "return a real number" + (f" for each {'agent' if env.spec.agents else 'player'}" if wanted else "")
        )
    for what, flag in (("terminated", terminated), ("truncated", truncated)):
        if not _is_array(flag) or flag.shape != () or flag.dtype != np.bool_:
            raise TesseraError(
                f"step() of {env.name} returns {_form(flag)} for {what}, and it must be one boolean: compare, or use "
                "jnp.bool_"
            )


def _action_shape(env: DeviceEnvironment) -> Any:
    """Shape and dtype of the actions in one environment."""
    actions, agents = env.spec.actions, (env.spec.agents,) if env.spec.agents else ()
    if isinstance(actions, Box):
        return jax.ShapeDtypeStruct((*agents, *actions.shape), jnp.float32)
    sizes = (len(actions.choices),) if isinstance(actions, MultiDiscrete) else ()
    return jax.ShapeDtypeStruct((*agents, *sizes), jnp.int32)


def _random_action(env: DeviceEnvironment, key: Any, legal: Any) -> Any:
    """Any action, or any that is allowed."""
    actions, form = env.spec.actions, _action_shape(env)
    if isinstance(actions, Box):
        low, high = (np.clip(bound, -1e3, 1e3) for bound in actions.bounds())
        return jax.random.uniform(key, form.shape, form.dtype, low, high)
    if legal is not None:
        sizes = (actions.n,) if isinstance(actions, Discrete) else actions.choices
        parts = jnp.split(jnp.where(legal, 0.0, -jnp.inf), np.cumsum(sizes)[:-1], axis=-1)
        drawn = [jax.random.categorical(jax.random.fold_in(key, k), part) for k, part in enumerate(parts)]
        return (drawn[0] if isinstance(actions, Discrete) else jnp.stack(drawn, axis=-1)).astype(form.dtype)
    choices = actions.n if isinstance(actions, Discrete) else np.asarray(actions.choices)
    return jax.random.randint(key, form.shape, 0, choices, form.dtype)


def _promoted(before: Any, after: Any) -> Any:
    if any(jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended) for x in (before, after)):
        return before.dtype if before.dtype == after.dtype else None
    return jnp.promote_types(before.dtype, after.dtype)


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype")


def _form(x: Any) -> str:
    if not _is_array(x):
        return f"a {type(x).__name__}"
    extended = jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)
    return f"{x.dtype}{list(x.shape)}" if extended else shown(x.shape, x.dtype)


def _short(structure: str) -> str:
    text = structure.removeprefix("PyTreeDef(").removesuffix(")")
    return text if len(text) < 80 else f"{text[:77]}…"
