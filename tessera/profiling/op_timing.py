"""How long each compiled Op takes within a program: in a loop of its own, on what a real update gave it.

Called alone, a small Op costs what it takes to call anything compiled. In a loop that is itself compiled that falls
away, as it does in a segment.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from tessera.engines.simulated.costs import op_name
from tessera.program.interpreter import PLAIN
from tessera.program.nodes import TRACED, Every, Node, Op, Repeat, Slots
from tessera.support.trees import is_key

LEAST_SECONDS = 0.02
"""A loop is made longer until it takes as long."""
MOST_TURNS = 1 << 16
REPLAY = "buffer"
"""The slot that is too large to be copied in every turn."""

Function = Callable[..., tuple[Any, ...]]


class OpTimer:
    """Makes one update Op by Op, which compiles them, and then times each with its last arguments."""

    def __init__(self, program: tuple[Node, ...], slots: Slots) -> None:
        """The slots are used up."""
        self._slots, self._loops = slots, dict[str, Looped]()
        slots["count"] = jnp.int32(1)
        for _ in PLAIN.run(_apart(program, self._loops), slots):
            pass

    def seconds(self, between: Callable[[], None] = lambda: None) -> tuple[dict[str, float], float]:
        """Of each Op, by name; and of what it takes to call a program that does nothing with their arguments.

        `between` is called after each Op.
        """
        found: dict[str, tuple[float, float]] = {}
        for name, loop in self._loops.items():
            found[name] = loop.seconds(self._slots)
            between()
        calls = [call for _, call in found.values() if call]
        return {name: seconds for name, (seconds, _) in found.items()}, statistics.median(calls) if calls else 0.0


def _apart(nodes: tuple[Node, ...], loops: dict[str, Looped]) -> tuple[Node, ...]:
    out: list[Node] = []
    for node in nodes:
        if isinstance(node, Op) and node.kind == TRACED:
            loop = loops[op_name(node)] = Looped(node)
            out.append(replace(node, function=loop))
        elif isinstance(node, Repeat | Every):
            out.append(replace(node, body=_apart(node.body, loops)))
        else:
            out.append(node)
    return tuple(out)


class Looped:
    """The function of an Op in a compiled loop around it: called once it gives what the function does.

    A replay goes from turn to turn and from call to call, so that it is changed in place, as it is within a segment.
    """

    def __init__(self, op: Op) -> None:
        self._function: Function = op.function
        self._replay = op.reads.index(REPLAY) if REPLAY in op.reads else None
        """The argument that is a replay."""
        self._changed = op.writes.index(REPLAY) if REPLAY in op.reads and REPLAY in op.writes else None
        """The result that is the replay of the next turn."""
        self._loop = jax.jit(self._turns, donate_argnums=1 if self._changed is not None else ())
        self._others: tuple[Any, ...] = ()
        """The last arguments but for a replay."""

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """Call the function."""
        self._others = tuple(() if k == self._replay else argument for k, argument in enumerate(arguments))
        return self._loop(1, () if self._replay is None else arguments[self._replay], self._others)

    def seconds(self, slots: Slots) -> tuple[float, float]:
        """Seconds of one call with the last arguments, and of a call of the loop without any turn.

        A replay is that of the slots, and goes back there.
        """
        if not jax.tree.leaves(jax.eval_shape(self._once, self._replay_of(slots), self._others)):
            return 0.0, 0.0
        turns, seconds = 1, self._timed(1, slots)
        while seconds < LEAST_SECONDS and turns < MOST_TURNS:
            turns = min(MOST_TURNS, max(2 * turns, int(turns * 1.5 * LEAST_SECONDS / max(seconds, 1e-6))))
            seconds = min(self._timed(turns, slots) for _ in range(2))
        none = min(self._timed(0, slots) for _ in range(3))
        return max(seconds - none, 0.0) / turns, none

    def _timed(self, turns: int, slots: Slots) -> float:
        """Seconds of so many turns; on processors those of a core, since others may want it too."""
        clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
        begun = clock()
        results = jax.block_until_ready(self._loop(turns, self._replay_of(slots), self._others))
        seconds = clock() - begun
        if self._changed is not None:
            slots[REPLAY] = results[self._changed]
        return seconds

    def _replay_of(self, slots: Slots) -> Any:
        return () if self._replay is None else slots[REPLAY]

    def _once(self, replay: Any, others: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._function(*(replay if k == self._replay else argument for k, argument in enumerate(others)))

    def _turns(self, turns: Any, replay: Any, others: tuple[Any, ...]) -> tuple[Any, ...]:
        changed = self._changed

        def turn(k: Any, last: Any) -> Any:
            # the barrier keeps the compiler from moving the call out of the loop
            if changed is None:
                (held, given), now = jax.lax.optimization_barrier(((others, replay), k))
            else:
                (held, now), given = jax.lax.optimization_barrier((others, k)), last[1][changed]
            return now, self._once(given, held)

        first = [jax.tree.map(_zeros, made) for made in jax.eval_shape(self._once, replay, others)]
        if changed is not None:
            first[changed] = replay
        return jax.lax.fori_loop(0, turns, turn, (jnp.int32(0), tuple(first)))[1]


def _zeros(like: Any) -> jax.Array:
    if is_key(like):
        return jax.random.wrap_key_data(jnp.zeros((*like.shape, 2), jnp.uint32))
    return jnp.zeros(like.shape, like.dtype)
