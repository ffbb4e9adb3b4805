"""What most commands take: SYSTEM ENV, the flags of both, and those of the algorithm."""

from __future__ import annotations

import dataclasses
import os
import sys
import textwrap
from dataclasses import dataclass
from typing import Any, Literal

import tyro

from tessera.cli.flags import check_flags, given_value, hyper_parameters, preset, read_flags
from tessera.errors import TesseraError


@dataclass
class WorldOptions:
    """What is trained on, and how it is spread."""

    env: tyro.conf.Positional[str]
    """Environment: gymnax:CartPole-v1, brax:ant, CartPole-v1 (Gymnasium), envpool:…, ale:pong, py:module.Class."""
    policy: str | None = None
    """Distribution policy: a name, maybe with options (central:workers=4,mode=async; see `tessera policies`), a file
    (.json, .toml, .py) or py:module.attribute; default: chosen, with a line that says why."""
    preset: str | None = None
    """Settings of a paper as defaults: atari for dqn."""
    actors: int | None = None
    """Actors, or workers or learners where the policy has no actors: short for that option of the policy."""
    envs: int | None = None
    """Environments; default: the algorithm's own, at most 16 for host environments."""
    groups: int | None = None
    """Groups that environments are dealt into; part of a run's identity, like the seed. Default: up to 8."""
    lag: int | None = None
    """Updates by which acting trails behind; default 0 for device environments, 1 for host environments."""
    precision: Literal["f32", "bf16"] = "f32"
    """Numbers that networks compute in; params stay f32."""
    engine: Literal["serial", "local", "ray"] | None = None
    """Engine: serial (one thread), local (processes) or ray (a cluster); default: local if anything is cut."""
    mesh: str | None = None
    """data=4,model=2: copies of the params that each learner has, and devices that share each copy's wide layers."""


def parse(command: str, arguments: list[str], options: type) -> tuple[WorldOptions, Any, Any]:
    """Read SYSTEM, then everything else by the types of its algorithm's fields."""
    from tessera import systems

    if not arguments or arguments[0] in ("-h", "--help"):
        names = textwrap.fill(", ".join(systems.SYSTEMS), 100)
        print(f"usage: tessera {command} SYSTEM ENV [flags]\n\nSYSTEM is one of\n{names},")
        print(f"or py:module.Class for an algorithm of yours; `tessera {command} ppo --help` documents every flag")
        raise SystemExit(0 if arguments else 2)
    sys.path.insert(0, os.getcwd())  # for py:module.Class in the folder one stands in
    cls, system = systems.find(arguments[0])
    settings = preset(cls, given_value(arguments[1:], "--preset"))
    usual_envs = settings.pop("envs", None)
    made = hyper_parameters(cls, {**settings, **(system.options if system else {})})

    def collect(world: Any, options: Any, algorithm: Any) -> tuple[WorldOptions, Any, Any]:
        return world, options, algorithm

    collect.__annotations__ = {
        "world": tyro.conf.OmitArgPrefixes[WorldOptions],
        "options": tyro.conf.OmitArgPrefixes[options],  # type: ignore[misc, valid-type]
        "algorithm": tyro.conf.OmitArgPrefixes[made],  # type: ignore[misc, valid-type]
    }
    check_flags(arguments[1:], WorldOptions, options, made)
    summary = f"{system.summary} ({system.paper})" if system else cls.summary
    world, chosen, flags = read_flags(collect, arguments[1:], f"tessera {command} {arguments[0]}", summary)
    world.envs = usual_envs if world.envs is None else world.envs
    if system and world.policy is None and command != "compare":
        world.policy = system.policy or None
    return world, chosen, cls(**{f.name: getattr(flags, f.name) for f in dataclasses.fields(flags)})


def placing(world: WorldOptions) -> dict[str, Any]:
    """What `train` and `prepare_plan` want to know of the world besides its name and the policy."""
    return {key: getattr(world, key) for key in ("envs", "groups", "lag", "precision", "engine", "mesh")}


def policy_of(world: WorldOptions) -> Any:
    """The policy that flags ask for; a text alone is left to be looked up."""
    if world.actors is None:
        return world.policy
    from tessera import policies

    if world.policy is None:
        raise TesseraError("--actors needs --policy: which policy should have them?")
    name, given = policies.split(world.policy)
    found = policies.find(name)
    known = policies.options(found) if callable(found) else {}
    option = next((key for key in ("actors", "workers", "learners") if key in known), None)
    if option is None:
        raise TesseraError(f"policy {name!r} has no actors: leave --actors out")
    if option in given:
        raise TesseraError(f"--actors {world.actors} and {option}={given[option]} in --policy: give one of them")
    return policies.parse(f"{name}:" + ",".join(f"{k}={v}" for k, v in {**given, option: world.actors}.items()))


def nothing_more(command: str, arguments: list[str]) -> None:
    """Refuse arguments of a command that takes none."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(f"usage: tessera {command}")
        raise SystemExit(0)
    if arguments:
        raise TesseraError(f"tessera {command} takes no arguments, got {arguments[0]!r}")
