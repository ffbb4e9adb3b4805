"""Writes docs/scaling.md and docs/scaling.png from what benchmarks/scaling.py has simulated."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from scaling_published import Beside

from tessera.engines.simulated.cluster import NodeKind
from tessera.profiling.profile import circumstances

if TYPE_CHECKING:
    from scaling import Case, Cell, Row

DOCS = Path(__file__).resolve().parent.parent / "docs"
SCALES = 0.5
"""A policy scales as far as nodes that are added do at least this share of what those before them do."""
MATTERS = 1.2
"""What would make a policy so many times as fast, if it took no time, limits it."""

HEAD = """# Which policy scales how far?

Made by `python benchmarks/scaling.py --page`. Nothing here was run on a cluster: all of it is simulated
([simulating.md](simulating.md)).

- **Costs** are profiles of one machine ({processor}, cores: {cores}),
  taken with {profiled} environments; costs of more follow the line through them. Learning, too, is on one
  core: with accelerators a single learner reaches further. Messages between nodes are calls of Ray, a millisecond of a
  core at each end.
- **Nodes** are those of `benchmarks/scaling_cluster.toml`: {node_cores} cores as fast as the profiled one,
  {memory:g} GB, {bandwidth:g} Gbit/s, {latency:g} µs to any other. Every core has one replica.
- **What grows** (weak scaling): each replica that steps environments has as many on any number of nodes. So a
  synchronous update learns from a batch that grows with the nodes, and more nodes are only of use if learning can make
  use of larger batches. An asynchronous learner takes the first 8 groups that come (Ape-X: 4), so its batch stays, and
  lag grows. Steps an update and lag stand beside each policy: plans that differ in them do not learn the same.
- *async*: nobody waits, and each actor or worker is sent params about once an unroll. `multi_learner_coarse` and
  `split_inference` have a learner (and a replica that acts) on each node, `distributed_replay` up to 4 stores.
- **Steps/s** are environment steps. PPO has 4 epochs of 4 minibatches of an unroll of 128, IMPALA and SEED RL an unroll
  of 20, Ape-X 512 new steps and a batch of 512 for each update, ES members that play 100 steps.

## Who wins

{winners}

![steps per second over nodes, by policy](scaling.png)
"""

LEFT_OUT = """
## What is left out

- Racks, oversubscribed switches, failures, other users: every pair of nodes has the same network, and no node is slow
  for long ([0117](decisions/0117-large-plans-are-simulated-by-some-of-their-nodes.md)).
- The driver, Ray's own threads, starting and the filling of a replay
  ([0114](decisions/0114-the-simulator-is-an-engine.md)). No policy here answers environments that are ready (`wait`),
  which SEED RL has. Sums of peers go round a ring, also of peers on one node; a
  tree or a sum within each node first would take fewer hops.
- Above {most} replicas about as many are simulated, and each stands for others.
- Costs of thousands of environments on one learner are a line through what was measured with {profiled}: caches
  that overflow are not in it.
- `hogwild` needs one memory. `averaging` and `decentralised` learn something else. `environments` is for several
  agents. `gorila` deals the rows of a draw to its workers, so it has no more workers than rows.
"""


def write_page(
    cases: Mapping[str, Case], found: Mapping[str, list[Row]], node: NodeKind, beside: list[Beside], most: int
) -> None:
    """Write the page and its picture."""
    machine = circumstances()
    profiled = " to ".join(str(end({n for name in found for n in cases[name].profiled})) for end in (min, max))
    head = HEAD.format(
        processor=machine["processor"], cores=machine["cores"], profiled=profiled, node_cores=node.cores,
        bandwidth=node.bandwidth * 8 / 1e9, latency=node.latency * 1e6, memory=node.memory / 1e9,
        winners="\n".join(winners(cases, found)),
    )  # fmt: skip
    parts = [head]
    for name, rows in found.items():
        parts.append("\n".join(["", f"## {cases[name].title}", "", *of_case(cases[name], rows), ""]))
    parts.append("\n".join(["", "## What limits each", "", *limits(cases, found, node), ""]))
    parts.append("\n".join(["", "## Beside published figures", "", *published(beside)]))
    parts.append("\n" + LEFT_OUT.format(most=most, profiled=profiled).lstrip("\n"))
    (DOCS / "scaling.md").write_text("\n".join(part.strip("\n") + "\n" for part in parts))
    draw(cases, found)


def table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    """A table in Markdown."""
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---' for _ in head)} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def short(number: float) -> str:
    """Three digits: 12.3 k, 4.56 M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= 0.9995 * size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def sizes_of(rows: list[Row]) -> list[int]:
    return list(rows[0].cells)


def best(rows: list[Row], nodes: int) -> Row:
    """The fastest policy on so many nodes."""
    return max(rows, key=lambda row: row.cells[nodes].steps_per_second)


def winners(cases: Mapping[str, Case], found: Mapping[str, list[Row]]) -> Iterator[str]:
    """The fastest policy of each algorithm on each number of nodes."""
    sizes = sizes_of(next(iter(found.values())))
    rows = []
    for name, of in found.items():
        cells = [f"`{best(of, n).policy}` {short(best(of, n).cells[n].steps_per_second)}" for n in sizes]
        rows.append([f"{cases[name].title}", *cells])
    yield from table(["steps/s on nodes", *(f"{n:,}" for n in sizes)], rows)


def of_case(case: Case, rows: list[Row]) -> Iterator[str]:
    """Steps/s of all policies of one algorithm."""
    sizes = sizes_of(rows)
    options = " ".join(f"--{key} {value}" for key, value in case.settings.items())
    yield f"`{case.system} {case.env}{f' {options}' if options else ''}`, {case.envs_each} environments a replica."
    yield ""
    lines = []
    for row in rows:
        cells = []
        for n in sizes:
            text = short(row.cells[n].steps_per_second) if not row.cells[n].refused else "refused"
            cells.append(f"**{text}**" if row is best(rows, n) else text)
        done = [n for n in sizes if not row.cells[n].refused]
        if done:
            ends = [row.cells[done[0]], row.cells[done[-1]]]
            grown = [" → ".join(dict.fromkeys(short(cell.steps_per_update) for cell in ends))]
            grown.append(" → ".join(dict.fromkeys(lag_of(cell) for cell in ends)))
        else:
            grown = ["", ""]
        lines.append([f"`{row.policy}`", *cells, *grown])
    yield from table(["steps/s on nodes", *(f"{n:,}" for n in sizes), "steps an update", "lag"], lines)
    for row in rows:
        for nodes, cell in row.cells.items():
            if cell.refused:
                reason, _, _ = cell.refused.partition(": use ")
                yield f"\n`{row.policy}` on {nodes:,} nodes is refused: {reason}."


def lag_of(cell: Cell) -> str:
    """In updates; where not all actors were heard, or nobody counts it, it is not known."""
    return "?" if not cell.settled or cell.lag is None else f"{cell.lag:.2g}"


def reach(row: Row) -> int:
    """How far a policy scales."""
    done = [n for n, cell in row.cells.items() if not cell.refused]
    rates = {n: row.cells[n].steps_per_second / n for n in done}
    return max((b for a, b in itertools.pairwise(done) if rates[b] >= SCALES * rates[a]), default=min(done, default=0))


def times(gain: float) -> str:
    """A factor, in two digits or as many as it has."""
    return f"{gain:.1f}" if gain < 9.95 else f"{gain:.0f}"


def limits(cases: Mapping[str, Case], found: Mapping[str, list[Row]], node: NodeKind) -> Iterator[str]:
    """A sentence for each policy, and what it would gain without each thing."""
    judged = max(row.judged for rows in found.values() for row in rows)
    yield f"How many times as fast each would be on {judged:,} nodes if one thing took no time: *messages* (work at"
    yield "both ends; the network stays), *network* (latency and bandwidth), *learning* (storing, gradients, applying),"
    yield "*stragglers* (every call takes the mean). *Scales to*: the most nodes that do at least five times the steps"
    yield "of a tenth of them."
    for name, rows in found.items():
        yield f"\n### {cases[name].title}\n"
        lines = []
        for row in rows:
            gains = [times(gain) for gain in row.gains.values()]
            lines.append([f"`{row.policy}`", f"{reach(row):,}", *gains, sentence(row, node)])
        names = list(next(row.gains for row in rows if row.gains))
        yield from table(["policy", "scales to", *names, "what limits it"], lines)


def sentence(row: Row, node: NodeKind) -> str:
    """What limits a policy, in words."""
    if not row.judged:
        return "it is refused"
    prediction = row.cells[row.judged].prediction
    assert prediction is not None
    name, gain = max(row.gains.items(), key=lambda item: item[1])
    busiest = max(prediction.busy, key=lambda title: prediction.busy[title])
    share = f"`{busiest}`, which is busy {prediction.busy[busiest]:.0%} of the time"
    if gain < MATTERS:
        efficiency = row.efficiency(row.judged)
        return f"The work itself: a node does {efficiency:.0%} of what one does alone."
    match name:
        case "messages":
            return f"Messages: a call for each takes most of {share}."
        case "network" if row.learners > 1:
            hop = f"{node.latency * 1e6:g} µs from each to the next"
            return f"The ring: what {row.learners:,} peers share passes all of them, {hop}."
        case "network":
            card = max(prediction.nodes, key=lambda use: use.card)
            return f"The network: the card of {card.holds} is busy {card.card:.0%} of the time."
        case "learning":
            return f"Learning at {share}."
        case _:
            return "Stragglers: all wait for the slowest."


def published(beside: list[Beside]) -> Iterator[str]:
    """Figures of papers and ours."""
    yield "Nothing is fitted: what is used of a paper is in its column, and all else is as above. A blank means that"
    yield "the paper does not say what one would need."
    yield ""
    rows = [[f"{b.system} ({b.source})", b.published, b.taken, b.simulated] for b in beside]
    yield from table(["system", "published", "used, or missing", "simulated"], rows)


def draw(cases: Mapping[str, Case], found: Mapping[str, list[Row]]) -> None:
    """Steps/s over nodes, a panel for each algorithm."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(found), figsize=(3.6 * len(found), 3.8), squeeze=False, sharey=True)
    for axes, (name, rows) in zip(panels[0], found.items(), strict=True):
        sizes = sizes_of(rows)
        most = max(row.cells[sizes[0]].steps_per_second for row in rows)
        axes.plot(sizes, [most * n / sizes[0] for n in sizes], ":", color="0.6", label="linear")
        for row in rows:
            done = [n for n in sizes if not row.cells[n].refused]
            axes.plot(done, [row.cells[n].steps_per_second for n in done], "o-", markersize=3, label=row.policy)
        axes.set(xscale="log", yscale="log", title=cases[name].title, xlabel="nodes")
        axes.legend(fontsize="x-small")
    panels[0][0].set_ylabel("simulated steps/s")
    figure.tight_layout()
    figure.savefig(DOCS / "scaling.png", dpi=100)
