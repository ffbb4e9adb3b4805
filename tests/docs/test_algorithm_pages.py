"""Every algorithm has a page, and the tables on it say what the code says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tessera import algorithms, policies
from tessera.algorithms.contract import Algorithm
from tessera.planning.algorithm_policy_pairs import refusal

DOCS = Path(__file__).resolve().parents[2] / "docs"
sys.path.insert(0, str(DOCS))

from _ext import algorithm_facts as page  # noqa: E402

SECTIONS = [
    "What it is",
    "Can I use it with …",
    "Example",
    "Results",
    "How to replicate",
    "Logged metrics",
    "Options",
    "Details that differ from the paper",
    "References",
]


def text_of(name: str) -> str:
    return (DOCS / "algorithms" / f"{name}.md").read_text("utf-8")


def answers(name: str) -> dict[str, str]:
    return {fact.about: fact.answer for fact in page.facts(name)}


def test_every_algorithm_has_a_page_and_every_page_an_algorithm():
    assert {file.stem for file in (DOCS / "algorithms").glob("*.md")} == {*algorithms.ALGORITHMS, "index"}


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_a_page_has_all_sections_in_order_each_with_something_in_it(name):
    found = re.split(r"^## ", text_of(name), flags=re.MULTILINE)[1:]
    assert [section.partition("\n")[0] for section in found] == SECTIONS
    assert all(section.partition("\n")[2].strip() for section in found)


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_the_tables_of_a_page_are_those_of_its_own_algorithm(name):
    assert re.findall(r"^```\{algorithm-(\w+)\} (\w+)$", text_of(name), flags=re.MULTILINE) == [
        ("facts", name),
        ("metrics", name),
        ("options", name),
    ]


@pytest.mark.parametrize("name", [*algorithms.ALGORITHMS, "index"])
def test_links_and_pictures_lead_to_files_of_ours(name):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text_of(name)):
        assert (DOCS / "algorithms" / target).exists(), target


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_flags_that_a_page_names_exist(name):
    own = {
        f"--{row[0].removeprefix('`--').rstrip('`')}"
        for of_all in (True, False)
        for row in page.option_rows(name, of_all)
    }
    body = re.sub(r"^```.*?^```", "", text_of(name), flags=re.MULTILINE | re.DOTALL)
    named = {f"--{flag.removeprefix('no-')}" for flag in re.findall(r"`--([a-z][a-z-]+)", body)}
    of_runs = {"--lag", "--policy", "--preset"}
    assert named <= own | of_runs


def test_what_dqn_can_be_used_with():
    found = answers("dqn")
    assert found["discrete actions"] == "yes"
    assert found["continuous actions"] == "no"
    assert found["masks of legal actions"] == "yes"
    assert found["games for two, by self-play"] == "yes"
    assert found["several agents"] == "no"
    assert found["recurrent core"] == "no"
    assert found["memory"] == "a replay"
    assert page.noise_fact("dqn") == page.Fact("noise in the loss", "sometimes", "with `--noisy`")
    assert found["distribution policies"] == f"all {len(policies.names())}"


def test_what_sac_can_be_used_with():
    assert [fact.answer for fact in page.action_facts("sac")] == ["no", "no", "yes", "no"]
    assert page.noise_fact("sac") == page.Fact("noise in the loss", "yes", "")
    assert "needs continuous actions" in page.action_facts("sac")[0].detail


def test_what_others_can_be_used_with():
    assert page.core_fact("r2d2").answer == "always"
    assert page.core_fact("ppo").answer == "yes"
    assert page.host_fact("alphazero").answer == "no"
    assert page.host_fact("ppo").answer == "yes"
    assert [fact.answer for fact in page.company_facts("mappo")] == ["yes", "no", "no"]
    assert page.noise_fact("dpg").detail == "not with `--smoothing 0`"
    assert page.memory_fact("ppo").detail.startswith(
        "An update: 32 steps in each environment, then 4 passes of 4 minib"
    )
    assert page.observation_facts("mappo")[0].detail == "as one long vector"


def test_an_action_that_ignores_the_mask_is_noticed():
    import jax

    program = jax.make_jaxpr(lambda mask, other: jax.numpy.sum(other))(jax.numpy.ones(3), jax.numpy.ones(2)).jaxpr
    assert not page._depends(program, program.invars[:1])
    assert page._depends(program, program.invars[1:])


def test_a_policy_that_refuses_an_algorithm_is_found():
    spec, _ = page.home("a2c")
    layerwise = algorithms.get("a2c")(layerwise="lars")
    assert "shards" in refusal(layerwise, page.MadeUpWorld(spec), policies.parse("central:shards=2"))
    assert not refusal(layerwise, page.MadeUpWorld(spec), policies.parse("central"))


def test_metrics_are_those_that_runs_report():
    losses = {"learn/gradient_norm", "learn/loss", "learn/policy_loss", "learn/value_loss", "learn/entropy"}
    assert dict.fromkeys(losses, "") == page.learned_metrics("a2c")
    assert page.learned_metrics("dqn")["learn/dropped"] == "--outliers"
    assert set(page.learned_metrics("es")) == {"learn/gradient_norm", "learn/score", "learn/best_score"}


@pytest.mark.parametrize("name", ["a2c", "dqn", "es"])
def test_every_reported_metric_is_described(name):
    assert set(page.learned_metrics(name)) <= set(page.metric_sentences())


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_every_option_has_a_row_with_its_docstring(name):
    rows = page.option_rows(name, of_all=False)
    assert all(row[3] for row in rows)
    assert len(page.option_rows(name, of_all=True)) == 4
    assert len(rows) + 4 == len(page.options_of(algorithms.get(name)))


def test_defaults_that_depend_on_the_environment_are_spelled_out():
    rates = {row[0]: row[1] for row in page.option_rows("ppo", of_all=False)}
    assert rates["`--epochs`"] == "vectors, boards, pixels: `4`; continuous actions: `10`"
    assert rates["`--clip`"] == "`0.2`"
    assert {row[0]: row[2] for row in page.option_rows("ppo", of_all=False)}["`--gamma`"] == "0 to 1"


def test_the_table_of_all_has_a_line_for_each():
    lines = page.algorithms_table().splitlines()
    assert len(lines) == len(algorithms.ALGORITHMS) + 2
    (line,) = [line for line in lines if "[`dpg`](dpg.md)" in line]
    assert line.endswith("| continuous | a replay | Lillicrap et al. 2016; Fujimoto et al. 2018 |")


def test_facts_have_no_words_of_their_own_for_what_an_algorithm_refuses():
    class Choosy(Algorithm):
        name = "choosy"

        def check(self):
            raise page.TesseraError("not in the mood")

    assert page.tried(Choosy(), [{}]) == (None, "not in the mood")
