"""Names of leaves: checkpoints that exist hold them, so they never change."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import pytest

from tessera.support.trees import leaf_path


class Pair(NamedTuple):
    left: Any
    right: Any


@pytest.mark.parametrize(
    ("tree", "names"),
    [
        ({"b": 1, "a": {"c": 2}}, ["a/c", "b"]),
        (Pair(1, right=2), ["left", "right"]),
        ((1, (2, 3)), ["0", "1/0", "1/1"]),
        ([1, [2]], ["0", "1/0"]),
        ({"state": Pair({"params": (1, [2, Pair(3, None)])}, ())}, [
            "state/left/params/0", "state/left/params/1/0", "state/left/params/1/1/left",
        ]),
        ({"buffer": Pair((Pair(1, 2), {"steps": [3]}), 4)}, [
            "buffer/left/0/left", "buffer/left/0/right", "buffer/left/1/steps/0", "buffer/right",
        ]),
        ({0: 1, 7: 2}, ["0", "7"]),
        (1, [""]),
    ],
)  # fmt: skip
def test_a_leaf_is_named_by_keys_fields_and_positions(tree, names):
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    assert [leaf_path(path) for path, _ in leaves] == names
    assert [old_path(path) for path, _ in leaves] == names


def old_path(path: tuple[Any, ...]) -> str:
    """How checkpoints were written before JAX's own key paths were used."""
    return "/".join(str(getattr(p, "key", getattr(p, "name", getattr(p, "idx", p)))) for p in path)
