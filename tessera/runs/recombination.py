"""An evolution strategy over whole runs: the better members' params are averaged, and each goes on near the mean.

It works on states as checkpoints have them, arrays by path, so that it is the same whether members share a program or
have folders of their own.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Arrays = dict[str, Any]
PARAMS = "state/params/"
OF_BEST = ("state/target/", "state/statistics/", "state/optimizer/")
"""What a mean would make no sense of: the best member's is taken."""
CLOCK = "/clock/applies"


def mean_state(states: Sequence[Mapping[str, Any]], weights: Sequence[float]) -> Arrays:
    """The weighted mean of the members' params, and what else belongs to them, which is the best member's."""
    best = states[int(np.argmax(weights))]
    found = {path: np.asarray(x) for path, x in best.items() if path.startswith(OF_BEST)}
    for path in [path for path in best if path.startswith(PARAMS)]:
        total = sum(w * np.asarray(state[path], np.float64) for w, state in zip(weights, states, strict=True) if w)
        found[path] = np.asarray(total).astype(np.asarray(best[path]).dtype)
    return found


def near(mean: Mapping[str, Any], sigma: float, seed: int, update: int, member: int) -> Arrays:
    """The state that a member goes on with: params with its noise, which is the opposite of its neighbour's."""

    def with_noise(path: str, x: np.ndarray) -> np.ndarray:
        random = np.random.default_rng([seed % 2**64, update, member // 2, zlib.crc32(path.encode())])
        sign = 1 - 2 * (member % 2)
        return (x + sign * sigma * random.standard_normal(x.shape)).astype(x.dtype)

    return {path: with_noise(path, np.asarray(x)) if path.startswith(PARAMS) else x for path, x in mean.items()}


def spread(arrays: Mapping[str, Any], state: Mapping[str, Any]) -> Arrays:
    """A checkpoint's arrays with a new state, and its params wherever there is a copy of them."""
    roots = [path.removesuffix(CLOCK) for path in arrays if path.endswith(CLOCK)]
    changed = {f"{root}/{path.removeprefix('state/')}": x for root in roots for path, x in state.items()}
    return {**arrays, **{path: x for path, x in changed.items() if path in arrays}}
