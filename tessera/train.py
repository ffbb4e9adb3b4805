"""The one entry point: an algorithm, an environment and a policy in; params, metrics and a run directory out."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tessera import __version__, cluster, policies, rundir
from tessera.algorithms.base import Algorithm, State
from tessera.cache import use_compilation_cache
from tessera.display import make_display
from tessera.envs import make as make_env
from tessera.envs.base import Environment, is_device
from tessera.errors import TesseraError
from tessera.evaluate import Evaluation, Evaluator, make_act
from tessera.graph.plan import Needs, Plan, choose, make_plan
from tessera.graph.policy import Policy, read_mesh
from tessera.program.training import published
from tessera.running import EVALUATION_SEED, Run, Watch, known_target

HOST_ENVS = 16

__all__ = ["Result", "known_target", "prepare_plan", "train"]


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


def prepare_plan(
    algorithm: Algorithm,
    env: Any,
    policy: str | Policy | None = None,
    *,
    envs: int | None = None,
    groups: int | None = None,
    lag: int | None = None,
    precision: str = "f32",
    engine: str | None = None,
    mesh: str | None = None,
) -> tuple[Algorithm, Environment, Plan]:
    """Bind the algorithm to the environment and plan the run; everything that can be refused early is refused here."""
    made = make_env(env, precision)
    bound = algorithm.bind(made.spec)
    bound.check()
    available = jax.local_devices()
    reason = "named by the user"
    if policy is None:
        policy, reason = choose(is_device(made), len(available))
    chosen = policies.parse(policy) if isinstance(policy, str) else policy
    if mesh is not None:
        chosen = chosen.on_mesh(*read_mesh(mesh))
    if lag is not None:
        chosen = replace(chosen, cuts={**chosen.cuts, "params": replace(chosen.cut("params"), lag=lag)})
    store = bound.store
    batch = getattr(store, "batch", None) if store.persistent else None
    needs = Needs(
        bound.name, made.name, is_device(made), batch, store.prioritised, bound.absorbs, bound.apart, bound.together,
        "" if bound.layerwise == "none" else bound.layerwise,
    )  # fmt: skip
    usual = bound.default_envs if is_device(made) else min(bound.default_envs, HOST_ENVS)
    count = usual if envs is None else envs
    platform = available[0].platform
    places = {"platform": platform, "available": len(available)}
    plan = make_plan(chosen, needs, count, groups=groups, reason=reason, engine=engine, **places)
    return replace(bound, envs=count), made, plan


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
    watch = Watch(
        started, checkpoint_every, keep, eval_episodes, evaluate_every, None if trace is None else Path(trace),
        timeout, restarts, checkpoint_replay, address,
    )  # fmt: skip
    run = Run(bound, made, plan, config, folder, updates, target_return, make_display(quiet), watch)
    state, summary = run.go(resume)
    return Result(bound, made, run.plan, state, summary, run.rows, folder, run.evaluator)


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


def planned_updates(algorithm: Algorithm, plan: Plan, steps: int) -> int:
    """How many updates `steps` environment steps make under a plan."""
    s = algorithm.schedule
    played = Fraction(steps) - s.warmup * s.steps * plan.envs
    return max(1, math.ceil(played / (s.steps * plan.envs_per_update)))


def _config(algorithm: Algorithm, env: Environment, plan: Plan, **options: Any) -> dict[str, Any]:
    """What identifies a run, as saved in config.json."""
    return {
        "tessera": __version__,
        "algorithm": rundir.algorithm_config(algorithm),
        "env": env.name,
        "policy": plan.policy,
        "engine": plan.engine,
        "envs": plan.envs,
        "groups": plan.groups,
        "lag": plan.lag,
        **options,
    }
