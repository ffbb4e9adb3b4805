"""Transforms of observations: hide, stack, scale, normalise."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from tessera.envs.base import Array, Environment, Spec, first_array, map_arrays
from tessera.envs.wrappers.transform import Arrays, Outcome, Transform
from tessera.errors import TesseraError

UNBOUNDED = 1e30
"""Bounds beyond it stand for none: some spaces write the largest float instead of infinity."""
FARTHEST = 10.0
"""Standard deviations to which normalised observations are clipped."""


class Observed(Transform):
    """A transform of each observation by itself."""

    def observe(self, observation: Any, arrays: Arrays) -> Any:
        """What is shown for an observation."""
        raise NotImplementedError

    def start(self, observation: Any, memory: Any, arrays: Arrays) -> tuple[Any, Any]:
        """Show the first observation."""
        return (), self.observe(observation, arrays)

    def after(self, memory: Any, outcome: Outcome, arrays: Arrays) -> tuple[Any, Outcome]:
        """Show the observation of a step."""
        return memory, outcome._replace(observation=self.observe(outcome.observation, arrays))


class Hide(Observed):
    """Leaves entries out of a flat observation, so that good actions need memory."""

    def __init__(self, env: Environment, entries: Any) -> None:
        entries = tuple(entries) if isinstance(entries, tuple | list) else (entries,)
        if not all(isinstance(entry, int) and not isinstance(entry, bool) for entry in entries):
            raise TesseraError(f"hide={_text(entries)}: name entries of the observation by number, as in hide=1,3")
        shape = _one_array(env, "hide").shape
        if len(shape) != 1 or env.spec.agents:
            raise TesseraError(f"hide is for flat observations of one agent, and those of {env.name} are {shape}")
        self._kept = np.setdiff1d(np.arange(shape[0]), entries)
        if not len(self._kept) or any(not 0 <= entry < shape[0] for entry in entries):
            raise TesseraError(
                f"hide={_text(entries)}: {env.name} observes entries 0 to {shape[0] - 1}; name some, not all"
            )
        self.words = f"entries {_text(entries)} of observations hidden"

    def spec(self, spec: Spec) -> Spec:
        """Fewer entries."""
        return dataclasses.replace(spec, observation_shape=(len(self._kept),))

    def bounds(self, bounds: Any) -> Any:
        """Those of the entries that are left."""
        return None if bounds is None else tuple(bound[self._kept] for bound in bounds)

    def observe(self, observation: Any, arrays: Arrays) -> Any:
        """The entries that are left."""
        return arrays.xp.take(observation, self._kept, axis=-1)


class Stack(Transform):
    """Shows the last observations together, the newest last; its memory is the stack."""

    def __init__(self, env: Environment, size: Any) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise TesseraError(f"stack={size}: give the number of observations to stack, as in stack=4")
        spec = env.spec
        self._size, self._agents = size, 1 if spec.agents else 0
        for one, other in zip(spec.parts.values(), self.spec(spec).parts.values(), strict=True):
            before, after = (part.shape[self._agents :] for part in (one, other))
            if _planes_first(before, one.dtype) != _planes_first(after, one.dtype):
                raise TesseraError(
                    f"stack={size}: {before} observations of {env.name} would become {after}, where channels and "
                    "rows look alike: stack fewer"
                )
        self.words = f"{size} observations stacked"

    def spec(self, spec: Spec) -> Spec:
        """As many times the channels, or entries."""
        stacked = map_arrays(lambda x: self._repeated(x, Arrays(np, 0)), spec.zeros(np))
        return dataclasses.replace(spec, observation_shape=map_arrays(np.shape, stacked))

    def bounds(self, bounds: Any) -> Any:
        """The same for each of the observations."""
        return None if bounds is None else tuple(self._repeated(bound, Arrays(np, 0)) for bound in bounds)

    def start(self, observation: Any, memory: Any, arrays: Arrays) -> tuple[Any, Any]:
        """A stack of first observations."""
        stack = map_arrays(lambda x: self._repeated(x, arrays), observation)
        return stack, stack

    def after(self, memory: Any, outcome: Outcome, arrays: Arrays) -> tuple[Any, Outcome]:
        """The oldest observation leaves the stack, the new one joins it."""
        stack = map_arrays(lambda stack, x: self._pushed(stack, x, arrays), memory, outcome.observation)
        return stack, outcome._replace(observation=stack)

    def _repeated(self, x: Any, arrays: Arrays) -> Any:
        x, axis = self._with_axis(x, arrays)
        return arrays.xp.concatenate([x] * self._size, axis)

    def _pushed(self, stack: Any, x: Any, arrays: Arrays) -> Any:
        x, axis = self._with_axis(x, arrays)
        kept = tuple(slice(x.shape[axis] if k == axis % x.ndim else None, None) for k in range(x.ndim))
        return arrays.xp.concatenate([stack[kept], x], axis)

    def _with_axis(self, x: Any, arrays: Arrays) -> tuple[Any, int]:
        """An observation with the axis along which it is stacked: its channels, its entries, or a new one."""
        x = arrays.xp.asarray(x)
        shape = x.shape[arrays.lead + self._agents :]
        if len(shape) in (0, 2):
            return x[..., None], -1
        return x, -3 if _planes_first(shape, x.dtype) else -1


class Scale(Observed):
    """Brings real observations with finite bounds to [-1, 1], and bytes to [0, 1]."""

    def __init__(self, env: Environment) -> None:
        self._low: Any = np.float32(0)
        self._span: Any = np.float32(255)
        self._bytes = _one_array(env, "scale").dtype == "uint8"
        self.words = "bytes of observations scaled to [0, 1]"
        if self._bytes:
            return
        bounds = getattr(env, "observation_bounds", None)
        if bounds is None or max(np.abs(bound).max() for bound in bounds) > UNBOUNDED:
            raise TesseraError(
                f"scale needs observations with finite bounds, and {env.name} names none for all of its entries: "
                "use normalise instead"
            )
        low, high = (np.asarray(bound, np.float32) for bound in bounds)
        self._low, self._span = low, np.where(high > low, high - low, np.float32(1))
        self.words = "observations scaled to [-1, 1]"

    def spec(self, spec: Spec) -> Spec:
        """Real numbers."""
        return dataclasses.replace(spec, observation_dtype="float32")

    def bounds(self, bounds: Any) -> Any:
        """Those that it scales to."""
        return None if bounds is None else (np.full_like(bounds[0], float(self._bytes) - 1), np.ones_like(bounds[1]))

    def observe(self, observation: Any, arrays: Arrays) -> Any:
        """The scaled observation."""

        def leaf(x: Any) -> Any:
            share = (arrays.xp.asarray(x, np.float32) - self._low) / self._span
            return share if self._bytes else 2 * share - 1

        return map_arrays(leaf, observation)


class Running(NamedTuple):
    """How many observations there were, and their mean and variance, entry by entry."""

    count: Any
    mean: Any
    variance: Any


class Normalise(Transform):
    """Shows observations by their distance from the mean of all before, in standard deviations.

    Each environment has statistics of its own, which last over episodes. So they depend on nothing but what this
    environment has played, wherever it is played.
    """

    words = "observations normalised by the statistics of each environment"
    keeps = "the statistics of ?normalise"

    def __init__(self, env: Environment) -> None:
        if _one_array(env, "normalise").dtype == "uint8":
            raise TesseraError(f"normalise is for real numbers, and {env.name} observes bytes: use scale instead")

    def bounds(self, bounds: Any) -> Any:
        """They are clipped."""
        return None if bounds is None else (np.full_like(bounds[0], -FARTHEST), np.full_like(bounds[1], FARTHEST))

    def start(self, observation: Any, memory: Any, arrays: Arrays) -> tuple[Any, Any]:
        """First observations count like others."""
        if memory is None:
            zeros = map_arrays(lambda x: arrays.xp.zeros_like(x, dtype=np.float32), observation)
            shape = np.shape(first_array(observation))[: arrays.lead]
            memory = Running(arrays.xp.zeros(shape, np.int32), zeros, zeros)
        return self._seen(memory, observation, arrays.xp)

    def after(self, memory: Any, outcome: Outcome, arrays: Arrays) -> tuple[Any, Outcome]:
        """Count the observation, then normalise it."""
        memory, observation = self._seen(memory, outcome.observation, arrays.xp)
        return memory, outcome._replace(observation=observation)

    def _seen(self, running: Running, observation: Any, xp: Any) -> tuple[Running, Any]:
        count = running.count + 1

        def share(x: Any) -> Any:
            return x / count.astype(np.float32).reshape(count.shape + (1,) * (x.ndim - count.ndim))

        observation = map_arrays(lambda x: xp.asarray(x, np.float32), observation)
        mean = map_arrays(lambda m, x: m + share(x - m), running.mean, observation)
        spread = (running.variance, running.mean, mean, observation)
        variance = map_arrays(lambda v, before, m, x: v + share((x - before) * (x - m) - v), *spread)
        shown = map_arrays(
            lambda x, m, v: xp.clip((x - m) / xp.sqrt(v + np.float32(1e-8)), -FARTHEST, FARTHEST),
            observation, mean, variance,
        )  # fmt: skip
        return Running(count, mean, variance), shown


def _one_array(env: Environment, wrapper: str) -> Array:
    """The one array of an observation; refuse a tree."""
    if env.spec.is_tree:
        raise TesseraError(
            f"{wrapper} is for observations of one array, and those of {env.name} have "
            f"{', '.join(env.spec.parts)}: leave {wrapper} out"
        )
    return env.spec.array


def _planes_first(shape: tuple[int, ...], dtype: Any) -> bool:
    """Whether byte images have their channels first; `networks` reads them by the same rule."""
    return len(shape) == 3 and np.dtype(dtype) == np.uint8 and shape[0] < min(shape[1:])


def _text(entries: tuple[Any, ...]) -> str:
    return ",".join(map(str, entries))
