"""What a Ray actor does: it holds one replica, gets its post while that works, and listens to the driver."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import sys
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray

from tessera.channels.control import BY_DRIVER, LIFE, PRESENCE, Control
from tessera.channels.inboxes import PeerExchange
from tessera.channels.link import HERE, Link, LinkSpec
from tessera.channels.packing import Arrays
from tessera.channels.rings import ArenaLayout, RingLink
from tessera.channels.rpc.link import LinkState, Payload, RpcLink
from tessera.channels.rpc.outbox import OFTEN_SECONDS, Outbox
from tessera.channels.rpc.wire import Credits, Name, Packet, Sender, decode
from tessera.channels.shared_memory import Arena, Bell, in_order
from tessera.engines.ray_backend.capacity import reduced
from tessera.engines.replica.driver_link import local_words
from tessera.engines.replica.entry_point import describe
from tessera.engines.replica.job import Job
from tessera.support.system import available_memory

LISTEN_SECONDS = 0.5
"""How long a question for news is left open, at the most."""
LONGEST_LINE = 4096

Said = tuple[dict[str, Any], Arrays]
Presence = tuple[int, int]
"""Which life of a place, and whether that one takes part."""


@dataclass
class StoredPayload:
    """Bytes in Ray's object store."""

    ref: Any

    def open(self) -> np.ndarray:
        """Give the bytes."""
        return ray.get(self.ref)

    def here(self) -> np.ndarray | None:
        """They are elsewhere."""
        return None


class RayDriverLink:
    """A replica's driver_link in a Ray actor: the post comes in on another thread."""

    def __init__(
        self,
        job: Job,
        link_specs: dict[Name, LinkSpec],
        handles: dict[int, Any],
        life: int,
        words: list[int],
        presences: dict[int, Presence],
        layout: ArenaLayout,
        arena: Arena,
        grouped: bool,
    ) -> None:
        """`arena` is the memory that it shares with neighbours, or its own; `grouped` says whether it has joined peers
        for all-reduces."""
        self.job, self.link_specs, self.handles, self.life = job, link_specs, handles, life
        self._grouped = grouped
        neighbours = {place for wire in layout.links.values() for place in wire.spec.places} - {job.place}
        self._neighbours = {place: local_words(arena, layout, place) for place in neighbours}
        """The words of those that it shares memory with."""
        self.words = local_words(arena, layout, job.place)
        for k, word in enumerate(words):
            if k != LIFE:
                self.words[k] = word
        in_order()
        self.words[LIFE] = life
        self.control = Control(self.words)
        self.control.begin()
        self.presences = dict(presences)
        self.lives: dict[int, int] = {}
        """From which life on of each place post is taken; a dead one's may still be under way."""
        self._bell = Bell(arena, layout.bells, layout.processes + 1, job.place)
        self._rings = {
            name: RingLink(arena, wire, self._bell, self._presence)
            for name, wire in layout.links.items()
            if name in link_specs
        }
        remote = {name: spec for name, spec in link_specs.items() if name not in self._rings}
        self._links: dict[Name, RpcLink] = {}
        self._commands: deque[Said] = deque()
        self._said: deque[Said] = deque()
        self._spoken = threading.Condition()
        self._answers: deque[bytes] = deque()
        """Answers to letters, until links are looked at."""
        self.outgoing = Outbox(remote, self._links.__getitem__, self._me, self)
        self._answering = {spec.writer for spec in remote.values() if spec.register and job.place in spec.readers}
        """Who may have something to answer."""
        for name, spec in remote.items():
            self._links[name] = RpcLink(name, spec, job.place, self.outgoing, self.wake, self._presence)

    def _presence(self, place: int) -> int:
        if place in self._neighbours:  # they say so themselves, at once; that they are gone, the driver says
            life = self._neighbours[place][LIFE]
            in_order()
            self._note_presence(place, (life, self._neighbours[place][PRESENCE]))
        return self.presences[place][1] if place in self.presences else HERE

    # What the replica uses.

    def link(self, channel: int, lane: int) -> Link:
        """This process's end of a link."""
        ring = self._rings.get((channel, lane))
        return self._links[channel, lane] if ring is None else ring

    def peer_exchange(self, channel: int) -> PeerExchange | None:
        """An all-reduce among peers."""
        c = self.job.plan.channels[channel]
        if not self._grouped or not reduced(c):
            return None
        from tessera.engines.ray_backend.collective import AllReduce

        held = self.job.plan.fragments[c.source].held(c.made_by)
        return AllReduce(len(held[self.job.number]) / sum(len(groups) for groups in held), self.wake)

    def look(self) -> int:
        """A number that changes whenever there is something new to see."""
        return self._bell.look()

    def wait(self, seen: int, seconds: float) -> None:
        """Wait until that number is another one, or the seconds are over; who is credits something gets it before."""
        if self.outgoing.clear() and seconds > OFTEN_SECONDS:
            if self._bell.wait(seen, OFTEN_SECONDS):
                return
            self.outgoing.clear(everything=True)
        self._bell.wait(seen, seconds)

    def wake(self) -> None:
        """Make the replica look again."""
        self._bell.ring(self.job.place)

    def has_command(self) -> bool:
        """Whether the driver has said something."""
        return bool(self._commands)

    def next_command(self) -> Said:
        """What the driver has said next, and arrays that came with it."""
        return self._commands.popleft()

    def send(self, kind: str, arrays: Arrays, **more: Any) -> None:
        """Say something to the driver, when it next asks."""
        with self._spoken:
            self._said.append(({"kind": kind, **more}, arrays))
            self._spoken.notify_all()

    def close(self) -> None:
        """Be done."""

    # What letters go by.

    def store(self, content: np.ndarray) -> Payload:
        """Lay bytes down where others can fetch them."""
        return StoredPayload(ray.put(content))

    def carry(self, place: int, data: bytes, attachments: list[Payload]) -> None:
        """Bring a packet, and what does not fit into it, to a place."""
        more = [payload.ref if isinstance(payload, StoredPayload) else payload.open() for payload in attachments]
        handle = self.handles[place]
        if place in self._answering:
            handle.post_and_answer.remote(data, *more).future().add_done_callback(self._keep_answer)
        else:
            handle.post.remote(data, *more)

    def _keep_answer(self, answer: Future[bytes]) -> None:
        """Keep an answer until links are looked at: Ray's own thread, which calls this, must not send anything."""
        if answer.exception() is None and answer.result():  # else it died, which the driver sees too
            self._answers.append(answer.result())
            self.wake()

    def collect(self) -> None:
        """Open answers that have come."""
        while self._answers:
            self.get_post(*decode(self._answers.popleft()))

    def _me(self) -> Sender:
        return Sender(self.job.place, self.life, self.control.presence)

    # What comes by post, and from the driver.

    def get_post(self, packet: Packet, contents: list[np.ndarray]) -> bool:
        """Take a packet, unless who has sent it is dead."""
        place, life, presence = packet.sender
        if life < self.lives.get(place, 0):
            return False
        self._note_presence(place, (life, presence))
        self.get_credit(packet.credits)
        for header, content in zip(packet.headers, contents, strict=True):
            self._links[header.name].take_in(header, content)
        return True

    def answer_post(self, packet: Packet, contents: list[np.ndarray]) -> bytes:
        """Take a packet, and give what there is for its sender."""
        place = packet.sender.place
        self.outgoing.hear(place)
        return self.outgoing.answer(place) if self.get_post(packet, contents) else b""

    def _note_presence(self, place: int, told: Presence) -> None:
        """Note what is newer, however it came: a later life, or the same one which comes back step by step."""
        life, presence = self.presences.get(place, (0, HERE))
        if told[0] > life or (told[0] == life and told[1] < presence):
            self.presences[place] = told

    def get_credit(self, credits: Credits) -> None:
        """Note what readers are done with."""
        for (name, reader), taken in credits.items():
            self._links[name].note_taken(reader, taken)

    def command(self, command: dict[str, Any], arrays: Arrays) -> None:
        """Take what the driver says."""
        self._commands.append((command, arrays))
        self.wake()

    def grant(self, words: dict[int, int], presences: dict[int, Presence]) -> None:
        """Take words that the driver writes, and which others take part; whether it does itself, a replica knows."""
        for k, word in words.items():
            self.words[k] = word
        for place, told in presences.items():
            self._note_presence(place, told)
        self.wake()

    def meet(self, place: int, handle: Any, life: int) -> dict[Name, LinkState]:
        """Somebody new is at a place: what links with it have carried."""
        self.handles[place], self.lives[place] = handle, life
        between = {name: link for name, link in self._links.items() if place in link.spec.places}
        return {name: link.meet(place) for name, link in between.items()}

    def adopt(self, found: dict[int, dict[Name, LinkState]]) -> None:
        """Begin where a predecessor stopped, as those that it was linked with know it."""
        for name, link in self._links.items():
            link.adopt({place: states[name] for place, states in found.items() if name in states})

    def news(self, seconds: float) -> tuple[list[int], float, float, list[Said]]:
        """Words, seconds since progress and since the last message, and what the replica has said; waits for some."""
        with self._spoken:
            if not self._said:
                self._spoken.wait(seconds)
            said = list(self._said)
            self._said.clear()
        words = [0 if k in BY_DRIVER else word for k, word in enumerate(self.words)]
        return words, self.control.seconds_since_progress, self.control.seconds_since_message, said


class ForwardedOutput(io.TextIOBase):
    """What a replica prints, told to the driver as well as to Ray's own files."""

    def __init__(self, driver_link: RayDriverLink, before: Any) -> None:
        self._driver_link, self._before = driver_link, before

    def write(self, text: str) -> int:
        """Print."""
        self._driver_link.send("log", {}, text=text[:LONGEST_LINE])
        return self._before.write(text)

    def flush(self) -> None:
        """Nothing is kept back."""
        self._before.flush()


class ReplicaActor:
    """A Ray actor that holds one replica; each group of its methods has a thread of its own."""

    def __init__(self, title: str = "", paths: tuple[str, ...] = ()) -> None:
        """`paths` are where the driver finds modules, for environments and algorithms that are not installed."""
        self._title = title
        sys.path.extend(path for path in paths if path not in sys.path)
        self._driver_link: RayDriverLink | None = None
        self._open = threading.Event()
        self._grouped = False
        self._arena: Arena | None = None
        self._apart = ""

    def __repr__(self) -> str:
        """How Ray's dashboard and its files call it."""
        return self._title

    def join(self, coordinator: str, size: int, number: int) -> None:
        """Join peers for all-reduces: before a job comes, which may use JAX already as it arrives."""
        from tessera.engines.ray_backend.collective import Membership, join

        self._grouped = True
        try:
            join(Membership(coordinator, size, number))
        except Exception as error:  # told when there is somebody to tell it to
            self._apart = f"could not join its peers at {coordinator}: {error}"

    def borrow(self, where: tuple[int, int, int]) -> bool:
        """Open memory that neighbours share, before a job comes; whether that could be done."""
        with contextlib.suppress(OSError):  # who had it is dead, or hidden from this process
            self._arena = Arena.attach(*where)
        return self._arena is not None

    def work(
        self,
        job: Job,
        link_specs: dict[Name, LinkSpec],
        handles: dict[int, Any],
        life: int,
        words: list[int],
        presences: dict[int, Presence],
        layout: ArenaLayout,
        before: dict[int, dict[Name, LinkState]] | None,
    ) -> None:
        """Be a replica until the run is over; `before` is what others know of the one whose place this is."""
        arena = self._arena if layout.links else Arena(layout.size)
        if arena is None:
            raise RuntimeError("could not open the memory that it shares with others of its node")
        driver_link = RayDriverLink(job, link_specs, handles, life, words, presences, layout, arena, self._grouped)
        if before is not None:
            driver_link.adopt(before)
        self._driver_link = driver_link
        sys.stdout, sys.stderr = ForwardedOutput(driver_link, sys.stdout), ForwardedOutput(driver_link, sys.stderr)
        self._open.set()
        try:
            from tessera.engines.replica.process import ReplicaProcess  # JAX and all that is needed only here

            if self._apart:
                raise RuntimeError(self._apart)
            ReplicaProcess(job, driver_link).work()
            driver_link.send("finished", {})
        except BaseException as error:
            driver_link.send(arrays={}, **describe(error))

    @property
    def driver_link(self) -> RayDriverLink:
        """The driver_link, once there is one."""
        self._open.wait()
        assert self._driver_link is not None
        return self._driver_link

    @ray.method(concurrency_group="post", num_returns=0)
    def post(self, data: bytes, *attachments: np.ndarray) -> None:
        """Get a packet of another replica; large messages come attachments it."""
        self.driver_link.get_post(*decode(data, attachments))

    @ray.method(concurrency_group="post")
    def post_and_answer(self, data: bytes, *attachments: np.ndarray) -> bytes:
        """Get a packet, and send back what there is for its sender."""
        return self.driver_link.answer_post(*decode(data, attachments))

    @ray.method(concurrency_group="post")
    def meet(self, place: int, handle: Any, life: int) -> dict[Name, LinkState]:
        """Get to know who took a dead one's place."""
        return self.driver_link.meet(place, handle, life)

    @ray.method(concurrency_group="post")
    def lend(self, size: int) -> tuple[int, int, int] | None:
        """Make the memory that replicas of this node share, if there is room for it; where others find it."""
        if size < available_memory():
            self._arena = Arena(size)
        return self._where()

    @ray.method(concurrency_group="post")
    def memory(self) -> tuple[int, int, int] | None:
        """Where others find the memory that replicas of this node share, if this one has it open."""
        return self._where()

    def _where(self) -> tuple[int, int, int] | None:
        return None if self._arena is None else self._arena.handle

    @ray.method(concurrency_group="driver", num_returns=0)
    def command(self, command: dict[str, Any], arrays: Arrays) -> None:
        """Take what the driver says."""
        self.driver_link.command(command, arrays)

    @ray.method(concurrency_group="driver", num_returns=0)
    def grant(self, words: dict[int, int], presences: dict[int, Presence]) -> None:
        """Take words that the driver writes."""
        self.driver_link.grant(words, presences)

    @ray.method(concurrency_group="news")
    def address(self) -> str:
        """A free address of this node, at which peers can meet."""
        host = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return f"{host}:{probe.getsockname()[1]}"

    @ray.method(concurrency_group="news")
    def pid(self) -> int:
        """The process."""
        return os.getpid()

    @ray.method(concurrency_group="news")
    def news(self) -> tuple[list[int], float, float, list[Said]]:
        """What there is to tell the driver; waits a while for some."""
        return self.driver_link.news(LISTEN_SECONDS)
