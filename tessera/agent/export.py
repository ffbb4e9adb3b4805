"""The greedy `act` as a file that needs no Tessera: StableHLO by `jax.export`, or ONNX by `jax2onnx`.

The function is (observation, *memory) -> (action, *memory), with a leading axis of entries everywhere. Memory is what a
call changes, so a network without a core has none; an episode begins with `Agent.initial_memory`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from tessera.agent.acting import Actor, act_function, example_of, on_cpu
from tessera.errors import TesseraError
from tessera.program.numpy_lowering.equations import called
from tessera.support.extras import install_hint
from tessera.support.files import write_bytes

CALLS = 4
"""Calls, one after the other, in which an exported function is compared with the agent."""
ENTRIES = 256
"""Random observations in each, if the function takes any number."""
TOLERANCE = 1e-4
PLATFORMS = ("cpu", "cuda")

Run = Callable[..., Sequence[Any]]
"""(observations, *memory) -> (actions, *memory)."""
Shapes = Sequence[jax.ShapeDtypeStruct]


@dataclass(frozen=True)
class ExportedFile:
    """A file that was written; arrays as type and shape, with b entries."""

    path: Path
    inputs: tuple[str, ...]
    """The observation, then the memory."""
    outputs: tuple[str, ...]
    """The action, then the memory."""


def export(actor: Actor, path: Path) -> ExportedFile:
    """Write the function in the form that the name's ending says, once it is known to act as the agent does."""
    if path.suffix not in FORMS:
        raise TesseraError(f"{path}: end the name in {' or '.join(FORMS)}, which says what to write")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise TesseraError(f"{path} cannot be written: {'it is a' if path.is_dir() else 'there is no such'} folder")
    function = GreedyFunction(actor)
    (any_number,) = jax.export.symbolic_shape("b")
    for entries in (any_number, 1):  # some networks have other layers for other numbers of entries
        shapes = function.shapes(entries)
        data, problem = _try(FORMS[path.suffix], function, shapes)
        if not problem:
            break
    else:
        raise TesseraError(f"{path} is not written: {problem}: export this agent in another form")
    try:
        write_bytes(path, data)
    except OSError as error:
        raise TesseraError(f"{path} cannot be written ({error.strerror}): export it elsewhere") from error
    outputs = jax.eval_shape(function, *function.shapes(1))
    return ExportedFile(path, *(tuple(_described(x, entries) for x in arrays) for arrays in (shapes, outputs)))


class GreedyFunction:
    """(observations, *memory) -> (actions, *memory); params are constants of it.

    Observations of several parts are several arguments, in the order of their names; a mask of legal actions follows.
    """

    def __init__(self, actor: Actor) -> None:
        if actor.algorithm.greedy_draws:
            raise TesseraError(
                f"{actor.algorithm.name} draws its moves in {actor.env.name}, and an exported function would draw the "
                "same ones in every game: act with tessera.load instead"
            )
        self.actor, self._key = actor, jax.random.key(0)
        self._one = act_function(actor.algorithm, actor.env, greedy=True)
        world = actor.algorithm.world
        example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), example_of(world, 1))
        self.seen, self._seen_tree = jax.tree.leaves(example), jax.tree.structure(example)
        paths = [path.replace("/", "_") or "observation" for path in world.parts]
        self.names = [*paths, *(["legal"] if world.restricted else [])]
        """What its first arguments are, which are not memory."""
        memory = jax.tree.map(lambda x: x[0], actor.initial_memory(1))
        self._leaves, self._tree = jax.tree.leaves(memory), jax.tree.structure(memory)
        jaxpr = jax.make_jaxpr(lambda *given: self._step(*given)[1])(memory, example, np.zeros((), bool)).jaxpr
        pairs = enumerate(zip(jaxpr.invars, jaxpr.outvars, strict=False))
        self._changing = [k for k, (before, after) in pairs if before is not after]

    def _step(self, memory: Any, seen: Any, begins: Any) -> tuple[Any, Any]:
        return self._one(self.actor.view, memory, seen, begins, self._key)

    def __call__(self, *given: Any) -> tuple[Any, ...]:
        """Act for a batch."""
        count = len(self.seen)

        def each(begins: Any, *given: Any) -> tuple[Any, ...]:
            seen = jax.tree.unflatten(self._seen_tree, given[:count])
            before = dict(enumerate(self._leaves)) | dict(zip(self._changing, given[count:], strict=True))
            action, after = self._step(jax.tree.unflatten(self._tree, before.values()), seen, begins)
            return action, *(jax.tree.leaves(after)[k] for k in self._changing)

        return jax.vmap(each)(jnp.zeros(given[0].shape[:1], bool), *given)

    def as_given(self, arrays: Sequence[np.ndarray]) -> dict[str, Any]:
        """The arguments of an agent's `act`, from its first arguments."""
        observation, legal = jax.tree.unflatten(self._seen_tree, arrays)
        return {"observation": observation, "legal": legal}

    def initial_memory(self, entries: int) -> tuple[np.ndarray, ...]:
        """The memory where episodes begin."""
        leaves = jax.tree.leaves(self.actor.initial_memory(entries))
        return tuple(np.asarray(leaves[k]) for k in self._changing)

    def shapes(self, entries: Any) -> Shapes:
        """Shapes and types of what it takes, for so many entries."""
        taken = [*self.seen, *(self._leaves[k] for k in self._changing)]
        return [jax.ShapeDtypeStruct((entries, *x.shape), x.dtype) for x in taken]


def _described(x: Any, entries: Any) -> str:
    return f"{x.dtype}[{', '.join(map(str, (entries, *x.shape[1:])))}]"


def _try(form: FileForm, function: GreedyFunction, shapes: Shapes) -> tuple[bytes, str]:
    """The contents of the file, and what is wrong with them."""
    entries = 1 if shapes[0].shape[0] == 1 else ENTRIES
    try:
        with on_cpu():
            data = form.write(function, shapes)
            return data, _difference(function, form.read(data), entries)
    except TesseraError:
        raise
    except ImportError as error:
        raise TesseraError(
            f"such files need packages that are not installed ({error.name or error}): run {install_hint('onnx')}"
        ) from error
    except Exception as error:  # whatever the libraries raise about operations that they do not know
        return b"", f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


def _difference(function: GreedyFunction, run: Run, entries: int) -> str:
    """How an exported function acts otherwise than the agent does, on random observations."""
    actor, random = function.actor, np.random.default_rng(0)
    agent, memory = Actor(actor.algorithm, actor.env, actor.view), function.initial_memory(entries)
    for _ in range(CALLS * ENTRIES // entries):
        seen = [_random_values(x, entries, random) for x in function.seen]
        action, *memory = run(*seen, *memory)  # type: ignore[assignment]
        found, wanted = np.asarray(action), agent(**function.as_given(seen))
        if found.shape != wanted.shape or not np.allclose(found, wanted, TOLERANCE, TOLERANCE):
            return f"it acts otherwise than the agent, {found.ravel()[:4]} instead of {wanted.ravel()[:4]}"
    return ""


def _random_values(like: Any, entries: int, random: np.random.Generator) -> np.ndarray:
    shape, dtype = (entries, *like.shape), like.dtype
    if dtype.kind == "f":
        return random.normal(size=shape).astype(dtype)
    if dtype.kind == "b":
        mask = random.integers(0, 2, shape).astype(bool)
        mask[..., 0] = True  # at least one
        return mask
    return random.integers(0, 256 if dtype == np.uint8 else 2, shape).astype(dtype)


def _to_stablehlo(function: GreedyFunction, shapes: Shapes) -> bytes:
    return bytes(jax.export.export(jax.jit(function), platforms=PLATFORMS)(*shapes).serialize())


def _run_stablehlo(data: bytes) -> Run:
    return jax.export.deserialize(bytearray(data)).call


def _to_onnx(function: GreedyFunction, shapes: Shapes) -> bytes:
    import jax2onnx

    for library in ("jax2onnx", "onnx_ir"):  # they complain about parts of theirs that are not used here
        logging.getLogger(library).setLevel(logging.ERROR)
    memory = [f"memory_{k}" for k in range(len(shapes) - len(function.names))]
    # traced here, since it replaces functions of jax.numpy while it traces, and some of these cannot be vectorised
    traced = jax.make_jaxpr(function)(*shapes)
    model: Any = jax2onnx.to_onnx(
        _inlined(traced.jaxpr, traced.consts),
        inputs=shapes,
        model_name="act",
        input_names=[*function.names, *memory],
        output_names=["action", *(f"next_{name}" for name in memory)],
    )
    return model.SerializeToString()


def _inlined(jaxpr: Any, consts: Sequence[Any]) -> Run:
    """The function of a traced one, without calls of other functions: not all kinds of calls have a form in ONNX."""

    def run(*arguments: Any) -> list[Any]:
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))

        def value(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else known[atom]

        for equation in jaxpr.eqns:
            given, inner = [value(atom) for atom in equation.invars], called(equation)
            if inner is not None:
                made = _inlined(*inner)(*given)
            else:
                made = equation.primitive.bind(*given, **equation.params)
                made = made if equation.primitive.multiple_results else [made]
            known |= zip(equation.outvars, made, strict=True)
        return [value(atom) for atom in jaxpr.outvars]

    return run


def _run_onnx(data: bytes) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised too
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    return lambda *arrays: session.run(None, dict(zip(names, map(np.asarray, arrays), strict=True)))


class FileForm(NamedTuple):
    """How a function becomes a file, and how that is run."""

    write: Callable[[GreedyFunction, Shapes], bytes]
    read: Callable[[bytes], Run]


FORMS = {".stablehlo": FileForm(_to_stablehlo, _run_stablehlo), ".onnx": FileForm(_to_onnx, _run_onnx)}
