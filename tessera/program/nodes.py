"""The nodes of training programs, and the table of slots.

A program is a tuple of nodes over named slots. `Op` and `Repeat` are written by `training`; projection adds `Send`,
`Recv` and `Collective`; compilation turns maximal traceable runs into `Segment`s; a scheduler puts `Deferred` around
what it runs itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Slots = dict[str, Any]
"""Values by the name of their slot."""

TRACED = "traced"
HOST = "host"
WIRING = "wiring"
"""Only passes values on: traced if its neighbours are, else plain Python."""


@dataclass(frozen=True)
class Op:
    """One function of one operator: reads slots, returns a tuple of the slots it writes."""

    operator: str
    function: Callable[..., tuple[Any, ...]]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    kind: str = TRACED
    floating: bool = False
    """Runs in any fragment that has its inputs and needs its outputs, so that a view is sent at most once."""
    whole: bool = False
    """Reads what the devices of a replica have combined, so that all of them write the same."""


@dataclass(frozen=True)
class Repeat:
    """A loop over nodes."""

    index: str
    count: int | None
    """Iterations; None: as many as the engine says (slot `count`)."""
    body: tuple[Node, ...]
    stacks: Mapping[str, str] = field(default_factory=dict)
    """Slot of one iteration -> slot with the values of all iterations, on that slot's axis `stack`."""
    batches: int = 1
    """Batches of experience that one iteration makes; a fragment that only receives takes an iteration for each."""


@dataclass(frozen=True)
class Every:
    """Nodes that run at every `count`-th update, by the clock of updates."""

    count: int
    body: tuple[Node, ...]


@dataclass(frozen=True)
class Send:
    """Send a slot through a channel."""

    slot: str
    channel: int


@dataclass(frozen=True)
class Recv:
    """Receive a slot from a channel."""

    slot: str
    channel: int
    timeout: float | None = None
    """Seconds after which the program can go on without it; None: it cannot."""


@dataclass(frozen=True)
class Collective:
    """An exchange between the devices of one replica; traceable."""

    slot: str
    route: str


@dataclass(eq=False)
class Segment:
    """A maximal traceable run of nodes, compiled."""

    nodes: tuple[Node, ...]
    function: Callable[[dict[str, Any], dict[str, Any]], tuple[dict[str, Any], dict[str, Any]]]
    """(donated slots, slots that are only read) -> (donated slots replaced, other slots that it writes)."""
    reads: tuple[str, ...]
    """Slots that it only reads."""
    donated: tuple[str, ...]
    """Slots that it reads and replaces; their buffers are reused."""
    fetched: tuple[str, ...] = ()
    """Slots that it writes and that Python reads next, as NumPy arrays."""
    lowered: Any = None
    """Its NumPy form, if it has one."""
    partial: Any = None
    """Its form for some of the groups, made when it is first needed."""


@dataclass(frozen=True)
class Deferred:
    """Nodes that are left to whoever drives the program: a scheduler of slices, or an engine in virtual time."""

    nodes: tuple[Node, ...]
    part: Any = None
    """The slice of a loop's groups that they are for (`overlap`); None: all groups."""


Node = Op | Repeat | Every | Send | Recv | Collective | Segment | Deferred


class Slot(NamedTuple):
    """What is known about a slot."""

    layout: str
    """`groups`: each replica holds its groups; `copy`: each holds all; `own`: each has its own; `report`: the same, for
    the driver."""
    axis: int = 0
    """For `groups`: the axis of the groups."""
    stack: int = 0
    """For the stacks of a loop: the axis of its iterations."""
    persistent: bool = False
    """Outlives an update: a checkpoint is all persistent slots at the end of an update."""
    common: bool = False
    """The same in all members of a population; others have a leading axis of members there."""


SLOTS: dict[str, Slot] = {
    "root": Slot("copy"),
    "count": Slot("copy", common=True),
    "ids": Slot("groups", common=True),
    "group_ids": Slot("groups", common=True),
    "env_state": Slot("groups", persistent=True),
    "env_clock": Slot("copy", persistent=True),
    "timesteps": Slot("groups", persistent=True),
    "episode": Slot("groups", persistent=True),
    "tally": Slot("groups"),
    "memory": Slot("groups", persistent=True),
    "act_clock": Slot("copy", persistent=True),
    "acting": Slot("copy", persistent=True),
    "acting_queue": Slot("copy", persistent=True),
    "published": Slot("copy"),
    "act_keys": Slot("groups", axis=1),
    "env_keys": Slot("groups", axis=1),
    "observed": Slot("groups"),
    "actions": Slot("groups"),
    "extras": Slot("groups"),
    "transition": Slot("groups"),
    "episode_step": Slot("groups"),
    "trajectory": Slot("groups", stack=1),
    "episode_steps": Slot("groups", axis=1),
    "harvest": Slot("groups"),
    "harvests": Slot("groups", stack=1),
    "fault": Slot("copy"),
    "faults": Slot("copy"),
    "experience": Slot("groups"),
    "buffer": Slot("groups", persistent=True),
    "handed": Slot("groups"),
    "store_clock": Slot("copy", persistent=True),
    "samples": Slot("groups"),
    "batch": Slot("groups"),
    "summary": Slot("copy"),
    "order": Slot("groups"),
    "row_priorities": Slot("groups"),
    "priorities": Slot("groups"),
    "grad_clock": Slot("copy", persistent=True),
    "uncoded": Slot("copy"),
    "gradients": Slot("copy"),
    "squares": Slot("copy"),
    "tensors": Slot("copy", common=True),
    "residual": Slot("own", persistent=True),
    "lags": Slot("copy"),
    "base": Slot("copy"),
    "contribution": Slot("copy"),
    "updates": Slot("copy"),
    "update_clock": Slot("copy", persistent=True),
    "metrics": Slot("copy"),
    "view": Slot("copy", persistent=True),
    "state": Slot("copy", persistent=True),
    "report_env": Slot("report"),
    "report_act": Slot("report"),
    "report_grad": Slot("report"),
    "report_apply": Slot("report"),
}

# indices of loops, and their stacks of the slots above
SLOTS |= {index: Slot("copy", common=True) for index in ("w", "u", "r", "t", "d", "e", "m")}
SLOTS |= {f"{slot}_{loop}": Slot("copy") for slot in ("metrics", "squares", "lags") for loop in ("m", "e", "d")}


REPORTS: tuple[str, ...] = tuple(name for name, slot in SLOTS.items() if slot.layout == "report")


def member_axis(slot: str) -> int | None:
    """The axis of members that a slot has in a population; None: there is none."""
    return None if SLOTS[slot].common else 0


def effects(nodes: tuple[Node, ...] | list[Node]) -> tuple[set[str], set[str]]:
    """Slots that nodes read before they write them, and slots that they write."""
    reads: set[str] = set()
    writes: set[str] = set()
    for node in nodes:
        node_reads, node_writes = _effects_of(node)
        reads |= node_reads - writes
        writes |= node_writes
    return reads, writes


def _effects_of(node: Node) -> tuple[set[str], set[str]]:
    match node:
        case Op():
            return set(node.reads), set(node.writes)
        case Repeat():
            reads, writes = effects(node.body)
            counted = {"count"} if node.count is None else set()
            return (reads - {node.index}) | counted, writes | set(node.stacks.values())
        case Every():
            return effects(node.body)[0] | {"update_clock"}, effects(node.body)[1]
        case Send():
            return {node.slot}, set()
        case Recv():
            return set(), {node.slot}
        case Collective():
            return {node.slot}, {node.slot}
        case Segment() | Deferred():
            return effects(node.nodes)
