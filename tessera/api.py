"""The public functions: train, compare, evaluate_run, evaluate_runs, map_reduce."""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import jax
import numpy as np

from tessera import __version__, policies
from tessera.agent.acting import Actor
from tessera.algorithms.contract import Algorithm, State
from tessera.engines.factory import map_reduce
from tessera.engines.population import fits_one_program
from tessera.engines.ray_backend import cluster
from tessera.envs import make as make_env
from tessera.envs.base import Environment, is_device
from tessera.envs.checks import check_env
from tessera.errors import RunFailed, TesseraError, unknown_name
from tessera.evaluation.evaluator import Evaluation, Evaluator
from tessera.evaluation.many_runs import Pairing, RunEvaluation, play_batches, play_here
from tessera.evaluation.rebuild import rebuild
from tessera.evaluation.trust import Trust, is_nameless
from tessera.graph.plan import Plan
from tessera.graph.policy import Policy
from tessera.graph.policy_files import from_data
from tessera.planning.automatic import AUTO, prepare_automatically
from tessera.planning.memory import members_at_once
from tessera.planning.planner import Planner
from tessera.planning.prepare import PLAN_OPTIONS, planned_updates, prepare_plan
from tessera.planning.saved_planner import saved_planner
from tessera.presets import Preset, find_preset
from tessera.program.row_check import warn_of_shared_noise
from tessera.program.training_program import published
from tessera.runs import directory
from tessera.runs.callbacks import Callback, check_callbacks
from tessera.runs.checkpoint import flatten
from tessera.runs.display import make_display
from tessera.runs.init_from import read_start
from tessera.runs.matches import against, as_player, find_opponent
from tessera.runs.plan_history import newest_plan, read_plans
from tessera.runs.population import Population, Round
from tessera.runs.prediction_watch import check_planner, check_replan
from tessera.runs.requests import RoundOver
from tessera.runs.run_evaluations import EVALUATION_SEED
from tessera.runs.run_loop import Run
from tessera.runs.run_options import RunOptions
from tessera.runs.saved_run import Choice, SavedRun, load_run
from tessera.runs.seed_folders import seed_folder
from tessera.runs.seeds_run import SeedsRun
from tessera.support.accelerators import share_accelerators
from tessera.support.cache import use_compilation_cache
from tessera.support.named_objects import is_foreign
from tessera.support.seeds import check_seed

ASYNC = "async"

__all__ = ["Result", "SeedResults", "check_env", "compare", "evaluate_run", "evaluate_runs", "map_reduce", "train"]


@dataclass
class Result:
    """A finished run."""

    algorithm: Algorithm
    """The algorithm, bound to the environment."""
    env: Environment
    plan: Plan
    """The plan that ran; it has fewer replicas than requested if a cluster has lost capacity."""
    state: State
    """Params, optimiser state and whatever else the algorithm keeps, as NumPy arrays."""
    summary: dict[str, Any]
    """The contents of summary.json; docs/metrics.md names every entry."""
    metrics: list[dict[str, float]]
    """Rows of metrics.jsonl; of a very long run, only some."""
    run_dir: Path | None
    """The run directory, if one was written."""
    _evaluator: Evaluator = field(repr=False)

    @property
    def params(self) -> Any:
        """The final params."""
        return self.state.params

    def evaluate(self, episodes: int = 100, seed: int = EVALUATION_SEED) -> Evaluation:
        """Play greedy episodes with the final params."""
        return self._evaluator(published(self.state), episodes, seed)

    def act(self, observation: Any, first: bool = False, legal: Any = None) -> np.ndarray:
        """The greedy action for an observation; `first=True` where an episode begins.

        Only recurrent networks need `first`: they remember the observations of earlier calls. `legal` is a mask of the
        actions that are allowed, where not all always are.
        """
        if first:
            self._actor.reset()
        return self._actor(observation, legal=legal)

    @functools.cached_property
    def _actor(self) -> Actor:
        return Actor(self.algorithm, self.env, published(self.state))


@dataclass
class SeedResults:
    """Finished runs that differ in their seeds, and as members of a population in what is tuned."""

    runs: dict[int, Result]
    """By seed; a seed that failed is left out."""
    summary: dict[str, Any]
    """The contents of summary.json of all seeds together; docs/metrics.md names every entry."""
    metrics: list[dict[str, float]]
    """Rows of metrics.jsonl of all seeds together."""
    run_dir: Path | None
    """The folder that holds a run folder for each seed, if one was written."""


@overload
def train(
    algorithm: Algorithm, env: Any, policy: str | Policy | None = None, *, population: Population, **options: Any
) -> SeedResults: ...


@overload
def train(
    algorithm: Algorithm, env: Any, policy: str | Policy | None = None, *, seeds: None = None,
    population: Round | None = None, **options: Any,
) -> Result: ...  # fmt: skip


@overload
def train(
    algorithm: Algorithm, env: Any, policy: str | Policy | None = None, *, seeds: int, **options: Any
) -> SeedResults: ...


def train(  # type: ignore[misc]  # the options have names, which overloads would repeat
    algorithm: Algorithm,
    env: Any,
    policy: str | Policy | None = None,
    *,
    steps: int | None = None,
    seed: int = 0,
    seeds: int | None = None,
    population: Population | Round | None = None,
    envs: int | None = None,
    groups: int | None = None,
    lag: int | None = None,
    allow: str | None = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    target_return: float | None = None,
    opponent: str | None = None,
    precision: str = "f32",
    preset: Preset | None = None,
    system: str | None = None,
    eval_episodes: int = 100,
    checkpoint_every: float = 10.0,
    keep: int = 3,
    engine: str | None = None,
    mesh: str | None = None,
    evaluate_every: int = 0,
    video_every: int = 0,
    patience: int | None = None,
    min_improvement: float = 0.0,
    callbacks: Sequence[Callback] = (),
    init_from: str | Path | None = None,
    trace: str | Path | None = None,
    timeout: float = 60.0,
    start_timeout: float = 300.0,
    restarts: int = 20,
    checkpoint_replay: bool = True,
    address: str | None = None,
    trust_network: bool = False,
    replan: bool = False,
    planner: Planner | None = None,
    quiet: bool = False,
    started: float | None = None,
) -> Result | SeedResults:
    """Train `algorithm` in `env` under a distribution policy.

    Args:
        algorithm: what to train, with its hyper-parameters.
        env: a name such as "gymnax:CartPole-v1", a factory, a class or an environment; see `tessera.envs.make`.
        policy: the name of a distribution policy ("central", "central:workers=4,mode=async"), a colouring
            ("env+act@2/store+grad+apply"), a file, a `Policy`, "auto" for the one that is predicted to be the fastest,
            or None for the same where a profile is known, and for a rule where none is.
        steps: environment steps to train for, over all environments; None: those of the run that is resumed, else
            those of the preset, or 500,000.
        seed: seed of all randomness.
        seeds: train so many seeds, from `seed` on: compiled environments as one program, others on processes. Each seed
            gets a run folder in `run_dir`, and the result has all of them; None: one seed.
        population: members that train side by side, with seeds from `seed` on, and whose hyper-parameters are tuned
            meanwhile: the worse go on from copies of the better. They go into folders as several seeds do.
        envs: environments; None: the algorithm's default.
        groups: groups of environments; part of the run's identity, like the seed.
        lag: updates by which acting lags behind; None: 0 for device environments, 1 for host environments.
        allow: "async" lets a policy that is chosen be asynchronous, which is another recipe; None: it learns the same.
        run_dir: folder for checkpoints, metrics and summary; None: nothing is written.
        resume: continue from the newest checkpoint in `run_dir`, if there is one.
        target_return: stop once greedy episodes reach this mean return.
        opponent: who greedy episodes of a game for two are played against: "random", "greedy" (it wins where it can
            in one move), "mcts" or "mcts:256" (a search without a network, of so many simulations),
            "solver:bitbully" (perfect play in connect_four) or the folder of a run; None: "random".
        precision: f32, bf16, or f64 (needs jax_enable_x64).
        preset: where the algorithm's settings come from, as `tessera.preset` returns it; its numbers of steps and
            environments and its lag are the defaults of these.
        system: what the algorithm with these settings is called, such as "rainbow" for a C51; the run goes by it.
        eval_episodes: greedy episodes of each evaluation: at the end, and during training where one is asked for.
        checkpoint_every: seconds between checkpoints, at the least.
        keep: checkpoints to keep.
        engine: serial (one thread), local (processes) or ray (a cluster); None: local if anything is cut, else serial.
        mesh: "data=4,model=2": copies of the params in each learner, and devices over which each copy's wide layers
            are cut; None: as the policy says.
        evaluate_every: updates between greedy evaluations, whose best params are kept; 0: never. Training waits for
            those in compiled environments; others are played by a process beside it.
        video_every: updates between videos of a greedy episode, which a process beside training writes into the folder
            `videos` of `run_dir`, the newest 20; 0: none.
        patience: stop after so many of these evaluations without improvement; None: never.
        min_improvement: what the mean return must gain to count as an improvement.
        callbacks: code of yours that is called at updates, evaluations, checkpoints and the end, and may stop the run.
        init_from: run whose params to start from: "runs/x" for its newest checkpoint, "runs/x@best", "runs/x@1200" by
            update. Optimiser, clock and replay start anew.
        trace: file for a timeline of every replica, in Chrome's trace format.
        timeout: seconds without progress after which a replica counts as dead.
        start_timeout: the same while it starts, makes its environments or compiles.
        restarts: how often each replica may be started again.
        checkpoint_replay: save the replay in every checkpoint, so that a resumed run continues exactly; otherwise it
            is filled again by as many unrolls as before the first update.
        address: Ray cluster for "ray"; None: the one that `tessera cluster up` started, else one for this run.
        trust_network: let CPU learners that all-reduce on a cluster listen where other machines can reach them.
        replan: move to a better plan, at a checkpoint, once the run has drifted from what was predicted of it.
        planner: what predicts the run and finds better plans; None: the saved profile of this machine, if there is one.
        quiet: show no progress.
        started: time.time() at which the process began, for `startup_seconds`; None: now.
    """
    started = time.time() if started is None else started
    members = population if isinstance(population, Population) else None
    if members is not None:
        members.check_alone(seeds, patience)
        seeds = members.size
    cluster.check_address(address, engine)
    folder = None if run_dir is None else Path(run_dir)
    if resume and folder is None:
        raise TesseraError("--resume needs --run-dir: which run should go on?")
    if preset is not None:
        envs, lag = preset.envs if envs is None else envs, preset.lag if lag is None else lag
    before = _config_before(folder) if resume else {}
    steps = _steps(steps, before, preset, algorithm)
    system = before.get("system") if system is None else system
    options = RunOptions(
        started=started,
        checkpoint_every=checkpoint_every,
        keep=keep,
        eval_episodes=eval_episodes,
        evaluate_every=evaluate_every,
        video_every=video_every,
        patience=patience,
        min_improvement=min_improvement,
        callbacks=check_callbacks(callbacks),
        trace=None if trace is None else Path(trace),
        timeout=timeout,
        start_timeout=start_timeout,
        restarts=restarts,
        checkpoint_replay=checkpoint_replay,
        address=address,
        trust_network=trust_network,
        replan=replan,
    )
    options.check(steps, seeds, folder)
    check_seed(seed, seeds or 1)
    if video_every and folder is None:
        raise TesseraError("--video-every needs --run-dir: where should videos go?")
    if replan:
        check_replan(folder, seeds)
    use_compilation_cache()
    plans = read_plans(folder) if resume else ()
    if (evaluate_every and seeds is None) or replan or plans:  # perhaps by another process
        share_accelerators()
    planned: dict[str, Any] = {"envs": envs, "groups": groups, "lag": lag, "precision": precision}
    planned |= {"engine": engine, "mesh": mesh}
    display = make_display(quiet)
    if seeds is not None:
        env, policy = _world_of_seeds(env, policy, precision, mesh)
    elif policy in (None, AUTO) and before and folder is not None:
        policy = (plans[0].policy if plans else _policy_before(folder)) or policy
    _check_allowed(allow)
    if policy is None or policy == AUTO:
        found = prepare_automatically(
            algorithm, env, asked=policy == AUTO, steps=steps, asynchronous=allow == ASYNC, note=display.note, **planned
        )
        bound, environment, plan = found.algorithm, found.env, found.plan
    else:
        bound, environment, plan = prepare_plan(algorithm, env, policy, **planned)
    warn_of_shared_noise(bound, environment, plan)
    numbers = None if seeds is None else list(range(seed, seed + seeds))
    updates = planned_updates(bound, plan, steps)
    part = Round.whole(members, bound, updates) if members is not None else population
    if isinstance(part, Round):
        bound = replace(bound, tuned=tuple(part.described["tune"]))
        options = replace(options, exchange_every=part.described["every"], exchanged=part.exchanged)
    first, start = read_start(init_from, folder, resume, numbers, bound)
    if isinstance(population, Round):
        first = population.first_params(bound, first, seed)
    bound = replace(bound, first_params=first)
    config = _config(bound, environment, plan, seed=seed, precision=precision, steps=steps, target_return=target_return)
    noted = {"system": system, "init_from": start, "preset": None if preset is None else preset.name, "seeds": seeds}
    config |= {name: value for name, value in noted.items() if value is not None}
    config |= {"population": part.described} if isinstance(part, Round) else {}
    opponent = before.get("opponent") if opponent is None else opponent
    config |= {} if opponent is None else {"opponent": opponent}
    evaluator = Evaluator(bound, against(environment, find_opponent(opponent, environment, False)))
    if preset is not None:
        display.note(f"preset {preset}")
    if seeds is not None:
        together = SeedsRun(
            algorithm=bound, env=environment, plan=plan, config=config, folder=folder, updates=updates,
            target=target_return, options=options, evaluator=evaluator, display=display, resume=resume,
            population=members,
        )  # fmt: skip
        return _train_seeds(together, policy, planned)
    plan = newest_plan(plan, plans, len(jax.local_devices()))
    planner = saved_planner(bound, environment, plan, display.note) if planner is None else planner
    if replan:
        check_planner(planner)
    run = Run(
        bound, environment, plan, config, folder, updates, target_return, display, options, evaluator,
        planner=planner, plans=plans,
    )  # fmt: skip
    state, summary = run.go(resume)
    return Result(bound, environment, run.plan, state, summary, run.rows, folder, evaluator)


def _world_of_seeds(env: Any, policy: str | Policy | None, precision: str, mesh: str | None) -> tuple[Any, Any]:
    """The environment and the policy of runs with several seeds."""
    if policy == AUTO:
        raise TesseraError("--policy auto plans one run: leave it out where --seeds trains several")
    env = make_env(env, precision)
    if not is_device(env):  # each seed has a process of its own
        share_accelerators()
    if policy is None and mesh is None:
        policy = "fused:devices=1"  # its seeds fill a device better than one run fills several
    return env, policy


def _train_seeds(run: SeedsRun, policy: str | Policy | None, planned: dict[str, Any]) -> SeedResults:
    """Train several seeds, in the form that fits them."""
    one_program = fits_one_program(run.plan, run.env)
    if run.options.callbacks and not one_program:
        raise TesseraError(
            "callbacks are called by this process, and these seeds train in processes of their own: train one seed at "
            "a time"
        )
    if not one_program and is_nameless(run.env.name):
        raise TesseraError(
            f"these seeds train in processes of their own, which cannot make {run.env.name} again: pass a class or a "
            "function of a module, or train one seed at a time"
        )
    with run.shown("one program" if one_program else "processes"):
        if one_program:
            done = run.as_one_program(members_at_once(run.algorithm, run.env, run.plan, len(run.seeds)))
        else:
            named = policies.parse(policy) if isinstance(policy, str) else policy
            request = {**run.request(), "policy": None if named is None else asdict(named), "planned": planned}
            done = run.on_processes(lambda more: functools.partial(_train_seed, request={**request, **more}))
    rows, summary = run.join(done)
    results = {
        seed: Result(
            run.algorithm, run.env, run.plan, member.state, member.summary, member.rows,
            seed_folder(run.folder, seed), run.evaluator,
        )
        for seed, member in done.items()
    }  # fmt: skip
    return SeedResults(results, summary, rows, run.folder)


def _train_seed(seed: int, request: dict[str, Any]) -> dict[str, Any]:
    """Train one of several seeds in this process: the fields of `SeedRun`, as plain data."""
    given = request["config"]["algorithm"]
    networks = filter(is_foreign, given.values())
    names = (given["class"], request["config"]["env"], *networks)  # the user's own, of this call
    algorithm, env = rebuild(request["config"], trust=names)
    algorithm = replace(algorithm, **request.get("first", {}).get(str(seed), {}))
    described = request["config"].get("population")
    run_dir = seed_folder(None if request["folder"] is None else Path(request["folder"]), seed)
    data, named = request["policy"], request["config"].get("preset")
    policy = None if data is None else from_data(data, "the policy of all seeds", data["name"])
    try:
        result = train(
            algorithm, env, policy, seed=seed, run_dir=run_dir, quiet=True, **request["planned"], **request["options"],
            population=None if described is None else Round(described, request["exchanged"], request["config"]["seed"]),
            preset=None if named is None else find_preset(algorithm.name, env.name, named),
            system=request["config"].get("system"),
        )  # fmt: skip
    except RunFailed as failure:
        return {"state": None, "summary": None, "rows": [], "failed": str(failure)}
    except RoundOver as over:
        score = over.exchange.score
        return {"failed": "", "score": score if math.isfinite(score) else None, "update": over.exchange.update}
    state = flatten({"state": result.state})
    return {"state": state, "summary": result.summary, "rows": result.metrics, "failed": ""}


def compare(
    algorithm: Algorithm,
    env: Any,
    names: Sequence[str],
    *,
    run_dir: str | Path | None = None,
    note: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> dict[str, dict[str, Any]]:
    """Train under each named policy in turn: the summary of each run by name, or {"failed": why}.

    All runs are planned before the first one starts, so nothing starts if one of them cannot.

    Args:
        algorithm: what to train, as for `train`.
        env: the environment, as for `train`.
        names: policies, as for `train`.
        run_dir: folder in which each run gets a folder of its own; None: nothing is written.
        note: called with a line before each run.
        options: the other options of `train`.
    """
    share_accelerators()  # runs of any policy may come, one after the other
    chosen = {name: policies.parse(name) for name in names}
    for name, policy in chosen.items():
        try:
            prepare_plan(algorithm, env, policy, **{k: v for k, v in options.items() if k in PLAN_OPTIONS})
        except TesseraError as error:
            raise TesseraError(f"{name}: {error}") from None
    summaries: dict[str, dict[str, Any]] = {}
    for k, (name, policy) in enumerate(chosen.items(), 1):
        note(f"{name} ({k} of {len(chosen)})")
        folder = None if run_dir is None else Path(run_dir) / re.sub(r"[^A-Za-z0-9.=]+", "-", name).strip("-")
        try:
            result = train(algorithm, env, policy, run_dir=folder, **{**options, "quiet": True})
        except RunFailed as error:
            summaries[name] = {"failed": str(error)}
        else:
            summaries[name] = result.summary
    return summaries


def evaluate_run(
    folder: str | Path,
    episodes: int = 100,
    seed: int = 0,
    *,
    workers: int | None = None,
    engine: str | None = None,
    address: str | None = None,
    checkpoint: Choice = "newest",
    opponent: str | None = None,
    trust: Trust = False,
) -> RunEvaluation:
    """Play greedy episodes with the params of a run; see `evaluate_runs`."""
    how: dict[str, Any] = {"workers": workers, "engine": engine, "address": address}
    return evaluate_runs([folder], episodes, seed, checkpoint=checkpoint, opponent=opponent, trust=trust, **how)[0]


def evaluate_runs(
    folders: Sequence[str | Path],
    episodes: int = 100,
    seed: int = 0,
    *,
    workers: int | None = None,
    engine: str | None = None,
    address: str | None = None,
    checkpoint: Choice = "newest",
    opponent: str | None = None,
    trust: Trust = False,
) -> list[RunEvaluation]:
    """Play greedy episodes with the params of each run.

    Episodes are played in batches, each with its own seed, so the number of workers does not change them. Workers of a
    cluster need no access to the folders.

    Args:
        folders: run directories.
        episodes: episodes of each run.
        seed: seed of the environments.
        workers: batches played at a time; None: one, or as many as there are cores if an engine is named.
        engine: serial (in this thread), local (processes) or ray (tasks of a cluster); None: local for several workers.
        address: Ray cluster for "ray"; None: the one that `tessera cluster up` started, else one for this process.
        checkpoint: "newest", "best" (by greedy evaluations during training) or the number of an update.
        opponent: who games for two are played against, as for `train`; None: as in training.
        trust: True to import an algorithm or environment of your own that a folder names, if it is a class that
            derives from Tessera's or Gymnasium's; or names that are imported whatever they are, as `train` would.
    """
    if engine not in (None, "serial") or (workers or 1) > 1:
        share_accelerators()
    runs = [load_run(folder, trust, checkpoint) for folder in folders]
    where = {"workers": workers, "engine": engine, "address": address}
    return evaluate_saved(runs, episodes, seed, trust, opponent, **where)


def evaluate_saved(
    runs: Sequence[SavedRun], episodes: int, seed: int, trust: Trust, opponent: str | None = None, **engine: Any
) -> list[RunEvaluation]:
    """Play greedy episodes with each of several params that were loaded; `engine` as in `evaluate_runs`."""
    if episodes < 1:
        raise TesseraError(f"{episodes} episodes: at least one is needed")
    check_seed(seed)
    names = [opponent or run.config.get("opponent") for run in runs]
    opponents = [find_opponent(name, run.env, trust) for name, run in zip(names, runs, strict=True)]
    worlds = [against(run.env, each) for run, each in zip(runs, opponents, strict=True)]
    if any(run.env_given for run in runs):
        evaluators = [Evaluator(run.algorithm, env) for run, env in zip(runs, worlds, strict=True)]  # only here
        played = [play_here(e, run.view, episodes, seed) for e, run in zip(evaluators, runs, strict=True)]
    else:
        others = [each for each in opponents if isinstance(each, SavedRun)]
        numbers = iter(range(len(runs), len(runs) + len(others)))
        pairs = [Pairing(k, next(numbers) if isinstance(o, SavedRun) else o) for k, o in enumerate(opponents)]
        played = play_batches([as_player(each) for each in (*runs, *others)], pairs, episodes, seed, trust, **engine)
    for run, (returns, _) in zip(runs, played, strict=True):
        if not len(returns):
            raise RunFailed(f"no greedy episode of {run.folder} came to an end: does {run.env.name} ever end?")
    return [
        RunEvaluation(returns, lengths, run.folder, run.config["env"], run.update, opponent=world.opponent)
        for run, world, (returns, lengths) in zip(runs, worlds, played, strict=True)
    ]


def _config_before(folder: Path | None) -> dict[str, Any]:
    """The configuration of a run that goes on; empty if it has not begun yet."""
    if folder is None or not (folder / "config.json").exists():
        return {}
    return directory.read_config(folder)


def _policy_before(folder: Path) -> Policy | None:
    """The policy of a run that goes on, as its plan says; None if it was planned before plans said so."""
    data = directory.read_plan(folder).get("colouring")
    if data is None:
        return None
    where = f"{folder / 'plan.json'}: colouring"
    return from_data(data, where, "unnamed")


def _check_allowed(allow: str | None) -> None:
    if allow not in (None, ASYNC):
        raise unknown_name("recipe to allow:", allow, [ASYNC])


def _steps(given: int | None, before: dict[str, Any], preset: Preset | None, algorithm: Algorithm) -> int:
    """Steps of a run: as given, else those of the run that goes on, so that its schedules stay the same."""
    if given is not None:
        return given
    saved = before.get("steps")
    if isinstance(saved, int) and not isinstance(saved, bool):
        return saved
    return algorithm.default_steps if preset is None or preset.steps is None else preset.steps


def _config(algorithm: Algorithm, env: Environment, plan: Plan, **options: Any) -> dict[str, Any]:
    """The identity of a run, as saved in config.json."""
    return {
        "tessera": __version__,
        "algorithm": directory.algorithm_config(algorithm),
        "env": env.name,
        "policy": plan.policy,
        "engine": plan.engine,
        "envs": plan.envs,
        "groups": plan.groups,
        "lag": plan.lag,
        **options,
    }
