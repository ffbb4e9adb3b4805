"""`tessera systems`, `tessera algorithms` and `tessera policies`: what there is."""

from __future__ import annotations

from typing import Any

from tessera.cli.options import nothing_more


def systems_command(arguments: list[str]) -> None:
    """List the systems of the literature."""
    nothing_more("systems", arguments)
    from tessera import systems

    for name, system in systems.SYSTEMS.items():
        settings = "".join(f", {key}={value}" for key, value in system.options.items())
        print(f"{name}\n    {system.summary} ({system.paper})")
        print(f"    {system.algorithm}{settings} × {system.policy or 'the policy that suits the environment'}")
        print(f"    {systems.command(name)}")


def algorithms_command(arguments: list[str]) -> None:
    """List the algorithms."""
    nothing_more("algorithms", arguments)
    from tessera import algorithms

    for name in algorithms.ALGORITHMS:
        print(f"{name:6s} {algorithms.get(name).summary}")


def policies_command(arguments: list[str]) -> None:
    """List the named policies."""
    nothing_more("policies", arguments)
    from tessera import policies

    for name in policies.names():
        policy, usual = policies.get(name), policies.options(policies.maker(name))
        shape = ", ".join(f"[{f.operators}] × {_count(f)}" for f in policy.fragments)
        options = ", ".join(f"{key}={str(value).lower()}" for key, value in usual.items())
        print(f"{name}\n    {policy.summary}\n    {shape}\n    options: {options}\n    mirrors: {policy.mirrors}")


def _count(fragment: Any) -> str:
    """How many of a fragment there are, as far as the policy says."""
    if fragment.devices != 1:
        return "devices"
    return str(fragment.replicas) if fragment.replicas else "agents"
