"""`pettingzoo:` environments: several agents that act at the same time, by PettingZoo's parallel interface.

Games in which two players take turns are in `pettingzoo_turns`.

`pettingzoo:mpe2.simple_spread_v3` and `jaxmarl:MPE_simple_spread_v3` are the same task, step by step: three agents and
three landmarks placed alike, five actions numbered alike, the 18 numbers of an observation in the same order (own
velocity and position, landmarks, other agents, four zeros for unused communication), the same forces and collisions,
a `local_ratio` of 0.5 and 25 steps. A test plays both from one state: they are equal but for rounding.

What differs: MPE2 computes in float64 and JaxMARL in float32; options have other names (`N`, `max_cycles` and
`continuous_actions` here; `num_agents`, `num_landmarks`, `max_steps` and `action_type` there); and JaxMARL without its
adapter plays 26 steps.
"""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import math
import os
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from tessera.envs.base import Box, HostEnvironment, HostVector, Spec, Timestep, missing_extra, same_for_all
from tessera.envs.drawing.reel import Reel, recorded
from tessera.envs.spaces import MASK, Spaces
from tessera.envs.vectors import SteppedInALoop, seed_for, spread
from tessera.errors import TesseraError, unknown_name

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "hide")  # many environments draw with it, and it prints a greeting

Seen = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Observations and infos by agent."""

PACKAGES = ("mpe2", "pettingzoo.classic", "pettingzoo.sisl", "pettingzoo.butterfly", "pettingzoo.atari")
"""Packages whose modules an error for an unknown name suggests."""


def make(name: str, **options: Any) -> HostEnvironment:
    """Make an environment; `name` is a module with `parallel_env`, or `env` for a game of turns, with or without the
    prefix `pettingzoo.`."""
    try:
        import pettingzoo  # noqa: F401
    except ImportError as error:
        raise missing_extra("pettingzoo", "pettingzoo", error) from error
    path = next((path for path in (name, f"pettingzoo.{name}") if _exists(path)), None)
    if path is None and name.startswith("mpe2.") and not _exists("mpe2"):
        raise missing_extra("pettingzoo", "pettingzoo", ImportError(name="mpe2"))
    if path is None:
        raise unknown_name("PettingZoo environment", name, _known())
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise TesseraError(f"{path} of 'pettingzoo:{name}' cannot be imported ({error}): install it") from error
    if hasattr(module, "parallel_env"):
        return PettingZooEnvironment(f"pettingzoo:{name}", functools.partial(_made, path, "parallel_env", **options))
    if not hasattr(module, "env"):
        raise TesseraError(f"{path} has neither parallel_env nor env, so it makes no environment: choose another")
    from tessera.envs.pettingzoo_turns import TurnsEnvironment, known_game

    factory = functools.partial(_made, path, "env", **options)
    return TurnsEnvironment(f"pettingzoo:{name}", factory, known_game(path))


def adapted(name: str, factory: Callable[[], Any], made: Any) -> HostEnvironment:
    """The adapter for what a factory has made: agents that act at once, or players who take turns."""
    if not hasattr(made, "agent_selection") and not hasattr(made, "agent_iter"):
        return PettingZooEnvironment(name, factory)
    from tessera.envs.pettingzoo_turns import TurnsEnvironment

    return TurnsEnvironment(name, factory)


def _made(path: str, function: str, **options: Any) -> Any:
    """Make an environment by module: many `parallel_env` are nested functions, which cannot be sent to processes."""
    return getattr(importlib.import_module(path), function)(**options)


def _exists(path: str) -> bool:
    """Whether there is such a module; only its parent packages are imported."""
    try:
        return importlib.util.find_spec(path) is not None
    except (ImportError, ValueError):
        return False


def _known() -> list[str]:
    names = []
    for package in filter(_exists, PACKAGES):
        modules = pkgutil.iter_modules(importlib.import_module(package).__path__)
        names += [f"{package.removeprefix('pettingzoo.')}.{m.name}" for m in modules if re.search(r"_v\d+$", m.name)]
    return names


class PettingZooEnvironment(HostEnvironment):
    """A kind of parallel environment, stepped in this process."""

    mortal = True

    def __init__(self, name: str, factory: Callable[..., Any]) -> None:
        self.name, self._factory = name, factory
        probe = factory()
        try:
            self._team = Team(name, probe)
        finally:
            probe.close()
        self.spec = self._team.spec

    def open(self, ids: np.ndarray, seed: int) -> HostVector:
        """Open the environments with global indices `ids` [groups, environments per group]."""
        seeds = [seed_for(seed, index) for index in ids.flat]
        return ParallelEnvs([self._factory() for _ in seeds], self._team, ids.shape, seeds)

    def one_by_one(self) -> HostEnvironment:
        """They always are."""
        return self

    def single(self) -> Any:
        """One environment as PettingZoo makes it."""
        return self._factory()

    def filmed(self, reel: Reel, height: int) -> HostEnvironment:
        """The same, with what render() gives."""
        del height
        filmed = copy.copy(self)
        filmed._factory = recorded(self.name, self._factory, reel)
        return filmed


class ParallelEnvs(SteppedInALoop):
    """Parallel environments stepped in a loop, each reset in the step that ends its episode.

    An agent that has dropped out observes zeros, gets no reward and takes no action until the next episode.
    """

    def __init__(self, envs: Sequence[Any], team: Team, shape: Sequence[int], seeds: Sequence[int]) -> None:
        super().__init__()
        self._envs, self._team, self._shape, self._seeds = envs, team, tuple(shape), seeds

    def reset(self) -> Timestep:
        """Start every environment from its seed."""
        pairs = zip(self._envs, self._seeds, strict=True)
        return self._first([env.reset(seed=seed) for env, seed in pairs], range(len(self._envs)))

    def restart(self, which: np.ndarray) -> Timestep:
        """Start new episodes in the environments `which`."""
        rows = np.flatnonzero(which).tolist()
        return self._first([self._envs[i].reset() for i in rows], rows)

    def _first(self, begun: Sequence[Seen], rows: Sequence[int]) -> Timestep:
        """The timestep of a reset in the environments `rows`."""
        observation, legal = self._translated(begun, [self._envs[i].agents for i in rows], rows)
        alive = np.array([self._team.among(env.agents) for env in self._envs])
        terminated, truncated = np.zeros((2, len(self._envs)), bool)
        rewards = np.zeros(alive.shape, np.float32)
        timestep = Timestep(observation, rewards, terminated, truncated, observation, alive=alive)
        return self._grouped(timestep._replace(legal=legal, final_legal=legal))

    def _play(self, actions: np.ndarray, rows: Sequence[int]) -> Timestep:
        seen: list[Seen] = []
        finals: dict[int, Seen] = {}
        acting_in: list[Sequence[str] | None] = []
        each = self._team.decode(actions.reshape(len(self._envs), *actions.shape[2:]))
        rewards, alive = np.zeros(each.shape[:2], np.float32), np.zeros(each.shape[:2], bool)
        terminated, truncated = np.zeros((2, len(self._envs)), bool)
        # Plain integers, because a NumPy scalar for every agent costs more than a step of many environments.
        choices = each.tolist() if each.ndim == 2 else each
        for i in rows:
            env = self._envs[i]
            observed, reward, terminations, truncations, infos = env.step(self._team.named(choices[i], env.agents))
            for info in filter(None, infos.values()):
                self._info.add(info)
            rewards[i] = [reward.get(agent, 0.0) for agent in self._team.agents]
            acting = [agent for agent in env.agents if not (terminations.get(agent) or truncations.get(agent))]
            if not acting:
                # Truncated agents would have continued, without those that were terminated.
                cut = [agent for agent in truncations if truncations[agent] and not terminations.get(agent)]
                terminated[i], truncated[i] = not cut, bool(cut)
                # A copy, because an environment may reuse its arrays at a reset.
                finals[i] = copy.deepcopy((_only(observed, cut or observed), self._team.kept(infos)))
                (observed, infos), acting = env.reset(), env.agents
            alive[i] = self._team.among(acting)
            acting_in.append(acting)
            seen.append((_only(observed, acting), infos))
        observation, legal = final, final_legal = self._translated(seen, acting_in, rows)
        if finals:
            last = [finals.get(i, now) for i, now in zip(rows, seen, strict=True)]
            over = [None if i in finals else acting for i, acting in zip(rows, acting_in, strict=True)]
            final, final_legal = self._translated(last, over, rows)
        timestep = Timestep(observation, rewards, terminated, truncated, final, alive=alive)
        return self._grouped(timestep._replace(legal=legal, final_legal=final_legal))

    def _translated(self, seen: Sequence[Seen], acting: Sequence[Any], rows: Sequence[int]) -> tuple[Any, Any]:
        """Observations and masks in the environments `rows`, as arrays for all; `acting` is as in `Team.legal`."""
        legal, size = self._team.legal(seen, acting), len(self._envs)
        encoded = spread(self._team.encode([observed for observed, _ in seen]), rows, size)
        return encoded, None if legal is None else spread(legal, rows, size)

    def _grouped(self, timestep: Timestep) -> Timestep:
        return Timestep._make(None if x is None else x.reshape(*self._shape, *x.shape[1:]) for x in timestep)


class Team:
    """Translates between PettingZoo's dicts by agent and arrays in the order of `possible_agents`."""

    def __init__(self, name: str, env: Any) -> None:
        if not getattr(env, "possible_agents", None):
            raise TesseraError(f"{name} has no possible_agents, so their number is unknown: choose another")
        self.agents = tuple(env.possible_agents)
        actions = same_for_all(name, {agent: space_of(name, env, "action_space", agent) for agent in self.agents})
        observations = {agent: space_of(name, env, "observation_space", agent) for agent in self.agents}
        self._mask_observed = all(holds_mask(space) for space in observations.values())
        if self._mask_observed:
            observations = {agent: without_mask(space) for agent, space in observations.items()}
        spaces = [space for i, space in enumerate(observations.values()) if space not in [*observations.values()][:i]]
        self._index = {agent: index for index, agent in enumerate(self.agents)}
        # Agents with the same space are translated together, which is faster than one by one.
        self._kinds = [
            (Spaces(name, space, actions), [agent for agent in self.agents if observations[agent] == space])
            for space in spaces
        ]
        specs = [kind.spec for kind, _ in self._kinds]
        shape = specs[0].observation_shape
        self._padded = any(spec.observation_shape != shape for spec in specs)
        if self._padded:
            shape = (max(math.prod(spec.observation_shape) for spec in specs),)
        dtype = "uint8" if all(spec.observation_dtype == "uint8" for spec in specs) else "float32"
        restricted = self._mask_observed or _informs_of_masks(env, specs[0].actions)
        each = (len(self.agents), *shape)
        self.spec = Spec(each, dtype, specs[0].actions, agents=len(self.agents), restricted=restricted)

    def encode(self, observations: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """Make an array [n, agents, ...] of the observations in n environments, with zeros for absent agents.

        Observations of different shapes become vectors, padded with zeros.
        """
        encoded = np.zeros((len(observations), *self.spec.observation_shape), self.spec.observation_dtype)
        for kind, members in self._kinds:
            present = [
                (row, self._index[agent], without_mask(observed[agent]) if self._mask_observed else observed[agent])
                for row, observed in enumerate(observations)
                for agent in members
                if agent in observed
            ]
            if present:
                rows, columns, values = zip(*present, strict=True)
                part = kind.encode(kind.stack(values))
                part = part.reshape(len(part), -1) if self._padded else part
                encoded[rows, columns, : part.shape[1]] = part
        return encoded

    def kept(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        """What is read of an `info`: the masks."""
        return {agent: {MASK: info[MASK]} for agent, info in infos.items() if MASK in info}

    def legal(self, seen: Sequence[Seen], acting: Sequence[Iterable[str] | None]) -> np.ndarray | None:
        """Which actions are allowed, [n, agents, k]; all for agents that do not act; None if all always are.

        Each acting agent must have a mask; where an episode is over (None), only those that do are read.
        """
        if not self.spec.restricted:
            return None
        legal = np.ones((len(seen), len(self.agents), self.spec.alternatives), bool)
        for row, ((observed, infos), agents) in enumerate(zip(seen, acting, strict=True)):
            source = observed if self._mask_observed else infos
            for agent in source if agents is None else agents:
                mask = source.get(agent, {}).get(MASK)
                if mask is not None or agents is not None:
                    legal[row, self._index[agent]] = self._kinds[0][0].mask(mask)
        return legal

    def decode(self, actions: np.ndarray) -> np.ndarray:
        """Translate actions [n, agents, ...] to those of the environments."""
        return self._kinds[0][0].decode(actions)

    def named(self, values: Sequence[Any], agents: Iterable[str]) -> dict[str, Any]:
        """The values of some agents by name, from a row with the values of all."""
        return {agent: values[self._index[agent]] for agent in agents}

    def among(self, agents: Sequence[str]) -> list[bool]:
        """Whether each agent is one of `agents`."""
        return [agent in agents for agent in self.agents]


def holds_mask(space: Any) -> bool:
    """Whether observations are a dict with the mask in it, as in PettingZoo's classic games."""
    return isinstance(space, gymnasium.spaces.Dict) and MASK in space.spaces and len(space.spaces) > 1


def without_mask(observed: Any) -> Any:
    """The observation, or its space, without the mask; what is left alone is no dict."""
    items = observed.spaces if isinstance(observed, gymnasium.spaces.Dict) else observed
    rest = {key: value for key, value in items.items() if key != MASK}
    if len(rest) == 1:
        return next(iter(rest.values()))
    return gymnasium.spaces.Dict(rest) if isinstance(observed, gymnasium.spaces.Dict) else rest


def _informs_of_masks(env: Any, actions: Any) -> bool:
    """Whether every agent's `info` says at a reset which of its discrete actions are allowed."""
    if isinstance(actions, Box):
        return False
    try:
        _, infos = env.reset(seed=0)
        return bool(infos) and all(MASK in info for info in infos.values())
    except Exception:  # what is wrong shows, by name, when the run resets it
        return False


def space_of(name: str, env: Any, method: str, agent: str) -> Any:
    """A space of one agent; refuse one that is missing."""
    try:
        space = getattr(env, method)(agent)
    except Exception:
        space = None
    if not isinstance(space, gymnasium.Space):
        raise TesseraError(
            f"{method}({agent!r}) of {name} gives no space, and networks are made for it: return a space of "
            "gymnasium.spaces for each of possible_agents"
        )
    return space


def _only(observations: Mapping[str, Any], agents: Iterable[str]) -> dict[str, Any]:
    return {agent: observations[agent] for agent in agents if agent in observations}
