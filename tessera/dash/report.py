"""A run as one file: the page, and all that it would ask for, without anything that is loaded from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tessera.dash.answers import STATIC, Answers
from tessera.dash.facts import X_COLUMNS
from tessera.dash.values import to_json

POINTS = 600
"""Points of a curve."""
MOST_MEMBERS = 32
"""Runs of a folder of several seeds that are in the file too."""
STYLE = re.compile(r'<link rel="stylesheet" href="/static/([\w.-]+)">')
SCRIPT = re.compile(r'<script src="/static/([\w.-]+)" defer></script>\s*')


def report(root: Path, name: str) -> str:
    """The page of a run, as HTML."""
    answers = Answers(root)
    held: dict[str, Any] = {}
    for each in [name, *answers.members(name)[:MOST_MEMBERS]]:
        held |= all_about(answers, each)
    page = (STATIC / "index.html").read_text()
    styles = [read(found[1]).replace("</style", "<\\/style") for found in STYLE.finditer(page)]
    scripts = [read(found[1]).replace("</script", "<\\/script") for found in SCRIPT.finditer(page)]
    page = SCRIPT.sub("", STYLE.sub("", page))
    text = to_json(held).replace("<", "\\u003c")  # nothing in it can end the element
    data = f'<script type="application/json" id="answers">{text}</script>'
    head = [policy(scripts, styles), *(f"<style>{style}</style>" for style in styles)]
    body = [data, *(f"<script>{script}</script>" for script in scripts)]
    before, middle, after = re.split(r'(?<=<meta charset="utf-8">)|(?=</body>)', page)
    return "\n".join([before, *head, middle.strip(), *body, after])


def all_about(answers: Answers, name: str) -> dict[str, Any]:
    """Question -> answer, for all that the page asks about a run. Videos are files of their own, and stay there."""
    run = answers.run(name) | {"videos": [], "has_trace": False}
    found = {f"/api/run?name={escaped(name)}": run, f"/api/spans?name={escaped(name)}": answers.spans(name)}
    for by in X_COLUMNS:
        curves = answers.curves([name], run["metrics"], by, POINTS, False)
        found[f"/api/curves?run={escaped(name)}&by={by}"] = curves
    return found


def escaped(name: str) -> str:
    """A name as browsers write it in a query."""
    return quote(name, safe="*").replace("%20", "+").replace("~", "%7E")


def read(name: str) -> str:
    """A file of the page."""
    return (STATIC / name).read_text()


def policy(scripts: list[str], styles: list[str]) -> str:
    """What the file may do: run these scripts, use these styles, and load nothing."""
    runs, looks = (" ".join(map(digest, texts)) for texts in (scripts, styles))
    rules = f"default-src 'none'; script-src {runs}; style-src {looks}; img-src data:; base-uri 'none'"
    return f'<meta http-equiv="Content-Security-Policy" content="{rules}; form-action \'none\'">'


def digest(text: str) -> str:
    """The name of a text in such a policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
