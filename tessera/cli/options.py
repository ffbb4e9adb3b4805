"""Arguments that several commands share: SYSTEM ENV, the flags of the plan, and those of the algorithm."""

from __future__ import annotations

import dataclasses
import os
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import tyro

from tessera.cli.flags import check_flags, hyper_parameters, read_flags, with_few_shown, with_value
from tessera.errors import TesseraError


@dataclass
class WorldOptions:
    """Which environment to train in, and how to distribute the run."""

    env: tyro.conf.Positional[str]
    """Environment: gymnax:CartPole-v1, brax:ant, CartPole-v1 (Gymnasium), envpool:…, ale:pong, py:module.Class; options
    and wrappers follow, as in 'CartPole-v1?stack=4&clip_reward=1&time_limit=200'."""
    policy: str | None = None
    """Distribution policy: a name, with options if needed (central:workers=4,mode=async; see `tessera policies`), a
    colouring (env+act@2/store+grad+apply), a file (.json, .toml, .py) or py:module.attribute; auto: the one that is
    predicted to be the fastest; default: chosen, with a line that says why."""
    preset: str | None = None
    """Settings that are known to work, as defaults: --preset or --preset auto finds those for ENV, --preset NAME
    others; the run says which, and where they come from."""
    actors: int | None = None
    """Actors, or workers or learners where the policy has no actors: sets that option of the policy."""
    envs: int | None = None
    """Environments; default: the algorithm's own, at most 16 for host environments."""
    groups: int | None = None
    """Groups of environments; part of a run's identity, like the seed. Default: up to 8."""
    lag: int | None = None
    """Updates by which acting lags behind; default 0 for device environments, 1 for host environments."""
    precision: Literal["f32", "bf16"] = "f32"
    """Precision that networks compute in; params stay f32."""
    engine: Literal["serial", "local", "ray"] | None = None
    """Engine: serial (one thread), local (processes) or ray (a cluster); default: local if anything is cut."""
    mesh: str | None = None
    """data=4,model=2: copies of the params in each learner, and devices over which each copy's wide layers are cut."""


COMMON = (
    "env", "policy", "preset", "envs", "steps", "seed", "seeds", "run_dir", "resume", "target_return", "learning_rate",
    "dash",
)  # fmt: skip
"""Options that `--help` shows; `--help-all` shows the others too."""


@dataclass(kw_only=True)
class TrustOptions:
    """Which names in a run folder may be imported."""

    trust: bool = False
    """Import an algorithm or environment of your own that a run names; without it a run folder is only read."""
    algorithm: str | None = None
    """The same for one name: the run's algorithm, as py:module.Class."""
    env: str | None = None
    """The same for one name: the run's environment, as py:module.Class or py:module.function."""

    network: tuple[str, ...] = ()
    """The same for torsos, cores and networks of yours, as py:module.Class."""

    def trusted(self) -> bool | list[str]:
        """What may be imported; if anything may, modules in the current folder are found too."""
        trust = self.trust or [name for name in (self.algorithm, self.env, *self.network) if name is not None]
        if trust:
            look_in_current_folder()
        return trust


def parse_arguments(command: str, arguments: list[str], options: type) -> tuple[WorldOptions, Any, Any]:
    """Read SYSTEM, then ENV and flags: (world, `options` of the command, the algorithm)."""
    from tessera import systems
    from tessera.presets import AUTO

    if not arguments or arguments[0] in ("-h", "--help"):
        names = textwrap.fill(", ".join(systems.SYSTEMS), 100)
        print(f"usage: tessera {command} SYSTEM ENV [flags]\n\nSYSTEM is one of\n{names},")
        print(f"or py:module.Class for an algorithm of yours; `tessera {command} ppo --help` shows its flags")
        raise SystemExit(0 if arguments else 2)
    look_in_current_folder()
    cls, system = systems.find(arguments[0])
    few = "--help-all" not in arguments and not {"-h", "--help"}.isdisjoint(arguments)
    flags = ["--help" if flag == "--help-all" else flag for flag in with_value(arguments[1:], "--preset", AUTO)]
    of_system = system.options if system else {}
    summary = f"{system.summary} ({system.paper})" if system else cls.summary

    def read(settings: Mapping[str, Any]) -> tuple[WorldOptions, Any, Any]:
        """Read the flags, with these defaults of the algorithm's."""

        def collect(world: Any, run: Any, algorithm: Any) -> tuple[WorldOptions, Any, Any]:
            return world, run, algorithm

        classes: tuple[type, ...] = (WorldOptions, options, hyper_parameters(cls, {**settings, **of_system}))
        check_flags(flags, *classes)
        if few:
            classes = tuple(with_few_shown(each, COMMON) for each in classes)
        names = ("world", "run", "algorithm")
        collect.__annotations__ = {
            name: tyro.conf.OmitArgPrefixes[each]  # type: ignore[misc, valid-type]
            for name, each in zip(names, classes, strict=True)
        }
        try:
            return read_flags(collect, flags, f"tessera {command} {arguments[0]}", summary)
        except SystemExit:
            if few:
                hidden = sum(f.name not in COMMON for each in classes for f in dataclasses.fields(each))
                print(f"{hidden} more flags: tessera {command} {arguments[0]} --help-all")
            raise

    world, chosen, values = read({})
    preset = preset_of(world, cls)
    if preset is not None:
        world, chosen, values = read(preset.settings)
        world.envs = preset.envs if world.envs is None else world.envs
        world.lag = preset.lag if world.lag is None else world.lag
    if system and world.policy is None and command != "compare":
        world.policy = system.policy or None
    return world, chosen, cls(**{f.name: getattr(values, f.name) for f in dataclasses.fields(values)})


def plan_arguments(world: WorldOptions) -> dict[str, Any]:
    """The options of `prepare_plan`, as flags set them."""
    from tessera.planning.prepare import PLAN_OPTIONS

    return {name: getattr(world, name) for name in PLAN_OPTIONS}


def preset_of(world: WorldOptions, algorithm: Any) -> Any:
    """The preset of an algorithm that the flags name."""
    from tessera.presets import find_preset

    return None if world.preset is None else find_preset(algorithm.name, world.env, world.preset)


def asks_async(name: str) -> bool:
    """Whether `tessera train NAME` names a system that does not wait for everything."""
    from tessera import policies, systems

    system = systems.find(name)[1]
    if system is None or not system.policy:
        return False
    return any(cut.mode != "sync" for cut in policies.parse(system.policy).cuts.values())


def policy_of(world: WorldOptions) -> Any:
    """The policy that the flags name, as text unless --actors changes it."""
    if world.actors is None:
        return world.policy
    from tessera import policies

    if world.policy in (None, "auto"):
        raise TesseraError("--actors needs --policy: which policy should have them?")
    name, given = policies.split(world.policy)
    maker = policies.find(name)
    known = policies.options(maker) if callable(maker) else {}
    option = next((key for key in ("actors", "workers", "learners") if key in known), None)
    if option is None:
        raise TesseraError(f"policy {name!r} has no actors: leave --actors out")
    if option in given:
        raise TesseraError(f"--actors {world.actors} and {option}={given[option]} in --policy: give one of them")
    return policies.parse(f"{name}:" + ",".join(f"{k}={v}" for k, v in {**given, option: world.actors}.items()))


def look_in_current_folder() -> None:
    """Find modules of the current folder, for py:module.Class; `python -m` does so by itself, `tessera` does not."""
    sys.path.insert(0, os.getcwd())


def refuse_arguments(command: str, arguments: list[str]) -> None:
    """Refuse arguments of a command that takes none."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(f"usage: tessera {command}")
        raise SystemExit(0)
    if arguments:
        raise TesseraError(f"tessera {command} takes no arguments, got {arguments[0]!r}")
