"""How slots lie over the devices of a replica: groups over one axis of its mesh, wide layers over the other.

Groups are spread by hand (`shard_map`); what is spread over the axis `model` is left to the compiler, which is told by
rules where each array of the params is cut, and finds the exchanges itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tessera.program.nodes import SLOTS, Every, Node, Op, Repeat

AXIS = "devices"
MODEL = "model"
WIDE = 64
"""How long an axis of a layer must be to be cut."""
RULES: tuple[tuple[str, tuple[int, ...]], ...] = (
    (r"kernel$", (-1, -2)),  # by outputs; a head has few, and is cut by its inputs
    (r"(bias|scale)$", (-1,)),
)
"""Name of an array -> the axes that it may be cut along, the first of them that is wide enough."""
LAYERED = ("state", "view", "acting", "acting_queue", "published", "gradients", "residual", "base", "updates")
"""Slots that hold params, or what is shaped like them."""


def make_mesh(data: int, model: int) -> Mesh | None:
    """The devices of a replica: so many copies of the params, each over so many devices; None for one device."""
    if data * model == 1:
        return None
    return Mesh(np.asarray(jax.local_devices()[: data * model]).reshape(data, model), (AXIS, MODEL))


def partition(slot: str) -> PartitionSpec:
    """How the groups of a slot lie over the devices of a replica."""
    known = SLOTS[slot]
    if known.layout == "groups":
        return PartitionSpec(*[None] * known.axis, AXIS)
    return PartitionSpec(AXIS) if known.layout == "report" else PartitionSpec()


def cut(name: str, shape: tuple[int, ...], model: int) -> PartitionSpec:
    """How an array of the params lies over the devices that share them: by its name and shape."""
    for pattern, axes in RULES:
        if not re.search(pattern, name):
            continue
        for axis in axes:
            if -axis <= len(shape) and shape[axis] >= WIDE and shape[axis] % model == 0:
                return PartitionSpec(*[None] * (len(shape) + axis), MODEL)
    return PartitionSpec()


def shardings(mesh: Mesh, slot: str, tree: Any) -> Any:
    """Where every array of a slot lies."""
    model = mesh.shape[MODEL]
    if model == 1 or slot not in LAYERED:
        return jax.tree.map(lambda _: NamedSharding(mesh, partition(slot)), tree)
    return jax.tree_util.tree_map_with_path(lambda p, x: NamedSharding(mesh, cut(_name(p), x.shape, model)), tree)


def placed(function: Callable[..., Any], mesh: Mesh | None) -> Callable[..., Any]:
    """Let a segment find params that came from another process where they belong, and not on every device."""
    if mesh is None or mesh.shape[MODEL] == 1:
        return function

    def put(slot: str, value: Any) -> Any:
        if slot not in LAYERED or not any(isinstance(x, np.ndarray) for x in jax.tree.leaves(value)):
            return value
        return jax.device_put(value, shardings(mesh, slot, value))

    def call(gone: dict[str, Any], seen: dict[str, Any]) -> Any:
        return function(gone, {slot: put(slot, value) for slot, value in seen.items()})

    return call


def laid_out(nodes: tuple[Node, ...], mesh: Mesh | None) -> tuple[Node, ...]:
    """The same program, in which params stay cut wherever they are written."""
    if mesh is None or mesh.shape[MODEL] == 1:
        return nodes
    out: list[Node] = []
    for node in nodes:
        if isinstance(node, Repeat | Every):
            out.append(replace(node, body=laid_out(node.body, mesh)))
        elif isinstance(node, Op) and set(node.writes) & set(LAYERED):
            out.append(replace(node, function=_held(node, mesh.shape[MODEL])))
        else:
            out.append(node)
    return tuple(out)


def _held(node: Op, model: int) -> Callable[..., tuple[Any, ...]]:
    def leaf(path: Any, x: Any) -> Any:
        where = cut(_name(path), x.shape, model)
        return jax.lax.with_sharding_constraint(x, where) if len(where) else x

    def function(*values: Any) -> tuple[Any, ...]:
        written = node.function(*values)
        return tuple(
            jax.tree_util.tree_map_with_path(leaf, value) if slot in LAYERED else value
            for slot, value in zip(node.writes, written, strict=True)
        )

    return function


def _name(path: tuple[Any, ...]) -> str:
    """The last part of where an array is in a tree."""
    last = path[-1] if path else ""
    return str(getattr(last, "key", getattr(last, "name", "")))
