"""Tables and cursors that keep channels linear in replicas give what their plain definitions give."""

from __future__ import annotations

import functools
import random
from typing import Any

import jax
import numpy as np
import pytest

from tessera import policies
from tessera.channels.in_process import InProcessLink
from tessera.channels.inboxes import FirstComeInbox, Versions, _Filling, make_inbox
from tessera.channels.link import HERE, LinkSpec, Straggler
from tessera.channels.link_specs import links_of_places, make_link_specs
from tessera.channels.port import ReplicaPort
from tessera.channels.routes import Route
from tessera.channels.rpc.rpc_link import LocalPayload, RpcLink
from tessera.engines import local
from tessera.graph.disciplines import FirstCome
from tessera.graph.groups import Needs
from tessera.graph.plan import Plan, make_plan
from tessera.graph.policy import Fragment, Policy
from tessera.graph.streams import RouteKind

POLICIES = [
    "single_learner_coarse:actors={n}",
    "single_learner_coarse:actors={n},mode=async,take=2",
    "single_learner_coarse:actors=4,mode=first,first=2",
    "multi_learner_coarse:actors={n},learners=3",
    "multi_learner_coarse:actors=2,learners={n},mode=async",
    "multi_learner_coarse:actors={n},learners=2,mode=async,take=3",
    "multi_learner:learners={n}",
    "central:workers={n},shards=2",
    "central:workers=3,shards={n},mode=async",
    "distributed_replay:actors={n},stores=3,mode=async",
    "distributed_replay:actors=2,stores={n}",
    "gorila:actors={n}",
    "split_inference:workers={n},inference=2,learners=3,wait=0.01",
    "split_inference:workers=2,inference={n}",
    "environments:workers={n}",
    "mirrored:workers={n}",
    "decentralised:workers={n}",
    "averaging:workers={n}",
]
SIZES = (1, 5, 12)


@functools.cache
def planned(text: str, n: int) -> Plan:
    batch = 12 if "replay" in text or "gorila" in text else None
    agents = 4 if "environments" in text else 0
    needs = Needs("small", "small", True, batch, priorities=batch is not None, absorbs=True, agents=agents)
    return make_plan(policies.parse(text.format(n=n)), needs, 12, groups=12)


def routes_of(text: str, n: int) -> list[Route]:
    plan = planned(text, n)
    return [Route(plan, c) for c in plan.channels]


def plain_common(route: Route, p: int, q: int) -> list[int]:
    first_come = isinstance(route.channel.discipline, FirstCome)
    target = route.plan.fragments[route.channel.target]
    wanted = target.groups[q] if first_come else target.held(route.channel.wanted_by)[q]
    return [k for k, group in enumerate(route.made(p)) if group in wanted]


def plain_linked(route: Route, p: int, q: int) -> bool:
    match route.channel.route:
        case RouteKind.RESHARD | RouteKind.AGENTS:
            return bool(plain_common(route, p, q))
        case RouteKind.COPY:
            return p == q % route.senders
        case _:
            return True


def plain_lanes(route: Route) -> dict[int, tuple[int, list[int]]]:
    found: dict[int, tuple[int, list[int]]] = {}
    for p in range(route.senders):
        for q in range(route.receivers):
            if plain_linked(route, p, q):
                found.setdefault(route.lane(p, q), (p, []))[1].append(q)
    return found


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("text", POLICIES)
def test_a_route_links_those_that_its_definition_links(text, n):
    for route in routes_of(text, n):
        pairs = [(p, q) for p in range(route.senders) for q in range(route.receivers)]
        linked = {pair for pair in pairs if plain_linked(route, *pair)}
        assert {pair for pair in pairs if route.linked(*pair)} == linked
        assert [list(route.common(*pair)) for pair in pairs] == [plain_common(route, *pair) for pair in pairs]
        for p in range(route.senders):
            readers = [q for q in range(route.receivers) if (p, q) in linked]
            assert list(route.readers(p)) == readers
            if not route.channel.link_per_receiver:
                assert [route.reader(p, q) for q in readers] == list(range(len(readers)))
        for q in range(route.receivers):
            assert list(route.writers(q)) == [p for p in range(route.senders) if (p, q) in linked]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("text", POLICIES)
def test_a_route_has_the_lanes_of_its_definition_and_knows_what_each_carries(text, n):
    for route in routes_of(text, n):
        lanes = plain_lanes(route)
        assert {lane: (p, list(readers)) for lane, (p, readers) in route.lanes().items()} == lanes
        assert list(route.lanes()) == list(lanes)
        for lane, (p, readers) in lanes.items():
            apart = route.channel.link_per_receiver
            assert route.carried(lane) == len(plain_common(route, p, readers[0]) if apart else route.made(p))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("text", POLICIES)
def test_links_lead_from_the_place_of_their_sender_to_those_of_their_receivers(text, n):
    plan, routes = planned(text, n), routes_of(text, n)
    whole = {c.slot: jax.ShapeDtypeStruct((12, 1, 4), np.float32) for c in plan.channels}
    specs = make_link_specs(plan, routes, whole, None)
    for (k, lane), spec in specs.items():
        p, receivers = routes[k].lanes()[lane]
        assert spec.writer == plan.place(plan.channels[k].source, p)
        assert spec.readers == tuple(plan.place(plan.channels[k].target, q) for q in receivers)
    found = links_of_places(specs)
    for place in range(len(plan.places)):
        assert found.get(place, {}) == {name: spec for name, spec in specs.items() if place in spec.places}


@pytest.mark.parametrize("n", [2, 5, 12])
def test_ready_senders_are_answered_at_the_positions_of_their_groups(n):
    plan, routes = planned(POLICIES[12], n), routes_of(POLICIES[12], n)
    k = next(k for k, c in enumerate(plan.channels) if c.slot == "timesteps")
    links = {(c, lane): InProcessLink(1, 2) for c, route in enumerate(routes) for lane in route.lanes()}
    for number in range(2):
        port = ReplicaPort(plan, routes, 1, number, Versions(1, 1), lambda c, lane: links[c, lane], lambda _: None)
        mine = routes[k].wanted(number)
        for p, part in (port.peer_slices(k) or {}).items():
            assert mine[part] == tuple(g for g in routes[k].made(p) if g in mine)


def test_replicas_get_the_cores_that_are_left_in_order(monkeypatch):
    monkeypatch.setattr(local.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr("tessera.graph.plan.cores", lambda: 8)
    fragments = (Fragment("env act", 2, cores=2), Fragment("store", 2), Fragment("grad apply", cores=1))
    needs = Needs("small", "small", True, None, priorities=False, absorbs=False)
    given = local.cores_of_places(make_plan(Policy("p", fragments), needs, 16))
    assert given == [(0, 1), (2, 3), (5, 6, 7), (5, 6, 7), (4,)]
    shared = make_plan(Policy("p", (Fragment("env act", 3), Fragment("store grad apply"))), needs, 16)
    assert local.cores_of_places(shared) == [()] * 4


def test_a_straggler_is_found_whenever_there_is_one_and_looks_are_few():
    chance = random.Random(0)
    for count in (1, 2, 7, 50):
        straggler, arrived = Straggler(range(count)), set()
        looks: list[int] = []

        def is_behind(number: int, arrived: set[int] = arrived, looks: list[int] = looks) -> bool:
            looks.append(number)
            return number not in arrived

        for number in chance.sample(range(count), count):
            assert straggler.exists(is_behind)
            arrived.add(number)
        assert not straggler.exists(is_behind)
        assert len(looks) <= 3 * count + 1  # one that is behind for each arrival, and each twice besides
    assert not Straggler([]).exists(lambda _: True)


def test_a_link_within_a_process_keeps_what_its_slowest_reader_has_not_taken():
    chance = random.Random(1)
    link, taken, sent = InProcessLink(3, 4), [0, 0, 0], 0
    for step in range(500):
        reader = chance.randrange(3)
        count = chance.randint(0, sent - taken[reader])
        if chance.random() < 0.5 and sent - min(taken) < 4:
            link.put(sent, step)
            sent += 1
        elif chance.random() < 0.02:
            link.clear()
            taken = [sent] * 3
        else:
            link.release(reader, count)
            taken[reader] += count
        assert link.can_send() == (sent - min(taken) < 4)
        assert [message.value for message in link.under_way()] == list(range(min(taken), sent))
        assert [link.waiting(r) for r in range(3)] == [sent - n for n in taken]


class Silence:
    """Carries nothing anywhere."""

    make_payload = staticmethod(LocalPayload)

    def __getattr__(self, _: str) -> Any:
        return lambda *_: None


@pytest.mark.parametrize("register", [False, True])
def test_a_link_between_machines_keeps_what_its_slowest_reader_took_last_and_all_after_it(register):
    chance = random.Random(2)
    spec = LinkSpec(like=np.zeros(1), readers=(1, 2, 3), writer=0, capacity=3, register=register)
    link = RpcLink((0, 0), spec, 0, Silence(), lambda: None, lambda _: HERE)
    taken = [0, 0, 0]
    for _ in range(200):
        assert link.can_send() == (register or all(link.sent - n < 3 for n in taken))
        if chance.random() < 0.5 and link.can_send():
            link.put(np.zeros(1), 0)
        reader = chance.randrange(3)
        taken[reader] = chance.randint(taken[reader], link.sent)
        link.receive_credit(reader, taken[reader])
        first = link.sent - 1 if register else min(taken) - 1
        assert [n for n in range(link.sent) if link.at(n) is not None] == list(range(max(first, 0), link.sent))


class PlainFilling:
    """Which group is in which position, by lists."""

    def __init__(self, groups: tuple[int, ...]) -> None:
        self.groups, self.free, self.sources = groups, list(range(len(groups))), {}

    def put(self, group: int, version: int) -> int:
        own = self.groups.index(group) if group in self.groups else None
        position = own if own in self.free else min(self.free)
        self.free.remove(position)
        self.sources[position] = version
        return position

    def drop(self, oldest: int) -> None:
        late = [position for position, version in self.sources.items() if version < oldest]
        self.free += late
        for position in late:
            del self.sources[position]


class Positions:
    """A batch that only remembers where parts were put."""

    def __init__(self) -> None:
        self.last = -1

    def put(self, position: int, part: Any) -> None:
        self.last = position


def test_a_group_goes_to_its_own_position_or_to_the_first_that_is_free():
    chance = random.Random(3)
    for _ in range(50):
        groups = tuple(chance.sample(range(12), chance.randint(1, 8)))
        plain, builder = PlainFilling(groups), Positions()
        batch = _Filling({group: k for k, group in enumerate(groups)}, builder)
        for step in range(60):
            if not plain.free or chance.random() < 0.1:
                oldest = chance.randint(0, step)
                plain.drop(oldest)
                list(batch.drop(lambda version, oldest=oldest: version < oldest))
            else:
                group = chance.randrange(12)
                batch.put(group, None, (0, step), step)
                assert builder.last == plain.put(group, step)
            assert batch.full == (not plain.free)


class PlainFirstCome(FirstComeInbox):
    """Looks at all links in order, and at all that it holds, each time."""

    def receive(self) -> tuple[bool, Any]:
        self._checked, self._full = -1, 0
        self._drop_late()
        most = self.bound if self.versions.newest else None
        order = sorted(self.links, key=lambda p: (p < self._turn, p))
        while not self._has_batch():
            ready = [p for p in order if self.links[p].waiting(self.reader[p])]
            ready = [p for p in ready if most is None or self._arrivals[p] <= most]
            if not ready:
                return False, None
            for p in ready:
                self._take(p)
                self._turn, self._full = p + 1, 0
                if self._has_batch():
                    break
        self._arrivals.clear()
        self._full = 0
        return True, self._batches.pop(0).value()


@pytest.mark.parametrize("lag", ["", ",lag=0", ",lag=2"])
@pytest.mark.parametrize("take", [0, 1, 5])
@pytest.mark.parametrize("n", [1, 5])
def test_first_come_batches_are_those_of_looking_at_everything_each_time(n, take, lag):
    chance = random.Random(4)
    text = f"single_learner_coarse:actors={{n}},mode=async,take={take}{lag}"
    route = next(r for r in routes_of(text, n) if r.channel.slot == "experience")
    ends = []
    for kind in (FirstComeInbox, PlainFirstCome):
        links = {p: InProcessLink(1, 3) for p in route.writers(0)}
        ends.append((kind(route, 0, dict(links), Versions(1, 1)), links))
    for step in range(80):
        p = chance.randrange(n)
        value = np.asarray(route.made(p)) + 100 * step
        for box, links in ends:
            if links[p].can_send():
                links[p].put(value, box.versions.newest)
        if chance.random() < 0.5:
            (arrived, one), (also, other) = (box.receive() for box, _ in ends)
            assert arrived == also
            assert not arrived or one.tolist() == other.tolist()
            if chance.random() < (0.5 if arrived else 0.2):
                for box, _ in ends:
                    box.versions.newest += 1
        assert ends[0][0].flow == ends[1][0].flow


@pytest.mark.parametrize(
    ("text", "slot"), [("single_learner_coarse:actors={n}", "experience"), ("central:workers={n}", "gradients")]
)
def test_a_receiver_that_looks_after_each_message_looks_at_each_link_a_few_times(text, slot):
    n, looks = 12, []
    route = next(r for r in routes_of(text, n) if r.channel.slot == slot)

    class Watched(InProcessLink):
        def waiting(self, reader: int) -> int:
            looks.append(self)
            return super().waiting(reader)

    links = {p: Watched(1, 1) for p in range(n)}
    box = make_inbox(route, 0, dict(links), Versions(1, 1))
    for p in random.Random(5).sample(range(n), n):
        assert box.receive() == (False, None)
        links[p].put(np.zeros(len(route.made(p))), 0)
    assert box.receive()[0]
    assert len(looks) <= 4 * n + 1


def test_senders_take_turns_from_the_one_after_the_last():
    route = next(r for r in routes_of("central:workers={n},mode=async", 5) if r.channel.slot == "gradients")
    links = {p: InProcessLink(1, 2) for p in range(5)}
    box = make_inbox(route, 0, dict(links), Versions(1, 1))
    for p in (0, 1, 3):
        links[p].put(np.float64(p), 0)
    taken = [box.receive()[1]]
    links[0].put(np.float64(0), 0)
    taken += [box.receive()[1] for _ in range(3)]
    assert taken == [0, 1, 3, 0]
