"""Is the planner right? Predicted and measured steps/s, lag and memory of many plans, and what its choice loses.

    python benchmarks/planner.py                         all pairs on this machine
    python benchmarks/planner.py --pairs ppo-cartpole --rounds 5
    python benchmarks/planner.py --page                  and write docs/planner.md
    python benchmarks/planner.py --pairs ppo-bimodal --plans "env@2/act+store+grad@2/apply" auto

For each pair of an algorithm and an environment a profile is taken, and gone on with if it was cut short because so
much had to be compiled. Every plan is predicted from it alone. Then all plans are started, those that compiled twice,
and run in turn, round after round. A run is made again, once, if a core was not as fast as in the profile: others use
this machine. Nothing is fitted to what is measured here. `auto` is the plan that the search chooses.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import tyro

from tessera import algorithms
from tessera.channels.link import Flow
from tessera.cli.profile import progress_bar
from tessera.engines.factory import make_engine
from tessera.engines.simulated.costs import Costs
from tessera.engines.simulated.deployment import on_one_machine
from tessera.engines.simulated.engine import SimulatedEngine
from tessera.engines.simulated.prediction import Prediction
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.planning.prepare import prepare_plan
from tessera.planning.search import search_plans
from tessera.profiling.core_speed import CoreSpeed
from tessera.profiling.profile import Profile, circumstances
from tessera.profiling.take import saved_or_taken
from tessera.support.accelerators import share_accelerators
from tessera.support.cache import cache_folder
from tessera.support.machine import cores, forget_peak_memory, peak_memory

sys.path.insert(0, str(Path(__file__).resolve().parent))

PAIRS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo-cartpole-device": ("ppo", "gymnax:CartPole-v1", {}),
    "dqn-acrobot-device": ("dqn", "gymnax:Acrobot-v1", {}),
    "ppo-cartpole": ("ppo", "CartPole-v1", {}),
    "ppo-halfcheetah": ("ppo", "HalfCheetah-v5", {}),
    "ppo-sleeping": ("ppo", "py:sleeping_env.SleepingEnv", {}),
    "ppo-breakout-device": ("ppo", "gymnax:Breakout-MinAtar", {}),
}
MORE_PAIRS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo-bimodal": ("ppo", "py:sleeping_env.BimodalEnv", {}),
    "impala-cartpole": ("impala", "CartPole-v1", {}),
    "ppo-pong": ("ppo", "ale:pong", {}),
}
"""Pairs that are run when they are named."""
AUTO = "auto"
RULE = "fused:devices=1"
"""What is chosen where no profile is known."""
PLANS = (
    RULE,
    "single_learner_coarse:actors=1",
    "single_learner_coarse:actors=2",
    "single_learner_coarse:actors=4",
    "single_learner_fine:actors=2",
    "multi_learner:learners=2",
    "central:workers=2",
    "split_inference:workers=2",
    "env+act@2/store+grad/apply",
    AUTO,
)
ASYNCHRONOUS = ("single_learner_coarse:actors=2,mode=async", "central:workers=2,mode=async")
"""Plans that learn by another recipe: their speed and lag are predicted, but they are not compared with the others."""
SIMULATED_UPDATES = 40
SETTLING = 3
"""Updates of an asynchronous plan that are not timed, each time."""
WINDOW = 0.25
"""Seconds that one call of an engine takes, about."""
QUIET = 0.08
"""Relative difference of a core's speed in a run from that in the profile up to which the run counts."""
MOST_REPEATS = 1
"""Times that a run is made again at the most because the machine was not as fast as in the profile."""


@dataclass
class Options:
    """What to run."""

    pairs: tuple[str, ...] = tuple(PAIRS)
    plans: tuple[str, ...] = PLANS
    asynchronous: tuple[str, ...] = ASYNCHRONOUS
    rounds: int = 5
    """Times that each plan is measured."""
    seconds: float = 3.0
    """How long each time."""
    budget: float = 60.0
    """Seconds for a profile."""
    takes: int = 4
    """Profiles that are taken at the most, each of which goes on where the last was cut short."""
    fresh: bool = True
    """Take a profile even if one is saved."""
    output: Path | None = None
    """File for all figures, as JSON, after each pair."""
    inputs: tuple[Path, ...] = ()
    """Such files, of runs before: their figures are shown, or written with --page, and nothing is run."""
    page: bool = False
    """Write docs/planner.md and docs/planner.png."""


@dataclass
class Row:
    """One plan: what was predicted, and what was measured."""

    plan: str
    colouring: str
    asynchronous: bool
    predicted: float
    bottleneck: str
    scalars: float
    """Steps/s by three numbers: what playing, learning and applying take."""
    lag_predicted: float
    memory_predicted: dict[str, int]
    """Fragment -> bytes of one of its processes."""
    measured: list[float] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    """Of a core at each of these times, relative to when the profile was taken."""
    repeats: int = 0
    """Runs that do not count, because a core was not as fast as in the profile."""
    expected: float = 0.0
    """What is predicted for cores of that speed."""
    lag: float = 0.0
    memory: dict[str, int] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """Of all rounds."""
        return statistics.fmean(self.measured)

    @property
    def interval(self) -> tuple[float, float]:
        """Of the mean, 95 %."""
        half = 1.96 * statistics.stdev(self.measured) / math.sqrt(len(self.measured)) if len(self.measured) > 1 else 0.0
        return self.mean - half, self.mean + half

    @property
    def error(self) -> float:
        """Of the prediction for cores as fast as they were then, relative to what was measured."""
        return self.expected / self.mean - 1

    @property
    def memory_errors(self) -> list[float]:
        """Of each fragment whose processes were seen."""
        return [self.memory_predicted[title] / held - 1 for title, held in self.memory.items()]

    @property
    def lag_is_near(self) -> bool:
        """Whether the mean lag is within 20 %, or 0.3 updates."""
        return abs(self.lag_predicted - self.lag) <= max(0.2 * self.lag, 0.3)


@dataclass
class Pair:
    """All plans of one algorithm in one environment."""

    name: str
    profile_seconds: float
    seconds: float
    """How long each plan was run, each time."""
    rows: list[Row]
    takes: int = 1
    """Profiles that were taken until nothing was left out."""

    @property
    def speed(self) -> float:
        """Of a core while plans were run, relative to when the profile was taken."""
        return statistics.fmean(speed for r in self.rows for speed in r.speeds)

    @property
    def repeats(self) -> int:
        """Runs that do not count."""
        return sum(r.repeats for r in self.rows)

    @property
    def compared(self) -> list[Row]:
        """Plans that learn the same, the fastest first."""
        return sorted((r for r in self.rows if not r.asynchronous), key=lambda r: -r.mean)

    def regret(self, chosen: Row) -> float:
        """By how much a plan is slower than the fastest one, beyond the intervals of both."""
        best = self.compared[0]
        return 0.0 if chosen is best else max(0.0, 1 - chosen.interval[1] / best.interval[0])

    @property
    def chosen(self) -> Row:
        """The choice of the search, or of all plans here that with the highest prediction."""
        found = [r for r in self.compared if r.plan == AUTO]
        return found[0] if found else max(self.compared, key=lambda r: r.predicted)

    @property
    def tau(self) -> float:
        """Kendall's, over pairs of plans whose measured intervals are disjoint."""
        agree = total = 0
        rows = self.compared
        for i, a in enumerate(rows):
            for b in rows[i + 1 :]:
                (a_low, a_high), (b_low, b_high) = a.interval, b.interval
                if a_low > b_high or b_low > a_high:
                    total += 1
                    agree += 1 if (a.predicted - b.predicted) * (a.mean - b.mean) > 0 else -1
        return agree / total if total else 1.0


def run_pair(name: str, options: Options) -> Pair:
    """Predict and measure all plans of one pair."""
    algorithm, env, settings = {**PAIRS, **MORE_PAIRS}[name]
    chosen = algorithms.get(algorithm)(**settings)
    bound, environment, base = prepare_plan(chosen, env, None)
    how: dict[str, Any] = {"seconds": options.budget}
    profile = saved_or_taken(bound, environment, base, progress_bar, again=options.fresh, **how)
    takes = 1
    while profile.skipped and takes < options.takes:
        profile, takes = saved_or_taken(bound, environment, base, progress_bar, complete=True, **how), takes + 1
    rows: list[Row] = []
    running: list[Running] = []
    try:
        for text in (*options.plans, *options.asynchronous):
            try:
                policy = _choice(chosen, env, profile) if text == AUTO else text
                shape = {"envs": base.envs, "groups": base.groups}
                bound, environment, plan = prepare_plan(chosen, env, policy, **shape)
                row = predict(text, policy, plan, bound, environment, profile)
            except TesseraError as error:
                print(f"  {text}: {error}")
                continue
            rows.append(row)
            running.append(Running(plan, bound, environment))
        for _ in range(options.rounds):
            for row, run in zip(rows, running, strict=True):
                tried = quiet_run(run, options.seconds, profile)
                row.measured.append(tried.steps_per_second)
                row.speeds.append(tried.speed)
                row.repeats += tried.repeats
        for row, run in zip(rows, running, strict=True):
            row.lag, row.memory = run.lag, run.memory()
            row.expected = simulated(*run.planned, profile, statistics.fmean(row.speeds)).steps_per_second
    finally:
        for run in running:
            run.close()
    pair = Pair(name, profile.seconds, options.seconds, rows, takes)
    show(pair)
    return pair


@dataclass(frozen=True)
class Measured:
    """One run of a plan."""

    steps_per_second: float
    speed: float
    """Of a core meanwhile, relative to when the profile was taken."""
    repeats: int = 0

    @property
    def unrest(self) -> float:
        """By how much that speed differs from the one in the profile."""
        return abs(self.speed - 1)


def quiet_run(run: Running, seconds: float, profile: Profile) -> Measured:
    """Measure a plan, again while somebody else slows the machine down; what counts is the quietest run."""
    tried: list[Measured] = []
    while len(tried) <= MOST_REPEATS and not (tried and tried[-1].unrest <= QUIET):
        speed = CoreSpeed(on_accelerators=profile.machine.accelerators > 0)
        rate = run.measure(seconds, speed)
        tried.append(Measured(rate, speed.mean / profile.speed))
    return replace(min(tried, key=lambda each: each.unrest), repeats=len(tried) - 1)


def _choice(algorithm: Any, env: str, profile: Profile) -> str:
    """The colouring that the search chooses."""
    return search_plans(algorithm, env, profile.costs, profile.machine).best.policy.name


def predict(text: str, colouring: str, plan: Plan, algorithm: Any, env: Any, profile: Profile) -> Row:
    """What is predicted of a plan."""
    found = simulated(plan, algorithm, env, profile)
    return Row(
        plan=text,
        colouring=colouring,
        asynchronous=plan.asynchronous,
        predicted=found.steps_per_second,
        bottleneck=found.bottleneck,
        scalars=by_three_scalars(plan, profile.costs, algorithm, env),
        lag_predicted=oldest(found.flows),
        memory_predicted=found.memory,
    )


def simulated(plan: Plan, algorithm: Any, env: Any, profile: Profile, speed: float = 1.0) -> Prediction:
    """What a plan would do on this machine, with cores of a speed relative to when the profile was taken."""
    there = on_one_machine(plan, profile.machine.cores, profile.machine.accelerators)
    there = replace(there, kinds=tuple(replace(kind, speed=speed, accelerator_speed=1.0) for kind in there.kinds))
    return SimulatedEngine(plan, algorithm, env, profile.costs, deployment=there).run(SIMULATED_UPDATES)


def by_three_scalars(plan: Plan, costs: Costs, algorithm: Any, env: Any) -> float:
    """Steps/s by what playing, learning and applying take alone, shared out over replicas; fragments overlap, and
    messages, waiting and the number of cores are left out: what tools do that ask for three numbers."""
    alone = prepare_plan(algorithm, env, "env+act/store+grad/apply", envs=plan.envs, groups=plan.groups, lag=plan.lag)
    found = SimulatedEngine(alone[2], alone[0], alone[1], costs, cores=64).run(10)
    seconds = {title: busy / found.updates_per_second for title, busy in found.busy.items()}
    play, learn, apply = (seconds[title] for title in ("env+act", "store+grad", "apply"))
    of = {"env": play / 2, "act": play / 2, "store": learn / 2, "grad": learn / 2, "apply": apply}
    slowest = max(sum(of[o] for o in f.operators) / f.replicas for f in plan.fragments)
    return plan.envs * algorithm.schedule.steps / slowest


def oldest(flows: dict[str, Flow]) -> float:
    """The mean lag of the stream that is the oldest."""
    return max((flow.lag_mean for flow in flows.values() if flow.lags), default=0.0)


def compiled_programs() -> int:
    """How many compiled programs are kept."""
    folder = cache_folder() / "xla"
    return sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0


class Running:
    """A plan under way."""

    def __init__(self, plan: Plan, algorithm: Any, env: Any) -> None:
        self.steps = float(plan.envs_per_update) * algorithm.schedule.steps
        rest: dict[str, Any] = {} if plan.engine == "serial" else {"note": lambda text: None}
        self.flows: dict[str, Flow] = {}
        self.planned, self._rest = (plan, algorithm, env), rest
        before = compiled_programs()
        self._start()
        if compiled_programs() > before:  # what compiling leaves behind in a process is not there the next time
            self.close()
            self._start()
        for pid in getattr(self.engine, "processes", dict)().values():
            forget_peak_memory(pid)  # of compiling

    def _start(self) -> None:
        self.engine = make_engine(*self.planned, 0, 1 << 24, None, **self._rest)
        self.engine.start()
        for _ in range(3):
            begun = time.perf_counter()
            self.engine.advance(1)
        self.chunk = max(1, min(1024, int(WINDOW / (time.perf_counter() - begun))))
        self.engine.advance(self.chunk)

    @property
    def lag(self) -> float:
        """Mean lag while it was measured."""
        return oldest(self.flows)

    def memory(self) -> dict[str, int]:
        """Fragment -> the most that one of its processes has held."""
        held: dict[str, int] = {}
        for title, pid in getattr(self.engine, "processes", dict)().items():
            fragment = title.rpartition("/")[0]
            held[fragment] = max(peak_memory(pid), held.get(fragment, 0))
        return held

    def measure(self, seconds: float, speed: CoreSpeed) -> float:
        """Steps/s, once what actors have played meanwhile is learned from: those that do not wait have gone on."""
        if self.planned[0].asynchronous:
            self.engine.advance(max(SETTLING, self.chunk))
        begun, updates = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            for stream, flow in self.engine.advance(self.chunk, ahead=self.chunk).flows.items():
                self.flows.setdefault(stream, Flow()).merge(flow)
            updates += self.chunk
            speed.sample()
        rate = updates * self.steps / (time.perf_counter() - begun)
        while self.engine.pending:
            self.engine.advance(min(self.chunk, self.engine.pending))
        return rate

    def close(self) -> None:
        """End it."""
        self.engine.close()


def show(pair: Pair) -> None:
    """Print what was found."""
    print(f"{pair.name}: chosen {pair.chosen.colouring}, best {pair.compared[0].colouring}, ", end="")
    print(f"regret {pair.regret(pair.chosen):.1%}, tau {pair.tau:.2f}, ", end="")
    print(f"profile {pair.takes} x 60 s at the most, speed of a core since then {pair.speed:.2f}, ", end="")
    print(f"{pair.repeats} runs made again")
    for r in [*pair.compared, *(r for r in pair.rows if r.asynchronous)]:
        low, high = r.interval
        memory = max(map(abs, r.memory_errors), default=0.0)
        print(
            f"  {r.plan:42s} predicted {r.predicted:10,.0f}  measured {r.mean:10,.0f} ({low:,.0f} to {high:,.0f})"
            f"  {r.error:+6.1%}  lag {r.lag_predicted:.2f} {r.lag:.2f}  memory {memory:.0%}  {r.bottleneck}"
        )
    sys.stdout.flush()


def regrets(pairs: list[Pair]) -> dict[str, list[float]]:
    """What several ways to choose lose, pair by pair."""
    names = [r.plan for r in pairs[0].rows if not r.asynchronous and r.plan != AUTO]

    def of(pair: Pair, plan: str) -> float:
        return next((pair.regret(r) for r in pair.compared if r.plan == plan), 1.0)

    single = min(names, key=lambda name: statistics.fmean(of(pair, name) for pair in pairs))
    every = [[pair.regret(r) for r in pair.compared if r.plan != AUTO] for pair in pairs]
    return {
        "the planner": [pair.regret(pair.chosen) for pair in pairs],
        f"the rule (`{RULE}`)": [of(pair, RULE) for pair in pairs],
        "a random choice (its mean)": [statistics.fmean(each) for each in every],
        "three scalars": [
            pair.regret(max((r for r in pair.compared if r.plan != AUTO), key=lambda r: r.scalars)) for pair in pairs
        ],
        f"the best single policy (`{single}`)": [of(pair, single) for pair in pairs],
    }


def summary(pairs: list[Pair]) -> list[str]:
    """What is asked of a planner, over all pairs."""
    lost = regrets(pairs)["the planner"]
    taus = [pair.tau for pair in pairs]
    rows = [r for pair in pairs for r in pair.rows]
    memory = [abs(error) for r in rows for error in r.memory_errors]
    near = [r.lag_is_near for r in rows if r.asynchronous]
    return [
        f"regret    mean {statistics.fmean(lost):.1%}, worst {max(lost):.1%}",
        f"tau       mean {statistics.fmean(taus):.2f}, worst {min(taus):.2f}",
        f"error     median {statistics.median(abs(r.error) for r in rows):.0%}, 90th percentile "
        f"{quantile((abs(r.error) for r in rows), 0.9):.0%}",
        f"lag       {sum(near)} of {len(near)} asynchronous plans within 20 %, or 0.3 updates",
        f"memory    median {statistics.median(memory or [0.0]):.0%}, worst {max(memory or [0.0]):.0%}, per process",
    ]


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which that share of them is."""
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))]


PAGE = """# Is the planner right?

Made by `python benchmarks/planner.py --page` on {cores} cores ({processor}). For each pair of an algorithm and an
environment a profile was taken ({budget:.0f} s asked), and every plan predicted from it alone. Then all plans were
started, and run in turn for some seconds, several times. Nothing was fitted to what was measured.

    {summary}

- *Regret*: by how much the plan that the search chose (`auto`) is slower than the fastest one here, beyond the
  intervals (95 %) of both.
- *Tau*: Kendall's, over pairs of plans whose measured intervals are disjoint.
- *Error*: of predicted steps/s, over all plans. Others share this machine, and its cores are not always as fast. Their
  speed was measured with the profile and during every run, and errors are of predictions for cores of that speed.
  *Speed* is by how much it had changed; a run is made again, once, if that is more than {quiet:.0%}.
  *Lag*: mean age of what is learned from, in updates. *Memory*: the most that a process has held; its programs were
  compiled before.

What other ways to choose lose, by the same measure:

| chosen by | mean regret | worst |
| --- | --- | --- |
{others}

*Three scalars*: what playing, learning and applying take, each shared out over its replicas, as tools do that ask for
three numbers.

![predicted and measured steps per second](planner.png)

[planner_h200.md](planner_h200.md) and [planner_ray.md](planner_ray.md) have plans on an accelerator and on three Ray
nodes. A first profile on a machine that has compiled nothing yet gets less far within its minute. It says which plans
it did not try, predictions of plans like these are rough, and the next `tessera profile` tries them.
"""


def write_page(pairs: list[Pair], options: Options) -> None:
    """Write docs/planner.md and its picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    docs = Path(__file__).resolve().parent.parent / "docs"
    others = [f"| {who} | {statistics.fmean(lost):.1%} | {max(lost):.1%} |" for who, lost in regrets(pairs).items()]
    text = PAGE.format(
        quiet=QUIET, cores=cores(), processor=circumstances()["processor"], budget=options.budget,
        summary="\n    ".join(summary(pairs)), others="\n".join(others),
    )  # fmt: skip
    figure, axes = pyplot.subplots(figsize=(7, 6))
    for pair in pairs:
        algorithm, env, _ = {**PAIRS, **MORE_PAIRS}[pair.name]
        text += f"\n## {pair.name}\n\n`{algorithm} {env}`: regret {pair.regret(pair.chosen):.1%}, tau {pair.tau:.2f}, "
        rounds = len(pair.rows[0].measured)
        text += f"speed {pair.speed:.2f}, {rounds} × {pair.seconds:g} s, {pair.repeats} made again, "
        text += f"{pair.takes} × `tessera profile`, the last for {pair.profile_seconds:.0f} s; "
        text += f"chosen: `{pair.chosen.colouring}`.\n\n| plan | predicted | measured (95 %) | error | lag | memory |\n"
        text += "| --- | --- | --- | --- | --- | --- |\n"
        for r in [*pair.compared, *(r for r in pair.rows if r.asynchronous)]:
            low, high = r.interval
            worst = max(r.memory_errors, key=abs, default=None)
            text += f"| `{r.plan}` | {r.predicted:,.0f} | {r.mean:,.0f} ({low:,.0f} to {high:,.0f}) | {r.error:+.0%} | "
            text += f"{f'{r.lag_predicted:.2f}, was {r.lag:.2f}' if r.asynchronous else ''} | "
            text += f"{'' if worst is None else f'{worst:+.0%}'} |\n"
        axes.plot([r.mean for r in pair.rows], [r.predicted for r in pair.rows], "o", label=pair.name)
    ends = axes.get_xlim()
    axes.plot(ends, ends, "-", color="0.7")
    axes.set(xscale="log", yscale="log", xlabel="measured steps/s", ylabel="predicted steps/s")
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(docs / "planner.png", dpi=110)
    (docs / "planner.md").write_text(text)


def read_pairs(path: Path) -> list[Pair]:
    """Pairs of a run before."""
    found = json.loads(path.read_text())["pairs"]
    known = {f.name for f in fields(Row)}
    return [
        Pair(
            p["name"],
            p["profile_seconds"],
            p["seconds"],
            [Row(**{k: v for k, v in r.items() if k in known}) for r in p["rows"]],
            p.get("takes", 1),
        )
        for p in found
    ]


def main(options: Options) -> None:
    """Run all pairs."""
    share_accelerators()  # many plans are under way at a time
    pairs = [pair for path in options.inputs for pair in read_pairs(path)]
    for pair in pairs:
        show(pair)
    for name in () if options.inputs else options.pairs:
        print(name, flush=True)
        pairs.append(run_pair(name, options))
        if options.output is not None:
            options.output.write_text(
                json.dumps({"cores": cores(), "pairs": list(map(asdict, pairs))}, indent=1) + "\n"
            )
    print("\n".join(summary(pairs)))
    for who, lost in regrets(pairs).items():
        print(f"  {who}: regret {statistics.fmean(lost):.1%}, worst {max(lost):.1%}")
    if options.page:
        write_page(pairs, options)


if __name__ == "__main__":
    main(tyro.cli(Options))
