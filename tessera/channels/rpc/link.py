"""Links between processes of different machines: messages are sent to each reader, who tells back what it is done with.

Both ends keep the messages that are under way and the last one that was taken. So when a process dies, those that it
was linked with still know how far it had come, and give that to whoever takes its place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import numpy as np

from tessera.channels.link import HERE, LinkSpec, Message
from tessera.channels.rpc.wire import MessageHeader, Name
from tessera.channels.shared_memory import Layout


class Payload(Protocol):
    """The bytes of one message, wherever they lie."""

    def open(self) -> np.ndarray:
        """Give the bytes."""

    def here(self) -> np.ndarray | None:
        """Give them if they are in this process."""


@dataclass
class LocalPayload:
    """Bytes in this process."""

    content: np.ndarray

    def open(self) -> np.ndarray:
        """Give the bytes."""
        return self.content

    def here(self) -> np.ndarray | None:
        """Give them."""
        return self.content


class MessageSender(Protocol):
    """What carries messages to other places. Nothing waits here, and what is sent to a dead place is lost."""

    def payload(self, content: np.ndarray) -> Payload:
        """Make bytes ready to be sent."""

    def deliver(self, place: int, header: MessageHeader, payload: Payload) -> None:
        """Send a message."""

    def offer(self, place: int, name: Name, reader: int) -> None:
        """Send the newest of a register, at once or soon: it is then asked for."""

    def credit(self, place: int, name: Name, reader: int, taken: int) -> None:
        """Tell a writer how many messages a reader is done with, at once or soon."""

    def collect(self) -> None:
        """Give links what has come for them and waits until they look."""


@dataclass
class LinkState:
    """What one end of a link knows of it: given to who takes the place of the other end."""

    sent: int
    taken: list[int]
    held: dict[int, tuple[np.ndarray, int]] = field(default_factory=dict)
    """Number -> bytes and version."""


class RpcLink:
    """This process's end of a link, or both of them. Two threads use it: the replica's, and the one that gets post."""

    borrowed = True  # what arrived may lie in memory that cannot be written to

    def __init__(
        self,
        name: Name,
        spec: LinkSpec,
        me: int,
        post: MessageSender,
        wake: Callable[[], None],
        presence: Callable[[int], int],
    ) -> None:
        """`wake` makes the replica look again; `presence` tells whether a replica takes part."""
        self.name, self.spec, self.like, self.capacity = name, spec, spec.like, spec.capacity
        self._structure: Any = jax.tree.structure(spec.like)
        self._layout = Layout.of(jax.tree.leaves(spec.like))
        self._me, self._register, self._post, self._wake, self._presence = me, spec.register, post, wake, presence
        self._others = [r for r, place in enumerate(spec.readers) if place != me] if spec.writer == me else []
        self._mine = [r for r, place in enumerate(spec.readers) if place == me]
        self.sent = 0
        self._taken = [0] * len(spec.readers)
        self._posted = [0] * len(spec.readers)
        """Of a register: messages up to the last one that was sent to each reader."""
        self._first = [0] * len(spec.readers)
        """From which message on each reader gets all: before, it was absent."""
        self._held: dict[int, tuple[Payload, int]] = {}
        self._early: dict[int, tuple[Payload, int]] = {}
        """Messages that overtook others."""
        self._lock = threading.RLock()

    # What the replica calls.

    def can_send(self) -> bool:
        """Whether one more message may be sent."""
        if self._register:
            return True
        self._post.collect()
        return self.spec.can_send(self.sent, self._taken.__getitem__, self._presence)

    def away(self) -> bool:
        """Whether its writer does not take part for now."""
        return self._presence(self.spec.writer) != HERE

    def put(self, value: Any, version: int) -> None:
        """Send."""
        content = np.empty(self._layout.nbytes, np.uint8)  # one piece, which takes Ray less time than many
        found = jax.device_get(self._structure.flatten_up_to(value))
        for place, leaf in zip(self._layout.within(content), found, strict=True):
            place[...] = leaf
        payload = self._post.payload(content) if self._others else LocalPayload(content)
        with self._lock:
            self._held[self.sent] = (LocalPayload(content) if self._mine else payload, version)
            self.sent += 1
            if not self._register:
                self._deliver_to_others(version, payload)
            self._prune()
        self._offer()

    def waiting(self, reader: int) -> int:
        """Messages that a reader has not taken yet."""
        self._post.collect()
        with self._lock:
            return self.sent - self._taken[reader]

    def taken(self, reader: int) -> int:
        """Messages that a reader is done with."""
        return self._taken[reader]

    def peek(self, reader: int, ahead: int = 0) -> Message:
        """The next message of a reader, or one after it; it must be there."""
        with self._lock:
            payload, version = self._held[self._taken[reader] + ahead]
        return Message(self._value(payload), version)

    def release(self, reader: int, count: int = 1) -> None:
        """Be done with messages."""
        with self._lock:
            self._taken[reader] += count
            self._prune()
        if self.spec.writer != self._me:
            self._post.credit(self.spec.writer, self.name, reader, self._taken[reader])

    def skip(self, reader: int) -> None:
        """Be done with all that a reader has not taken yet."""
        with self._lock:
            self.release(reader, self.waiting(reader))

    def newest(self) -> Message | None:
        """The newest message, if there ever was one."""
        self._post.collect()
        with self._lock:
            found = self._held.get(self.sent - 1)
        return None if found is None else Message(self._value(found[0]), found[1])

    def at(self, number: int) -> Any:
        """A message that is still there, by its number; None if it is not."""
        with self._lock:
            found = self._held.get(number)
        return None if found is None else self._value(found[0])

    # What comes by post.

    def take_in(self, header: MessageHeader, content: np.ndarray) -> None:
        """Keep a message that was sent here."""
        _, number, version, first = header
        with self._lock:
            if self._register:
                if number >= self.sent:
                    self._held = {number: (LocalPayload(content), version)}
                    self.sent = number + 1
            elif number >= self.sent:
                if first > self.sent:
                    self._leap(first)
                self._early[number] = (LocalPayload(content), version)
                while self.sent in self._early:
                    self._held[self.sent] = self._early.pop(self.sent)
                    self.sent += 1
        if self._register:
            for reader in self._mine:
                self._post.credit(self.spec.writer, self.name, reader, number + 1)
        self._wake()

    def note_taken(self, reader: int, taken: int) -> None:
        """A reader is done with messages; of a register, it has got one, and may get the newest."""
        with self._lock:
            self._taken[reader] = max(self._taken[reader], taken)
            self._prune()
        self._offer()
        self._wake()

    def newest_for(self, reader: int) -> tuple[MessageHeader, Payload] | None:
        """What is sent to a reader of a register now, if it has got what it was sent before, and there is more."""
        with self._lock:
            if not self._lacks(reader):
                return None
            payload, version = self._held[self.sent - 1]
            self._posted[reader] = self.sent
            return MessageHeader(self.name, self.sent - 1, version, 0), payload

    def meet(self, place: int) -> LinkState:
        """Somebody new is at the other end: what this one knows, which the newcomer will know too."""
        with self._lock:
            for reader, whose in enumerate(self.spec.readers):
                if whose == place and self._register and self.spec.writer == self._me:
                    self._posted[reader] = self._taken[reader] = self.sent
            held = {n: (payload.open(), version) for n, (payload, version) in self._held.items()}
            return LinkState(self.sent, list(self._taken), held)

    def adopt(self, found: dict[int, LinkState]) -> None:
        """Begin where a predecessor stopped, as those at other ends know it, by place."""
        with self._lock:
            self.sent = max((s.sent for s in found.values()), default=0)
            for place, state in found.items():
                self._held |= {n: (LocalPayload(content), version) for n, (content, version) in state.held.items()}
                for r, reader in enumerate(self.spec.readers):
                    if place in (reader, self.spec.writer):
                        self._taken[r] = state.taken[r]
            for r in self._others:
                there = found.get(self.spec.readers[r])
                self._posted[r] = self._taken[r] = self.sent if self._register else self._taken[r]
                if there is not None and not self._register:  # the predecessor died before it had sent this to all
                    unsent = range(there.sent, self.sent)
                    self._first[r] = max((n + 1 for n in unsent if n not in self._held), default=0)
                    self._taken[r] = max(self._taken[r], self._first[r])
                    for number in range(max(there.sent, self._first[r]), self.sent):
                        payload, version = self._held[number]
                        self._deliver(r, number, version, payload)
            self._prune()

    def _value(self, payload: Payload) -> Any:
        return self._structure.unflatten(self._layout.within(payload.open()))

    def _leap(self, first: int) -> None:
        """Go on with a later message: those that are here and unread keep their order, as if sent just before it."""
        by = first - self.sent
        self._held = {n + by: message for n, message in self._held.items()}
        self._early = {n: message for n, message in self._early.items() if n >= first}
        for reader in self._mine:
            self._taken[reader] += by
        self.sent = first

    def _lacks(self, reader: int) -> bool:
        return self._taken[reader] >= self._posted[reader] and self._posted[reader] < self.sent

    def _offer(self) -> None:
        """Send what is new in a register; not while this link is locked, for that of another may be asked for too."""
        for reader in self._others if self._register else []:
            if self._lacks(reader):
                self._post.offer(self.spec.readers[reader], self.name, reader)

    def _deliver_to_others(self, version: int, payload: Payload) -> None:
        waited = self.spec.waited_for(self._presence)
        for reader in self._others:
            if reader in waited:
                self._deliver(reader, self.sent - 1, version, payload)
            else:  # nothing is under way to who is absent, however long it stays so
                self._first[reader] = self._taken[reader] = self.sent

    def _deliver(self, reader: int, number: int, version: int, payload: Payload) -> None:
        self._post.deliver(
            self.spec.readers[reader], MessageHeader(self.name, number, version, self._first[reader]), payload
        )

    def _prune(self) -> None:
        """Forget what nobody needs: all but the last that was taken, and those after it."""
        whose = range(len(self._taken)) if self.spec.writer == self._me else self._mine
        first = self.sent - 1 if self._register else min((self._taken[r] for r in whose), default=self.sent) - 1
        for number in [n for n in self._held if n < first]:
            del self._held[number]
