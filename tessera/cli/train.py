"""`tessera train`: train a system or an algorithm."""

from __future__ import annotations

import dataclasses
import re
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tessera.cli.options import WorldOptions, asks_async, parse_arguments, plan_arguments, policy_of, preset_of
from tessera.errors import TesseraError
from tessera.support.machine import process_start

if TYPE_CHECKING:
    from tessera.runs.population import Population
    from tessera.systems import System


@dataclass
class TrainOptions:
    """How long to train, and where to put the results."""

    steps: int | None = None
    """Environment steps, over all environments; default: those of the run that is resumed, else those of the
    preset, or 500000 (alphazero: 150000)."""
    seed: int = 0
    """Seed of all randomness."""
    seeds: int | None = None
    """Train so many seeds, from --seed on, as one program where environments are compiled, else on processes; each
    gets a folder in --run-dir."""
    allow: Literal["async"] | None = None
    """async: a policy that is chosen may be one in which nobody waits, if it is faster: another recipe."""
    run_dir: Path | None = None
    """Folder for the results; default: a new one under runs/."""
    target_return: float | None = None
    """Stop once 100 greedy episodes reach this mean return."""
    opponent: str | None = None
    """Who greedy episodes of a game for two are played against: random, greedy (it wins where it can in one move), mcts
    or mcts:256 (a search without a network, of so many simulations), solver:bitbully (perfect in connect_four), or the
    folder of a run; default: random."""
    resume: bool = False
    """Continue from the newest checkpoint in --run-dir."""
    eval_episodes: int = 100
    """Greedy episodes of each evaluation: at the end, and during training where one is asked for."""
    checkpoint_every: float = 10.0
    """Seconds between checkpoints, at the least."""
    keep: int = 3
    """Checkpoints to keep."""
    evaluate_every: int = 0
    """Updates between greedy evaluations, whose best params are kept; 0: never. Host environments are evaluated
    alongside training."""
    video_every: int = 0
    """Updates between videos of a greedy episode, which a process beside training writes into RUN/videos; 0: none."""
    patience: int | None = None
    """Stop after so many evaluations of --evaluate-every without improvement."""
    min_improvement: float = 0.0
    """What the mean return must gain to count as an improvement, for --patience."""
    init_from: str | None = None
    """Start from the params of another run: RUN for its newest checkpoint, RUN@best, or RUN@1200 by update."""
    trace: Path | None = None
    """File for a timeline of every replica (JSON, for Perfetto or chrome://tracing)."""
    timeout: float = 60.0
    """Seconds without progress after which a replica counts as dead."""
    start_timeout: float = 300.0
    """The same while a replica starts, makes its environments or compiles."""
    restarts: int = 20
    """How often each replica may be started again."""
    checkpoint_replay: bool = True
    """Save the replay in every checkpoint, so that a resumed run continues exactly; otherwise it is filled again."""
    address: str | None = None
    """Ray cluster for --engine ray; default: the one that `tessera cluster up` started, else one for this run."""
    trust_network: bool = False
    """Let CPU learners that all-reduce on a cluster listen, without a token, where other machines can reach them."""
    replan: bool = False
    """Move to a better plan, at a checkpoint, once the run has drifted from what was predicted of it."""
    quiet: bool = False
    """Show no progress."""


@dataclass
class TrainFlags(TrainOptions):
    """How long to train, where to put the results, and what to show beside it."""

    dash: bool = False
    """Show the run in a browser while it trains: a page on this machine, whose address is printed."""
    dash_port: int | None = None
    """Port of that page; default: the first free one from 8642 on."""
    population: int | None = None
    """Train so many members, with seeds from --seed on, and tune what --pbt names meanwhile: those with the lowest
    returns go on from copies of those with the highest."""
    pbt: tuple[str, ...] = ()
    """What a population tunes, and between which values: learning_rate=log:1e-5:1e-2 gae_lambda=0.8:1."""
    pbt_every: int | None = None
    """Updates from one exchange between members to the next; 0: never, a random search. Default: a twentieth of
    the run."""
    es_sigma: float | None = None
    """An evolution strategy in place of copies: at each exchange all members go on from a mean of the better half's
    params, with noise of this deviation. Default: none."""
    pbt_explore: Literal["perturb", "resample"] | None = None
    """How a member that copies another changes the values: perturb (0.8 or 1.2 times, one in four drawn anew), or
    resample (all drawn anew). Default: perturb."""


def train_command(arguments: list[str]) -> None:
    """Run `tessera train`."""
    started = process_start()
    world, options, algorithm = parse_arguments("train", arguments, TrainFlags)
    from tessera import systems
    from tessera.api import train

    population = population_of(options, systems.find(arguments[0])[1])
    members = None if population is None else population.size
    folder = options.run_dir or (
        None if options.resume else new_folder(arguments[0], world, options.seed, options.seeds or members)
    )
    if world.policy == "auto" and asks_async(arguments[0]):
        options.allow = "async"
    flags = {**dataclasses.asdict(options), "run_dir": folder, "population": population}
    for name in ("pbt", "pbt_every", "pbt_explore", "es_sigma"):
        del flags[name]
    dash, port = flags.pop("dash"), flags.pop("dash_port")
    with dashboard(folder, port) if dash or port is not None else nullcontext():
        train(
            algorithm,
            world.env,
            policy_of(world),
            **plan_arguments(world),
            preset=preset_of(world, algorithm),
            system=systems.name_in(arguments[0]),
            started=started,
            **flags,
        )


def population_of(options: TrainFlags, system: System | None) -> Population | None:
    """The population that the flags describe; what they leave open is as the system has it, if that is one."""
    base = {} if system is None else dict(system.population)
    flags = {
        "size": options.population,
        "tune": ranges_in(options.pbt) if options.pbt else None,
        "every": options.pbt_every,
        "explore": options.pbt_explore,
        "sigma": options.es_sigma,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    if not given and not base:
        return None
    if "size" not in {**base, **given}:
        flag = {"tune": "--pbt", "every": "--pbt-every", "explore": "--pbt-explore", "sigma": "--es-sigma"}
        raise TesseraError(f"{flag[next(iter(given))]} needs --population: how many members?")
    from tessera.runs.population import Population

    return Population(**{**base, **given})


def ranges_in(texts: tuple[str, ...]) -> dict[str, str]:
    """The ranges that --pbt names, by field: `learning-rate=log:1e-5:1e-2,gamma=0.9:1`, or several of them."""
    found = {}
    for text in [text for given in texts for text in given.split(",") if text]:
        name, equals, between = text.partition("=")
        if not equals:
            raise TesseraError(f"--pbt {text}: write field=low:high, or field=log:low:high")
        found[name.replace("-", "_")] = between
    return found


def dashboard(folder: Path | None, port: int | None) -> AbstractContextManager[int | None]:
    """A page that shows a run within a block."""
    from tessera.cli.more_actors import COMMAND
    from tessera.dash.beside import dashboard_beside

    note = partial(print, flush=True)
    return nullcontext() if folder is None else dashboard_beside(folder, port, note, COMMAND)


def new_folder(system: str, world: WorldOptions, seed: int, seeds: int | None = None) -> Path:
    """A folder under runs/ that nobody has."""
    system, env = (re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-") for text in (system, world.env))
    which = f"seed{seed}" if seeds is None else f"seeds{seed}-{seed + seeds - 1}"
    return Path("runs") / f"{system}-{env}-{which}-{time.strftime('%Y%m%d-%H%M%S')}"
