"""One file that shows a run without anything else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys

import pytest
from recorded_runs import status, write_run

from tessera.cli.dash import dash_command
from tessera.dash.report import escaped, report
from tessera.errors import TesseraError


@pytest.fixture(autouse=True)
def page(tmp_path, monkeypatch):
    """A page that is smaller than the real one."""
    static = tmp_path / "static"
    static.mkdir()
    (static / "index.html").write_text(
        '<!doctype html>\n<html>\n<head>\n<meta charset="utf-8">\n<title>Tessera</title>\n'
        '<link rel="stylesheet" href="/static/a.css">\n<script src="/static/a.js" defer></script>\n'
        '<script src="/static/b.min.js" defer></script>\n</head>\n<body>\n<main></main>\n</body>\n</html>\n'
    )
    (static / "a.css").write_text("main { color: red }")
    (static / "a.js").write_text('const end = "</script>";')
    (static / "b.min.js").write_text("console.log(end)")
    monkeypatch.setattr("tessera.dash.report.STATIC", static)


def held(page: str) -> dict:
    """The answers in a report."""
    (text,) = re.findall(r'<script type="application/json" id="answers">(.*?)</script>', page)
    return json.loads(text)


def test_a_report_holds_all_that_the_page_asks(runs):
    spans = {"format": 1, "names": [], "slots": [], "replicas": []}
    write_run(runs / "a b", status=status(), spans=spans)
    found = held(report(runs, "a b"))
    assert found["/api/run?name=a+b"]["header"]["update"] == 10
    assert found["/api/spans?name=a+b"]["format"] == 1
    curves = [x for key, x in found.items() if key.startswith("/api/curves")]
    assert {x["by"] for x in curves} == {"env_steps", "seconds", "update"}
    assert {c["metric"] for c in curves[0]["curves"]} == {"learn/loss", "steps_per_second", "train_return_mean"}


def test_a_report_of_several_seeds_holds_each(runs):
    write_run(runs / "all", config={"seeds": 2})
    for seed in range(2):
        write_run(runs / "all" / f"seed-{seed}", config={"seed": seed})
    found = held(report(runs, "all"))
    assert "/api/run?name=all" in found
    assert "/api/run?name=all%2Fseed-1" in found


def test_a_report_loads_nothing_and_runs_only_its_own_scripts(runs):
    write_run(runs / "a")
    page = report(runs, "a")
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    assert not re.search(r"https?://", page)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)">', page)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 2
    for text in scripts:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert page.index("Content-Security-Policy") < page.index("<title>") < page.index("<main>") < page.index("<script")


def test_a_script_in_a_config_stays_text(runs):
    write_run(runs / "a", config={"env": "</script><script>alert(1)</script><!--"})
    page = report(runs, "a")
    assert "alert(1)</script>" not in page
    assert held(page)["/api/run?name=a"]["header"]["env"] == "</script><script>alert(1)</script><!--"


def test_names_are_written_as_browsers_write_them():
    assert escaped("a/b c~*é'()!") == "a%2Fb+c%7E*%C3%A9%27%28%29%21"


def test_export_writes_a_file_or_says_why_not(runs, tmp_path, capsys):
    write_run(runs / "a")
    file = tmp_path / "report.html"
    dash_command([str(runs / "a"), "--export", str(file)])
    assert capsys.readouterr().out == f"wrote {file}\n"
    assert held(file.read_text())["/api/run?name=a"]["name"] == "a"
    for folder, out, words in ((runs, file, "is no run"), (runs / "a", tmp_path / "x.pdf", ".html"),
                               (runs / "a", tmp_path / "none" / "x.html", "cannot write")):  # fmt: skip
        with pytest.raises(TesseraError, match=words):
            dash_command([str(folder), "--export", str(out)])


def test_export_needs_no_server():
    code = "import sys, tessera.dash.report; print([m for m in ('starlette', 'uvicorn') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
