"""`jaxmarl:` environments: several agents in pure JAX, so they are traced into the fragment that holds them.

JaxMARL's `done` does not tell why an episode is over. Particle worlds (MPE), Overcooked and the coin game end by the
clock alone, which is truncation. SMAX, the switch riddle and JaxNav also end by what is played, which is termination:
their own clock is put out of reach, so that `done` means only that, and the limit is watched here.

An episode has `max_steps` steps, as the option says. JaxMARL 0.2's own MPE and SMAX play one more (26 for 25),
because they look at the clock from before the step.
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
from tessera.envs.gymnax import actions_of, settle
from tessera.errors import TesseraError, unknown_name

TIMED = ("MPE_", "overcooked", "coin_game")
"""How the names of environments begin that only the clock ends."""

PLAYED = ("SMAX", "HeuristicEnemySMAX", "LearnedPolicyEnemySMAX", "switch_riddle", "jaxnav")
"""How the names of environments begin that also end by what is played."""

REFUSED = {
    "storm": "it gives arrays where others give one entry for each agent",
    "hanabi": "its players must choose among the moves that are legal, and actions here have no mask",
    "JaxRobotarium": "it needs jaxrobotarium, which JaxMARL does not install",
}
"""Why the others are not played, by how their names begin; what is left are the deprecated Brax ones."""

NEVER = np.iinfo(np.int32).max


def import_jaxmarl() -> ModuleType:
    """Import JaxMARL in silence and without its Brax environments.

    It prints to standard output. The Brax part, which upstream calls deprecated, takes a second and leaves
    `sys.stdout` other than it was. The stand-in for it leaves `sys.modules` again.
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
        known = [known for known in jaxmarl.registered_envs if known.startswith(TIMED + PLAYED)]
        raise unknown_name("JaxMARL environment", name, known)
    if not name.startswith(TIMED + PLAYED):
        why = next((why for start, why in REFUSED.items() if name.startswith(start)), "upstream calls it deprecated")
        raise TesseraError(f"jaxmarl:{name} cannot be played here, because {why}: choose another")
    asked = dict(options)
    if isinstance(options.get("scenario"), str):
        from jaxmarl.environments.smax.smax_env import MAP_NAME_TO_SCENARIO

        if options["scenario"] not in MAP_NAME_TO_SCENARIO:
            raise unknown_name("SMAX scenario", options["scenario"], MAP_NAME_TO_SCENARIO)
        options["scenario"] = MAP_NAME_TO_SCENARIO[options["scenario"]]
    env = jaxmarl.make(name, **options)
    if name.startswith("MPE_"):
        _check_options(name, env, options)
    return JaxMARLEnvironment(name, env, timed=name.startswith(TIMED), asked=asked)


def _check_options(name: str, env: Any, options: dict[str, Any]) -> None:
    """Refuse what no constructor has taken: particle worlds pass over what they do not know."""
    makers = [vars(kind)["__init__"] for kind in type(env).__mro__ if "__init__" in vars(kind)]
    known = {parameter for maker in makers for parameter in inspect.signature(maker).parameters}
    known -= {"self", "args", "kwargs"}
    for option in options:
        if option not in known and not hasattr(env, option):
            raise unknown_name(f"option of jaxmarl:{name}", option, known)


class JaxMARLEnvironment(DeviceEnvironment):
    """One JaxMARL environment, without JaxMARL's own autoreset; the leading axis is the agents', in its own order."""

    def __init__(self, name: str, env: Any, timed: bool, asked: dict[str, Any] | None = None) -> None:
        self.name, self._asked = f"jaxmarl:{name}", asked or {}
        self._env, self._timed, self._agents = env, timed, tuple(env.agents)
        world = getattr(env, "_env", env)  # SMAX against an enemy of its own is wrapped
        self._limit = getattr(world, "max_steps", None)
        if self._limit is not None and not timed:
            world.max_steps = NEVER
        actions = same_for_all(
            self.name, {agent: _actions(self.name, env.action_space(agent)) for agent in self._agents}
        )
        # From a traced reset and not from the spaces, whose shapes are not always the observations'.
        shape = jax.eval_shape(self.reset, jax.random.key(0))[1].shape
        self.spec = Spec(shape, "float32", actions, agents=len(self._agents))

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process: made there anew, and so imported there as here."""
        return _made_again, (self.name, self.spec.precision, self._asked)

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Start an episode: (state, observation)."""
        observations, state = self._env.reset(key)
        return settle(state, state), self._stack(observations)

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Play one step: (state, observation, reward [agents], terminated, truncated)."""
        actions = dict(zip(self._agents, action, strict=True))
        observations, stepped, rewards, done, _ = self._env.step_env(key, state, actions)
        stepped = settle(stepped, state)
        over = jnp.asarray(done["__all__"], bool)
        terminated = jnp.zeros_like(over) if self._timed else over
        late = over if self._limit is None else _world(stepped).step >= self._limit
        kind = jnp.result_type(float)
        reward = jnp.stack([jnp.asarray(rewards[agent], kind).reshape(()) for agent in self._agents])
        return stepped, self._stack(observations), reward, terminated, late & ~terminated

    def alive(self, state: Any) -> Any:
        """Which agents will act in `state`, bool [agents]; None if none ever drops out."""
        world = _world(state)
        if hasattr(world, "unit_alive"):
            return world.unit_alive[: len(self._agents)]
        if hasattr(world, "move_term"):  # JaxNav's robots stop where they collide or, with `evaporating`, arrive
            return ~(world.done | world.move_term)
        return None

    def _stack(self, observations: Any) -> jax.Array:
        """Float32 [agents, ...]; observations of different shapes as vectors, with zeros after the shorter ones."""
        each = [jnp.asarray(observations[agent], jnp.float32) for agent in self._agents]
        if len({one.shape for one in each}) > 1:
            longest = max(one.size for one in each)
            each = [jnp.pad(one.ravel(), (0, longest - one.size)) for one in each]
        return jnp.stack(each)


def _made_again(name: str, precision: str, options: dict[str, Any]) -> JaxMARLEnvironment:
    made = make(name.removeprefix("jaxmarl:").partition("?")[0], **options)
    made.name, made.spec = name, replace(made.spec, precision=precision)
    return made


def _world(state: Any) -> Any:
    """What an environment's state is without the memory of an enemy of its own."""
    return getattr(state, "state", state)


def _actions(name: str, space: Any) -> Actions:
    if hasattr(space, "num_categories") and not hasattr(space, "n"):
        return MultiDiscrete(tuple(int(n) for n in space.num_categories))
    return actions_of(name, space)
