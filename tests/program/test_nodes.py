from __future__ import annotations

import pytest

from tessera.graph.streams import STREAMS
from tessera.program.nodes import SLOTS, Collective, Op, Recv, Repeat, Send, effects


def op(reads: str, writes: str) -> Op:
    return Op("act", lambda *x: x, tuple(reads.split()), tuple(writes.split()))


def test_what_was_written_before_it_is_read_is_not_read_from_outside():
    assert effects([op("a", "b"), op("b c", "d")]) == ({"a", "c"}, {"b", "d"})


def test_what_is_read_and_replaced_counts_as_both():
    assert effects([op("a", "a")]) == ({"a"}, {"a"})


def test_a_loop_hides_its_index_and_shows_what_it_stacks():
    loop = Repeat("t", 3, (op("t a", "x"),), {"x": "xs"})
    assert effects([loop]) == ({"a"}, {"x", "xs"})


def test_a_loop_of_no_fixed_count_reads_the_count():
    assert effects([Repeat("u", None, (op("a", "a"),))]) == ({"a", "count"}, {"a"})


def test_exchanges_read_what_they_send_and_write_what_they_receive():
    assert effects([Send("a", 0)]) == ({"a"}, set())
    assert effects([Recv("a", 0), op("a", "b")]) == (set(), {"a", "b"})
    assert effects([Collective("a", "mean")]) == ({"a"}, {"a"})


@pytest.mark.parametrize("slot", sorted({s.slot for s in STREAMS}))
def test_the_layout_of_every_slot_that_flows_is_known(slot):
    assert SLOTS[slot].layout in ("groups", "copy")
