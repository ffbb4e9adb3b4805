"""The public functions: train, compare, evaluate_run, evaluate_runs, map_reduce."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tessera import __version__, policies
from tessera.algorithms.contract import Algorithm, State
from tessera.engines.factory import map_reduce
from tessera.engines.ray_backend import cluster
from tessera.envs.base import Environment
from tessera.errors import RunFailed, TesseraError
from tessera.evaluation.evaluator import Evaluation, Evaluator, make_act
from tessera.evaluation.many_runs import RunEvaluation, play_batches
from tessera.graph.plan import Plan
from tessera.graph.policy import Policy
from tessera.planning.prepare import PLAN_OPTIONS, planned_updates, prepare_plan
from tessera.program.training import published
from tessera.runs import directory
from tessera.runs.display import make_display
from tessera.runs.loop import EVALUATION_SEED, Run, RunOptions
from tessera.runs.saved import load_run
from tessera.support.cache import use_compilation_cache

__all__ = ["Result", "compare", "evaluate_run", "evaluate_runs", "map_reduce", "train"]


@dataclass
class Result:
    """What a run leaves behind."""

    algorithm: Algorithm
    env: Environment
    plan: Plan
    state: State
    summary: dict[str, Any]
    metrics: list[dict[str, float]]
    run_dir: Path | None
    _evaluator: Evaluator = field(repr=False)

    @property
    def params(self) -> Any:
        """The final params."""
        return self.state.params

    def evaluate(self, episodes: int = 100, seed: int = EVALUATION_SEED) -> Evaluation:
        """Play greedy episodes with the final params."""
        return self._evaluator(published(self.state), episodes, seed)

    def act(self, observation: Any, first: bool = False) -> np.ndarray:
        """The greedy action at one observation after another; `first=True` where an episode begins.

        Only networks with a core need to be told: they remember what they were shown before.
        """
        if not hasattr(self, "_act"):
            self._act = make_act(self.algorithm, published(self.state))
        return self._act(observation, first)


def train(
    algorithm: Algorithm,
    env: Any,
    policy: str | Policy | None = None,
    *,
    steps: int = 500_000,
    seed: int = 0,
    envs: int | None = None,
    groups: int | None = None,
    lag: int | None = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    target_return: float | None = None,
    precision: str = "f32",
    eval_episodes: int = 100,
    checkpoint_every: float = 10.0,
    keep: int = 3,
    engine: str | None = None,
    mesh: str | None = None,
    evaluate_every: int = 0,
    trace: str | Path | None = None,
    timeout: float = 60.0,
    restarts: int = 20,
    checkpoint_replay: bool = True,
    address: str | None = None,
    quiet: bool = False,
    started: float | None = None,
) -> Result:
    """Train `algorithm` in `env` under a distribution policy.

    Args:
        algorithm: what to train, with its hyper-parameters.
        env: a name such as "gymnax:CartPole-v1", a factory, a class or an environment.
        policy: the name of a distribution policy ("central", "central:workers=4,mode=async"), a file, a `Policy`, or
            None to have one chosen.
        steps: environment steps to train for, over all environments.
        seed: what all randomness derives from.
        envs: environments; None: the algorithm's default.
        groups: groups that environments are dealt into; part of the run's identity, like the seed.
        lag: updates by which acting trails behind; None: 0 for device environments, 1 for host environments.
        run_dir: folder for checkpoints, metrics and summary; None: nothing is written.
        resume: go on from the newest checkpoint in `run_dir`, if there is one.
        target_return: stop once greedy episodes reach this mean return.
        precision: f32, bf16, or f64 (needs jax_enable_x64).
        eval_episodes: greedy episodes at the end.
        checkpoint_every: seconds between checkpoints, at the least.
        keep: checkpoints to keep.
        engine: serial (one thread), local (processes) or ray (a cluster); None: local if anything is cut, else serial.
        mesh: "data=4,model=2": copies of the params that each learner has, and devices that share each copy's wide
            layers; None: as the policy says.
        evaluate_every: updates between greedy evaluations by a process beside training; 0: never.
        trace: file for a timeline of every replica, in Chrome's trace format.
        timeout: seconds without progress after which a replica counts as dead.
        restarts: how often each replica may be started again.
        checkpoint_replay: save the replay with every checkpoint, so that a resumed run goes on exactly; without, it is
            filled again by as many unrolls as before the first update.
        quiet: show no progress.
        started: time.time() at which the process began, for `startup_seconds`; None: now.
    """
    started = time.time() if started is None else started
    cluster.check_address(address, engine)
    if resume and run_dir is None:
        raise TesseraError("--resume needs --run-dir: which run should go on?")
    _check_numbers(
        steps,
        {"--eval-episodes": eval_episodes, "--keep": keep},
        {"--evaluate-every": evaluate_every, "--restarts": restarts, "--timeout": timeout},
    )
    if trace is not None and not Path(trace).absolute().parent.is_dir():
        raise TesseraError(f"--trace {trace}: there is no folder {Path(trace).absolute().parent}")
    use_compilation_cache()
    bound, made, plan = prepare_plan(
        algorithm, env, policy, envs=envs, groups=groups, lag=lag, precision=precision, engine=engine, mesh=mesh
    )
    updates = planned_updates(bound, plan, steps)
    config = _config(bound, made, plan, seed=seed, precision=precision, steps=steps, target_return=target_return)
    folder = None if run_dir is None else Path(run_dir)
    options = RunOptions(
        started=started,
        checkpoint_every=checkpoint_every,
        keep=keep,
        eval_episodes=eval_episodes,
        evaluate_every=evaluate_every,
        trace=None if trace is None else Path(trace),
        timeout=timeout,
        restarts=restarts,
        checkpoint_replay=checkpoint_replay,
        address=address,
    )
    run = Run(bound, made, plan, config, folder, updates, target_return, make_display(quiet), options)
    state, summary = run.go(resume)
    return Result(bound, made, run.plan, state, summary, run.rows, folder, run.evaluator)


def compare(
    algorithm: Algorithm,
    env: Any,
    names: Sequence[str],
    *,
    run_dir: str | Path | None = None,
    note: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> dict[str, dict[str, Any]]:
    """Train under each named policy in turn; the summary of each run, or why it `failed`.

    All are planned before the first one runs, so nothing starts if one of them cannot. `options` are those of `train`;
    each run has a folder of its own under `run_dir`; `note` gets a line before each.
    """
    made: dict[str, Policy] = {name: policies.parse(name) for name in names}
    for name, policy in made.items():
        try:
            prepare_plan(algorithm, env, policy, **{k: v for k, v in options.items() if k in PLAN_OPTIONS})
        except TesseraError as error:
            raise TesseraError(f"{name}: {error}") from None
    out: dict[str, dict[str, Any]] = {}
    for k, (name, policy) in enumerate(made.items(), 1):
        note(f"{name} ({k} of {len(made)})")
        folder = None if run_dir is None else Path(run_dir) / re.sub(r"[^A-Za-z0-9.=]+", "-", name).strip("-")
        try:
            result = train(algorithm, env, policy, run_dir=folder, **{**options, "quiet": True})
        except RunFailed as error:
            out[name] = {"failed": str(error)}
        else:
            out[name] = result.summary
    return out


def evaluate_run(
    folder: str | Path,
    episodes: int = 100,
    seed: int = 0,
    *,
    workers: int | None = None,
    engine: str | None = None,
    address: str | None = None,
) -> RunEvaluation:
    """Play greedy episodes with the newest params of a run; see `evaluate_runs`."""
    return evaluate_runs([folder], episodes, seed, workers=workers, engine=engine, address=address)[0]


def evaluate_runs(
    folders: Sequence[str | Path],
    episodes: int = 100,
    seed: int = 0,
    *,
    workers: int | None = None,
    engine: str | None = None,
    address: str | None = None,
) -> list[RunEvaluation]:
    """Play greedy episodes with the newest params of each run.

    Episodes are played in batches, each with a seed of its own, by `workers` of an engine (serial, local or ray; see
    `map_reduce`). Which episodes are played depends on neither. Workers of a cluster need not see the folders.
    """
    runs = [load_run(folder) for folder in folders]
    views = [(run.config, published(run.state)) for run in runs]
    played = play_batches(views, episodes, seed, workers=workers, engine=engine, address=address)
    found = []
    for folder, run, (returns, lengths) in zip(folders, runs, played, strict=True):
        if not len(returns):
            raise RunFailed(f"no greedy episode of {folder} came to an end: does {run.env.name} ever end?")
        found.append(RunEvaluation(returns, lengths, Path(folder), run.config["env"], run.update))
    return found


def _check_numbers(steps: int, positive: dict[str, int], others: dict[str, float]) -> None:
    """Refuse numbers, by the name of the flag, that leave nothing to do or mean nothing."""
    if steps < 1:
        raise TesseraError(f"--steps {steps}: at least one step is needed")
    for name, value in positive.items():
        if value < 1:
            raise TesseraError(f"{name} {value}: at least one is needed")
    for name, least in others.items():
        if least < 0:
            raise TesseraError(f"{name} {least:g}: it cannot be below zero")


def _config(algorithm: Algorithm, env: Environment, plan: Plan, **options: Any) -> dict[str, Any]:
    """What identifies a run, as saved in config.json."""
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
