"""What an engine is: all that the run loop needs to know of whatever runs a plan."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from tessera.algorithms.contract import State
from tessera.engines.replica.reports import Reports
from tessera.errors import RunFailed, TesseraError
from tessera.graph.plan import Plan
from tessera.program.accounting import Tally

Snapshot = dict[str, Any]
"""Every persistent slot, whole, whatever the number of replicas."""


class Interrupted(Exception):
    """A replica died that cannot be replaced alone: the run has to go back to its last checkpoint."""


class SnapshotLost(RunFailed):
    """A replica was replaced while its part of an open snapshot was read: another snapshot has to be taken."""


class Abandoned(Exception):
    """Whoever drives the engine no longer wants to wait for replicas."""


class RestartsSpent(RunFailed):
    """Replicas died more often than the budget of restarts allows."""


class NoCapacity(TesseraError):
    """There is no room for a plan."""

    def __init__(self, text: str, fragment: int) -> None:
        """`fragment` is the one of which a replica finds no place."""
        super().__init__(text)
        self.fragment = fragment


@dataclass(frozen=True)
class ReplicaStatus:
    """What one replica is doing."""

    place: int
    """Its number among all replicas of the plan."""
    title: str
    state: str
    """starting, running, waiting, idle, dead (until a successor starts) or restarting (a successor that starts)."""
    updates: int
    """Updates made."""
    stream: str = ""
    """What it waits for, while it waits."""
    sending: bool = False
    """Whether it waits to send, and not to receive."""
    restarts: int = 0
    """How often it was started again."""
    process: int = 0
    """Its process; 0 before there is one."""
    node: str = ""
    """The node of the cluster that it is on; empty for this machine."""

    @property
    def in_words(self) -> str:
        """Its state, with what it waits for."""
        if self.state != "waiting":
            return self.state
        return f"waiting {'to send' if self.sending else 'for'} {self.stream}"


@dataclass(frozen=True)
class ReplicaEvent:
    """A replica has died, or its successor takes part."""

    kind: str
    """death or restart."""
    place: int
    text: str
    """One line for the user."""


def ignore(event: ReplicaEvent) -> None:
    """Do nothing about an event."""


class Engine(Protocol):
    """Runs a plan. `advance` and all that talks to replicas may raise `Interrupted`, `RestartsSpent` or `Abandoned`."""

    plan: Plan
    """What runs; `rebuild` may replace it by one with fewer replicas."""

    @property
    def restarts(self) -> int:
        """Replicas that were started again, over the whole run."""

    @property
    def lost_rows(self) -> int:
        """Rows of experience that were lost with replicas that died, over the whole run."""

    @property
    def pending(self) -> int:
        """Updates that were begun ahead and not reported yet."""

    @property
    def params_like(self) -> Any:
        """Params, in shape."""

    def start(self) -> Tally | None:
        """Reset the environments and fill the store; what was played meanwhile, if anything was."""

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot, open or not, instead of a start; host environments start new episodes."""

    def advance(self, count: int, ahead: int = 0) -> Reports:
        """Run `count` updates and report each; `ahead` more may be begun meanwhile, and are reported next time."""

    def late_tally(self) -> Tally:
        """What replicas that run at their own pace have played since `advance` returned, as of the last snapshot."""

    def state(self) -> State:
        """The learner's state."""

    def snapshot(self, slots: tuple[str, ...] = (), leave: tuple[str, ...] = ()) -> Snapshot:
        """All persistent slots (or only `slots`, or without `leave`), whole. Host environments are left out."""

    def open_snapshot(
        self, slots: tuple[str, ...] = (), leave: tuple[str, ...] = ()
    ) -> AbstractContextManager[Snapshot]:
        """The same, in which large arrays stay where they are (`StreamedArray`) and are read piece by piece.

        What they belong to stands still until the snapshot is closed. Reading may raise `SnapshotLost`.
        """

    def template(self) -> Snapshot:
        """A snapshot like this engine's, all zeros."""

    def rebuild(self) -> None:
        """Begin again after `Interrupted`, with fewer replicas if there is no longer room for all."""

    def salvage(self, last: Snapshot | None) -> tuple[int, Snapshot] | None:
        """What can be saved after `RestartsSpent`: (updates made, snapshot); `last` has the parts of dead replicas.

        The snapshot is open until the engine is closed.
        """

    def abandon(self) -> None:
        """Have a call that waits for replicas raise `Abandoned`; another thread calls this."""

    def status(self) -> list[ReplicaStatus]:
        """What every replica is doing, as far as it runs by itself; any thread may ask."""

    def processes(self) -> dict[str, int]:
        """Title -> process of every replica that has one of its own."""

    def close(self) -> None:
        """End every process and give everything back."""
