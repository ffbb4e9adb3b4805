"""A replica's links in a Ray actor: to the driver, and to other replicas."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from tessera.channels.control_words import BY_DRIVER, LIFE, PRESENCE, Control
from tessera.channels.inboxes import PeerExchange
from tessera.channels.link import HERE, Link, LinkSpec
from tessera.channels.packing import Arrays
from tessera.channels.rings import ArenaLayout, RingLink
from tessera.channels.routes import Route
from tessera.channels.rpc.fan_out import FanOut, FanOutBuffer, SharedCredits
from tessera.channels.rpc.outbox import PIGGYBACK_SECONDS, Outbox
from tessera.channels.rpc.rpc_link import LinkState, Payload, RpcLink
from tessera.channels.rpc.wire import Credits, LinkName, Packet, Sender, decode
from tessera.channels.shared_memory import Arena, Bell, fence_if_weak
from tessera.engines.ray_backend.capacity import is_all_gather, is_all_reduce
from tessera.engines.replica.driver_link import local_words
from tessera.engines.replica.job import Job

if TYPE_CHECKING:
    from tessera.engines.ray_backend.collective import PeerGroup

ControlMessage = tuple[dict[str, Any], Arrays]
"""What the driver and a replica send each other."""
Presence = tuple[int, int]
"""Which life of a place, and whether that one takes part."""
Status = tuple[list[int], float, float, list[ControlMessage]]
"""Control words, seconds since progress, seconds since the last message, and messages to the driver."""


@dataclass
class StoredPayload:
    """Bytes in Ray's object store."""

    ref: Any

    def read(self) -> np.ndarray:
        """Get the bytes."""
        return ray.get(self.ref)

    def local(self) -> np.ndarray | None:
        """They are not in this process."""
        return None


class RayDriverLink:
    """The `DriverLink` of a replica in a Ray actor, and the `Transport` of its outbox.

    Five threads use it:
    - the replica's calls the methods of `DriverLink`, and by its links those of `Transport`;
    - the one for messages calls `receive_packet`, `reply_to_packet` and `register_successor`, and may send packets too;
    - the one for the driver calls `receive_command` and `set_control`;
    - the one for the status calls `wait_for_status`;
    - Ray's own calls `_keep_reply`, and must not send.
    """

    def __init__(
        self,
        job: Job,
        link_specs: dict[LinkName, LinkSpec],
        actors: dict[int, Any],
        life: int,
        words: list[int],
        presences: dict[int, Presence],
        layout: ArenaLayout,
        arena: Arena,
        in_group: bool,
    ) -> None:
        """`arena` is the memory that the replica shares on its node, or its own; `in_group` says whether it has joined
        peers for all-reduces."""
        self.job, self.link_specs, self.actors, self.life = job, link_specs, actors, life
        self._in_group = in_group
        self._group: PeerGroup | None = None
        """Its peers, once it exchanges anything with them."""
        neighbours = {place for link in layout.links.values() for place in link.spec.places} - {job.place}
        self._neighbour_words = {place: local_words(arena, layout, place) for place in neighbours}
        """Control words of the replicas that share this memory."""
        self.words = local_words(arena, layout, job.place)
        for k, word in enumerate(words):
            if k != LIFE:
                self.words[k] = word
        fence_if_weak()
        self.words[LIFE] = life
        self.control = Control(self.words)
        self.control.begin()
        self.presences = dict(presences)
        self.lives: dict[int, int] = {}
        """The first life of each place whose packets are accepted; those of a dead one may still be in flight."""
        self._starting: set[int] = set()
        """Places whose replica died, until its successor has sent a packet."""
        self._bell = Bell(arena, layout.bells, layout.processes + 1, job.place)
        self._rings = {
            name: RingLink(arena, link, self._bell, self._presence)
            for name, link in layout.links.items()
            if name in link_specs
        }
        remote = {name: spec for name, spec in link_specs.items() if name not in self._rings}
        self._links: dict[LinkName, RpcLink] = {}
        self._commands: deque[ControlMessage] = deque()
        self._to_driver: deque[ControlMessage] = deque()
        self._sent_to_driver = threading.Condition()
        self._replies: deque[bytes] = deque()
        """Replies to packets, until the replica looks at its links."""
        self._mates = {place: group for group in layout.mates for place in group}
        """Place -> places of its node that take credits for each other."""
        self._credits = {name: SharedCredits(arena, placed) for name, placed in layout.credits.items()}
        """Credits that replicas of this node take for each other."""
        self.outbox = Outbox(remote, self._links.__getitem__, self._identity, self, mates=self._reachable_mates)
        self._replying = {spec.writer for spec in remote.values() if spec.register and job.place in spec.readers}
        """Places that may have something to reply."""
        for name, spec in remote.items():
            fan_out = self._fan_out(name, arena, layout)
            self._links[name] = RpcLink(name, spec, job.place, self.outbox, self.wake, self._presence, fan_out)

    def _fan_out(self, name: LinkName, arena: Arena, layout: ArenaLayout) -> FanOut:
        """How a link between nodes uses memory that replicas of one node share."""
        placed = layout.buffers.get(name)
        if placed is not None and self.job.place not in placed.places:
            placed = None
        return FanOut(
            groups=layout.groups.get(name, ()),
            buffer=None if placed is None else FanOutBuffer(arena, placed),
            credits=self._credits.get(name),
            neighbours=() if placed is None else tuple(p for p in placed.places if p != self.job.place),
            wake=self._bell.ring,
            reachable=lambda place: place not in self._starting,
        )

    def _reachable_mates(self, place: int) -> tuple[int, ...]:
        """Places whose credits the replica of a place takes for them."""
        return () if place in self._starting else self._mates.get(place, ())

    def _presence(self, place: int) -> int:
        if place in self._neighbour_words:  # neighbours write their presence at once; their death comes from the driver
            life = self._neighbour_words[place][LIFE]
            fence_if_weak()
            self._note_presence(place, (life, self._neighbour_words[place][PRESENCE]))
        return self.presences[place][1] if place in self.presences else HERE

    def _note_presence(self, place: int, presence: Presence) -> None:
        """Note what is newer, in whatever order it comes: a later life, or a step of the same one towards HERE."""
        known_life, known = self.presences.get(place, (0, HERE))
        life, state = presence
        if life > known_life or (life == known_life and state < known):
            self.presences[place] = presence

    # DriverLink.

    def link(self, channel: int, lane: int) -> Link:
        """This process's end of a link."""
        ring = self._rings.get((channel, lane))
        return self._links[channel, lane] if ring is None else ring

    def peer_exchange(self, channel: int) -> PeerExchange | None:
        """An all-reduce among peers, or an all-gather."""
        c = self.job.plan.channels[channel]
        if not self._in_group or not (is_all_reduce(c) or is_all_gather(c)):
            return None
        from tessera.engines.ray_backend.collective import AllGather, AllReduce, PeerGroup

        self._group = self._group or PeerGroup()
        held = self.job.plan.fragments[c.source].held(c.made_by)
        if is_all_gather(c):
            likes = [self.link_specs[channel, p].like for p in range(len(held))]
            return AllGather(self._group, self.wake, likes, Route(self.job.plan, c).merge)
        return AllReduce(self._group, self.wake, len(held[self.job.number]) / sum(len(g) for g in held))

    def look(self) -> int:
        """A number that changes whenever there is something new to see."""
        return self._bell.look()

    def wait(self, seen: int, seconds: float) -> None:
        """Wait until that number changes or the time is over; pending credits and params go out before that."""
        if self.outbox.flush() and seconds > PIGGYBACK_SECONDS:
            if self._bell.wait(seen, PIGGYBACK_SECONDS):
                return
            self.outbox.flush(everything=True)
        self._bell.wait(seen, seconds)

    def wake(self) -> None:
        """Make the replica look again."""
        self._bell.ring(self.job.place)

    def has_command(self) -> bool:
        """Whether a command has arrived."""
        return bool(self._commands)

    def next_command(self) -> ControlMessage:
        """The next command, and its arrays."""
        return self._commands.popleft()

    def send(self, kind: str, arrays: Arrays, **more: Any) -> None:
        """Send a message to the driver, with the next status."""
        with self._sent_to_driver:
            self._to_driver.append(({"kind": kind, **more}, arrays))
            self._sent_to_driver.notify_all()

    def close(self) -> None:
        """Nothing is open."""

    # Transport.

    def store_payload(self, content: np.ndarray) -> Payload:
        """Put bytes into the object store."""
        return StoredPayload(ray.put(content))

    def send_packet(self, place: int, data: bytes, attachments: list[Payload]) -> None:
        """Send a packet, and what does not fit into it, to a place."""
        attached = [payload.ref if isinstance(payload, StoredPayload) else payload.read() for payload in attachments]
        actor = self.actors[place]
        if place in self._replying:
            actor.receive_and_reply.remote(data, *attached).future().add_done_callback(self._keep_reply)
        else:
            actor.receive_packet.remote(data, *attached)

    def _keep_reply(self, reply: Future[bytes]) -> None:
        """Keep a reply until the replica looks at its links: Ray's own thread, which calls this, must not send."""
        if reply.exception() is None and reply.result():  # otherwise it died, which the driver sees too
            self._replies.append(reply.result())
            self.wake()

    def process_replies(self) -> None:
        """Pass replies that have arrived to their links."""
        while self._replies:
            self.receive_packet(*decode(self._replies.popleft()))

    def _identity(self) -> Sender:
        return Sender(self.job.place, self.life, self.control.presence)

    # Calls of other replicas.

    def receive_packet(self, packet: Packet, contents: list[np.ndarray]) -> bool:
        """Accept a packet, unless its sender is dead."""
        place, life, presence = packet.sender
        if life < self.lives.get(place, 0):
            return False
        self._starting.discard(place)
        self._note_presence(place, (life, presence))
        self.receive_credits(packet.credits)
        for header, content in zip(packet.headers, contents, strict=True):
            self._links[header.link].receive(header, content)
        return True

    def reply_to_packet(self, packet: Packet, contents: list[np.ndarray]) -> bytes:
        """Accept a packet; everything that is pending for its sender."""
        place = packet.sender.place
        self.outbox.note_packet_from(place)
        return self.outbox.reply_to(place) if self.receive_packet(packet, contents) else b""

    def receive_credits(self, credits: Credits) -> None:
        """Note what readers have released."""
        for (link, reader), taken in credits.items():
            if link in self._links and self._links[link].spec.writer == self.job.place:
                self._links[link].receive_credit(reader, taken)
            else:  # it is for a neighbour
                self._credits[link].note(reader, taken)
                self._bell.ring(self._credits[link].writer)

    # Calls of the driver.

    def receive_command(self, command: dict[str, Any], arrays: Arrays) -> None:
        """Queue a command."""
        self._commands.append((command, arrays))
        self.wake()

    def set_control(self, words: dict[int, int], presences: dict[int, Presence]) -> None:
        """Set the words that the driver writes, and the presence of other replicas; a replica knows its own."""
        for k, word in words.items():
            self.words[k] = word
        for place, presence in presences.items():
            self._note_presence(place, presence)
        self.wake()

    def register_successor(self, place: int, actor: Any, life: int) -> dict[LinkName, LinkState]:
        """Send to another actor from now on; what this end of each link with its place knows."""
        self.actors[place], self.lives[place] = actor, life
        self._starting.add(place)
        self.outbox.repeat_credits(place, self._mates.get(place, ()))
        between = {name: link for name, link in self._links.items() if place in link.spec.places}
        states = {name: link.state_for_successor(place) for name, link in between.items()}
        self.wake()
        return states

    def restore_links(self, states: dict[int, dict[LinkName, LinkState]]) -> None:
        """Continue where the predecessor stopped; `states` has what linked replicas know, by place."""
        for name, link in self._links.items():
            link.restore_state({place: known[name] for place, known in states.items() if name in known})

    def wait_for_status(self, seconds: float) -> Status:
        """The status, as soon as there is a message to the driver or the time is over."""
        with self._sent_to_driver:
            if not self._to_driver:
                self._sent_to_driver.wait(seconds)
            messages = list(self._to_driver)
            self._to_driver.clear()
        words = [0 if k in BY_DRIVER else word for k, word in enumerate(self.words)]
        return words, self.control.seconds_since_progress, self.control.seconds_since_message, messages
