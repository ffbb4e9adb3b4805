"""How busy the cores are with others: what /proc tells, in ticks of a hundredth of a second."""

from __future__ import annotations

import os

import pytest

from tessera.support import load
from tessera.support.load import CoreTimes, core_times, used_by_others


def process(number: int, parent: int, *ticks: int) -> str:
    """A line of /proc/NUMBER/stat; names may have spaces and brackets."""
    return f"{number} (a (name)) S {parent} " + "0 " * 9 + " ".join(map(str, ticks)) + " 20 0\n"


def test_busy_ticks_are_those_of_cores_that_this_process_may_use(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "PROC", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2})
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    me = os.getpid()
    (tmp_path / "stat").write_text(
        "cpu  1 1 1 1 1 1 1 1 0 0\n"
        "cpu0 100 20 30 9999 8888 1 2 3 77 0\n"
        "cpu1 5000 0 0 0 0 0 0 0 0 0\n"
        "cpu2 200 0 0 9999 0 0 0 0 0 0\n"
        "intr 5\n"
    )
    facts = {me: (1, 10, 5, 1, 1), me + 1: (me, 20, 0, 0, 0), me + 2: (me + 1, 30, 0, 0, 0), me + 3: (1, 999, 0, 0, 0)}
    for number, (parent, *ticks) in facts.items():
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "stat").write_text(process(number, parent, *ticks))
    found = core_times()
    assert found is not None
    assert found.busy == pytest.approx((100 + 20 + 30 + 1 + 2 + 3 + 200) / 100)
    assert found.own == pytest.approx((17 + 20 + 30) / 100)


def test_others_use_what_is_busy_and_not_ours(monkeypatch):
    monkeypatch.setattr(load, "cores", lambda: 4)
    assert used_by_others(CoreTimes(0.0, 0.0, 0.0), CoreTimes(10.0, 30.0, 12.0)) == pytest.approx(1.8)
    assert used_by_others(CoreTimes(0.0, 0.0, 0.0), CoreTimes(10.0, 10.0, 12.0)) == 0.0, "counters are coarse"


def test_where_the_system_does_not_tell_nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "PROC", tmp_path)
    assert core_times() is None
