"""One run from the first update to the summary: the loop that drives an engine, and what happens between updates."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np

from tessera.algorithms.contract import Algorithm, State, View
from tessera.engines.base import (
    Abandoned,
    Engine,
    Interrupted,
    ReplicaStatus,
    RestartsSpent,
    Snapshot,
    SnapshotLost,
)
from tessera.engines.replica.reports import Reports
from tessera.engines.replica.trace import clear_traces
from tessera.envs.base import Environment
from tessera.errors import EnvironmentFailed, RunFailed
from tessera.evaluation.evaluator import Evaluator
from tessera.graph.plan import Plan
from tessera.graph.smaller_plans import same_steps
from tessera.planning.planner import Planner
from tessera.program.compile import CHUNK
from tessera.program.training_program import published
from tessera.runs import directory
from tessera.runs.best_checkpoint import BestCheckpoint
from tessera.runs.callbacks import (
    CallbackFailed,
    CheckpointEvent,
    EndEvent,
    EvaluationEvent,
    Event,
    RunCallbacks,
    UpdateEvent,
)
from tessera.runs.checkpoint import Checkpoints, SaveFailed
from tessera.runs.display import Display, Progress
from tessera.runs.early_stopping import EarlyStopping
from tessera.runs.exchanges import Exchanges
from tessera.runs.guards import AbsurdNumbers, stop_if_broken
from tessera.runs.live_files import LiveFiles
from tessera.runs.live_status import Standing
from tessera.runs.metrics import Meter, MetricsWriter
from tessera.runs.opening_lines import hints_for, note_lost, title_of
from tessera.runs.pace import Pace
from tessera.runs.plan_history import PastPlan, past_plan
from tessera.runs.plan_moves import better_plan, replace_engine, write_change
from tessera.runs.prediction_watch import PredictionWatch
from tessera.runs.replay_resizing import PARTS, tell_size
from tessera.runs.requests import Advance, Begin, Exchange, LoneRun, Requests, answer_all
from tessera.runs.restoring import load_for
from tessera.runs.run_engine import engine_for
from tessera.runs.run_evaluations import Evaluated, RunEvaluations
from tessera.runs.run_options import RunOptions
from tessera.runs.run_summary import make_summary, summary_lines
from tessera.runs.run_videos import RunVideos
from tessera.runs.signals import StopSignals
from tessera.runs.timeline import write_timeline
from tessera.support.files import write_json

MAX_ROWS = 20_000
"""Rows of metrics that are kept in memory."""
TARGET_REACHED = "target return reached"


@dataclass
class Run:
    """One run, from the first update to the summary."""

    algorithm: Algorithm
    env: Environment
    plan: Plan
    config: dict[str, Any]
    folder: Path | None
    updates: int
    target: float | None
    display: Display
    options: RunOptions
    evaluator: Evaluator
    evaluations: RunEvaluations = field(init=False)
    videos: RunVideos = field(init=False)
    callbacks: RunCallbacks = field(init=False)
    early_stopping: EarlyStopping = field(init=False)
    best: BestCheckpoint = field(init=False)
    signals: StopSignals = field(init=False)
    engine: Engine = field(init=False)
    """What runs the plan."""
    pace: Pace = field(init=False)
    watch: PredictionWatch = field(init=False)
    live: LiveFiles = field(init=False)
    exchanges: Exchanges = field(init=False)
    planner: Planner | None = None
    plans: tuple[PastPlan, ...] = ()
    """All plans so far, in order, once the run has changed its plan."""
    meter: Meter = field(default_factory=Meter)
    rows: list[dict[str, float]] = field(default_factory=list)
    writer: MetricsWriter | None = None
    checkpoints: Checkpoints | None = None
    processes: dict[str, int] = field(default_factory=dict)
    begun: float = 0.0
    """When the loop started, by the monotonic clock."""
    startup_seconds: float = math.nan
    absurdity: AbsurdNumbers = field(default_factory=AbsurdNumbers)
    restarts_before: int = 0
    """Replicas that were started again under earlier plans."""
    lost_rows_before: int = 0
    """Rows of experience that were lost under earlier plans."""
    seconds_to_target: float = math.nan
    wall_before: float = 0.0
    """Seconds of training before this process, for a resumed run."""

    def __post_init__(self) -> None:
        self.exchanges = Exchanges.of(self.algorithm, self.options.exchange_every, self.updates)
        target = None if self.exchanges.every else self.target  # a member that stopped could not be copied any more
        self.evaluations = RunEvaluations(
            self.evaluator, self.options, self.config["seed"], target, self.updates, self.display.note
        )
        filmed = self.evaluator.env if "opponent" in self.config else self.env
        seed = self.config["seed"]
        self.videos = RunVideos(self.algorithm, filmed, self.options, seed, self.folder, self.display.note)
        self.callbacks = RunCallbacks(self.options.callbacks, self.config["seed"])
        self.early_stopping = EarlyStopping(self.options.patience, self.options.min_improvement)
        self.best = BestCheckpoint(None, self.display.note, keeps=False)
        self.live = LiveFiles(self.plan, self.display.note)
        self.pace = Pace(self.options.chunk_seconds)
        self.watch = PredictionWatch(self.planner, self.options.replan, self.algorithm, self.options.drift)
        self.watch.begin(self.plan)

    def go(self, resume: bool) -> tuple[State, dict[str, Any]]:
        """Train, evaluate, sum up: the final state and the summary."""
        found = self.resume_point(resume)
        if resume and self.folder is not None:
            self.display.note(directory.going_on(self.folder, found))
        if found is not None:
            note_lost(self.env, self.display.note)
        self.display.begin(title_of(self.config, self.plan))
        for hint in hints_for(self.algorithm, self.env, self.plan, self.config["steps"], self.updates):
            self.display.note(hint)
        if self.options.trace is not None:
            self.options.trace.absolute().parent.mkdir(parents=True, exist_ok=True)  # the run's own folder
            clear_traces(self.options.trace)
        self.engine = self._make_engine(self.plan)
        signals = StopSignals(lambda: self.engine.abandon())
        alone = LoneRun(
            self._make_engine, self.engine, self.evaluator, self.options.eval_episodes, signals, self.options.exchanged
        )
        try:
            with signals:
                result = answer_all(self.work(self.engine, signals, found), alone)
            self.display.end()
            for line in summary_lines(result[1], self.folder):
                self.display.note(line)
        finally:
            self.display.end()
            alone.close()
            self.close()
            unwritten = write_timeline(self.options.trace)
        if unwritten:
            raise RunFailed(unwritten)
        return result

    def work(self, engine: Engine, signals: StopSignals, found: int | None) -> Requests[tuple[State, dict[str, Any]]]:
        """All of the above, from update `found` on, with an engine that is there; what has to run is asked for."""
        self.signals, self.engine = signals, engine
        self.best = BestCheckpoint(self.folder, self.display.note, keeps=bool(self.options.evaluate_every))
        try:
            with self.live.ending(), directory.one_sentence_for_files(self.folder, self._latest):
                yield from self._begin(found)
                return (yield from self._to_the_end())
        except EnvironmentFailed as failure:
            raise failure.followed_by(self._what_is_saved()) from failure.__cause__

    def close(self) -> None:
        """Close all files, and end what runs beside training."""
        for resource in (self.evaluations, self.videos, self.writer, self.checkpoints, self.best, self.live):
            if resource is not None:
                resource.close()

    def _make_engine(self, plan: Plan) -> Engine:
        return engine_for(
            plan, self.algorithm, self.env, self.config["seed"], self.updates, self.options, self.display.note,
            self.live.on_event, self.folder,
        )  # fmt: skip

    def _to_the_end(self) -> Requests[tuple[State, dict[str, Any]]]:
        """Train and sum up; a callback that fails ends the run with a checkpoint."""
        try:
            return (yield from self._train())
        except CallbackFailed as failure:
            saved = yield from self._save_after()
            raise CallbackFailed(f"{failure}{saved}") from failure.__cause__

    def _train(self) -> Requests[tuple[State, dict[str, Any]]]:
        """Train and sum up; if a replica is lost as the last state is fetched, some of it is done again."""
        while True:
            reason = yield from self._loop()
            try:
                if self.signals:
                    yield from self._stop_on_signal()
                return (yield from self._finish(reason))
            except Interrupted:
                yield from self._go_back()
            except RestartsSpent as spent:
                self._give_up(spent)

    def _latest(self) -> int | None:
        """The update of the newest checkpoint."""
        return self.checkpoints.latest() if self.checkpoints else None

    def _what_is_saved(self) -> str:
        """What to say of the newest checkpoint after a failure."""
        if self.checkpoints is None:
            return ""
        latest = self._latest()
        if latest is None:
            return "; no checkpoint was written yet"
        return f"; update {latest} is saved in {self.folder}, --resume goes on from there"

    def resume_point(self, resume: bool) -> int | None:
        """The update to resume from; None to start from the beginning."""
        if self.folder is None:
            return None
        if not resume:
            directory.check_fresh(self.folder)
            return None
        directory.check_usable(self.folder)
        if not (self.folder / "config.json").exists():
            return None
        directory.check_same(self.folder, self.config)
        self.checkpoints = Checkpoints(self.folder / "checkpoints", self.options.keep)
        return self.checkpoints.latest()

    def _begin(self, found: int | None) -> Requests[None]:
        """Start, or go on from a checkpoint; again if a replica is lost meanwhile."""
        while True:
            try:
                yield from self._try_begin(found)
                return
            except Interrupted:
                self._rebuild(found)
            except (KeyboardInterrupt, SystemExit):
                if self.signals:
                    self._stop_unsaved("")
                raise

    def _try_begin(self, found: int | None) -> Requests[None]:
        self.meter = Meter()
        self.live.begin(self.plan)
        if found is not None and self.folder is not None:
            self.live.open(self.folder, self._replicas)
        if found is None:
            self.early_stopping.restore(None)
            played = yield Begin(None)
            if played is not None:
                self.meter.count(played)
            return
        snapshot, meta = self._load(found)
        yield Begin(snapshot)
        self.meter = Meter.from_json(meta["meter"])
        self.exchanges.restore(snapshot)
        self.early_stopping.restore(meta.get("early_stopping"))
        if not self.begun:  # a run that goes back has spent the time since, too
            self.wall_before = meta["wall_seconds"]
        self.live.mark("resume", f"goes on from update {found:,}", update=found)

    def _replicas(self) -> list[ReplicaStatus]:
        return self.engine.status()

    def _load(self, found: int) -> tuple[dict[str, Any], dict[str, Any]]:
        assert self.checkpoints is not None
        return load_for(self.engine, self.checkpoints, found, self.algorithm, self.updates, self.display.note)

    def _open_folder(self, found: int | None) -> None:
        """Make the run folder, now that the first update has shown that the run works."""
        if self.folder is None:
            return
        directory.begin(self.folder, self.config, self.plan.to_json())
        self.writer = MetricsWriter(self.folder, resumed_at=found)
        self.live.open(self.folder, self._replicas)
        if self.checkpoints is None:
            self.checkpoints = Checkpoints(self.folder / "checkpoints", self.options.keep)

    def _loop(self) -> Requests[str | None]:
        """Run to the last update, a signal, or something else that ends the run: its name."""
        begun = time.monotonic()
        self.begun = self.begun or begun
        saved, cost, resumed = begun, 0.0, self.meter.updates
        opened = self.writer is not None
        while self.meter.updates < self.updates and not self.signals and not self.callbacks.reason:
            before = time.monotonic()
            saving = self._saves_in_between and before - saved > self.options.pause(cost)
            try:
                if self.exchanges.is_due(self.meter.updates):
                    yield from self._exchange()
                    continue
                reports, seconds = yield Advance(*self._stride(self.pace.count, saving))
                if not opened:
                    self._open_folder(resumed)
                    if self.checkpoints and self.options.checkpoint_replay:
                        tell_size(self.algorithm, self.engine, self.display.note)
                    opened = True
                stop_if_broken(reports, self.engine, self.meter.updates, self.folder)
                if absurd := self.absurdity.first_in(reports, self.meter.updates, self.meter.mean_return):
                    self.display.note(absurd)
                made = len(reports.tally.steps)
                self.meter.count(reports.tally)
                self.meter.updates += made
                now = time.monotonic()
                if math.isnan(self.startup_seconds):
                    self.startup_seconds = time.time() - self.options.started
                self.pace.note(made, seconds, self.meter.env_steps, now)
                if drifted := self.watch.note(reports, seconds):
                    self.display.note(drifted)
                newest = (self.meter.updates, self.meter.env_steps, self.meter.mean_return, partial(_view, self.engine))
                with self.live.during("evaluating"):
                    evaluated = yield from self.evaluations.after(*newest)
                self.videos.after(self.meter.updates, partial(_view, self.engine), settled=not self.engine.pending)
                self._report(reports, now)
                reason = self._judge(evaluated)
                self._tell(UpdateEvent)
                if reason is not None:
                    return reason
                if saving:
                    deaths = self.engine.restarts
                    saved, spent = self._try_to_save()
                    if self.engine.restarts == deaths:  # else it was mostly waiting for a replica that hung
                        cost = spent
                    yield from self._move_to_better_plan()
            except Interrupted:
                yield from self._go_back()
            except Abandoned:
                self._stop_unsaved("replicas did not answer, so nothing newer is saved; ")
            except RestartsSpent as spent:
                self._give_up(spent)
            except (CallbackFailed, EnvironmentFailed):
                raise
            except RunFailed as failure:
                yield from self._be_replaced(failure)
        return self._unless_over(self.callbacks.reason)

    @property
    def _saves_in_between(self) -> bool:
        """Whether checkpoints are saved as time goes by: members of one program all go on from the same exchange."""
        return self.checkpoints is not None and not (self.exchanges.every and self.options.members > 1)

    def _exchange(self) -> Requests[None]:
        """Meet the other members of the population; what this one has made until now is saved."""
        if self.checkpoints is not None and self.options.members > 1:
            self._try_to_save()
        elif self.checkpoints is not None:  # the others read what is saved
            self._save()
        yield from self._meet(Exchange(self.meter.updates, self.meter.own_return))

    def _be_replaced(self, failure: RunFailed) -> Requests[None]:
        """Wait, after numbers that are not finite, for the next exchange; raise if there is none."""
        update = self.exchanges.next_after(self.meter.updates)
        if update is None:
            raise failure
        yield from self._meet(Exchange(update, -math.inf, failure))

    def _meet(self, exchange: Exchange) -> Requests[None]:
        found = yield exchange
        self.exchanges.met_at = exchange.update
        if found is not None:
            self.meter = Meter.from_json(found.meter)
            self.exchanges.tuned = found.tuned
            self.live.mark("exchange", f"goes on from {found.parent}", update=exchange.update)
        self.meter.own.clear()

    def _unless_over(self, reason: str | None) -> str | None:
        """A reason to stop early; none after the last update."""
        return reason if self.meter.updates < self.updates else None

    def _stride(self, count: int, saving: bool) -> tuple[int, int]:
        """How many updates to make next, and how many more may be begun meanwhile: none before a checkpoint."""
        done, every = self.meter.updates, self.evaluations.target.every
        wanted = [each.updates_to_next(done) for each in (self.evaluations, self.videos, self.exchanges)]
        stand = min([self.updates - done, *(updates for updates in wanted if updates is not None)])
        count = min(count, stand, every - done % every)
        return count, 0 if saving else min(count, stand - count)

    def _judge(self, evaluated: Sequence[Evaluated]) -> str | None:
        """Keep the best params and tell callbacks of evaluations; why the run should end, or None."""
        reason = None
        for each in evaluated:
            self._note_evaluation(each)
            if each.periodic:
                reason = self.early_stopping.judge(each.return_mean) or reason
            if self.evaluations.reach_target(each):
                self.seconds_to_target = self.wall_before + time.monotonic() - self.begun
                return TARGET_REACHED
        return self._unless_over(reason)

    def _note_evaluation(self, evaluated: Evaluated) -> None:
        beaten = self.best.is_beaten_by(evaluated)
        at = (evaluated.update, evaluated.env_steps)
        self.live.mark("evaluation", evaluated.in_words(beaten), update=evaluated.update)
        if evaluated.periodic:
            self.display.note_evaluation(evaluated.in_words(beaten))
        path = self.best.replace(evaluated, self._made_by()) if beaten else None
        self._tell(EvaluationEvent, *at, returns=evaluated.evaluation.returns, best=beaten)
        if path is not None:
            self._tell(CheckpointEvent, *at, path=path, best=True)

    def _tell(self, kind: type[Event], update: int | None = None, env_steps: int | None = None, **more: Any) -> None:
        """Tell callbacks of an event, by default one of the newest update."""
        at = self.meter.updates if update is None else update, self.meter.env_steps if env_steps is None else env_steps
        self.callbacks.call(kind, *at, self.rows[-1] if self.rows else {}, **more)

    def _go_back(self) -> Requests[None]:
        """Go on from the last checkpoint, or from the beginning: a replica was lost that cannot be replaced alone."""
        found = self._latest()
        self._rebuild(found)
        yield from self._begin(found)
        self.evaluations.forget()
        self.videos.forget()
        self.rows = [row for row in self.rows if row["update"] <= self.meter.updates]
        if self.writer is not None and self.folder is not None:
            self.writer.close()
            self.writer = MetricsWriter(self.folder, resumed_at=self.meter.updates)

    def _rebuild(self, found: int | None) -> None:
        """Start all replicas again. With fewer of them an update may be worth more or fewer steps."""
        self.engine.rebuild()
        if self.engine.plan is not self.plan:
            self.updates = same_steps(self.updates, self.plan, self.engine.plan, found or 0)
            self.exchanges.updates = self.updates
            self.plan = self.engine.plan
            self.watch.begin(self.plan)
            if self.writer is not None and self.folder is not None:
                write_json(self.folder / "plan.json", self.plan.to_json())

    @property
    def restarts(self) -> int:
        """Replicas that were started again, over the whole run."""
        return self.restarts_before + self.engine.restarts

    @property
    def lost_rows(self) -> int:
        """Rows of experience that were lost with replicas that died, over the whole run."""
        return self.lost_rows_before + self.engine.lost_rows

    def _move_to_better_plan(self) -> Requests[None]:
        """Go on from the checkpoint that was just written under a better plan, if the planner has one."""
        found = self._latest()
        if found is None or found != self.meter.updates or found == self.updates or self.signals:
            return
        plan = better_plan(self.watch, self.display.note)
        if plan is None:
            return
        before = self.plan
        self.restarts_before += self.engine.restarts
        self.lost_rows_before += self.engine.lost_rows
        try:
            self.plan, self.engine = yield from replace_engine(plan, before, self.display.note)
        except (KeyboardInterrupt, SystemExit):
            if self.signals:
                self._stop_unsaved("")
            raise
        yield from self._begin(found)
        note_lost(self.env, self.display.note)
        self.pace.begin()
        self.watch.begin(self.plan)
        if self.plan is plan:
            self.plans = (*(self.plans or (past_plan(before, 0),)), past_plan(plan, found))
            write_change(self.folder, self.plans, plan, self.display.note)
            self.live.mark("plan_change", f"{before.policy} becomes {plan.policy}")

    def _give_up(self, spent: RunFailed) -> NoReturn:
        """Save what is left, and end the run."""
        latest = self._latest()
        saved = None if latest is None else self.engine.salvage(self._load(latest)[0])
        if latest is not None and saved is not None and saved[0] > latest:
            self.meter.updates = saved[0]
            with suppress(SnapshotLost):  # then the last checkpoint is what there is
                self._write(saved[1])
        raise RestartsSpent(f"{spent}{self._what_is_saved()}") from spent

    def _report(self, reports: Reports, now: float) -> None:
        speed = self.pace.speed
        row = {
            **self.meter.row(reports),
            "seconds": self.wall_before + now - self.begun,
            "steps_per_second": speed,
            "restarts": self.restarts,
            "lost_rows": self.lost_rows,
            **self.exchanges.as_metrics(),
        }
        row |= self.evaluations.newest()
        self.rows.append(row)
        if len(self.rows) > MAX_ROWS:  # keep every second row of a very long run; all are in metrics.jsonl
            del self.rows[::2]
        if self.writer and (complaint := self.writer.write(row)):
            self.display.note(complaint)
        seconds = row["seconds"]
        self.live.report(reports, Standing(self.meter.updates, self.updates, self.meter.env_steps, seconds))
        self.processes = directory.note_processes(self.folder, self.processes, self.engine.processes())
        left = (self.updates - self.meter.updates) / max(self.meter.updates, 1) * self.meter.env_steps
        m = self.meter
        progress = Progress(
            m.updates, self.updates, m.env_steps, speed, m.mean_return, left / speed,
            row.get("eval/return_mean", math.nan), self.watch.steps_per_second,
        )  # fmt: skip
        self.display.show(progress, self.engine.status(), self.meter.streams)

    def _try_to_save(self) -> tuple[float, float]:
        """Checkpoint as `_save` does; if that fails, training goes on and it is tried again later."""
        before = time.monotonic()
        try:
            return self._save()
        except SaveFailed as error:
            self.display.note(f"{error}: training goes on, and the next checkpoint is tried in time")
            now = time.monotonic()
            return now, now - before

    def _save(self) -> tuple[float, float]:
        """Checkpoint; return when, and how long it took."""
        before, saved = time.monotonic(), False
        while not saved:
            with (
                suppress(SnapshotLost),
                self.live.during("saving"),
                self._snapshot() as snapshot,
                self.signals.patience(),
            ):
                self.meter.count(self.engine.late_tally())
                self._write(snapshot)
                saved = True
        assert self.checkpoints is not None
        self.live.mark("checkpoint", f"checkpoint of update {self.meter.updates:,}", update=self.meter.updates)
        self._tell(CheckpointEvent, path=self.checkpoints.folder / str(self.meter.updates), best=False)
        now = time.monotonic()
        return now, now - before

    def _snapshot(self) -> AbstractContextManager[Snapshot]:
        return self.engine.open_snapshot(leave=() if self.options.checkpoint_replay else PARTS)

    def _write(self, snapshot: dict[str, Any]) -> None:
        assert self.checkpoints is not None
        meta = {
            **self._made_by(),
            "meter": self.meter.to_json(),
            "early_stopping": self.early_stopping.to_json(),
            "wall_seconds": self.wall_before + time.monotonic() - self.begun,
        }
        if self.writer is not None:
            self.writer.sync()
        self.checkpoints.save(self.meter.updates, snapshot, meta)

    def _made_by(self) -> dict[str, Any]:
        return {"algorithm": self.algorithm.name, "env": self.plan.env}

    def _save_after(self) -> Requests[str]:
        """Save a checkpoint after a callback has failed; what to say of it."""
        self.callbacks = RunCallbacks((), self.config["seed"])
        if self.checkpoints:
            with suppress(Interrupted, Abandoned, RunFailed):  # then the last checkpoint is what there is
                yield from self._finish_pending()
                self._save()
        return self._what_is_saved()

    def _stop_on_signal(self) -> Requests[NoReturn]:
        """Save a checkpoint, say so, and end as the signal would have."""
        if self.checkpoints:
            try:
                self.signals.be_patient(self.options.timeout)
                yield from self._finish_pending()
                self._save()
            except (Interrupted, RestartsSpent, Abandoned):
                self._stop_unsaved("replicas were lost or did not answer, so nothing newer is saved; ")
            self.display.note(
                f"{self.signals.name}: saved update {self.meter.updates} in {self.folder}; --resume goes on from there"
            )
        raise self.signals.ending()

    def _stop_unsaved(self, why: str) -> NoReturn:
        """End as the signal would have, with the last checkpoint."""
        latest = self._latest()
        rest = "" if latest is None else f"update {latest} is saved in {self.folder}; --resume goes on from there"
        if why or rest:
            self.display.note(f"{self.signals.name}: {why}{rest}".rstrip("; "))
        raise self.signals.ending()

    def _finish_pending(self) -> Requests[None]:
        """Finish updates that were begun ahead, so that all replicas have made the same number."""
        if self.engine.pending > 0:
            reports, _ = yield Advance(min(self.engine.pending, CHUNK))
            self.meter.count(reports.tally)
            self.meter.updates += len(reports.tally.steps)
            self._report(reports, time.monotonic())

    def _finish(self, reason: str | None) -> Requests[tuple[State, dict[str, Any]]]:
        wall = self.wall_before + time.monotonic() - self.begun
        if self.checkpoints is None and self.folder:
            self._open_folder(self.meter.updates)
        yield from self._finish_pending()
        if self.checkpoints:
            self._save()
        for none_came in (self.evaluations.none_came(), self.videos.none_came()):
            if self.rows and none_came:
                self.display.note(none_came)
        view = _view(self.engine)
        with self.live.during("evaluating"):
            evaluation = yield from self.evaluations.final(view)
        if self.checkpoints is None:  # else the checkpoint has counted it
            self.meter.count(self.engine.late_tally())
        self._note_evaluation(Evaluated(self.meter.updates, self.meter.env_steps, evaluation, view))
        summary = make_summary(
            self.plan,
            self.config,
            self.meter,
            evaluation,
            self.target,
            wall_seconds=wall,
            startup_seconds=self.startup_seconds,
            steps_per_second=self.pace.speed,
            seconds_to_target=self.seconds_to_target,
            stop_reason=reason,
            best=self.best if self.options.evaluate_every else None,
            restarts=self.restarts,
            lost_rows=self.lost_rows,
            beside=self.watch.entries(),
        )
        if self.folder:
            if not self.rows and (self.folder / "summary.json").exists():  # nothing was left to do
                old = directory.read_summary(self.folder)
                summary |= {k: old[k] for k in ("startup_seconds", "steps_per_second", "wall_seconds")}
            write_json(self.folder / "summary.json", summary)
        self.live.end("finished", reason or "")
        self._tell(EndEvent, summary=summary, reason=reason)
        return jax.tree.map(np.asarray, jax.device_get(self.engine.state())), summary


def _view(engine: Engine) -> View:
    """The newest params and what belongs to them."""
    return published(engine.state())
