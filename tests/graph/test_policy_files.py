"""The user's own policies: from small files, from Python, and from a line of text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tessera import policies
from tessera.errors import TesseraError
from tessera.graph.policy import Cut, Fragment, Policy
from tessera.graph.policy_files import load

UNNAMED = Policy(
    "unnamed",
    (Fragment("env act", 2, cores=1), Fragment("store grad", 2, processes=1), Fragment("apply")),
    {"params": Cut(lag=2)},
)
DATA = {
    "name": "unnamed",
    "fragments": [
        {"operators": "env act", "replicas": 2, "cores": 1},
        {"operators": ["store", "grad"], "replicas": 2, "processes": 1},
        {"operators": "apply"},
    ],
    "cuts": {"params": {"lag": 2}},
}
TOML = """
name = "unnamed"
[[fragments]]
operators = "env act"
replicas = 2
cores = 1
[[fragments]]
operators = "store grad"
replicas = 2
processes = 1
[[fragments]]
operators = "apply"
[cuts.params]
lag = 2
"""
PYTHON = """
from tessera import Cut, Fragment, Policy

def policy(actors: int = 2, lag: int | None = 2):
    fragments = (Fragment("env act", actors, cores=1), Fragment("store grad", 2, processes=1), Fragment("apply"))
    return Policy("unnamed", fragments, {"params": Cut(lag=lag)})
"""


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.mark.parametrize(
    ("name", "text"), [("p.json", json.dumps(DATA)), ("p.toml", TOML), ("p.py", PYTHON)], ids=["json", "toml", "py"]
)
def test_a_policy_is_read_from_a_file(tmp_path, name, text):
    assert policies.parse(written(tmp_path, name, text)) == UNNAMED


def test_a_policy_without_a_name_is_called_what_its_file_is_called(tmp_path):
    nameless = {key: value for key, value in DATA.items() if key != "name"}
    assert policies.parse(written(tmp_path, "mine.json", json.dumps(nameless))).name == "mine"


def test_a_python_file_takes_options_or_holds_a_policy(tmp_path):
    path = written(tmp_path, "p.py", PYTHON)
    made = policies.parse(f"{path}:actors=5,lag=none")
    assert (made.fragments[0].replicas, made.cut("params").lag) == (5, None)
    held = written(tmp_path, "q.py", PYTHON + "POLICY = policy(actors=3)\n")
    assert policies.parse(held).fragments[0].replicas == 3


def test_a_policy_of_a_module_is_imported(tmp_path, monkeypatch):
    written(tmp_path, "my_colourings.py", PYTHON + "fixed = policy()\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert policies.parse("py:my_colourings.fixed") == UNNAMED
    assert policies.parse("py:my_colourings.policy:actors=4").fragments[0].replicas == 4


WRONG_FILES = {
    "p.json": [
        ("{", "is not JSON"),
        ("[1]", "must be a table"),
        ("{}", "`fragments` must be a list of fragments"),
        ('{"fragments": [{"replicas": 2}]}', r"fragments\[0\] needs `operators`"),
        ('{"fragments": [{"operators": "env", "replica": 2}]}', "'replica': did you mean 'replicas'"),
        ('{"fragments": [{"operators": "env", "replicas": "two"}]}', "replicas must be int, not 'two'"),
        ('{"fragments": [{"operators": "env", "replicas": true}]}', "replicas must be int, not True"),
        ('{"fragments": [{"operators": "env act"}]}', "operator 'store' in 0 fragments"),
        ('{"fragments": [{"operators": "env"}], "cuts": {"params": {"lagg": 1}}}', "'lagg': did you mean 'lag'"),
        ('{"fragments": [{"operators": "env"}], "cuts": [1]}', "`cuts` must be a table by stream"),
        ('{"fragment": []}', "'fragment': did you mean 'fragments'"),
    ],
    "p.toml": [("name = ", "is not TOML")],
    "p.py": [
        ("1 / 0", "failed: ZeroDivisionError"),
        ("import no_such_module_here", "failed: ModuleNotFoundError"),
        ("x = 1", "has neither `POLICY` nor a function `policy`"),
        ("def policy(n): return n", "needs n="),
        ("def policy(): return 3", "gave int instead of a Policy"),
        ("policy = 3", "neither a Policy nor a function"),
        ("from tessera import *\nPOLICY = Policy('p', (Fragment('env'),))", "operator 'act' in 0 fragments"),
    ],
}


@pytest.mark.parametrize(
    ("name", "text", "why"), [(name, text, why) for name, cases in WRONG_FILES.items() for text, why in cases]
)
def test_a_file_that_holds_no_policy_says_why(tmp_path, name, text, why):
    with pytest.raises(TesseraError, match=why):
        policies.parse(written(tmp_path, name, text))


def test_a_file_that_is_not_there_or_of_another_kind_says_so(tmp_path):
    with pytest.raises(TesseraError, match="does not exist"):
        policies.parse(str(tmp_path / "none.json"))
    with pytest.raises(TesseraError, match=r"must end in \.json, \.toml or \.py"):
        load(tmp_path / "p.yaml")
    with pytest.raises(TesseraError, match="has no options, got actors"):
        policies.parse(written(tmp_path, "p.json", json.dumps(DATA)) + ":actors=2")


def test_options_are_read_by_the_types_of_the_policys_arguments():
    made = policies.parse("central:workers=4,shards=2,mode=async,lag=3")
    assert made == policies.get("central", workers=4, shards=2, mode="async", lag=3)
    assert policies.parse("central : workers = 4 , lag=none") == policies.get("central", workers=4)
    assert policies.parse("gorila:bundled=true") == policies.get("gorila", bundled=True)
    assert policies.parse("decentralised:threshold=1e-3") == policies.get("decentralised", threshold=1e-3)
    assert policies.parse("fused") == policies.get("fused")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("centrl", "unknown policy 'centrl': did you mean 'central'"),
        ("central:wokers=4", "'wokers': did you mean 'workers'.* options are workers, shards, mode, lag"),
        ("central:workers=many", "option workers=many must be a whole number"),
        ("central:workers=1.5", "option workers=1.5 must be a whole number"),
        ("central:lag=soon", "option lag=soon must be a whole number or none"),
        ("central:mode=asink", "'asink': did you mean 'async'"),
        ("central:workers", "'workers' is not an option: write option=value"),
        ("central:workers=1,workers=2", "option 'workers' is given twice"),
        ("central:workers=0", "asks for 0 replicas"),
        ("decentralised:threshold=big", "option threshold=big must be a number"),
        ("gorila:bundled=maybe", "option bundled=maybe must be true or false"),
        ("py:json.JSONDecoder", "neither a Policy nor a function"),
        ("py:no_such_module.policy", "cannot be imported"),
        ("", "unknown policy ''"),
    ],
)
def test_a_line_that_names_no_policy_says_why(text, why):
    with pytest.raises(TesseraError, match=why):
        policies.parse(text)


def test_an_option_that_python_gives_and_the_policy_has_not_is_refused_too():
    with pytest.raises(TesseraError, match=r"'actors'.* its options are devices"):
        policies.get("fused", actors=2)
