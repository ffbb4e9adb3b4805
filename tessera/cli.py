"""The command line: train, compare, eval, plot, plan, pairs, systems, algorithms, policies, doctor."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import textwrap
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from tessera.errors import EnvironmentFailed, RunFailed, TesseraError, unknown_name
from tessera.flags import check_flags, field_docs, given_value, hyper_parameters, preset, read_flags

__all__ = ["field_docs", "main"]


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


@dataclass
class TrainOptions:
    """How long, and where to."""

    steps: int = 500_000
    """Environment steps, over all environments."""
    seed: int = 0
    """What all randomness derives from."""
    run_dir: Path | None = None
    """Folder for results; default: a new one under runs/."""
    target_return: float | None = None
    """Stop once 100 greedy episodes reach this mean return."""
    resume: bool = False
    """Go on from the newest checkpoint in --run-dir."""
    eval_episodes: int = 100
    """Greedy episodes at the end."""
    checkpoint_every: float = 10.0
    """Seconds between checkpoints, at the least."""
    keep: int = 3
    """Checkpoints to keep."""
    evaluate_every: int = 0
    """Updates between greedy evaluations beside training; 0: never."""
    trace: Path | None = None
    """File for a timeline of every replica (JSON, for Perfetto or chrome://tracing)."""
    timeout: float = 60.0
    """Seconds without progress after which a replica counts as dead."""
    restarts: int = 20
    """How often each replica may be started again."""
    checkpoint_replay: bool = True
    """Save the replay with every checkpoint, so that a resumed run goes on exactly; without, it is filled again."""
    address: str | None = None
    """Ray cluster for --engine ray; default: the one that `tessera cluster up` started, else one for this run."""
    quiet: bool = False
    """Show no progress."""


@dataclass
class CompareOptions(TrainOptions):
    """Which policies, how long, and where to."""

    policies: str = ""
    """Policies to run one after the other, between commas: fused,central:workers=2,mode=async,hogwild."""


@dataclass
class PlanOptions:
    """How to print."""

    format: str = "table"
    """table, mermaid or json."""


@dataclass
class PairsOptions:
    """The table of algorithms and policies: which pairs run, and why the others do not."""

    env: str = "gymnax:CartPole-v1"
    """Environment to plan for."""
    format: str = "table"
    """table, markdown or json."""


@dataclass
class PlotOptions:
    """Draw learning curves of runs."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories."""
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("curves.png")
    """Picture to write."""


@dataclass
class ClusterOptions:
    """Start a Ray cluster of several nodes on this machine, for trials and tests."""

    nodes: int = 2
    """How many."""
    cpus: int | None = None
    """CPUs that each node says it has; default: as many as there are."""
    object_store_mb: int = 256
    """Memory for objects on each node, in MB."""
    host: str = "127.0.0.1"
    """Address to listen on; other machines can reach one that is not loopback, with the token."""


def main(argv: list[str] | None = None) -> None:
    """Run a command; exit 2 with one sentence for a mistake of the user's, 1 for a run that failed."""
    started = _process_start()
    arguments = sys.argv[1:] if argv is None else argv
    try:
        _dispatch(arguments, started)
    except TesseraError as error:
        if isinstance(error, EnvironmentFailed) and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        print(f"tessera: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None


def _dispatch(arguments: list[str], started: float) -> None:
    commands: dict[str, Callable[[list[str]], None]] = {
        "train": lambda a: _train(a, started),
        "compare": _compare,
        "eval": _eval,
        "plot": _plot,
        "plan": _plan,
        "pairs": _pairs,
        "systems": _systems,
        "algorithms": _algorithms,
        "policies": _policies,
        "doctor": _doctor,
        "cluster": _cluster,
    }
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return
    if arguments[0] == "--version":
        from tessera import __version__

        print(__version__)
        return
    if arguments[0] not in commands:
        raise unknown_name("command", arguments[0], commands)
    commands[arguments[0]](arguments[1:])


USAGE = """usage: tessera COMMAND …

  train SYSTEM ENV [flags]      train a system or algorithm; `tessera train ppo --help` documents every flag
  compare SYSTEM ENV --policies a,b,c [flags]
                                train under several policies; one table
  eval RUN…                     play greedy episodes with runs' params: means with intervals
  plot RUN… -o out.png          draw learning curves
  plan SYSTEM ENV [flags]       show what would run where
  pairs                         which algorithm runs under which policy
  systems | algorithms | policies
                                what there is
  doctor                        what this machine offers
  cluster up | down             start or end a Ray cluster of several nodes on this machine, for --engine ray"""


def _train(arguments: list[str], started: float) -> None:
    world, options, algorithm = _parse("train", arguments, TrainOptions)
    from tessera.train import train

    folder = options.run_dir or (None if options.resume else _new_folder(arguments[0], world, options.seed))
    train(
        algorithm,
        world.env,
        _policy(world),
        **_placing(world),
        started=started,
        **{**dataclasses.asdict(options), "run_dir": folder},
    )


def _compare(arguments: list[str]) -> None:
    world, options, algorithm = _parse("compare", arguments, CompareOptions)
    for flag, given in (("--policy", world.policy), ("--actors", world.actors), ("--resume", options.resume)):
        if given:
            raise TesseraError(f"{flag} is not for compare: name policies and their options in --policies")
    from tessera.compare import compare, split_policies, table

    chosen = dataclasses.asdict(options)
    names = split_policies(chosen.pop("policies"))
    quiet = chosen.pop("quiet")

    def say(line: str) -> None:
        if not quiet:
            print(line, file=sys.stderr, flush=True)

    found = compare(algorithm, world.env, names, say=say, **_placing(world), **chosen)
    print(table(found))
    failed = [name for name, summary in found.items() if "failed" in summary]
    if failed:
        raise RunFailed(f"{', '.join(failed)} failed")


def _pairs(arguments: list[str]) -> None:
    check_flags(arguments, PairsOptions)
    options = read_flags(PairsOptions, arguments, "tessera pairs")
    from tessera.pairs import FORMATS, all_pairs, render

    if options.format not in FORMATS:  # before the work, not after it
        raise unknown_name("format", options.format, FORMATS)
    print(render(all_pairs(options.env), options.format))


def _plan(arguments: list[str]) -> None:
    world, options, algorithm = _parse("plan", arguments, PlanOptions)
    from tessera.graph.draw import render
    from tessera.train import prepare_plan

    _, _, plan = prepare_plan(algorithm, world.env, _policy(world), **_placing(world))
    print(render(plan, options.format))


def _eval(arguments: list[str]) -> None:
    from tessera.eval_command import evaluate

    evaluate(arguments)


def _plot(arguments: list[str]) -> None:
    check_flags(arguments, PlotOptions)
    options = read_flags(PlotOptions, arguments, "tessera plot")
    if not options.runs:
        raise TesseraError("nothing to plot: name one or more run directories")
    from tessera.plot import plot

    plot(list(options.runs), options.output)
    print(f"wrote {options.output}")


def _systems(arguments: list[str]) -> None:
    _nothing_more("systems", arguments)
    from tessera import systems

    for name, system in systems.SYSTEMS.items():
        settings = "".join(f", {key}={value}" for key, value in system.options.items())
        print(f"{name}\n    {system.summary} ({system.paper})")
        print(f"    {system.algorithm}{settings} × {system.policy or 'the policy that suits the environment'}")
        print(f"    {systems.command(name)}")


def _algorithms(arguments: list[str]) -> None:
    _nothing_more("algorithms", arguments)
    from tessera import algorithms

    for name in algorithms.ALGORITHMS:
        print(f"{name:6s} {algorithms.get(name).summary}")


def _policies(arguments: list[str]) -> None:
    _nothing_more("policies", arguments)
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


def _cluster(arguments: list[str]) -> None:
    from tessera import cluster

    verb, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if verb in ("-h", "--help"):
        print("usage: tessera cluster up [--nodes N] [--cpus N] [--object-store-mb N] [--host ADDRESS] | down")
        return
    if verb not in ("up", "down"):
        raise unknown_name("tessera cluster", verb, ("up", "down"))
    if verb == "down":
        _nothing_more("cluster down", rest)
        count = cluster.down()
        print(f"{count} node{'' if count == 1 else 's'} ended")
        return
    check_flags(rest, ClusterOptions)
    options = read_flags(ClusterOptions, rest, "tessera cluster up")
    found = cluster.up(options.nodes, options.cpus or os.cpu_count() or 1, options.object_store_mb << 20, options.host)
    print(f"{len(found['nodes'])} nodes are up; the head listens on {found['address']}, token in {found['token']}")
    print("tessera train SYSTEM ENV --engine ray    runs there; tessera cluster down ends it")


def _doctor(arguments: list[str]) -> None:
    _nothing_more("doctor", arguments)
    from tessera.doctor import report

    print(report())


def _nothing_more(command: str, arguments: list[str]) -> None:
    if arguments and arguments[0] in ("-h", "--help"):
        print(f"usage: tessera {command}")
        raise SystemExit(0)
    if arguments:
        raise TesseraError(f"tessera {command} takes no arguments, got {arguments[0]!r}")


def _parse(command: str, arguments: list[str], options: type) -> tuple[WorldOptions, Any, Any]:
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


def _placing(world: WorldOptions) -> dict[str, Any]:
    """What `train` and `prepare_plan` want to know of the world besides its name and the policy."""
    return {key: getattr(world, key) for key in ("envs", "groups", "lag", "precision", "engine", "mesh")}


def _policy(world: WorldOptions) -> Any:
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


def _new_folder(system: str, world: WorldOptions, seed: int) -> Path:
    what, name = (re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-") for text in (system, world.env))
    return Path("runs") / f"{what}-{name}-seed{seed}-{time.strftime('%Y%m%d-%H%M%S')}"


def _process_start() -> float:
    """When this process began, in seconds since the epoch."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        up = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - (up - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return time.time()


if __name__ == "__main__":
    main()
