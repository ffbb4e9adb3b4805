"""Distribution policies: frozen data that says which operators run together, how often, and how streams are cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tessera.errors import TesseraError, unknown_name
from tessera.graph.operators import OPERATORS
from tessera.graph.streams import STREAM_NAMES

ALL_DEVICES = 0
"""For `Fragment.devices`: every device of this machine."""


@dataclass(frozen=True)
class Fragment:
    """Operators that are compiled and run together."""

    operators: str
    """Names of operators, separated by spaces."""
    replicas: int = 1
    """How many copies of this fragment run, each with its own groups of environments."""
    devices: int = 1
    """Over how many devices each replica spreads its groups; ALL_DEVICES for as many as there are."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its operators, in the order of the graph."""
        mine = self.operators.split()
        return tuple(o for o in OPERATORS if o in mine)

    @property
    def title(self) -> str:
        """How messages call it: its operators joined by +."""
        return "+".join(self.names)


@dataclass(frozen=True)
class Cut:
    """The discipline of a stream."""

    mode: str = "sync"
    """sync: every message is waited for, in order."""
    lag: int | None = None
    """By how many updates the params that `act` uses trail behind, exactly; None: 0 for device environments, 1 for
    host environments, so that they step while the update is computed."""


@dataclass(frozen=True)
class Policy:
    """A colouring of the five operators, and how each cut stream behaves. Validated when made."""

    name: str
    fragments: tuple[Fragment, ...]
    cuts: Mapping[str, Cut] = field(default_factory=dict)
    summary: str = ""
    """One line for `tessera policies`."""
    mirrors: str = ""
    """Systems of the literature that have this shape."""

    def __post_init__(self) -> None:
        placed = [o for f in self.fragments for o in f.operators.split()]
        for operator in placed:
            if operator not in OPERATORS:
                raise unknown_name(f"operator in policy {self.name!r}:", operator, OPERATORS)
        for operator in OPERATORS:
            if placed.count(operator) != 1:
                raise TesseraError(
                    f"policy {self.name!r} has operator {operator!r} in {placed.count(operator)} fragments: "
                    "each of the five operators belongs in exactly one"
                )
        for fragment in self.fragments:
            self._check_fragment(fragment)
        for stream, cut in self.cuts.items():
            self._check_cut(stream, cut)

    def _check_fragment(self, fragment: Fragment) -> None:
        if fragment.replicas < 1 or fragment.devices < 0:
            raise TesseraError(
                f"policy {self.name!r}: fragment {fragment.title} asks for {fragment.replicas} replicas on "
                f"{fragment.devices} devices: replicas must be at least 1, devices at least 0 (0: all)"
            )
        if fragment.names == ("apply",) and fragment.replicas > 1:
            raise TesseraError(
                f"policy {self.name!r}: `apply` alone in a fragment with {fragment.replicas} replicas is a sharded "
                "server, which no engine runs yet: give it one replica"
            )

    def _check_cut(self, stream: str, cut: Cut) -> None:
        if stream not in STREAM_NAMES:
            raise unknown_name(f"stream in policy {self.name!r}:", stream, STREAM_NAMES)
        if cut.mode != "sync":
            raise TesseraError(
                f"policy {self.name!r}: stream {stream!r} has mode {cut.mode!r}: the serial engine runs 'sync' only"
            )
        if cut.lag is not None and (cut.lag < 0 or stream != "params"):
            raise TesseraError(
                f"policy {self.name!r}: lag {cut.lag} on stream {stream!r}: only 'params' lags, by 0 or more updates"
            )

    def home(self, operator: str) -> int:
        """Index of the fragment that holds `operator`."""
        return next(i for i, f in enumerate(self.fragments) if operator in f.names)

    def cut(self, stream: str) -> Cut:
        """The discipline of a stream."""
        return self.cuts.get(stream, Cut())
