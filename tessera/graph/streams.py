"""The streams between operators, each with its layout at the producer and at the consumer.

A layout says how a value lies over the replicas of a fragment:
`groups` (each replica holds its groups of environments, on the leading axis), `partial` (each holds a mean over its
groups), `shards` (each holds a flat range of the parameters), `copy` (each holds all of it), `sum` (each holds the
sum). The pair of layouts and the replica counts decide the route; no route is written by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RouteKind(StrEnum):
    """How a value gets from the replicas that make it to those that want it."""

    RESHARD = "reshard"
    """Each receiver gets the groups that it holds."""
    AGENTS = "agents"
    """As `reshard`, from all that act for its agents, joined on the agents' axis."""
    GATHER = "gather"
    """Each receiver gets all groups."""
    COPY = "copy"
    """Each receiver gets the whole value from one sender."""
    MEAN = "mean"
    """Each receiver gets the mean, weighted by groups."""
    SCATTER = "scatter"
    """Each receiver gets its flat range of the mean."""
    JOIN = "join"
    """Each receiver gets the flat ranges of all senders, joined to whole params."""
    SUM = "sum"
    """Each receiver gets the sum."""
    SHARED = "shared"
    """Peers add to one memory."""


@dataclass(frozen=True)
class Stream:
    """One edge of the dataflow graph."""

    name: str
    slot: str
    """The slot of the training program that this stream carries."""
    source: str
    target: str
    made: str
    wanted: str
    rate: str


STREAMS: tuple[Stream, ...] = (
    Stream("timesteps", "timesteps", "env", "act", "groups", "groups", "every step"),
    Stream("actions", "actions", "act", "env", "groups", "groups", "every step"),
    Stream("experience", "experience", "act", "store", "groups", "groups", "every unroll"),
    Stream("samples", "samples", "store", "grad", "groups", "groups", "every draw"),
    Stream("priorities", "priorities", "grad", "store", "groups", "groups", "every draw"),
    Stream("summary", "summary", "grad", "grad", "groups", "copy", "every draw"),
    Stream("summary", "summary", "grad", "apply", "groups", "copy", "every draw"),
    Stream("gradients", "gradients", "grad", "apply", "partial", "copy", "every minibatch"),
    Stream("norm", "squares", "apply", "apply", "shards", "sum", "every minibatch"),
    Stream("params", "view", "apply", "grad", "copy", "copy", "every minibatch"),
    Stream("params", "acting", "apply", "act", "copy", "copy", "every update"),
    Stream("updates", "updates", "apply", "apply", "peers", "peers", "every update"),
)

STREAM_NAMES: tuple[str, ...] = tuple(dict.fromkeys(s.name for s in STREAMS))


def route(stream: Stream, source_replicas: int, together: bool) -> RouteKind | None:
    """The route from the producer's replicas to the consumer's; None for a stream that never leaves a replica."""
    if stream.made == "groups" and stream.wanted == "groups":
        return None if together else RouteKind.RESHARD
    if stream.made == "groups":
        return None if together and source_replicas == 1 else RouteKind.GATHER
    if stream.made == "partial":
        return None if together and source_replicas == 1 else RouteKind.MEAN
    return None if together else RouteKind.COPY
