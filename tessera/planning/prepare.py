"""From the user's request to a plan: the algorithm bound to its environment, the policy applied to both."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import jax

from tessera import policies
from tessera.algorithms.contract import Algorithm
from tessera.engines.replica.replica import horizon
from tessera.envs import make as make_env
from tessera.envs import words_of
from tessera.envs.base import Environment, is_device
from tessera.envs.checks import refuse_broken
from tessera.errors import TesseraError
from tessera.graph.plan import Needs, Plan, make_plan
from tessera.graph.policy import Policy, read_mesh
from tessera.planning.choose import choose_policy, everything_together
from tessera.planning.memory import check_memory
from tessera.support.accelerators import share_accelerators

HOST_ENVS = 16
"""The most host environments where the user names no number."""
LONGEST = 2**63 - 1
"""The largest number that counters of steps, updates and gradients hold."""
PLAN_OPTIONS = ("envs", "groups", "lag", "precision", "engine", "mesh")
"""Options of `prepare_plan`, which `tessera.train` takes too."""


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
    reason: str = "named by the user",
) -> tuple[Algorithm, Environment, Plan]:
    """Bind the algorithm to the environment and plan the run; all that can be refused early is refused here.

    `reason` says why the policy is this one; without a policy the rule is why.
    """
    named = policies.parse(policy) if isinstance(policy, str) else policy
    if engine not in (None, "serial") or (engine is None and named is not None and named.several):
        share_accelerators()  # before an environment or a plan looks for devices
    environment = make_env(env, precision)
    refuse_broken(environment)
    bound = algorithm.bound_to(environment)
    bound.check()
    available = jax.local_devices()
    chosen = named
    if chosen is None:
        rule, why = choose_policy(is_device(environment), len(available))
        chosen, _ = policies.named(rule)
        reason = f"{chosen.name}, because {why}"
    if mesh is not None:
        chosen = chosen.on_mesh(*read_mesh(mesh))
    if lag is not None:
        chosen = replace(chosen, cuts={**chosen.cuts, "params": replace(chosen.cut("params"), lag=lag)})
    store = bound.store
    batch = getattr(store, "batch", None) if store.persistent else None
    needs = Needs(
        bound.name, environment.name, is_device(environment), batch, store.prioritised, bound.absorbs, bound.apart,
        bound.together, "" if bound.layerwise == "none" else bound.layerwise, bound.schedule.applies,
        wrappers=words_of(environment),
    )  # fmt: skip
    if envs is None:
        envs = bound.default_envs if is_device(environment) else min(bound.default_envs, HOST_ENVS)
    if engine != "ray":  # other machines have memory of their own
        check_memory(bound, environment, envs)
    plan = make_plan(
        chosen, needs, envs, groups=groups, reason=reason, engine=engine, platform=available[0].platform,
        available=len(available),
    )  # fmt: skip
    return replace(bound, envs=envs), environment, plan


def reference_plan(algorithm: Algorithm, env: Any, **options: Any) -> tuple[Algorithm, Environment, Plan]:
    """As `prepare_plan` by the rule; on one device if the user has named groups, which need not suit all devices."""
    policy = None if options.get("groups") is None else everything_together(devices=1)
    return prepare_plan(algorithm, env, policy, **options)


def planned_updates(algorithm: Algorithm, plan: Plan, steps: int) -> int:
    """Updates that a run of `steps` environment steps makes under a plan."""
    s = algorithm.schedule
    played = Fraction(steps) - s.warmup * s.steps * plan.envs
    updates = max(1, math.ceil(played / (s.steps * plan.envs_per_update)))
    if max(steps, horizon(plan, algorithm, updates)) > LONGEST:
        raise TesseraError(
            f"--steps is too large: counters have 64 bits, so a run has at most {LONGEST:,} steps and as many "
            "gradients; ask for fewer"
        )
    return updates
