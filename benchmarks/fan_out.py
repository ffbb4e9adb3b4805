"""What leaves a learner whose actors are on other Ray nodes: calls and bytes of an update, and how fast it is.

    python benchmarks/fan_out.py                              # all sizes of params, 3 actors on each of two nodes
    python benchmarks/fan_out.py --actors 8 --sizes 1000      # 8 on each, params of 1 MB
    python benchmarks/fan_out.py --calls                      # what calls alone cost a sender, in three ways

Three Ray nodes of this machine: the learner is on the first one, the actors are on the others. Each run is made twice,
in turn: with params that travel to each node once and are passed on there through shared memory, and with a call for
each actor. Calls are counted where they are made, in the process of each replica. Core time of the learner's process is
from the kernel, per update; it includes what the learner computes, which is the same in both runs.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from contextlib import contextmanager
from typing import Any
from unittest import mock

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from tessera.engines.ray_backend.loopback import LOOPBACK_ONLY

os.environ["TESSERA_CLUSTER"] = tempfile.mkdtemp(prefix="fan-out-")
# Ray reads these when it is imported; the cluster comes later
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN_PATH"] = f"{os.environ['TESSERA_CLUSTER']}/token"
os.environ.update(LOOPBACK_ONLY)

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tessera import A2C
from tessera.channels.rpc import fan_out
from tessera.engines.ray_backend import actor as actor_module
from tessera.engines.ray_backend import cluster, launcher
from tessera.engines.ray_backend.ray_driver_link import RayDriverLink
from tessera.planning.prepare import prepare_plan

NODES = 3
MODES = {"sync": "", "newest": ",mode=async"}
WIDTHS = {50: 72, 1000: 496, 7000: 1320}
"""kB of params -> width of two hidden layers of CartPole's policy and value networks, about."""
UPDATES = 40


class CountingActor(actor_module.ReplicaActor):
    """A replica that counts the packets it sends by calls, and the replies it gives."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._counts = dict.fromkeys(("calls", "replies", "bytes"), 0)
        lock, counts, send, reply = (
            threading.Lock(),
            self._counts,
            RayDriverLink.send_packet,
            RayDriverLink.reply_to_packet,
        )

        def counting(link: RayDriverLink, place: int, data: bytes, attachments: list[Any]) -> None:
            with lock:
                counts["calls"] += 1
                counts["bytes"] += len(data)
            send(link, place, data, attachments)

        def replying(link: RayDriverLink, *packet: Any) -> bytes:
            data = reply(link, *packet)
            with lock:
                counts["replies"] += bool(data)
                counts["bytes"] += len(data)
            return data

        RayDriverLink.send_packet, RayDriverLink.reply_to_packet = counting, replying  # type: ignore[method-assign]

    @ray.method(concurrency_group="status")
    def traffic(self) -> dict[str, float]:
        """Counts so far, and seconds of cores."""
        return {**self._counts, "cores": time.process_time()}


def learner_apart(bundles: list[dict[str, float]], **options: Any) -> Any:
    """A placement group with the learner, which is the last replica, on the first node; actors fill the others."""
    from ray.util.placement_group import placement_group

    return placement_group([*bundles[:-1], {**bundles[-1], "node:__internal_head__": 0.001}], **options)


@contextmanager
def three_nodes(actors: int) -> Any:
    """Nodes on this machine with room for the learner on the first, and so many actors on each of the others."""
    up = cluster.up(1, cpus=1, memory=512 << 20)
    try:
        for _ in range(NODES - 1):
            cluster.grow(up, actors, 512 << 20)
        address = cluster.prepare(None)
        from tessera.engines.ray import connect

        connect(address, 1)
        yield
    finally:
        ray.shutdown()
        cluster.down()


def measure(kilobytes: int, mode: str, actors: int, each: bool) -> dict[str, float]:
    """Calls, replies, bytes and core seconds of the learner and of all actors, and seconds, of one update."""
    from tessera.engines.ray import RayEngine

    width = WIDTHS[kilobytes]
    replicas = actors * (NODES - 1)
    algorithm = A2C(unroll=4, widths=(width, width))
    policy = f"single_learner_coarse:actors={replicas}{MODES[mode]}"
    bound, env, plan = prepare_plan(
        algorithm, "gymnax:CartPole-v1", policy, envs=replicas, groups=replicas, engine="ray"
    )
    with mock.patch.object(fan_out, "FEWEST_READERS", 10**6 if each else fan_out.FEWEST_READERS):
        engine = RayEngine(plan, bound, env, seed=1, horizon=10**6)
    try:
        engine.start()
        engine.advance(10)
        handles = [engine.launcher._actors[place] for place in range(replicas + 1)]
        before, begun = ray.get([handle.traffic.remote() for handle in handles]), time.perf_counter()
        engine.advance(UPDATES)
        seconds = (time.perf_counter() - begun) / UPDATES
        after = ray.get([handle.traffic.remote() for handle in handles])
    finally:
        engine.close()
    gained = [{name: (b[name] - a[name]) / UPDATES for name in a} for a, b in zip(before, after, strict=True)]
    found = {f"learner {name}": value for name, value in gained[-1].items()}
    return {**found, "calls of actors": sum(own["calls"] for own in gained[:-1]), "seconds": seconds}


@ray.remote(num_cpus=0.01)
class Reader:
    """Takes bytes."""

    def take(self, content: Any) -> int:
        """Take them."""
        return len(content)


@ray.remote(num_cpus=0.01, resources={"node:__internal_head__": 0.001})
class Writer:
    """Sends bytes to readers, and measures that."""

    def publish(self, readers: list[Any], nbytes: int, stored: bool, times: int = 20) -> tuple[float, float]:
        """Core seconds of this process for a message, and seconds until all have it."""
        content = np.zeros(nbytes, np.uint8)
        for count in (3, times):  # the first few warm up
            begun, cores = time.perf_counter(), time.process_time()
            for _ in range(count):
                sent = ray.put(content) if stored else content.tobytes()
                ray.get([reader.take.remote(sent) for reader in readers])
        return (time.process_time() - cores) / times, (time.perf_counter() - begun) / times


def measure_calls(sizes: list[int]) -> None:
    """Print what it costs a process to send bytes to 1, 3 and 8 readers on each of two nodes."""
    others = [node["NodeID"] for node in ray.nodes() if "node:__internal_head__" not in node["Resources"]]
    for per_node in (1, 3, 8):
        pinned = [NodeAffinitySchedulingStrategy(node, soft=False) for node in others for _ in range(per_node)]
        readers = [Reader.options(scheduling_strategy=strategy).remote() for strategy in pinned]
        writer = Writer.remote()
        for kilobytes in sizes:
            ways = {
                "bytes to each reader": (readers, False),
                "a reference to each reader": (readers, True),
                "bytes to one on each node": (readers[::per_node], False),
                "a reference to one on each node": (readers[::per_node], True),
            }
            for way, (chosen, stored) in ways.items():
                core, wall = ray.get(writer.publish.remote(chosen, 1000 * kilobytes, stored))
                print(
                    f"{per_node} readers on each of {len(others)} nodes, {kilobytes:5d} kB, {way:32s} "
                    f"{1000 * core:6.2f} ms of cores at the sender, {1000 * wall:6.2f} ms until all have it",
                    flush=True,
                )
        for actor in [*readers, writer]:
            ray.kill(actor)


def describe(found: dict[str, float]) -> str:
    """What was found, in words."""
    return (
        f"learner: {found['learner calls']:5.2f} calls, {found['learner replies']:5.2f} replies, "
        f"{found['learner bytes'] / 1000:8.1f} kB in them, {1000 * found['learner cores']:6.1f} ms of cores; "
        f"actors: {found['calls of actors']:5.2f} calls; an update: {1000 * found['seconds']:6.1f} ms"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--actors", type=int, default=3, help="on each of two nodes")
    parser.add_argument("--sizes", type=int, nargs="*", default=list(WIDTHS), choices=list(WIDTHS), help="kB of params")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--calls", action="store_true", help="calls alone, without a run")
    options = parser.parse_args()
    if options.calls:
        with three_nodes(options.actors):
            measure_calls(options.sizes)
        return
    remote = ray.remote(concurrency_groups={"messages": 1, "driver": 1, "status": 1})(CountingActor)  # type: ignore[call-overload]
    with (
        three_nodes(options.actors),
        mock.patch.object(launcher, "RemoteActor", remote),
        mock.patch.object(launcher, "placement_group", learner_apart),
    ):
        for kilobytes in options.sizes:
            for mode in MODES:
                for _ in range(options.rounds):
                    for each in (False, True):
                        found = measure(kilobytes, mode, options.actors, each)
                        way = "a call for each actor" if each else "once to each node"
                        print(f"{kilobytes:5d} kB  {mode:6s}  {way:21s}  {describe(found)}", flush=True)


if __name__ == "__main__":
    main()
