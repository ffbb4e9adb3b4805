"""Answers to what the page asks, from a folder of runs (docs/dashboard.md lists them)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tessera.dash.advice import Advice
from tessera.dash.curves import MOST_POINTS, check_by, curve, line
from tessera.dash.facts import X_COLUMNS, Facts, FactsReader, config_texts
from tessera.dash.lineage import LineageReader, drawn
from tessera.dash.seeds import members_of, together
from tessera.dash.series import AllSeries
from tessera.dash.status import LIVE, read_marks, read_spans
from tessera.dash.tails import Opener
from tessera.dash.tree import RequestRefused, Tree, parts_of
from tessera.dash.values import named, number, plain, text
from tessera.dash.verdict import hints, lacks_experience, verdict
from tessera.errors import TesseraError
from tessera.graph.layout import plan_layout
from tessera.runs.joined_curves import identity, joined

STATIC = Path(__file__).parent / "static"
"""Files of the page."""
MOST_CURVES = 2000
"""Curves of one answer."""
NEWEST_ROWS = 20
"""Rows of metrics that the verdict is read from."""
VIDEO_TYPES = {".mp4": "video/mp4", ".gif": "image/gif"}
OF_SEEDS = "Several seeds together: who waits for whom is said on the page of each."
STARTING = "the run has not written anything yet"


class Answers:
    """Reads run folders, and only reads; what it has read it keeps in bounded memory."""

    def __init__(self, root: Path, expected: str | None = None, advice: Sequence[str] = ()) -> None:
        """`expected` names a run that may not have a folder yet. `advice` is a command that is given the folder of a
        run whose learner waits for experience, and prints what more actors would bring."""
        self.tree = Tree(root)
        self._expected = expected
        self._reader = FactsReader(self.tree)
        self._series = AllSeries(self.metrics_of)
        self._lineages = LineageReader(self.tree)
        self._advice = Advice(advice)

    def runs(self) -> dict[str, Any]:
        """All runs, each with how far it has come."""
        found = self.tree.runs()
        return {"folder": str(self.tree.root), "runs": [self._row(x) for x in found.names], "left_out": found.left_out}

    def _row(self, name: str) -> dict[str, Any]:
        facts = self._reader.facts(name)
        header = self._header(facts)
        del header["eval_return_mean"], header["eval_interval"]
        return {"name": name, **header, "changed": facts.changed}

    def _header(self, facts: Facts) -> dict[str, Any]:
        """The header of a run; of several seeds that of all together until their summary is written."""
        header = facts.header()
        if facts.name == self._expected and not facts.config and not facts.status:
            return header | {"state": "starting", "why": STARTING}
        members = [] if facts.summary else members_of(self.tree, facts.name, facts.config)
        return header | together([self._reader.facts(each).header() for each in members]) if members else header

    def run(self, name: str) -> dict[str, Any]:
        """All about one run but its curves and spans."""
        self.check(name)
        facts = self._reader.facts(name, NEWEST_ROWS)
        members = members_of(self.tree, name, facts.config)
        return {
            "name": name,
            **self.news(name),
            "plan": self._layout(name),
            "marks": read_marks(self.tree, name),
            "metrics": metric_names(self._reader.facts(members[0], NEWEST_ROWS).rows if members else facts.rows),
            "videos": self.videos(name),
            "config": config_texts(facts.config),
            "has_trace": self.trace(name) is not None,
            "population": self.population(name),
            "payoff": None,
        }

    def news(self, name: str) -> dict[str, Any]:
        """What changes while a run goes on: its status, header and verdict."""
        facts = self._reader.facts(name, NEWEST_ROWS)
        header = self._header(facts)
        own = verdict(facts.status, facts.rows, header["state"], header["why"])
        return {
            "status": facts.status,
            "header": header,
            "verdict": OF_SEEDS if "seeds" in facts.config else own,
            "hints": [*self._advised(facts, header["state"]), *hints(facts.status, facts.rows)],
        }

    def _advised(self, facts: Facts, state: str) -> list[str]:
        """What more actors would bring, once that is known."""
        plan = self.tree.stat(facts.name, "plan.json")
        if plan is None or not facts.status or state not in LIVE or not lacks_experience(facts.status):
            return []
        algorithm = text(named(facts.config.get("algorithm")).get("name"))
        found = self._advice.about(self.tree.root / facts.name, algorithm, plan.st_mtime_ns)
        return [found] if found else []

    def compare(self, names: Sequence[str]) -> dict[str, Any]:
        """The configurations of runs, side by side."""
        for name in names:
            self.check(name)
        configs = [config_texts(self._reader.json(name, "config.json")) for name in names]
        keys = list(dict.fromkeys(key for config in configs for key in config))
        rows = {key: [config.get(key, "") for config in configs] for key in keys}
        return {"keys": keys, "rows": rows, "differs": [key for key in keys if len(set(rows[key])) > 1]}

    def curves(self, runs: Sequence[str], metrics: Sequence[str], by: str, points: int, merge: bool) -> dict[str, Any]:
        """Curves of metrics of runs, in so many points; with `merge`, one for all runs that differ in their seed."""
        for name in runs:
            self.check(name)
        if len(runs) * len(metrics) > MOST_CURVES:
            raise RequestRefused(
                400, f"{len(runs) * len(metrics):,} curves are too many: ask for at most {MOST_CURVES:,}"
            )
        by, points = check_by(by), min(max(points, 2), MOST_POINTS)
        groups = self._groups(runs, merge)
        share = sum(map(len, groups.values())) or 1
        found = []
        for label, members in groups.items():
            columns = [self._series.columns(member, share) for member in members]
            for metric in metrics:
                lines = [line(each, metric, by, points) for each in columns]
                drawn = sum(len(each.x) > 0 for each in lines)
                found.append(curve(label, metric, joined(lines, points), drawn, by))
        return {"by": by, "curves": found}

    def _groups(self, runs: Sequence[str], merge: bool) -> dict[str, list[str]]:
        """Label -> runs that are drawn as one. A folder of several seeds is drawn from the runs in it."""
        groups: dict[str, list[str]] = {}
        labels: dict[str, str] = {}
        for name in dict.fromkeys(runs):
            config = self._reader.json(name, "config.json")
            members = self.members(name)
            same = identity(config) if merge and config and not members else name
            groups.setdefault(labels.setdefault(same, name), []).extend(members or [name])
        return groups

    def members(self, name: str) -> list[str]:
        """The runs in a folder of several seeds."""
        return members_of(self.tree, name, self._reader.json(name, "config.json"))

    def spans(self, name: str) -> dict[str, Any] | None:
        """The newest spans of each replica."""
        self.check(name)
        return read_spans(self.tree, name)

    def videos(self, name: str) -> list[dict[str, Any]]:
        """Videos of greedy episodes, the newest last."""
        found = []
        for file, size in self.tree.files(name, "videos").items():
            update = re.search(r"([0-9]{1,15})\.[a-z0-9]+$", file)
            if Path(file).suffix in VIDEO_TYPES:
                found.append({"file": file, "update": int(update[1]) if update else 0, "bytes": size})
        return sorted(found, key=lambda video: (video["update"], video["file"]))

    def trace(self, name: str) -> str | None:
        """The timeline of a run, if it was written into its folder."""
        self.check(name)
        return next(
            (file for file in sorted(self.tree.files(name)) if "trace" in file and file.endswith(".json")), None
        )

    def metrics_of(self, name: str) -> Opener:
        """What opens the metrics of a run."""
        return lambda: self.tree.open(name, "metrics.jsonl")

    def check(self, name: str) -> None:
        """Refuse a run that is not there."""
        parts_of(name)
        if name != self._expected and not self.tree.is_there(name):
            raise RequestRefused(404, "there is no such run or file: names are those that /api/runs lists")

    def _layout(self, name: str) -> dict[str, Any] | None:
        plan = self._reader.json(name, "plan.json")
        try:
            return plan_layout(plan) if plan else None
        except TesseraError:
            return None

    def population(self, name: str) -> dict[str, Any] | None:
        """The members of a folder of several seeds, what all have reached together, and who goes on from whom."""
        names = self.members(name)
        if not names:
            return None
        summary = self._reader.json(name, "summary.json")
        reached = {key: number(x) for key, x in summary.items() if key.startswith("eval_return_")}
        members = [self._member(each) for each in names]
        if "population" not in self._reader.json(name, "config.json"):
            return {"kind": "seeds", "members": members, "together": reached, "lineage": None}
        lineage = self._lineages.read(name)
        described = [lineage.with_origin(member) for member in members]
        picture = drawn(lineage, members, summary)
        return {"kind": "population", "members": described, "together": reached, "lineage": picture}

    def _member(self, name: str) -> dict[str, Any]:
        facts = self._reader.facts(name)
        header = facts.header()
        shown = ("state", "update", "updates", "return_mean", "eval_return_mean")
        return {"name": name, "seed": plain(facts.config.get("seed")), **{key: header[key] for key in shown}}


def metric_names(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Names of the numbers in rows, but for those that curves are drawn over."""
    names = {name for row in rows for name, x in row.items() if x is None or number(x) is not None}
    return sorted(names - set(X_COLUMNS))[:400]
