"""The Ray engine: every replica is a Ray actor, and channels are calls between actors and objects in Ray's store.

Ray places and starts processes, carries objects between nodes and notices deaths. What a replica does, how the driver
grants updates and what happens after a death are the same as with processes of one machine.
"""

from __future__ import annotations

import socket
import warnings
from typing import Any

import ray

from tessera.channels.control_words import CONTROL_WORDS, Control
from tessera.engines.base import NoCapacity
from tessera.engines.driver.process_engine import ProcessEngine
from tessera.engines.map_reduce.ray_tasks import map_on_ray
from tessera.engines.ray_backend.capacity import (
    check_capacity,
    describe_nodes,
    plan_that_fits,
    with_shared_gpus,
)
from tessera.engines.ray_backend.cluster import session_folder
from tessera.engines.ray_backend.exposure import check_exposure
from tessera.engines.ray_backend.launcher import RayLauncher
from tessera.engines.ray_backend.resources import free_resources, total_resources, wait_for_capacity
from tessera.engines.replica.job import Job
from tessera.errors import RunFailed, TesseraError
from tessera.graph.plan import Plan
from tessera.graph.smaller_plans import losses
from tessera.support.machine import cores

CONNECT_SECONDS = 5.0
"""How long the head of a cluster may take to answer."""
RELEASE_SECONDS = 10.0
"""How long replicas that have just ended may take to return their resources."""


def connect(address: str | None, replicas: int) -> None:
    """Connect to a cluster, or start one on this machine that ends with this process."""
    if ray.is_initialized():
        return
    # this engine reports a death in one line; the pages that Ray prints are in Ray's own files too
    ray._private.worker.print_to_stdstream = lambda *_, **__: None
    common: dict[str, Any] = {"namespace": "tessera", "log_to_driver": False, "logging_level": "ERROR"}
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")  # Ray forks only to start other programs
    if address is None:
        home = str(session_folder())
        # "local": where nothing is said, Ray would join what another run of this user has started
        ray.init("local", num_cpus=max(replicas, cores()), include_dashboard=False, _temp_dir=home, **common)
        return
    _check_reachable(address)
    try:
        ray.init(address=address, **common)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise TesseraError(
            f"no Ray cluster answers at {address} ({str(error).splitlines()[0]}): is it running, and is its token "
            "the one that RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH gives? tessera cluster up starts one here"
        ) from None


def _check_reachable(address: str) -> None:
    """Refuse an address at which nothing listens; Ray would try for minutes."""
    host, colon, port = address.rpartition(":")
    if address.startswith("ray://") or (colon and not port.isdigit()):
        raise TesseraError(
            f"--address {address}: give HOST:PORT of the head of a cluster, as ray start --head prints it"
        )
    if colon:
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            raise TesseraError(
                f"no Ray cluster answers at {address} ({error.strerror or error}): is it running? tessera cluster up "
                "starts one here"
            ) from None


class RayEngine(ProcessEngine):
    """Runs a plan on a Ray cluster that this process is connected to."""

    name = "ray"
    map_items = staticmethod(map_on_ray)

    def check(self) -> None:
        """Refuse a plan that the cluster cannot run."""
        check_exposure(self.plan, self.trust_network)
        nodes = total_resources()
        self.plan = with_shared_gpus(self.plan, nodes)
        check_capacity(self.plan, nodes)
        wait_for_capacity(self.plan, RELEASE_SECONDS / 2)

    def plan_that_fits(self) -> Plan:
        """The plan, with fewer replicas if a node was lost and the others have no room for all."""
        try:
            plan = plan_that_fits(self.plan, total_resources())
            try:
                wait_for_capacity(plan, RELEASE_SECONDS)
            except NoCapacity:
                plan = plan_that_fits(plan, free_resources())
        except NoCapacity as error:
            raise RunFailed(f"{error}, and then --resume") from None
        if plan is not self.plan:
            self._options["note"](
                f"the cluster has no longer room for all replicas (available: {describe_nodes(free_resources())}): "
                f"the run goes on with {losses(self.plan, plan)}"
            )
        return plan

    def set_up(self, jobs: list[Job]) -> None:
        """Place every replica."""
        words = [[0] * CONTROL_WORDS for _ in jobs]
        self.controls = [Control(own) for own in words]
        self.jobs = list(jobs)
        self.launcher = RayLauncher(self.plan, self.jobs, self.link_specs, words, self._options["note"], self.logs)

    def tear_down(self) -> None:
        """Give the resources back."""
        assert isinstance(self.launcher, RayLauncher)
        self.launcher.close()
