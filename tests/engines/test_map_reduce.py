"""Map-reduce gives the same on every engine, even if workers die, hang or are late."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import mapped
import numpy as np
import pytest

import tessera
from tessera import TesseraError
from tessera.channels.packing import join_arrays, split_arrays
from tessera.engines.local import LocalEngine
from tessera.engines.serial import SerialEngine
from tessera.errors import RunFailed

ENGINES: dict[str, dict[str, Any]] = {
    "serial": {"engine": "serial"},
    "one worker": {"engine": "local", "workers": 1},
    "two workers": {"engine": "local", "workers": 2},
}


def everything(results: list[Any]) -> list[Any]:
    return results


@pytest.mark.parametrize("engine", ENGINES)
def test_results_come_in_the_order_of_items_and_are_the_same_on_every_engine(engine):
    items = [{"values": np.arange(k + 2, dtype=np.float32), "name": f"item {k}"} for k in range(5)]
    results = tessera.map_reduce(mapped.square, everything, items, **ENGINES[engine])
    assert [result["name"] for result in results] == [item["name"] for item in items]
    for result, item in zip(results, items, strict=True):
        assert result["square"].dtype == np.float32
        np.testing.assert_array_equal(result["square"], item["values"] ** 2)
        assert result["pair"] == [1, 2.5]


@pytest.mark.parametrize("engine", [SerialEngine, LocalEngine])
def test_engines_map_with_the_arguments_of_a_partial(engine):
    scaled = functools.partial(mapped.scaled, by=3, plus=1)
    assert engine.map_reduce(scaled, sum, range(4), workers=2) == sum(k * 3 + 1 for k in range(4))


def test_no_items_are_reduced_as_an_empty_list():
    assert tessera.map_reduce(mapped.raising, sum, [], engine="local") == 0


def test_an_item_whose_worker_is_killed_is_tried_again(tmp_path):
    notes: list[str] = []
    function = functools.partial(mapped.killed_once, folder=str(tmp_path))
    results = LocalEngine.map_reduce(function, everything, range(4), workers=2, note=notes.append)
    assert results == [0, 10, 20, 30]
    assert (tmp_path / "died").exists()
    assert notes == [
        "item 1 of 4 (1) was lost, because its worker was killed by SIGKILL, maybe for want of memory: tried again"
    ]


def test_an_item_that_hangs_is_tried_again_by_another_worker(tmp_path):
    notes: list[str] = []
    function = functools.partial(mapped.hung_once, folder=str(tmp_path))
    results = LocalEngine.map_reduce(function, everything, range(3), workers=1, timeout=1.0, note=notes.append)
    assert results == [0, 10, 20]
    assert "did not finish within 1 s" in notes[0]
    assert not Path("/proc", (tmp_path / "hung").read_text()).exists()


def test_the_first_k_are_enough_and_a_straggler_is_ended(tmp_path):
    function = functools.partial(mapped.straggling, folder=str(tmp_path))
    assert LocalEngine.map_reduce(function, everything, range(4), workers=2, first=3) == [1, 2, 3]
    begun = tmp_path / "0"
    assert not begun.exists() or not Path("/proc", begun.read_text()).exists()


def test_an_item_that_is_lost_too_often_is_an_error():
    words = r"item 0 of 1 \(7\) was lost 2 times, the last time because its worker was killed by SIGKILL"
    with pytest.raises(RunFailed, match=words):
        LocalEngine.map_reduce(mapped.killed, everything, [7], retries=1, note=lambda _: None)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_in_a_map_names_the_item_and_has_its_traceback(engine):
    with pytest.raises(RunFailed, match=r"item 2 of 4 \(2\) cannot be mapped: ValueError: two is too much") as raised:
        tessera.map_reduce(mapped.raising, everything, range(4), **ENGINES[engine])
    assert "mapped.py" in str(raised.value.__cause__)


@pytest.mark.parametrize("engine", ["serial", "one worker"])
def test_a_result_that_is_not_plain_data_is_refused(engine):
    with pytest.raises(TesseraError, match=r"set \{1\} is not plain data"):
        tessera.map_reduce(mapped.unplain, everything, [1], **ENGINES[engine])


@pytest.mark.parametrize(
    ("function", "items", "options", "words"),
    [
        (lambda item: item, [1], {}, "cannot be found by other processes: give a function"),
        (mapped.killed, [os], {}, "is not plain data"),
        (mapped.killed, [{1: 2}], {}, "dicts with texts for keys"),
        (mapped.killed, [1], {"first": 2}, "first=2 of 1 items"),
        (mapped.killed, [1], {"workers": 0}, "workers=0: at least one"),
        (mapped.killed, [1], {"retries": -1}, "retries=-1"),
        (mapped.killed, [1], {"timeout": 0.0}, "timeout=0: it must be above zero"),
        (mapped.killed, [1], {"engine": "locl"}, "unknown engine 'locl': did you mean 'local'"),
        (mapped.killed, [1], {"address": "x:1"}, "only --engine ray uses"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_before_anything_is_mapped(function, items, options, words):
    with pytest.raises(TesseraError, match=words):
        tessera.map_reduce(function, everything, items, **options)


def test_plain_data_comes_back_as_it_was_but_for_tuples():
    value = {
        "a": [1, 2.5, None, True, "x"],
        "b": {"c": np.ones((2, 0)), "d": np.int64(3)},
        "t": (1,),
        "n": float("inf"),
    }
    got = join_arrays(*split_arrays(value))
    assert got["b"].pop("c").shape == (2, 0)
    assert got == {"a": [1, 2.5, None, True, "x"], "b": {"d": 3}, "t": [1], "n": float("inf")}
