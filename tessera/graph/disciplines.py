"""Disciplines: who waits for what on a channel. Each is a type; `make_plan` decides once which one a channel has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sync:
    """One message from each sender, in order. Every message is waited for."""

    lag: int = 0
    """Messages that receivers trail behind, exactly."""
    batching: float | None = None
    """Seconds that ready senders wait for the others before they are answered without them; None: all are answered
    together."""
    capacity: int = 1
    """Messages that a sender may have in flight, besides those that receivers trail behind."""


@dataclass(frozen=True, kw_only=True)
class InOrder:
    """As `Sync`, but the two ends run at their own pace."""

    lag: int = 0
    bound: int | None = None
    capacity: int = 2


@dataclass(frozen=True, kw_only=True)
class Newest:
    """A register: receivers take the newest params, and wait only if these would be older than the bound allows."""

    bound: int | None = None
    """Updates by which what is made with the params may trail behind; None: any number."""
    every: int = 1
    """Updates between two messages (for `grad`: gradients)."""
    capacity: int = 2


@dataclass(frozen=True, kw_only=True)
class FirstCome:
    """Groups of experience in the order in which they arrive, as many as one update learns from."""

    bound: int | None = None
    """Updates by which experience may trail behind the params that learn from it; older messages are dropped."""
    first: int = 0
    """How many of all actors an update waits for; 0: as many groups as it takes, whoever sends them."""
    take: int = 0
    """Groups that an update learns from, over all receivers; 0: as many as there are."""
    capacity: int = 2


@dataclass(frozen=True, kw_only=True)
class Samples:
    """A sample of every store. The part of a store that is down is drawn from the other stores."""

    bound: int | None = None
    capacity: int = 2


@dataclass(frozen=True, kw_only=True)
class InTurn:
    """Gradients one by one, from the senders in turn."""

    bound: int | None = None
    """Updates by which a gradient may trail behind the params; older ones are dropped."""
    every: int = 1
    """Gradients that are sent as one, their mean."""
    capacity: int = 2


@dataclass(frozen=True, kw_only=True)
class Peers:
    """Everything that peers have sent so far, weighted as in a mean over all of them."""

    bound: int | None = None
    """Updates by which a peer may get ahead of the others; None: any number, 0: an all-reduce."""
    every: int = 1
    """Gradients that are sent as one, their mean."""
    capacity: int = 2


@dataclass(frozen=True, kw_only=True)
class Shared:
    """One memory that peers add to and read without locks."""

    capacity: int = 1


Discipline = Sync | InOrder | Newest | FirstCome | Samples | InTurn | Peers | Shared

SYNCHRONOUS = (Sync, Shared)
"""Disciplines under which no receiver goes on without a message that it wants."""


def make_discipline(
    stream: str,
    mode: str,
    *,
    among_peers: bool,
    shared: bool = False,
    lag: int = 0,
    bound: int | None = None,
    first: int = 0,
    take: int = 0,
    every: int = 1,
    capacity: int = 1,
    batching: float | None = None,
) -> Discipline:
    """The discipline of a stream whose cut has this mode; `among_peers`: between replicas of one fragment."""
    if shared:
        return Shared()
    match mode, stream:
        case "sync", _:
            return Sync(lag=lag, batching=batching)
        case "first", _:
            return FirstCome(bound=bound, first=first, capacity=capacity)
        case _, "params":
            return Newest(bound=bound, every=every, capacity=capacity)
        case _, "gradients" if among_peers:
            return Peers(bound=bound, every=every, capacity=capacity)
        case _, "gradients":
            return InTurn(bound=bound, every=every, capacity=capacity)
        case _, "experience":
            return FirstCome(bound=bound, take=take, capacity=capacity)
        case _, "samples":
            return Samples(bound=bound, capacity=capacity)
        case _:
            return InOrder(lag=lag, bound=bound, capacity=capacity)


def mode_of(discipline: Discipline) -> str:
    """The mode of a policy's cut that gave this discipline, as plans show it."""
    match discipline:
        case Sync() | Shared():
            return "sync"
        case FirstCome(first=first) if first:
            return "first"
        case _:
            return "async"


def lag_of(discipline: Discipline) -> int:
    """Messages that receivers trail behind, exactly."""
    match discipline:
        case Sync(lag=lag) | InOrder(lag=lag):
            return lag
        case _:
            return 0


def bound_of(discipline: Discipline) -> int | None:
    """Updates by which messages may trail behind; None: any number, or none at all under `Sync`."""
    match discipline:
        case Sync() | Shared():
            return None
        case _:
            return discipline.bound


def every_of(discipline: Discipline) -> int:
    """How many updates or gradients one message stands for."""
    match discipline:
        case Newest(every=every) | InTurn(every=every) | Peers(every=every):
            return every
        case _:
            return 1


def most_ahead(bound: int, gradients: int) -> int:
    """Messages of a peer that another has not taken, at the most, if none may be `bound` updates ahead of another.

    An update is so many gradients, B = bound * gradients. While one peer computes a single gradient, another that was B
    behind may get B ahead; besides, it may have sent its next one, and the first may not have taken the one before.
    """
    return 2 * bound * gradients + 2


def in_flight(discipline: Discipline) -> int:
    """Messages that one sender may have in flight."""
    return discipline.capacity + lag_of(discipline)
