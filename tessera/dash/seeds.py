"""Folders of several seeds: what the runs in them have reached together, also before all of them have ended."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tessera.dash.status import LIVE
from tessera.dash.tree import Tree
from tessera.evaluation.intervals import interquartile_mean

SEED = re.compile(r"seed-(-?[0-9]{1,20})")
"""Folder of one seed."""
MEANS = ("return_mean", "eval_return_mean", "env_steps", "update")
LONGEST = ("seconds", "time_left", "updates")


def members_of(tree: Tree, name: str, config: Mapping[str, Any]) -> list[str]:
    """The runs in a folder of several seeds; none if it is another one."""
    if "seeds" not in config:
        return []
    inside = [found for each in tree.folders(name) if (found := SEED.fullmatch(each))]
    inside.sort(key=lambda found: int(found[1]))
    return [found[0] if name == "." else f"{name}/{found[0]}" for found in inside]


def together(headers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What headers of several seeds say together: interquartile means, the speed of all, the longest time."""
    known = {key: [h[key] for h in headers if h[key] is not None] for key in (*MEANS, *LONGEST, "steps_per_second")}
    found: dict[str, Any] = {key: float(interquartile_mean(np.array(x))) if x else None for key, x in known.items()}
    found |= {key: max(known[key], default=None) for key in LONGEST}
    found["steps_per_second"] = sum(known["steps_per_second"]) if known["steps_per_second"] else None
    found |= {key: int(found[key] or 0) for key in ("env_steps", "update", "updates")}
    states = [header["state"] for header in headers]
    going_on = next((state for state in states if state in LIVE), None)
    over = "finished" if set(states) == {"finished"} else "failed" if "failed" in states else "stopped"
    count = f"{states.count('finished')} of {len(states)} seeds are finished"
    return {**found, "state": going_on or over, "why": "" if over == "finished" else count}
