"""How long each compiled Op takes within a program: in a loop of its own, on what a real update gave it.

Called alone, a small Op costs what it takes to call anything compiled. In a loop that is itself compiled that falls
away, as it does in a segment.
"""

from __future__ import annotations

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


def time_ops(program: tuple[Node, ...], slots: Slots) -> dict[str, float]:
    """Make one update Op by Op, and time each with its last arguments: name -> seconds; slots are used up."""
    loops: dict[str, Looped] = {}
    slots["count"] = jnp.int32(1)
    for _ in PLAIN.run(_apart(program, loops), slots):
        pass
    return {name: loop.seconds() for name, loop in loops.items()}


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

    A replay goes from turn to turn, so that it is changed in place, as it is within a segment.
    """

    def __init__(self, op: Op) -> None:
        self._function: Function = op.function
        kept = [REPLAY] if REPLAY in op.reads and REPLAY in op.writes else []
        self._kept = {op.reads.index(slot): op.writes.index(slot) for slot in kept}
        """Argument -> the result that is this argument of the next turn."""
        self._loop = jax.jit(self._turns)
        self._arguments: tuple[Any, ...] = ()

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """Call the function."""
        self._arguments = arguments
        return self._loop(1, arguments)

    def seconds(self) -> float:
        """Seconds of one call with the last arguments."""
        if not jax.tree.leaves(jax.eval_shape(self._function, *self._arguments)):
            return 0.0
        turns, seconds = 1, self._timed(1)
        while seconds < LEAST_SECONDS and turns < MOST_TURNS:
            turns = min(MOST_TURNS, max(2 * turns, int(turns * 1.5 * LEAST_SECONDS / max(seconds, 1e-6))))
            seconds = min(self._timed(turns) for _ in range(2))
        none = min(self._timed(0) for _ in range(3))
        return max(seconds - none, 0.0) / turns

    def _timed(self, turns: int) -> float:
        """Seconds of so many turns; on processors those of a core, since others may want it too."""
        clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
        begun = clock()
        jax.block_until_ready(self._loop(turns, self._arguments))
        return clock() - begun

    def _turns(self, turns: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        fixed = tuple(() if k in self._kept else argument for k, argument in enumerate(arguments))

        def turn(k: Any, last: Any) -> Any:
            # the barrier keeps the compiler from moving the call out of the loop
            held, now = jax.lax.optimization_barrier((fixed, k))
            given = [last[1][self._kept[j]] if j in self._kept else argument for j, argument in enumerate(held)]
            return now, self._function(*given)

        made = jax.tree.map(_zeros, jax.eval_shape(self._function, *arguments))
        begun = {result: arguments[argument] for argument, result in self._kept.items()}
        first = tuple(begun.get(k, empty) for k, empty in enumerate(made))
        return jax.lax.fori_loop(0, turns, turn, (jnp.int32(0), first))[1]


def _zeros(like: Any) -> jax.Array:
    if is_key(like):
        return jax.random.wrap_key_data(jnp.zeros((*like.shape, 2), jnp.uint32))
    return jnp.zeros(like.shape, like.dtype)
