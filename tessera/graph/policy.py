"""Distribution policies: frozen data that says which operators run together, how often, and how streams are cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from tessera.errors import TesseraError, unknown_name
from tessera.graph.operators import OPERATORS
from tessera.graph.streams import STREAM_NAMES

ALL_DEVICES = 0
"""For `Fragment.devices`: every device of this machine."""
EACH_AGENT = 0
"""For `Fragment.replicas` of a fragment divided by agents: one for each agent that has params of its own."""

MODES = ("sync", "first", "async")
ROUTES = ("", "local", "gather", "mean", "shared")
CODECS = ("", "threshold")
DIVIDED_BY = ("groups", "agents")

MAY_BE_ASYNC = ("experience", "samples", "priorities", "gradients", "params")
"""Streams whose receivers need not wait; the others belong to one step, or stay within a replica."""


@dataclass(frozen=True)
class Fragment:
    """Operators that are compiled and run together."""

    operators: str
    """Names of operators, separated by spaces."""
    replicas: int = 1
    """Copies of this fragment, each with its own groups of environments."""
    devices: int = 1
    """Devices over which each replica spreads its groups; ALL_DEVICES for all there are."""
    model: int = 1
    """Devices over which the wide layers of each copy of the params are cut; `devices` counts copies."""
    cores: int | None = None
    """Processor cores reserved for each replica; None: replicas share all cores."""
    processes: int | None = None
    """Processes that run the replicas; replicas that share a process are batched. None: one process each."""
    by: str = "groups"
    """What is divided among replicas: groups of environments, or agents that have params of their own. Divided by
    agents, every replica acts and learns in all environments, for its agents. Where agents share params, groups are
    divided in any case."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Its operators, in the order of the graph."""
        held = self.operators.split()
        return tuple(o for o in OPERATORS if o in held)

    @property
    def title(self) -> str:
        """Its name in messages: its operators joined by +."""
        return "+".join(self.names)

    @property
    def runs(self) -> int:
        """Replicas after those that share a process have been batched."""
        return self.replicas if self.processes is None else self.processes


@dataclass(frozen=True)
class Cut:
    """The discipline of a stream."""

    mode: str = "sync"
    """sync: the receiver waits for every message, in order. async: it takes messages as they arrive, and waits only
    where the bound on lag demands it. first: it waits for the first `first` of all senders only."""
    lag: int | None = None
    """On `params`, in updates. sync: the exact lag of the params that `act` uses; None: 0 for device environments, 1
    for host environments. async: the largest lag, and what is older is dropped; None: no bound.
    On `priorities`, in draws: the exact lag behind the samples."""
    first: int = 0
    """For mode first, on `experience`: actors that an update waits for."""
    take: int = 0
    """For async `experience`: groups that an update learns from, whichever come first; 0: as many as there are. With it
    a batch does not grow with the actors."""
    capacity: int = 2
    """Messages that each sender may have in flight before it must wait (mode async)."""
    route: str = ""
    """Where the layouts leave a choice. local: each replica keeps its own. gather: every replica receives all
    (`experience`). mean or shared: how peers combine their `updates`."""
    every: int = 1
    """For `updates`: updates between exchanges of peers. For async `params` without a bound on lag: gradients (or
    updates, for `act`) between messages. For async `gradients`: gradients that are averaged into one message."""
    carries: str = "state"
    """For `updates`, what peers exchange: state (params and the optimiser's moments) or params."""
    codec: str = ""
    """For `gradients`: threshold sends only elements whose accumulated residual exceeds `threshold`."""
    threshold: float = 0.0
    """The threshold codec sends plus or minus this for each element, or nothing; 0 sends gradients unchanged."""
    wait: float | None = None
    """For `timesteps`: seconds that ready environments wait for others before actions are chosen for them; None:
    actions are chosen for all at once. What is learned is the same either way."""


@dataclass(frozen=True)
class Policy:
    """A colouring of the five operators, and the discipline of each cut stream. Validated at construction."""

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
        if fragment.by not in DIVIDED_BY:
            raise unknown_name(f"`by` in policy {self.name!r}:", fragment.by, DIVIDED_BY)
        agents = fragment.by == "agents"
        if agents and fragment.names != ("act", "store", "grad", "apply"):
            raise TesseraError(
                f"policy {self.name!r}: fragment {fragment.title} is divided by agents, which act and learn: "
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
        if cut.take and (stream != "experience" or cut.mode != "async" or cut.take < 0):
            raise TesseraError(f"{where} takes {cut.take} groups: only async 'experience' does, 1 or more (0: all)")
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
        """Check disciplines that depend on each other."""
        learner, server = self.home("grad"), self.home("apply")
        local = self.cut("gradients").route == "local"
        if local and learner != server:
            raise TesseraError(
                f"policy {self.name!r}: local gradients never reach `apply`: put it in the fragment of `grad`"
            )
        if "updates" in self.cuts and not (local and self.cut("updates").route in ("mean", "shared")):
            raise TesseraError(
                f"policy {self.name!r}: peers exchange updates by route 'mean' or 'shared', and keep gradients local"
            )
        if self.cut("experience").route == "gather" and self.home("act") != self.home("store"):
            raise TesseraError(
                f"policy {self.name!r}: every replica can gather experience only where `act` and `store` are together"
            )
        fewer = self.cut("experience").take or self.cut("experience").mode == "first"
        if fewer and self.home("act") == self.home("store"):
            raise TesseraError(
                f"policy {self.name!r}: an update learns from the first few only where experience travels: put `act` "
                "and `store` in two fragments"
            )
        late = self.cut("gradients").mode == "async" and learner != server
        if late and self.cut("params").mode != "async":
            raise TesseraError(f"policy {self.name!r}: with async gradients params must be async too")
        loose = self.cut("experience").mode != "sync" and self.home("act") != self.home("store")
        if loose and self.cut("params").mode != "async":
            raise TesseraError(f"policy {self.name!r}: with experience that is not waited for params must be async")

    @property
    def several(self) -> bool:
        """Whether it has several replicas, or as many as there are agents."""
        return len(self.fragments) > 1 or self.fragments[0].runs != 1

    def on_mesh(self, data: int, model: int) -> Policy:
        """The policy with `data` copies of the params in each learner, each over `model` devices."""
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
    """Read `data=4,model=2`: (data, model); without `data`, copies for all devices."""
    sizes = {"data": ALL_DEVICES, "model": 1}
    for pair in text.split(","):
        name, _, value = pair.strip().partition("=")
        if name not in sizes or not value.isdecimal() or int(value) < 1:
            raise TesseraError(f"--mesh {text}: write data=N,model=M, of which each is at least 1")
        sizes[name] = int(value)
    return sizes["data"], sizes["model"]
