"""Whether learners that all-reduce would listen where other machines can reach them."""

from __future__ import annotations

import ipaddress
import socket

import ray

from tessera.engines.ray_backend.capacity import is_all_reduce
from tessera.errors import TesseraError
from tessera.graph.plan import Plan


def check_exposure(plan: Plan, trust_network: bool) -> None:
    """Refuse CPU learners whose gloo would listen beyond loopback: it takes whoever connects, without a token.

    JAX has no public option for gloo's address, which is the one that the machine's own name stands for.
    """
    learners = [plan.fragments[c.source] for c in plan.channels if is_all_reduce(c)]
    if trust_network or not any(f.platform == "cpu" and f.replicas > 1 for f in learners):
        return
    addresses = (*_node_addresses(), _own_address())
    public = [address for address in addresses if not ipaddress.ip_address(address).is_loopback]
    if public:
        raise TesseraError(
            f"learners that all-reduce on CPUs listen at {public[0]}, and whoever reaches them there can take part, "
            "without a token: add --trust-network if that network is private, or choose a policy with a server "
            "(central)"
        )


def _node_addresses() -> list[str]:
    return [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]


def _own_address() -> str:
    """The address at which gloo listens on this machine."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:  # the name stands for nothing, and gloo falls back to loopback
        return "127.0.0.1"
