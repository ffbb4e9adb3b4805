"""A function of a loop's steps, computed in stages: each part only when its inputs change."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from tessera.program.numpy_lowering.equations import Equation, Unsupported, Value, flatten
from tessera.program.numpy_lowering.numpy_forms import Step, Writer

CONSTANT, HELD, KEYED, STEPPED = range(4)
"""Inputs of a value: none; values that the loop does not change; random keys and the step number; anything else."""


@dataclass(eq=False)
class Unroll:
    """Values that are computed before the first step of an unroll."""

    values: list[Any]
    """Every value of the function; those that change from step to step are empty."""
    rows: list[tuple[np.ndarray, ...]]
    """For each step, the random numbers drawn with its keys; empty if there are none."""


class Staged:
    """A traced function: JAX computes what depends on keys, for all steps at once, and NumPy everything else.

    Args:
        closed: the function.
        kinds: the kind of each input: HELD, KEYED or STEPPED.
        index: the input that is the step number.
        count: steps of an unroll.
    """

    def __init__(self, closed: ClosedJaxpr, kinds: Sequence[int], index: int, count: int) -> None:
        flat = flatten(closed)
        of = {v.number: kind for v, kind in zip(flat.inputs, kinds, strict=True)}
        parts = _parts(flat.live(), of)
        reads = [[v for e in part for v in e.inputs] for part in parts]
        self.multiplications = sum(map(_multiplications, parts[STEPPED]))

        writer = Writer()
        self._values: list[Any] = [v.constant for v in flat.values]
        kept = [*reads[HELD], *reads[KEYED], *reads[STEPPED], *flat.outputs]
        _run(writer.steps(parts[CONSTANT], kept), self._values)
        self._hold = writer.steps(parts[HELD], [*reads[STEPPED], *flat.outputs])
        # NumPy turns arrays without dimensions into scalars, which are slower
        self._scalars = [v.number for e in parts[HELD] for v in e.outputs if not v.shape]
        self.steps = writer.steps(parts[STEPPED], flat.outputs)

        def inputs(kind: int, values: Iterable[Value]) -> list[int]:
            numbers = {v.number for v in values}
            return [v.number for v in flat.inputs if v.number in numbers and of[v.number] == kind]

        wanted = [*reads[STEPPED], *flat.outputs]
        self._held = inputs(HELD, [*reads[HELD], *wanted])
        self.arrays = inputs(STEPPED, reads[STEPPED])
        """Numbers of the inputs that NumPy reads at each step."""
        self.passed = [n for n in inputs(STEPPED, flat.outputs) if n not in self.arrays]
        """Numbers of the inputs that are only passed on."""
        self.steps += [step for v in flat.outputs for step in writer.whole(v)]
        self.steps += [step for v in flat.outputs if v.number not in self.passed for step in writer.owned(v)]
        self._outputs = [writer.place(v) for v in flat.outputs]

        drawn = list({v.number: v for v in wanted if of.get(v.number) == KEYED}.values())
        if any(jnp.issubdtype(v.dtype, jax.dtypes.extended) for v in drawn):
            raise Unsupported("keys that are used together with observations")
        self._drawn = [v.number for v in drawn]
        self._keys = [n for n in inputs(KEYED, reads[KEYED]) if n != index]
        folded = [v for v in reads[KEYED] if of.get(v.number, CONSTANT) == CONSTANT]
        constants = {v.number: np.broadcast_to(self._values[writer.place(v)], v.shape) for v in folded}
        self._draw = _drawing(parts[KEYED], drawn, constants, self._keys, index, count)

    @property
    def draws(self) -> bool:
        """Whether its steps read random numbers."""
        return bool(self._drawn)

    def unroll(self, inputs: Sequence[Any]) -> Unroll:
        """Compute what depends on held values and keys alone, for all steps."""
        # JAX draws while NumPy computes
        drawn = self._draw(*(inputs[n] for n in self._keys)) if self._drawn else ()
        values = self._values.copy()
        for n in self._held:
            values[n] = np.array(inputs[n])  # a copy: the buffer may be donated while it is still read here
        _run(self._hold, values)
        for n in self._scalars:
            values[n] = np.asarray(values[n])
        return Unroll(values, list(zip(*map(np.asarray, drawn), strict=True)))

    def step(self, unroll: Unroll, t: int, values: list[Any]) -> list[Any]:
        """Compute one step on a copy of the unroll's values that has the step's inputs."""
        if self._drawn:
            for n, x in zip(self._drawn, unroll.rows[t], strict=True):
                values[n] = x
        _run(self.steps, values)
        return [values[n] for n in self._outputs]


def _run(steps: list[Step], values: list[Any]) -> None:
    with np.errstate(all="ignore"):  # infinities and nan raise no warnings, as in JAX
        for step in steps:
            step(values)


def _parts(equations: Sequence[Equation], of: dict[int, int]) -> list[list[Equation]]:
    """Sort equations by their kind; `of` has the kinds of the inputs, and gets those of all other values."""
    parts: list[list[Equation]] = [[], [], [], []]
    for equation in equations:
        kinds = {of.get(v.number, CONSTANT) for v in equation.inputs} - {CONSTANT}
        kind = STEPPED if len(kinds) > 1 else kinds.pop() if kinds else CONSTANT
        parts[kind].append(equation)
        of |= {v.number: kind for v in equation.outputs}
    return parts


def _drawing(
    equations: list[Equation],
    drawn: list[Value],
    constants: dict[int, Any],
    keys: list[int],
    index: int,
    count: int,
) -> Any:
    """Compile what depends on keys, for all steps at once: keys -> list of arrays [count, ...]."""

    def one(t: jax.Array, *given: jax.Array) -> list[Any]:
        known = {**constants, **dict(zip(keys, given, strict=True)), index: t}
        for equation in equations:
            made = equation.primitive.bind(*(known[v.number] for v in equation.inputs), **equation.params)
            several = equation.primitive.multiple_results
            known |= zip((v.number for v in equation.outputs), made if several else (made,), strict=True)
        return [known[v.number] for v in drawn]

    def every(*given: jax.Array) -> list[Any]:
        return jax.vmap(lambda t: one(t, *given))(jnp.arange(count, dtype=jnp.int32))

    return jax.jit(every)


def _multiplications(equation: Equation) -> int:
    if equation.name != "dot_general":
        return 0
    x, w = equation.inputs
    contracted = math.prod(w.shape[d] for d in equation.params["dimension_numbers"][0][1])
    return x.size * w.size // max(contracted, 1)
