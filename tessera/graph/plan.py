"""A plan: a policy applied to one algorithm, one environment and the cores and devices of this machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import Any

from tessera.errors import TesseraError, unknown_name
from tessera.graph.disciplines import (
    SYNCHRONOUS,
    Discipline,
    FirstCome,
    InTurn,
    Newest,
    Shared,
    Sync,
    bound_of,
    every_of,
    lag_of,
    make_discipline,
    mode_of,
)
from tessera.graph.groups import Needs, count_groups, deal, usable
from tessera.graph.policy import ALL_DEVICES, Cut, Fragment, Policy
from tessera.graph.streams import STREAMS, RouteKind, Stream, route
from tessera.support.machine import cores

ENGINES = ("serial", "local", "ray")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A fragment with concrete numbers."""

    operators: tuple[str, ...]
    replicas: int = 1
    devices: int = 1
    platform: str = "cpu"
    groups: tuple[tuple[int, ...], ...]
    """Which groups of environments each replica holds."""
    batches: tuple[tuple[int, ...], ...] = ()
    """Which groups of experience each replica stores and learns from; () if the same."""
    cores: tuple[int, ...] = ()
    """For each replica, how many cores it has for itself; () if replicas share what is left."""
    threads: int = 1
    """Threads that the compiled programs of one replica use."""
    asked: int = 0
    """Replicas that the policy asked for, where several are batched in one process."""
    model: int = 1
    """Devices over which the wide layers of each copy of the params are cut; `devices` counts copies."""
    agents: tuple[tuple[int, ...], ...] = ()
    """Which agents each replica acts and learns for, in all groups; () if for all of them, in its groups."""

    @property
    def title(self) -> str:
        """Its name in messages."""
        return "+".join(self.operators)

    @property
    def sharded(self) -> bool:
        """Whether each replica holds a flat range of the parameters: a parameter server of several shards."""
        return self.operators == ("apply",) and self.replicas > 1

    def held(self, operator: str) -> tuple[tuple[int, ...], ...]:
        """Groups that each replica holds, as `operator` sees them."""
        return self.groups if operator in ("env", "act") or not self.batches else self.batches


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


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Concrete fragments, replicas, devices and channels: all that an engine needs besides the program."""

    policy: str
    reason: str
    algorithm: str
    env: str
    engine: str
    envs: int
    groups: int
    lag: int
    fragments: tuple[Placement, ...]
    channels: tuple[Channel, ...]
    batches: int = 0
    """Groups of experience that one update learns from: all of them, or those of the first few actors."""
    exchange: str = ""
    """How peers join their updates: mean, shared or not at all."""
    every: int = 1
    carries: str = "state"
    unused: tuple[str, ...] = ()
    """Streams between operators that this algorithm has no use for."""
    sharing: int = 1
    """How many replicas share one accelerator of a cluster."""
    origin: tuple[Policy, Needs] | None = field(default=None, compare=False, repr=False)
    """What it was made from, so that it can be made again with fewer replicas."""

    @property
    def envs_per_group(self) -> int:
        """Environments in each group."""
        return self.envs // self.groups

    def trails(self, channel: Channel) -> bool:
        """Whether the same number of messages is under way whenever all stand still: they are a part of the state."""
        return channel.lag > 0 and not self.asynchronous

    @property
    def asynchronous(self) -> bool:
        """Whether some fragments run at their own pace; then those with `apply` say when the run is over."""
        return any(not isinstance(c.discipline, SYNCHRONOUS) and not c.among_peers for c in self.channels)

    @property
    def solo(self) -> bool:
        """Whether each gradient is applied by itself, so that summaries and norms are its own replica's."""
        return any(isinstance(c.discipline, InTurn) for c in self.channels)

    @property
    def learners(self) -> int:
        """Gradients that are applied one by one where a synchronous run would apply their mean."""
        return self.fragments[self.home("grad")].replicas if self.solo else 1

    @property
    def envs_per_update(self) -> Fraction:
        """Environments whose unrolls one update learns from; one that is played by twice counts twice."""
        pushed = self.channel("gradients") if self.solo else None
        each = 1 if pushed is None else every_of(pushed.discipline)
        return Fraction(self.envs * self.batches * each, self.groups * self.learners)

    @property
    def places(self) -> list[tuple[int, int, str]]:
        """Fragment, number and title of every replica; a replica's place is its position in this list."""
        return [(i, r, f"{f.title}/{r}") for i, f in enumerate(self.fragments) for r in range(f.replicas)]

    def place(self, fragment: int, number: int) -> int:
        """A replica's place among all of the plan's."""
        return sum(f.replicas for f in self.fragments[:fragment]) + number

    def home(self, operator: str) -> int:
        """Index of the fragment that holds `operator`."""
        return next(i for i, f in enumerate(self.fragments) if operator in f.operators)

    @property
    def refills(self) -> bool:
        """Whether a store that dies begins again empty, and is refilled by actors, who wait for nobody, as all do."""
        made = self.channel("experience")
        alone = self.fragments[self.home("store")].operators == ("store",)
        return alone and made is not None and mode_of(made.discipline) == "async"

    @property
    def mirrored(self) -> bool:
        """Whether replicas learn the same from all experience, so that each has what any of them has learned."""
        return any(len(f.batches) > 1 and f.batches[0] == f.batches[-1] for f in self.fragments)

    def counted(self, index: int) -> bool:
        """Whether a fragment's replicas make a set number of updates; others run until these are done."""
        return not self.asynchronous or "apply" in self.fragments[index].operators

    def channel(self, slot: str, source: int | None = None) -> Channel | None:
        """The channel of a slot, if it has one."""
        return next((c for c in self.channels if c.slot == slot and source in (None, c.source)), None)

    def to_json(self) -> dict[str, Any]:
        """Plain data, as saved in plan.json."""
        found = asdict(replace(self, origin=None, channels=()))
        del found["origin"]
        return {**found, "channels": [c.to_json() for c in self.channels]}


def make_plan(
    policy: Policy,
    needs: Needs,
    envs: int,
    *,
    groups: int | None = None,
    platform: str = "cpu",
    available: int = 1,
    reason: str = "named by the user",
    engine: str | None = None,
) -> Plan:
    """Apply `policy`; raise with asked versus available where it cannot be."""
    if envs < 1:
        raise TesseraError(f"--envs {envs}: at least one environment is needed")
    policy = _resolved(policy, needs)
    _check_engine(engine, policy)
    several = len(policy.fragments) > 1 or policy.fragments[0].runs > 1
    virtual = max(available, cores()) if several and platform == "cpu" else available
    devices = [_count_devices(f, envs, needs, platform, available, virtual) for f in policy.fragments]
    total, learned = count_groups(policy, needs, envs, groups, devices)
    params = policy.cut("params")
    lag = (0 if needs.device_env else 1) if params.lag is None else params.lag
    lag = 0 if params.mode == "async" else lag
    threads = _threads(policy)
    fragments = tuple(
        _place(policy, f, d, platform, total, learned, threads, needs.agents)
        for f, d in zip(policy.fragments, devices, strict=True)
    )
    for f in fragments:
        if f.devices > 1 and any(len(g) % f.devices for g in f.groups):
            raise TesseraError(
                f"fragment {f.title}: {total} groups over {f.replicas} replicas of {f.devices} devices do not share "
                "out evenly: set --groups to a multiple of replicas × devices"
            )
    _check_wait(policy, devices)
    if needs.layerwise and fragments[policy.home("apply")].sharded:
        raise TesseraError(
            f"--layerwise {needs.layerwise} measures whole layers, and policy {policy.name!r} cuts them over "
            f"{policy.replicas('apply')} shards: use 1 shard"
        )
    channels = tuple(c for s in STREAMS if (c := _channel(s, policy, needs, lag)) is not None)
    updates = policy.cuts.get("updates", Cut())
    return Plan(
        policy=policy.name,
        reason=reason,
        algorithm=needs.algorithm,
        env=needs.env,
        engine=engine or ("local" if several else "serial"),
        envs=envs,
        groups=total,
        lag=lag,
        fragments=fragments,
        channels=channels,
        batches=learned,
        exchange=updates.route if policy.fragments[policy.home("apply")].runs > 1 else "",
        every=updates.every,
        carries=updates.carries,
        unused=tuple(name for name, used in (("priorities", needs.priorities), ("summary", needs.absorbs)) if not used),
        origin=(policy, needs),
    )


def _count_devices(f: Fragment, envs: int, needs: Needs, platform: str, available: int, virtual: int) -> int:
    """Copies of the params that a replica has; on processors a process may make devices of its cores."""
    if f.devices == ALL_DEVICES and f.model <= available:
        return usable(available // f.model, envs, needs.together)
    asked = max(f.devices, 1) * f.model
    if asked > virtual:
        hint = f"; XLA_FLAGS=--xla_force_host_platform_device_count={asked} makes so many" if platform == "cpu" else ""
        raise TesseraError(f"fragment {f.title} asks for {asked} devices, available: {virtual} ({platform}){hint}")
    return max(f.devices, 1)


def _check_wait(policy: Policy, devices: list[int]) -> None:
    """Acting for some of the environments needs all of them on one device."""
    spread = devices[policy.home("act")]
    if policy.cut("timesteps").wait is not None and spread > 1:
        raise TesseraError(
            f"policy {policy.name!r} acts for whichever environments are ready, which one device can do, not {spread}: "
            "use 1 device for `act`, or leave out the wait"
        )


def _place(
    policy: Policy, f: Fragment, devices: int, platform: str, groups: int, learned: int, threads: int, agents: int
) -> Placement:
    batches: tuple[tuple[int, ...], ...] = ()
    held = (tuple(range(groups)),) * f.runs if f.by == "agents" else deal(groups, f.runs)
    if policy.cut("experience").route == "gather" and "store" in f.names:
        batches = (tuple(range(groups)),) * f.runs
    elif learned != groups:
        batches = deal(learned, f.runs)
    own = (f.cores,) * f.runs if f.cores else ()
    asked = f.replicas if f.runs != f.replicas else 0
    cores = f.cores or threads
    dealt = deal(agents, f.runs) if f.by == "agents" else ()
    return Placement(
        operators=f.names,
        replicas=f.runs,
        devices=devices,
        platform=platform,
        groups=held,
        batches=batches,
        cores=own,
        threads=cores,
        asked=asked,
        model=f.model,
        agents=dealt,
    )


def _resolved(policy: Policy, needs: Needs) -> Policy:
    """The policy with replicas counted: what is shared out by agents has something to share only if there are any."""
    fragments = []
    for f in policy.fragments:
        if f.by == "agents" and not needs.agents:
            f = replace(f, by="groups", replicas=f.replicas or 1)
        elif f.by == "agents":
            f = replace(f, replicas=f.replicas or needs.agents)
            if needs.agents % f.runs:
                raise TesseraError(
                    f"fragment {f.title} cannot deal {needs.agents} agents evenly to {f.runs} replicas: use a number "
                    "that divides them"
                )
        fragments.append(f)
    return replace(policy, fragments=tuple(fragments))


def _check_engine(engine: str | None, policy: Policy) -> None:
    """Refuse an engine that there is not, or that cannot run the policy."""
    if engine is not None and engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    if engine == "ray" and policy.cut("updates").route == "shared":
        raise TesseraError(
            f"policy {policy.name!r} shares one memory without locks, and machines of a cluster have none: "
            "use --engine local, or --policy central:mode=async"
        )


def _threads(policy: Policy) -> int:
    """Threads for each replica that shares the cores which nobody has for itself."""
    there = cores()
    asked = {f.title: f.cores * f.runs for f in policy.fragments if f.cores}
    sharing = sum(f.runs for f in policy.fragments if not f.cores)
    left = there - sum(asked.values())
    if left < (1 if sharing else 0):
        shares = ", ".join(f"{title} {count}" for title, count in asked.items())
        others = f", and {sharing} more replicas need at least one" if sharing else ""
        raise TesseraError(
            f"policy {policy.name!r} asks for {sum(asked.values())} cores ({shares}){others}; available: {there}"
        )
    return max(1, left // max(sharing, 1))


def _channel(stream: Stream, policy: Policy, needs: Needs, lag: int) -> Channel | None:
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
        discipline=_discipline(stream, policy, lag, batching),
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


def _discipline(stream: Stream, policy: Policy, lag: int, batching: float | None) -> Discipline:
    """What a stream's cut means for its channel."""
    cut, params = policy.cut(stream.name), policy.cut("params")
    trail = (cut.lag or 0) if stream.name == "priorities" else lag if stream.slot == "acting" else 0
    return make_discipline(
        stream.name,
        cut.mode,
        among_peers=policy.home(stream.source) == policy.home(stream.target),
        shared=stream.name == "updates" and cut.route == "shared",
        lag=trail,
        bound=params.lag if params.mode == "async" else None,
        first=cut.first,
        every=cut.every,
        capacity=cut.capacity,
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
