"""The costs that a plan is simulated with: from a file, or from the profile of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tessera.algorithms.contract import Algorithm
from tessera.engines.simulated.costs import Costs
from tessera.engines.simulated.costs_file import load_costs
from tessera.envs.base import Environment
from tessera.errors import TesseraError
from tessera.graph.plan import Plan


@dataclass(frozen=True)
class FoundCosts:
    """Costs, and what they were measured on."""

    costs: Costs
    accelerators: int = 0
    """Of this machine."""
    on_accelerators: bool = False
    """Whether they are of programs on accelerators."""


def costs_for(algorithm: Algorithm, env: Environment, plan: Plan, file: str | None) -> FoundCosts:
    """Read a file, if one is named."""
    del algorithm, env, plan
    if file is None:
        raise TesseraError("name the costs to simulate with: --costs FILE")
    return FoundCosts(load_costs(Path(file)))
