"""The most that a colouring can bring: capacity over demand of every resource, without running anything."""

from __future__ import annotations

from dataclasses import dataclass

from tessera.graph.channel import Channel
from tessera.graph.streams import RouteKind
from tessera.planning.colourings import Colouring
from tessera.planning.demands import Demand, Demands, Template
from tessera.planning.workload import Workload, distinct, share_of
from tessera.program.nodes import SLOTS

PLAYING = ("env", "act")


@dataclass(frozen=True)
class Bound:
    """The least time that one unroll of all environments, and what is learned from it, takes."""

    seconds: float
    limit: str
    """What does not let it be faster: cores, accelerators, or whose work."""
    messages: float
    """Messages in this time."""
    message_seconds: float
    """Seconds of this time that pass with messages."""
    core_seconds: float
    """Work for the cores, in seconds of all of them."""
    device_seconds: float = 0.0
    """The same for accelerators."""


@dataclass
class _Sums:
    """Seconds of one replica of a fragment with messages added."""

    play: float
    learn: float
    both: float
    messages: float = 0.0

    def add(self, operator: str, seconds: float) -> None:
        self.messages += seconds
        if operator in PLAYING:
            self.play += seconds
        else:
            self.learn += seconds

    @property
    def longest(self) -> float:
        return max(self.play, self.learn) + self.both


def bound_of(workload: Workload, demands: Demands, colouring: Colouring) -> Bound:
    """Bound a colouring; an error says why it has no plan."""
    template = demands.template(colouring)
    needed = _demands(workload, demands, colouring, template)
    sums = [_Sums(d.play, d.learn, d.both) for d in needed]
    transit, messages = _with_messages(workload, colouring, template, sums)
    seconds, limit, told = _turns(workload, colouring, sums, transit)
    replicas = [size[0] for size in colouring.sizes]
    pairs = list(zip(replicas, needed, sums, strict=True))
    core_seconds = sum(r * (d.core_seconds + s.messages) for r, d, s in pairs) / workload.machine.cores
    device_seconds = sum(r * d.device_seconds for r, d, _ in pairs) / max(1, workload.machine.accelerators)
    if core_seconds > seconds:
        seconds, limit = core_seconds, "cores"
        told = sum(r * s.messages for r, _, s in pairs) / workload.machine.cores
    if device_seconds > seconds:
        seconds, limit, told = device_seconds, "accelerators", 0.0
    return Bound(seconds, limit, messages, told, core_seconds, device_seconds)


def _demands(workload: Workload, demands: Demands, colouring: Colouring, template: Template) -> list[Demand]:
    """What one replica of each fragment does; the one that has most groups."""
    groups, size = workload.reference.groups, workload.reference.envs_per_group
    threads = max(1, workload.machine.cores // colouring.processes)
    found = []
    for program, (replicas, devices) in zip(template.programs, colouring.sizes, strict=True):
        held = share_of(groups, replicas) * size // devices
        learned = groups * size // devices if colouring.gather else held
        found.append(demands.demand(program, held, learned, threads))
    return found


def _with_messages(
    workload: Workload, colouring: Colouring, template: Template, sums: list[_Sums]
) -> tuple[dict[str, float], float]:
    """Add work with messages to both ends: (stream -> seconds on the way, messages of all)."""
    links, transit, total = workload.costs.links, {}, 0.0
    for channel in template.channels:
        trips = template.programs[channel.source].sends.get(channel.slot, 0.0)
        senders, receivers = colouring.sizes[channel.source][0], colouring.sizes[channel.target][0]
        if channel.among_peers and senders == 1:
            continue
        nbytes = _message_bytes(workload, channel, senders)
        sums[channel.source].add(channel.made_by, trips * links.cpu_seconds(nbytes))
        taken = _taken(channel, senders, receivers)
        sums[channel.target].add(channel.wanted_by, trips * taken * links.cpu_seconds(nbytes))
        transit[f"{channel.stream} {channel.wanted_by}"] = trips * links.transit_seconds(nbytes)
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


def _turns(
    workload: Workload, colouring: Colouring, sums: list[_Sums], transit: dict[str, float]
) -> tuple[float, str, float]:
    """The longest chain of fragments of which each waits for the one before: (seconds, whose, with messages).

    Without a lag every operator waits for another. With one, what is played and what is learned have a chain each, and
    so they have if nothing is waited for.
    """
    homes = {o: i for i, operators in enumerate(colouring.partition) for o in operators}
    titles = ["+".join(operators) for operators in colouring.partition]
    if not colouring.asynchronous and workload.reference.lag == 0:
        seconds = sum(s.play + s.learn + s.both for s in sums) + sum(transit.values())
        told = sum(s.messages for s in sums) + sum(transit.values())
        return seconds, " and ".join(titles), told
    play, learn = distinct([homes["env"], homes["act"]]), distinct([homes["grad"], homes["apply"]])
    if colouring.asynchronous:
        learn = learn[-1:] if len(learn) > 1 else learn
        pushed = colouring.sizes[homes["grad"]][0] if homes["grad"] != homes["apply"] else 1
        sums[homes["apply"]].learn *= pushed  # each gradient is applied by itself
    per_step = sum(seconds for name, seconds in transit.items() if name.split()[0] in ("timesteps", "actions"))
    per_gradient = sum(
        seconds
        for name, seconds in transit.items()
        if name in ("gradients apply", "params grad") and not colouring.asynchronous
    )
    chains = [
        (sum(sums[i].play + sums[i].both for i in play) + per_step, play, per_step),
        (sum(sums[i].learn + sums[i].both for i in learn) + per_gradient, learn, per_gradient),
        *((s.longest, [i], 0.0) for i, s in enumerate(sums)),
    ]
    seconds, chain, on_the_way = max(chains, key=lambda c: c[0])
    return seconds, " and ".join(titles[i] for i in chain), on_the_way + sum(sums[i].messages for i in chain)
