"""A replay of stacked frames that keeps each frame once.

An observation is a stack of the last k frames, so consecutive rows have all but one in common, and the bootstrap of a
row is the observation of a later one. Here frames lie in a ring of their own, in the order of their arrival, and a row
keeps the slots of its frames. A put looks up each of its frames among those that the same environment stored last, by
64-bit marks, and appends the ones it does not find: one per ordinary row, a few where an episode begins. It assumes
nothing about episodes, n-step windows, autoreset or the order within a stack; a frame that is not recognised only costs
a slot. Marks may collide: a row whose stacks cannot be read back bit for bit is left out.

Rows leave in the order of their arrival, so that the rows that have lost frames are always the oldest:

- A frame is used again only if it is among the last `reach` * n of the group (n environments); an older one is stored
  again. So no row refers to a frame from further back than that, counted from where its put began.
- A put takes at least as many slots of the ring as it has rows, even if it has fewer new frames. So one put pushes out
  few rows, and checking a fixed number of the oldest is enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tessera.errors import TesseraError
from tessera.stores.base import NOWHERE, Experience, Sample
from tessera.stores.replay import Replay, ReplayBuffer

# Further back than any frame that can be used again, and far from the ends of int32.
_FORGOTTEN = -(2**30)


class Kept(NamedTuple):
    """A row as it is stored."""

    row: Any
    """The row, with int32 [k] slots of frames in place of each stack."""
    begin: Any
    """int32: the slot where the frames of its put begin."""


class Recent(NamedTuple):
    """The frames that each environment stored last, [n, reach]; n may exceed the number of environments."""

    marks: jax.Array
    """uint32 [n, reach, 2]: frames with different marks are different."""
    age: jax.Array
    """int32 [n, reach]: slots from the frame to `head`; too many to be used again if there is no frame."""
    next: jax.Array
    """int32 [n]: the entry to replace next."""


class FrameBuffer(NamedTuple):
    """The buffer of one group."""

    table: ReplayBuffer
    """A replay of `Kept` rows, some of which may have lost frames."""
    frames: jax.Array
    """uint8 [slots, height, width]: the ring."""
    head: jax.Array
    """int32: the slot that the next frame goes to."""
    live: jax.Array
    """int32: number of rows that have all their frames; they are the newest ones."""
    recent: Recent
    """Where the next put looks for its frames."""

    @property
    def filled(self) -> jax.Array:
        """Number of rows that can be drawn."""
        return self.live


def _marks(stack: jax.Array) -> jax.Array:
    """A 64-bit hash of each frame, as two numbers: uint8 [n, k, H, W] -> uint32 [n, k, 2].

    Each number is a sum of the frame's words, well mixed, times fixed random numbers.
    """
    pixels = stack.reshape(stack.shape[0] * stack.shape[1], -1)
    pixels = jnp.pad(pixels, ((0, 0), (0, -pixels.shape[1] % 4)))
    words = jax.lax.bitcast_convert_type(pixels.reshape(pixels.shape[0], -1, 4), jnp.uint32)
    words = (words ^ (words >> 16)) * np.uint32(0x85EBCA6B)
    words = (words ^ (words >> 13)) * np.uint32(0xC2B2AE35)
    words = words ^ (words >> 16)
    factors = np.random.default_rng(0).integers(0, 2**32, (words.shape[1], 2), np.uint32)
    return jax.lax.dot_general(words, factors, (((1,), (0,)), ((), ()))).reshape(*stack.shape[:2], 2)


class _Places(NamedTuple):
    """Slots of the frames of one step, counted from where the put began: those of earlier puts are below 0."""

    offset: jax.Array
    """int32 [n, m]."""
    new: jax.Array
    """bool [n, m]: not stored yet."""


class _Known(NamedTuple):
    """The same as `Recent`, within a put."""

    marks: jax.Array
    offset: jax.Array
    """int32 [n, reach]: see `_Places`; `_FORGOTTEN` for none."""
    next: jax.Array
    used: jax.Array
    """int32: slots taken in this put."""


def _place(known: _Known, step: tuple[list[jax.Array], jax.Array]) -> tuple[_Known, _Places]:
    """Find the frames of one step's stacks [n, k, H, W], or give them the next slots where the step is valid [n]."""
    stacks, valid = step
    marks = jnp.concatenate([_marks(stack) for stack in stacks], axis=1)
    n, m = marks.shape[:2]
    reach = known.offset.shape[1]
    hits = (marks[:, :, None] == known.marks[:, None]).all(-1) & (known.offset > _FORGOTTEN)[:, None]
    found = hits.any(-1)
    old = jnp.where(hits, known.offset[:, None], _FORGOTTEN).max(-1)
    # A frame that appears several times in the step is new only where it appears first.
    first = jnp.argmax((marks[:, :, None] == marks[:, None]).all(-1), axis=-1).astype(jnp.int32)
    new = (first == jnp.arange(m, dtype=jnp.int32)) & ~found & valid[:, None]
    fresh = known.used + jnp.cumsum(new.reshape(-1), dtype=jnp.int32).reshape(n, m) - 1
    offset = jnp.where(found, old, jnp.take_along_axis(fresh, first, axis=1))
    # By comparison with all entries rather than by a scatter: the arrays are small, and a CPU scatters one by one.
    entry = (known.next[:, None] + jnp.cumsum(new, axis=1, dtype=jnp.int32) - 1) % reach
    into = new[..., None] & (entry[..., None] == jnp.arange(reach, dtype=jnp.int32))
    replaced = into.any(1)
    count = new.sum(1, dtype=jnp.int32)
    known = _Known(
        marks=jnp.where(
            replaced[..., None],
            jnp.where(into[..., None], marks[:, :, None], np.uint32(0)).max(1),
            known.marks,
        ),
        offset=jnp.where(replaced, jnp.where(into, fresh[..., None], 0).max(1), known.offset),
        next=(known.next + count) % reach,
        used=known.used + count.sum(dtype=jnp.int32),
    )
    return known, _Places(offset, new)


def _same(frames: jax.Array, slots: list[jax.Array], stacks: list[jax.Array]) -> jax.Array:
    """Whether each row's stacks [n, k, H, W] equal the frames in their slots [n, k]: bool [n]."""
    # The greatest difference rather than whether all are equal: compilers make that faster.
    read = [frames.at[slot].get(mode="promise_in_bounds") for slot in slots]
    differences = [(a ^ b).max((1, 2, 3)) for a, b in zip(read, stacks, strict=True)]
    return jnp.stack(differences).max(0) == 0


@dataclass(frozen=True)
class FrameReplay(Replay):
    """A `Replay` of rows with stacks of frames, each frame stored once; rows are named tuples.

    Draws are those of a `Replay`, bit for bit, as long as the ring can hold the frames of `capacity` rows. It has about
    1 + `margin` slots for each, of which the last `reach` steps of every environment are reserved. A row takes one
    slot, and each episode a few more for its first stack (two in Atari games, where it is padded with zeros; up to k).
    Where that exceeds the margin, the oldest rows are dropped early and the replay holds fewer than `capacity`: about
    8 in 10 with episodes of 10 rows and 4 more slots each.
    """

    stacks: tuple[str, ...] = ("observation", "bootstrap")
    """Fields of a row that are stacks of frames, uint8; all frames have one shape."""
    axis: int = 0
    """The axis of a stack that counts frames: 0 to 2, or from the end."""
    margin: float = 0.1
    """Slots beyond one for each row, as a share of the rows."""
    reach: int = 16
    """Frames of an environment that a put searches: at least 2k, and 2k + n + 1 for n-step windows."""

    def init(self, row: Any, rows_per_put: int) -> Any:
        """Make an empty buffer; its capacity is rounded up to a multiple of `rows_per_put`."""
        sizes, frame = self._frame(row)
        number = jax.ShapeDtypeStruct((), jnp.dtype(jnp.int32))
        slots = {name: jax.ShapeDtypeStruct((k,), number.dtype) for name, k in sizes.items()}
        table = super().init(Kept(row._replace(**slots), number), rows_per_put)
        # A put whose frames are all new must fit too, without overwriting the frames that its first rows refer to.
        least = (self.reach + sum(sizes.values())) * rows_per_put
        count = max(math.ceil(table.version.shape[0] * (1 + self.margin)), least)
        recent = Recent(
            marks=jnp.zeros((rows_per_put, self.reach, 2), jnp.uint32),
            age=jnp.full((rows_per_put, self.reach), NOWHERE, jnp.int32),
            next=jnp.zeros((rows_per_put,), jnp.int32),
        )
        head, live = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
        return FrameBuffer(table, jnp.zeros((count, *frame), jnp.uint8), head, live, recent)

    def _frame(self, row: Any) -> tuple[dict[str, int], tuple[int, ...]]:
        """Frames of each stack, and the shape of one."""
        sizes, frames = {}, set()
        for name in self.stacks:
            stack = getattr(row, name)
            if stack.dtype != jnp.uint8 or len(stack.shape) != 3:
                raise TesseraError(
                    f"a replay of frames needs stacks of uint8 with 3 axes, but {name} is {stack.dtype} with shape "
                    f"{tuple(stack.shape)}: use a plain replay"
                )
            shape = list(stack.shape)
            sizes[name] = shape.pop(self.axis)
            frames.add(tuple(shape))
        if len(frames) != 1:
            raise TesseraError(f"stacks {', '.join(self.stacks)} have frames of different shapes: use a plain replay")
        if self.reach < sum(sizes.values()):
            raise TesseraError(f"reach {self.reach} is less than the {sum(sizes.values())} frames of a row: raise it")
        return sizes, frames.pop()

    def put(self, buffer: Any, experience: Experience) -> Any:
        """Write the rows [T, n, ...], in order, over the oldest ones; invalid rows are left out.

        Every put brings `rows_per_put` rows, of the same environments in the same order.
        """
        stacks = [jnp.moveaxis(getattr(experience.rows, name), 2 + self.axis % 3, 2) for name in self.stacks]
        ends = np.cumsum([stack.shape[2] for stack in stacks])
        (time, n), m, count = stacks[0].shape[:2], int(ends[-1]), buffer.frames.shape[0]
        if n > buffer.recent.next.shape[0] or (self.reach + m) * time * n > count:
            raise ValueError(f"a put of {time} x {n} rows does not fit into {count} slots for frames")
        valid = jnp.ones((time, n), bool) if experience.valid is None else experience.valid.astype(bool)
        # Step by step throughout, so that intermediate arrays stay small and in caches.
        known, places = jax.lax.scan(_place, self._known(buffer.recent, n), (stacks, valid))
        slots = (buffer.head + places.offset) % count
        split = jnp.split(slots, ends[:-1], axis=2)
        targets = jnp.split(jnp.where(places.new, slots, NOWHERE), ends[:-1], axis=2)
        frames = buffer.frames
        for stack, target in zip(stacks, targets, strict=True):
            frames = frames.at[target.reshape(-1)].set(stack.reshape(-1, *frames.shape[1:]), mode="drop")
        valid &= jax.lax.map(lambda step: _same(frames, *step), (split, stacks))
        used = jnp.maximum(known.used, valid.sum(dtype=jnp.int32))
        kept = experience.rows._replace(**dict(zip(self.stacks, split, strict=True)))
        rows = Kept(kept, jnp.broadcast_to(buffer.head, (time, n)))
        table = super().put(buffer.table, experience._replace(rows=rows, valid=valid))
        live = jnp.minimum(buffer.live + valid.sum(dtype=jnp.int32), table.version.shape[0])
        table, live = self._drop_lost(buffer, table, live, used, (time, n, m))
        recent = self._remember(buffer.recent, known, used)
        return FrameBuffer(table, frames, (buffer.head + used) % count, live, recent)

    def _known(self, recent: Recent, n: int) -> _Known:
        """The frames that a put of n environments may use again."""
        age = recent.age[:n]
        offset = jnp.where(age <= self.reach * n, -age, _FORGOTTEN)
        return _Known(recent.marks[:n], offset, recent.next[:n], jnp.zeros((), jnp.int32))

    def _remember(self, recent: Recent, known: _Known, used: jax.Array) -> Recent:
        """Carry over to the next put, which begins `used` slots later; ages stop growing where frames are too old."""
        n = known.next.shape[0]
        age = jnp.minimum(used - known.offset, self.reach * n + 1)
        now = Recent(known.marks, age, known.next)
        return jax.tree.map(lambda whole, part: whole.at[:n].set(part), recent, now)

    def _drop_lost(
        self, buffer: FrameBuffer, table: ReplayBuffer, live: jax.Array, used: jax.Array, shape: tuple[int, ...]
    ) -> tuple[ReplayBuffer, jax.Array]:
        """Drop the oldest of `live` rows, which lost frames when a put took `used` slots: (table, live rows).

        `shape` is the put's: time, environments, frames per row.
        """
        (time, n, m), count, capacity = shape, buffer.frames.shape[0], table.version.shape[0]
        # There is at most one row per slot, so a put loses at most as many rows as it takes slots, and one put more.
        order = jnp.arange(min((m + 1) * time * n, capacity), dtype=jnp.int32)
        slot = (table.head - live + order) % capacity
        taken = (buffer.head - table.rows.begin.at[slot].get(mode="promise_in_bounds")) % count + used
        lost = (order < live) & (taken > count - self.reach * n)
        if self.prioritised:
            table = super().update(table, jnp.where(lost, slot, NOWHERE), jnp.zeros(slot.shape, jnp.float32))
        return table, live - lost.sum(dtype=jnp.int32)

    def sample(self, buffer: Any, key: jax.Array) -> Sample:
        """Draw `batch` rows, each independent of the others; the buffer must hold at least one."""
        table = buffer.table
        if self.prioritised:
            drawn = super().sample(table._replace(filled=buffer.live), key)
        else:
            index = jax.random.randint(key, (self.batch,), 0, jnp.maximum(buffer.live, 1), jnp.int32)
            start, lost = self._lost(buffer)
            # In the order of slots, as a plain replay draws, but past the lost rows: first those around the end.
            index = index + jnp.maximum(start + lost - table.version.shape[0], 0)
            index = index + jnp.where(index >= start, lost, 0)
            held = (table.rows, table.version)
            rows, version = jax.tree.map(lambda x: x.at[index].get(mode="promise_in_bounds"), held)
            drawn = Sample(rows, version=version)
        row = drawn.rows.row
        stacks = {name: self._stack(buffer.frames, getattr(row, name)) for name in self.stacks}
        return drawn._replace(rows=row._replace(**stacks))

    def _stack(self, frames: jax.Array, slots: jax.Array) -> jax.Array:
        """Read stacks [B, ...] from the slots [B, k] of their frames."""
        return jnp.moveaxis(frames.at[slots].get(mode="promise_in_bounds"), 1, 1 + self.axis % 3)

    def _lost(self, buffer: FrameBuffer) -> tuple[jax.Array, jax.Array]:
        """First slot and number of the rows that have lost frames: the oldest of the table."""
        table = buffer.table
        return (table.head - table.filled) % table.version.shape[0], table.filled - buffer.live

    def update(self, buffer: Any, index: jax.Array, priority: jax.Array) -> Any:
        """Set `priority` [B] at the slots `index` [B]; rows that were dropped meanwhile stay out."""
        start, lost = self._lost(buffer)
        gone = (index - start) % buffer.table.version.shape[0] < lost
        return buffer._replace(table=super().update(buffer.table, jnp.where(gone, NOWHERE, index), priority))
