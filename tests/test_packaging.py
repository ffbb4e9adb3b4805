"""What a release says of itself: versions, extras, files of the package, tools. No network, nothing is built."""

from __future__ import annotations

import ast
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

import tessera

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tessera"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PYPROJECT["project"]["optional-dependencies"]
NOT_IN_ALL: dict[str, str] = {}
"""Extra that `all` leaves out -> why."""
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def loaded(path: Path) -> Any:
    """What a YAML file says."""
    return yaml.safe_load(path.read_text())


def pinned(package: str) -> str:
    """The version that `make test` installs."""
    found = re.search(rf"^{re.escape(package)}==(\S+)$", (ROOT / "requirements" / "dev.txt").read_text(), re.MULTILINE)
    assert found, f"{package} is not in requirements/dev.txt"
    return found[1]


def hinted(source: str) -> set[str]:
    """Extras that a source tells the user to install."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    named = {"install_hint": 0, "missing_extra": 1}  # function -> which argument is the extra
    found: set[str] = set()
    for call in calls:
        position = named.get(getattr(call.func, "id", getattr(call.func, "attr", "")))
        if position is not None and len(call.args) > position and isinstance(call.args[position], ast.Constant):
            found.add(call.args[position].value)
    return found


def test_the_version_is_written_once_and_everything_else_agrees_with_it():
    assert PYPROJECT["project"]["dynamic"] == ["version"]
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "tessera.__version__"}
    headings = re.findall(r"^## \[?([^\]\s]+)\]?", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    newest = [heading for heading in headings if heading != "Unreleased"]
    assert newest[0] == tessera.__version__
    assert loaded(ROOT / "CITATION.cff")["version"] == tessera.__version__


def test_the_version_can_be_read_without_importing_the_package():
    (version,) = (
        ast.literal_eval(node.value)
        for node in ast.parse((PACKAGE / "__init__.py").read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__"
    )
    assert version == tessera.__version__


def test_a_citation_names_no_person_and_no_identifier():
    citation = loaded(ROOT / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["authors"] == PYPROJECT["project"]["authors"]
    assert citation["license"] == PYPROJECT["project"]["license"]
    assert not citation.keys() & {"doi", "identifiers"}


def test_every_extra_that_a_message_names_exists():
    found = {extra for path in PACKAGE.rglob("*.py") for extra in hinted(path.read_text())}
    assert {"brax", "ray", "video"} <= found <= EXTRAS.keys()
    assert hinted("raise missing_extra('x', 'y', error)\ninstall_hint('z')") == {"y", "z"}


def test_every_extra_that_a_page_names_exists():
    found = {extra for page in PAGES for extra in re.findall(r"-e '\.\[(\w+)\]'", page.read_text())} - {"NAME"}
    assert found
    assert found <= EXTRAS.keys()


def test_the_extra_all_is_all_others():
    (everything,) = EXTRAS["all"]
    name, _, listed = everything.rstrip("]").partition("[")
    assert name == PYPROJECT["project"]["name"]
    assert listed.split(",") == [extra for extra in EXTRAS if extra not in ("all", *NOT_IN_ALL)]


def test_every_file_of_the_package_is_in_the_wheel_and_every_pattern_finds_one():
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["tessera"]
    files = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*") if path.is_file()]
    data = [name for name in files if not name.endswith((".py", ".pyc"))]
    assert [name for name in data if not any(fnmatch(name, pattern) for pattern in patterns)] == []
    assert [pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in data)] == []


def test_files_that_the_package_names_are_there():
    project = PYPROJECT["project"]
    manifest = re.findall(r"^include (.+)$", (ROOT / "MANIFEST.in").read_text(), re.MULTILINE)
    named = [project["readme"], *project["license-files"], *(name for line in manifest for name in line.split())]
    assert [name for name in named if not (ROOT / name).is_file()] == []
    for target in project["scripts"].values():
        module, _, function = target.partition(":")
        assert f"def {function}(" in (ROOT / f"{module.replace('.', '/')}.py").read_text()


def test_hooks_use_the_ruff_of_make_check():
    hooks = [hook for repo in loaded(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    assert [hook["entry"].split()[:2] for hook in hooks] == [["ruff", "check"], ["ruff", "format"]]
    assert all(hook["additional_dependencies"] == [f"ruff=={pinned('ruff')}"] for hook in hooks)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_what_the_makefile_has_and_pin_actions_by_their_major_version(path):
    jobs = loaded(path)["jobs"].values()
    steps = [step for job in jobs for step in job["steps"]]
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]) for step in steps if "uses" in step)
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command in (step["run"] for step in steps if "run" in step):
        made = re.fullmatch(r"make ([\w-]+)", command)
        assert command == "bash .ci/run" or (made and made[1] in targets), command
    assert all("timeout-minutes" in job for job in jobs)


def test_what_is_tested_by_every_push_is_what_the_package_says_it_supports():
    (job,) = loaded(ROOT / ".github" / "workflows" / "ci.yml")["jobs"].values()
    claimed = re.findall(r"Python :: (3\.\d+)", "\n".join(PYPROJECT["project"]["classifiers"]))
    assert job["strategy"]["matrix"]["python"] == claimed
    assert PYPROJECT["project"]["requires-python"] == f">={claimed[0]}"


def test_forms_for_issues_ask_for_what_the_doctor_says():
    forms = {path.name: loaded(path) for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")}
    assert forms.keys() == {"bug.yml", "question.yml", "config.yml"}
    for name in ("bug.yml", "question.yml"):
        assert forms[name].keys() >= {"name", "description", "body"}
        inputs = [field for field in forms[name]["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in inputs}) == len(inputs)
        assert all(field["attributes"]["label"] for field in inputs)
    assert "tessera doctor" in (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text()
