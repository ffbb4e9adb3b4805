"""Starts replicas as Ray actors, and watches them for the supervisor."""

from __future__ import annotations

import os
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tessera.channels.control_words import BY_DRIVER, IDLE, PRESENCE, Control
from tessera.channels.link import LinkSpec
from tessera.channels.link_specs import links_of_places
from tessera.channels.packing import Arrays
from tessera.channels.rpc.rpc_link import LinkState
from tessera.channels.rpc.wire import LinkName
from tessera.engines.base import Interrupted
from tessera.engines.driver.pool import process_environment
from tessera.engines.ray_backend.actor import ReplicaActor
from tessera.engines.ray_backend.capacity import (
    check_capacity,
    describe_nodes,
    describe_resources,
    is_all_reduce,
    resources_of,
)
from tessera.engines.ray_backend.node_memory import NodeMemory
from tessera.engines.ray_backend.ray_driver_link import Presence
from tessera.engines.ray_backend.resources import free_resources
from tessera.engines.replica.job import Job
from tessera.errors import RunFailed, TesseraError
from tessera.graph.plan import Plan

PLACEMENT_SECONDS = 10.0
"""How long Ray may take to place a plan before the free resources are checked."""
STRATEGY = "SPREAD"
"""How Ray places replicas: over all nodes."""
START_SECONDS = 60.0
"""How long the process of an actor may take to start."""
CAPACITY_SECONDS = 20.0
"""How long Ray may look for a node for one replica before that counts as missing."""
HANDOVER_SECONDS = 20.0
"""How long linked replicas may take to report how far a dead one had come."""
RemoteActor = ray.remote(concurrency_groups={"messages": 1, "driver": 1, "status": 1})(ReplicaActor)  # type: ignore[call-overload]
"""The actor, with a thread for each group besides the replica's own."""


class RayLauncher:
    """Actors in a placement group that is made from the plan: one bundle for each replica.

    The driver's thread makes it and starts the first actors; then the supervisor's thread calls `start`, `wait` and
    `ring`, and the driver's calls `ring` too.
    """

    def __init__(
        self,
        plan: Plan,
        jobs: list[Job],
        link_specs: dict[LinkName, LinkSpec],
        words: list[list[int]],
        note: Callable[[str], None],
        logs: str,
    ) -> None:
        """`note` prints a line for the user; `logs` is a folder for what replicas print, empty for none."""
        self._plan, self._words, self._note, self._logs = plan, words, note, logs
        self._links_of = links_of_places(link_specs)
        self._run = uuid.uuid4().hex[:6]
        bundles = [resources_of(plan, job.fragment, job.number) for job in jobs]
        self._group = placement_group(bundles, strategy=STRATEGY, name=f"tessera {plan.policy} {self._run}")
        self._wait_for_placement()
        self._lives = [1] * len(jobs)
        self._actors = {job.place: self._create_actor(job) for job in jobs}
        self._node_memory = NodeMemory(plan, link_specs, self._nodes())
        self._node_memory.create(self._actors, START_SECONDS)
        self._sent_words: list[dict[int, int]] = [{} for _ in jobs]
        self._presences = self._current_presences()
        self._unstarted = set(self._actors)
        self._coordinators: dict[int, str] = {}
        """Address for each group of peers, by the place of its first one."""

    def close(self) -> None:
        """Give the placement group back."""
        remove_placement_group(self._group)

    def start(self, job: Job) -> ActorHandle:
        """Start an actor with a job."""
        place = job.place
        states: dict[int, dict[LinkName, LinkState]] | None = None
        if place in self._unstarted:
            self._unstarted.discard(place)
        else:
            self._lives[place] += 1
            self._actors[place] = self._create_actor(job)
            states = self._register_successor(place) if job.is_successor else None
        link_specs = self._links_of.get(place, {})
        peers = {p: self._actors[p] for spec in link_specs.values() for p in spec.places}
        actor, words = self._actors[place], self._words[place]
        group = self._all_reduce_group(job)
        if group is not None:
            actor.join_group.remote(*group)
        presences = dict(enumerate(self._presences))  # what all others know: of each later change it is notified too
        layout = self._node_memory.layout(place)
        run = actor.run_replica.remote(
            job, link_specs, peers, self._lives[place], list(words), presences, layout, states
        )
        return ActorHandle(actor, run, words, job, self._logs)

    def wait(self, handles: list[ActorHandle], seconds: float) -> None:
        """Wait until a replica has a new status or has died, or the time is over; pass on changes of presence."""
        if handles:
            ray.wait([handle.status for handle in handles], num_returns=1, timeout=seconds, fetch_local=False)
        for handle in handles:
            if not handle.placed and not handle.missing and not handle.pid and self._has_no_node(handle):
                handle.missing = True
                self._continue_without(handle.job)
        current = self._current_presences()
        changed = {k: current[k] for k in range(len(current)) if current[k] != self._presences[k]}
        if changed:
            self._presences = current
            for actor in self._actors.values():
                actor.set_control.remote({}, changed)

    def wake(self, place: int) -> None:
        """Send a replica the words that the driver writes, if they have changed."""
        words = {k: self._words[place][k] for k in BY_DRIVER}
        if words != self._sent_words[place]:
            self._sent_words[place] = words
            self._actors[place].set_control.remote(words, {})

    def _wait_for_placement(self) -> None:
        """Wait until Ray has placed all replicas; a lost node may count as living for a while."""
        end = time.monotonic() + START_SECONDS
        while not self._group.wait(PLACEMENT_SECONDS):
            try:
                check_capacity(self._plan, free_resources())
                if time.monotonic() > end:
                    raise TesseraError(f"Ray found no room for the plan in {START_SECONDS:g} s: is the cluster busy?")
            except TesseraError:
                self.close()
                raise

    def _nodes(self) -> list[str]:
        """The node of every place; "" while Ray looks for another one."""
        nodes = placement_group_table(self._group)["bundles_to_node_id"]
        return [nodes.get(place, "") for place in range(len(self._words))]

    def _create_actor(self, job: Job) -> Any:
        placed = self._plan.fragments[job.fragment]
        needed = resources_of(self._plan, job.fragment, job.number)
        variables = process_environment(replace(placed, threads=max(1, int(needed["CPU"]))))
        variables |= {name: os.environ[name] for name in ("TESSERA_CACHE",) if name in os.environ}
        return RemoteActor.options(
            name=f"{job.title} {self._run}.{self._lives[job.place]}",
            num_cpus=needed["CPU"],
            num_gpus=needed.get("GPU", 0.0),
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, job.place),
            runtime_env={"env_vars": variables},
        ).remote(job.title, tuple(sys.path))

    def _register_successor(self, place: int) -> dict[int, dict[LinkName, LinkState]]:
        """Make a successor known to the replicas that it is linked with; what they know of its predecessor."""
        peers = {p for spec in self._links_of.get(place, {}).values() for p in spec.places if p != place}
        actor, life = self._actors[place], self._lives[place]
        pending = {p: self._actors[p].register_successor.remote(place, actor, life) for p in peers}
        try:
            states = dict(zip(pending, ray.get(list(pending.values()), timeout=HANDOVER_SECONDS), strict=True))
            node = self._nodes()[place]
            attached = self._node_memory.attach_successor(place, node, self._actors, HANDOVER_SECONDS)
        except RayError:
            raise Interrupted("it died together with one that it was linked with") from None
        if not attached:
            raise Interrupted("its node was lost, and what it shared with others of that node")
        return states

    def _all_reduce_group(self, job: Job) -> tuple[str, int, int] | None:
        """Coordinator, size and number for a replica that shares an all-reduce; the first peer has the coordinator."""
        replicas = self._plan.fragments[job.fragment].replicas
        if replicas == 1 or not any(is_all_reduce(c) for c in self._plan.channels if c.source == job.fragment):
            return None
        first = job.place - job.number
        if first not in self._coordinators:
            try:
                address = self._actors[first].free_address.remote()
                self._coordinators[first] = ray.get(address, timeout=START_SECONDS)
            except RayActorError as error:
                raise Interrupted(_describe_death(error)) from None
        return self._coordinators[first], replicas, job.number

    def _current_presences(self) -> list[Presence]:
        return [(life, words[PRESENCE]) for life, words in zip(self._lives, self._words, strict=True)]

    def _has_no_node(self, handle: ActorHandle) -> bool:
        """Whether a replica without a process will get none; some processes only start slowly."""
        seconds = time.monotonic() - handle.requested
        if seconds < CAPACITY_SECONDS:
            return False
        return seconds > START_SECONDS or placement_group_table(self._group)["state"] != "CREATED"

    def _continue_without(self, job: Job) -> None:
        """No node has room for a replica: go on if the others do not wait for it; it joins when there is room."""
        needed = describe_resources(resources_of(self._plan, job.fragment, job.number))
        available = describe_nodes(free_resources())
        missing = f"no node has room for replica {job.title} (asked: {needed}; available: {available})"
        if not job.is_successor:
            raise RunFailed(f"{missing}, and the others wait for it: add a node, or --resume with fewer replicas")
        if not self._plan.asynchronous:
            self._note(f"{missing}, and the others wait for it: the run goes back to its last checkpoint")
            raise Interrupted(missing)
        self._note(f"{missing}: the run goes on with fewer replicas until there is")
        Control(self._words[job.place]).state = IDLE  # the supervisor then notices if all others wait for it


class ActorHandle:
    """One actor, as the driver sees it. A request for its status is always open, so that a death is noticed at once.

    The supervisor's thread uses it. The driver's thread calls `send`, `alive` and `pid` too, and ends the actor once
    the supervisor's thread has stopped.
    """

    def __init__(self, actor: Any, run: Any, words: list[int], job: Job, logs: str) -> None:
        """`run` is Ray's reference to the call that runs the replica."""
        self._actor, self._run, self._words, self.job = actor, run, words, job
        self._log = Path(logs) / f"{job.title.replace('/', '-')}.log" if logs else None
        self.requested = time.monotonic()
        self.placed = False
        """Whether Ray has found a node for it."""
        self.missing = False
        """Whether it was reported that no node has room for it."""
        self._control = Control(words)
        self._asked: Any = actor.whereabouts.remote()
        self._whereabouts: tuple[int, str] | None = None
        """Its process and its node, once it has said so."""
        self.status = actor.status.remote()
        """Ray's reference to the next status."""
        self._exit_reason: tuple[str, bool] | None = None

    @property
    def pid(self) -> int:
        """The process id on its node; 0 before there is a process."""
        return self._find()[0]

    @property
    def node(self) -> str:
        """The node that it is on; empty before there is a process."""
        return self._find()[1]

    def _find(self) -> tuple[int, str]:
        if self._whereabouts is None and ray.wait([self._asked], timeout=0)[0]:
            with suppress(RayError):
                self._whereabouts = ray.get(self._asked)
        return self._whereabouts or (0, "")

    def alive(self) -> bool:
        """Whether the actor lives."""
        return self._exit_reason is None

    def send(self, command: dict[str, Any], arrays: Arrays | None = None) -> None:
        """Send a command."""
        self._actor.receive_command.remote(command, arrays or {})

    def received(self) -> Iterator[tuple[dict[str, Any], Arrays]]:
        """Messages since the last call; control words are updated with them."""
        if self._exit_reason is not None:
            return
        over = bool(ray.wait([self._run], timeout=0)[0])
        while over or ray.wait([self.status], timeout=0)[0]:
            try:
                if over:
                    ray.get(self._run)
                words, progress, message, messages = ray.get(self.status)
            except RayTaskError as error:  # raised before the replica could report it
                self._exit_reason = (str(error.cause or error).splitlines()[0], True)
                return
            except RayError as error:
                self._exit_reason = (_describe_death(error), False)
                return
            self.placed = True
            for k, word in enumerate(words):
                if k not in BY_DRIVER:
                    self._words[k] = word
            self._control.set_ages(progress, message)
            for meta, arrays in messages:
                if meta["kind"] == "log":
                    self._append_to_log(meta["text"])
                else:
                    yield meta, arrays
            if over and not messages:
                self._exit_reason = ("its work ended", True)
                return
            self.status = self._actor.status.remote()

    def _append_to_log(self, text: str) -> None:
        if self._log is not None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("a") as file:
                file.write(text)

    def exit_reason(self) -> tuple[str, bool]:
        """How the actor died, and whether it failed on its own."""
        return self._exit_reason or ("killed", False)

    def terminate(self) -> None:
        """End the actor now."""
        ray.kill(self._actor, no_restart=True)
        self._exit_reason = self._exit_reason or ("killed", False)

    def kill(self) -> None:
        """End the actor; nothing else is to be freed."""
        self.terminate()

    def release(self) -> None:
        """End the actor: unlike a process of a pool, it takes no second job."""
        self.terminate()


def _describe_death(error: RayError) -> str:
    """Why an actor died, in a few words."""
    text = str(error)
    if re.search(r"node.{0,80}(died|dead|lost|terminated)", text, re.IGNORECASE | re.DOTALL):
        return "its node was lost"
    return "its process was killed or broke down"
