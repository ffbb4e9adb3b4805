"""The Ray engine: every replica is a Ray actor, and channels are calls between actors and objects in Ray's store.

Ray places and starts processes, carries objects between nodes and notices what dies. What a replica does, how the
driver grants updates and what happens after a death are the same as with processes of one machine.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
import uuid
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tessera.channels.control import BY_DRIVER, CONTROL_WORDS, IDLE, PRESENCE, Control
from tessera.channels.link import LinkSpec
from tessera.channels.packing import Arrays
from tessera.channels.rpc.link import LinkState
from tessera.channels.rpc.wire import Name
from tessera.engines.driver.pool import wanted_environment
from tessera.engines.driver.process_engine import ProcessEngine
from tessera.engines.driver.supervisor import Interrupted
from tessera.engines.map_reduce.ray_tasks import map_on_ray
from tessera.engines.ray_backend.actor import Presence, ReplicaActor
from tessera.engines.ray_backend.capacity import (
    NoCapacity,
    Resources,
    asked_of,
    check_capacity,
    fitted,
    nodes_in_words,
    reduced,
    shared_out,
    told,
)
from tessera.engines.ray_backend.node_memory import NodeMemory
from tessera.engines.replica.job import Job
from tessera.errors import RunFailed, TesseraError
from tessera.graph.plan import Plan
from tessera.graph.smaller_plans import losses
from tessera.support.system import cores

PLACE_SECONDS = 10.0
"""How long Ray may take to find room for a plan, before it is looked whether there is any."""
STRATEGY = "SPREAD"
"""How Ray places replicas: over all nodes."""
KNOCK_SECONDS = 5.0
"""How long the head of a cluster may take to answer."""
START_SECONDS = 60.0
"""How long the process of an actor may take to start."""
CAPACITY_SECONDS = 20.0
"""How long Ray seeks a place for one replica before others are told that there is none."""
MEET_SECONDS = 20.0
"""How long peers may take to say how far one that died had come."""
RemoteActor = ray.remote(concurrency_groups={"post": 1, "driver": 1, "news": 1})(ReplicaActor)  # type: ignore[call-overload]
"""The actor, with a thread for each of these beside the one that works."""


def whole_resources() -> list[Resources]:
    """What each living node has."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def free_resources() -> list[Resources]:
    """What each living node has left."""
    there = ray._private.state.available_resources_per_node()
    living = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    return [there[node] for node in living if node in there]


def connect(address: str | None, replicas: int) -> None:
    """Connect to a cluster, or start one on this machine that ends with this process."""
    if ray.is_initialized():
        return
    # what dies is told by this engine, in one spec; the pages that Ray prints of it are in its own files
    ray._private.worker.print_to_stdstream = lambda *_, **__: None
    common: dict[str, Any] = {"namespace": "tessera", "log_to_driver": False, "logging_level": "ERROR"}
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")  # Ray forks only to start other programs
    if address is None:
        ray.init(num_cpus=max(replicas, cores()), include_dashboard=False, **common)
        return
    _knock(address)
    try:
        ray.init(address=address, **common)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise TesseraError(
            f"no Ray cluster answers at {address} ({str(error).splitlines()[0]}): is it running, and is its token "
            "the one that RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH gives? tessera cluster up starts one here"
        ) from None


def _knock(address: str) -> None:
    """Refuse an address at which nobody listens; Ray would try for minutes."""
    host, colon, port = address.rpartition(":")
    if address.startswith("ray://") or (colon and not port.isdigit()):
        raise TesseraError(
            f"--address {address}: give HOST:PORT of the head of a cluster, as ray start --head prints it"
        )
    if colon:
        try:
            socket.create_connection((host, int(port)), timeout=KNOCK_SECONDS).close()
        except OSError as error:
            raise TesseraError(
                f"no Ray cluster answers at {address} ({error.strerror or error}): is it running? tessera cluster up "
                "starts one here"
            ) from None


def wait_for_capacity(plan: Plan, seconds: float) -> None:
    """Wait a little for what others, such as a run that has just ended, are giving back; refuse what stays without."""
    end = time.monotonic() + seconds
    while True:
        try:
            return check_capacity(plan, free_resources())
        except TesseraError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


class RayEngine(ProcessEngine):
    """Runs a plan on a Ray cluster that this process is connected to."""

    name = "ray"
    map_items = staticmethod(map_on_ray)

    def check(self) -> None:
        """Refuse what the cluster cannot run."""
        nodes = whole_resources()
        self.plan = shared_out(self.plan, nodes)
        check_capacity(self.plan, nodes)
        wait_for_capacity(self.plan, PLACE_SECONDS / 2)

    def fitting(self) -> Plan:
        """The plan, with fewer replicas if a node was lost and the others have no room for all."""
        try:
            plan = fitted(self.plan, whole_resources())
            try:
                wait_for_capacity(plan, PLACE_SECONDS)  # for what the replicas that have just ended give back
            except NoCapacity:
                plan = fitted(plan, free_resources())
        except NoCapacity as error:
            raise RunFailed(f"{error}, and then --resume") from None
        if plan is not self.plan:
            self._options["note"](
                f"the cluster has no longer room for all replicas (available: {nodes_in_words(free_resources())}): "
                f"the run goes on with {losses(self.plan, plan)}"
            )
        return plan

    def set_up(self, jobs: list[Job]) -> None:
        """Find a place for every replica."""
        words = [[0] * CONTROL_WORDS for _ in jobs]
        self.controls = [Control(own) for own in words]
        self.jobs = list(jobs)
        self.launcher = RayLauncher(self.plan, self.jobs, self.link_specs, words, self._options["note"], self.logs)

    def tear_down(self) -> None:
        """Give the places back."""
        assert isinstance(self.launcher, RayLauncher)
        self.launcher.close()


class RayLauncher:
    """Actors in a placement group that is made from the plan: one bundle for each replica."""

    def __init__(
        self,
        plan: Plan,
        jobs: list[Job],
        link_specs: dict[Name, LinkSpec],
        words: list[list[int]],
        note: Callable[[str], None],
        logs: str,
    ) -> None:
        """`note` tells the user something; `logs` is a folder for what replicas print, empty if nobody wants it."""
        self._plan, self._link_specs, self._words, self._note, self._logs = plan, link_specs, words, note, logs
        self._run = uuid.uuid4().hex[:6]
        bundles = [asked_of(plan, job.fragment, job.number) for job in jobs]
        self._group = placement_group(bundles, strategy=STRATEGY, name=f"tessera {plan.policy} {self._run}")
        self._await_places()
        self._lives = [1] * len(jobs)
        self._handles = {job.place: self._make(job) for job in jobs}
        self._neighbours = NodeMemory(plan, link_specs, self._nodes())
        self._neighbours.open(self._handles, START_SECONDS)
        self._granted: list[dict[int, int]] = [{} for _ in jobs]
        self._presences = self._look_who_is_there()
        self._first = set(self._handles)
        self._meeting: dict[int, str] = {}
        """Where peers meet, by the place of the first of them."""

    def _await_places(self) -> None:
        """Wait until Ray has found a place for everyone; a node that is lost may count as living for a while."""
        end = time.monotonic() + START_SECONDS
        while not self._group.wait(PLACE_SECONDS):
            try:
                check_capacity(self._plan, free_resources())
                if time.monotonic() > end:
                    raise TesseraError(f"Ray found no room for the plan in {START_SECONDS:g} s: is the cluster busy?")
            except TesseraError:
                self.close()
                raise

    def _nodes(self) -> list[str]:
        """The node of every place; "" while Ray seeks another for it."""
        nodes = placement_group_table(self._group)["bundles_to_node_id"]
        return [nodes.get(place, "") for place in range(len(self._words))]

    def close(self) -> None:
        """Give the places back."""
        remove_placement_group(self._group)

    def start(self, job: Job) -> ActorHandle:
        """An actor with a job."""
        place = job.place
        before: dict[int, dict[Name, LinkState]] | None = None
        if place in self._first:
            self._first.discard(place)
        else:
            self._lives[place] += 1
            self._handles[place] = self._make(job)
            before = self._introduce(place) if job.again else None
        link_specs = {name: spec for name, spec in self._link_specs.items() if place in spec.places}
        peers = {p: self._handles[p] for spec in link_specs.values() for p in spec.places}
        handle, own = self._handles[place], self._words[place]
        group = self._group_of(job)
        if group is not None:
            handle.join.remote(*group)
        presences = dict(enumerate(self._presences))  # what all were told: of what changes from then on it is told too
        layout = self._neighbours.layout(place)
        work = handle.work.remote(job, link_specs, peers, self._lives[place], list(own), presences, layout, before)
        return ActorHandle(handle, work, own, job, self._logs)

    def _group_of(self, job: Job) -> tuple[str, int, int] | None:
        """How a replica finds the peers that it shares an all-reduce with; the first of them says where."""
        replicas = self._plan.fragments[job.fragment].replicas
        if replicas == 1 or not any(reduced(c) for c in self._plan.channels if c.source == job.fragment):
            return None
        first = job.place - job.number
        if first not in self._meeting:
            try:
                self._meeting[first] = ray.get(self._handles[first].address.remote(), timeout=START_SECONDS)
            except RayActorError as error:
                raise Interrupted(_how(error)) from None
        return self._meeting[first], replicas, job.number

    def wait(self, hands: list[ActorHandle], seconds: float) -> None:
        """Wait until one of them has said something or has died, or the seconds are over."""
        if hands:
            ray.wait([hand.news for hand in hands], num_returns=1, timeout=seconds, fetch_local=False)
        for hand in hands:
            if not hand.placed and not hand.told and not hand.pid and self._homeless(time.monotonic() - hand.requested):
                hand.told = True
                self._do_without(hand.job)
        now = self._look_who_is_there()
        changed = {k: now[k] for k in range(len(now)) if now[k] != self._presences[k]}
        if changed:
            self._presences = now
            for handle in self._handles.values():
                handle.grant.remote({}, changed)

    def _look_who_is_there(self) -> list[Presence]:
        return [(life, own[PRESENCE]) for life, own in zip(self._lives, self._words, strict=True)]

    def _homeless(self, seconds: float) -> bool:
        """Whether a replica that has waited so long for a process will get none: some processes start slowly."""
        if seconds < CAPACITY_SECONDS:
            return False
        return seconds > START_SECONDS or placement_group_table(self._group)["state"] != "CREATED"

    def _do_without(self, job: Job) -> None:
        """No node has room for a replica: others go on if they do not wait for it, and it comes when there is room."""
        asked = told(asked_of(self._plan, job.fragment, job.number))
        missing = (
            f"no node has room for replica {job.title} (asked: {asked}; available: {nodes_in_words(free_resources())})"
        )
        if not job.again:
            raise RunFailed(f"{missing}, and the others wait for it: add a node, or --resume with fewer replicas")
        if not self._plan.asynchronous:
            self._note(f"{missing}, and the others wait for it: the run goes back to its last checkpoint")
            raise Interrupted(missing)
        self._note(f"{missing}: the run goes on with fewer replicas until there is")
        Control(self._words[job.place]).state = IDLE  # if all others come to wait for it, that is noticed

    def ring(self, place: int) -> None:
        """Send a replica the words that are for it, if they are new."""
        words = {k: self._words[place][k] for k in BY_DRIVER}
        if words != self._granted[place]:
            self._granted[place] = words
            self._handles[place].grant.remote(words, {})

    def _make(self, job: Job) -> Any:
        placed = self._plan.fragments[job.fragment]
        asked = asked_of(self._plan, job.fragment, job.number)
        variables = wanted_environment(replace(placed, threads=max(1, int(asked["CPU"]))))
        variables |= {name: os.environ[name] for name in ("TESSERA_CACHE",) if name in os.environ}
        return RemoteActor.options(
            name=f"{job.title} {self._run}.{self._lives[job.place]}",
            num_cpus=asked["CPU"],
            num_gpus=asked.get("GPU", 0.0),
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, job.place),
            runtime_env={"env_vars": variables},
        ).remote(job.title, tuple(sys.path))

    def _introduce(self, place: int) -> dict[int, dict[Name, LinkState]]:
        """Make a newcomer known to those that it is linked with; they say how far its predecessor had come."""
        peers = {p for spec in self._link_specs.values() if place in spec.places for p in spec.places if p != place}
        handle, life = self._handles[place], self._lives[place]
        asked = {p: self._handles[p].meet.remote(place, handle, life) for p in peers}
        try:
            found = dict(zip(asked, ray.get(list(asked.values()), timeout=MEET_SECONDS), strict=True))
            admitted = self._neighbours.admit(place, self._nodes()[place], self._handles, MEET_SECONDS)
        except RayError:
            raise Interrupted("it died together with one that it was linked with") from None
        if not admitted:
            raise Interrupted("its node was lost, and what it shared with others of that node")
        return found


class ActorHandle:
    """One actor, as the driver sees it: a question for news is always open, so that a death is an answer too."""

    def __init__(self, handle: Any, work: Any, words: list[int], job: Job, logs: str) -> None:
        self._handle, self._work, self._words, self.job = handle, work, words, job
        self._log = Path(logs) / f"{job.title.replace('/', '-')}.log" if logs else None
        self.placed, self.told, self.requested = False, False, time.monotonic()
        """Whether Ray has found a place for it, whether it was told that there is none, and since when it is sought."""
        self._control = Control(words)
        self._pid: Any = handle.pid.remote()
        self.news = handle.news.remote()
        self._exit_reason: tuple[str, bool] | None = None

    @property
    def pid(self) -> int:
        """Its process, on its node; 0 before it has one."""
        if not isinstance(self._pid, int):
            ready, _ = ray.wait([self._pid], timeout=0)
            try:
                self._pid = ray.get(self._pid) if ready else self._pid
            except RayError:
                return 0
        return self._pid if isinstance(self._pid, int) else 0

    def alive(self) -> bool:
        """Whether it lives."""
        return self._exit_reason is None

    def send(self, command: dict[str, Any], arrays: Arrays | None = None) -> None:
        """Tell it something."""
        self._handle.command.remote(command, arrays or {})

    def received(self) -> Any:
        """What it has said since this was last asked; its words come with that."""
        if self._exit_reason is not None:
            return
        over = bool(ray.wait([self._work], timeout=0)[0])
        while over or ray.wait([self.news], timeout=0)[0]:
            try:
                if over:
                    ray.get(self._work)
                words, progress, message, said = ray.get(self.news)
            except RayTaskError as error:  # of what happens before a replica can speak for itself
                self._exit_reason = (str(error.cause or error).splitlines()[0], True)
                return
            except RayError as error:
                self._exit_reason = (_how(error), False)
                return
            self.placed = True
            for k, word in enumerate(words):
                if k not in BY_DRIVER:
                    self._words[k] = word
            self._control.set_ages(progress, message)
            for meta, arrays in said:
                if meta["kind"] == "log":
                    self._keep_log(meta["text"])
                else:
                    yield meta, arrays
            if over and not said:
                self._exit_reason = ("its work ended", True)
                return
            self.news = self._handle.news.remote()

    def _keep_log(self, text: str) -> None:
        """Keep what a replica has printed."""
        if self._log is not None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("a") as file:
                file.write(text)

    def exit_reason(self) -> tuple[str, bool]:
        """How it died, and whether by its own doing."""
        return self._exit_reason or ("killed", False)

    def terminate(self) -> None:
        """End it now."""
        ray.kill(self._handle, no_restart=True)
        self._exit_reason = self._exit_reason or ("killed", False)

    def kill(self) -> None:
        """End it, and be done with it."""
        self.terminate()

    def release(self) -> None:
        """Let it go."""
        self.terminate()


def _how(error: RayError) -> str:
    """Why an actor died, in a few words."""
    text = str(error)
    if re.search(r"node.{0,80}(died|dead|lost|terminated)", text, re.IGNORECASE | re.DOTALL):
        return "its node was lost"
    return "its process was killed or broke down"
