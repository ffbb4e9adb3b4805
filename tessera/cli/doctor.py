"""`tessera doctor`: what this machine offers: packages, cores, memory, devices, extras, Ray, caches."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tessera import __version__
from tessera.cli.options import refuse_arguments
from tessera.engines.ray_backend import cluster
from tessera.support.cache import cache_folder
from tessera.support.extras import install_hint
from tessera.support.machine import available_memory, cores

CORE = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "gymnasium", "gymnax")

EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {
    "brax": (("brax",), "brax: environments"),
    "envpool": (("envpool",), "envpool: environments"),
    "ale": (("ale_py",), "ale: environments"),
    "jaxmarl": (("jaxmarl",), "jaxmarl: environments"),
    "pettingzoo": (("pettingzoo", "mpe2"), "pettingzoo: environments"),
    "classic": (("pettingzoo", "pygame", "chess", "rlcard"), "PettingZoo's classic games"),
    "games": (("pgx", "mctx"), "pgx: games, and AlphaZero's search"),
    "onnx": (("jax2onnx", "onnxruntime"), "tessera export to .onnx"),
    "ray": (("ray",), "--engine ray and tessera cluster"),
    "mujoco": (("mujoco",), "Gymnasium's MuJoCo tasks, such as HalfCheetah-v5"),
    "dash": (("starlette", "uvicorn"), "tessera dash and train --dash"),
    "video": (("imageio_ffmpeg",), "mp4 files of tessera video"),
}
"""Extra of pyproject.toml -> (modules that it installs, its purpose)."""


def doctor_command(arguments: list[str]) -> None:
    """Run `tessera doctor`."""
    refuse_arguments("doctor", arguments)
    print(report())


def report() -> str:
    """One line for each fact."""
    import jax

    lines = [f"tessera {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"]
    lines.append("packages  " + ", ".join(f"{name} {_version(name) or 'missing'}" for name in CORE))
    lines.append(f"cores     {cores()}")
    lines.append(f"memory    {available_memory() / 2**30:.1f} GiB available")
    devices = jax.local_devices()
    lines.append(f"devices   {len(devices)} {devices[0].platform}: " + ", ".join(d.device_kind for d in devices))
    lines.append(f"gpu       {_gpus(devices)}")
    lines += _extras()
    lines.append(f"ray       {_ray()}")
    lines.append(f"calls     {_calls_of_ray()}")
    folder = cache_folder()
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) if folder.exists() else 0
    lines.append(f"cache     {folder} ({size / 1e6:.1f} MB of compiled programs; TESSERA_CACHE moves it, empty: off)")
    lines.append(f"profiles  {_profiles()}")
    lines.append(f"runs      {Path('runs').resolve()}")
    return "\n".join(lines)


def _gpus(devices: Sequence[Any]) -> str:
    """Kind and memory of each GPU that JAX can use; `devices` names the platform."""
    gpus = [d for d in devices if d.platform in ("gpu", "cuda", "rocm")]
    return ", ".join(d.device_kind + _memory(d) for d in gpus) or "none"


def _memory(device: Any) -> str:
    limit = (device.memory_stats() or {}).get("bytes_limit")
    return f" ({limit / 2**30:.1f} GiB for JAX)" if limit else ""


def _extras() -> Iterator[str]:
    for extra, (modules, purpose) in EXTRAS.items():
        installed = all(importlib.util.find_spec(module) is not None for module in modules)
        state = "installed" if installed else f"missing: {install_hint(extra)}"
        yield f"extra     {extra:10s} {state} ({purpose})"


def _ray() -> str:
    """Version, and whether `tessera cluster up` has started a cluster that still runs."""
    version = _version("ray")
    if version is None:
        return f"not installed: {install_hint('ray')}"
    up = cluster.current()
    return f"{version}, " + (f"cluster up at {up['address']}" if up else "no cluster up: tessera cluster up starts one")


def _calls_of_ray() -> str:
    """What calls of Ray cost on this machine, if that is known."""
    from tessera.errors import TesseraError
    from tessera.profiling.ray_calls import in_words, saved_calls

    try:
        calls = saved_calls()
    except TesseraError as error:
        return str(error)
    if calls is None:
        return "of Ray not measured: tessera profile ALGORITHM ENVIRONMENT --ray does it"
    return f"of Ray: {in_words(calls)}"


def _profiles() -> str:
    """Which profiles are known, and which of them no longer hold."""
    from tessera.errors import TesseraError
    from tessera.profiling.profile import changes, is_old, profiles_folder, read_profile

    folder = profiles_folder()
    if folder is None:
        return "not kept, since TESSERA_CACHE is empty"
    known: list[str] = []
    stale: list[str] = []
    broken: list[str] = []
    for path in sorted(folder.glob("*.json")):
        try:
            if is_old(path):
                stale.append(f"{path.stem} (by an earlier version)")
                continue
            profile = read_profile(path)
        except TesseraError:
            broken.append(path.name)
            continue
        about = f"{profile.about['algorithm']} in {profile.about['environment']}"
        changed = changes(profile)
        (stale if changed else known).append(f"{about} ({changed[0] if changed else profile.age})")
    parts = [f"{len(known)} that hold" + (f": {', '.join(known)}" if known else "")]
    parts += [f"stale: {', '.join(stale)}"] if stale else []
    parts += [f"not readable: {', '.join(broken)}"] if broken else []
    return "; ".join(parts) if known or stale or broken else "none: tessera profile takes one"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
