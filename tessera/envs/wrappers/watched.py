"""A compiled environment whose last state can still be seen when the next episode has begun."""

from __future__ import annotations

from typing import Any, NamedTuple

from tessera.envs.wrappers.device import DeviceWrapper


class WatchedState(NamedTuple):
    """Where an environment is, and where its last step led."""

    now: Any
    stepped: Any


class WatchedEnvironment(DeviceWrapper):
    """The same environment; its state keeps what the last step led to, which a new episode replaces."""

    wrapper_words = "watched"

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Start an episode: (state, observation)."""
        state, observation = self.env.reset(key)
        return WatchedState(state, state), observation

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Play one step: (state, observation, reward, terminated, truncated)."""
        stepped, *outcome = self.env.step(state.now, action, key)
        return WatchedState(stepped, stepped), *outcome

    def restart(self, state: Any, key: Any) -> tuple[Any, Any]:
        """Start the next episode after `state`."""
        fresh, observation = self.env.restart(state.now, key)
        return WatchedState(fresh, state.stepped), observation

    def position(self, state: Any) -> Any:
        """The state that a search starts from: it searches in the environment inside."""
        return self.env.position(state.now)

    def inner_state(self, state: Any) -> Any:
        """The state of the environment inside."""
        return state.now
