"""`tessera systems`, `tessera algorithms` and `tessera policies`: lists of what can be named."""

from __future__ import annotations

from typing import Any

from tessera.cli.options import refuse_arguments


def systems_command(arguments: list[str]) -> None:
    """Run `tessera systems`."""
    refuse_arguments("systems", arguments)
    from tessera import systems

    for name, system in systems.SYSTEMS.items():
        settings = "".join(f", {key}={value}" for key, value in system.options.items())
        settings += "".join(f", {key}={value}" for key, value in population_settings(system))
        print(f"{name}\n    {system.summary} ({system.paper})")
        print(f"    {system.algorithm}{settings} × {system.policy or 'the policy that suits the environment'}")
        print(f"    {systems.command(name)}")


def population_settings(system: Any) -> list[tuple[str, str]]:
    """What a system that is a population is set to: (name of a flag, value)."""
    flags = {"size": "population", "tune": "pbt", "every": "pbt_every", "sigma": "es_sigma"}
    shown = {
        key: ",".join(f"{k}={v}" for k, v in x.items()) if key == "tune" else x for key, x in system.population.items()
    }
    return [(flags[key], str(value)) for key, value in shown.items()]


def algorithms_command(arguments: list[str]) -> None:
    """Run `tessera algorithms`."""
    refuse_arguments("algorithms", arguments)
    from tessera import algorithms

    for name in algorithms.ALGORITHMS:
        print(f"{name:6s} {algorithms.get(name).summary}")


def policies_command(arguments: list[str]) -> None:
    """Run `tessera policies`."""
    refuse_arguments("policies", arguments)
    from tessera import policies

    for name in policies.names():
        policy, defaults = policies.get(name), policies.options(policies.maker(name))
        shape = ", ".join(f"[{f.operators}] × {_count(f)}" for f in policy.fragments)
        options = ", ".join(f"{key}={str(value).lower()}" for key, value in defaults.items())
        print(f"{name}\n    {policy.summary}\n    {shape}\n    options: {options}\n    mirrors: {policy.mirrors}")


def _count(fragment: Any) -> str:
    """Replicas of a fragment, as far as the policy fixes them."""
    if fragment.devices != 1:
        return "devices"
    return str(fragment.replicas) if fragment.replicas else "agents"
