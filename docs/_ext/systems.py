"""Directives `systems-museum`, `systems-table`, `system-facts` and `system-measured`: what pages say of systems.

What a system is comes from `tessera/systems.py`, and figures from docs/systems/measured.json, which `python
benchmarks/systems.py` fills. The museum's texts are those of the systems' own pages. The functions make Markdown and
need no Sphinx.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _ext.markdown import add_markdown_directive, table
from tessera.cli.lists import population_settings
from tessera.systems import SYSTEMS, command, find

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FOLDER = Path(__file__).resolve().parent.parent / "systems"
SPREAD = ("a2c", "es", "pbt", "ppo_es", "pqn")
"""Systems about how work is spread, whose policy is chosen here all the same."""
HALLS = ("distributed", "algorithms")
"""Parts of the museum: systems that say how work is spread, and algorithms with one process."""
SMALL_MACHINE = "each replica a process, on the cores of one small machine"


def measured() -> dict[str, Any]:
    """System -> its task, engine, flags and rows, as they were run."""
    return json.loads((FOLDER / "measured.json").read_text())


def year(name: str) -> int:
    """The year in which a system was first described."""
    return years(name)[0]


def years(name: str) -> list[int]:
    """The years of a system's papers, as they are named."""
    found = [int(each) for each in re.findall(r"\d{4}", SYSTEMS[name].paper)]
    if not found:
        raise ValueError(f"{name}: {SYSTEMS[name].paper!r} names no year")
    return found


def in_order() -> list[str]:
    """All systems, the oldest first; of one year those first to which nothing was added later."""
    return sorted(SYSTEMS, key=lambda name: (year(name), max(years(name)), name))


def hall_of(name: str) -> str:
    """The part of the museum that a system is in."""
    return HALLS[0] if SYSTEMS[name].policy or name in SPREAD else HALLS[1]


def settings(name: str) -> str:
    """The algorithm, and where it differs from its own defaults."""
    system = SYSTEMS[name]
    options = [*system.options.items(), *population_settings(system)]
    return ", ".join([f"`{system.algorithm}`", *(f"`{key}={value}`" for key, value in options)])


def policy_of(name: str) -> str:
    """The policy, or that there is a choice."""
    policy = SYSTEMS[name].policy
    return (
        f"[`{policy}`](../policies/{policy.partition(':')[0]}.md)" if policy else "chosen: the one that suits the task"
    )


def trained(name: str) -> str:
    """A command that trains a system in the environment that it was measured in."""
    found = measured().get(name)
    return shlex.join(["tessera", "train", name, found["task"]["env"]]) if found else command(name)


def system_facts(name: str) -> str:
    """What a system is here: its summary and paper, the pair, and the command."""
    system, (algorithm, _) = SYSTEMS[name], find(name)
    about = f"{system.summary[0].upper()}{system.summary[1:]} ({system.paper})."
    pair = table(("algorithm", "policy"), [(settings(name), policy_of(name))])
    return "\n\n".join([about, pair, _block("sh", trained(name)), f"`{algorithm.name}`: {algorithm.summary}."])


def system_measured(name: str) -> str:
    """What runs of a system gave, one row for each seed, with the commands that made them and their curves."""
    found = measured().get(name)
    if found is None:
        raise ValueError(f"measured.json has no runs of {name!r}")
    task, rows = found["task"], found["rows"]
    place = "in one process" if found["engine"] == "serial" else SMALL_MACHINE
    seeds = " ".join(str(row["seed"]) for row in rows)
    made = f"`python benchmarks/systems.py {name} --seeds {seeds}` makes these rows and the curves"
    if found["flags"]:
        made = f"The runs had `{found['flags']}`, which were the defaults then"
    about = (
        f"On {task['env']} {_until(task)}, {place}; seconds count from the end of the first update, before which "
        f"programs are compiled. {made}. One by one, the runs are"
    )
    goal = "seconds" if task["target"] is None else f"seconds to {task['target']:g}"
    cells = [(str(row["seed"]), *figures(task, row)) for row in rows]
    return "\n\n".join(
        [
            about,
            _block("sh", "\n".join(run_of(name, found, row["seed"]) for row in rows)),
            table(("seed", "steps/s", goal, "steps", "greedy return"), cells),
            f"![Learning curves of {name}]({name}.png)",
        ]
    )


def run_of(name: str, found: Mapping[str, Any], seed: int) -> str:
    """The command line of a measured run."""
    task = found["task"]
    words = ["tessera", "train", name, task["env"], *shlex.split(found["flags"]), "--steps", str(task["steps"])]
    words += [] if task["target"] is None else ["--target-return", f"{task['target']:g}"]
    words += [] if task["opponent"] is None else ["--opponent", task["opponent"]]
    words += ["--evaluate-every", str(task["evaluate_every"])] if task["evaluate_every"] else []
    return shlex.join([*words, "--seed", str(seed)])


def figures(task: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Steps a second, seconds to the target, steps and greedy return, as text."""
    seconds = "-" if task["target"] is None else "not solved" if row["seconds"] is None else f"{row['seconds']:.1f}"
    greedy = f"{row['greedy_return']:.0f}" if task["opponent"] is None else f"{row['greedy_return']:.2f}"
    return f"{row['steps_per_second']:,.0f}", seconds, f"{row['steps']:,}", greedy


def _until(task: Mapping[str, Any]) -> str:
    if task["opponent"] is not None:
        return f"for {task['steps']:,} steps; greedy episodes are games against `{task['opponent']}`, both sides played"
    if task["target"] is None:
        return f"for {task['steps']:,} steps"
    return f"until 100 greedy episodes reach {task['target']:g} on average, {task['steps']:,} steps at the most"


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def systems_table() -> str:
    """Every system in order of years, with what was measured; figures of several seeds stand beside each other."""
    head = ("year", "system", "algorithm", "policy", "environment", "steps/s", "seconds to target", "greedy return")
    found, rows = measured(), []
    for name in in_order():
        about = (str(year(name)), f"[`{name}`]({name}.md)", settings(name), policy_of(name))
        if name not in found:
            rows.append((*about, "-", "-", "-", "-"))
            continue
        task = found[name]["task"]
        each = zip(*(figures(task, row) for row in found[name]["rows"]), strict=True)
        speed, seconds, _, greedy = (" / ".join(values) for values in each)
        rows.append((*about, task["env"], speed, seconds, greedy))
    return table(head, rows)


def systems_museum(hall: str) -> str:
    """The systems of one part of the museum: what was new, the pair, the command and the curve."""
    if hall not in HALLS:
        raise ValueError(f"{hall!r} is no part of the museum: {' or '.join(HALLS)}")
    return "\n\n".join(exhibit(name) for name in in_order() if hall_of(name) == hall)


def exhibit(name: str) -> str:
    """One system of the museum."""
    parts = [f"```{{rubric}} {year(name)} · {title_of(name)}\n```"]
    if name in measured():
        parts.append(f"```{{image}} {name}.png\n:alt: Learning curves of {name}\n:width: 220px\n:align: right\n```")
    parts += [in_the_paper(name), f"[`{name}`]({name}.md) = {settings(name)} × {policy_of(name)}"]
    return "\n\n".join([*parts, _block("sh", trained(name))])


def title_of(name: str) -> str:
    """The heading of a system's page, without marks."""
    return _page(name).splitlines()[0].removeprefix("# ").replace("`", "")


def in_the_paper(name: str) -> str:
    """The first paragraph of the section "In the paper" of a system's page."""
    _, heading, rest = _page(name).partition("\n## In the paper\n")
    if not heading:
        raise ValueError(f"{name}.md has no section 'In the paper'")
    return rest.strip().split("\n\n")[0]


def _page(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text()


def setup(app: Sphinx) -> dict[str, Any]:
    """What Sphinx calls."""
    add_markdown_directive(app, "systems-museum", systems_museum)
    add_markdown_directive(app, "systems-table", systems_table, arguments=0)
    add_markdown_directive(app, "system-facts", system_facts)
    add_markdown_directive(app, "system-measured", system_measured)
    return {"parallel_read_safe": True}
