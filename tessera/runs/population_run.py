"""Runs that advance together, as one program: several seeds, or a population. Each keeps a record of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tessera.algorithms.contract import State
from tessera.engines.base import Snapshot
from tessera.engines.population import PopulationEngine
from tessera.errors import RunFailed
from tessera.evaluation.evaluator import Evaluator
from tessera.evaluation.intervals import interquartile_mean
from tessera.maths.tuning import recombination_weights
from tessera.runs.checkpoint import flatten, unflatten
from tessera.runs.display import Display, Progress, Quiet
from tessera.runs.meeting import Meeting
from tessera.runs.recombination import mean_state, near, spread
from tessera.runs.requests import Advance, Begin, Evaluate, Exchange, Inherited, Request, Requests
from tessera.runs.run_loop import Run
from tessera.runs.signals import StopSignals

HOLD_PARAMS = ("state", "view", "acting", "acting_queue")
"""Slots with params in them."""
Outcome = tuple[State, dict[str, Any]] | RunFailed
"""A run's final state and summary, or why it failed."""


class MemberDisplay(Quiet):
    """What a member has to say is shown with its seed; how far all have come is shown for all together."""

    def __init__(self, seed: int, whole: Display) -> None:
        self._seed, self._whole = seed, whole
        self.newest: Progress | None = None

    def show(self, progress: Progress, *_: Any) -> None:
        """Keep it."""
        self.newest = progress

    def note(self, text: str) -> None:
        """Show it with the seed."""
        self._whole.note(f"seed {self._seed}: {text}")


def combined(members: Sequence[Progress]) -> Progress:
    """How far several runs have come: steps and speed of all together, the interquartile mean of their returns."""
    known = [p.train_return for p in members if not np.isnan(p.train_return)]
    played = [p.eval_return for p in members if not np.isnan(p.eval_return)]
    speeds = [p.steps_per_second for p in members if not np.isnan(p.steps_per_second)]
    return Progress(
        update=sum(p.update for p in members) // len(members),
        updates=max(p.updates for p in members),
        env_steps=sum(p.env_steps for p in members),
        steps_per_second=sum(speeds) if speeds else float("nan"),
        train_return=float(interquartile_mean(np.asarray(known))) if known else float("nan"),
        seconds_left=max((p.seconds_left for p in members if not np.isnan(p.seconds_left)), default=float("nan")),
        eval_return=float(interquartile_mean(np.asarray(played))) if played else float("nan"),
    )


class PopulationRun:
    """Answers the requests of all members together, until each has come to its end."""

    def __init__(
        self,
        runs: Sequence[Run],
        displays: Sequence[MemberDisplay],
        evaluator: Evaluator,
        display: Display,
        on_first_update: Callable[[], None],
        meeting: Meeting | None = None,
    ) -> None:
        """`on_first_update` is called once the first update has shown that the program works.

        `meeting` decides who goes on from whom, if the runs are a population.
        """
        self._meeting = meeting
        self._on_first_update: Callable[[], None] | None = on_first_update
        self._runs, self._displays, self._evaluator, self._display = runs, displays, evaluator, display
        self._episodes = runs[0].options.eval_episodes
        self._engine: PopulationEngine
        self._signals: StopSignals
        self._work: list[Requests[tuple[State, dict[str, Any]]]] = []
        self._waiting: dict[int, Request] = {}
        """What each member asks for that has not come to its end."""
        self._outcomes: dict[int, Outcome] = {}
        self._stopped: BaseException | None = None

    def go(self, found: Sequence[int | None]) -> list[Outcome]:
        """Run each member from update `found` on: an outcome for each."""
        first = self._runs[0]
        seeds = [run.config["seed"] for run in self._runs]
        try:
            tuned = [run.exchanges.tuned for run in self._runs]
            self._engine = PopulationEngine(first.plan, first.algorithm, first.env, seeds, first.updates, tuned)
            if self._sigma and not any(found):
                self._go_near_mean(0, [1.0])
            with StopSignals(lambda: None) as self._signals:
                members = zip(self._runs, self._engine.members, found, strict=True)
                self._work = [run.work(member, self._signals, at) for run, member, at in members]
                for number in range(len(self._work)):
                    self._resume(number, self._work[number].__next__)
                while self._waiting:
                    self._answer_next()
                self._show()
        finally:
            for run in self._runs:
                run.close()
        if self._stopped is not None:
            raise self._stopped
        return [self._outcomes[number] for number in range(len(self._runs))]

    def _answer_next(self) -> None:
        """Answer all requests of one kind; members advance when none of them asks for anything else.

        They meet once all have come to the exchange: one that is broken waits there for the others.
        """
        asked = {kind: self._asked(kind) for kind in (Begin, Evaluate, Advance, Exchange)}
        kind = next(kind for kind, requests in asked.items() if requests)
        try:
            answers = self._answers(asked[kind])
        except BaseException as error:
            answers = dict.fromkeys(asked[kind], error)
        for number, value in answers.items():
            work = self._work[number]
            self._resume(number, partial(work.throw if isinstance(value, BaseException) else work.send, value))

    def _asked(self, kind: type[Request]) -> dict[int, Request]:
        return {number: request for number, request in self._waiting.items() if isinstance(request, kind)}

    def _answers(self, asked: dict[int, Request]) -> dict[int, Any]:
        """The answers to requests of one kind; an exception is raised where the member asked."""
        match next(iter(asked.values())):
            case Begin():
                return self._begin({k: r.snapshot for k, r in asked.items() if isinstance(r, Begin)})
            case Evaluate():
                return self._evaluate({k: r for k, r in asked.items() if isinstance(r, Evaluate)})
            case Advance():
                return self._advance({k: r.count for k, r in asked.items() if isinstance(r, Advance)})
            case Exchange():
                return self._exchange({k: r for k, r in asked.items() if isinstance(r, Exchange)})
            case other:
                raise NotImplementedError(f"members of one program share its plan: {other}")

    def _resume(self, number: int, step: Callable[[], Request]) -> None:
        """Let a member go on to its next request, or to its end."""
        self._waiting.pop(number, None)
        try:
            self._waiting[number] = step()
        except StopIteration as end:
            self._outcomes[number] = end.value
        except RunFailed as failure:
            self._outcomes[number] = failure
            self._display.note(f"seed {self._runs[number].config['seed']} failed: {failure}")
        except (KeyboardInterrupt, SystemExit) as stopped:  # a signal: the others save first
            self._stopped = stopped

    def _begin(self, snapshots: dict[int, Snapshot | None]) -> dict[int, Any]:
        with self._signals.at_once():
            played = self._engine.begin([snapshots.get(k) for k in range(len(self._runs))])
        return {number: played[number] for number in snapshots}

    def _advance(self, counts: dict[int, int]) -> dict[int, Any]:
        begun = time.monotonic()
        outcomes = self._engine.advance(min(counts.values()))
        seconds = time.monotonic() - begun
        if self._on_first_update is not None:
            self._on_first_update()
            self._on_first_update = None
        self._show()
        return {k: x if isinstance(x := outcomes[k], RunFailed) else (x, seconds) for k in counts}

    def _exchange(self, asked: dict[int, Exchange]) -> dict[int, Any]:
        if self._stopped is not None:
            return dict.fromkeys(asked, self._stopped)
        assert self._meeting is not None
        members = range(len(self._runs))  # one that has ended neither copies nor is copied
        scores = [asked[k].score if k in asked else math.nan for k in members]
        update = next(iter(asked.values())).update
        descents = self._meeting.decide(update, scores, [run.exchanges.tuned for run in self._runs])
        self._engine.inherit([d.parent for d in descents], [d.tuned for d in descents])
        if self._sigma:
            self._go_near_mean(update, recombination_weights(scores))
        self._forget_old_checkpoints()
        meters = [run.meter.to_json() for run in self._runs]
        seeds = [run.config["seed"] for run in self._runs]

        def answer(member: int) -> Any:
            parent = descents[member].parent
            if parent == member:
                return asked[member].failure
            return Inherited(meters[parent], descents[member].tuned, f"seed {seeds[parent]}")

        return {member: answer(member) for member in asked}

    def _forget_old_checkpoints(self) -> None:
        """Keep the newest updates that all members have saved, and what came after: a broken member saves nothing."""
        assert self._meeting is not None
        kept = [run.checkpoints for run in self._runs if run.checkpoints is not None]
        common = sorted(set.intersection(*(set(each.updates()) for each in kept))) if kept else []
        if len(common) > self._meeting.keep:
            for each in kept:
                each.forget_before(common[-self._meeting.keep])

    @property
    def _sigma(self) -> float:
        """Deviation of the noise on params, if an evolution strategy is over the runs."""
        return 0.0 if self._meeting is None else self._meeting.population.sigma

    def _go_near_mean(self, update: int, weights: Sequence[float]) -> None:
        """Give all members params near the mean of those of the first of them, as many as there are weights."""
        if not any(weights):
            return  # all are broken, and will say so
        assert self._meeting is not None
        held = [member.snapshot(HOLD_PARAMS) for member in self._engine.members]
        arrays = [flatten(each) for each in held]
        mean = mean_state(arrays[: len(weights)], weights)
        for number, (like, mine) in enumerate(zip(held, arrays, strict=True)):
            changed = spread(mine, near(mean, self._sigma, self._meeting.seed, update, number))
            self._engine.put(number, unflatten(like, changed, "a member"))

    def _show(self) -> None:
        """Show how far all members had come when they last said so."""
        progress = [display.newest for display in self._displays if display.newest is not None]
        if progress:
            self._display.show(combined(progress))

    def _evaluate(self, asked: dict[int, Evaluate]) -> dict[int, Any]:
        """Play for all members, so that one program serves however many ask; only those get an answer."""
        anyone = next(iter(asked.values()))
        requests = [asked.get(number, anyone) for number in range(len(self._runs))]
        views, seeds = [r.view for r in requests], [r.seed for r in requests]
        evaluations = self._evaluator.evaluate_all(views, self._episodes, seeds)
        return {number: evaluations[number] for number in asked}
