"""The projection of the training program onto a fragment: its own Ops, and exchanges where a value crosses a cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tessera.graph.plan import Placement, Plan
from tessera.graph.streams import STREAMS
from tessera.program.nodes import Collective, Every, Node, Op, Recv, Repeat, Send
from tessera.program.training_program import published


def project(nodes: tuple[Node, ...], plan: Plan, index: int) -> tuple[Node, ...]:
    """Return the part of the program that fragment `index` runs, with exchanges in the place of producers."""
    out: list[Node] = []
    for node in nodes:
        if isinstance(node, Repeat | Every):
            body = project(node.body, plan, index)
            if isinstance(node, Repeat) and node.batches > 1 and "act" not in plan.fragments[index].operators:
                node = replace(node, count=node.batches * (node.count or 1), batches=1)
            if body:
                out.append(replace(node, body=body))
        elif isinstance(node, Op):
            out += _project_op(node, plan, index)
        else:
            raise TypeError(f"a training program has Ops and Repeats only, not {node}")
    return tuple(out)


def _project_op(op: Op, plan: Plan, index: int) -> list[Node]:
    fragment = plan.fragments[index]
    runs_here = _runs_here(op, plan, index)
    out: list[Node] = []
    if runs_here:
        out.append(_read_own_state(op, fragment))
        if fragment.devices > 1 and not op.whole:
            out += [Collective(slot, route) for slot in op.writes if (route := _reduction(slot))]
    sends: list[Node] = []
    receives: list[Node] = []
    for number, channel in enumerate(plan.channels):
        if channel.slot not in op.writes:
            continue
        if channel.source == index and runs_here:
            sends.append(Send(channel.slot, number))
        if channel.target == index:
            receives.append(Recv(channel.slot, number))
    return [*out, *sends, *receives]


def _runs_here(op: Op, plan: Plan, index: int) -> bool:
    fragment = plan.fragments[index]
    sends = any(c.slot in op.writes and c.source == index for c in plan.channels)
    if op.floating:  # params for act: made from grad's view in a fragment with both, else by apply
        at_hand = "grad" in fragment.operators or "apply" in fragment.operators
        return at_hand and ("act" in fragment.operators or sends)
    if op.writes == ("view",):  # made only to be sent: in this fragment Ops of grad read the state
        return op.operator in fragment.operators and sends
    return op.operator in fragment.operators


def _read_own_state(op: Op, fragment: Placement) -> Op:
    """In a fragment with `apply`, read the view from its state: an uncut edge costs nothing."""
    if "apply" not in fragment.operators or "view" not in op.reads:
        return op
    place = op.reads.index("view")

    def function(*values: Any) -> tuple[Any, ...]:
        return op.function(*values[:place], published(values[place]), *values[place + 1 :])

    reads = tuple("state" if r == "view" else r for r in op.reads)
    return replace(op, function=function, reads=reads)


def _reduction(slot: str) -> str | None:
    """How the devices of one replica combine a slot, by the layouts of its stream."""
    if slot in ("metrics", "uncoded"):
        return "mean"
    for stream in STREAMS:
        if stream.slot == slot and stream.made in ("groups", "partial") and stream.made != stream.wanted:
            return "mean" if stream.made == "partial" else "gather"
    return None
