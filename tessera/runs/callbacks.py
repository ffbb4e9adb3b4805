"""Callbacks: the user's own code, called by the driver while a run goes on. It sees metrics and may end the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from tessera.errors import RunFailed, TesseraError


@dataclass(frozen=True, kw_only=True)
class Event:
    """What every callback gets."""

    seed: int
    """Seed of the run; with `seeds=` it says which of the runs this is of."""
    update: int
    """Updates made."""
    env_steps: int
    """Environment steps, over all environments."""
    metrics: Mapping[str, float]
    """The newest row of metrics; docs/metrics.md names every entry."""
    _request_stop: Callable[[str], None] = field(repr=False, compare=False)

    def stop(self, reason: str) -> None:
        """Have the run end soon, as if it had reached its target; the summary holds the reason."""
        self._request_stop(reason)


@dataclass(frozen=True, kw_only=True)
class UpdateEvent(Event):
    """There is a new row of metrics: after the first update, then about twice a second."""


@dataclass(frozen=True, kw_only=True)
class EvaluationEvent(Event):
    """Greedy episodes were played; `update` and `env_steps` are those of the params that played."""

    returns: np.ndarray
    """Return of each episode."""
    best: bool
    """Whether their mean is higher than that of every evaluation of this run before; so it is of the first."""

    @property
    def return_mean(self) -> float:
        """Mean return; nan if no episode ended."""
        return float(self.returns.mean()) if len(self.returns) else float("nan")


@dataclass(frozen=True, kw_only=True)
class CheckpointEvent(Event):
    """A checkpoint was written."""

    path: Path
    """Its folder."""
    best: bool
    """Whether it is the best one, which holds no more than acting needs."""


@dataclass(frozen=True, kw_only=True)
class EndEvent(Event):
    """The run has ended; the last checkpoint and summary.json are written."""

    summary: Mapping[str, Any]
    """The contents of summary.json."""
    reason: str | None
    """Why the run ended before its last step; None if it did not."""


class Callback:
    """The base class of callbacks for `tessera.train(…, callbacks=[…])`; override what you need.

    Methods are called by the process that called `train`, one after the other, while training waits. `event.stop(…)`
    ends the run. An exception ends it too: a checkpoint is saved, and the error names the method.
    """

    def on_update(self, event: UpdateEvent) -> None:
        """There is a new row of metrics."""

    def on_evaluation(self, event: EvaluationEvent) -> None:
        """Greedy episodes were played, during training or at its end."""

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        """A checkpoint was written."""

    def on_end(self, event: EndEvent) -> None:
        """The run has ended, at its last step or before; not called after a failure or a signal."""


class CallbackFailed(RunFailed):
    """A callback raised; its exception is the cause."""


def check_callbacks(callbacks: Sequence[Any]) -> tuple[Callback, ...]:
    """Refuse what is no callback."""
    callbacks = [callbacks] if isinstance(callbacks, Callback) else callbacks
    for number, given in enumerate(callbacks):
        if not isinstance(given, Callback):
            what = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
            raise TesseraError(f"callbacks[{number}] is {what}: pass an instance of a class derived from Callback")
    return tuple(callbacks)


class RunCallbacks:
    """The callbacks of one run."""

    def __init__(self, callbacks: Sequence[Callback], seed: int) -> None:
        self._callbacks, self._seed = callbacks, seed
        self.reason: str | None = None
        """Why a callback wants the run to end."""

    def call(self, kind: type[Event], update: int, env_steps: int, row: Mapping[str, float], **more: Any) -> None:
        """Tell all callbacks of an event."""
        if not self._callbacks:
            return
        event = kind(
            seed=self._seed, update=update, env_steps=env_steps, metrics=MappingProxyType(dict(row)),
            _request_stop=self._stop, **more,
        )  # fmt: skip
        method = METHODS[kind]
        for callback in self._callbacks:
            try:
                getattr(callback, method)(event)
            except Exception as error:  # whatever the user's code raises
                where = f"{type(callback).__name__}.{method}"
                raise CallbackFailed(f"{where} raised {type(error).__name__} at update {update}: {error}") from error

    def _stop(self, reason: str) -> None:
        self.reason = self.reason or str(reason) or "a callback asked for it"


METHODS: dict[type[Event], str] = {
    UpdateEvent: "on_update",
    EvaluationEvent: "on_evaluation",
    CheckpointEvent: "on_checkpoint",
    EndEvent: "on_end",
}
"""Kind of event -> the method that is called with it."""
