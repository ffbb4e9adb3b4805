"""Checks of single Gymnasium environments."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tessera.envs.checks.findings import EnvironmentCheck, raised, values_in
from tessera.envs.spaces import MASK
from tessera.errors import RAISED_BY_USERS, TesseraError

STEP = "observation, reward, terminated, truncated, info"
QUICK_STEPS = 3
AUTORESET_KEYS = ("final_obs", "final_observation", "final_info")
"""What environments that reset themselves put in their info."""


def refuse_broken_gymnasium(env: Any, name: str) -> None:
    """Play a reset and a few steps, and refuse what cannot be trained in.

    What the environment itself raises is left to the run, which shows it with its traceback and may try again.
    """
    with contextlib.suppress(Raised):
        _, info = _reset(env, name, seed=0)
        masked = MASK in info
        _refuse(_mask_problem(env, name, info, masked))
        for _ in range(QUICK_STEPS):
            _, _, terminated, truncated, info = _step(env, name, _sampled(env, info))
            if terminated or truncated:
                return
            _refuse(_mask_problem(env, name, info, masked))


def _refuse(problem: str) -> None:
    if problem:
        raise TesseraError(problem)


def play_gymnasium(env: Any, report: EnvironmentCheck, steps: int, seed: int) -> np.ndarray:
    """Play random actions and note what is wrong with the numbers and the seeds; at which steps episodes ended."""
    name, ended = report.name, np.zeros((steps, 1), bool)
    with reporting(report, name):
        _check_seeds(env, report, seed)
        same_as_first = []
        env.action_space.seed(seed)
        first, info = _start(env, name, seed)
        moved, masked = False, MASK in info
        begun = time.perf_counter()
        for k in range(steps):
            if problem := _mask_problem(env, name, info, masked):
                report.error(problem)
                break
            observation, _, terminated, truncated, info = _step(env, name, _sampled(env, info))
            _check_bounds(env.observation_space, observation, report)
            moved = moved or not _equal(observation, first)
            if terminated and truncated:
                report.warning(
                    f"{name} terminates and truncates in the same step, which then counts as terminated: set one"
                )
            if terminated or truncated:
                ended[k] = True
                same_as_first.append(_equal(observation, first) and moved)
                _check_autoreset(env, report, info)
                first, info = _start(env, name)
                moved = False
        report.seconds, report.steps, report.episodes = time.perf_counter() - begun, steps, int(ended.sum())
        if len(same_as_first) > 1 and all(same_as_first):
            report.warning(
                f"every episode of {name} ends with its first observation, as if it resets itself in step(): return "
                "the last observation, and leave resets to the caller"
            )
    return ended


class Raised(Exception):
    """An exception of the environment itself, which is the cause."""

    def __init__(self, method: str) -> None:
        super().__init__(method)
        self.method = method


@contextlib.contextmanager
def reporting(report: EnvironmentCheck, name: str) -> Iterator[None]:
    """Within it, what is wrong with an environment ends its check and is an error of the report."""
    try:
        yield
    except Raised as error:
        report.error(raised(name, error.method, error.__cause__ or error))
    except TesseraError as error:
        report.error(str(error))


@contextlib.contextmanager
def calling(method: str) -> Iterator[None]:
    """Within it, whatever is raised is the environment's."""
    try:
        yield
    except RAISED_BY_USERS as error:
        raise Raised(method) from error


def _reset(env: Any, name: str, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
    parameters = inspect.signature(env.unwrapped.reset).parameters
    if "seed" not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise TesseraError(
            f"reset() of {name} takes no seed, so runs could not be repeated: add the argument seed=None"
        )
    with calling("reset"):
        result = env.reset() if seed is None else env.reset(seed=seed)
    if isinstance(result, np.ndarray):
        # an array is one value, however many entries it has
        raise TesseraError(f"reset() of {name} returns one array, and must return (observation, info): add a dict")
    observation, info = values_in(result, "observation, info", "reset", name)
    if not isinstance(info, dict):
        raise TesseraError(
            f"reset() of {name} returns a {type(info).__name__} for info, and it must be a dict: use {{}}"
        )
    check_observation(env.observation_space, observation, f"reset() of {name}")
    return observation, info


def _start(env: Any, name: str, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
    """A reset whose observation stays as it is when the environment writes to its buffers."""
    observation, info = _reset(env, name, seed)
    return _copied(observation), info


def _step(env: Any, name: str, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
    with calling("step"):
        result = env.step(action)
    observation, reward, terminated, truncated, info = values_in(result, STEP, "step", name)
    check_observation(env.observation_space, observation, f"step() of {name}")
    check_reward(reward, f"step() of {name}")
    for what, flag in (("terminated", terminated), ("truncated", truncated)):
        check_flag(flag, what, f"step() of {name}")
    if not isinstance(info, dict):
        raise TesseraError(
            f"step() of {name} returns a {type(info).__name__} for info, and it must be a dict: use {{}}"
        )
    return observation, reward, bool(terminated), bool(truncated), info


def check_reward(reward: Any, where: str) -> None:
    """Refuse what is no finite number."""
    if isinstance(reward, np.ndarray) and reward.shape == ():
        reward = reward[()]
    if isinstance(reward, bool | np.bool_) or not isinstance(reward, int | float | np.integer | np.floating):
        raise TesseraError(f"{where} returns the reward {_brief(reward)}, which is no number: return a float")
    if not np.isfinite(reward):
        raise TesseraError(
            f"{where} returns the reward {reward}, from which nothing can be learnt: return a finite one"
        )


def check_flag(flag: Any, what: str, where: str) -> None:
    """Refuse what is no boolean."""
    if not (
        isinstance(flag, bool | np.bool_) or (isinstance(flag, np.ndarray) and flag.shape == () and flag.dtype == bool)
    ):
        raise TesseraError(f"{where} returns {_brief(flag)} for {what}, and it must be True or False: use bool()")


def check_observation(space: Any, observation: Any, where: str, part: str = "observation") -> None:
    """Refuse an observation that has another form than its space, or numbers that are not finite."""
    if isinstance(space, spaces.Dict):
        if not isinstance(observation, dict) or set(observation) != set(space.spaces):
            keys = sorted(map(str, observation)) if isinstance(observation, dict) else type(observation).__name__
            raise TesseraError(
                f"{where} returns the {part} {keys}, and its space has {sorted(space.spaces)}: match them"
            )
        for key, child in space.spaces.items():
            check_observation(child, observation[key], where, f"{part} {key!r}")
        return
    if isinstance(space, spaces.Tuple):
        for k, (child, one) in enumerate(zip(space.spaces, values_in_tuple(space, observation, where), strict=True)):
            check_observation(child, one, where, f"{part} {k}")
        return
    try:
        array = np.asarray(observation, np.float64)
    except (TypeError, ValueError):
        raise TesseraError(
            f"{where} returns the {part} {_brief(observation)}, and it must be numbers: {space}"
        ) from None
    if array.shape != tuple(space.shape or ()):
        raise TesseraError(
            f"{where} returns an {part} of shape {list(array.shape)}, and its space has shape "
            f"{list(space.shape or ())}: change one of them"
        )
    if not np.isfinite(array).all():
        raise TesseraError(f"{where} returns an {part} with numbers that are not finite: mend them")
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.integer) and (array != np.round(array)).any():
        raise TesseraError(
            f"{where} returns an {part} with fractions, and its space has whole numbers ({space.dtype}): correct the "
            "dtype of one of them"
        )


def values_in_tuple(space: spaces.Tuple, observation: Any, where: str) -> tuple[Any, ...]:
    """The parts of an observation; refuse another number of them than the space has."""
    if not isinstance(observation, tuple | list) or len(observation) != len(space.spaces):
        raise TesseraError(f"{where} returns {_brief(observation)}, and its space is a tuple of {len(space.spaces)}")
    return tuple(observation)


def _check_bounds(space: Any, observation: Any, report: EnvironmentCheck) -> None:
    if isinstance(space, spaces.Box):
        if isinstance(observation, np.ndarray) and observation.dtype != space.dtype:
            report.warning(
                f"{report.name} observes {observation.dtype} and its space says {space.dtype}, so that numbers are "
                "cast: correct one of them"
            )
        slack = 1e-4 * np.maximum(1, np.abs(np.asarray(observation, np.float64)))
        if (observation < space.low - slack).any() or (observation > space.high + slack).any():
            report.error(f"{report.name} observes numbers outside of the bounds of its space: widen them, or clip")
    elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and not space.contains(observation):
        report.error(f"{report.name} observes {_brief(observation)}, which is not in {space}: correct one of them")


def _mask_problem(env: Any, name: str, info: dict[str, Any], masked: bool) -> str:
    """What is wrong with the mask of a step, if the first reset of the environment had one or not; "" if nothing."""
    space = env.action_space
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return ""
    if (MASK in info) != masked:
        there, missing = ("reset()", "step()") if masked else ("step()", "reset()")
        return f"{name} gives info['{MASK}'] in {there} and not in {missing}: give it at every reset and step, or never"
    if not masked:
        return ""
    given = info[MASK]
    parts = given if isinstance(given, tuple | list) and np.ndim(given[0]) else (given,)
    mask = np.concatenate([np.ravel(part) for part in parts])
    size = int(space.n) if isinstance(space, spaces.Discrete) else int(spaces.flatdim(space))
    size = 2 * size if isinstance(space, spaces.MultiBinary) else size
    if mask.size != size:
        return f"the action mask of {name} has {mask.size} entries, and there are {size} actions: give one for each"
    if not mask.any():
        return f"the action mask of {name} forbids every action while the episode goes on: end it, or allow one"
    return ""


def _check_autoreset(env: Any, report: EnvironmentCheck, info: dict[str, Any]) -> None:
    layers = env
    while isinstance(layers, gymnasium.Wrapper) and not isinstance(layers, gymnasium.wrappers.Autoreset):
        layers = layers.env
    if isinstance(layers, gymnasium.wrappers.Autoreset) or any(key in info for key in AUTORESET_KEYS):
        report.error(
            f"{report.name} resets itself at the end of an episode, and Tessera resets it too, so episodes would be "
            "lost: leave the reset out"
        )


def _check_seeds(env: Any, report: EnvironmentCheck, seed: int) -> None:
    name = report.name

    def trajectory(seed: int) -> list[Any]:
        """A start and a few steps of the same actions."""
        env.action_space.seed(7)
        observed, info = _reset(env, name, seed)
        seen = [_copied(observed)]
        for _ in range(QUICK_STEPS):
            observation, _, terminated, truncated, info = _step(env, name, _sampled(env, info))
            seen.append(_copied(observation))
            if terminated or truncated:
                break
        return seen

    once, again, other = (trajectory(s) for s in (seed, seed, seed + 1))
    if not _equal(once, again):
        report.error(
            f"two resets of {name} with the same seed lead to different episodes, so runs cannot be repeated: call "
            "super().reset(seed=seed) and draw from self.np_random"
        )
    elif _equal(once, other) and not _equal(_copied(_reset(env, name)[0]), _copied(_reset(env, name)[0])):
        report.warning(
            f"different seeds start {name} alike, though unseeded resets differ: draw from self.np_random after "
            "super().reset(seed=seed)"
        )


def _sampled(env: Any, info: dict[str, Any]) -> Any:
    """A random action, among those that a mask allows."""
    mask, space = info.get("action_mask"), env.action_space
    if isinstance(space, spaces.Discrete) and mask is not None:
        allowed = np.flatnonzero(np.asarray(mask).ravel()[: int(space.n)])
        if len(allowed):
            return int(space.start + allowed[int(space.np_random.integers(len(allowed)))])
    return space.sample()


def _copied(x: Any) -> Any:
    if isinstance(x, dict):
        return {key: _copied(value) for key, value in x.items()}
    return [_copied(part) for part in x] if isinstance(x, tuple | list) else np.array(x)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return np.array_equal(np.asarray(a), np.asarray(b))


def _brief(x: Any) -> str:
    text = " ".join(repr(x).split())
    return text if len(text) < 60 else f"{text[:57]}…"
