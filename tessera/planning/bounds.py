"""The most that a colouring can bring: capacity over demand of every resource, without running anything."""

from __future__ import annotations

from dataclasses import dataclass

from tessera.engines.simulated.machine import Machine
from tessera.envs.base import HostEnvironment
from tessera.graph.channel import Channel
from tessera.graph.streams import RouteKind
from tessera.planning.colourings import Colouring
from tessera.planning.demands import Demand, Demands, Template
from tessera.planning.workload import Workload, distinct, share_of
from tessera.program.nodes import SLOTS
from tessera.program.overlap.double_buffer import first_half

PLAYING = ("env", "act")
EVERY_STEP = ("timesteps", "actions")
EVERY_GRADIENT = ("summary", "gradients", "norm")
"""Streams that learners wait for before they go on."""


@dataclass(frozen=True)
class Bound:
    """The least time that one unroll of all environments, and what is learned from it, takes."""

    seconds: float
    limit: str
    """What does not let it be faster: cores, accelerators, or whose work."""
    events: float
    """Messages and calls in this time."""
    message_seconds: float
    """Seconds for which somebody waits for a message, or works on one, while others can do nothing else."""
    core_seconds: float
    """Work for the cores, in seconds of all of them."""
    device_seconds: float = 0.0
    """The same for accelerators."""


class _Part:
    """What one replica of a fragment does, or all of them where they have to share cores and accelerators."""

    def __init__(self, demand: Demand, replicas: int) -> None:
        self.demand, self.replicas = demand, replicas
        self.with_messages = {"play": 0.0, "learn": 0.0}

    def add(self, operator: str, seconds: float) -> None:
        """Add work with messages."""
        self.with_messages["play" if operator in PLAYING else "learn"] += seconds

    def settle(self, machine: Machine) -> None:
        """Find out how long each kind of work takes all replicas, which do it at the same time."""
        self.core_seconds = self.device_seconds = 0.0
        times = []
        for kind, load in self.demand._asdict().items():
            messages = self.with_messages.get(kind, 0.0)
            on_cores = self.replicas * (load.core_seconds + messages) / machine.cores
            on_devices = self.replicas * load.device_seconds / max(1, machine.accelerators)
            times.append(max(load.seconds + messages, on_cores, on_devices))
            self.core_seconds += on_cores
            self.device_seconds += on_devices
        self.play, self.learn, self.both = times
        self.messages = sum(self.with_messages.values())
        self.total = sum(times)


def bound_of(workload: Workload, demands: Demands, colouring: Colouring) -> Bound:
    """Bound a colouring; an error says why it has no plan."""
    template = demands.template(colouring)
    needed = _demands(workload, demands, colouring, template)
    parts = [_Part(demand, size[0]) for demand, size in zip(needed, colouring.sizes, strict=True)]
    transit, events = _with_messages(workload, colouring, template, parts)
    events += sum(part.replicas * program.trips for part, program in zip(parts, template.programs, strict=True))
    for part in parts:
        part.settle(workload.machine)
    seconds, limit, with_messages = _longest_chain(workload, colouring, parts, transit)
    core_seconds, device_seconds = sum(p.core_seconds for p in parts), sum(p.device_seconds for p in parts)
    if core_seconds > seconds:
        seconds, limit = core_seconds, "cores"
    if device_seconds > seconds:
        seconds, limit = device_seconds, "accelerators"
    fast = workload.fastest
    return Bound(seconds / fast, limit, events, with_messages / fast, core_seconds / fast, device_seconds / fast)


def _demands(workload: Workload, demands: Demands, colouring: Colouring, template: Template) -> list[Demand]:
    """What one replica of each fragment does; the one that has most groups."""
    groups, size = workload.reference.groups, workload.reference.envs_per_group
    threads = max(1, workload.machine.cores // colouring.processes)
    found = []
    for program, (replicas, devices) in zip(template.programs, colouring.sizes, strict=True):
        held = share_of(groups, replicas) * size // devices
        learned = groups * size // devices if colouring.gather else held
        found.append(demands.demand(program, held, learned, threads, _is_halved(workload, share_of(groups, replicas))))
    return found


def _is_halved(workload: Workload, groups: int) -> bool:
    """Whether a replica with so many groups acts for one half of them while the other half steps."""
    env = workload.env
    return isinstance(env, HostEnvironment) and first_half(env, groups, workload.machine.cores) > 0


def _with_messages(
    workload: Workload, colouring: Colouring, template: Template, parts: list[_Part]
) -> tuple[list[tuple[Channel, float]], float]:
    """Add work with messages to both ends: (channel and seconds on the way, messages of all)."""
    total = 0.0
    transit: list[tuple[Channel, float]] = []
    for channel in template.channels:
        trips = template.programs[channel.source].sends.get(channel.slot, 0.0)
        senders, receivers = colouring.sizes[channel.source][0], colouring.sizes[channel.target][0]
        if channel.among_peers and senders == 1:
            continue
        nbytes = _message_bytes(workload, channel, senders)
        parts[channel.source].add(channel.made_by, trips * workload.exchange_seconds(channel.slot, True, 1, nbytes))
        taken = _taken(channel, senders, receivers)
        received = workload.exchange_seconds(channel.slot, False, taken, taken * nbytes)
        parts[channel.target].add(channel.wanted_by, trips * received)
        transit.append((channel, trips * workload.transit_seconds(nbytes)))
        total += trips * (senders + taken * receivers)
    return transit, total


def _message_bytes(workload: Workload, channel: Channel, senders: int) -> int:
    whole = workload.slot_bytes.get(channel.slot, 0)
    in_parts = channel.slot == "summary" or channel.route is RouteKind.JOIN
    return whole // senders if in_parts or SLOTS[channel.slot].layout == "groups" else whole


def _taken(channel: Channel, senders: int, receivers: int) -> int:
    """Messages that one receiver takes for each that a sender sends."""
    match channel.route:
        case RouteKind.RESHARD | RouteKind.AGENTS:
            return share_of(senders, receivers)
        case RouteKind.COPY:
            return 1
        case _:
            return senders - channel.among_peers


def _longest_chain(
    workload: Workload, colouring: Colouring, parts: list[_Part], transit: list[tuple[Channel, float]]
) -> tuple[float, str, float]:
    """The longest chain of fragments of which each waits for the one before: (seconds, whose, with messages).

    Without a lag every operator waits for another. With one, what is played and what is learned have a chain each, and
    so they have if nothing is waited for.
    """
    homes = {o: i for i, operators in enumerate(colouring.partition) for o in operators}
    titles = ["+".join(operators) for operators in colouring.partition]
    if not colouring.asynchronous and workload.reference.lag == 0:
        on_the_way = sum(seconds for _, seconds in transit)
        with_messages = sum(part.messages for part in parts) + on_the_way
        return sum(part.total for part in parts) + on_the_way, " and ".join(titles), with_messages
    players, learners = distinct([homes["env"], homes["act"]]), distinct([homes["grad"], homes["apply"]])
    every_step = sum(seconds for channel, seconds in transit if channel.stream in EVERY_STEP)
    every_gradient = 0.0
    if colouring.asynchronous and len(learners) > 1:  # each gradient is applied by itself, whenever it comes
        parts[homes["apply"]].learn *= colouring.sizes[homes["grad"]][0]
        learners = learners[:1]
    elif not colouring.asynchronous:
        every_gradient = sum(
            seconds
            for c, seconds in transit
            if c.stream in EVERY_GRADIENT or (c.stream, c.wanted_by) == ("params", "grad")
        )
    chains = [
        (sum(parts[i].play + parts[i].both for i in players) + every_step, players, every_step),
        (sum(parts[i].learn + parts[i].both for i in learners) + every_gradient, learners, every_gradient),
        *((max(part.play, part.learn) + part.both, [i], 0.0) for i, part in enumerate(parts)),
    ]
    with_messages = max(on_the_way + sum(parts[i].messages for i in chain) for _, chain, on_the_way in chains)
    seconds, chain, _ = max(chains, key=lambda each: each[0])
    return seconds, " and ".join(titles[i] for i in chain), with_messages
