"""Acting on the host as NumPy calls: for small networks the dispatch of a compiled function costs more than its work.

A segment that is called once per step of an unroll is traced as for JAX and computed in stages (`staged`): values that
depend on params alone once per view, random numbers once per unroll for all of its steps, and the rest at every step,
as one NumPy call per equation. A segment stays compiled if an operation has no form in NumPy (convolutions, bf16), or
if it runs on an accelerator or on several devices.

The form is chosen by counting operations and never by a stopwatch (`is_small`): the last bits of the two forms differ,
and a random draw may depend on them. So a run is reproducible, and replicas choose as a single process does. The
results of NumPy are used. They are compared with those of JAX at the first calls and now and then later; if they
disagree, the compiled function acts from then on, as long as the process lives.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tessera.errors import TesseraError
from tessera.program.nodes import SLOTS, Node, Op, Repeat, Slots, effects
from tessera.program.numpy_lowering.equations import Unsupported
from tessera.program.numpy_lowering.staged import HELD, KEYED, STEPPED, Staged, Unroll

MODES = ("auto", "jit", "numpy")
FIRST_CHECKS = 3
"""First calls, all of which are checked."""
CHECK_EVERY = 1000
TOLERANCE = 1e-5
LIMIT = 100.0
"""NumPy acts up to as many microseconds, by the estimate of `is_small`."""
MOST_GROUPS = 8
"""Most groups of a replica by default."""
UNROLLS = 16
"""Unrolls whose values are kept: replicas of one fragment may take turns, each in its own unroll."""


@dataclass(frozen=True)
class Loop:
    """The loop around a segment."""

    index: str
    """Slot of the step number."""
    count: int
    """Steps."""
    changes: frozenset[str]
    """Slots that may change from step to step; all others are held."""


def mode() -> str:
    """The form that acts, by the environment variable TESSERA_LOWERING: auto, jit, or numpy wherever possible."""
    chosen = os.environ.get("TESSERA_LOWERING", "auto")
    if chosen not in MODES:
        raise TesseraError(f"TESSERA_LOWERING={chosen}: there is only {', '.join(MODES)}")
    return chosen


def is_small(calls: int, multiplications: float, rows: int, steps: int, groups: int = MOST_GROUPS) -> bool:
    """Whether NumPy is the faster form, decided the same on every machine and for any number of replicas.

    A compiled step costs 60 to 110 µs before it computes anything. For NumPy `benchmarks/acting.py` gives about 0.8 µs
    for each call, 60 for each million multiplications with all that surrounds them, and 100 once per unroll. Where that
    comes to the limit, NumPy was 1.1 to 1.8 times as fast on two cores; for networks of 64x64 and 16 environments it is
    2.2 times for PPO, and 1.3 times for DQN with unrolls of 4.

    Args:
        calls: NumPy calls per step.
        multiplications: for one row, in products of matrices.
        rows: in one group.
        steps: in an unroll.
        groups: that act together. For a replica the most are counted, not those that it has, so that all replicas
            decide the same; with fewer groups NumPy is even faster.
    """
    return 0.8 * calls + 60e-6 * multiplications * rows * groups + 100 / steps <= LIMIT


def lowered(compiled: Any, nodes: tuple[Node, ...], fetched: tuple[str, ...], around: Repeat | None) -> Lowered | None:
    """Add a NumPy form to a compiled segment, if it only acts and is called once per step of a loop."""
    if around is None or around.count is None or mode() == "jit":
        return None
    if not all(isinstance(n, Op) and n.operator == "act" for n in nodes) or around.index not in effects(nodes)[0]:
        return None
    return Lowered(compiled, fetched, Loop(around.index, around.count, frozenset(effects(around.body)[1])))


class Lowered:
    """A segment's function in both forms, of which the faster acts. It is called as the compiled one is."""

    def __init__(self, compiled: Any, fetched: tuple[str, ...], loop: Loop) -> None:
        self._jit, self.fetched, self._loop = compiled, fetched, loop
        self._always = mode() == "numpy"
        self._numpy: bool | None = None
        self._forms: dict[Any, Form] = {}
        self._unrolls: dict[tuple[int, ...], tuple[Form, Unroll, list[Any]]] = {}
        self._held: tuple[str, ...] = ()

    @property
    def acting(self) -> str:
        """The form that acts: numpy or jit; undecided before the first call."""
        return {None: "undecided", True: "numpy", False: "jit"}[self._numpy]

    def __call__(self, donated: Slots, read: Slots) -> tuple[Slots, Slots]:
        """Act."""
        if not self.small(donated, read):
            return self._compiled(donated, read)
        key = tuple([id(read[s]) for s in self._held])
        form, unroll, _ = self._unrolls.get(key) or self._begin(key, donated, read)
        form.calls += 1
        if form.calls <= FIRST_CHECKS or not form.calls % CHECK_EVERY:
            return self._checked(form, unroll, donated, read)
        return form.step(unroll, donated, read)

    def small(self, donated: Slots, read: Slots) -> bool:
        """Whether NumPy acts; decided at the first call."""
        if self._numpy is None:
            self._held = tuple(s for s in read if s not in self._loop.changes and s != self._loop.index)
            self._numpy = self._decide(donated, read)
        return self._numpy

    def _compiled(self, donated: Slots, read: Slots) -> tuple[Slots, Slots]:
        replaced, fresh = self._jit(donated, read)
        fresh.update(fetch({s: fresh[s] for s in self.fetched}))
        return replaced, fresh

    def _decide(self, donated: Slots, read: Slots) -> bool:
        arrays = [x for x in jax.tree.leaves((donated, read)) if isinstance(x, jax.Array)]
        if {d.platform for x in arrays for d in x.devices()} - {"cpu"} or not arrays:
            return False
        try:
            form = self._form(donated, read)
            (groups, rows), staged = _groups({**donated, **read}), form.staged
            work = staged.multiplications / (groups * rows)
            if not (self._always or is_small(len(staged.steps), work, rows, self._loop.count)):
                return False
            form.step(form.unroll(donated, read), donated, read)
        except Unsupported:
            return False
        except Exception as error:  # an optimisation must not end a run
            warn(f"acting with NumPy fails with {error!r}, so JAX acts")
            return False
        return True

    def _form(self, donated: Slots, read: Slots) -> Form:
        leaves, tree = jax.tree.flatten((donated, read))
        signature = (tree, tuple((x.shape, x.dtype) for x in leaves))
        if signature not in self._forms:
            self._forms[signature] = Form(self._jit.trace(donated, read), donated, read, self._loop)
        return self._forms[signature]

    def _begin(self, key: tuple[int, ...], donated: Slots, read: Slots) -> tuple[Form, Unroll, list[Any]]:
        while len(self._unrolls) >= UNROLLS:
            del self._unrolls[next(iter(self._unrolls))]
        form = self._form(donated, read)
        # the values are kept with their ids, or an id might be reused for another value
        self._unrolls[key] = form, form.unroll(donated, read), [read[s] for s in self._held]
        return self._unrolls[key]

    def _checked(self, form: Form, unroll: Unroll, donated: Slots, read: Slots) -> tuple[Slots, Slots]:
        """Act in both forms and return NumPy's results; if they disagree, JAX's, and NumPy is not used again."""
        copies = jax.tree.map(jnp.copy, donated)  # the compiled form overwrites its donated buffers
        ours, theirs = form.step(unroll, donated, read), self._compiled(copies, read)
        problem = disagreement(ours, theirs)
        if problem is None:
            return ours
        self._numpy = False
        self._unrolls.clear()
        warn(f"acting with NumPy disagrees with JAX: {problem}. JAX acts from now on")
        return theirs


class Form:
    """A segment's NumPy form for one set of shapes."""

    def __init__(self, traced: Any, donated: Slots, read: Slots, loop: Loop) -> None:
        self.calls = 0
        self._index = loop.index
        self._tree: Any = jax.tree.structure(traced.out_info)
        self._fills: list[tuple[int, str, list[tuple[int, int, Callable[[Any], Any]]]]] = []
        """Slots of (donated, read) to fill in: for each input its leaf, its number and its conversion."""
        kinds, fills, number, index = [], [], 0, -1
        for place, slots in enumerate((donated, read)):
            for slot in sorted(slots):
                leaves = jax.tree.leaves(slots[slot])
                index = number if slot == loop.index else index
                kinds += [_kind(slot, leaf, loop) for leaf in leaves]
                fills.append((place, slot, range(number, number + len(leaves))))
                number += len(leaves)
        if number != len(traced.jaxpr.in_avals):
            raise Unsupported("inputs besides those of the segment")
        self.staged = Staged(traced.jaxpr, kinds, index, loop.count)
        arrays, passed = self.staged.arrays, self.staged.passed
        for place, slot, numbers in fills:
            # a donated array may be returned as it is; one that is only read belongs to others and is copied
            hand_on: Callable[[Any], Any] = np.array if place else _same
            how = dict.fromkeys(passed, hand_on) | dict.fromkeys(arrays, np.asarray)
            wanted = [(k, n, how[n]) for k, n in enumerate(numbers) if n in how]
            if wanted:
                self._fills.append((place, slot, wanted))

    def unroll(self, donated: Slots, read: Slots) -> Unroll:
        """Compute the values that do not change within an unroll, and its random numbers."""
        return self.staged.unroll(jax.tree.leaves((donated, read)))

    def step(self, unroll: Unroll, donated: Slots, read: Slots) -> tuple[Slots, Slots]:
        """Act."""
        both, values = (donated, read), unroll.values.copy()
        for place, slot, wanted in self._fills:
            leaves = jax.tree.leaves(both[place][slot])
            for k, number, taken in wanted:
                values[number] = taken(leaves[k])
        return self._tree.unflatten(self.staged.step(unroll, read[self._index], values))


def _same(x: Any) -> Any:
    return x


def _kind(slot: str, leaf: Any, loop: Loop) -> int:
    if slot == loop.index:
        return KEYED
    if slot in loop.changes:
        return STEPPED
    return KEYED if jnp.issubdtype(leaf.dtype, jax.dtypes.extended) else HELD


def warn(problem: str) -> None:
    """Say that NumPy does not act, and how to avoid it."""
    warnings.warn(f"{problem}; TESSERA_LOWERING=jit avoids NumPy from the beginning", RuntimeWarning, stacklevel=3)


def _groups(slots: Slots) -> tuple[int, int]:
    """The number of groups, and of environments in each."""
    for slot, value in slots.items():
        known, leaves = SLOTS[slot], jax.tree.leaves(value)
        if known.layout == "groups" and leaves:
            return leaves[0].shape[known.axis : known.axis + 2]
    return 1, 1


def disagreement(ours: Any, theirs: Any) -> str | None:
    """How two results differ: integers at all, real numbers beyond the tolerance; None if they agree."""
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            return f"{x.dtype}{list(x.shape)} instead of {y.dtype}{list(y.shape)}"
        if jnp.issubdtype(y.dtype, jax.dtypes.extended):
            continue  # keys are only passed on
        x, y = np.asarray(x), np.asarray(y)
        real = y.dtype.kind == "f"
        same = np.allclose(x, y, TOLERANCE, TOLERANCE, equal_nan=True) if real else np.array_equal(x, y)
        if not same:
            return f"{x.ravel()[:4]}... instead of {y.ravel()[:4]}..."
    return None


def fetch(values: Slots) -> Slots:
    """Bring values to the host."""
    if jax.default_backend() != "cpu":
        return jax.device_get(values)  # starts all transfers before it waits for one
    try:
        return jax.tree.map(np.asarray, values)  # takes a quarter of the time of device_get
    except TypeError:  # NumPy does not convert random keys
        return jax.device_get(values)
