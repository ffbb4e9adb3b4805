"""Links between processes of different machines: messages go to the readers, and credits come back.

Readers that share the memory of their node get a message once: it is sent to one of them, the relay, which passes it on
there (fan_out.py). Both ends keep the messages in flight and the last one that was taken. So after a death the linked
replicas still know how far the dead one had come, and hand that to its successor.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import numpy as np

from tessera.channels.link import HERE, LinkSpec, Message, Straggler
from tessera.channels.rpc.fan_out import RELAY_SECONDS, FanOut
from tessera.channels.rpc.wire import LinkName, MessageHeader
from tessera.channels.shared_memory import Layout


class Payload(Protocol):
    """The bytes of one message, wherever they are."""

    def read(self) -> np.ndarray:
        """Get the bytes."""

    def local(self) -> np.ndarray | None:
        """Get the bytes if they are in this process."""


@dataclass
class LocalPayload:
    """Bytes in this process."""

    content: np.ndarray

    def read(self) -> np.ndarray:
        """Get the bytes."""
        return self.content

    def local(self) -> np.ndarray | None:
        """Get the bytes."""
        return self.content


class MessageSender(Protocol):
    """Sends to other places. No call blocks, and what goes to a dead place is lost."""

    def make_payload(self, content: np.ndarray) -> Payload:
        """Prepare bytes for sending."""

    def send_message(self, place: int, header: MessageHeader, payload: Payload) -> None:
        """Send a message now."""

    def schedule_newest(self, place: int, link: LinkName, reader: int) -> None:
        """Send a reader the newest message of a register, now or soon; `take_newest_for` then gives it."""

    def schedule_credit(self, place: int, link: LinkName, reader: int, taken: int) -> None:
        """Send a writer the number of messages that a reader has released, now or soon."""

    def process_replies(self) -> None:
        """Pass replies that have arrived to their links."""


@dataclass
class LinkState:
    """What one end of a link knows, for a successor at the other end."""

    sent: int
    taken: list[int]
    messages: dict[int, tuple[np.ndarray, int]] = field(default_factory=dict)
    """Number -> bytes and version."""


class RpcLink:
    """This process's end of a link, or both ends.

    Two threads use it: the replica's thread calls the methods of `Link`, the thread that receives packets the others.
    """

    borrowed = True  # what arrived may be in read-only memory

    def __init__(
        self,
        name: LinkName,
        spec: LinkSpec,
        place: int,
        sender: MessageSender,
        wake: Callable[[], None],
        presence: Callable[[int], int],
        fan_out: FanOut | None = None,
    ) -> None:
        """`wake` makes the replica look again; `presence` says whether a replica takes part."""
        self.name, self.spec, self.like, self.capacity = name, spec, spec.like, spec.capacity
        self._structure: Any = jax.tree.structure(spec.like)
        self._layout = Layout.of(jax.tree.leaves(spec.like))
        self._place, self._register, self._sender = place, spec.register, sender
        self._wake, self._presence = wake, presence
        self._fan_out = fan_out or FanOut()
        self._buffer = self._fan_out.buffer
        self._neighbours = () if self._buffer is None else self._buffer.readers
        """Readers that share the memory of this node."""
        self._remote_readers = [r for r, p in enumerate(spec.readers) if p != place] if spec.writer == place else []
        self._local_readers = [r for r, p in enumerate(spec.readers) if p == place]
        grouped = {r for group in (*self._fan_out.groups, self._neighbours) for r in group}
        self._destinations = {group[0]: group for group in self._fan_out.groups}
        """First reader -> readers that get a message together, or alone; those of this node need none. A register
        counts what is sent and confirmed by first readers."""
        self._destinations |= {r: (r,) for r in self._remote_readers if r not in grouped}
        self._turns = dict.fromkeys(self._destinations, spec.writer)
        """First reader -> which of its group is the relay; the messages of many writers are passed on by many."""
        self._confirm_by = dict.fromkeys(self._destinations, math.inf)
        """First reader -> when its group should have confirmed what was sent last."""
        self._straggler = Straggler(range(len(spec.readers)))
        """Finds a reader that holds the writer up."""
        self._needing = Straggler(range(len(spec.readers)) if spec.writer == place else self._local_readers)
        """Finds a reader for which this end keeps a message."""
        self._sent = 0
        self._taken = [0] * len(spec.readers)
        self._dispatched = [0] * len(spec.readers)
        """Of a register: for each reader, one more than the number of the last message sent to it."""
        self._first = [0] * len(spec.readers)
        """For each reader, the message from which on it gets all; it was absent before."""
        self._messages: dict[int, tuple[Payload, int]] = {}
        self._early: dict[int, tuple[Payload, int]] = {}
        """Messages that overtook others."""
        self._lock = threading.RLock()

    # The replica's thread calls these.

    @property
    def sent(self) -> int:
        """Messages so far, as far as this end knows."""
        self._take_shared()
        return self._sent

    def can_send(self) -> bool:
        """Whether one more message may be sent."""
        if self._register:
            return True
        self._sender.process_replies()
        self._note_shared_credits()
        if self.spec.absent is None:
            behind = self._sent - self.capacity
            return not self._straggler.exists(lambda reader: self._taken[reader] <= behind)
        return self.spec.can_send(self._sent, self._taken.__getitem__, self._presence)

    def away(self) -> bool:
        """Whether the writer does not take part for now."""
        return self._presence(self.spec.writer) != HERE

    def put(self, value: Any, version: int) -> None:
        """Send."""
        content = np.empty(self._layout.nbytes, np.uint8)  # one array, which costs Ray less time than many
        leaves = jax.device_get(self._structure.flatten_up_to(value))
        for view, leaf in zip(self._layout.views_in(content), leaves, strict=True):
            view[...] = leaf
        payload = self._sender.make_payload(content) if self._destinations else LocalPayload(content)
        with self._lock:
            self._messages[self._sent] = (LocalPayload(content) if self._local_readers else payload, version)
            self._sent += 1
            self._share(self._sent - 1, version, content)
            if not self._register:
                self._send_to_destinations(version, payload)
            self._prune()
        self._schedule_newest()

    def waiting(self, reader: int) -> int:
        """Messages that a reader has not taken yet."""
        self._sender.process_replies()
        self._note_shared_credits()
        self._take_shared()
        with self._lock:
            return self._sent - self._taken[reader]

    def taken(self, reader: int) -> int:
        """Messages that a reader has released."""
        return self._taken[reader]

    def peek(self, reader: int, ahead: int = 0) -> Message:
        """The next message of a reader, or a later one; it must have arrived."""
        with self._lock:
            payload, version = self._messages[self._taken[reader] + ahead]
        return Message(self._value(payload), version)

    def release(self, reader: int, count: int = 1) -> None:
        """Give messages back to the writer."""
        with self._lock:
            self._taken[reader] += count
            self._prune()
        if self._buffer is not None and self.spec.writer in self._fan_out.neighbours:
            self._buffer.note_taken(reader, self._taken[reader])
            self._fan_out.wake(self.spec.writer)
        elif self.spec.writer != self._place:
            self._sender.schedule_credit(self.spec.writer, self.name, reader, self._taken[reader])

    def skip(self, reader: int) -> None:
        """Release everything that has arrived."""
        with self._lock:
            self.release(reader, self.waiting(reader))

    def newest(self) -> Message | None:
        """The newest message, if there ever was one."""
        self._sender.process_replies()
        self._take_shared()
        with self._lock:
            message = self._messages.get(self._sent - 1)
        return None if message is None else Message(self._value(message[0]), message[1])

    def at(self, number: int) -> Any:
        """The message with this number; None if it is no longer kept."""
        with self._lock:
            message = self._messages.get(number)
        return None if message is None else self._value(message[0])

    # The thread that receives packets calls these, and so does the replica's while it processes replies.

    def receive(self, header: MessageHeader, content: np.ndarray) -> None:
        """Keep a message that was sent here, also for the neighbours."""
        _, number, version, first = header
        with self._lock:
            self._keep(number, version, first, content)
            self._share(number, version, content)
        if self._register:
            for reader in self._neighbours[:1] or self._local_readers:
                self._sender.schedule_credit(self.spec.writer, self.name, reader, number + 1)
        self._wake()

    def receive_credit(self, reader: int, taken: int) -> None:
        """Note what a reader has released; a reader of a register has received this much and may get the newest."""
        with self._lock:
            self._taken[reader] = max(self._taken[reader], taken)
            self._prune()
        self._schedule_newest_for(reader)
        self._wake()

    def take_newest_for(self, reader: int, place: int | None = None) -> tuple[MessageHeader, Payload] | None:
        """The newest message of a register, to be sent now, to a place if given.

        None if the reader has it or has yet to confirm another, or if another place is to pass it on.
        """
        with self._lock:
            if not self._needs_newest(reader) or (place is not None and not self._may_relay(reader, place)):
                return None
            payload, version = self._messages[self._sent - 1]
            self._dispatched[reader] = self._sent
            self._confirm_by[reader] = self._fan_out.clock() + RELAY_SECONDS
            return MessageHeader(self.name, self._sent - 1, version, 0), payload

    def state_for_successor(self, place: int) -> LinkState:
        """What this end knows, for a successor at the other end; the successor then has all of it."""
        self._note_shared_credits()
        self._take_shared()
        lost = []
        with self._lock:
            for reader, reader_place in enumerate(self.spec.readers if self.spec.writer == self._place else ()):
                if reader_place != place:
                    continue
                group = next((group for group in self._fan_out.groups if reader in group), None)
                if group is not None:
                    lost.append(group)
                elif self._register:
                    self._dispatched[reader] = self._taken[reader] = self._sent
            messages = {n: (payload.read(), version) for n, (payload, version) in self._messages.items()}
            state = LinkState(self._sent, list(self._taken), messages)
        for group in lost:
            self._send_again(group)
        return state

    def restore_state(self, states: dict[int, LinkState]) -> None:
        """Continue where the predecessor stopped; `states` has what the other ends know, by place."""
        with self._lock:
            self._sent = max((s.sent for s in states.values()), default=0)
            for place, state in states.items():
                self._messages |= {n: (LocalPayload(content), v) for n, (content, v) in state.messages.items()}
                for r, reader_place in enumerate(self.spec.readers):
                    if place in (reader_place, self.spec.writer):
                        self._taken[r] = state.taken[r]
            for r in self._remote_readers:
                state_there = states.get(self.spec.readers[r])
                self._dispatched[r] = self._taken[r] = self._sent if self._register else self._taken[r]
                if state_there is not None and not self._register:
                    self._resend(r, state_there.sent)
            self._prune()

    def _resend(self, reader: int, received: int) -> None:
        """Send a reader what it lacks: the predecessor died before it had sent this to all readers."""
        unsent = range(received, self._sent)
        self._first[reader] = max((n + 1 for n in unsent if n not in self._messages), default=0)
        self._taken[reader] = max(self._taken[reader], self._first[reader])
        for number in range(max(received, self._first[reader]), self._sent):
            payload, version = self._messages[number]
            self._send((reader,), number, version, payload)

    def _send_again(self, group: tuple[int, ...]) -> None:
        """Send readers of one node what they may lack: one of them died, and may not have passed everything on."""
        with self._lock:
            if self._register:
                self._dispatched[group[0]] = self._taken[group[0]]
            else:
                first = min(self._taken[r] for r in group)
                for number in sorted(n for n in self._messages if n >= first):
                    payload, version = self._messages[number]
                    self._send(group, number, version, payload)
        self._schedule_newest_for(group[0])

    def _value(self, payload: Payload) -> Any:
        return self._structure.unflatten(self._layout.views_in(payload.read()))

    def _keep(self, number: int, version: int, first: int, content: np.ndarray) -> None:
        """Keep a message, in order; one that is known already is not kept again."""
        if number < self._sent:
            return
        if self._register:
            self._messages = {number: (LocalPayload(content), version)}
            self._sent = number + 1
            return
        if first > self._sent:
            self._jump_to(first)
        self._early[number] = (LocalPayload(content), version)
        while self._sent in self._early:
            self._messages[self._sent] = self._early.pop(self._sent)
            self._sent += 1

    def _share(self, number: int, version: int, content: np.ndarray) -> None:
        """Pass a message on to the neighbours."""
        if self._buffer is not None:
            self._buffer.write(number, version, content)
            for place in self._fan_out.neighbours:
                self._fan_out.wake(place)

    def _take_shared(self) -> None:
        """Keep what neighbours have passed on."""
        buffer = self._buffer
        if buffer is None or self.spec.writer == self._place:
            return
        while True:
            number = max(buffer.newest(), self._sent) if self._register else self._sent
            if not buffer.holds(number):
                return
            with self._lock:
                message = buffer.read(number)
                if message is not None:  # else a newer one takes its place now
                    self._keep(number, message[1], 0, message[0])

    def _note_shared_credits(self) -> None:
        """Note what readers have released, where memory says so: those of the writer's own node write it there, and
        neighbours note what they learn for it."""
        if self.spec.writer != self._place or self._register:
            return
        taken = {} if self._buffer is None else {r: self._buffer.taken(r) for r in self._neighbours}
        if self._fan_out.credits is not None:
            taken |= {r: n for r, n in enumerate(self._fan_out.credits.changed()) if n > taken.get(r, 0)}
        if taken:
            with self._lock:
                for reader, count in taken.items():
                    self._taken[reader] = max(self._taken[reader], count)
                self._prune()

    def _jump_to(self, first: int) -> None:
        """Continue with a later message; unread ones keep their order, as if they had been sent just before it."""
        by = first - self._sent
        self._messages = {n + by: message for n, message in self._messages.items()}
        self._early = {n: message for n, message in self._early.items() if n >= first}
        for reader in self._local_readers:
            self._taken[reader] += by
        self._sent = first

    def _needs_newest(self, reader: int) -> bool:
        confirmed = self._taken[reader] >= self._dispatched[reader] or self._is_overdue(reader)
        return confirmed and self._dispatched[reader] < self._sent

    def _is_overdue(self, reader: int) -> bool:
        """Whether a relay may be stuck with what it has got, while others of its node could pass newer ones on."""
        return len(self._destinations[reader]) > 1 and self._fan_out.clock() > self._confirm_by[reader]

    def _schedule_newest(self) -> None:
        """Have the newest of a register sent. Call it without the lock: a packet may lock other links too."""
        for reader in self._destinations:
            self._schedule_newest_for(reader)

    def _schedule_newest_for(self, reader: int) -> None:
        if self._register and reader in self._destinations and self._needs_newest(reader):
            if self._taken[reader] < self._dispatched[reader]:
                self._turns[reader] += 1
            self._sender.schedule_newest(self._relay(self._destinations[reader]), self.name, reader)

    def _relay(self, readers: tuple[int, ...]) -> int:
        """The place that a message for some readers is sent to."""
        places = [self.spec.readers[r] for r in readers]
        begin = self._turns.get(readers[0], 0) % len(places)
        places = [*places[begin:], *places[:begin]]
        return next(filter(self._fan_out.reachable, places), places[0])

    def _may_relay(self, reader: int, place: int) -> bool:
        """Whether a place may be sent the messages of a first reader."""
        return self._fan_out.reachable(place) or self._relay(self._destinations[reader]) == place

    def _send_to_destinations(self, version: int, payload: Payload) -> None:
        present = set(self.spec.waited_for(self._presence))
        for reader, readers in self._destinations.items():
            if reader in present:
                self._send(readers, self._sent - 1, version, payload)
            else:  # nothing is in flight to an absent reader, however long it is absent
                self._first[reader] = self._taken[reader] = self._sent

    def _send(self, readers: tuple[int, ...], number: int, version: int, payload: Payload) -> None:
        first = self._first[readers[0]] if len(readers) == 1 else 0  # readers that may be absent are in no group
        header = MessageHeader(self.name, number, version, first)
        self._sender.send_message(self._relay(readers), header, payload)

    def _prune(self) -> None:
        """Drop messages that no end needs: all before the last one taken."""
        for number in sorted(self._messages):
            if number >= self._sent - 1 or self._is_needed(number):
                return
            del self._messages[number]

    def _is_needed(self, number: int) -> bool:
        return not self._register and self._needing.exists(lambda reader: self._taken[reader] <= number + 1)
