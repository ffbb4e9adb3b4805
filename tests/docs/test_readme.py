"""README: short, with a picture on the first screen, and true."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tessera import algorithms, policies
from tessera.systems import SYSTEMS

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))
from _ext.algorithm_facts import facts

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text()
MOST_WORDS = 700
NAMED = 12
"""Systems that README names; the others are a number there."""


def test_the_readme_is_short_and_shows_a_picture_first() -> None:
    assert len(TEXT.split()) <= MOST_WORDS
    assert any(line.startswith("![") for line in TEXT.splitlines()[:10])


def test_every_link_of_the_readme_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)", TEXT):
        assert (ROOT / target).exists(), target


def test_every_script_that_the_readme_names_exists() -> None:
    scripts = re.findall(r"(?:python|pytest) ((?:benchmarks|tests)/[\w/.]+)", TEXT)
    assert len(scripts) >= 7
    assert all((ROOT / script).exists() for script in scripts)


def test_numbers_of_policies_and_systems_are_those_of_the_code() -> None:
    assert f"all {len(policies.names())} [policies]" in TEXT
    (others,) = re.findall(r"and (\d+) more", TEXT)
    assert int(others) + NAMED == len(SYSTEMS)


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_the_ticks_of_an_algorithm_are_what_the_code_says(name: str) -> None:
    found = {fact.about: fact.answer for fact in facts(name)}
    asked = ("discrete actions", "continuous actions", "masks of legal actions", "recurrent core", "several agents")
    ticks = [found[about] != "no" for about in asked] + ["replay" in found["memory"]]
    (row,) = (line for line in TEXT.splitlines() if line.startswith(f"|`{name}`|"))
    assert [cell == "✓" for cell in row.split("|")[2:-1]] == ticks
