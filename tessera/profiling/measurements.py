"""What was measured for a profile so far: kept with one that was cut short, so that the next one goes on from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tessera.graph.plan import Plan
from tessera.profiling.findings import Findings
from tessera.profiling.probe import Probed, probed_from_json, probed_to_json
from tessera.profiling.probers import in_words
from tessera.profiling.trial_run import TrialRun

WHOLE, SPLIT, OPS = "whole", "split", "ops"
"""How a plan is probed: with everything in one fragment and all threads, in parts with one thread, or Op by Op."""


def probe_name(plan: Plan, how: str) -> str:
    """A plan and how it is probed."""
    return f"{how}: {in_words(plan)}"


@dataclass
class Measurements:
    """Probes and runs on processes, by their plans."""

    probes: dict[str, Probed] = field(default_factory=dict)
    """By name (`probe_name`)."""
    runs: dict[str, TrialRun] = field(default_factory=dict)
    """By the fragments of their plans, in words."""

    def findings(self) -> Findings:
        """What all probes have found."""
        found = Findings()
        for name, probed in self.probes.items():
            found.add(probed, alone=name.startswith(WHOLE))
        return found


def measurements_to_json(measured: Measurements) -> dict[str, Any]:
    """Plain data."""
    plain = [f.name for f in fields(TrialRun) if f.name != "plan"]
    return {
        "probes": {name: probed_to_json(found) for name, found in measured.probes.items()},
        "runs": {name: {key: getattr(run, key) for key in plain} for name, run in measured.runs.items()},
    }


def measurements_from_json(found: Mapping[str, Any], plans: Mapping[str, Plan]) -> Measurements:
    """From plain data; `plans` are those of runs, by their fragments in words."""
    probes = {name: probed_from_json(probed) for name, probed in found["probes"].items()}
    runs = {name: TrialRun(plans[name], **run) for name, run in found["runs"].items()}
    return Measurements(probes, runs)
