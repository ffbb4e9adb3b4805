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

from tessera.engines.channels.base import HERE, Line, Link
from tessera.engines.channels.letters import Letter, Name, Owed, Sender, unseal
from tessera.engines.channels.local import LocalLink, Wiring
from tessera.engines.channels.remote import Parcel, RemoteLink, Standing
from tessera.engines.channels.shared import Arena, Bell, available_memory, in_order
from tessera.engines.control import BY_DRIVER, LIFE, PRESENCE, Control, Job
from tessera.engines.desk import local_words
from tessera.engines.inbox import Both
from tessera.engines.outgoing import OFTEN_SECONDS, Outgoing
from tessera.engines.packing import Arrays
from tessera.engines.room import reduced
from tessera.engines.worker import describe

LISTEN_SECONDS = 0.5
"""How long a question for news is left open, at the most."""
LONGEST_LINE = 4096

Said = tuple[dict[str, Any], Arrays]
Presence = tuple[int, int]
"""Which life of a place, and whether that one takes part."""


@dataclass
class Stored:
    """Bytes in Ray's object store."""

    ref: Any

    def open(self) -> np.ndarray:
        """Give the bytes."""
        return ray.get(self.ref)

    def here(self) -> np.ndarray | None:
        """They are elsewhere."""
        return None


class RayDesk:
    """A replica's desk in a Ray actor: the post comes in on another thread."""

    def __init__(
        self,
        job: Job,
        lines: dict[Name, Line],
        handles: dict[int, Any],
        life: int,
        words: list[int],
        presences: dict[int, Presence],
        wiring: Wiring,
        arena: Arena,
        grouped: bool,
    ) -> None:
        """`arena` is the memory that it shares with neighbours, or its own; `grouped` says whether it has joined peers
        for all-reduces."""
        self.job, self.lines, self.handles, self.life = job, lines, handles, life
        self._grouped = grouped
        neighbours = {place for wire in wiring.wires.values() for place in wire.line.places} - {job.place}
        self._neighbours = {place: local_words(arena, wiring, place) for place in neighbours}
        """The words of those that it shares memory with."""
        self.words = local_words(arena, wiring, job.place)
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
        self._bell = Bell(arena, wiring.bells, wiring.processes + 1, job.place)
        self._rings = {
            name: LocalLink(arena, wire, self._bell, self._presence)
            for name, wire in wiring.wires.items()
            if name in lines
        }
        remote = {name: line for name, line in lines.items() if name not in self._rings}
        self._links: dict[Name, RemoteLink] = {}
        self._commands: deque[Said] = deque()
        self._said: deque[Said] = deque()
        self._spoken = threading.Condition()
        self._answers: deque[bytes] = deque()
        """Answers to letters, until links are looked at."""
        self.outgoing = Outgoing(remote, self._links.__getitem__, self._me, self)
        self._answering = {line.writer for line in remote.values() if line.register and job.place in line.readers}
        """Who may have something to answer."""
        for name, line in remote.items():
            self._links[name] = RemoteLink(name, line, job.place, self.outgoing, self.wake, self._presence)

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

    def both(self, channel: int) -> Both | None:
        """An all-reduce among peers."""
        c = self.job.plan.channels[channel]
        if not self._grouped or not reduced(c):
            return None
        from tessera.engines.collective import Mean

        held = self.job.plan.fragments[c.source].held(c.made_by)
        return Mean(len(held[self.job.number]) / sum(len(groups) for groups in held), self.wake)

    def look(self) -> int:
        """A number that changes whenever there is something new to see."""
        return self._bell.look()

    def wait(self, seen: int, seconds: float) -> None:
        """Wait until that number is another one, or the seconds are over; who is owed something gets it before."""
        if self.outgoing.clear() and seconds > OFTEN_SECONDS:
            if self._bell.wait(seen, OFTEN_SECONDS):
                return
            self.outgoing.clear(everything=True)
        self._bell.wait(seen, seconds)

    def wake(self) -> None:
        """Make the replica look again."""
        self._bell.ring(self.job.place)

    def asked(self) -> bool:
        """Whether the driver has said something."""
        return bool(self._commands)

    def hear(self) -> Said:
        """What the driver has said next, and arrays that came with it."""
        return self._commands.popleft()

    def tell(self, kind: str, arrays: Arrays, **more: Any) -> None:
        """Say something to the driver, when it next asks."""
        with self._spoken:
            self._said.append(({"kind": kind, **more}, arrays))
            self._spoken.notify_all()

    def close(self) -> None:
        """Be done."""

    # What letters go by.

    def store(self, content: np.ndarray) -> Parcel:
        """Lay bytes down where others can fetch them."""
        return Stored(ray.put(content))

    def carry(self, place: int, sealed: bytes, beside: list[Parcel]) -> None:
        """Bring a letter, and what does not fit into it, to a place."""
        more = [parcel.ref if isinstance(parcel, Stored) else parcel.open() for parcel in beside]
        handle = self.handles[place]
        if place in self._answering:
            handle.post_and_answer.remote(sealed, *more).future().add_done_callback(self._keep_answer)
        else:
            handle.post.remote(sealed, *more)

    def _keep_answer(self, answer: Future[bytes]) -> None:
        """Keep an answer until links are looked at: Ray's own thread, which calls this, must not send anything."""
        if answer.exception() is None and answer.result():  # else it died, which the driver sees too
            self._answers.append(answer.result())
            self.wake()

    def collect(self) -> None:
        """Open answers that have come."""
        while self._answers:
            self.get_post(*unseal(self._answers.popleft()))

    def _me(self) -> Sender:
        return Sender(self.job.place, self.life, self.control.presence)

    # What comes by post, and from the driver.

    def get_post(self, letter: Letter, contents: list[np.ndarray]) -> bool:
        """Take a letter, unless who has sent it is dead."""
        place, life, presence = letter.sender
        if life < self.lives.get(place, 0):
            return False
        self._note_presence(place, (life, presence))
        self.get_credit(letter.owed)
        for stamp, content in zip(letter.stamps, contents, strict=True):
            self._links[stamp.name].take_in(stamp, content)
        return True

    def answer_post(self, letter: Letter, contents: list[np.ndarray]) -> bytes:
        """Take a letter, and give what there is for its sender."""
        place = letter.sender.place
        self.outgoing.hear(place)
        return self.outgoing.answer(place) if self.get_post(letter, contents) else b""

    def _note_presence(self, place: int, told: Presence) -> None:
        """Note what is newer, however it came: a later life, or the same one which comes back step by step."""
        life, presence = self.presences.get(place, (0, HERE))
        if told[0] > life or (told[0] == life and told[1] < presence):
            self.presences[place] = told

    def get_credit(self, owed: Owed) -> None:
        """Note what readers are done with."""
        for (name, reader), taken in owed.items():
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

    def meet(self, place: int, handle: Any, life: int) -> dict[Name, Standing]:
        """Somebody new is at a place: what links with it have carried."""
        self.handles[place], self.lives[place] = handle, life
        between = {name: link for name, link in self._links.items() if place in link.line.places}
        return {name: link.meet(place) for name, link in between.items()}

    def adopt(self, found: dict[int, dict[Name, Standing]]) -> None:
        """Begin where a predecessor stopped, as those that it was linked with know it."""
        for name, link in self._links.items():
            link.adopt({place: standings[name] for place, standings in found.items() if name in standings})

    def news(self, seconds: float) -> tuple[list[int], float, float, list[Said]]:
        """Words, seconds since progress and since the last message, and what the replica has said; waits for some."""
        with self._spoken:
            if not self._said:
                self._spoken.wait(seconds)
            said = list(self._said)
            self._said.clear()
        words = [0 if k in BY_DRIVER else word for k, word in enumerate(self.words)]
        return words, self.control.seconds_since_progress, self.control.seconds_since_message, said


class Told(io.TextIOBase):
    """What a replica prints, told to the driver as well as to Ray's own files."""

    def __init__(self, desk: RayDesk, before: Any) -> None:
        self._desk, self._before = desk, before

    def write(self, text: str) -> int:
        """Print."""
        self._desk.tell("log", {}, text=text[:LONGEST_LINE])
        return self._before.write(text)

    def flush(self) -> None:
        """Nothing is kept back."""
        self._before.flush()


class Seat:
    """A Ray actor that holds one replica; each group of its methods has a thread of its own."""

    def __init__(self, title: str = "", paths: tuple[str, ...] = ()) -> None:
        """`paths` are where the driver finds modules, for environments and algorithms that are not installed."""
        self._title = title
        sys.path.extend(path for path in paths if path not in sys.path)
        self._desk: RayDesk | None = None
        self._open = threading.Event()
        self._grouped = False
        self._arena: Arena | None = None
        self._apart = ""

    def __repr__(self) -> str:
        """How Ray's dashboard and its files call it."""
        return self._title

    def join(self, coordinator: str, size: int, number: int) -> None:
        """Join peers for all-reduces: before a job comes, which may use JAX already as it arrives."""
        from tessera.engines.collective import Membership, join

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
        lines: dict[Name, Line],
        handles: dict[int, Any],
        life: int,
        words: list[int],
        presences: dict[int, Presence],
        wiring: Wiring,
        before: dict[int, dict[Name, Standing]] | None,
    ) -> None:
        """Be a replica until the run is over; `before` is what others know of the one whose place this is."""
        arena = self._arena if wiring.wires else Arena(wiring.size)
        if arena is None:
            raise RuntimeError("could not open the memory that it shares with others of its node")
        desk = RayDesk(job, lines, handles, life, words, presences, wiring, arena, self._grouped)
        if before is not None:
            desk.adopt(before)
        self._desk = desk
        sys.stdout, sys.stderr = Told(desk, sys.stdout), Told(desk, sys.stderr)
        self._open.set()
        try:
            from tessera.engines.working import Worker  # JAX and all that is needed only here

            if self._apart:
                raise RuntimeError(self._apart)
            Worker(job, desk).work()
            desk.tell("finished", {})
        except BaseException as error:
            desk.tell(arrays={}, **describe(error))

    @property
    def desk(self) -> RayDesk:
        """The desk, once there is one."""
        self._open.wait()
        assert self._desk is not None
        return self._desk

    @ray.method(concurrency_group="post", num_returns=0)
    def post(self, sealed: bytes, *beside: np.ndarray) -> None:
        """Get a letter of another replica; large messages come beside it."""
        self.desk.get_post(*unseal(sealed, beside))

    @ray.method(concurrency_group="post")
    def post_and_answer(self, sealed: bytes, *beside: np.ndarray) -> bytes:
        """Get a letter, and send back what there is for its sender."""
        return self.desk.answer_post(*unseal(sealed, beside))

    @ray.method(concurrency_group="post")
    def meet(self, place: int, handle: Any, life: int) -> dict[Name, Standing]:
        """Get to know who took a dead one's place."""
        return self.desk.meet(place, handle, life)

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
        self.desk.command(command, arrays)

    @ray.method(concurrency_group="driver", num_returns=0)
    def grant(self, words: dict[int, int], presences: dict[int, Presence]) -> None:
        """Take words that the driver writes."""
        self.desk.grant(words, presences)

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
        return self.desk.news(LISTEN_SECONDS)
