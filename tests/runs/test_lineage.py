"""lineage.jsonl: what it holds, and what becomes of a damaged one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera.errors import TesseraError
from tessera.runs.lineage import Lineage, read_lineage
from tessera.runs.population import Descent

FIRST, LATER = [{"lr": 0.5}, {"lr": 0.25}], [{"lr": 0.5}, {"lr": 0.75}]


def written(folder: Path) -> Lineage:
    lineage = Lineage(folder, [7, 8])
    lineage.begin(FIRST)
    lineage.note(5, [3.0, float("-inf")], [Descent(0, LATER[0]), Descent(0, LATER[1])])
    return lineage


def test_an_exchange_is_read_as_it_was_noted(tmp_path: Path) -> None:
    rows = written(tmp_path).rows
    assert read_lineage(tmp_path) == rows
    assert rows[2:] == [
        {"update": 5, "seed": 7, "parent": 7, "score": 3.0, "tuned": {"lr": 0.5}},
        {"update": 5, "seed": 8, "parent": 7, "score": None, "tuned": {"lr": 0.75}},
    ]


def test_a_population_that_goes_on_decides_its_exchange_again(tmp_path: Path) -> None:
    written(tmp_path)
    again = Lineage(tmp_path, [7, 8])
    again.resume(5)
    assert [row["update"] for row in again.rows] == [0, 0]
    again.resume(6)
    assert [row["update"] for row in again.newest] == [5, 5]


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"update": 1}', b"\xff", b"[" * 100_000])
def test_a_damaged_lineage_is_refused_in_a_sentence(line: bytes, tmp_path: Path) -> None:
    (tmp_path / "lineage.jsonl").write_bytes(line + b"\n")
    with pytest.raises(TesseraError, match=r"lineage\.jsonl.* damaged"):
        read_lineage(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [('"seed": 8', '"seed": 9'), ('"parent": 7', '"parent": 1'), ('"update": 5', '"update": 6'), ("0.75", '"x"')],
)
def test_a_lineage_of_other_members_is_not_gone_on_with(old: str, new: str, tmp_path: Path) -> None:
    written(tmp_path).write()
    path = tmp_path / "lineage.jsonl"
    path.write_text(path.read_text()[::-1].replace(old[::-1], new[::-1], 1)[::-1])
    with pytest.raises(TesseraError, match="not what a run of these seeds writes"):
        Lineage(tmp_path, [7, 8]).read()


def test_a_folder_without_one_has_no_rows(tmp_path: Path) -> None:
    assert read_lineage(tmp_path) == []
