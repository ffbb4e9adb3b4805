"""Takeover: how a new process takes the place of a replica that died, and goes on where that one stopped.

Counters of messages outlive the process, in shared memory or at the replicas that it exchanged messages with. They tell
how far it had come. Its successor begins at the last turn of the outer loop that was not complete. What the predecessor
had sent in that turn is not sent again, and what it had received is replaced by stand-ins. Its environments start new
episodes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from tessera.channels.inboxes import Inbox, SharedExchange
from tessera.channels.link import DurableLink, Link
from tessera.channels.port import ReplicaPort
from tessera.engines.replica.replica import Replica, exchanges, horizon
from tessera.graph.disciplines import Sync
from tessera.program.initial import clocks_at
from tessera.program.training_program import acting

Exchange = tuple[int, int | None]
"""A channel, and which peer, where each peer has its own messages."""


class TakeoverPort:
    """Stands before a successor's port until it has caught up with its predecessor; then the port alone is used.

    Messages that the predecessor had sent are skipped, and those that it had received are replaced by stand-ins.
    """

    def __init__(self, replica: Replica, skipped: Counter[Exchange], stood_in: Counter[Exchange]) -> None:
        self._replica, self._port = replica, replica.port
        self.skipped = skipped
        """Messages that are not sent again."""
        self.stood_in = stood_in
        """Messages that are not received again."""
        plan = replica.plan
        self._unpatched = {k for k in self._port.outgoing if plan.channels[k].stream == "timesteps"}
        """Channels whose first message still has to end the episode that was lost."""

    @property
    def caught_up(self) -> bool:
        """Whether the successor stands where its predecessor stood."""
        return not (self._unpatched or any(self.skipped.values()) or any(self.stood_in.values()))

    def send(self, channel: int, value: Any) -> bool:
        """Hand a value over; False if it has to wait."""
        if channel in self._port.per_receiver:
            return self._port.send_to_each(channel, value, self._can_send_to, self.send_to)
        if _count_down(self.skipped, (channel, None)):
            return True
        if channel not in self._unpatched:
            return self._port.send(channel, value)
        if not self._port.send(channel, _ending_the_lost_episode(self._port.outgoing[channel], value)):
            return False
        self._unpatched.discard(channel)
        return True

    def receive(self, channel: int) -> tuple[bool, Any]:
        """Take what has arrived: (whether it has, the value)."""
        if any(c == channel and peer is not None for c, peer in self.stood_in):
            return self._port.receive_from_each(channel, self.receive_from)
        if _count_down(self.stood_in, (channel, None)):
            return True, stand_in(self._replica, channel)
        return self._port.receive(channel)

    def peer_slices(self, channel: int) -> dict[int, slice] | None:
        """Groups of each sender among those of this replica, where ready senders are answered without the others."""
        return self._port.peer_slices(channel)

    def batching_seconds(self, channel: int) -> float:
        """Seconds that ready senders wait for the others."""
        return self._port.batching_seconds(channel)

    def send_to(self, channel: int, receiver: int, value: Any) -> bool:
        """Hand a value to one receiver; False if it has to wait."""
        return _count_down(self.skipped, (channel, receiver)) or self._port.send_to(channel, receiver, value)

    def receive_from(self, channel: int, sender: int) -> tuple[bool, Any]:
        """Take what one sender has sent: (whether it has arrived, the value)."""
        if _count_down(self.stood_in, (channel, sender)):
            return True, stand_in(self._replica, channel, sender)
        return self._port.receive_from(channel, sender)

    def _can_send_to(self, channel: int, receiver: int) -> bool:
        return self.skipped[channel, receiver] > 0 or self._port.can_send_to(channel, receiver)


class MutedPort:
    """Sends nothing and receives stand-ins: for what a successor runs alone."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def send(self, channel: int, value: Any) -> bool:
        """Send nothing."""
        del channel, value
        return True

    def receive(self, channel: int) -> tuple[bool, Any]:
        """A stand-in."""
        return True, stand_in(self._replica, channel)

    def peer_slices(self, channel: int) -> dict[int, slice] | None:
        """No sender is answered without the others."""
        del channel
        return None

    def batching_seconds(self, channel: int) -> float:
        """Not asked for, since there are no slices."""
        raise NotImplementedError

    def send_to(self, channel: int, receiver: int, value: Any) -> bool:
        """Send nothing."""
        del channel, receiver, value
        return True

    def receive_from(self, channel: int, sender: int) -> tuple[bool, Any]:
        """A stand-in."""
        return True, stand_in(self._replica, channel, sender)


@dataclass(frozen=True)
class Position:
    """Messages that a place has sent and taken so far, on the channels where every one is waited for."""

    sent: dict[Exchange, int] = field(default_factory=dict)
    taken: dict[Exchange, int] = field(default_factory=dict)


def take_over(replica: Replica, done: int, base: int) -> int:
    """Put a TakeoverPort before a successor's port, set its clocks and params, and say which update it begins with.

    `base` updates were made before this engine began, `done` after that by the predecessor's own count.
    """
    release_half_taken(replica)
    position = find_position(replica)
    moved = (position.sent, position.taken)
    first, each = exchanges(replica.programs.start), exchanges(replica.programs.updates)
    turns = [
        (count - before[k]) // per_turn[k]
        for counts, before, per_turn in zip(moved, first, each, strict=True)
        for (k, _), count in counts.items()
        if per_turn[k]
    ]
    update = max(0, min(turns)) if turns else done
    ahead = [
        Counter({place: max(0, n - before[place[0]] - update * per_turn[place[0]]) for place, n in counts.items()})
        for counts, before, per_turn in zip(moved, first, each, strict=True)
    ]
    _take_newest(replica, base + update)
    replica.takeover = TakeoverPort(replica, *ahead)
    _set_clocks(replica, base + update)
    return update


def release_half_taken(replica: Replica) -> None:
    """Release messages of all senders up to the last one that the predecessor took of any of them.

    It took a message of each sender, one after the other, and died in between. All of them were there, since none is
    taken before that. A successor that waited for a message which is gone would wait for ever.
    """
    for inbox in replica.port.inboxes.values():
        match inbox.route.channel.discipline:
            case Sync(batching=None):
                counts = {p: _taken(inbox, p) for p in inbox.links}
                for p, link in inbox.links.items():
                    behind = min(max(counts.values()) - counts[p], link.waiting(inbox.reader[p]))
                    if behind:
                        link.release(inbox.reader[p], behind)
            case _:
                continue


def find_position(replica: Replica) -> Position:
    """How far a place has come, by the counters of its links."""
    port, position = replica.port, Position()
    for k, links in port.per_receiver.items():
        position.sent.update({(k, q): link.sent for q, link in links.items()})
    for k, link in port.outgoing.items():
        match port.routes[k].channel.discipline:
            case Sync(lag=lag):
                position.sent[k, None] = link.sent - lag
    for k, exchange in port.exchanges.items():
        if isinstance(exchange, SharedExchange):
            position.sent[k, None] = exchange.shared.sent
    for k, inbox in port.inboxes.items():
        match inbox.route.channel.discipline:
            case Sync(batching=None):
                position.taken[k, None] = min((_taken(inbox, p) for p in inbox.links), default=0)
            case Sync():
                position.taken.update({(k, p): _taken(inbox, p) for p in inbox.links})
    return position


def has_learned_from(replica: Replica, peer: int) -> bool:
    """Whether a mirrored replica has learned from all that a peer has sent, so that it waits for the peer alone."""
    inboxes = [i for i in replica.port.inboxes.values() if peer in i.links]
    return all(i.links[peer].waiting(i.reader[peer]) == 0 for i in inboxes)


def take_over_mirrored(replica: Replica, base: int) -> int:
    """Prepare a successor that has the state of its peers: it begins with the update that lacks its experience.

    What they sent for updates before that is in the state already.
    """
    port = replica.port
    (first_sent, first_taken), (sent, taken) = exchanges(replica.programs.start), exchanges(replica.programs.updates)
    update = min((link.sent - first_sent[k]) // sent[k] for k, link in port.outgoing.items() if sent[k])
    for k, inbox in port.inboxes.items():
        for p, link in inbox.links.items():
            due = first_taken[k] + update * taken[k]
            link.release(inbox.reader[p], due - _durable(link).taken(inbox.reader[p]))
    _set_clocks(replica, base + update)
    return update


def skip_stream(port: ReplicaPort, stream: str) -> None:
    """Release everything that has arrived through a stream: it was for the predecessor."""
    for inbox in port.inboxes.values():
        if inbox.route.channel.stream == stream:
            for p, link in inbox.links.items():
                _durable(link).skip(inbox.reader[p])


def stand_in(replica: Replica, channel: int, peer: int | None = None) -> Any:
    """A value of the right shape for a message that the predecessor had received."""
    c = replica.plan.channels[channel]
    if c.stream == "params":
        return replica.slots[c.slot]
    if c.stream == "priorities":
        return replica.no_priorities()
    inbox = replica.port.inboxes[channel]
    parts = {}
    for p, link in inbox.links.items() if peer is None else [(peer, inbox.links[peer])]:
        parts[p] = inbox.route.taken(p, inbox.q, inbox.values.zeros(_durable(link).like))
    return inbox.route.merge(parts)


def _taken(inbox: Inbox, p: int) -> int:
    """Messages of a sender that were taken."""
    link = inbox.links[p]
    return link.sent - link.waiting(inbox.reader[p])


def _durable(link: Link) -> DurableLink:
    assert isinstance(link, DurableLink), "only durable links survive a process"
    return link


def _count_down(counter: Counter[Exchange], exchange: Exchange) -> bool:
    """Whether one was left, which is then gone."""
    if counter[exchange] <= 0:
        return False
    counter[exchange] -= 1
    return True


def _set_clocks(replica: Replica, update: int) -> None:
    clocks = clocks_at(replica.training, update)
    replica.slots |= {clock: value for clock, value in clocks.items() if clock in replica.slots}


def _take_newest(replica: Replica, update: int) -> None:
    """Begin with the newest params; a server shard begins with what it published last."""
    slots = replica.slots
    for inbox in replica.port.inboxes.values():
        channel = inbox.route.channel
        if channel.stream != "params":
            continue
        parts = {
            p: _last_params(_durable(link), inbox.reader[p], channel.discipline) for p, link in inbox.links.items()
        }
        if not parts or any(v is None for v in parts.values()):
            continue
        view = inbox.route.merge(parts)
        slots[channel.slot] = view
        if channel.slot == "view" and "act" in replica.plan.fragments[replica.fragment].operators:
            slots["acting"] = acting(view)
    if "state" in slots:
        _restore_state(replica, update)
    replica.note_version()


def _last_params(link: DurableLink, reader: int, discipline: Any) -> Any:
    """The params that the predecessor took last, or the newest if it did not have to take all."""
    if isinstance(discipline, Sync):
        taken = link.taken(reader)
        last = link.at(taken - 1) if taken else None
        if taken == 0 or last is not None:
            return last
    newest = link.newest()
    return None if newest is None else newest.value


def _restore_state(replica: Replica, update: int) -> None:
    """Make a state from what peers share, or from the params that a server published last, with new moments."""
    slots, algorithm = replica.slots, replica.training.algorithm
    for exchange in replica.port.exchanges.values():
        if isinstance(exchange, SharedExchange):
            near = slots["state"].clock.at(horizon(replica.plan, algorithm, update))
            slots["state"] = slots["state"]._replace(clock=near)
            replica.succeed(exchange.read())
            return
    views = [k for k in replica.port.outgoing if replica.plan.channels[k].slot in ("view", "acting")]
    for k in sorted(views, key=lambda k: replica.plan.channels[k].slot != "view"):
        newest = replica.port.outgoing[k].newest()
        if newest is None:
            continue
        view = newest.value
        state = algorithm.start(jax.tree.map(jax.numpy.asarray, view.params))
        clock = view.clock
        if not replica.plan.solo:  # updates that are made again count again
            clock = clock.at(update * algorithm.schedule.applies)
        target = view.target if jax.tree.leaves(view.target) else state.target
        state = state._replace(target=target, statistics=view.statistics, clock=clock)
        slots["state"] = jax.tree.map(jax.numpy.asarray, state)
        return


def _ending_the_lost_episode(link: Link, value: Any) -> Any:
    """A timestep that truncates the episode which was lost, where it was; unchanged if there was none.

    Where a reset takes a step of its own and the predecessor's last step ended an episode, none was lost: the timestep
    then is that reset, which nobody learns from.
    """
    durable = _durable(link)
    before = durable.at(durable.sent - 1) if durable.sent else None
    if before is None:
        return value
    value = jax.tree.map(np.asarray, value)
    over = np.zeros_like(value.truncated) if value.valid is None else before.terminated | before.truncated
    return value._replace(
        reward=np.zeros_like(value.reward),
        terminated=np.zeros_like(value.terminated),
        truncated=~over,
        final=before.observation,
        final_legal=before.legal,
        final_player=before.player,
        valid=None if value.valid is None else ~over,
    )
