"""Gradients among peers: room for as many as the bound on lag lets be under way, and no more."""

from __future__ import annotations

import random
from typing import Any

import jax
import numpy as np
import pytest

import tessera
from tessera.channels.in_process import InProcessLink
from tessera.channels.inboxes import Versions, make_inbox
from tessera.channels.link_specs import make_link_specs
from tessera.channels.rings import lay_out
from tessera.channels.routes import Route, make_routes
from tessera.engines import local
from tessera.engines.replica.replica import make_training
from tessera.errors import TesseraError
from tessera.graph.disciplines import in_flight, most_ahead
from tessera.planning.prepare import prepare_plan
from tessera.program.shapes import slot_shapes

CARTPOLE = "gymnax:CartPole-v1"


def planned(policy: str, algorithm: Any = None) -> Any:
    return prepare_plan(algorithm or tessera.A2C(widths=(8,)), CARTPOLE, policy, envs=8)


class Peer:
    """Sends a gradient, then takes what there is, and so on."""

    def __init__(self, number: int, route: Route, links: dict[int, InProcessLink], applies: int) -> None:
        self.link, self.inbox = links[number], make_inbox(route, number, links, Versions(applies, 1))
        self.has_sent, self.sum, self.rounds = False, 0.0, 0

    def step(self) -> str:
        """What it did: nothing if it has to wait."""
        if not self.has_sent:
            if not self.link.can_send():
                return "no room"
            self.link.put(np.float64(1), 0)
            self.has_sent = True
            return "sent"
        arrived, total = self.inbox.receive()
        if not arrived:
            return "waits"
        self.sum, self.rounds, self.has_sent = self.sum + total, self.rounds + 1, False
        return "took"


def peers_of(capacity: int, lag: int, applies: int, count: int = 3) -> tuple[list[Peer], list[InProcessLink]]:
    _, _, plan = planned(f"decentralised:workers={count},lag={lag}")
    route = Route(plan, plan.channel("gradients"))
    links = {p: InProcessLink(count, capacity) for p in range(count)}
    return [Peer(p, route, links, applies) for p in range(count)], list(links.values())


@pytest.mark.parametrize(("lag", "applies"), [(0, 1), (1, 1), (2, 1), (1, 4)])
@pytest.mark.parametrize("seed", range(4))
def test_no_peer_ever_waits_for_room_that_its_bound_on_lag_would_let_it_have(seed, lag, applies):
    peers, links = peers_of(most_ahead(lag, applies), lag, applies)
    chance = random.Random(seed)
    fullest = 0
    for _ in range(600):
        favoured = chance.randrange(3)
        for _ in range(chance.choice((1, 2, 40))):  # one may sprint while the others stand
            assert peers[favoured].step() != "no room"
            fullest = max(fullest, *(link.waiting(reader) for link in links for reader in range(3)))
    assert fullest <= most_ahead(lag, applies)
    assert min(peer.rounds for peer in peers) > 20


def test_the_room_is_really_used():
    """One that is a whole lag behind gets a whole lag ahead while another computes a single gradient."""
    peers, links = peers_of(64, lag=2, applies=1, count=2)
    while peers[0].step() != "waits":  # the first is as far ahead as it may be
        pass
    while peers[1].step() != "waits":  # then the second
        pass
    assert links[1].waiting(0) == most_ahead(2, 1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lag", [0, 3])
def test_room_for_two_never_deadlocks_and_loses_nothing(seed, lag):
    peers, links = peers_of(2, lag, 4)
    chance = random.Random(seed)
    for _ in range(3_000):
        order = chance.sample(range(3), 3)
        assert any(peers[k].step() in ("sent", "took") for k in order), "all wait for each other"
    weights = [len(peers[0].inbox.route.made(p)) / 8 for p in range(3)]
    for q, peer in enumerate(peers):
        taken = [link.sent - link.waiting(q) for link in links]
        assert min(taken) > 300
        assert peer.sum == pytest.approx(np.dot(weights, taken))


@pytest.mark.parametrize(
    ("policy", "algorithm", "expected"),
    [
        ("decentralised", tessera.A2C(), 4),
        ("decentralised:lag=0", tessera.A2C(), 2),
        ("decentralised", tessera.PPO(epochs=2, minibatches=2), 10),
        ("decentralised", tessera.PPO(epochs=10, minibatches=4), 64),
        ("decentralised:lag=none", tessera.A2C(), 64),
    ],
)
def test_a_plan_has_room_for_what_the_bound_lets_be_under_way(policy, algorithm, expected):
    _, _, plan = planned(policy, algorithm)
    assert in_flight(plan.channel("gradients").discipline) == expected


def test_shared_memory_holds_few_copies_of_gradients_and_is_named_where_it_does_not_fit(monkeypatch):
    algorithm = tessera.A2C(widths=(700, 700))
    bound, env, plan = planned("decentralised", algorithm)
    shapes = slot_shapes(make_training(plan, bound, env), plan)
    params = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes["state"].params))
    layout = lay_out(plan, make_link_specs(plan, make_routes(plan, bound), shapes, None), None)
    assert layout.size < 2 * 5.5 * params
    monkeypatch.setattr(local, "available_memory", lambda: layout.size)
    with pytest.raises(TesseraError, match=rf"{layout.size / 2**20:,.0f} MB of shared memory .* available: "):
        local.LocalEngine(plan, bound, env, seed=0, horizon=1)
