"""Shapes of messages, derived without computing anything: links are laid out before a run begins."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from tessera.graph.operators import OPERATORS
from tessera.graph.plan import Placement, Plan
from tessera.program.exchange import Shards, SoloGradient
from tessera.program.initial import initial_shapes, timestep_shape
from tessera.program.nodes import HOST, SLOTS, Every, Node, Op, Repeat
from tessera.program.peers import SharedParts, shared_parts
from tessera.program.training_program import Training, acting, published

Shapes = dict[str, Any]


def slot_shapes(training: Training, plan: Plan) -> Shapes:
    """Shapes of all slots of the program, if it ran in one replica."""
    everything, learned = (tuple(range(n)) for n in (plan.groups, plan.batches))
    whole = Placement(operators=tuple(OPERATORS), groups=(everything,), batches=(learned,))
    fused = dataclasses.replace(plan, fragments=(whole,), channels=())
    shapes = initial_shapes(training, fused, 0, 0)
    shapes["view"] = jax.eval_shape(published, shapes["state"])
    shapes["count"] = jax.ShapeDtypeStruct((), jnp.dtype(jnp.int32))
    timestep = timestep_shape(training.env, training.algorithm.reads_state)
    lead = (plan.groups, plan.envs_per_group)
    shapes["timesteps"] = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*lead, *x.shape), x.dtype), timestep)
    _walk(training.start(), shapes, plan)
    _walk(training.updates(), shapes, plan)
    return shapes


def _walk(nodes: tuple[Node, ...], shapes: Shapes, plan: Plan) -> None:
    for node in nodes:
        if isinstance(node, Repeat):
            shapes[node.index] = jax.ShapeDtypeStruct((), jnp.dtype(jnp.int32))
            _walk(node.body, shapes, plan)
            for slot, out in node.stacks.items():
                if slot in shapes and node.count is not None:
                    stack = SLOTS[out].stack if out in SLOTS else 0
                    shapes[out] = jax.tree.map(lambda x, n=node.count, a=stack: _stacked(x, n, a), shapes[slot])
        elif isinstance(node, Every):
            _walk(node.body, shapes, plan)
        elif isinstance(node, Op) and node.kind != HOST and all(r in shapes for r in node.reads):
            written = jax.eval_shape(node.function, *(shapes[r] for r in node.reads))
            shapes.update(zip(node.writes, written, strict=True))
            if "experience" in node.writes and plan.batches != plan.groups:
                shapes["experience_all"] = shapes["experience"]
                shapes["experience"] = resized(shapes["experience"], 0, plan.batches)


def _stacked(x: Any, count: int, axis: int) -> Any:
    return jax.ShapeDtypeStruct((*x.shape[:axis], count, *x.shape[axis:]), x.dtype)


def resized(tree: Any, axis: int, size: int) -> Any:
    """The same tree with another size on one axis, such as that of the groups."""

    def leaf(x: Any) -> Any:
        return jax.ShapeDtypeStruct((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype)

    return jax.tree.map(leaf, tree)


def message_shape(plan: Plan, shapes: Shapes, slot: str, groups: int, shards: Shards | None, agents: int = 0) -> Any:
    """The shape of a slot in the message of a sender with `groups` groups, and `agents` agents if not all."""
    if agents:
        return resized(message_shape(plan, shapes, slot, groups, shards), SLOTS[slot].axis + 2, agents)
    if slot == "experience":
        return resized(shapes.get("experience_all", shapes["experience"]), 0, groups)
    if slot == "summary":
        return resized(shapes["summary"], 0, groups)
    if slot == "gradients" and isinstance(shapes["gradients"], SoloGradient):
        return shapes["gradients"]._replace(summary=resized(shapes["gradients"].summary, 0, groups))
    if slot in ("view", "acting") and shards is not None:
        view = shapes["view"]
        target = shards.shape(view.target) if jax.tree.leaves(view.target) else ()
        view = view._replace(params=shards.shape(view.params), target=target)
        return acting(view) if slot == "acting" else view
    if slot in SLOTS and SLOTS[slot].layout == "groups":
        return resized(shapes[slot], SLOTS[slot].axis, groups)
    return shapes[slot]


def shared_shape(shapes: Shapes, carries: str) -> SharedParts:
    """The shape of what each peer writes to a shared memory."""
    return jax.eval_shape(lambda s, c: shared_parts(s, c, carries), shapes["state"], shapes["contribution"])
