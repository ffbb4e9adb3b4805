"""The compilation cache: compiled programs are kept in the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where compiled programs are kept: TESSERA_CACHE, or `tessera` in the user's cache folder."""
    if "TESSERA_CACHE" in os.environ:
        return Path(os.environ["TESSERA_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tessera"


def caches_programs() -> bool:
    """Whether compiled programs are kept."""
    return os.environ.get("TESSERA_CACHE") != ""


def use_compilation_cache() -> None:
    """Turn on JAX's persistent cache, unless the user has set one up or TESSERA_CACHE is empty."""
    import jax

    if not caches_programs() or getattr(jax.config, "jax_compilation_cache_dir", None):
        return
    folder = cache_folder() / "xla"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # without a writable folder programs are compiled again
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
