"""Trains several seeds, or a population: as one compiled program, or each on processes of its own."""

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
from tessera.engines.driver.pool import keep_processes
from tessera.engines.factory import map_reduce
from tessera.envs.base import Environment
from tessera.errors import RunFailed, TesseraError
from tessera.evaluation.evaluator import Evaluator
from tessera.graph.plan import Plan
from tessera.program.initial import initial_state
from tessera.runs import directory
from tessera.runs.checkpoint import unflatten
from tessera.runs.display import Display, Progress, rounding_hint
from tessera.runs.lineage import Lineage
from tessera.runs.meeting import Meeting
from tessera.runs.metrics import read_metrics
from tessera.runs.population import Population, Tuned
from tessera.runs.population_rounds import PopulationRounds
from tessera.runs.population_run import MemberDisplay, PopulationRun, combined
from tessera.runs.run_loop import Run
from tessera.runs.run_options import RunOptions
from tessera.runs.seed_folders import seed_folder
from tessera.runs.seeds import joined_lines, joined_rows, joined_summary, write_joined
from tessera.runs.signals import StopSignals
from tessera.support.machine import cores

TrainSeed = Callable[[int], dict[str, Any]]
MANY = 1_000_000
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
    """Runs that differ in their seeds, and as members of a population in the hyper-parameters that are tuned."""

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
    population: Population | None = None
    """How hyper-parameters are tuned, if they are."""

    @property
    def seeds(self) -> list[int]:
        """The seeds."""
        return [self.config["seed"] + k for k in range(self.config["seeds"])]

    @contextmanager
    def shown(self, form: str) -> Iterator[None]:
        """Train within this block: a folder that another run has is refused, and progress is shown."""
        self._check_folder()
        plan, seeds, name = self.plan, self.seeds, directory.run_name(self.config)
        what = "" if self.population is None else f"a population of {len(seeds)}: "
        self.display.begin(
            f"{name} on {plan.env}, {plan.envs} environments, {what}seeds {seeds[0]} to {seeds[-1]} as {form}; "
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
        if self.meets and at_once < len(self.seeds):
            raise TesseraError(
                f"memory holds {at_once} of {len(self.seeds)} members at once, and they have to meet: choose a smaller "
                "population, fewer environments or a smaller network"
            )
        done: dict[int, SeedRun] = {}
        resume = self.resume
        while left := [seed for seed in self.seeds if seed not in done]:
            part = left[:at_once]
            if len(part) < len(self.seeds):
                self.display.note(f"seeds {part[0]} to {part[-1]}: memory does not hold all {len(self.seeds)} at once")
            try:
                done |= self._together(part, resume)
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error) or len(part) == 1 or self.meets:
                    raise
                at_once, resume = len(part) // 2, True
        return done

    def _together(self, seeds: Sequence[int], resume: bool) -> dict[int, SeedRun]:
        displays = [MemberDisplay(seed, self.display) for seed in seeds]
        runs = [self._run(seed, display, len(seeds)) for seed, display in zip(seeds, displays, strict=True)]
        found = self._resume_points(runs, resume)
        if resume and any(found):
            known = [update or 0 for update in found]
            where = f"update {known[0]}" if min(known) == max(known) else f"updates {min(known)} to {max(known)}"
            self.display.note(f"resuming {len(runs)} seeds in {self.folder} from {where}")
        meeting = None if self.population is None else self._meeting(runs, found[0])

        def on_first_update() -> None:
            self._open_folder()
            if meeting is not None:
                meeting.lineage.write()

        together = PopulationRun(runs, displays, self.evaluator, self.display, on_first_update, meeting)
        outcomes = zip(seeds, runs, together.go(found), strict=True)
        return {
            seed: SeedRun(None, None, run.rows, str(outcome), outcome)
            if isinstance(outcome, RunFailed)
            else SeedRun(*outcome, run.rows)
            for seed, run, outcome in outcomes
        }

    @property
    def meets(self) -> bool:
        """Whether members copy from each other."""
        return bool(self.options.exchange_every)

    def _resume_points(self, runs: Sequence[Run], resume: bool) -> list[int | None]:
        """Where each goes on. Members that meet go on from the newest update that all of them have saved."""
        found = [run.resume_point(resume) for run in runs]
        if not (self.meets and resume):
            return found
        saved = [set() if run.checkpoints is None else set(run.checkpoints.updates()) for run in runs]
        common = max(set.intersection(*saved), default=None)
        if common is None and max(map(max, filter(None, saved)), default=0) > self.options.exchange_every:
            raise TesseraError(
                f"the members in {self.folder} have no checkpoint of one update in common, so they cannot go on "
                "together: put back what is missing, or start a new run"
            )
        for run in runs:
            if run.checkpoints is not None:
                run.checkpoints.forget_after(common)
        return [common] * len(runs)

    def _first_values(self) -> dict[int, Tuned]:
        """What each member begins with of what is tuned, by its seed."""
        members = {seed: self.member(seed) for seed in self.seeds}
        return {seed: {name: getattr(member, name) for name in member.tuned} for seed, member in members.items()}

    def _meeting(self, runs: Sequence[Run], found: int | None) -> Meeting:
        assert self.population is not None
        lineage = Lineage(self.folder, self.seeds)
        if found is not None and self.meets:
            lineage.resume(found)
        if not lineage.rows:
            lineage.begin(list(self._first_values().values()))
        return Meeting(self.population, self.config["seed"], lineage, self.display.note, self.options.keep)

    def member(self, seed: int) -> Algorithm:
        """The algorithm of a member: with the values that it begins with of what is tuned."""
        if self.population is None:
            return self.algorithm
        first: Any = self.population.first(self.config["seed"], seed - self.config["seed"])
        return replace(self.algorithm, **first, tuned=tuple(first))

    def _run(self, seed: int, display: MemberDisplay, members: int) -> Run:
        options = replace(self.options, members=members)
        if self.meets:  # which are old is known once all have saved
            options = replace(options, keep=MANY)
        return Run(
            self.member(seed), self.env, self.plan, self._member_config(seed), seed_folder(self.folder, seed),
            self.updates, self.target, display, options, self.evaluator,
        )  # fmt: skip

    def request(self) -> dict[str, Any]:
        """What another process needs to train one of the seeds, besides policy and plan, as plain data."""
        options = {
            k: v
            for k, v in asdict(self.options).items()
            if k not in ("started", "members", "trace", "drift", "exchange_every", "exchanged")
        }
        start = self.config.get("init_from")
        options["init_from"] = None if start is None else f"{start['run']}@{start['checkpoint']}"
        options |= {"steps": self.config["steps"], "target_return": self.target}
        options["opponent"] = self.config.get("opponent")
        resume = self.folder is not None  # a seed whose process was lost goes on where it was
        folder = None if self.folder is None else str(self.folder)
        return {"config": self.config, "folder": folder, "options": {**options, "resume": resume}}

    def on_processes(self, trainer: Callable[[dict[str, Any]], TrainSeed]) -> dict[int, SeedRun]:
        """Train each seed in a process of its own, as many at a time as there are cores for.

        `trainer` makes what trains a seed, from what its request is to hold besides: it returns plain data, the fields
        of `SeedRun`. A seed whose process dies goes on in another one.
        """
        placed = self.plan.fragments
        apart = self.plan.engine != "ray" and all(fragment.platform == "cpu" for fragment in placed)
        processes = 1 if self.plan.engine == "serial" else sum(fragment.replicas for fragment in placed)
        workers = max(1, cores() // processes) if apart else 1  # else they would share a cluster or an accelerator
        self._open_folder()
        with StopSignals(lambda: None) as signals, signals.at_once(), self._watched():
            how: dict[str, Any] = {
                "engine": "local",
                "workers": workers,
                "note": self.display.note,
                "platform": placed[0].platform,
            }

            def train_all(train_seed: TrainSeed) -> list[dict[str, Any]]:
                return map_reduce(train_seed, list, self.seeds, **how)

            found = self._in_rounds(trainer, train_all) if self.meets else train_all(trainer(self._members_request()))
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

    def _in_rounds(
        self, trainer: Callable[[dict[str, Any]], TrainSeed], train_all: Callable[[TrainSeed], list[dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        """Train all members to one exchange after the other, and to the end."""
        if self.folder is None:
            raise TesseraError(
                "these members train in processes of their own and copy each other's checkpoints: name a folder "
                "(run_dir, or --run-dir)"
            )
        assert self.population is not None
        first = self._first_values()
        lineage = Lineage(self.folder, self.seeds)
        meeting = Meeting(self.population, self.config["seed"], lineage, self.display.note, self.options.keep)
        rounds = PopulationRounds(meeting, self.folder, self._member_config, self.plan.to_json(), self.options.keep)
        exchanged = rounds.begin(list(first.values()), self.resume)
        given = self._members_request()
        with keep_processes():
            while True:
                found = train_all(trainer({**given, "exchanged": exchanged}))
                if not any("score" in fields for fields in found):
                    return found
                exchanged += self.options.exchange_every
                rounds.exchange(exchanged, found)

    def _members_request(self) -> dict[str, Any]:
        """What another process needs to know of the members; their lineage begins in the folder, if there is one."""
        if self.population is None:
            return {}
        first = self._first_values()
        lineage = Lineage(self.folder, self.seeds)
        if not self.meets and self.folder is not None:
            lineage.begin(list(first.values()))
            lineage.write()
        return {"first": {str(seed): mine for seed, mine in first.items()}, "exchanged": 0}

    def _member_config(self, seed: int) -> dict[str, Any]:
        """The configuration of one of the runs."""
        config = {k: v for k, v in self.config.items() if k != "seeds"} | {"seed": seed}
        return config | {"algorithm": directory.algorithm_config(self.member(seed))}

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
