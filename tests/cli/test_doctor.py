"""The report on this machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tessera
from tessera.cli import doctor
from tessera.cli.main import main
from tessera.engines.ray_backend import cluster

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "current", lambda: None)


def lines_of(head: str) -> list[str]:
    return [line for line in doctor.report().splitlines() if line.startswith(f"{head:10s}")]


def test_the_doctor_names_devices_cores_extras_and_caches(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"tessera {tessera.__version__}, Python ")
    heads = [line.split()[0] for line in lines[1:]]
    assert {"packages", "cores", "memory", "devices", "gpu", "extra", "ray", "cache"} <= set(heads)
    assert any(line.startswith("devices   8 cpu") for line in lines)
    assert all(" installed (" in line or " missing: pip install " in line for line in lines if line.startswith("extra"))
    assert any(os.environ["TESSERA_CACHE"] in line for line in lines if line.startswith("cache"))


def test_every_extra_of_the_package_is_named_with_its_purpose() -> None:
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    del extras["all"]  # the sum of the others
    assert list(doctor.EXTRAS) == list(extras)
    shown = lines_of("extra")
    assert [line.split()[1] for line in shown] == list(extras)
    assert all(line.endswith(f" ({purpose})") for line, (_, purpose) in zip(shown, doctor.EXTRAS.values(), strict=True))


def test_an_extra_counts_as_installed_only_if_all_its_modules_are(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mpe2" else find(name))
    (line,) = (line for line in lines_of("extra") if "pettingzoo" in line)
    assert line == "extra     pettingzoo missing: pip install 'pettingzoo>=1.26' 'mpe2>=1.1' (pettingzoo: environments)"


def test_memory_is_what_can_be_taken_without_swapping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "available_memory", lambda: 3 * 2**29)
    assert lines_of("memory") == ["memory    1.5 GiB available"]


def test_a_gpu_is_named_with_its_platform_kind_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines_of("gpu") == ["gpu       none"]

    def device(stats: dict[str, int] | None) -> Any:
        return SimpleNamespace(platform="gpu", device_kind="NVIDIA H200", memory_stats=lambda: stats)

    monkeypatch.setattr("jax.local_devices", lambda: [device({"bytes_limit": 100 * 2**30}), device(None)])
    assert lines_of("gpu") == ["gpu       NVIDIA H200 (100.0 GiB for JAX), NVIDIA H200"]
    assert lines_of("devices") == ["devices   2 gpu: NVIDIA H200, NVIDIA H200"]


def test_ray_is_named_with_its_version_and_the_cluster_that_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"ray": "2.54.0"}

    def version(package: str) -> str:
        if package not in versions:
            raise importlib.metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert lines_of("ray") == ["ray       2.54.0, no cluster up: tessera cluster up starts one"]
    monkeypatch.setattr(cluster, "current", lambda: {"address": "127.0.0.1:6379"})
    assert lines_of("ray") == ["ray       2.54.0, cluster up at 127.0.0.1:6379"]
    versions.clear()
    assert lines_of("ray") == ["ray       not installed: pip install 'ray>=2.54'"]
