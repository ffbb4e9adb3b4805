"""Colourings in one line."""

from __future__ import annotations

import pytest

from tessera import TesseraError, policies
from tessera.graph.colouring import is_colouring, make_colouring, partition_of, read_colouring
from tessera.graph.policy import ALL_DEVICES, Cut, Fragment

LINES = (
    "env+act@2/store+grad+apply",
    "env+act+store+grad+apply@1xall",
    "env+act+store+grad+apply@2:gather",
    "act+apply@2/env+grad@3/store",
    "env@4/act@2x2/store+grad+apply@1x4x2",
    "env+act@3/store/grad+apply:async,lag=2",
)


@pytest.mark.parametrize("line", LINES)
def test_a_colouring_is_read_as_it_is_written(line):
    assert is_colouring(line)
    assert policies.parse(line).name == line
    assert policies.parse(line) == read_colouring(line)


def test_numbers_are_replicas_devices_and_devices_of_one_copy():
    fragments = read_colouring("env@4/act@2x2/store+grad+apply@1x4x2").fragments
    assert fragments[:2] == (Fragment("env", 4), Fragment("act", 2, 2))
    assert fragments[2] == Fragment("store grad apply", 1, 4, model=2)
    assert read_colouring("env+act+store+grad+apply@1xall").fragments[0].devices == ALL_DEVICES
    assert partition_of(read_colouring("env@4/act@2x2/store+grad+apply")) == "env/act/store+grad+apply"


def test_what_follows_the_colon_are_disciplines():
    loose = read_colouring("env+act@3/store/grad/apply:async,lag=2").cuts
    assert loose["experience"] == loose["samples"] == loose["gradients"] == Cut("async")
    assert loose["params"] == Cut("async", 2)
    assert loose["priorities"] == Cut(lag=1)
    assert read_colouring("env+act@3/store+grad+apply:lag=2").cuts == {"params": Cut(lag=2)}
    assert read_colouring("env+act+store+grad+apply@2:gather").cut("experience").route == "gather"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("env+act/store+grad", "operator 'apply' in 0 fragments"),
        ("env+akt/store+grad+apply", "'akt': did you mean 'act'"),
        ("env+act@two/store+grad+apply", "'env\\+act@two' must be operators joined by"),
        ("env+act@0/store+grad+apply", "asks for 0 replicas"),
        ("env+act/store+grad+apply:asynk", "'asynk': did you mean 'async'"),
        ("env+act/store+grad+apply:async,lag=soon", "lag=soon must be a whole number"),
        ("env+act/store+grad+apply:async=yes", "async and gather have no value"),
    ],
)
def test_a_colouring_that_is_none_is_refused_in_one_sentence(line, said):
    with pytest.raises(TesseraError, match=said):
        policies.parse(line)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("env+act+store+grad+apply@1xall", "fused"),
        ("env+act@2/store+grad+apply", "single_learner_coarse"),
        ("env+act@3/store+grad+apply:async,lag=2", "single_learner_coarse:actors=3,mode=async,lag=2"),
        ("env+act+store+grad@4/apply@2", "central:workers=4,shards=2"),
        ("env@4/act+store+grad+apply", "single_learner_fine:actors=4"),
        ("act+apply@2/env+grad@3/store", "act+apply@2/env+grad@3/store"),
    ],
)
def test_a_colouring_goes_by_the_name_that_it_has(line, name):
    policy, text = policies.named(read_colouring(line))
    assert text == name
    assert policies.parse(text).fragments == policy.fragments
    assert policy.name == policies.parse(text).name


def test_a_name_that_begins_like_an_operator_is_no_colouring():
    assert not is_colouring("environments")
    assert not is_colouring("apply.toml")
    assert make_colouring([Fragment("env act store grad apply")]).name == "env+act+store+grad+apply"
