"""`jaxmarl:` environments: several agents in pure JAX, so they are traced into the fragment that holds them.

JaxMARL's `done` does not say why an episode ended. Particle worlds (MPE), Overcooked and the coin game end by their
time limit alone, which is truncation. SMAX, the switch riddle and JaxNav also terminate: their own time limit is
disabled, so that `done` means termination only, and the limit is applied here.

An episode has `max_steps` steps, as the option says. JaxMARL 0.2's own MPE and SMAX play one more (26 for 25),
because they compare the time from before the step.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tessera.envs.base import Actions, DeviceEnvironment, MultiDiscrete, Spec, missing_extra, same_for_all
from tessera.envs.drawing.shapes import Artist
from tessera.envs.gymnax import actions_of, settle
from tessera.errors import TesseraError, unknown_name

TIMED = ("MPE_", "overcooked", "coin_game")
"""Prefixes of the names of environments that end by their time limit alone."""

TERMINATING = ("SMAX", "HeuristicEnemySMAX", "LearnedPolicyEnemySMAX", "switch_riddle", "jaxnav")
"""Prefixes of the names of environments that also terminate."""

REFUSED = {
    "storm": "it gives arrays where others give one entry for each agent",
    "hanabi": "its players take turns, and agents here act at the same time",
    "JaxRobotarium": "it needs jaxrobotarium, which JaxMARL does not install",
}
"""Prefix of a name -> why it is refused; the rest are deprecated Brax environments."""

NEVER = np.iinfo(np.int32).max


def import_jaxmarl() -> ModuleType:
    """Import JaxMARL without its Brax environments and without what it prints.

    The Brax environments, which upstream calls deprecated, take a second to import and change `sys.stdout`. Their
    stand-in is removed from `sys.modules` again.
    """
    brax = "jaxmarl.environments.mabrax"
    stand_in = brax not in sys.modules
    if stand_in:
        sys.modules[brax] = None  # type: ignore[assignment]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            import jaxmarl
    finally:
        if stand_in:
            del sys.modules[brax]
    return jaxmarl


def make(name: str, **options: Any) -> JaxMARLEnvironment:
    """Make a registered JaxMARL environment; options go to its class. SMAX also takes a scenario's name."""
    try:
        jaxmarl = import_jaxmarl()
    except ImportError as error:
        raise missing_extra("jaxmarl", "jaxmarl", error) from error
    if name not in jaxmarl.registered_envs:
        known = [known for known in jaxmarl.registered_envs if known.startswith(TIMED + TERMINATING)]
        raise unknown_name("JaxMARL environment", name, known)
    if not name.startswith(TIMED + TERMINATING):
        why = next((why for start, why in REFUSED.items() if name.startswith(start)), "upstream calls it deprecated")
        raise TesseraError(f"jaxmarl:{name} cannot be played here, because {why}: choose another")
    given = dict(options)
    if isinstance(options.get("scenario"), str):
        from jaxmarl.environments.smax.smax_env import MAP_NAME_TO_SCENARIO

        if options["scenario"] not in MAP_NAME_TO_SCENARIO:
            raise unknown_name("SMAX scenario", options["scenario"], MAP_NAME_TO_SCENARIO)
        options["scenario"] = MAP_NAME_TO_SCENARIO[options["scenario"]]
    env = jaxmarl.make(name, **options)
    if name.startswith("MPE_"):
        _check_options(name, env, options)
    return JaxMARLEnvironment(name, env, timed=name.startswith(TIMED), options=given)


def _check_options(name: str, env: Any, options: dict[str, Any]) -> None:
    """Refuse options that no constructor takes: particle worlds ignore unknown ones."""
    makers = [vars(kind)["__init__"] for kind in type(env).__mro__ if "__init__" in vars(kind)]
    known = {parameter for maker in makers for parameter in inspect.signature(maker).parameters}
    known -= {"self", "args", "kwargs"}
    for option in options:
        if option not in known and not hasattr(env, option):
            raise unknown_name(f"option of jaxmarl:{name}", option, known)


class JaxMARLEnvironment(DeviceEnvironment):
    """One JaxMARL environment, without JaxMARL's autoreset; the leading axis is for agents, in JaxMARL's order."""

    def __init__(self, name: str, env: Any, timed: bool, options: dict[str, Any] | None = None) -> None:
        self.name, self._options = f"jaxmarl:{name}", options or {}
        self._env, self._timed, self._agents = env, timed, tuple(env.agents)
        world = getattr(env, "_env", env)  # SMAX with a built-in enemy is wrapped
        self._limit = getattr(world, "max_steps", None)
        if self._limit is not None and not timed:
            world.max_steps = NEVER
        actions = same_for_all(
            self.name, {agent: _actions(self.name, env.action_space(agent)) for agent in self._agents}
        )
        # From a traced reset, because the shapes of the spaces are not always those of observations.
        shape = jax.eval_shape(self.reset, jax.random.key(0))[1].shape
        self.spec = Spec(shape, "float32", actions, agents=len(self._agents))

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process makes the environment anew, with its own import of JaxMARL."""
        return _remake, (self.name, self.spec.precision, self._options)

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Start an episode: (state, observation)."""
        observations, state = self._env.reset(key)
        return settle(state, state), self._stack(observations)

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Play one step: (state, observation, reward [agents], terminated, truncated)."""
        actions = dict(zip(self._agents, action, strict=True))
        observations, stepped, rewards, done, _ = self._env.step_env(key, state, actions)
        stepped = settle(stepped, state)
        ended = jnp.asarray(done["__all__"], bool)
        terminated = jnp.zeros_like(ended) if self._timed else ended
        late = ended if self._limit is None else _world(stepped).step >= self._limit
        dtype = jnp.result_type(float)
        reward = jnp.stack([jnp.asarray(rewards[agent], dtype).reshape(()) for agent in self._agents])
        return stepped, self._stack(observations), reward, terminated, late & ~terminated

    def alive(self, state: Any) -> Any:
        """Which agents act in `state`, bool [agents]; None if no agent ever drops out."""
        world = _world(state)
        if hasattr(world, "unit_alive"):
            return world.unit_alive[: len(self._agents)]
        if hasattr(world, "move_term"):  # JaxNav's robots stop where they collide or, with `evaporating`, arrive
            return ~(world.done | world.move_term)
        return None

    def artist(self, height: int) -> Artist:
        """What draws its states."""
        from tessera.envs.drawing.jaxmarl import artist_of

        del height
        return artist_of(self.name, self._env)

    def _stack(self, observations: Any) -> jax.Array:
        """Float32 [agents, ...]; observations of different shapes become vectors, padded with zeros."""
        arrays = [jnp.asarray(observations[agent], jnp.float32) for agent in self._agents]
        if len({x.shape for x in arrays}) > 1:
            longest = max(x.size for x in arrays)
            arrays = [jnp.pad(x.ravel(), (0, longest - x.size)) for x in arrays]
        return jnp.stack(arrays)


def _remake(name: str, precision: str, options: dict[str, Any]) -> JaxMARLEnvironment:
    env = make(name.removeprefix("jaxmarl:").partition("?")[0], **options)
    env.name, env.spec = name, replace(env.spec, precision=precision)
    return env


def _world(state: Any) -> Any:
    """The state of the environment, without the memory of a built-in enemy."""
    return getattr(state, "state", state)


def _actions(name: str, space: Any) -> Actions:
    if hasattr(space, "num_categories") and not hasattr(space, "n"):
        return MultiDiscrete(tuple(int(n) for n in space.num_categories))
    return actions_of(name, space)
