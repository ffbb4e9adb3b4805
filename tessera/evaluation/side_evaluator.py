"""The side evaluator: a process that plays greedy episodes with published params and never blocks training."""

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
MAX_DEATHS = 3
"""Deaths in a row, without an evaluation in between, after which no process is started."""


@dataclass(frozen=True)
class EvaluationJob:
    """All that a process needs to evaluate."""

    algorithm: Algorithm
    env: Environment
    episodes: int
    seed: int
    x64: bool

    def work(self, connection: Connection) -> None:
        """Evaluate params as they arrive, until the driver closes the connection."""
        from tessera.evaluation.evaluator import Evaluator
        from tessera.program.initial import initial_state
        from tessera.program.training_program import published
        from tessera.support.cache import use_compilation_cache

        os.nice(10)  # training has priority
        jax.config.update("jax_enable_x64", self.x64)
        use_compilation_cache()
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a restarted process compiles nothing
        evaluator = Evaluator(self.algorithm, self.env)
        like = jax.eval_shape(lambda key: published(initial_state(self.algorithm, key, 1)), jax.random.key(0))
        while True:
            offer = json.loads(connection.recv_bytes())
            _, arrays = read_block(*offer["block"])
            connection.send_bytes(pack({"kind": "taken"}, {}))
            view = from_leaves(arrays, {"view": like})["view"]
            evaluation = evaluator(view, self.episodes, self.seed)
            returns = {"return_mean": evaluation.return_mean, "return_std": evaluation.return_std}
            connection.send_bytes(pack({"kind": "evaluated", "update": offer["update"], **returns}, {}))


class SideEvaluator:
    """The driver's end: sends params when the process is idle, and collects evaluations."""

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
        self._worker: PooledProcess | None = None
        self._block: int | None = None
        """File descriptor of the params that the process has not read yet."""
        self._busy = False
        self._deaths = 0
        self._error = ""
        """The error that the process reported before it died."""
        self._newest: dict[str, float] = {}
        self._start_process()

    @property
    def pid(self) -> int | None:
        """Process id of the evaluator, if it runs."""
        return None if self._worker is None else self._worker.process.pid

    def ready(self) -> bool:
        """Whether the process is idle; a dead one is replaced first."""
        self._poll()
        if self._worker is not None and not self._worker.process.is_alive():
            self._handle_death(self._worker)
        if self._worker is None and self._deaths < MAX_DEATHS:
            self._start_process()
        return self._worker is not None and not self._busy

    def offer(self, update: int, view: View) -> None:
        """Send the params of an update to the idle process."""
        assert self._worker is not None
        self._free()
        self._block, size = write_block({}, leaves_of({"view": jax.device_get(view)}))
        message = {"update": update, "block": (os.getpid(), self._block, size)}
        try:
            self._worker.connection.send_bytes(json.dumps(message).encode())
            self._busy = True
        except OSError:
            return  # the process died: `ready` starts another

    def newest(self) -> dict[str, float]:
        """The newest evaluation, for a row of metrics; empty before the first."""
        self._poll()
        return dict(self._newest)

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None
        self._free()

    def _start_process(self) -> None:
        self._worker, self._busy, self._error = start_process(PLACE, ()), False, ""
        assign(self._worker, self._job)

    def _handle_death(self, dead: PooledProcess) -> None:
        """Note why the process died, and whether another is started."""
        self._poll()
        self._deaths += 1
        last = self._deaths >= MAX_DEATHS
        reason = self._error or f"exit code {dead.process.exitcode}"
        self._note(f"the evaluator died ({reason}): {'not started again' if last else 'started again'}")
        self.close()

    def _poll(self) -> None:
        try:
            while self._worker is not None and self._worker.connection.poll(0):
                meta, _ = unpack(self._worker.connection.recv_bytes())
                self._handle_message(meta)
        except (EOFError, OSError):
            return

    def _handle_message(self, meta: dict[str, Any]) -> None:
        if meta["kind"] == "taken":
            self._free()
        elif meta["kind"] == "evaluated":
            self._busy, self._deaths = False, 0
            self._newest = {f"eval/{name}": meta[name] for name in ("return_mean", "return_std", "update")}
        else:  # an error: the process ends
            self._error = meta.get("text", "")

    def _free(self) -> None:
        """Release the params that were sent."""
        if self._block is not None:
            os.close(self._block)
            self._block = None
