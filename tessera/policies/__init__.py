"""Named distribution policies: one short file of data each."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from tessera.errors import unknown_name
from tessera.graph.policy import Policy


def names() -> tuple[str, ...]:
    """Every named policy."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__)))


def get(name: str, **options: Any) -> Policy:
    """Return a policy by name; options (numbers of replicas and the like) go to the policy file's `policy`."""
    if name not in names():
        raise unknown_name("policy", name, names())
    return importlib.import_module(f"tessera.policies.{name}").policy(**options)
