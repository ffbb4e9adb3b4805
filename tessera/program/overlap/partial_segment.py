"""A segment compiled for some of the groups: their rows are taken from the slots of all groups, and put back there."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tessera.program.compile import trace
from tessera.program.nodes import SLOTS, Segment, Slots, effects
from tessera.program.numpy_lowering.lowering import fetch
from tessera.program.overlap.sliced_loop import GroupSlice
from tessera.program.overlap.slot_slices import concatenate_trees, slice_groups


class PartialSegment:
    """A segment's form for some of the groups, each at its own step of the loop with this index."""

    def __init__(self, segment: Segment, index: str) -> None:
        self._segment, self._index = segment, index
        self._fetched = segment.fetched or (segment.lowered.fetched if segment.lowered is not None else ())
        self._function = jax.jit(self._run, donate_argnums=0)

    def __call__(self, whole: Slots, ready: list[GroupSlice]) -> None:
        """Run the segment for some slices; `whole` has the slots of all groups."""
        segment = self._segment
        donated = {s: whole.pop(s) for s in segment.donated}
        own = [s for s in segment.reads if s in ready[0].slots and s != self._index]
        held = {s: whole[s] for s in segment.reads if s not in own and s != self._index}
        groups = group_count({**donated, **held})
        rows = np.concatenate([np.arange(*part.groups.indices(groups), dtype=np.int32) for part in ready])
        sizes = [len(range(*part.groups.indices(groups))) for part in ready]
        steps = np.repeat(np.asarray([part.slots[self._index] for part in ready], np.int32), sizes)
        padding = padded_size(len(rows), groups) - len(rows)  # few sizes are compiled; what is padded is thrown away
        given = {
            s: pad_groups(concatenate_trees([part.slots[s] for part in ready], SLOTS[s].axis), padding, SLOTS[s].axis)
            for s in own
        }
        padded = np.pad(rows, (0, padding), constant_values=groups), np.pad(steps, (0, padding))
        replaced, fresh = self._function(donated, held, given, *padded)
        whole.update(replaced)
        fresh |= fetch({s: fresh[s] for s in self._fetched})
        edges = np.cumsum([0, *sizes])
        for k, part in enumerate(ready):
            cut = slice(int(edges[k]), int(edges[k + 1]))
            part.slots.update({s: slice_groups(s, value, cut) for s, value in fresh.items()})

    def _run(self, donated: Slots, held: Slots, given: Slots, rows: jax.Array, steps: jax.Array) -> tuple[Slots, Slots]:
        segment, known = self._segment, {**donated, **held}
        grouped = {s for s in known if SLOTS[s].layout == "groups"}
        copies = {s: value for s, value in known.items() if s not in grouped}
        bounded = jnp.minimum(rows, group_count(known) - 1)
        take = {s: partial(_take_rows, rows=bounded, axis=SLOTS[s].axis) for s in grouped}
        taken = {s: jax.tree.map(take[s], known[s]) for s in grouped} | given
        written = effects(segment.nodes)[1]

        def run_group(slots: Slots, step: jax.Array) -> Slots:
            single = {s: _map_axis(jnp.expand_dims, s, value) for s, value in slots.items()}
            out = trace(segment.nodes, {**copies, **single, self._index: step}, frozenset(written))
            return {s: _map_axis(jnp.squeeze, s, out[s]) for s in written}

        axes_in, axes_out = ({s: SLOTS[s].axis for s in names} for names in (taken, written))
        out = jax.vmap(run_group, (axes_in, 0), axes_out)(taken, steps)
        put = {s: partial(_put_rows, rows=rows, axis=SLOTS[s].axis) for s in donated}
        replaced = {s: jax.tree.map(put[s], donated[s], out[s]) for s in donated}
        return replaced, {s: out[s] for s in written if s not in donated}


def _take_rows(x: jax.Array, rows: jax.Array, axis: int) -> jax.Array:
    return x[(slice(None),) * axis + (rows,)]


def _put_rows(x: jax.Array, y: jax.Array, rows: jax.Array, axis: int) -> jax.Array:
    return x.at[(slice(None),) * axis + (rows,)].set(y, mode="drop")


def _map_axis(function: Any, slot: str, value: Any) -> Any:
    return jax.tree.map(lambda x: function(x, SLOTS[slot].axis), value)


def group_count(slots: Slots) -> int:
    """The number of groups that slots hold."""
    for slot, value in slots.items():
        for leaf in jax.tree.leaves(value) if SLOTS[slot].layout == "groups" else ():
            return leaf.shape[SLOTS[slot].axis]
    raise TypeError(f"nothing lies in groups among {sorted(slots)}")


def padded_size(count: int, most: int) -> int:
    """The number of groups that is computed for `count` of them: `most`, halved as long as `count` fits."""
    size = most
    while -(-size // 2) >= count and size > 1:
        size = -(-size // 2)
    return size


def pad_groups(value: Any, padding: int, axis: int) -> Any:
    """Append zeros to the axis of the groups."""
    if not padding:
        return value

    def leaf(x: Any) -> Any:
        return np.pad(np.asarray(x), [(0, padding if k == axis else 0) for k in range(np.ndim(x))])

    return jax.tree.map(leaf, value)
