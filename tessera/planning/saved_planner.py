"""The planner of a run: by the saved profile of this machine, if there is one."""

from __future__ import annotations

from collections.abc import Callable

from tessera.algorithms.contract import Algorithm
from tessera.envs.base import Environment
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.planning.planner import Measured, Planner
from tessera.profiling.profile import Profile, find_profile


def saved_planner(algorithm: Algorithm, env: Environment, plan: Plan, note: Callable[[str], None]) -> Planner | None:
    """A planner by the saved profile of what a plan runs; None if there is none that still holds."""
    try:
        profile = find_profile(algorithm, env, plan)
    except TesseraError as damaged:
        note(str(damaged))
        return None
    return None if profile is None else _planner(profile, algorithm, env)


def _planner(profile: Profile, algorithm: Algorithm, env: Environment) -> Planner:
    # only a run that has a profile pays for the simulator and the search
    from tessera.engines.simulated.prediction import Prediction
    from tessera.planning.better_plans import better_plan
    from tessera.planning.profile_planner import ProfilePlanner
    from tessera.planning.workload import Workload

    def better(plan: Plan, prediction: Prediction | None, measured: Measured) -> Plan | None:
        workload = Workload(algorithm, env, plan, profile.costs, profile.machine, plan.lag)
        return better_plan(workload, plan, prediction, measured)

    return ProfilePlanner(algorithm, env, profile.costs, profile.machine, profile.taken, better)
