"""From what the user asks for to a plan: the algorithm bound to its environment, the policy applied to both."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import jax

from tessera import policies
from tessera.algorithms.contract import Algorithm
from tessera.envs import make as make_env
from tessera.envs.base import Environment, is_device
from tessera.graph.plan import Needs, Plan, make_plan
from tessera.graph.policy import Policy, read_mesh
from tessera.planning.choose import choose_policy

HOST_ENVS = 16
"""The most host environments where the user names no number."""
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
) -> tuple[Algorithm, Environment, Plan]:
    """Bind the algorithm to the environment and plan the run; everything that can be refused early is refused here."""
    made = make_env(env, precision)
    bound = algorithm.bind(made.spec)
    bound.check()
    available = jax.local_devices()
    reason = "named by the user"
    if policy is None:
        policy, reason = choose_policy(is_device(made), len(available))
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


def planned_updates(algorithm: Algorithm, plan: Plan, steps: int) -> int:
    """How many updates `steps` environment steps make under a plan."""
    s = algorithm.schedule
    played = Fraction(steps) - s.warmup * s.steps * plan.envs
    return max(1, math.ceil(played / (s.steps * plan.envs_per_update)))
