"""How a process takes the place of a replica that died: it goes on where the channels say that one stopped.

Counters of messages outlive the process (in shared memory, or with those it exchanged them with), so they tell how far
it had come. The newcomer begins at the last turn of the outer loop that was not complete; what its predecessor had sent
in that turn is not sent again, and what it had received is stood in for. Its environments start new episodes.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from tessera.channels.inboxes import Inbox
from tessera.channels.link import DurableLink
from tessera.channels.port import Place, ReplicaPort
from tessera.engines.replica.replica import Replica, exchanges
from tessera.program.initial import clocks_at
from tessera.program.training import acting


def level(replica: Replica) -> None:
    """Be done with what a predecessor was taking as it died: it took a message of each sender, and not yet of all.

    All of them were there, since none is taken before that; who waits for one that is gone would wait for ever.
    """
    for k, inbox in replica.port.inboxes.items():
        channel = replica.plan.channels[k]
        if not isinstance(inbox, Inbox) or channel.mode != "sync" or channel.wait is not None:
            continue
        ends = [(link, inbox.reader[p]) for p, link in inbox.links.items()]
        taken = [link.sent - link.waiting(reader) for link, reader in ends]
        for (link, reader), n in zip(ends, taken, strict=True):
            behind = min(max(taken) - n, link.waiting(reader))
            if behind:
                link.release(reader, behind)


def counts(replica: Replica) -> tuple[dict[Place, int], dict[Place, int]]:
    """Messages that this place has sent and taken so far, on the channels where every one is waited for."""
    port, channels = replica.port, replica.plan.channels
    sent: dict[Place, int] = {(k, q): link.sent for k, links in port.apart.items() for q, link in links.items()}
    taken: dict[Place, int] = {}
    for k, link in port.outgoing.items():
        if channels[k].mode == "sync":
            sent[k, None] = link.sent - channels[k].lag
    for k, inbox in port.inboxes.items():
        if not isinstance(inbox, Inbox) or channels[k].mode != "sync":
            continue
        numbers = {p: link.sent - link.waiting(inbox.reader[p]) for p, link in inbox.links.items()}
        if channels[k].wait is not None:
            taken |= {(k, p): n for p, n in numbers.items()}
        else:
            taken[k, None] = min(numbers.values(), default=0)
    return sent, taken


def take_over(replica: Replica, done: int, base: int) -> int:
    """Prepare a newcomer, and say which update it begins with; `base` were made before this engine began."""
    port = replica.port
    level(replica)
    moved = counts(replica)
    first, each = exchanges(replica.programs.start), exchanges(replica.programs.updates)
    turns = [
        (n - before[k]) // per[k]
        for n_of, before, per in zip(moved, first, each, strict=True)
        for (k, _), n in n_of.items()
        if per[k]
    ]
    update = max(0, min(turns)) if turns else done
    for skipped, n_of, before, per in zip((port.skipped, port.stood_in), moved, first, each, strict=True):
        skipped.update({place: max(0, n - before[place[0]] - update * per[place[0]]) for place, n in n_of.items()})
    _take_newest(replica, base + update)
    port.stand_in = lambda channel, peer: _stand_in(replica, channel, peer)
    _patch_first(replica)
    _set_clocks(replica, base + update)
    return update


def caught_up(replica: Replica, peer: int) -> bool:
    """Whether a mirrored replica has learned from all that a peer has ever sent: what it waits for next is the peer."""
    inboxes = [i for i in replica.port.inboxes.values() if isinstance(i, Inbox) and peer in i.links]
    return all(i.links[peer].waiting(i.reader[peer]) == 0 for i in inboxes)


def take_over_mirrored(replica: Replica, base: int) -> int:
    """Prepare a newcomer that has got what its peers have learned: it begins with the update that lacks its experience.

    What they sent for updates before that is in what it has got.
    """
    port = replica.port
    (first_sent, first_taken), (sent, taken) = exchanges(replica.programs.start), exchanges(replica.programs.updates)
    update = min((link.sent - first_sent[k]) // sent[k] for k, link in port.outgoing.items() if sent[k])
    for k, inbox in port.inboxes.items():
        assert isinstance(inbox, Inbox)
        for p, link in inbox.links.items():
            assert isinstance(link, DurableLink)
            link.release(inbox.reader[p], first_taken[k] + update * taken[k] - link.taken(inbox.reader[p]))
    _set_clocks(replica, base + update)
    return update


def _set_clocks(replica: Replica, update: int) -> None:
    clocks = clocks_at(replica.training, update)
    replica.slots |= {clock: value for clock, value in clocks.items() if clock in replica.slots}


def _take_newest(replica: Replica, update: int) -> None:
    """Begin with the newest params, and a server shard with what it published last."""
    slots = replica.slots
    for k, inbox in replica.port.inboxes.items():
        channel = replica.plan.channels[k]
        if channel.stream == "params" and isinstance(inbox, Inbox):
            found = {p: _last(link, inbox.reader[p], channel.mode) for p, link in inbox.links.items()}
            if all(v is not None for v in found.values()) and found:
                view = inbox.route.merge(found)
                slots[channel.slot] = view
                if channel.slot == "view" and "act" in replica.plan.fragments[replica.fragment].operators:
                    slots["acting"] = acting(view)
                replica.port.versions.see(view)
    if "state" in slots:
        _restore_state(replica, update)


def _last(link: Any, reader: int, mode: str) -> Any:
    """The params that the predecessor last took, or the newest if it did not have to take all."""
    assert isinstance(link, DurableLink)
    taken = link.taken(reader)
    if mode == "sync" and taken == 0:
        return None
    found = link.at(taken - 1) if mode == "sync" else None
    if found is not None:
        return found
    newest = link.newest()
    return None if newest is None else newest.value


def _restore_state(replica: Replica, update: int) -> None:
    slots, algorithm = replica.slots, replica.training.algorithm
    if replica.plan.exchange == "shared":
        return  # the memory of all peers has the params; they are adopted with the first exchange
    views = [k for k in replica.port.outgoing if replica.plan.channels[k].slot in ("view", "acting")]
    for k in sorted(views, key=lambda k: replica.plan.channels[k].slot != "view"):
        newest = replica.port.outgoing[k].newest()
        if newest is None:
            continue
        view = newest.value
        state = algorithm.start(jax.tree.map(jax.numpy.asarray, view.params))
        applies = view.clock.applies
        if not replica.plan.solo:  # what is caught up with counts again
            applies = np.int32(update * algorithm.schedule.applies)
        target = view.target if jax.tree.leaves(view.target) else state.target
        state = state._replace(target=target, statistics=view.statistics, clock=view.clock._replace(applies=applies))
        slots["state"] = jax.tree.map(jax.numpy.asarray, state)
        return


def skip(port: ReplicaPort, stream: str) -> None:
    """Be done with all that has come through a stream: it was for the predecessor."""
    for k, inbox in port.inboxes.items():
        if port.routes[k].channel.stream == stream and isinstance(inbox, Inbox):
            for p, link in inbox.links.items():
                assert isinstance(link, DurableLink)
                link.skip(inbox.reader[p])


def _stand_in(replica: Replica, channel: int, peer: int | None) -> Any:
    """Something of the right shape for a message that the predecessor has taken with it."""
    c = replica.plan.channels[channel]
    if c.stream == "params":
        return replica.slots[c.slot]
    if c.stream == "priorities":
        return replica.no_priorities()
    inbox = replica.port.inboxes[channel]
    assert isinstance(inbox, Inbox)
    found = {}
    for p, link in inbox.links.items() if peer is None else [(peer, inbox.links[peer])]:
        assert isinstance(link, DurableLink)
        zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), link.like)
        found[p] = inbox.route.taken(p, inbox.q, zeros)
    return inbox.route.merge(found)


def _patch_first(replica: Replica) -> None:
    """The first timestep that a newcomer sends ends the episode that was lost: a truncation, where it was."""
    port = replica.port
    waiting = {k for k in port.outgoing if replica.plan.channels[k].stream == "timesteps"}

    def patch(channel: int, value: Any) -> Any:
        if channel not in waiting:
            return value
        waiting.discard(channel)
        link = port.outgoing[channel]
        assert isinstance(link, DurableLink)
        before = link.at(link.sent - 1) if link.sent else None
        if before is None:
            return value
        value = jax.tree.map(np.asarray, value)
        return value._replace(
            reward=np.zeros_like(value.reward),
            terminated=np.zeros_like(value.terminated),
            truncated=np.ones_like(value.truncated),
            final=before.observation,
        )

    port.patch = patch
