"""Wrappers of device environments: pure JAX, traced with the environment."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tessera.envs.base import DeviceEnvironment
from tessera.envs.drawing.shapes import Artist
from tessera.envs.wrappers.transform import Arrays, Outcome, Transform

ONE = Arrays(jnp, 0)


class Wrapped(NamedTuple):
    """The state of the environment inside, and the memory of its wrapper."""

    inner: Any
    memory: Any


class DeviceWrapper(DeviceEnvironment):
    """A device environment around another; what it does not change is the other's."""

    wrapper_words: str
    """What it does, as `tessera plan` prints it."""

    def __init__(self, env: DeviceEnvironment) -> None:
        self.env, self.name, self.spec = env, env.name, env.spec
        self.observation_bounds, self.keeps = getattr(env, "observation_bounds", None), getattr(env, "keeps", "")
        self.opponent = getattr(env, "opponent", "")

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Start an episode: (state, observation)."""
        return self.env.reset(key)

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Play one step: (state, observation, reward, terminated, truncated)."""
        return self.env.step(state, action, key)

    def restart(self, state: Any, key: Any) -> tuple[Any, Any]:
        """Start the next episode after `state`."""
        return self.env.restart(state, key)

    def alive(self, state: Any) -> Any:
        """Which agents act in `state`, bool [agents]; None for one agent, or if no agent ever drops out."""
        return self.env.alive(self.inner_state(state))

    def legal(self, state: Any) -> Any:
        """Which discrete actions are allowed in `state`; None if all always are."""
        return self.env.legal(self.inner_state(state))

    def player(self, state: Any) -> Any:
        """Whose turn it is in `state`; None if there is one player."""
        return self.env.player(self.inner_state(state))

    def position(self, state: Any) -> Any:
        """The state that a search starts from: all of it, since the search is of this environment too."""
        return state

    def info(self, state: Any) -> dict[str, Any]:
        """Numbers of the step that led to `state`."""
        return self.env.info(self.inner_state(state))

    def artist(self, height: int) -> Artist:
        """What draws the environment inside."""
        inner = self.env.artist(height)
        return Artist(lambda state: inner.draw(self.inner_state(state)), inner.fps)

    def inner_state(self, state: Any) -> Any:
        """The state of the environment inside."""
        return state

    def __getattr__(self, name: str) -> Any:
        """Other members of the environment inside; its methods take a state."""
        if name.startswith("_") or name == "env":  # asked for while a copy is made
            raise AttributeError(name)
        member = getattr(self.env, name)
        if not callable(member):
            return member
        return lambda state, *more: member(self.inner_state(state), *more)


class TransformedDevice(DeviceWrapper):
    """A device environment with a transform; its state holds the memory."""

    def __init__(self, env: DeviceEnvironment, transform: Transform) -> None:
        super().__init__(env)
        self.transform, self.wrapper_words = transform, transform.words
        self.spec = transform.spec(env.spec)
        self.observation_bounds = transform.bounds(self.observation_bounds)
        self.keeps = " and ".join(filter(None, (self.keeps, transform.keeps)))

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Start an episode: (state, observation)."""
        inner, observation = self.env.reset(key)
        memory, observation = self.transform.start(observation, None, ONE)
        return Wrapped(inner, memory), observation

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Play one step: (state, observation, reward, terminated, truncated)."""
        uniform = None
        if self.transform.draws:
            chance, key = jax.random.split(key)
            uniform = jax.random.uniform(chance)
        memory, action = self.transform.before(state.memory, action, uniform, ONE)
        inner, *outcome = self.env.step(state.inner, action, key)
        memory, seen = self.transform.after(memory, Outcome(*outcome), ONE)
        return Wrapped(inner, memory), *seen

    def restart(self, state: Any, key: Any) -> tuple[Any, Any]:
        """Start the next episode after `state`."""
        inner, observation = self.env.restart(state.inner, key)
        memory, observation = self.transform.start(observation, state.memory, ONE)
        return Wrapped(inner, memory), observation

    def inner_state(self, state: Any) -> Any:
        """The state of the environment inside."""
        return state.inner


class RepeatingDevice(DeviceWrapper):
    """A device environment that plays each action several times, or until the episode ends."""

    def __init__(self, env: DeviceEnvironment, times: int, words: str) -> None:
        super().__init__(env)
        self._times, self.wrapper_words = times, words

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Play several steps: (state, observation, sum of rewards, terminated, truncated)."""
        keys = jax.random.split(key, self._times)

        def again(k: Any, played: Any) -> Any:
            state, _, reward, terminated, truncated = played
            state, observation, more, *ends = self.env.step(state, action, keys[k])
            following = (state, observation, reward + more, *ends)
            return jax.tree.map(lambda a, b: jnp.where(terminated | truncated, a, b), played, following)

        first = jax.tree.map(jnp.asarray, tuple(self.env.step(state, action, keys[0])))
        return jax.lax.fori_loop(1, self._times, again, first)
