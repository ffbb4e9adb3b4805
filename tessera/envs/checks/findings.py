"""What a check has found, and the pieces that checks of every kind share."""

from __future__ import annotations

import itertools
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tessera.errors import TesseraError

PACKAGE = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with an environment: what, why it matters, what to do."""

    text: str
    level: str = "error"
    """error, or warning for what may be meant."""

    def __str__(self) -> str:
        """How `tessera check` prints it."""
        return f"{self.level}: {self.text}"


@dataclass
class EnvironmentCheck:
    """What `tessera.check_env` has found."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    """In the order in which they were found."""
    spaces: str = ""
    """What is observed and what actions there are."""
    steps: int = 0
    """Steps that were played."""
    episodes: int = 0
    """Episodes that ended."""
    seconds: float = 0.0
    """Time that the steps took."""

    @property
    def errors(self) -> list[Finding]:
        """Findings that make training wrong or impossible."""
        return [f for f in self.findings if f.level == "error"]

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not self.errors

    def error(self, text: str) -> None:
        """Note an error, once."""
        self._note(Finding(text))

    def warning(self, text: str) -> None:
        """Note a warning, once."""
        self._note(Finding(text, "warning"))

    def _note(self, finding: Finding) -> None:
        if finding not in self.findings:
            self.findings.append(finding)

    def __str__(self) -> str:
        """One line for each finding, and one that says what was checked."""
        speed = f", {self.steps / self.seconds:,.0f} steps/s" if self.seconds else ""
        played = (
            f"{self.steps:,} steps and {self.episodes:,} ends of episodes{speed}" if self.steps else "no step played"
        )
        warnings = len(self.findings) - len(self.errors)
        counts = f"{_count(len(self.errors), 'error')}, {_count(warnings, 'warning')}"
        last = ", ".join(filter(None, (f"checked {self.name}: {self.spaces}", played)))
        return "\n".join([*map(str, self.findings), f"{last}; {counts}"])


def check_length(report: EnvironmentCheck, limit: int, ended: np.ndarray) -> None:
    """Note episodes that are longer than their time limit, or that never end; `ended` is [steps, environments]."""
    longest = _longest(ended)
    if limit and longest > limit:
        report.error(
            f"{report.name} says that episodes end after {limit} steps, and one went on for {longest}: truncate it "
            "there, or correct its time limit"
        )
    elif not limit and not ended.any():
        report.warning(
            f"no episode of {report.name} ended in {len(ended):,} steps of random actions, and returns are counted at "
            "ends: add a limit, as in ?time_limit=1000, if it has none"
        )


def _longest(ended: np.ndarray) -> int:
    """The most steps that any environment played without an end before the last of them."""
    longest = 0
    for column in ended.T:
        edges = [-1, *np.flatnonzero(column)]
        lengths = [b - a for a, b in itertools.pairwise(edges)]
        longest = max([longest, *lengths, len(column) - 1 - edges[-1]])
    return longest


def where(error: BaseException) -> str:
    """`file:line` of the innermost frame outside of this package and of installed ones, or ''."""
    frames = traceback.extract_tb(error.__traceback__)
    mine = [f for f in frames if PACKAGE not in Path(f.filename).parents and "site-packages" not in f.filename]
    return f" at {Path(mine[-1].filename).name}:{mine[-1].lineno}" if mine else ""


def raised(name: str, method: str, error: BaseException) -> str:
    """The sentence for an exception of an environment."""
    if isinstance(error, NotImplementedError) and not str(error):
        return f"{name} does not define {method}(): write it"
    message = " ".join(str(error).split()) or "no message"
    return f"{method}() of {name} raised {type(error).__name__}{where(error)} ({message[:200]}): mend it there"


def shown(shape: Any, dtype: Any) -> str:
    """An array in words: float32[4]."""
    return f"{np.dtype(dtype).name}{list(shape)}"


def values_in(result: Any, names: str, method: str, name: str) -> tuple[Any, ...]:
    """A method's return values; refuse another number of them than `names` has."""
    wanted = names.count(",") + 1
    if not isinstance(result, tuple | list):
        found = f"one value ({type(result).__name__})"
    elif len(result) != wanted:
        found = f"{len(result)} values"
    else:
        return tuple(result)
    hint = ""
    if method == "step" and found == "4 values":
        hint = "; gym before 0.26 had four, with one done for the last two"
    raise TesseraError(f"{method}() of {name} returns {found}, and must return ({names}){hint}: return all of them")


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
