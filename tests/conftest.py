"""Eight virtual CPU devices, one thread each, and compiled programs kept between runs; before jax is imported."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["JAX_PLATFORMS"] = "cpu"
_FLAGS = (
    "--xla_force_host_platform_device_count=8",
    "--xla_cpu_multi_thread_eigen=false",
    # tests compile much and run little: half the time is saved where code is not optimised
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_FLAGS]).strip()
# LAPACK is called for every network's first params; its threads would wait for each other on cores that tests share
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("TESSERA_CACHE", str(Path(__file__).resolve().parent.parent / ".jax_cache"))


def pytest_configure() -> None:
    """Keep every compiled program; an empty TESSERA_CACHE keeps none, as in the package."""
    import jax

    gc.freeze()
    gc.set_threshold(200_000, 50, 100)  # tracing makes many small objects: a tenth of its time is saved

    if os.environ["TESSERA_CACHE"]:
        jax.config.update("jax_compilation_cache_dir", str(Path(os.environ["TESSERA_CACHE"], "xla")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(scope="session", autouse=True)
def pool() -> Iterator[None]:
    """Processes of the local engine are kept for later tests."""
    from tessera.engines.driver.pool import keep_processes

    with keep_processes():
        yield


@pytest.fixture
def x64() -> Iterator[None]:
    """Numbers are 64 bits wide within the test, and 32 again after it."""
    import jax

    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def three_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A Ray cluster of three nodes with 8 CPUs each: one for all tests of a process, since Ray reads a token once."""
    from tessera.engines.ray_backend import cluster

    os.environ["TESSERA_CLUSTER"] = str(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster.up(3, cpus=8, memory=128 << 20)
    finally:
        cluster.down()
        del os.environ["TESSERA_CLUSTER"]


@pytest.fixture(scope="module")
def nodes(three_nodes: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same, with this process connected as a driver."""
    from tessera.engines.ray_backend import cluster

    address = cluster.prepare(None)  # before Ray is imported
    from tessera.engines.ray import connect

    connect(address, 1)
    yield three_nodes
    import ray

    ray.shutdown()


@pytest.fixture(autouse=True, scope="module")
def forgotten() -> Iterator[None]:
    """Compiled programs of a file are given up after it: together they would take gigabytes, and disk keeps them."""
    yield
    import jax

    jax.clear_caches()
