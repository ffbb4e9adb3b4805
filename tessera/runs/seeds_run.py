"""Trains several seeds: as one compiled program, as many at a time as memory holds, or each on processes of its own."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax

from tessera.algorithms.contract import Algorithm
from tessera.engines.factory import map_reduce
from tessera.envs.base import Environment
from tessera.errors import RunFailed
from tessera.evaluation.evaluator import Evaluator
from tessera.graph.plan import Plan
from tessera.program.initial import initial_state
from tessera.runs import directory
from tessera.runs.checkpoint import unflatten
from tessera.runs.display import Display, Progress, rounding_hint
from tessera.runs.metrics import read_metrics
from tessera.runs.population_run import MemberDisplay, PopulationRun, combined
from tessera.runs.run_loop import Run
from tessera.runs.run_options import RunOptions
from tessera.runs.seed_folders import seed_folder
from tessera.runs.seeds import joined_lines, joined_rows, joined_summary, write_joined
from tessera.runs.signals import StopSignals
from tessera.support.machine import cores

LOOK_SECONDS = 1.0
"""How often the progress of seeds on processes of their own is read."""


@dataclass(frozen=True)
class SeedRun:
    """What became of one seed."""

    state: Any
    """A `State`, as NumPy arrays; None if the seed failed."""
    summary: Any
    rows: list[dict[str, Any]]
    failed: str = ""
    """Why there is neither state nor summary."""
    error: RunFailed | None = None
    """The same as an exception, if it was raised in this process."""


@dataclass(frozen=True, kw_only=True)
class SeedsRun:
    """Runs that differ in their seeds only."""

    algorithm: Algorithm
    env: Environment
    plan: Plan
    config: dict[str, Any]
    """That of the first seed, with the number of seeds."""
    folder: Path | None
    updates: int
    target: float | None
    options: RunOptions
    evaluator: Evaluator
    display: Display
    resume: bool

    @property
    def seeds(self) -> list[int]:
        """The seeds."""
        return [self.config["seed"] + k for k in range(self.config["seeds"])]

    @contextmanager
    def shown(self, form: str) -> Iterator[None]:
        """Train within this block: a folder that another run has is refused, and progress is shown."""
        self._check_folder()
        plan, seeds, name = self.plan, self.seeds, directory.run_name(self.config)
        self.display.begin(
            f"{name} on {plan.env}, {plan.envs} environments, seeds {seeds[0]} to {seeds[-1]} as {form}; "
            f"policy {plan.policy}"
        )
        if rounding := rounding_hint(self.algorithm.schedule, plan, self.config["steps"], self.updates):
            self.display.note(rounding)
        try:
            yield
        finally:
            self.display.end()

    def _check_folder(self) -> None:
        if self.folder is None:
            return
        if self.resume and (self.folder / "config.json").exists():
            directory.check_usable(self.folder)
            directory.check_same(self.folder, self.config)
        else:
            directory.check_fresh(self.folder)

    def _open_folder(self) -> None:
        """Write what is known of all seeds before the first has ended."""
        if self.folder is not None:
            directory.begin(self.folder, self.config, self.plan.to_json())

    def as_one_program(self, at_once: int) -> dict[int, SeedRun]:
        """Train `at_once` seeds at a time, or fewer if that turns out to be too many for the device."""
        done: dict[int, SeedRun] = {}
        resume = self.resume
        while left := [seed for seed in self.seeds if seed not in done]:
            part = left[:at_once]
            if len(part) < len(self.seeds):
                self.display.note(f"seeds {part[0]} to {part[-1]}: memory does not hold all {len(self.seeds)} at once")
            try:
                done |= self._together(part, resume)
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error) or len(part) == 1:
                    raise
                at_once, resume = len(part) // 2, True
        return done

    def _together(self, seeds: Sequence[int], resume: bool) -> dict[int, SeedRun]:
        displays = [MemberDisplay(seed, self.display) for seed in seeds]
        runs = [self._run(seed, display, len(seeds)) for seed, display in zip(seeds, displays, strict=True)]
        found = [run.resume_point(resume) for run in runs]
        if resume and any(found):
            known = [update or 0 for update in found]
            where = f"update {known[0]}" if min(known) == max(known) else f"updates {min(known)} to {max(known)}"
            self.display.note(f"resuming {len(runs)} seeds in {self.folder} from {where}")
        together = PopulationRun(runs, displays, self.evaluator, self.display, self._open_folder)
        outcomes = zip(seeds, runs, together.go(found), strict=True)
        return {
            seed: SeedRun(None, None, run.rows, str(outcome), outcome)
            if isinstance(outcome, RunFailed)
            else SeedRun(*outcome, run.rows)
            for seed, run, outcome in outcomes
        }

    def _run(self, seed: int, display: MemberDisplay, members: int) -> Run:
        config = {k: v for k, v in self.config.items() if k != "seeds"} | {"seed": seed}
        options = replace(self.options, members=members)
        return Run(
            self.algorithm, self.env, self.plan, config, seed_folder(self.folder, seed), self.updates, self.target,
            display, options, self.evaluator,
        )  # fmt: skip

    def request(self) -> dict[str, Any]:
        """What another process needs to train one of the seeds, besides policy and plan, as plain data."""
        options = {k: v for k, v in asdict(self.options).items() if k not in ("started", "members", "trace", "drift")}
        start = self.config.get("init_from")
        options["init_from"] = None if start is None else f"{start['run']}@{start['checkpoint']}"
        options |= {"steps": self.config["steps"], "target_return": self.target}
        options["opponent"] = self.config.get("opponent")
        resume = self.folder is not None  # a seed whose process was lost goes on where it was
        folder = None if self.folder is None else str(self.folder)
        return {"config": self.config, "folder": folder, "options": {**options, "resume": resume}}

    def on_processes(self, train_seed: Callable[[int], dict[str, Any]]) -> dict[int, SeedRun]:
        """Train each seed in a process of its own, as many at a time as there are cores for.

        `train_seed` returns plain data: the fields of `SeedRun`. A seed whose process dies goes on in another one.
        """
        placed = self.plan.fragments
        apart = self.plan.engine != "ray" and all(fragment.platform == "cpu" for fragment in placed)
        processes = 1 if self.plan.engine == "serial" else sum(fragment.replicas for fragment in placed)
        workers = max(1, cores() // processes) if apart else 1  # else they would share a cluster or an accelerator
        self._open_folder()
        with StopSignals(lambda: None) as signals, signals.at_once(), self._watched():
            found = map_reduce(
                train_seed, list, self.seeds, engine="local", workers=workers, note=self.display.note,
                platform=self.plan.fragments[0].platform,
            )  # fmt: skip
        for seed, fields in zip(self.seeds, found, strict=True):
            if fields["failed"]:
                self.display.note(f"seed {seed} failed: {fields['failed']}")
        like = {"state": jax.eval_shape(lambda key: initial_state(self.algorithm, key, 1), jax.random.key(0))}
        return {
            seed: SeedRun(**fields | ({} if fields["failed"] else unflatten(like, fields["state"], f"seed {seed}")))
            for seed, fields in zip(self.seeds, found, strict=True)
        }

    def join(self, done: Mapping[int, SeedRun]) -> tuple[list[dict[str, float]], dict[str, Any]]:
        """Sum up all seeds together, and write and show it: (rows of metrics, summary); raise if a seed failed."""
        known = {seed: read_metrics(folder) for seed in done if (folder := seed_folder(self.folder, seed))}
        rows = joined_rows(list(known.values()) or [run.rows for run in done.values()])
        summaries = {seed: run.summary for seed, run in done.items() if run.summary is not None}
        failed = {seed: run.failed for seed, run in done.items() if run.failed}
        summary = joined_summary(self.config, summaries, failed, time.time() - self.options.started)
        if self.folder is not None:
            write_joined(self.folder, rows, summary)
        for line in joined_lines(summary, self.folder):
            self.display.note(line)
        if failed:
            first = min(failed)
            why = f"{len(failed)} of {len(done)} seeds failed, first seed {first}: {failed[first]}"
            raise RunFailed(why) from done[first].error
        return rows, summary

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Show the progress of all seeds, as their folders tell it."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(LOOK_SECONDS):
                progress = [progress_in(seed_folder(self.folder, seed), self.updates) for seed in self.seeds]
                known = [p for p in progress if p is not None]
                if known:
                    waiting = [Progress(0, self.updates, 0, math.nan, math.nan, math.nan)] * (
                        len(progress) - len(known)
                    )
                    self.display.show(combined([*known, *waiting]))

        thread = threading.Thread(target=watch, daemon=True)
        if self.folder is not None:
            thread.start()
        try:
            yield
        finally:
            over.set()
            if thread.is_alive():
                thread.join()


def progress_in(folder: Path | None, updates: int) -> Progress | None:
    """How far a run of so many updates has come, as its folder tells; None before its first row of metrics."""
    rows = [] if folder is None or not folder.exists() else read_metrics(folder)[-1:]
    if not rows:
        return None
    row = rows[0]
    left = (updates - row["update"]) / max(row["update"], 1) * row["seconds"]
    figures = (row.get("train_return_mean"), row.get("eval/return_mean"), row["steps_per_second"] if left else None)
    train, played, speed = (math.nan if figure is None else figure for figure in figures)
    return Progress(row["update"], updates, row["env_steps"], speed, train, left, played)
