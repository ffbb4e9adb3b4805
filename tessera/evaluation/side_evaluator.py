"""The evaluator fragment: a process that plays greedy episodes with published params, and never blocks training."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import jax

from tessera.algorithms.contract import Algorithm, View
from tessera.channels.packing import from_leaves, leaves_of, pack, read_block, unpack, write_block
from tessera.engines.driver.pool import PooledProcess, assign, start_process
from tessera.engines.replica.replica import wide_numbers
from tessera.envs.base import Environment
from tessera.graph.plan import Placement

PLACE = Placement(operators=("env", "act"), groups=((0,),))
PATIENCE = 3
"""Deaths in a row without an evaluation in between, after which there is no evaluator any more."""


@dataclass(frozen=True)
class EvaluationJob:
    """All that a process needs to become an evaluator."""

    algorithm: Algorithm
    env: Environment
    episodes: int
    seed: int
    x64: bool

    def work(self, connection: Connection) -> None:
        """Evaluate whatever params come, until the driver hangs up."""
        from tessera.evaluation.evaluator import Evaluator
        from tessera.program.initial import initial_state
        from tessera.program.training import published
        from tessera.support.cache import use_compilation_cache

        os.nice(10)  # training goes first
        jax.config.update("jax_enable_x64", self.x64)
        use_compilation_cache()
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a successor compiles nothing again
        evaluator = Evaluator(self.algorithm, self.env)
        like = jax.eval_shape(lambda key: published(initial_state(self.algorithm, key, 1)), jax.random.key(0))
        while True:
            asked = json.loads(connection.recv_bytes())
            _, arrays = read_block(*asked["block"])
            connection.send_bytes(pack({"kind": "taken"}, {}))
            view = from_leaves(arrays, {"view": like})["view"]
            found = evaluator(view, self.episodes, self.seed)
            told = {"return_mean": found.return_mean, "return_std": found.return_std}
            connection.send_bytes(pack({"kind": "evaluated", "update": asked["update"], **told}, {}))


class SideEvaluator:
    """The driver's end: offers params when the evaluator has nothing to do, and collects what it found."""

    def __init__(
        self,
        algorithm: Algorithm,
        env: Environment,
        episodes: int,
        seed: int,
        note: Callable[[str], None] = print,
    ) -> None:
        self._job = EvaluationJob(algorithm, env, episodes, seed + 2_000_003, wide_numbers())
        self._note = note
        self._member: PooledProcess | None = None
        self._block: int | None = None
        self._busy = False
        self._in_vain = 0
        self._words = ""
        """What the process said before it died."""
        self._found: dict[str, float] = {}
        self._start_process()

    @property
    def pid(self) -> int | None:
        """The evaluator's process, if there is one."""
        return None if self._member is None else self._member.process.pid

    def ready(self) -> bool:
        """Whether the evaluator would take params now; a dead one is replaced."""
        self._poll()
        if self._member is not None and not self._member.process.is_alive():
            self._handle_death(self._member)
        if self._member is None and self._in_vain < PATIENCE:
            self._start_process()
        return self._member is not None and not self._busy

    def offer(self, update: int, view: View) -> None:
        """Hand over params."""
        assert self._member is not None
        self._free()
        self._block, size = write_block({}, leaves_of({"view": jax.device_get(view)}))
        asked = {"update": update, "block": (os.getpid(), self._block, size)}
        try:
            self._member.connection.send_bytes(json.dumps(asked).encode())
            self._busy = True
        except OSError:
            return  # it died: the next offer goes to another

    def newest(self) -> dict[str, float]:
        """The newest evaluation, for a row of metrics; empty before the first."""
        self._poll()
        return dict(self._found)

    def close(self) -> None:
        """End the process."""
        if self._member is not None:
            self._member.kill()
            self._member = None
        self._free()

    def _start_process(self) -> None:
        self._member, self._busy, self._words = start_process(PLACE, ()), False, ""
        assign(self._member, self._job)

    def _handle_death(self, member: PooledProcess) -> None:
        """Say why the process died. One that never gets anything done is not worth another start."""
        self._poll()
        self._in_vain += 1
        over = self._in_vain >= PATIENCE
        reason = self._words or f"exit code {member.process.exitcode}"
        self._note(f"the evaluator died ({reason}): {'not started again' if over else 'started again'}")
        self.close()

    def _poll(self) -> None:
        try:
            while self._member is not None and self._member.connection.poll(0):
                meta, _ = unpack(self._member.connection.recv_bytes())
                self._take_in(meta)
        except (EOFError, OSError):
            return

    def _take_in(self, meta: dict[str, Any]) -> None:
        if meta["kind"] == "taken":
            self._free()
        elif meta["kind"] == "evaluated":
            self._busy, self._in_vain = False, 0
            self._found = {f"eval/{name}": meta[name] for name in ("return_mean", "return_std", "update")}
        else:  # an error: the process ends
            self._words = meta.get("text", "")

    def _free(self) -> None:
        if self._block is not None:
            os.close(self._block)
            self._block = None
