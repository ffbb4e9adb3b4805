"""How to install the packages of an extra, as pyproject.toml lists them."""

from __future__ import annotations

import importlib.metadata


def install_hint(extra: str) -> str:
    """The command that installs them."""
    try:
        listed = importlib.metadata.requires("tessera-rl") or []
    except importlib.metadata.PackageNotFoundError:
        listed = []
    packages = [text.partition(";")[0].strip() for text in listed if f'extra == "{extra}"' in text.replace("'", '"')]
    return f"pip install {' '.join(map(repr, packages))}" if packages else f"pip install -e '.[{extra}]' in a checkout"
