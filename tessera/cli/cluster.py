"""`tessera cluster`: a Ray cluster of several nodes on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tessera.cli.flags import check_flags, read_flags
from tessera.cli.options import refuse_arguments
from tessera.errors import unknown_name


@dataclass
class ClusterOptions:
    """Start a Ray cluster of several nodes on this machine, for trials and tests."""

    nodes: int = 2
    """Nodes to start."""
    cpus: int | None = None
    """CPUs that each node announces; default: all of this machine."""
    object_store_mb: int = 256
    """Memory for objects on each node, in MB."""
    host: str = "127.0.0.1"
    """Address to listen on; unless it is loopback, other machines that have the token can connect."""


def cluster_command(arguments: list[str]) -> None:
    """Run `tessera cluster up` or `tessera cluster down`."""
    from tessera.engines.ray_backend import cluster

    verb, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if verb in ("-h", "--help"):
        print("usage: tessera cluster up [--nodes N] [--cpus N] [--object-store-mb N] [--host ADDRESS] | down")
        return
    if verb not in ("up", "down"):
        raise unknown_name("tessera cluster", verb, ("up", "down"))
    if verb == "down":
        refuse_arguments("cluster down", rest)
        count = cluster.down()
        print(f"{count} node{'' if count == 1 else 's'} ended")
        return
    check_flags(rest, ClusterOptions)
    options = read_flags(ClusterOptions, rest, "tessera cluster up")
    cpus, memory = options.cpus or os.cpu_count() or 1, options.object_store_mb << 20
    head = cluster.up(options.nodes, cpus, memory, options.host)
    print(f"{len(head['nodes'])} nodes are up; the head listens on {head['address']}, token in {head['token']}")
    print("tessera train SYSTEM ENV --engine ray    runs there; tessera cluster down ends it")
