import time

import pytest

from tessera.profiling import core_speed
from tessera.profiling.core_speed import CoreSpeed, turns_per_microsecond


def test_the_speed_is_the_mean_of_all_samples_and_one_is_taken_at_the_beginning(monkeypatch):
    speeds = iter([1.0, 2.0, 6.0])
    monkeypatch.setattr(core_speed, "turns_per_microsecond", lambda seconds: next(speeds))
    speed = CoreSpeed(on_accelerators=False)
    assert speed.mean == 1.0
    speed.sample()
    speed.sample()
    assert speed.mean == 3.0


def test_beside_accelerators_the_speed_of_a_core_says_nothing_and_is_not_sampled(monkeypatch):
    monkeypatch.setattr(core_speed, "turns_per_microsecond", lambda seconds: pytest.fail("sampled"))
    speed = CoreSpeed(on_accelerators=True)
    speed.sample()
    assert speed.mean == 1.0


def test_turns_are_counted_by_what_the_thread_has_worked_and_not_by_what_has_passed(monkeypatch):
    now = [0.0]

    def clock() -> float:
        now[0] += 0.001  # of each look
        return now[0]

    monkeypatch.setattr(time, "thread_time", clock)
    # the first look begins, those at 0.001 and 0.002 go on, that at 0.003 ends; the one after it is what is divided by
    assert turns_per_microsecond(0.0025) == pytest.approx(20 / 0.004 * 1e-6)
