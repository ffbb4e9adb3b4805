"""`tessera doctor`: what this machine offers: devices, cores, extras, caches."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from pathlib import Path

from tessera import __version__
from tessera.cli.options import nothing_more
from tessera.support.cache import cache_folder
from tessera.support.system import cores

EXTRAS: dict[str, tuple[str, str]] = {
    "brax": ("brax", "brax: environments"),
    "envpool": ("envpool", "envpool: environments"),
    "ale": ("ale_py", "ale: environments"),
    "mujoco": ("mujoco", "Gymnasium's MuJoCo tasks, such as HalfCheetah-v5"),
}
"""Extra -> (module that it brings, what it is for)."""

CORE = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "gymnasium", "gymnax")


def doctor_command(arguments: list[str]) -> None:
    """Print it."""
    nothing_more("doctor", arguments)
    print(report())


def report() -> str:
    """Say it, a line each."""
    import jax

    lines = [f"tessera {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"]
    lines.append("packages  " + ", ".join(f"{name} {_version(name)}" for name in CORE))
    lines.append(f"cores     {cores()}")
    devices = jax.local_devices()
    lines.append(f"devices   {len(devices)} {devices[0].platform}: " + ", ".join(d.device_kind for d in devices))
    for extra, (module, purpose) in EXTRAS.items():
        there = importlib.util.find_spec(module) is not None
        state = "installed" if there else f"missing: pip install 'tessera-rl[{extra}]'"
        lines.append(f"extra     {extra:8s} {state} ({purpose})")
    folder = cache_folder()
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) if folder.exists() else 0
    lines.append(f"cache     {folder} ({size / 1e6:.1f} MB of compiled programs; TESSERA_CACHE moves it, empty: off)")
    lines.append(f"runs      {Path('runs').resolve()}")
    return "\n".join(lines)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"
