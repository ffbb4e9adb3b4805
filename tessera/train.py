"""The one entry point: an algorithm, an environment and a policy in; params, metrics and a run directory out."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np

from tessera import __version__, policies, rundir
from tessera.algorithms.base import Algorithm, State
from tessera.cache import use_compilation_cache
from tessera.checkpoint import Checkpoints, unflatten, write_json
from tessera.display import Display, Progress, make_display, number
from tessera.engines.serial import SerialEngine
from tessera.envs import make as make_env
from tessera.envs.base import Environment, is_device
from tessera.errors import TesseraError
from tessera.evaluate import Evaluation, Evaluator, make_act
from tessera.graph.plan import Needs, Plan, choose, make_plan
from tessera.graph.policy import Cut, Policy
from tessera.guards import stop_if_broken
from tessera.metrics import Meter, MetricsWriter
from tessera.program.compile import CHUNK
from tessera.program.training import published

CHUNK_SECONDS = 0.5
"""How long the engine runs between looks at signals, metrics and checkpoints."""
LOOKS = 100
"""How often in a run the target return is looked at; at fixed updates, so that a run's end does not depend on speed."""
HOST_ENVS = 16
EVALUATION_SEED = 1_000_003


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

    def act(self, observation: Any) -> np.ndarray:
        """The greedy action at one observation."""
        if not hasattr(self, "_act"):
            self._act = make_act(self.algorithm, published(self.state))
        return self._act(observation)


def prepare_plan(
    algorithm: Algorithm,
    env: Any,
    policy: str | Policy | None = None,
    *,
    envs: int | None = None,
    groups: int | None = None,
    lag: int | None = None,
    precision: str = "f32",
) -> tuple[Algorithm, Environment, Plan]:
    """Bind the algorithm to the environment and plan the run; everything that can be refused early is refused here."""
    made = make_env(env, precision)
    bound = algorithm.bind(made.spec)
    bound.check()
    available = jax.local_devices()
    reason = "named by the user"
    if policy is None:
        policy, reason = choose(is_device(made), len(available))
    chosen = policies.get(policy) if isinstance(policy, str) else policy
    if lag is not None:
        cuts = {**chosen.cuts, "params": Cut(chosen.cut("params").mode, lag)}
        chosen = replace(chosen, cuts=cuts)
    store = bound.store
    batch = getattr(store, "batch", None) if store.persistent else None
    needs = Needs(bound.name, made.name, is_device(made), batch, store.prioritised, bound.absorbs)
    usual = bound.default_envs if is_device(made) else min(bound.default_envs, HOST_ENVS)
    count = usual if envs is None else envs
    platform = available[0].platform
    plan = make_plan(chosen, needs, count, groups=groups, platform=platform, available=len(available), reason=reason)
    return bound, made, plan


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
    quiet: bool = False,
    started: float | None = None,
) -> Result:
    """Train `algorithm` in `env` under a distribution policy.

    Args:
        algorithm: what to train, with its hyper-parameters.
        env: a name such as "gymnax:CartPole-v1", a factory, a class or an environment.
        policy: the name of a distribution policy, a `Policy`, or None to have one chosen.
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
        quiet: show no progress.
        started: time.time() at which the process began, for `startup_seconds`; None: now.
    """
    started = time.time() if started is None else started
    if steps < 1:
        raise TesseraError(f"--steps {steps}: at least one step is needed")
    if resume and run_dir is None:
        raise TesseraError("--resume needs --run-dir: which run should go on?")
    for name, value in (("--eval-episodes", eval_episodes), ("--keep", keep)):
        if value < 1:
            raise TesseraError(f"{name} {value}: at least one is needed")
    use_compilation_cache()
    bound, made, plan = prepare_plan(algorithm, env, policy, envs=envs, groups=groups, lag=lag, precision=precision)
    s = bound.schedule
    updates = max(1, math.ceil(steps / (s.unroll * plan.envs)) - s.warmup)
    config = _config(bound, made, plan, seed=seed, precision=precision, steps=steps, target_return=target_return)
    folder = None if run_dir is None else Path(run_dir)
    timing = _Timing(started, checkpoint_every, keep)
    run = _Run(bound, made, plan, config, folder, updates, target_return, eval_episodes, make_display(quiet), timing)
    return run.go(resume)


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


@dataclass
class _Timing:
    started: float
    checkpoint_every: float
    keep: int


@dataclass
class _Run:
    """One run from the first update to the summary."""

    algorithm: Algorithm
    env: Environment
    plan: Plan
    config: dict[str, Any]
    folder: Path | None
    updates: int
    target: float | None
    eval_episodes: int
    display: Display
    timing: _Timing
    evaluator: Evaluator = field(init=False)
    meter: Meter = field(default_factory=Meter)
    rows: list[dict[str, float]] = field(default_factory=list)
    writer: MetricsWriter | None = None
    checkpoints: Checkpoints | None = None
    begun: float = 0.0
    """When the loop started, by the monotonic clock."""
    startup_seconds: float = math.nan
    speed: float = math.nan
    wall_before: float = 0.0
    """Seconds of training before this process, for a resumed run."""

    def go(self, resume: bool) -> Result:
        """Train, evaluate, sum up."""
        found = self._find(resume)
        self.display.begin(
            f"{self.plan.algorithm} on {self.plan.env}, {self.plan.envs} environments, seed {self.config['seed']}; "
            f"policy {self.plan.reason if 'because' in self.plan.reason else self.plan.policy}"
        )
        engine = SerialEngine(self.plan, self.algorithm, self.env, self.config["seed"], self.updates)
        self.evaluator = Evaluator(self.algorithm, self.env)
        try:
            with _signals() as caught:
                self._begin(engine, found)
                solved = self._loop(engine, caught)
            if caught:
                self._leave(engine, caught[0])
            return self._finish(engine, solved)
        finally:
            self.display.end()
            engine.close()
            for open_ in (self.writer, self.checkpoints):
                if open_ is not None:
                    open_.close()

    def _find(self, resume: bool) -> int | None:
        """The update to resume from; None to start from the beginning."""
        if self.folder is None:
            return None
        if not resume:
            rundir.check_fresh(self.folder)
            return None
        rundir.check_usable(self.folder)
        if not (self.folder / "config.json").exists():
            self.display.note(f"nothing to resume in {self.folder}: starting from the beginning")
            return None
        rundir.check_same(self.folder, self.config)
        self.checkpoints = Checkpoints(self.folder / "checkpoints", self.timing.keep)
        latest = self.checkpoints.latest()
        where = "the beginning: no checkpoint was written yet" if latest is None else f"update {latest}"
        self.display.note(f"resuming {self.folder} from {where}")
        return latest

    def _begin(self, engine: SerialEngine, found: int | None) -> None:
        if found is None:
            played = engine.start()
            if played is not None:
                self.meter.count(played)
            return
        assert self.checkpoints is not None
        arrays, meta = self.checkpoints.load(found)
        if meta["algorithm"] != self.algorithm.name:
            raise TesseraError(f"checkpoint {found} was made by {meta['algorithm']}, not {self.algorithm.name}")
        if is_device(self.env):
            engine.start()  # makes the slots that the checkpoint's arrays go into
        engine.restore(unflatten(engine.snapshot(), arrays, f"checkpoint {found}"))
        self.meter = Meter.from_json(meta["meter"])
        self.wall_before = meta["wall_seconds"]

    def _open(self, found: int | None) -> None:
        """Make the run directory, now that the first update has shown that the run can go on."""
        if self.folder is None:
            return
        rundir.begin(self.folder, self.config, self.plan.to_json())
        self.writer = MetricsWriter(self.folder, resumed_at=found)
        if self.checkpoints is None:
            self.checkpoints = Checkpoints(self.folder / "checkpoints", self.timing.keep)

    def _loop(self, engine: SerialEngine, caught: list[int]) -> bool:
        """Run to the last update, the target or a signal; True if the target was reached."""
        begun = self.begun = time.monotonic()
        first_steps, first_done, saved, cost = 0, begun, begun, 0.0
        look = max(1, self.updates // LOOKS)
        count, resumed = 1, self.meter.updates
        opened = False
        while self.meter.updates < self.updates and not caught:
            before = time.monotonic()
            reports = engine.advance(min(count, look - self.meter.updates % look, self.updates - self.meter.updates))
            if not opened:
                self._open(resumed)
                opened = True
            stop_if_broken(reports, engine, self.meter.updates, self.folder)
            made = len(reports.tally.steps)
            self.meter.count(reports.tally)
            self.meter.updates += made
            now = time.monotonic()
            if math.isnan(self.startup_seconds):
                self.startup_seconds = time.time() - self.timing.started
                first_steps, first_done = self.meter.env_steps, now
            else:
                count = int(np.clip(CHUNK_SECONDS / max((now - before) / made, 1e-9), 1, CHUNK))
            speed = (self.meter.env_steps - first_steps) / max(now - first_done, 1e-9)
            self._report(reports, speed, now)
            if self._reached(look, engine):
                return True
            if self.checkpoints and now - saved > max(self.timing.checkpoint_every, 20 * cost):
                saved, cost = self._save(engine)
        return False

    def _report(self, reports: Any, speed: float, now: float) -> None:
        self.speed = speed
        row = {
            **self.meter.row(reports),
            "seconds": self.wall_before + now - self.begun,
            "steps_per_second": speed,
        }
        self.rows.append(row)
        if self.writer:
            self.writer.write(row)
        left = (self.updates - self.meter.updates) / max(self.meter.updates, 1) * self.meter.env_steps
        m = self.meter
        progress = Progress(
            m.updates, self.updates, m.env_steps, speed, m.mean_return, left / speed if speed else math.nan
        )
        self.display.show(progress)

    def _reached(self, look: int, engine: SerialEngine) -> bool:
        """Whether greedy episodes reach the target; tried when training does, and at fixed updates only."""
        if self.target is None or self.meter.updates % look or not self.meter.mean_return >= self.target:
            return False
        return self._evaluate(engine).return_mean >= self.target

    def _evaluate(self, engine: SerialEngine) -> Evaluation:
        return self.evaluator(published(engine.state()), self.eval_episodes, self.config["seed"] + EVALUATION_SEED)

    def _save(self, engine: SerialEngine) -> tuple[float, float]:
        """Checkpoint; return when, and how long it took."""
        assert self.checkpoints is not None
        before = time.monotonic()
        meta = {
            "algorithm": self.algorithm.name,
            "env": self.plan.env,
            "meter": self.meter.to_json(),
            "wall_seconds": self.wall_before + before - self.begun,
        }
        self.checkpoints.save(self.meter.updates, jax.device_get(engine.snapshot()), meta)
        now = time.monotonic()
        return now, now - before

    def _leave(self, engine: SerialEngine, number: int) -> None:
        """Stop on a signal: checkpoint, say so, and end as the signal would have."""
        name = signal.Signals(number).name
        if self.checkpoints:
            self._save(engine)
            self.display.note(
                f"{name}: saved update {self.meter.updates} in {self.folder}; --resume goes on from there"
            )
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    def _finish(self, engine: SerialEngine, solved: bool) -> Result:
        wall = self.wall_before + time.monotonic() - self.begun
        if self.checkpoints is None and self.folder:
            self._open(self.meter.updates)
        if self.checkpoints:
            self._save(engine)
        evaluation = self._evaluate(engine)
        target = known_target(self.plan.env) if self.target is None else self.target
        summary = {
            "algorithm": self.plan.algorithm,
            "env": self.plan.env,
            "policy": self.plan.policy,
            "engine": self.plan.engine,
            "seed": self.config["seed"],
            "env_steps": self.meter.env_steps,
            "updates": self.meter.updates,
            "episodes": self.meter.episodes,
            "wall_seconds": round(wall, 3),
            "startup_seconds": _rounded(self.startup_seconds),
            "steps_per_second": _rounded(self.speed),
            "train_return_mean": _rounded(self.meter.mean_return),
            "eval_return_mean": _rounded(evaluation.return_mean),
            "eval_return_std": _rounded(evaluation.return_std),
            "eval_episodes": len(evaluation.returns),
            "target_return": target,
            "solved": None if target is None else bool(evaluation.return_mean >= target),
            "stopped_early": solved,
        }
        if self.folder:
            if not self.rows and (self.folder / "summary.json").exists():  # nothing was left to do
                old = rundir.read_summary(self.folder)
                summary |= {k: old[k] for k in ("startup_seconds", "steps_per_second", "wall_seconds")}
            write_json(self.folder / "summary.json", summary)
        self._say_end(summary)
        state = jax.tree.map(np.asarray, jax.device_get(engine.state()))
        return Result(self.algorithm, self.env, self.plan, state, summary, self.rows, self.folder, self.evaluator)

    def _say_end(self, summary: dict[str, Any]) -> None:
        verdict = {None: "", True: ": solved", False: ": not solved"}[summary["solved"]]
        self.display.end()
        self.display.note(
            f"greedy return {number(summary['eval_return_mean'] or math.nan)} over {summary['eval_episodes']} episodes"
            f"{verdict}; {summary['env_steps']:,} steps in {summary['wall_seconds']:.1f} s"
            f" ({summary['steps_per_second'] or 0:,.0f} steps/s)"
        )
        if self.folder:
            self.display.note(f"results in {self.folder}")


def known_target(env: str) -> float | None:
    """The return at which Gymnasium calls a task of this name solved, if it has such a number."""
    import gymnasium

    found = gymnasium.registry.get(env.rpartition(":")[2])
    return None if found is None else found.reward_threshold


def _rounded(x: float) -> float | None:
    return round(float(x), 4) if math.isfinite(x) else None


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Note SIGINT and SIGTERM instead of dying of them; a second one acts at once."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    old: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {n: signal.getsignal(n) for n in numbers}

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        for n in numbers:
            signal.signal(n, old[n])

    for n in numbers:
        signal.signal(n, note)
    try:
        yield caught
    finally:
        for n in numbers:
            signal.signal(n, old[n])
