"""Wrappers of host environments, in NumPy, for vectors of any family and any way to reset."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from tessera.envs.base import HostEnvironment, HostVector, InfoTotals, Timestep
from tessera.envs.drawing.reel import Reel
from tessera.envs.wrappers.transform import Arrays, Outcome, Transform, pick
from tessera.errors import TesseraError

VECTOR = Arrays(np, 2)


class HostWrapper(HostEnvironment):
    """A host environment around another, whose attributes it has."""

    wrapper_words: str
    """What it does, as `tessera plan` prints it."""

    def __init__(self, env: HostEnvironment) -> None:
        self.env = env
        for attribute in HostEnvironment.__annotations__:
            setattr(self, attribute, getattr(env, attribute))

    def filmed(self, reel: Reel, height: int) -> HostEnvironment:
        """The same around environments that are filmed, which may be reset in another way."""
        filmed = copy.copy(self)
        filmed.env = self.env.filmed(reel, height)
        filmed.masks, filmed.threaded = filmed.env.masks, filmed.env.threaded
        return filmed


class TransformedHost(HostWrapper):
    """A host environment with a transform."""

    def __init__(self, env: HostEnvironment, transform: Transform) -> None:
        super().__init__(env)
        self.transform, self.wrapper_words = transform, transform.words
        self.spec = transform.spec(env.spec)
        self.observation_bounds = transform.bounds(env.observation_bounds)
        self.keeps = " and ".join(filter(None, (env.keeps, transform.keeps)))

    def open(self, ids: np.ndarray, seed: int) -> HostVector:
        """Open the environments with global indices `ids` [groups, environments per group]."""
        return TransformedVector(self.env.open(ids, seed), self.transform, self.masks, ids, seed)

    def one_by_one(self) -> HostEnvironment | None:
        """The same around environments that are stepped one by one."""
        inner = self.env.one_by_one()
        return None if inner is None else TransformedHost(inner, self.transform)


class TransformedVector(HostVector):
    """Open environments with a transform, whose memory has the leading axes of the vector."""

    def __init__(self, vector: HostVector, transform: Transform, masks: bool, ids: np.ndarray, seed: int) -> None:
        self._vector, self._transform, self._masks, self._shape = vector, transform, masks, ids.shape
        self._memory: Any = None
        # One generator for each environment, so that draws do not depend on which others are here.
        seeds = [[seed, int(index)] for index in ids.flat] if transform.draws else []
        self._generators = [np.random.default_rng([*of, 1]) for of in seeds]

    def reset(self) -> Timestep:
        """Start every environment; what a memory keeps over episodes stays."""
        timestep = self._vector.reset()
        self._memory, observation = self._transform.start(timestep.observation, self._memory, VECTOR)
        return timestep._replace(observation=observation, final=observation)

    def step(self, actions: np.ndarray) -> Timestep:
        """Play one step in every environment."""
        return self._play(actions, None)

    def step_some(self, actions: np.ndarray, which: np.ndarray) -> Timestep:
        """Play one step in the environments `which`."""
        return self._play(actions, which)

    def restart(self, which: np.ndarray) -> Timestep:
        """Start new episodes in the environments `which`."""
        timestep = self._vector.restart(which)
        memory, observation = self._transform.start(timestep.observation, self._memory, VECTOR)
        self._memory = pick(which, memory, self._memory, np)
        return timestep._replace(observation=observation, final=observation)

    def tried(self, which: np.ndarray) -> np.ndarray:
        """What the games inside say."""
        return self._vector.tried(which)

    def take_info(self) -> InfoTotals:
        """Those of the environments inside."""
        return self._vector.take_info()

    def close(self) -> None:
        """Close the environments."""
        self._vector.close()

    def __getattr__(self, name: str) -> Any:
        """Other members of the vector inside."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._vector, name)

    def _play(self, actions: np.ndarray, which: np.ndarray | None) -> Timestep:
        memory, actions = self._transform.before(self._memory, actions, self._uniform(which), VECTOR)
        inner = self._vector.step(actions) if which is None else self._vector.step_some(actions, which)
        played = _both(inner.valid, which)
        outcome = Outcome(inner.final, inner.reward, inner.terminated, inner.truncated)
        memory, seen = self._transform.after(memory, outcome, VECTOR)
        ended = inner.terminated | inner.truncated
        if played is not None and not played.all():  # a step in which nothing is played changes no memory
            memory = pick(played, memory, self._memory, np)
            seen = seen._replace(
                reward=pick(played, seen.reward, inner.reward, np),
                terminated=seen.terminated & played,
                truncated=seen.truncated & played,
            )
        begins = ~inner.valid if self._masks else ended
        if self._transform.cuts:
            cut = (seen.terminated | seen.truncated) & ~ended
            if cut.any():
                inner, begins = self._begun_again(inner, cut), begins | cut
        begins = begins if which is None else begins & which
        observation = final = seen.observation
        if begins.any():
            fresh, first = self._transform.start(inner.observation, memory, VECTOR)
            memory = pick(begins, fresh, memory, np)
            observation = pick(begins, first, final, np)
            final = final if inner.valid is None else pick(inner.valid, final, observation, np)
        self._memory = memory
        return inner._replace(**seen._replace(observation=observation)._asdict(), final=final)

    def _begun_again(self, timestep: Timestep, cut: np.ndarray) -> Timestep:
        """The timestep with new episodes where the transform has cut one; all but the step's outcome is theirs."""
        fresh = self._vector.restart(cut)
        kept = ("reward", "terminated", "truncated", "final", "final_legal", "final_player", "valid")
        changed = {f: pick(cut, getattr(fresh, f), getattr(timestep, f), np) for f in fresh._fields if f not in kept}
        return timestep._replace(**changed)

    def _uniform(self, which: np.ndarray | None) -> np.ndarray | None:
        """A draw for each environment that plays, and only for these."""
        if not self._generators:
            return None
        plays = np.ones(self._shape, bool) if which is None else which
        draws = [g.random() if on else 1.0 for g, on in zip(self._generators, plays.flat, strict=True)]
        return np.array(draws).reshape(self._shape)


class RepeatingHost(HostWrapper):
    """A host environment that plays each action several times, or until the episode ends."""

    def __init__(self, env: HostEnvironment, times: int, words: str) -> None:
        super().__init__(env)
        self._times, self.wrapper_words = times, words

    def open(self, ids: np.ndarray, seed: int) -> HostVector:
        """Open the environments with global indices `ids` [groups, environments per group]."""
        return RepeatingVector(self.env.open(ids, seed), self._times)

    def one_by_one(self) -> HostEnvironment | None:
        """It is so already."""
        return self


class RepeatingVector(HostVector):
    """Open environments that play each action several times; each stops where its episode ends."""

    def __init__(self, vector: HostVector, times: int) -> None:
        self._vector, self._times = vector, times

    def reset(self) -> Timestep:
        """Start every environment."""
        return self._vector.reset()

    def step(self, actions: np.ndarray) -> Timestep:
        """Play each action several times in every environment."""
        return self._again(self._vector.step(actions), actions, np.ones(actions.shape[:2], bool))

    def step_some(self, actions: np.ndarray, which: np.ndarray) -> Timestep:
        """The same in the environments `which`."""
        return self._again(self._vector.step_some(actions, which), actions, which)

    def restart(self, which: np.ndarray) -> Timestep:
        """Start new episodes in the environments `which`."""
        return self._vector.restart(which)

    def take_info(self) -> InfoTotals:
        """Those of the environments inside, where each repetition is a step."""
        return self._vector.take_info()

    def close(self) -> None:
        """Close the environments."""
        self._vector.close()

    def _again(self, timestep: Timestep, actions: np.ndarray, which: np.ndarray) -> Timestep:
        for _ in range(self._times - 1):
            which = which & ~(timestep.terminated | timestep.truncated)
            if not which.any():
                break
            more = self._vector.step_some(actions, which)
            reward = pick(which, timestep.reward + more.reward, timestep.reward, np)
            timestep = pick(which, more, timestep, np)._replace(reward=reward)
        return timestep


def stepped_alone(env: HostEnvironment, wrapper: str) -> HostEnvironment:
    """The environment, opened so that each can be stepped and restarted alone; refuse one that cannot."""
    alone = env.one_by_one()
    if alone is None:
        own = env.instead.get(wrapper)
        raise TesseraError(
            f"{wrapper} needs environments that can be stepped one by one, and {env.name} steps all together: "
            + (f"use its own option {own}" if own else f"leave {wrapper} out")
        )
    return alone


def _both(valid: np.ndarray | None, which: np.ndarray | None) -> np.ndarray | None:
    if valid is None or which is None:
        return which if valid is None else valid
    return valid & which
