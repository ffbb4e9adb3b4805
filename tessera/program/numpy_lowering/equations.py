"""A traced function as one flat list of equations: calls are inlined, repeated and idle equations left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

CALLS = {
    "checkpoint",
    "closed_call",
    "core_call",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vmap_call",
    "eval_jaxpr",
    "jit",
    "pjit",
    "remat2",
}
"""Primitives that only call a function of their own."""
FORWARDS = {"copy", "copy_p", "name", "optimization_barrier", "stop_gradient"}
"""Primitives that return their inputs."""
SAME_IF_SHAPED = {"reshape", "broadcast_in_dim", "squeeze", "slice", "convert_element_type", "transpose"}
"""Primitives that do nothing if neither shape nor dtype changes (a transpose: with one axis at most)."""
NEUTRAL: dict[str, tuple[float | None, float | None]] = {
    "add": (0.0, 0.0),
    "sub": (None, 0.0),
    "mul": (1.0, 1.0),
    "div": (None, 1.0),
    "max": (-math.inf, -math.inf),
    "min": (math.inf, math.inf),
}
"""The neutral number as the first and as the second operand."""


class Unsupported(Exception):
    """A function cannot be flattened, or an equation has no form in NumPy."""


@dataclass(eq=False)
class Value:
    """The result of an equation, an input, or a constant."""

    shape: tuple[int, ...]
    dtype: Any
    number: int
    """Its index in the list of all values."""
    constant: Any = None
    maker: Equation | None = None

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)


@dataclass(eq=False)
class Equation:
    """One primitive applied to values."""

    primitive: Any
    params: dict[str, Any]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @property
    def name(self) -> str:
        """The primitive's name."""
        return self.primitive.name


@dataclass
class Flat:
    """A function's equations in order; values are numbered from 0."""

    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    equations: list[Equation] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    _made: dict[Any, tuple[Value, ...]] = field(default_factory=dict)

    def value(self, aval: Any, constant: Any = None) -> Value:
        """Add a value."""
        made = Value(tuple(aval.shape), aval.dtype, len(self.values), constant)
        self.values.append(made)
        return made

    def emit(self, primitive: Any, params: dict[str, Any], inputs: tuple[Value, ...], avals: Sequence[Any]) -> Any:
        """Add an equation, unless its outputs are known already."""
        inputs = _seen_through(primitive.name, inputs)
        known = _forwarded(primitive.name, params, inputs, avals)
        if known is not None:
            return known
        key = _key(primitive.name, params, inputs)
        if key is not None and key in self._made:
            return self._made[key]
        made = Equation(primitive, params, inputs, tuple(self.value(a) for a in avals))
        for output in made.outputs:
            output.maker = made
        self.equations.append(made)
        if key is not None:
            self._made[key] = made.outputs
        return made.outputs

    def live(self) -> list[Equation]:
        """Equations that outputs depend on."""
        wanted = {v.number for v in self.outputs}
        kept = []
        for equation in reversed(self.equations):
            if any(v.number in wanted for v in equation.outputs):
                kept.append(equation)
                wanted |= {v.number for v in equation.inputs}
        return kept[::-1]


def flatten(closed: ClosedJaxpr) -> Flat:
    """Inline a traced function."""
    if closed.jaxpr.effects:
        raise Unsupported(f"effects {closed.jaxpr.effects}")
    flat = Flat()
    flat.inputs = [flat.value(v.aval) for v in closed.jaxpr.invars]
    flat.outputs = _inline(flat, closed.jaxpr, closed.consts, flat.inputs)
    return flat


def _inline(flat: Flat, jaxpr: Any, consts: Iterable[Any], arguments: Sequence[Value]) -> list[Value]:
    environment: dict[Any, Value] = dict(zip(jaxpr.invars, arguments, strict=True))
    environment |= {v: flat.value(v.aval, _constant(c)) for v, c in zip(jaxpr.constvars, consts, strict=True)}

    def read(atom: Any) -> Value:
        if not isinstance(atom, Literal):
            return environment[atom]
        aval: Any = atom.aval
        return flat.value(aval, np.asarray(atom.val, aval.dtype))

    for equation in jaxpr.eqns:
        inputs = tuple(read(a) for a in equation.invars)
        inner = called(equation)
        if inner is not None:
            outputs: Sequence[Value] = _inline(flat, *inner, inputs)
        else:
            outputs = flat.emit(equation.primitive, equation.params, inputs, [v.aval for v in equation.outvars])
        environment |= dict(zip(equation.outvars, outputs, strict=True))
    return [read(a) for a in jaxpr.outvars]


def called(equation: Any) -> tuple[Any, Sequence[Any]] | None:
    """The function that an equation of a traced function only calls, with its constants; None if it does more."""
    if equation.primitive.name not in CALLS:
        return None
    inner: Any = next(equation.params[name] for name in ("jaxpr", "call_jaxpr", "call") if name in equation.params)
    return getattr(inner, "jaxpr", inner), getattr(inner, "consts", ())


def _constant(x: Any) -> np.ndarray:
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        raise Unsupported(f"a constant of {x.dtype}")
    return np.asarray(x)


def _seen_through(name: str, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
    """The input of a reshape, before earlier reshapes."""
    while name == "reshape" and (maker := inputs[0].maker) is not None and maker.name == "reshape":
        inputs = maker.inputs
    return inputs


def _forwarded(
    name: str, params: dict[str, Any], inputs: tuple[Value, ...], avals: Sequence[Any]
) -> tuple[Value, ...] | None:
    """The inputs that an equation only returns; None if it computes anything."""
    if name in FORWARDS:
        return inputs
    if name in SAME_IF_SHAPED and (inputs[0].shape, inputs[0].dtype) == (avals[0].shape, avals[0].dtype):
        return inputs[:1] if name != "transpose" or len(inputs[0].shape) < 2 else None
    if name in NEUTRAL:
        for number, here, other in zip(NEUTRAL[name], inputs, inputs[::-1], strict=True):
            if other.shape == avals[0].shape and _is(here, number):
                return (other,)
    maker = inputs[0].maker if inputs else None
    if name == "split" and maker is not None and maker.name == "concatenate":
        sizes = tuple(v.shape[params["axis"]] for v in maker.inputs)
        if maker.params["dimension"] == params["axis"] and sizes == tuple(params["sizes"]):
            return maker.inputs
    return None


def _is(value: Value, number: float | None) -> bool:
    return number is not None and value.constant is not None and bool(np.all(value.constant == number))


def _key(name: str, params: dict[str, Any], inputs: tuple[Value, ...]) -> Any:
    """A key that equal results have in common; None if there is none."""
    key = (name, tuple(sorted(params.items())), tuple(_identity(v) for v in inputs))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _identity(value: Value) -> Any:
    """What identifies a value: its number, or the bytes of a small constant."""
    if value.constant is None or value.constant.size > 1:
        return value.number
    return value.constant.dtype.str, value.shape, value.constant.tobytes()
