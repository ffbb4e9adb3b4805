"""What more actors would bring to a run, by the saved profile of this machine: `python -m tessera.cli.more_actors RUN`.

The dashboard runs this as a process of its own, since it needs JAX.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tessera.errors import TesseraError

COMMAND = (sys.executable, "-m", "tessera.cli.more_actors")
"""To be followed by the folder of a run."""
NOTICEABLE = 1.03
"""Gains below are none."""


def more_actors(folder: Path) -> str:
    """A sentence with the predicted speed and its interval; empty where no profile matches, or nothing can be added."""
    from tessera.evaluation.rebuild import rebuild
    from tessera.graph.policy_files import from_data
    from tessera.planning.prepare import prepare_plan
    from tessera.planning.simulate import simulate
    from tessera.profiling.profile import find_profile
    from tessera.runs.directory import read_config, read_plan

    config, saved = read_config(folder), read_plan(folder)
    if config.get("engine") not in ("local", "serial") or "seeds" in config:
        return ""
    algorithm, env = rebuild(config)  # only names of our own: this is somebody's folder
    policy = from_data(saved["colouring"], str(folder / "plan.json"), config["policy"])
    options: dict[str, Any] = {key: config.get(key) for key in ("envs", "groups", "lag", "engine")}
    bound, env, plan = prepare_plan(algorithm, env, policy, precision=config["precision"], **options)
    place = next(k for k, f in enumerate(policy.fragments) if "act" in f.names or "env" in f.names)
    actors = policy.fragments[place]
    more = min(2 * actors.replicas, plan.groups)
    profile = find_profile(bound, env, plan)
    if profile is None or "grad" in actors.names or more <= actors.replicas:
        return ""
    fragments = list(policy.fragments)
    fragments[place] = replace(actors, replicas=more)
    larger = prepare_plan(
        algorithm, env, replace(policy, fragments=tuple(fragments)), precision=config["precision"], **options
    )[2]
    there = profile.machine
    now, then = (
        simulate(each, bound, env, profile.costs, cores=there.cores, accelerators=there.accelerators)
        for each in (plan, larger)
    )
    low, high = then.interval
    what = f"{more} replicas of {actors.title} instead of {actors.replicas}"
    speeds = f"{then.steps_per_second:,.0f} [{low:,.0f}, {high:,.0f}] steps/s, and {now.steps_per_second:,.0f} as it is"
    gain = then.steps_per_second / now.steps_per_second
    brings = "would be faster" if gain > NOTICEABLE else "would bring nothing"
    return f"By the profile of this machine, {what} {brings}: {speeds}."


def main() -> None:
    """Print the sentence, if there is one."""
    try:
        print(more_actors(Path(sys.argv[1])))
    except (TesseraError, KeyError, TypeError, ValueError, OSError):  # advice that nobody asked for
        print()


if __name__ == "__main__":
    main()
