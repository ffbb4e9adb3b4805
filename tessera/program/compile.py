"""The fragment optimiser: every maximal traceable run of nodes becomes one compiled function with donated buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from tessera.program.nodes import (
    HOST,
    REPORTS,
    SLOTS,
    TRACED,
    Collective,
    Deferred,
    Every,
    Node,
    Op,
    Recv,
    Repeat,
    Segment,
    Send,
    Slots,
    effects,
    member_axis,
)
from tessera.program.numpy_lowering.lowering import lowered
from tessera.program.sharding import AXIS, keep_params_sharded, partition, with_sharded_inputs

LARGE = 1 << 16
"""Arrays of a host environment with at least as many bytes are kept on the accelerator that acts on them."""
CHUNK = 1024
"""The most updates that one call of a compiled program runs."""

Run = Callable[[Slots, Slots], tuple[Slots, Slots]]
"""A segment as a function: (donated slots, slots that are only read) -> (donated slots, other slots it writes)."""
Finish = Callable[[Run, Segment, tuple[str, ...], Repeat | None], Segment]
"""Compiles a segment: its function, what is known of it, its fresh slots and the loop around it."""
Iteration = Callable[[Slots, Any], tuple[Slots, Slots]]
"""One iteration of a loop: (carried slots, index) -> (carried slots, slots to stack)."""


def compile_program(
    nodes: tuple[Node, ...],
    mesh: Mesh | None = None,
    wanted: frozenset[str] = frozenset(),
    population: bool = False,
) -> tuple[Node, ...]:
    """Compile a fragment's program; with a mesh, the groups of a replica are spread over its devices.

    Persistent slots, reports and the slots in `wanted` outlive the program. For a population, slots have a leading axis
    of members, and the program runs all of them.
    """
    if population:
        compiled = _compile(nodes, wanted, None, _over_members)
        assert all(isinstance(node, Segment) for node in compiled), "a population exchanges nothing and has no hosts"
        return compiled
    return _compile(keep_params_sharded(nodes, mesh), wanted, mesh, partial(_over_devices, mesh))


def merge_segments(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """A fragment's program with every traceable run as one segment, none of them compiled."""
    return _compile(nodes, frozenset(), None, lambda run, segment, fresh, loop: segment)


def _compile(
    nodes: tuple[Node, ...],
    needed: frozenset[str],
    mesh: Mesh | None,
    finish: Finish,
    loop: Repeat | None = None,
) -> tuple[Node, ...]:
    """Merge traceable neighbours; the program around them reads the slots `needed`, and `loop` repeats them."""
    runs = _runs(nodes)
    if len(runs) > 1:
        runs = [part for run in runs for part in _trim(run)]
    out: list[Node] = []
    for k, run in enumerate(runs):
        others = needed.union(*(effects(other)[0] for j, other in enumerate(runs) if j != k))
        if all(_traceable(n) for n in run) and any(_worth_compiling(n) for n in run):
            hosts = {s for j, other in enumerate(runs) if j != k for s in _host_reads(other)}
            out.append(_segment(tuple(run), others, hosts, finish, loop))
            continue
        for node in run:
            if isinstance(node, Repeat | Every):
                around = others | effects(node.body)[0] | set(getattr(node, "stacks", ()))
                inner = node if isinstance(node, Repeat) else None
                node = replace(node, body=_compile(node.body, frozenset(around), mesh, finish, inner))
            elif isinstance(node, Op) and mesh is None and _acted_upon(node, nodes):
                node = replace(node, function=on_device(node.function))
            out.append(node)
    return tuple(out)


def _acted_upon(node: Op, nodes: tuple[Node, ...]) -> bool:
    """Whether a host environment's timesteps are acted on by an accelerator in the same fragment."""
    if node.kind != HOST or "timesteps" not in node.writes or jax.default_backend() == "cpu":
        return False
    return any(isinstance(n, Op) and n.operator == "act" and "timesteps" in n.reads for n in nodes)


def on_device(function: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Move a function's large results to the device, where they are acted on, stacked and learned from.

    An array that occurs twice (as a timestep's observation and as its final observation) is copied once.
    """

    def call(*arguments: Any) -> tuple[Any, ...]:
        put: dict[int, Any] = {}

        def leaf(x: Any) -> Any:
            if not isinstance(x, np.ndarray) or x.nbytes < LARGE:
                return x
            if id(x) not in put:
                put[id(x)] = jax.device_put(x)
            return put[id(x)]

        return jax.tree.map(leaf, function(*arguments))

    return call


def _runs(nodes: tuple[Node, ...]) -> list[list[Node]]:
    runs: list[list[Node]] = []
    for node in nodes:
        if runs and _traceable(node) and _traceable(runs[-1][-1]):
            runs[-1].append(node)
        else:
            runs.append([node])
    return runs


def _trim(run: list[Node]) -> list[list[Node]]:
    """Leave wiring at both ends of a run to Python, so that values that only pass through are not copied."""
    work = [k for k, node in enumerate(run) if _worth_compiling(node)]
    if not work:
        return [run]
    parts = [run[: work[0]], run[work[0] : work[-1] + 1], run[work[-1] + 1 :]]
    return [p for p in parts if p]


def _traceable(node: Node) -> bool:
    match node:
        case Op():
            return node.kind != HOST
        case Repeat():
            return all(_traceable(n) for n in node.body)
        case Collective():
            return True
        case _:
            return False


def _worth_compiling(node: Node) -> bool:
    """Whether a node computes anything; wiring alone stays plain Python."""
    if isinstance(node, Repeat):
        return any(_worth_compiling(n) for n in node.body)
    return isinstance(node, Collective) or (isinstance(node, Op) and node.kind == TRACED)


def _host_reads(nodes: list[Node]) -> set[str]:
    """Slots that plain Python among `nodes` reads."""
    reads: set[str] = set()
    for node in nodes:
        if isinstance(node, Every):
            reads |= _host_reads(list(node.body))
        elif isinstance(node, Repeat):
            reads |= set() if _traceable(node) else _host_reads(list(node.body)) | set(node.stacks)
        elif isinstance(node, Op) and node.kind != TRACED:
            reads |= set(node.reads)
    return reads


def _segment(
    nodes: tuple[Node, ...], others: frozenset[str], hosts: set[str], finish: Finish, loop: Repeat | None
) -> Segment:
    reads, writes = effects(nodes)
    kept = sorted(w for w in writes if w in others or w in REPORTS or (w in SLOTS and SLOTS[w].persistent))
    # a persistent slot that only loops write is an input too, since a loop may have no iterations
    firm = effects([n for n in nodes if not isinstance(n, Repeat)])[1]
    donated = tuple(w for w in kept if w in reads or (w in SLOTS and SLOTS[w].persistent and w not in firm))
    plain = tuple(sorted(reads - set(donated)))
    fresh = [w for w in kept if w not in donated]

    def run(replaced: Slots, read: Slots) -> tuple[Slots, Slots]:
        # Replaced slots come out first and in the order of the inputs, so that each is written to its own buffer. XLA
        # matches buffers by shape alone. With three of one shape (params and Adam's moments) in another order, a GPU
        # compiler was seen to overwrite one of them before it was copied.
        slots = trace(nodes, {**read, **replaced}, frozenset(kept))
        return {s: slots[s] for s in donated}, {s: _reported(s, slots[s]) for s in fresh}

    # slots in groups go to environments or trajectories; views that Python only passes on stay on the device
    fetched = tuple(w for w in kept if w in hosts and w not in donated and SLOTS[w].layout == "groups")
    return finish(run, Segment(nodes, run, plain, donated, fetched), tuple(fresh), loop)


def _over_devices(
    mesh: Mesh | None, run: Run, segment: Segment, fresh: tuple[str, ...], loop: Repeat | None
) -> Segment:
    """Compile a segment for the devices of a replica; or lower it to NumPy, where that is faster."""
    function = run if mesh is None else _spread(run, segment.donated, segment.reads, fresh, mesh)
    compiled = with_sharded_inputs(jax.jit(function, donate_argnums=0), mesh)
    in_numpy = lowered(compiled, segment.nodes, segment.fetched, loop) if mesh is None else None
    if in_numpy is None:
        return replace(segment, function=compiled)
    return replace(segment, function=in_numpy, fetched=(), lowered=in_numpy)


def _over_members(run: Run, segment: Segment, fresh: tuple[str, ...], loop: Repeat | None) -> Segment:
    """Compile a segment for all members of a population."""
    del fresh, loop
    axes = tuple({slot: member_axis(slot) for slot in slots} for slots in (segment.donated, segment.reads))
    return replace(segment, function=jax.jit(jax.vmap(run, in_axes=axes), donate_argnums=0))


def _reported(slot: str, value: Any) -> Any:
    """Give reports an axis over devices, so that the report of each device is kept."""
    return jax.tree.map(lambda x: x[None], value) if slot in REPORTS else value


def _spread(
    run: Run,
    donated: tuple[str, ...],
    plain: tuple[str, ...],
    fresh: tuple[str, ...],
    mesh: Mesh,
) -> Run:
    inputs = ({s: partition(s) for s in donated}, {s: partition(s) for s in plain})
    outputs = (inputs[0], {s: partition(s) for s in fresh})
    return jax.shard_map(run, mesh=mesh, in_specs=inputs, out_specs=outputs, axis_names={AXIS}, check_vma=False)


def trace(nodes: tuple[Node, ...], slots: Slots, live: frozenset[str] = frozenset()) -> Slots:
    """Run nodes on traced values; `live` are slots that are read afterwards."""
    for i, node in enumerate(nodes):
        match node:
            case Op():
                values = node.function(*(slots[r] for r in node.reads))
                slots.update(zip(node.writes, values, strict=True))
            case Collective():
                slots[node.slot] = _collective(node.route, slots[node.slot])
            case Repeat():
                wanted = live | effects(nodes[i + 1 :])[0]
                (_loop if node.count is None else _scan)(node, slots, frozenset(wanted))
            case Send() | Recv() | Segment() | Every() | Deferred():
                raise TypeError(f"cannot be traced: {node}")
    return slots


def _collective(route: str, value: Any) -> Any:
    if route == "mean":
        return jax.lax.pmean(value, AXIS)
    return jax.tree.map(lambda x: jax.lax.all_gather(x, AXIS, tiled=True), value)


def _carried(node: Repeat, slots: Slots, live: frozenset[str]) -> list[str]:
    reads, writes = effects(node.body)
    return sorted(w for w in writes if w in slots and (w in reads or w in live) and w not in node.stacks)


def _iteration(node: Repeat, slots: Slots, carried: list[str]) -> Iteration:
    wanted = frozenset(carried) | set(node.stacks)

    def iteration(carry: Slots, step: Any) -> tuple[Slots, Slots]:
        inner = trace(node.body, {**slots, **carry, node.index: step}, wanted)
        return {s: inner[s] for s in carried}, {out: inner[s] for s, out in node.stacks.items() if s in inner}

    return iteration


def _scan(node: Repeat, slots: Slots, live: frozenset[str]) -> None:
    carried = _carried(node, slots, live)
    iteration = _iteration(node, slots, carried)
    carry = {s: slots[s] for s in carried}
    steps = jnp.arange(node.count, dtype=jnp.int32)
    if node.count == 1:
        carry, ys = iteration(carry, jnp.int32(0))
        ys = {s: jax.tree.map(lambda x, s=s: jnp.expand_dims(x, SLOTS[s].stack), y) for s, y in ys.items()}
    elif any(SLOTS[out].stack for out in node.stacks.values()):
        write_in_place, stacks = _in_place(iteration, carry, node.count or 0)
        carry, ys = jax.lax.scan(lambda both, step: (write_in_place(step, both), None), (carry, stacks), steps)[0]
    else:
        carry, ys = jax.lax.scan(iteration, carry, steps)
    slots.update(carry)
    slots.update(ys)


def _in_place(
    iteration: Iteration, carry: Slots, count: int
) -> tuple[Callable[[Any, tuple[Slots, Slots]], tuple[Slots, Slots]], Slots]:
    """Make an iteration that writes its values into stacks, on any axis, and the empty stacks."""
    _, shapes = jax.eval_shape(iteration, carry, jnp.int32(0))

    def empty(x: Any, axis: int) -> jax.Array:
        return jnp.zeros((*x.shape[:axis], count, *x.shape[axis:]), x.dtype)

    def write_in_place(step: Any, both: tuple[Slots, Slots]) -> tuple[Slots, Slots]:
        carry, ys = iteration(both[0], step)
        return carry, {s: jax.tree.map(partial(_write, step=step, axis=SLOTS[s].stack), both[1][s], ys[s]) for s in ys}

    return write_in_place, {s: jax.tree.map(partial(empty, axis=SLOTS[s].stack), shape) for s, shape in shapes.items()}


def _write(stack: jax.Array, value: jax.Array, step: Any, axis: int) -> jax.Array:
    return jax.lax.dynamic_update_index_in_dim(stack, value, step, axis)


def _loop(node: Repeat, slots: Slots, live: frozenset[str]) -> None:
    """A loop of up to CHUNK iterations: one program for any number, so cutting a run into chunks changes no bit."""
    carried = _carried(node, slots, live)
    iteration = _iteration(node, slots, carried)
    carry = {s: slots[s] for s in carried}
    write_in_place, stacks = _in_place(iteration, carry, CHUNK)
    carry, stacks = jax.lax.fori_loop(0, slots["count"], write_in_place, (carry, stacks))
    slots.update(carry)
    slots.update(stacks)
