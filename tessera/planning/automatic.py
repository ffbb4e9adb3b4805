"""The policy of a run whose user leaves it to Tessera: the best by a profile, or by a rule where there is none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tessera import policies
from tessera.algorithms.contract import Algorithm
from tessera.envs import make as make_env
from tessera.envs.base import Environment, HostEnvironment, is_device
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.planning.prepare import prepare_plan, reference_plan
from tessera.profiling import Bar, Progress
from tessera.support.accelerators import share_accelerators

if TYPE_CHECKING:  # only a run that has a profile, or takes one, pays for these
    from tessera.engines.simulated.cluster import Cluster
    from tessera.engines.simulated.prediction import Prediction
    from tessera.planning.ranking import Ranking
    from tessera.profiling.profile import Profile

AUTO = "auto"
"""The name that asks for a policy to be found."""
LONG = 300.0
"""Seconds of a run that are worth a profile that nobody asked for."""
FEW_STEPS = 3000
"""Steps of a run that does not last so long, whatever a step takes."""
MOMENT = 0.1
"""Seconds for which an environment is played to see how long a run would last."""

Note = Callable[[str], None]
Planned = tuple[Algorithm, Environment, Plan]


@dataclass(frozen=True)
class Prepared:
    """A run that was planned automatically."""

    algorithm: Algorithm
    env: Environment
    plan: Plan
    prediction: Prediction | None = None
    """What the plan is expected to do; None if it was chosen by a rule."""


def rank_plans(
    algorithm: Algorithm, env: Any, how: dict[str, Any], bar: Bar, cluster: Cluster | None = None, **options: Any
) -> Ranking:
    """Rank the plans of a run by its profile, which is taken, before a progress bar, if there is none.

    `how` are the options of `search`, `options` those of `prepare_plan`. With a cluster plans are for its nodes.
    """
    share_accelerators()
    _refuse_mesh(options)
    if cluster is None:
        planned = reference_plan(algorithm, env, **options)
        return _ranked(planned, _find_or_take(planned, bar), how, options)
    from tessera.planning.search import search
    from tessera.planning.simulate import with_calls_of_ray
    from tessera.planning.workload import Workload
    from tessera.profiling.ray_calls import saved_calls

    planned = reference_plan(algorithm, env, **{**options, "engine": "ray"})
    profile = profile_for_cluster(algorithm, env, planned, bar, options.get("precision", "f32"))
    costs = with_calls_of_ray(profile.costs, saved_calls())
    return search(Workload.on_cluster(planned, costs, profile.machine, cluster, options.get("lag")), **how)


def profile_for_cluster(algorithm: Algorithm, env: Any, planned: Planned, bar: Bar, precision: str) -> Profile:
    """The saved profile of what a plan runs; else one with as many environments as this machine has by default, which
    is taken, before a progress bar, if there is none."""
    profile = _find(planned)
    return profile or _find_or_take(prepare_plan(algorithm, env, precision=precision), bar)


def prepare_automatically(
    algorithm: Algorithm,
    env: Any,
    *,
    asked: bool,
    steps: int,
    asynchronous: bool = False,
    note: Note = lambda line: None,
    **options: Any,
) -> Prepared:
    """As `prepare_plan`, under the policy that is predicted to be the best.

    Who has asked for it gets a profile taken if there is none. Otherwise that is done only for a run that is expected
    to last long, and nothing is searched where the user has named devices or an engine.
    """
    if asked or options.get("engine") not in (None, "serial"):
        share_accelerators()  # before an environment looks for devices
    environment = make_env(env, options.get("precision", "f32"))
    if not is_device(environment):
        share_accelerators()
    if asked:
        _refuse_mesh(options)
    planned = (reference_plan if asked else prepare_plan)(algorithm, environment, **options)
    profile = None
    if asked or (options.get("engine") is None and options.get("mesh") is None):
        profile = _find(planned)
        if profile is None and (asked or _lasts_long(environment, steps)):
            plan = planned[2]
            note(f"measuring what {plan.algorithm} costs in {plan.env}, for up to 60 s; it is kept for later runs")
            profile = _find_or_take(planned, _no_bar)
    if profile is None:
        return Prepared(*planned)
    # this process has taken all memory of its accelerators if its environment is on them and nobody has asked
    alone = not asked and is_device(environment) and profile.machine.accelerators > 0
    ranking = _ranked(planned, profile, {"asks_async": asynchronous, "alone": alone}, options)
    if profile.gap:
        note(profile.gap)
    from tessera.planning.explain import why_best

    policy, text = policies.named(ranking.best.policy)
    again = prepare_plan(algorithm, environment, policy, reason=f"{text}, because {why_best(ranking)}", **options)
    return Prepared(*again, prediction=ranking.best.prediction)


def _ranked(planned: Planned, profile: Profile, how: dict[str, Any], options: dict[str, Any]) -> Ranking:
    from tessera.planning.search import search
    from tessera.planning.workload import Workload

    alone = how.get("alone", False) or options.get("engine") == "serial"
    workload = Workload(*planned, profile.costs, profile.machine, options.get("lag"))
    return search(workload, **{**how, "alone": alone})


def _refuse_mesh(options: dict[str, Any]) -> None:
    if options.get("mesh") is not None:
        raise TesseraError(
            "--policy auto chooses devices too: leave out --mesh, or name the policy that should have it"
        )


def _lasts_long(env: Environment, steps: int) -> bool:
    """Whether a run is expected to last long under the rule, by the time that its environment takes alone."""
    if not isinstance(env, HostEnvironment) or steps < FEW_STEPS:
        return False
    from tessera.envs.checks.vector import seconds_of_a_step

    return steps * seconds_of_a_step(env, MOMENT) > LONG


def _find(planned: Planned) -> Profile | None:
    from tessera.profiling.profile import find_profile

    return find_profile(*planned)


def _find_or_take(planned: Planned, bar: Bar) -> Profile:
    from tessera.profiling.take import saved_or_taken

    return saved_or_taken(*planned, bar)


def _no_bar() -> contextlib.AbstractContextManager[Progress]:
    return contextlib.nullcontext(lambda what, share: None)
