"""Code in README and in the first ten minutes runs as it stands there."""

from __future__ import annotations

from pathlib import Path

import pytest
from code_blocks import blocks_of, run

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
FIRST_TEN_MINUTES = [ROOT / "docs" / "start" / f"{reader}.md" for reader in ("researcher", "engineer", "student")]


def test_every_note_above_a_block_is_understood() -> None:
    for page in (README, *FIRST_TEN_MINUTES):
        found = list(blocks_of(page))
        assert len(found) >= 4
        assert all(block.note == "" or block.slow or block.skipped for block in found)


def test_the_blocks_of_the_readme_run(tmp_path: Path) -> None:
    for block in blocks_of(README):
        if not (block.slow or block.skipped):
            run(block, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", [README, *FIRST_TEN_MINUTES], ids=lambda page: page.stem)
def test_all_blocks_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    for block in blocks_of(page):
        if not block.skipped:
            run(block, tmp_path)
