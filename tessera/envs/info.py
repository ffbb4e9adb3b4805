"""Numbers in the `info` of host environments, summed by name where they are played; this module imports no JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

InfoTotals = dict[str, list[float]]
"""Name -> the sum of its numbers, and how many there were: plain data, which travels with reports."""

NOT_MEASURED = frozenset({"TimeLimit.truncated", "elapsed_step", "env_id", "final_info", "final_obs"})
"""Names that Gymnasium and EnvPool use to run environments."""
MOST_NAMES = 100
"""Names that are kept; later ones are left out, because each is a column of the metrics."""
LARGEST = 1e300
"""What is larger counts as infinite, so that sums stay finite."""

_PLAIN = frozenset({float, bool, np.float64, np.float32, np.int64, np.int32, np.bool_})
"""Types that `float` always takes; most numbers are of these."""


class InfoSums:
    """Sums of what environments tell beside their observations, until they are taken."""

    def __init__(self) -> None:
        self._totals: InfoTotals = {}
        self._names: set[str] = set()
        """All names that there have been."""

    def add(self, info: Mapping[str, Any]) -> None:
        """Add the numbers of one step of one environment; what is no finite number is left out."""
        for name, value in info.items():
            number = float(value) if type(value) in _PLAIN else _number(value)
            if -LARGEST < number < LARGEST:
                total = self._totals.get(name) or self._begun(name)
                total[0] += number
                total[1] += 1

    def add_batch(self, infos: Mapping[str, Any], counted: np.ndarray | None = None) -> None:
        """Add those of a vector environment's step: arrays [n], where `_NAME` says which environments have NAME.

        Args:
            infos: what the vector environment returned.
            counted: bool [n], the environments whose step counts; None for all.
        """
        for name, values in infos.items():
            if not isinstance(values, np.ndarray) or not isinstance(name, str) or name in NOT_MEASURED:
                continue
            if name[:1] == "_" and name[1:] in infos:
                continue
            present = infos.get(f"_{name}")
            # counting is several times faster than `mask.all()`, and this is done at every step
            which = [mask for mask in (present, counted) if mask is not None and np.count_nonzero(mask) < mask.size]
            kept = values[np.logical_and.reduce(which)] if which else values
            kind = values.dtype.kind
            if kind in "fiub" and values.ndim == 1:
                self._add_array(name, kept)
            elif kind == "O":
                for value in kept:
                    self.add({name: value})

    def _add_array(self, name: str, values: np.ndarray) -> None:
        total = float(np.add.reduce(values, dtype=np.float64))
        if not -LARGEST < total < LARGEST:
            values = np.asarray(values, np.float64)
            values = values[np.abs(values) < LARGEST]
            total = float(values.sum())
        if values.size:
            sums = self._totals.get(name) or self._begun(name)
            sums[0] += total
            sums[1] += values.size

    def take(self) -> InfoTotals:
        """The sums since this was last called."""
        taken, self._totals = self._totals, {}
        return taken

    def _begun(self, name: Any) -> list[float]:
        """The sum of a name that is new; one that nobody reads, if it is not to be kept."""
        nothing = [0.0, 0]
        known = name in self._names or (len(self._names) < MOST_NAMES and isinstance(name, str))
        if known and name not in NOT_MEASURED:
            self._names.add(name)
            self._totals[name] = nothing
        return nothing


def merge_totals(into: InfoTotals, more: InfoTotals) -> None:
    """Add sums to others."""
    for name, (total, count) in more.items():
        sums = into.setdefault(name, [0.0, 0])
        sums[0] += total
        sums[1] += count


def _number(value: Any) -> float:
    """A number of another type, such as an array without axes; NaN for everything else."""
    if type(value) is int:
        return float(value) if abs(value) < LARGEST else np.nan
    if isinstance(value, str) or getattr(value, "shape", ()) != ():
        return np.nan
    try:
        array = np.asarray(value)
    except Exception:  # arrays of other libraries may be where NumPy cannot read them
        return np.nan
    return float(array) if array.ndim == 0 and array.dtype.kind in "fiub" else np.nan
