"""A plan: a policy applied to one algorithm, one environment and the cores and devices of this machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import Any

from tessera.errors import TesseraError, unknown_name
from tessera.graph.channel import Channel, make_channel
from tessera.graph.disciplines import SYNCHRONOUS, InTurn, every_of, mode_of
from tessera.graph.groups import Needs, count_groups, deal, usable
from tessera.graph.policy import ALL_DEVICES, Cut, Fragment, Policy
from tessera.graph.streams import STREAMS
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
    wrappers: tuple[str, ...] = ()
    """What is put around the environment, in words, from the innermost on."""
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
    def together(self) -> int:
        """Replicas that each make every update, while one clock counts the gradients of all of them."""
        return self.fragments[self.home("apply")].replicas if self.exchange == "shared" else 1

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
        found["colouring"] = None if self.origin is None else asdict(self.origin[0])
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
    virtual = max(available, cores()) if policy.several and platform == "cpu" else available
    devices = [_count_devices(f, envs, needs, platform, available, virtual) for f in policy.fragments]
    total, learned = count_groups(policy, needs, envs, groups, devices)
    params = policy.cut("params")
    lag = (0 if needs.device_env else 1) if params.lag is None else params.lag
    lag = 0 if params.mode == "async" else lag
    threads = _threads(policy, engine)
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
    channels = tuple(c for s in STREAMS if (c := make_channel(s, policy, needs, lag)) is not None)
    updates = policy.cuts.get("updates", Cut())
    return Plan(
        policy=policy.name,
        reason=reason,
        algorithm=needs.algorithm,
        env=needs.env,
        wrappers=needs.wrappers,
        engine=engine or ("local" if policy.several else "serial"),
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


def _threads(policy: Policy, engine: str | None) -> int:
    """Threads for each replica that shares the cores which nobody has for itself; a cluster looks for cores itself."""
    there = cores()
    asked = {f.title: f.cores * f.runs for f in policy.fragments if f.cores}
    sharing = sum(f.runs for f in policy.fragments if not f.cores)
    left = there - sum(asked.values())
    if engine != "ray" and left < (1 if sharing else 0):
        shares = ", ".join(f"{title} {count}" for title, count in asked.items())
        others = f", and {sharing} more replicas need at least one" if sharing else ""
        raise TesseraError(
            f"policy {policy.name!r} asks for {sum(asked.values())} cores ({shares}){others}; available: {there}"
        )
    return max(1, left // max(sharing, 1))
