"""What a run asks for: to begin, to advance, to have episodes played. Whoever drives it answers.

A run is a generator of requests. One that is alone has each answered at once, by its engine. Runs that are members of a
population ask side by side, and one program answers all of them together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from tessera.algorithms.contract import View
from tessera.engines.base import Engine, Snapshot
from tessera.errors import RunFailed
from tessera.evaluation.evaluator import Evaluator
from tessera.graph.plan import Plan
from tessera.runs.signals import StopSignals


@dataclass(frozen=True)
class Begin:
    """Start, or go on from a snapshot: a `Tally` of what was played meanwhile, or None."""

    snapshot: Snapshot | None


@dataclass(frozen=True)
class Advance:
    """Make up to `count` updates, and begin `ahead` more if that helps: (`Reports`, seconds that it took)."""

    count: int
    ahead: int = 0


@dataclass(frozen=True)
class Evaluate:
    """Play greedy episodes: an `Evaluation`."""

    view: View
    seed: int


@dataclass(frozen=True)
class Exchange:
    """Meet the other members of a population: None to go on as it is, or what it is to go on with, as `Inherited`.

    The engine then has it already.
    """

    update: int
    score: float
    """Mean return of the newest episodes since the last exchange, so that a copy is not judged by what its parent did;
    not a number if none has ended, minus infinity if the member is broken."""
    failure: RunFailed | None = None
    """Why it is broken."""


@dataclass(frozen=True)
class Inherited:
    """What a member goes on with, besides the slots."""

    meter: dict[str, Any]
    """The counters of its parent, as a checkpoint has them."""
    tuned: dict[str, float]
    parent: str
    """Its parent in words; empty if it goes on as it is, with other values."""


@dataclass(frozen=True)
class Move:
    """End the engine, and make the one of another plan: the new `Engine`, which has not begun."""

    plan: Plan


Request = Begin | Advance | Evaluate | Exchange | Move
Value = TypeVar("Value")
Requests = Generator[Request, Any, Value]
"""Work that asks for what it needs, and returns a value at its end."""


def answer_all(work: Requests[Value], answer: Callable[[Request], Any]) -> Value:
    """Run work to its end. What an answer raises is raised where it was asked for."""
    try:
        request = next(work)
        while True:
            try:
                value = answer(request)
            except BaseException as error:
                request = work.throw(error)
            else:
                request = work.send(value)
    except StopIteration as end:
        return end.value


class RoundOver(Exception):
    """A member that has a process to itself has come to an exchange, and what it has made is saved."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(f"update {exchange.update}")
        self.exchange = exchange


@dataclass
class LoneRun:
    """Answers the requests of a run that has an engine to itself."""

    make_engine: Callable[[Plan], Engine]
    engine: Engine
    evaluator: Evaluator
    episodes: int
    signals: StopSignals
    exchanged: int = 0
    """The update whose exchange with the other members of a population is over; the next one ends this process."""
    running: bool = True
    """Whether the engine has not been closed."""

    def __call__(self, request: Request) -> Any:
        """Do what is asked for."""
        match request:
            case Begin(snapshot):
                with self.signals.at_once():
                    return self.engine.start() if snapshot is None else self.engine.restore(snapshot)
            case Advance(count, ahead):
                begun = time.monotonic()
                reports = self.engine.advance(count, ahead)
                return reports, time.monotonic() - begun
            case Evaluate(view, seed):
                return self.evaluator(view, self.episodes, seed)
            case Exchange(update, _, failure):
                if failure is not None:
                    raise failure
                if update > self.exchanged:
                    raise RoundOver(request)
                return None
            case Move(plan):
                with self.signals.at_once():
                    self.close()
                    self.engine = self.make_engine(plan)
                    self.running = True
                return self.engine

    def close(self) -> None:
        """Close the engine, if it has not been."""
        if self.running:
            self.running = False
            self.engine.close()
