"""Several runs of one plan as one compiled program: every slot has an axis of members.

Members differ in their seeds, and in the hyper-parameters that are tuned. Unless one is to `inherit` from another,
nothing passes between them, so each makes the updates that it would make alone, up to rounding. They need not have made
the same number of updates, but all advance by as many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tessera.algorithms.contract import Algorithm, State
from tessera.engines.base import ReplicaStatus, Snapshot
from tessera.engines.replica.replica import horizon, make_programs, make_training
from tessera.engines.replica.reports import Reports, by_update, collect_reports, split_info
from tessera.engines.replica.snapshots import assemble, lacks_replay, part_of, persistent, template, with_tuned
from tessera.envs.base import Environment, is_device
from tessera.errors import RunFailed
from tessera.graph.plan import Plan
from tessera.program.accounting import Tally
from tessera.program.faults import FaultWatch
from tessera.program.initial import population_slots
from tessera.program.interpreter import run_to_end
from tessera.program.keys import count_of
from tessera.program.nodes import REPORTS, SLOTS, Node
from tessera.program.shapes import slot_shapes
from tessera.support.streamed_arrays import MemberArray, in_memory, is_large, with_member
from tessera.support.trees import is_key


def fits_one_program(plan: Plan, env: Environment) -> bool:
    """Whether several runs of a plan can be one program: nothing is cut, and environments are compiled."""
    alone = len(plan.fragments) == 1 and not plan.channels and plan.engine == "serial"
    placed = plan.fragments[0]
    return alone and is_device(env) and placed.replicas * placed.devices * placed.model == 1


class PopulationEngine:
    """Runs all members; `members` are the engines of each, as its run sees them."""

    def __init__(
        self,
        plan: Plan,
        algorithm: Algorithm,
        env: Environment,
        seeds: Sequence[int],
        updates: int,
        tuned: Sequence[Mapping[str, float]] = (),
    ) -> None:
        """Each of `seeds` makes a member, which is to make `updates` updates; `tuned` is what each begins with."""
        assert fits_one_program(plan, env)
        self.plan = plan
        self.training = make_training(plan, algorithm, env)
        self._programs = make_programs(self.training, plan, 0, population=True)
        self.slots = population_slots(self.training, plan, seeds, horizon(plan, algorithm, updates))
        """All slots, with an axis of members."""
        self._tune(tuned)
        self._faults = [FaultWatch(env.name, algorithm.schedule) for _ in seeds]
        self._fetched: dict[str, Any] = {}
        """Slots on the host, until the next update."""
        self.members = [Member(self, number) for number in range(len(seeds))]

    def begin(self, snapshots: Sequence[Snapshot | None]) -> list[Tally | RunFailed | None]:
        """Start each member, or go on from its snapshot: what those that start have played, or why one cannot."""
        warmup = self.training.algorithm.schedule.warmup
        lacking = [s is not None and lacks_replay(self.training, s) for s in snapshots]
        self._run(self._programs.reset, 0)
        for number, snapshot in enumerate(snapshots):
            if snapshot is not None and lacking[number]:
                self.put(number, snapshot)
        played: list[Tally | RunFailed | None] = [None] * len(snapshots)
        if warmup and any(s is None or lacks for s, lacks in zip(snapshots, lacking, strict=True)):
            outcomes = self._run(self._programs.fill, warmup)
            played = [outcome.tally if isinstance(outcome, Reports) else outcome for outcome in outcomes]
        for number, snapshot in enumerate(snapshots):
            if snapshot is not None and not lacking[number]:
                self.put(number, snapshot)
        return [mine if s is None else None for s, mine in zip(snapshots, played, strict=True)]

    def advance(self, count: int) -> list[Reports | RunFailed]:
        """Run `count` updates of all members: the reports of each, or why it cannot go on."""
        return self._run(self._programs.updates, count)

    def inherit(self, parents: Sequence[int], tuned: Sequence[Mapping[str, float]]) -> None:
        """Give each member all that its parent has, but its own seed, and these values of what is tuned."""
        self._fetched = {}
        if list(parents) != list(range(len(parents))):
            numbers = np.asarray(parents)
            for slot in [name for name in self.slots if SLOTS[name].persistent]:
                self.slots[slot] = jax.tree.map(lambda x: x[numbers], self.slots[slot])
            for number in [k for k, parent in enumerate(parents) if parent != k]:
                self._faults[number] = FaultWatch(self.training.env.name, self.training.algorithm.schedule)
        self._tune(tuned)

    def _tune(self, tuned: Sequence[Mapping[str, float]]) -> None:
        real = jnp.result_type(float)
        names = self.training.algorithm.tuned
        if names:
            self.slots = with_tuned(self.slots, {k: np.asarray([mine[k] for mine in tuned], real) for k in names})

    def value(self, slot: str, member: int) -> Any:
        """What a member has in a slot; large arrays are read piece by piece."""
        leaves, structure = jax.tree.flatten(self.slots[slot])
        if slot not in self._fetched:
            self._fetched[slot] = jax.device_get([x for x in leaves if not _stays(x)])
        fetched = iter(self._fetched[slot])
        parts = [(x[member] if is_key(x) else MemberArray(x, member)) if _stays(x) else next(fetched)[member]
                 for x in leaves]  # fmt: skip
        return jax.tree.unflatten(structure, parts)

    def _run(self, program: tuple[Node, ...], count: int) -> list[Reports | RunFailed]:
        """Run a program, of `count` updates: an outcome for each member."""
        self._fetched = {}
        self.slots["count"] = np.int32(count)
        run_to_end(program, self.slots)
        reported = jax.device_get({slot: self.slots.pop(slot) for slot in REPORTS if slot in self.slots})
        return [self._outcome(number, reported, count) for number in range(len(self._faults))]

    def _outcome(self, number: int, reported: dict[str, Any], count: int) -> Reports | RunFailed:
        report = {slot: by_update(jax.tree.map(lambda x: x[number], value), count) for slot, value in reported.items()}
        try:
            if "report_act" in report:
                played = count_of(self.value("act_clock", number))
                self._faults[number].check(report.pop("report_act"), played)
            info = split_info(report)
            return replace(collect_reports(self.plan, {(0, 0): [report]}, count), info=info)
        except RunFailed as failure:
            return failure

    def put(self, number: int, snapshot: Snapshot) -> None:
        """Give a member what a snapshot holds."""
        self._fetched = {}
        for slot, value in part_of(self.plan, [], self.training, 0, 0, snapshot).items():
            if slot in SLOTS:
                self.slots[slot] = jax.tree.map(
                    lambda whole, part: with_member(whole, number, part), self.slots[slot], value
                )


def _stays(x: Any) -> bool:
    """Whether an array [members, ...] stays on the device until it is asked for."""
    return is_key(x) or is_large(jax.ShapeDtypeStruct(x.shape[1:], x.dtype))


class Member:
    """The engine of one run of a population. What all members do together, only the population can be asked for."""

    restarts = 0
    lost_rows = 0
    pending = 0

    def __init__(self, population: PopulationEngine, number: int) -> None:
        self._population, self._number = population, number
        self.plan = population.plan

    @property
    def params_like(self) -> Any:
        """Params, in shape."""
        return jax.eval_shape(self._population.training.algorithm.init, jax.random.key(0))

    def late_tally(self) -> Tally:
        """Nothing: nobody plays after `advance` has returned."""
        return collect_reports(self.plan, {}, 1).tally

    def state(self) -> State:
        """The learner's state."""
        return self._population.value("state", self._number)

    def snapshot(self, slots: tuple[str, ...] = (), leave: tuple[str, ...] = ()) -> Snapshot:
        """All persistent slots (or only `slots`, or without `leave`)."""
        with self.open_snapshot(slots, leave) as snapshot:
            return in_memory(snapshot)

    @contextmanager
    def open_snapshot(self, slots: tuple[str, ...] = (), leave: tuple[str, ...] = ()) -> Iterator[Snapshot]:
        """The same, in which large arrays are read piece by piece."""
        names = persistent(self.plan, self._population.training, 0, 0, self._population.slots)
        wanted = [name for name in names if (not slots or name in slots) and name not in leave]
        mine = {name: self._population.value(name, self._number) for name in wanted}
        yield assemble(self.plan, [], self._population.training, {(0, 0): mine})

    def template(self) -> Snapshot:
        """A snapshot of a member, all zeros."""
        training = self._population.training
        return template(self.plan, training, slot_shapes(training, self.plan))

    def status(self) -> list[ReplicaStatus]:
        """Empty: there are no replicas to show."""
        return []

    def processes(self) -> dict[str, int]:
        """Empty: there is no process but this one."""
        return {}

    def abandon(self) -> None:
        """Nothing to do: nobody waits for replicas."""

    def close(self) -> None:
        """Nothing to do: there are no processes."""

    def _together(self, *_: Any) -> Any:
        raise NotImplementedError("members of a population do this together, and lose no replicas")

    start = restore = advance = rebuild = salvage = _together
