"""The NumPy form of flat equations: one closure per equation, over a list of all values.

NumPy broadcasts by its own rules where it can, so an array may be held in a smaller shape that only broadcasts to its
full shape; it is expanded where a form needs the full shape. Results that are not read any more are overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from tessera.program.numpy_lowering.equations import Equation, Unsupported, Value

Step = Callable[[list[Any]], None]
"""One equation: reads its inputs from the list of values and writes its output there."""


ONE_THREAD = 1 << 18
"""Multiplications up to which OpenBLAS computes a product in one thread. For larger products it waits for its threads,
8 ms and more on busy cores, so they are computed in blocks of rows."""

DTYPES = frozenset(np.dtype(d) for d in ("bool", "int32", "int64", "uint8", "uint32", "uint64", "float32", "float64"))

UFUNCS: dict[str, np.ufunc] = {
    "abs": np.abs,
    "add": np.add,
    "add_any": np.add,
    "and": np.bitwise_and,
    "ceil": np.ceil,
    "cos": np.cos,
    "div": np.divide,
    "eq": np.equal,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "floor": np.floor,
    "ge": np.greater_equal,
    "gt": np.greater,
    "is_finite": np.isfinite,
    "le": np.less_equal,
    "log": np.log,
    "log1p": np.log1p,
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "pow": np.power,
    "sign": np.sign,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "square": np.square,
    "sub": np.subtract,
    "tanh": np.tanh,
    "xor": np.bitwise_xor,
}
FLOATING = {"div", "pow"}
"""Ufuncs that differ from JAX for integers."""
REDUCTIONS: dict[str, np.ufunc] = {
    "reduce_and": np.bitwise_and,
    "reduce_max": np.maximum,
    "reduce_min": np.minimum,
    "reduce_or": np.bitwise_or,
    "reduce_prod": np.multiply,
    "reduce_sum": np.add,
}
CUMULATIVE: dict[str, np.ufunc] = {
    "cummax": np.maximum,
    "cummin": np.minimum,
    "cumprod": np.multiply,
    "cumsum": np.add,
}
VIEWS = {"broadcast_in_dim", "reshape", "rev", "slice", "split", "squeeze", "transpose", "unstack"}
"""Primitives whose results share memory with their inputs."""


class Writer:
    """Writes the steps of equations, and tracks the shapes and places of values for later equations."""

    def __init__(self) -> None:
        self._place: dict[int, int] = {}
        self._shape: dict[int, tuple[int, ...]] = {}

    def place(self, value: Value) -> int:
        """The place of a value in the list of values."""
        return self._place.get(value.number, value.number)

    def steps(self, equations: Sequence[Equation], kept: Iterable[Value]) -> list[Step]:
        """Write the steps of equations; `kept` are values that are read afterwards."""
        owners = _Owners(equations, kept)
        steps: list[Step] = []
        for index, equation in enumerate(equations):
            for value in (*equation.inputs, *equation.outputs):
                if value.dtype not in DTYPES:
                    raise Unsupported(f"dtype {value.dtype}")
            steps += self._equation(index, equation, owners)
        return steps

    def whole(self, value: Value) -> list[Step]:
        """Write steps that expand a value to its full shape, if it is held in a smaller one."""
        if self._held(value) == value.shape:
            return []
        step = _unary(partial(_spread, shape=value.shape), self.place(value), value.number)
        del self._shape[value.number]
        self._place.pop(value.number, None)
        return [step]

    def owned(self, value: Value) -> list[Step]:
        """Write a step that copies a value, if it shares memory with an input."""
        source = value
        while source.maker is not None and source.maker.name in VIEWS:
            source = source.maker.inputs[0]
        if source.maker is not None:
            return []
        return [_unary(np.array, self.place(value), self.place(value))]

    def _equation(self, index: int, equation: Equation, owners: _Owners) -> list[Step]:
        name = equation.name
        if name == "broadcast_in_dim":
            return self._broadcast(equation)
        if name in UFUNCS or name in ELEMENTWISE or name in ("select_n", "clamp"):
            return self._elementwise(index, equation, owners)
        if name not in WHOLE:
            raise Unsupported(f"primitive {name}")
        before = [s for value in equation.inputs for s in self.whole(value)]
        forms = WHOLE[name](equation)
        inputs = [self.place(v) for v in equation.inputs]
        return before + [_step(f, inputs, o.number) for f, o in zip(forms, equation.outputs, strict=True)]

    def _held(self, value: Value) -> tuple[int, ...]:
        return self._shape.get(value.number, value.shape)

    def _broadcast(self, equation: Equation) -> list[Step]:
        (value, *_), (output,) = equation.inputs, equation.outputs
        held = self._held(value)
        if len(held) < len(value.shape):
            held = (1,) * (len(value.shape) - len(held)) + held
        shape = [1] * len(output.shape)
        for dimension, size in zip(equation.params["broadcast_dimensions"], held, strict=True):
            shape[dimension] = size
        last = tuple(shape[len(shape) - len(held) :])
        if last == held and self._held(value) == held:  # only leading axes are new: NumPy adds them
            self._place[output.number], self._shape[output.number] = self.place(value), held
            return []
        self._shape[output.number] = tuple(shape)
        return [_unary(_reshaped(tuple(shape)), self.place(value), output.number)]

    def _elementwise(self, index: int, equation: Equation, owners: _Owners) -> list[Step]:
        name, (output,), inputs = equation.name, equation.outputs, equation.inputs
        self._shape[output.number] = shape = np.broadcast_shapes(*(self._held(v) for v in inputs))
        places = [self.place(v) for v in inputs]
        if name not in UFUNCS:
            form = {"select_n": _select, "clamp": _clamp}.get(name) or ELEMENTWISE[name]
            return [_step(form(equation), places, output.number)]
        if len({v.dtype for v in inputs}) > 1 or (name in FLOATING and output.dtype.kind != "f"):
            raise Unsupported(f"{name} of {[str(v.dtype) for v in inputs]}")
        for value in inputs:
            alike = (self._held(value), value.dtype) == (shape, output.dtype)
            if alike and shape and owners.free(value, index):
                places.append(self.place(value))
                break
        return [_step(UFUNCS[name], places, output.number)]


class _Owners:
    """The values that share memory, and the last equation that reads it."""

    def __init__(self, equations: Sequence[Equation], outputs: Iterable[Value]) -> None:
        self._owner: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._fresh: set[int] = set()
        for index, equation in enumerate(equations):
            for value in equation.inputs:
                self._last[self._of(value)] = index
            if equation.name in VIEWS:
                self._owner |= {v.number: self._of(equation.inputs[0]) for v in equation.outputs}
            else:
                self._fresh |= {v.number for v in equation.outputs}
        for value in outputs:
            self._last[self._of(value)] = len(equations)

    def _of(self, value: Value) -> int:
        return self._owner.get(value.number, value.number)

    def free(self, value: Value, index: int) -> bool:
        """Whether equation `index`, which reads a value, may write over it."""
        owner = self._of(value)
        return owner in self._fresh and self._last[owner] == index


def _step(form: Callable[..., Any], inputs: list[int], out: int) -> Step:
    match inputs:
        case []:
            return partial(_nullary, form, out)
        case [a]:
            return _unary(form, a, out)
        case [a, b]:

            def binary(v: list[Any]) -> None:
                v[out] = form(v[a], v[b])

            return binary
        case [a, b, c]:

            def ternary(v: list[Any]) -> None:
                v[out] = form(v[a], v[b], v[c])

            return ternary

    def any_number(v: list[Any]) -> None:
        v[out] = form(*[v[i] for i in inputs])

    return any_number


def _nullary(form: Callable[[], Any], out: int, v: list[Any]) -> None:
    v[out] = form()


def _unary(form: Callable[[Any], Any], a: int, out: int) -> Step:
    def unary(v: list[Any]) -> None:
        v[out] = form(v[a])

    return unary


def _spread(x: Any, shape: tuple[int, ...]) -> np.ndarray:
    return np.array(np.broadcast_to(x, shape))


def _reshaped(shape: tuple[int, ...]) -> Callable[[Any], Any]:
    return lambda x: x.reshape(shape)


def _indexed(where: tuple[Any, ...]) -> Callable[[Any], Any]:
    return lambda x: x[where]


def _select(equation: Equation) -> Callable[..., Any]:
    if equation.inputs[0].dtype != np.bool_ or len(equation.inputs) != 3:
        raise Unsupported("select_n of more than two")
    return lambda which, no, yes: np.where(which, yes, no)


def _clamp(equation: Equation) -> Callable[..., Any]:
    return lambda low, x, high: np.minimum(np.maximum(low, x), high)


def _convert(equation: Equation) -> Callable[[Any], Any]:
    source, target = equation.inputs[0].dtype, equation.outputs[0].dtype
    if target.kind == "b":
        return lambda x: np.not_equal(x, 0)
    if source.kind != "f" or target.kind == "f":
        return lambda x: x.astype(target)
    # XLA clamps numbers that are too large, NumPy wraps them
    bounds = np.iinfo(target)
    low, high = np.asarray(bounds.min, source), np.nextafter(source.type(2.0 * (bounds.max // 2 + 1)), source.type(0))
    return lambda x: np.minimum(np.maximum(x, low), high).astype(target)


def _integer_power(equation: Equation) -> Callable[[Any], Any]:
    power, dtype = equation.params["y"], equation.inputs[0].dtype
    if power == 2:
        return np.square
    if dtype.kind != "f":
        raise Unsupported("power of integers")
    return lambda x: np.power(x, dtype.type(power))


def _reciprocal_root(equation: Equation) -> Callable[[Any], Any]:
    one = np.ones((), equation.inputs[0].dtype)
    return lambda x: np.divide(one, np.sqrt(x))


def _logistic(equation: Equation) -> Callable[[Any], Any]:
    one = np.ones((), equation.inputs[0].dtype)
    return lambda x: np.divide(one, np.add(np.exp(np.negative(x)), one))


ELEMENTWISE: dict[str, Callable[[Equation], Callable[..., Any]]] = {
    "convert_element_type": _convert,
    "integer_pow": _integer_power,
    "logistic": _logistic,
    "rsqrt": _reciprocal_root,
}
"""Forms that take inputs of any shapes that broadcast."""


def _product(equation: Equation) -> list[Callable[..., Any]]:
    (x, w), ((contract_x, contract_w), batch) = equation.inputs, equation.params["dimension_numbers"]
    output = equation.outputs[0]
    plain = len(x.shape) == len(w.shape) == 2 and len(contract_x) == 1 and not any(map(len, batch))
    if not plain or {x.dtype, w.dtype} != {output.dtype}:
        raise Unsupported("dot_general of such operands")
    turn_x, turn_w = contract_x[0] == 0, contract_w[0] == 1
    rows, block = output.shape[0], max(1, ONE_THREAD // max(w.size, 1))
    if block >= rows and not (turn_x or turn_w):
        return [np.dot]

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = a.T if turn_x else a, b.T if turn_w else b
        out = np.empty(output.shape, output.dtype)
        for row in range(0, rows, block):
            np.dot(a[row : row + block], b, out[row : row + block])
        return out

    return [product]


def _reduction(equation: Equation) -> list[Callable[[Any], Any]]:
    axes = tuple(int(a) for a in equation.params["axes"])
    reduce, dtype = REDUCTIONS[equation.name].reduce, equation.outputs[0].dtype
    axis = axes[0] if len(axes) == 1 else axes
    return [lambda x: reduce(x, axis, dtype)]


def _accumulation(equation: Equation) -> list[Callable[[Any], Any]]:
    axis, accumulate = equation.params["axis"], CUMULATIVE[equation.name].accumulate
    if equation.params["reverse"]:
        return [lambda x: np.flip(accumulate(np.flip(x, axis), axis, x.dtype), axis)]
    return [lambda x: accumulate(x, axis, x.dtype)]


def _extreme(equation: Equation) -> list[Callable[[Any], Any]]:
    (axis,), dtype = equation.params["axes"], equation.outputs[0].dtype
    find = np.argmax if equation.name == "argmax" else np.argmin
    return [lambda x: find(x, axis).astype(dtype)]


def _reshape(equation: Equation) -> list[Callable[[Any], Any]]:
    if equation.params.get("dimensions") is not None:
        raise Unsupported("reshape of permuted dimensions")
    return [_reshaped(equation.outputs[0].shape)]


def _slice(equation: Equation) -> list[Callable[[Any], Any]]:
    p = equation.params
    strides = p["strides"] or (1,) * len(p["start_indices"])
    return [_indexed(tuple(map(slice, p["start_indices"], p["limit_indices"], strides)))]


def _split(equation: Equation) -> list[Callable[[Any], Any]]:
    ends = np.cumsum((0, *equation.params["sizes"])).tolist()
    before = (slice(None),) * equation.params["axis"]
    return [_indexed((*before, slice(a, b))) for a, b in pairwise(ends)]


def _unstack(equation: Equation) -> list[Callable[[Any], Any]]:
    before = (slice(None),) * equation.params["axis"]
    return [_indexed((*before, k)) for k in range(len(equation.outputs))]


def _iota(equation: Equation) -> list[Callable[[], Any]]:
    output, dimension = equation.outputs[0], equation.params["dimension"]
    shape = [n if k == dimension else 1 for k, n in enumerate(output.shape)]
    return [lambda: np.array(np.broadcast_to(np.arange(max(shape), dtype=output.dtype).reshape(shape), output.shape))]


def _concatenate(equation: Equation) -> list[Callable[..., Any]]:
    axis = equation.params["dimension"]
    return [lambda *xs: np.concatenate(xs, axis)]


def _stack(equation: Equation) -> list[Callable[..., Any]]:
    axis, shape = equation.params["axis"], list(equation.outputs[0].shape)
    shape[axis] = 1
    return [lambda *xs: np.concatenate([x.reshape(shape) for x in xs], axis)]


WHOLE: dict[str, Callable[[Equation], Sequence[Callable[..., Any]]]] = {
    **dict.fromkeys(REDUCTIONS, _reduction),
    **dict.fromkeys(CUMULATIVE, _accumulation),
    "argmax": _extreme,
    "argmin": _extreme,
    "concatenate": _concatenate,
    "dot_general": _product,
    "iota": _iota,
    "reshape": _reshape,
    "rev": lambda e: [partial(np.flip, axis=tuple(e.params["dimensions"]))],
    "slice": _slice,
    "split": _split,
    "squeeze": lambda e: [_reshaped(e.outputs[0].shape)],
    "stack": _stack,
    "transpose": lambda e: [partial(np.transpose, axes=tuple(e.params["permutation"]))],
    "unstack": _unstack,
}
"""Forms that need inputs in their full shape; one for each output."""
