"""Distribution policies: frozen data that says which operators run together, how often, and how streams are cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tessera.errors import TesseraError, unknown_name
from tessera.graph.operators import OPERATORS
from tessera.graph.streams import STREAM_NAMES

ALL_DEVICES = 0
"""For `Fragment.devices`: every device of this machine."""
EACH_AGENT = 0
"""For `Fragment.replicas` of what is shared out by agents: one for each agent that has params of its own."""

MODES = ("sync", "first", "async")
ROUTES = ("", "local", "gather", "mean", "shared")
CODECS = ("", "threshold")
SHARED_OUT = ("groups", "agents")

MAY_BE_ASYNC = ("experience", "samples", "priorities", "gradients", "params")
"""Streams that need not be waited for; the others are one step's dialogue, or do not leave a replica."""


@dataclass(frozen=True)
class Fragment:
    """Operators that are compiled and run together."""

    operators: str
    """Names of operators, separated by spaces."""
    replicas: int = 1
    """How many copies of this fragment run, each with its own groups of environments."""
    devices: int = 1
    """Over how many devices each replica spreads its groups; ALL_DEVICES for as many as there are."""
    model: int = 1
    """Over how many devices the wide layers of each copy of the params are cut; `devices` counts copies."""
    cores: int | None = None
    """Processor cores that each replica gets for itself; None: it shares all cores with the others."""
    processes: int | None = None
    """In how many processes its replicas run; replicas that share one are batched. None: one each."""
    by: str = "groups"
    """What replicas share out: groups of environments, or agents, where each has params of its own. Then every replica
    acts and learns in all environments, for its agents; where agents share params it is groups all the same."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its operators, in the order of the graph."""
        mine = self.operators.split()
        return tuple(o for o in OPERATORS if o in mine)

    @property
    def title(self) -> str:
        """How messages call it: its operators joined by +."""
        return "+".join(self.names)

    @property
    def runs(self) -> int:
        """Replicas after those that share a process have been batched."""
        return self.replicas if self.processes is None else self.processes


@dataclass(frozen=True)
class Cut:
    """The discipline of a stream."""

    mode: str = "sync"
    """sync: every message is waited for, in order. async: whoever has something is heard, and nobody waits longer than
    the bound on lag demands. first: only the first `first` of all senders are waited for."""
    lag: int | None = None
    """On `params`, in updates. sync: by how many the params that `act` uses trail behind, exactly; None: 0 for device
    environments, 1 for host environments. async: by how many at most; what is older is dropped; None: no bound.
    On `priorities`, in draws: by how many they trail behind the samples, exactly."""
    first: int = 0
    """For mode first, on `experience`: how many actors an update waits for."""
    capacity: int = 2
    """Messages that each sender may have under way before it has to wait (mode async)."""
    route: str = ""
    """Where the layouts leave a choice. local: replicas keep theirs to themselves. gather: everyone gets all
    (`experience`). mean or shared: how peers join their `updates`."""
    every: int = 1
    """For `updates`: after how many updates peers exchange them. For async `params` without a bound on lag: after how
    many gradients (or updates, for `act`) they are sent. For async `gradients`: how many are sent as one,
    their mean."""
    carries: str = "state"
    """For `updates`: what is exchanged: state (params and the optimiser's moments) or params."""
    codec: str = ""
    """For `gradients`: threshold sends only elements whose accumulated residual passes `threshold`."""
    threshold: float = 0.0
    """What the threshold codec sends for each element: plus or minus this, or nothing; 0 sends them as they are."""
    wait: float | None = None
    """For `timesteps`: how many seconds those who are ready wait for others before they are acted for without them;
    None: all are acted for at once. What is learned is the same either way."""


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
        self._check_together()

    def _check_fragment(self, fragment: Fragment) -> None:
        if fragment.by not in SHARED_OUT:
            raise unknown_name(f"way to share out in policy {self.name!r}:", fragment.by, SHARED_OUT)
        agents = fragment.by == "agents"
        if agents and fragment.names != ("act", "store", "grad", "apply"):
            raise TesseraError(
                f"policy {self.name!r}: fragment {fragment.title} is shared out by agents, who act and learn: "
                "its operators must be act, store, grad and apply"
            )
        if agents and fragment.replicas == EACH_AGENT:
            return
        if fragment.replicas < 1 or fragment.devices < 0:
            raise TesseraError(
                f"policy {self.name!r}: fragment {fragment.title} asks for {fragment.replicas} replicas on "
                f"{fragment.devices} devices: replicas must be at least 1, devices at least 0 (0: all)"
            )
        if fragment.model < 1:
            raise TesseraError(
                f"policy {self.name!r}: fragment {fragment.title} cuts layers over {fragment.model} devices: at least 1"
            )
        if not 1 <= fragment.runs <= fragment.replicas:
            raise TesseraError(
                f"policy {self.name!r}: fragment {fragment.title} asks for {fragment.processes} processes for "
                f"{fragment.replicas} replicas: between 1 and as many as replicas"
            )
        if fragment.cores is not None and fragment.cores < 1:
            raise TesseraError(f"policy {self.name!r}: fragment {fragment.title} asks for {fragment.cores} cores")

    def _check_cut(self, stream: str, cut: Cut) -> None:
        where = f"policy {self.name!r}: stream {stream!r}"
        if stream not in STREAM_NAMES:
            raise unknown_name(f"stream in policy {self.name!r}:", stream, STREAM_NAMES)
        for kind, value, known in (
            ("mode", cut.mode, MODES),
            ("route", cut.route, ROUTES),
            ("codec", cut.codec, CODECS),
        ):
            if value not in known:
                raise unknown_name(
                    f"{kind} of stream {stream!r} in policy {self.name!r}:", value, [k for k in known if k]
                )
        if cut.mode == "async" and stream not in MAY_BE_ASYNC:
            raise TesseraError(f"{where} cannot be async: only {', '.join(MAY_BE_ASYNC)} can; leave it sync")
        if cut.lag is not None and (cut.lag < 0 or stream not in ("params", "priorities")):
            raise TesseraError(
                f"{where} with lag {cut.lag}: only 'params' lags (by updates) and 'priorities' (by draws), 0 or more"
            )
        if cut.mode == "first" and stream != "experience":
            raise TesseraError(f"{where} has mode 'first': only 'experience' can wait for the first few")
        if cut.mode == "first" and not 1 <= cut.first <= self.replicas("act"):
            raise TesseraError(f"{where} waits for the first {cut.first} of {self.replicas('act')} actors")
        if cut.wait is not None and (stream != "timesteps" or not 0 <= cut.wait < float("inf")):
            raise TesseraError(f"{where} with wait {cut.wait}: only 'timesteps' has one, in seconds, 0 or more")
        loose = ("params", "async", None), ("gradients", "async", None)
        if cut.every != 1 and stream != "updates" and (stream, cut.mode, cut.lag) not in loose:
            raise TesseraError(
                f"{where} every {cut.every}: only 'updates', async 'gradients', and async 'params' without a bound on "
                "lag"
            )
        if cut.capacity < 1 or cut.every < 1 or cut.threshold < 0 or cut.carries not in ("state", "params"):
            raise TesseraError(
                f"{where}: capacity {cut.capacity} and every {cut.every} must be at least 1, threshold "
                f"{cut.threshold} at least 0, carries {cut.carries!r} 'state' or 'params'"
            )

    def _check_together(self) -> None:
        """Disciplines that only make sense beside each other."""
        learner, server = self.home("grad"), self.home("apply")
        local = self.cut("gradients").route == "local"
        if local and learner != server:
            raise TesseraError(f"policy {self.name!r}: local gradients never reach `apply`: put it beside `grad`")
        if "updates" in self.cuts and not (local and self.cut("updates").route in ("mean", "shared")):
            raise TesseraError(
                f"policy {self.name!r}: peers exchange updates by route 'mean' or 'shared', and keep gradients local"
            )
        if self.cut("experience").route == "gather" and self.home("act") != self.home("store"):
            raise TesseraError(
                f"policy {self.name!r}: experience is gathered by everyone only where `act` and `store` are together"
            )
        late = self.cut("gradients").mode == "async" and learner != server
        if late and self.cut("params").mode != "async":
            raise TesseraError(f"policy {self.name!r}: with async gradients params must be async too")
        loose = self.cut("experience").mode != "sync" and self.home("act") != self.home("store")
        if loose and self.cut("params").mode != "async":
            raise TesseraError(f"policy {self.name!r}: with experience that is not waited for params must be async")

    def on_mesh(self, data: int, model: int) -> Policy:
        """The same, with each learner on so many copies of the params, each over so many devices."""
        return replace(
            self,
            fragments=tuple(replace(f, devices=data, model=model) if "grad" in f.names else f for f in self.fragments),
        )

    def home(self, operator: str) -> int:
        """Index of the fragment that holds `operator`."""
        return next(i for i, f in enumerate(self.fragments) if operator in f.names)

    def replicas(self, operator: str) -> int:
        """Replicas of the fragment that holds `operator`, as they run."""
        return self.fragments[self.home(operator)].runs

    def cut(self, stream: str) -> Cut:
        """The discipline of a stream."""
        return self.cuts.get(stream, Cut())


def read_mesh(text: str) -> tuple[int, int]:
    """Read `data=4,model=2`; data that is not given is as many as there are devices for."""
    given = {"data": ALL_DEVICES, "model": 1}
    for pair in text.split(","):
        name, _, value = pair.strip().partition("=")
        if name not in given or not value.isdecimal() or int(value) < 1:
            raise TesseraError(f"--mesh {text}: write data=N,model=M, of which each is at least 1")
        given[name] = int(value)
    return given["data"], given["model"]
