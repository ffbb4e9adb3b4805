"""The page's own files, read and not run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tessera.dash

STATIC = Path(tessera.dash.__file__).parent / "static"
OWN = [path for path in STATIC.glob("*.js") if not path.name.startswith("uPlot")]
BANNED = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "document.write",
    "eval(",
    "new Function",
    "http://",
    "https://",
)
NAMESPACE = "http://www.w3.org/2000/svg"


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_no_script_makes_markup_from_words_or_asks_elsewhere(path):
    text = path.read_text().replace(NAMESPACE, "")
    assert [word for word in BANNED if word in text] == []
    assert text.startswith('"use strict";')


def test_the_page_has_no_inline_scripts_or_styles_and_names_every_file():
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*src=)", page)
    named = set(re.findall(r'(?:src|href)="/static/([^"]+)"', page))
    assert named == {path.name for path in [*STATIC.glob("*.js"), *STATIC.glob("*.css")]}


def test_what_is_bundled_keeps_its_licence():
    assert "Leon Sorokin" in (STATIC / "uPlot.LICENSE").read_text()
    assert "uPlot" in (STATIC / "uPlot.iife.min.js").read_text()[:200]
