"""Pages of policies: every policy has one, and what they show and say is what the code does."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tessera import policies
from tessera.engines.driver.supervisor import replaceable
from tessera.planning.prepare import prepare_plan

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))
from _ext import policies as pages

DOCS = Path(__file__).resolve().parents[2] / "docs"
SECTIONS = ["What it does", "When to use it", "Picture", "Plan", "Options", "What it mirrors", "Parity and faults",
            "Measured"]  # fmt: skip
GOES_BACK = "goes back to its last checkpoint"


def page(name: str) -> str:
    return (DOCS / "policies" / f"{name}.md").read_text()


@pytest.mark.parametrize("name", policies.names())
def test_every_policy_has_a_page_with_the_same_sections(name):
    text = page(name)
    assert text.startswith(f"# `{name}`\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    for directive in ("policy-facts", "policy-measured"):
        assert f"```{{{directive}}} {name}\n" in text


def test_no_page_is_of_a_policy_that_is_gone():
    assert {path.stem for path in (DOCS / "policies").glob("*.md")} == set(policies.names())


@pytest.mark.parametrize("name", policies.names())
def test_facts_have_every_option_fragment_and_stream(name):
    facts = pages.policy_facts(name)
    assert all(f"| `{option}` |" in facts for option in policies.options(policies.maker(name)))
    assert all(f"| `{'+'.join(fragment.names)}` |" in facts for fragment in policies.get(name).fragments)
    *_, plan = prepare_plan(pages.EXAMPLES.get(name, pages.PPO()), pages.ENV, name, engine="local")
    assert all(f"| {channel.stream} | " in facts for channel in plan.channels)


def test_modes_are_those_that_a_policy_takes_its_default_first():
    assert pages.modes("single_learner_coarse") == ["sync", "first", "async"]
    assert pages.modes("gorila") == ["async", "sync"]
    assert pages.modes("fused") == []


def test_measurements_are_shared_out_over_the_pages_and_none_is_left_out():
    lines = (DOCS / "policies.md").read_text().partition("## Measured")[2].splitlines()
    head, _, *rows = (line for line in lines if line.startswith("|"))
    shown = [pages.policy_measured(name).splitlines() for name in policies.names()]
    assert all(table[0] == head for table in shown)
    assert sorted(row for table in shown for row in table[2:]) == sorted(rows)


def test_the_table_of_all_policies_links_to_their_pages():
    table = pages.policies_table()
    assert re.findall(r"\]\(policies/(\w+)\.md\)", table) == list(policies.names())


@pytest.mark.parametrize("name", policies.names())
def test_a_page_says_of_exactly_those_policies_that_a_death_takes_the_run_back_where_it_does(name):
    back = False
    for _, policy in pages.variants(name):
        *_, plan = prepare_plan(pages.EXAMPLES.get(name, pages.PPO()), pages.ENV, policy, engine="local")
        back |= not all(replaceable(plan, index) for index in range(len(plan.fragments)))
    section = " ".join(page(name).partition("## Parity and faults")[2].partition("\n## ")[0].split())
    assert (GOES_BACK in section) == back


@pytest.mark.parametrize("name", policies.names())
def test_policies_that_pages_name_can_be_made(name):
    named = re.findall(r"--policy (\S+)", page(name))
    assert all(policies.parse(text.rstrip("`.,")) for text in named if "OPTION" not in text)
