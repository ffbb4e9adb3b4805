"""How slots are sharded over the devices of a replica: groups over one axis of its mesh, wide layers over the other.

Groups are sharded by hand (`shard_map`). The axis `model` is left to the compiler: rules say where each array of the
params is cut, and the compiler inserts the exchanges.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tessera.program.nodes import SLOTS, TRACED, Every, Node, Op, Repeat
from tessera.support.trees import leaf_path

AXIS = "devices"
MODEL = "model"
WIDE = 64
"""The least length of an axis that is cut."""
RULES: tuple[tuple[str, tuple[int, ...]], ...] = (
    (r"kernel$", (-1, -2)),  # by outputs; a head has few outputs and is cut by its inputs
    (r"(bias|scale)$", (-1,)),
)
"""Name of an array -> the axes that it may be cut along; the first that is wide enough is taken."""
LAYERED = (
    "state",
    "view",
    "acting",
    "acting_queue",
    "published",
    "uncoded",
    "gradients",
    "residual",
    "base",
    "updates",
)
"""Slots that hold params, or arrays of their shapes."""


def make_mesh(data: int, model: int) -> Mesh | None:
    """The mesh of a replica: `data` copies of the params, each over `model` devices; None for one device."""
    if data * model == 1:
        return None
    return Mesh(np.asarray(jax.local_devices()[: data * model]).reshape(data, model), (AXIS, MODEL))


def partition(slot: str) -> PartitionSpec:
    """How the groups of a slot are sharded over the devices of a replica."""
    known = SLOTS[slot]
    if known.layout == "groups":
        return PartitionSpec(*[None] * known.axis, AXIS)
    return PartitionSpec(AXIS) if known.layout == "report" else PartitionSpec()


def cut(name: str, shape: tuple[int, ...], model: int) -> PartitionSpec:
    """How an array of the params is cut over `model` devices: by its name and shape."""
    for pattern, axes in RULES:
        if not re.search(pattern, name):
            continue
        for axis in axes:
            if -axis <= len(shape) and shape[axis] >= WIDE and shape[axis] % model == 0:
                return PartitionSpec(*[None] * (len(shape) + axis), MODEL)
    return PartitionSpec()


def shardings(mesh: Mesh, slot: str, tree: Any) -> Any:
    """The sharding of every array of a slot."""
    model = mesh.shape[MODEL]
    if model == 1 or slot not in LAYERED:
        return jax.tree.map(lambda _: NamedSharding(mesh, partition(slot)), tree)
    return jax.tree_util.tree_map_with_path(lambda p, x: NamedSharding(mesh, cut(_name(p), x.shape, model)), tree)


def with_sharded_inputs(function: Callable[..., Any], mesh: Mesh | None) -> Callable[..., Any]:
    """A segment's function that shards params from another process first, or they would be on every device."""
    if mesh is None or mesh.shape[MODEL] == 1:
        return function

    def put(slot: str, value: Any) -> Any:
        if slot not in LAYERED or not any(isinstance(x, np.ndarray) for x in jax.tree.leaves(value)):
            return value
        return jax.device_put(value, shardings(mesh, slot, value))

    def call(donated: dict[str, Any], read: dict[str, Any]) -> Any:
        return function(donated, {slot: put(slot, value) for slot, value in read.items()})

    return call


def keep_params_sharded(nodes: tuple[Node, ...], mesh: Mesh | None) -> tuple[Node, ...]:
    """The same program, in which params stay sharded wherever they are written; wiring only passes them on."""
    if mesh is None or mesh.shape[MODEL] == 1:
        return nodes
    out: list[Node] = []
    for node in nodes:
        if isinstance(node, Repeat | Every):
            out.append(replace(node, body=keep_params_sharded(node.body, mesh)))
        elif isinstance(node, Op) and node.kind == TRACED and set(node.writes) & set(LAYERED):
            out.append(replace(node, function=_constrained(node, mesh.shape[MODEL])))
        else:
            out.append(node)
    return tuple(out)


def _constrained(node: Op, model: int) -> Callable[..., tuple[Any, ...]]:
    def leaf(path: Any, x: Any) -> Any:
        spec = cut(_name(path), x.shape, model)
        return jax.lax.with_sharding_constraint(x, spec) if len(spec) else x

    def function(*values: Any) -> tuple[Any, ...]:
        written = node.function(*values)
        return tuple(
            jax.tree_util.tree_map_with_path(leaf, value) if slot in LAYERED else value
            for slot, value in zip(node.writes, written, strict=True)
        )

    return function


def _name(path: tuple[Any, ...]) -> str:
    """The last part of an array's path in a tree."""
    return leaf_path(path).rpartition("/")[2]
