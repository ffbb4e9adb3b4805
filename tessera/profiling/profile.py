"""A profile: what an algorithm costs in an environment on one machine, and what it was taken with."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax

from tessera import __version__
from tessera.algorithms.contract import Algorithm
from tessera.engines.simulated.costs import Costs
from tessera.engines.simulated.costs_file import costs_from_json, costs_to_json
from tessera.engines.simulated.machine import Machine
from tessera.envs.base import Environment
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.program.numpy_lowering.lowering import mode
from tessera.support.cache import cache_folder
from tessera.support.fields import options_of
from tessera.support.files import read_json, write_json
from tessera.support.machine import available_memory, cores
from tessera.support.named_objects import name_of

FORMAT = 6
PACKAGES = ("jax", "jaxlib", "numpy", "gymnasium", "gymnax", "flax", "optax")
"""Packages whose versions decide what work costs."""


@dataclass(frozen=True)
class Profile:
    """What was measured, and of what."""

    costs: Costs
    machine: Machine
    about: Mapping[str, str]
    """The algorithm and its settings, the environment, environments and groups."""
    circumstances: Mapping[str, str]
    """Processor, devices, versions: where one of them changes, the profile is stale."""
    taken: float
    """When, in seconds since the epoch."""
    seconds: float
    """How long it took."""
    start_seconds: float = 0.0
    """From nothing to the first update of a run on processes."""
    compile_seconds: float = 0.0
    process_bytes: Mapping[str, int] = field(default_factory=dict)
    """Fragment, by its operators -> the most memory that one of its processes held."""
    speed: float = 1.0
    """Of a core meanwhile (`CoreSpeed`): on a machine that others share it comes and goes."""
    skipped: tuple[str, ...] = ()
    """Plans that there was no time to try: predictions of plans like them are rough."""
    measured: Mapping[str, Any] = field(default_factory=dict)
    """What was measured (`Measurements`, as plain data), if there are such plans: the next one goes on from there."""

    @property
    def gap(self) -> str:
        """What is missing in it, and what to do, in a sentence; empty if nothing is."""
        if not self.skipped:
            return ""
        return (
            f"the profile was cut short, so predictions are rough: {len(self.skipped)} plans were not tried, such as "
            f"{self.skipped[0]}; `tessera profile` goes on from here"
        )

    @property
    def age(self) -> str:
        """How old it is, in words."""
        hours = (time.time() - self.taken) / 3600
        return f"{hours / 24:.0f} days" if hours >= 48 else f"{hours:.0f} hours" if hours >= 2 else "fresh"


def about(algorithm: Algorithm, env: Environment, plan: Plan) -> dict[str, str]:
    """What a profile is of: all that decides how much work there is."""
    settings = {f.name: name_of(getattr(algorithm, f.name), f.name) for f in options_of(algorithm)}
    return {
        "algorithm": algorithm.name,
        "settings": json.dumps(settings, sort_keys=True, default=str),
        "environment": " ".join((env.name, *plan.wrappers)),
        "environments": str(plan.envs),
        "groups": str(plan.groups),
        "precision": env.spec.precision,
    }


def circumstances() -> dict[str, str]:
    """What this machine and these packages are."""
    machine = this_machine()
    kinds = sorted({d.device_kind for d in jax.local_devices()})
    versions = {name: _version(name) for name in PACKAGES}
    return {
        "processor": _processor(),
        "cores": str(machine.cores),
        "devices": f"{len(jax.local_devices())} {', '.join(kinds)}",
        "tessera": __version__,
        "python": platform.python_version(),
        "lowering": mode(),
        **versions,
    }


def this_machine() -> Machine:
    """The machine that this process is on."""
    devices = [d for d in jax.local_devices() if d.platform != "cpu"]
    limits = [int((d.memory_stats() or {}).get("bytes_limit", 0)) for d in devices]
    return Machine(cores(), len(devices), available_memory(), min(limits, default=0))


def profiles_folder() -> Path | None:
    """Where profiles are kept; None if the user wants nothing to be kept."""
    return None if os.environ.get("TESSERA_CACHE") == "" else cache_folder() / "profiles"


def path_of(known: Mapping[str, str]) -> Path | None:
    """The file of the profile of something; None if nothing is kept."""
    folder = profiles_folder()
    digest = hashlib.sha256(json.dumps(dict(known), sort_keys=True).encode()).hexdigest()[:16]
    return None if folder is None else folder / f"{known['algorithm'].rpartition(':')[2]}-{digest}.json"


def save_profile(profile: Profile) -> Path | None:
    """Write a profile into the user's cache folder: the file, or None if nothing is kept."""
    path = path_of(profile.about)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, to_json(profile))
    return path


def find_profile(algorithm: Algorithm, env: Environment, plan: Plan) -> Profile | None:
    """The saved profile of what a plan runs, if there is one of this machine and these versions."""
    path = path_of(about(algorithm, env, plan))
    if path is None or not path.is_file() or is_old(path):
        return None
    profile = read_profile(path)
    return None if changes(profile) else profile


def is_old(path: Path) -> bool:
    """Whether a file is a profile by an earlier version, which measured something else."""
    found = read_json(path)
    version = found.get("format") if isinstance(found, dict) else None
    return isinstance(version, int) and 0 < version < FORMAT


def changes(profile: Profile) -> list[str]:
    """What has changed since a profile was taken: "jax 0.10.1, now 0.11.0"; empty if it still holds."""
    now = circumstances()
    return [
        f"{name} {before or 'unknown'}, now {now[name]}"
        for name in now
        if (before := profile.circumstances.get(name, "")) != now[name]
    ]


def read_profile(path: Path) -> Profile:
    """Read a profile; a file that is none is refused."""
    found = read_json(path)
    try:
        return from_json(found)
    except (KeyError, TypeError, ValueError, AttributeError, TesseraError) as error:
        raise TesseraError(
            f"{path} is not a profile ({type(error).__name__}: {error}): delete it, and take one with `tessera profile`"
        ) from None


def to_json(profile: Profile) -> dict[str, Any]:
    """Plain data."""
    return {
        "format": FORMAT,
        "about": dict(profile.about),
        "circumstances": dict(profile.circumstances),
        "machine": asdict(profile.machine),
        "taken": profile.taken,
        "seconds": profile.seconds,
        "start_seconds": profile.start_seconds,
        "compile_seconds": profile.compile_seconds,
        "process_bytes": dict(profile.process_bytes),
        "speed": profile.speed,
        "skipped": list(profile.skipped),
        "measured": dict(profile.measured),
        "costs": costs_to_json(profile.costs),
    }


def from_json(found: dict[str, Any]) -> Profile:
    """From plain data."""
    if found["format"] != FORMAT:
        raise ValueError(f"format {found['format']}, known: {FORMAT}")
    plain = ("taken", "seconds", "start_seconds", "compile_seconds", "speed")
    return Profile(
        costs_from_json(found["costs"], "its costs"),
        Machine(**found["machine"]),
        found["about"],
        found["circumstances"],
        **{name: float(found[name]) for name in plain},
        process_bytes={name: int(n) for name, n in found["process_bytes"].items()},
        skipped=tuple(map(str, found["skipped"])),
        measured=dict(found["measured"]),
    )


@lru_cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"
