"""Channels: what becomes of a stream that crosses between replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera.graph.disciplines import (
    Discipline,
    FirstCome,
    Newest,
    Shared,
    Sync,
    bound_of,
    every_of,
    lag_of,
    make_discipline,
    mode_of,
    most_ahead,
)
from tessera.graph.groups import Needs
from tessera.graph.policy import Policy
from tessera.graph.streams import RouteKind, Stream, route


@dataclass(frozen=True, kw_only=True)
class Channel:
    """A stream that crosses between replicas."""

    stream: str
    slot: str
    source: int
    """Index of the fragment that sends."""
    target: int
    """Index of the fragment that receives."""
    route: RouteKind
    rate: str
    made_by: str
    """Operator that makes the values."""
    wanted_by: str
    """Operator that wants them."""
    discipline: Discipline
    codec: str = ""
    threshold: float = 0.0
    link_per_receiver: bool = False
    """Whether a sender has a link to each receiver, so that it can send to one and not yet to another."""

    @property
    def kind(self) -> str:
        """How plans call it: queue (in order, bounded), register (the newest), exchange (every step), collective (among
        the replicas of one fragment) or shared (one memory)."""
        match self.discipline:
            case Shared():
                return "shared"
            case _ if self.source == self.target:
                return "collective"
            case _ if self.stream in ("timesteps", "actions"):
                return "exchange"
            case Newest():
                return "register"
            case _:
                return "queue"

    @property
    def lag(self) -> int:
        """Messages that receivers trail behind, exactly."""
        return lag_of(self.discipline)

    @property
    def among_peers(self) -> bool:
        """Whether it connects the replicas of one fragment."""
        return self.source == self.target

    def to_json(self) -> dict[str, Any]:
        """Plain data, as saved in plan.json."""
        d = self.discipline
        return {
            "stream": self.stream,
            "slot": self.slot,
            "source": self.source,
            "target": self.target,
            "route": str(self.route),
            "rate": self.rate,
            "made_by": self.made_by,
            "wanted_by": self.wanted_by,
            "kind": self.kind,
            "mode": mode_of(d),
            "lag": lag_of(d),
            "bound": bound_of(d),
            "first": d.first if isinstance(d, FirstCome) else 0,
            "take": d.take if isinstance(d, FirstCome) else 0,
            "capacity": d.capacity,
            "codec": self.codec,
            "threshold": self.threshold,
            "wait": d.batching if isinstance(d, Sync) else None,
            "every": every_of(d),
            "apart": self.link_per_receiver,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Channel:
        """The channel that `to_json` described."""
        same = ("stream", "slot", "source", "target", "rate", "made_by", "wanted_by", "codec", "threshold")
        given = {name: data[name] for name in ("lag", "bound", "first", "every", "capacity")}
        given["take"] = data.get("take", 0)  # plans that were saved before there was one
        discipline = make_discipline(
            data["stream"],
            data["mode"],
            among_peers=data["source"] == data["target"],
            shared=data["kind"] == "shared",
            batching=data["wait"],
            **given,
        )
        return cls(
            **{name: data[name] for name in same},
            route=RouteKind(data["route"]),
            discipline=discipline,
            link_per_receiver=data["apart"],
        )


def make_channel(stream: Stream, policy: Policy, needs: Needs, lag: int) -> Channel | None:
    """The channel of a stream, if it leaves a replica at all."""
    if not _flows(stream, policy, needs):
        return None
    route_kind = _route_kind(stream, policy)
    if route_kind is None:
        return None
    source, target, cut = policy.home(stream.source), policy.home(stream.target), policy.cut(stream.name)
    counted = "gradients" if stream.name == "gradients" else "updates"
    batching = _batching(policy)
    return Channel(
        stream=stream.name,
        slot=stream.slot,
        source=source,
        target=target,
        route=route_kind,
        rate=stream.rate if cut.every == 1 else f"every {cut.every} {counted}",
        made_by=stream.source,
        wanted_by=stream.target,
        discipline=_discipline(stream, policy, needs, lag, batching),
        codec=cut.codec,
        threshold=cut.threshold,
        link_per_receiver=stream.name == "actions" and batching is not None,
    )


def _route_kind(stream: Stream, policy: Policy) -> RouteKind | None:
    """How a stream travels, by its layouts and the numbers of replicas; None if it never leaves a replica."""
    source, target, cut = policy.home(stream.source), policy.home(stream.target), policy.cut(stream.name)
    senders = policy.fragments[source].runs
    if stream.name == "norm":
        return RouteKind.SUM if senders > 1 else None
    if stream.name == "updates":
        return RouteKind(cut.route) if senders > 1 else None
    if stream.name == "experience" and cut.route == "gather":
        return RouteKind.GATHER if senders > 1 else None
    found = route(stream, senders, source == target)
    if found is None:
        return None
    if stream.name == "actions" and policy.fragments[source].by == "agents":
        return RouteKind.AGENTS
    server = policy.fragments[policy.home("apply")]
    sharded = server.names == ("apply",) and server.runs > 1
    match stream.name:
        case "gradients" if sharded:
            return RouteKind.SCATTER
        case "params" if sharded:
            return RouteKind.JOIN
        case _:
            return found


def _batching(policy: Policy) -> float | None:
    """Seconds that ready environment servers wait for others; one server's environments are ready at once."""
    return policy.cut("timesteps").wait if policy.replicas("env") > 1 else None


def _discipline(stream: Stream, policy: Policy, needs: Needs, lag: int, batching: float | None) -> Discipline:
    """What a stream's cut means for its channel."""
    cut, params = policy.cut(stream.name), policy.cut("params")
    bound = params.lag if params.mode == "async" else None
    among_peers = policy.home(stream.source) == policy.home(stream.target)
    capacity = cut.capacity
    if (
        among_peers and stream.name == "gradients" and bound is not None
    ):  # peers that may not get further ahead need no room for more
        capacity = min(capacity, most_ahead(bound, needs.applies))
    trail = (cut.lag or 0) if stream.name == "priorities" else lag if stream.slot == "acting" else 0
    return make_discipline(
        stream.name,
        cut.mode,
        among_peers=among_peers,
        shared=stream.name == "updates" and cut.route == "shared",
        lag=trail,
        bound=bound,
        first=cut.first,
        take=cut.take,
        every=cut.every,
        capacity=capacity,
        batching=batching if stream.name == "timesteps" else None,
    )


def _flows(stream: Stream, policy: Policy, needs: Needs) -> bool:
    """Whether the algorithm and the policy have any use for a stream between replicas."""
    source, target = policy.home(stream.source), policy.home(stream.target)
    to_apply = (stream.name, stream.target) == ("summary", "apply")
    solo = policy.cut("gradients").mode == "async" and policy.home("grad") != policy.home("apply")
    alone = policy.cut("gradients").route == "local" or policy.cut("experience").route == "gather"
    server = policy.fragments[policy.home("apply")]
    if stream.name == "priorities":
        return needs.priorities
    if to_apply:  # where grad and apply are together it was gathered for grad already
        return needs.absorbs and source != target and not solo  # a gradient that is applied by itself brings it
    if stream.name == "summary":  # peers that do not wait for each other keep theirs to themselves
        loose = policy.cut("gradients").mode == "async" and policy.cut("params").lag != 0
        return not (solo or alone or loose)
    if stream.name == "gradients":  # each agent's params are its own
        return not alone and server.by == "groups"
    if stream.name == "norm":  # a gradient that is applied by itself brings its norm
        return (server.names == ("apply",) or server.by == "agents") and not solo
    if stream.name == "updates":
        return "updates" in policy.cuts
    if stream.slot == "acting":  # a fragment with both receives params once, and act reads grad's
        return target != policy.home("grad")
    return True
