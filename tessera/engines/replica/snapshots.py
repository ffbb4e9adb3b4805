"""Snapshots: all persistent slots made whole, whatever the number of replicas, and shared out again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tessera.algorithms.contract import Clock, State
from tessera.channels.routes import Route
from tessera.channels.shared_tree import SharedTree
from tessera.engines.replica.recolouring import recoloured
from tessera.engines.replica.replica import Replica
from tessera.envs.base import HostEnvironment
from tessera.graph.groups import deal
from tessera.graph.plan import Plan
from tessera.graph.streams import RouteKind
from tessera.program.agents import cut_agents, join_agents, own_training
from tessera.program.exchange import Shards, shards_of
from tessera.program.initial import initial_shapes, initial_state
from tessera.program.keys import count_of
from tessera.program.nodes import SLOTS
from tessera.program.overlap.slot_slices import concatenate_trees
from tessera.program.peers import adopt_shared, with_common
from tessera.program.shapes import Shapes, message_shape
from tessera.program.training_program import Training
from tessera.support.streamed_arrays import JoinedArrays, StreamedArray, in_memory, streamed
from tessera.support.trees import is_key, shapes_by_path

Slots = dict[str, Any]
Parts = dict[tuple[int, int], Slots]
"""Slots of each replica, by fragment and number."""

HOST_STATE = ("env_state", "env_clock", "timesteps", "episode")
OWNERS = {"env_state": "env", "timesteps": "env", "episode": "env", "memory": "act", "buffer": "store"}
"""Slots that lie in groups -> the operator whose replicas hold them; others may have copies of what they were sent."""
CLOCKS = tuple(slot for slot in SLOTS if slot.endswith("_clock"))
"""What random numbers are keyed by."""
FLIGHT = "in_flight_"
"""What was sent and not taken yet: params and priorities that receivers trail behind by."""


def persistent(plan: Plan, training: Training, fragment: int, number: int, slots: Slots) -> list[str]:
    """Slots of one replica that a snapshot needs."""
    placed = plan.fragments[fragment]
    first = number == 0 or bool(plan.exchange) or placed.sharded or bool(placed.agents)
    hosted = HOST_STATE if isinstance(training.env, HostEnvironment) else ()
    names = []
    for slot in slots:
        known = SLOTS.get(slot)
        if known is None or not known.persistent or slot in hosted or _only_sent(slot, placed.operators):
            continue
        if known.layout == "groups" and OWNERS[slot] in placed.operators:
            mirrored = slot == "buffer" and plan.mirrored
            names += [slot] if first or not mirrored else []
        elif known.layout == "own" or (known.layout == "copy" and (first or slot in CLOCKS)):
            names.append(slot)
    return names


def opened(plan: Plan, fragment: int, slots: Slots) -> Slots:
    """The same slots, in which large arrays that lie in groups are read piece by piece."""
    if plan.fragments[fragment].agents:  # several replicas hold parts of each group
        return slots
    return {s: streamed(value) if _lies_in_groups(s) else value for s, value in slots.items()}


def _lies_in_groups(slot: str) -> bool:
    return slot in SLOTS and SLOTS[slot].layout == "groups" and SLOTS[slot].axis == 0


def common_to_peers(slots: Slots) -> Slots:
    """Slots that are the same in all mirrored replicas: all persistent ones but their own environments."""
    return {s: v for s, v in slots.items() if s in SLOTS and SLOTS[s].persistent and _is_common(s)}


def _is_common(slot: str) -> bool:
    return slot == "buffer" or (SLOTS[slot].layout == "copy" and slot not in HOST_STATE)


def _only_sent(slot: str, operators: tuple[str, ...]) -> bool:
    """Whether a fragment only makes a view for others, who hold it: a server's shards have no more than their part."""
    return (slot == "view" and "apply" in operators) or (slot == "acting" and "act" not in operators)


def assemble(plan: Plan, routes: list[Route], training: Training, parts: Parts) -> Slots:
    """Join the replicas' slots: groups over replicas, shards to whole params, copies once."""
    out: Slots = {}
    ordered = [parts[key] for key in sorted(parts)]
    teams = [i for i, placed in enumerate(plan.fragments) if placed.agents]
    whole = {s: x for i in teams for s, x in initial_shapes(training, plan, i, 0).items()}
    for slot in SLOTS:
        values = [p[slot] for p in ordered if slot in p]
        if not values:
            continue
        if slot in whole:
            out[slot] = join_agents([p[slot] for (i, _), p in sorted(parts.items()) if i in teams], whole[slot])
        elif slot == "state" and plan.fragments[plan.home("apply")].sharded:
            out[slot] = _shards(plan, training).join(values, whole_state(training))
        else:
            out[slot] = _joined(slot, values)
        if slot == "state" and plan.exchange:
            out["peers"] = tuple(values[1:])
    for channel, route in zip(plan.channels, routes, strict=True):
        name = FLIGHT + channel.slot
        held = [p[name] for (i, _), p in sorted(parts.items()) if i == channel.source and name in p]
        if plan.trails(channel) and held:
            rows = zip(*held, strict=True)
            out[name] = tuple(route.merge(dict(enumerate(row))) if len(row) > 1 else row[0] for row in rows)
    return out


def with_shared(plan: Plan, training: Training, snapshot: Slots, shared: SharedTree) -> Slots:
    """The same with what peers hold in common now, which the first of them may have seen some time ago."""
    if "state" in snapshot:
        snapshot["state"] = adopt_shared(training.algorithm, snapshot["state"], shared.read(), plan.carries)
    return snapshot


def part_of(plan: Plan, routes: list[Route], training: Training, fragment: int, number: int, snapshot: Slots) -> Slots:
    """One replica's share of a snapshot, on the host."""
    placed = plan.fragments[fragment]
    mine = initial_shapes(own_training(training, plan, fragment, number), plan, fragment, number)
    later = {"env_state", "timesteps", "episode"} if "env" in placed.operators else set()
    later |= {"timesteps"} if "act" in placed.operators else set()
    out: Slots = {}
    for slot in [s for s in snapshot if s in SLOTS and (s in mine or s in later)]:
        value, known = snapshot[slot], SLOTS[slot]
        if placed.agents and slot in mine:
            value = cut_agents(in_memory(value), mine[slot], number)
        elif slot == "state" and plan.exchange and number:
            value = snapshot["peers"][number - 1]
            if plan.exchange == "shared":  # each had read the memory at another time; all begin with what it held
                value = with_common(training.algorithm, value, snapshot["state"], plan.carries)
        elif slot == "state" and placed.sharded:
            value = _shards(plan, training).split(value, number, mine["state"])
        elif known.layout == "own":
            value = jax.tree.map(lambda x: x[number], value)
        elif known.layout == "groups":
            value = _groups(value, placed.held("grad" if slot == "buffer" else "env")[number])
        out[slot] = value
    for channel, route in zip(plan.channels, routes, strict=True):
        name = FLIGHT + channel.slot
        if channel.source == fragment and name in snapshot:
            out[name] = tuple(_sent(route, number, value) for value in snapshot[name])
    return opened(plan, fragment, out)


def give(replica: Replica, part: Slots) -> None:
    """Put a replica's share in place, in buffers of its own, since programs reuse what they are given.

    Host environments have started new episodes, of which nobody has a memory yet.
    """
    forgotten = ("memory",) if isinstance(replica.training.env, HostEnvironment) else ()
    replica.put({slot: value for slot, value in part.items() if slot in SLOTS and slot not in forgotten})
    replica.note_version()
    replica.begin({k.removeprefix(FLIGHT): list(v) for k, v in part.items() if k.startswith(FLIGHT)})


def with_horizon(snapshot: Slots, horizon: int) -> Slots:
    """The same for a run of another length: schedules go on by how much of the whole is over."""

    def ending(clock: Any) -> Clock:
        return clock._replace(horizon=np.asarray(horizon, clock.horizon.dtype))

    return _with_clocks(snapshot, ending)


def with_tuned(slots: Slots, tuned: Mapping[str, Any]) -> Slots:
    """The same with other values of what is tuned, in every clock: each has buffers of its own."""
    return _with_clocks(slots, lambda clock: clock._replace(tuned={k: jnp.array(v) for k, v in tuned.items()}))


def _with_clocks(slots: Slots, changed: Callable[[Clock], Clock]) -> Slots:
    return jax.tree.map(
        lambda x: changed(x) if isinstance(x, Clock) else x, slots, is_leaf=lambda x: isinstance(x, Clock)
    )


def without_spare_peers(arrays: dict[str, np.ndarray], like: Slots) -> dict[str, np.ndarray]:
    """A checkpoint's arrays without the states of peers that a plan with fewer replicas does not have."""
    there = len(like.get("peers", ()))
    return {name: x for name, x in arrays.items() if not name.startswith("peers/") or int(name.split("/")[1]) < there}


def fitted(
    arrays: dict[str, np.ndarray], like: Slots, plan: Plan, note: Callable[[str], None]
) -> dict[str, np.ndarray]:
    """A checkpoint's arrays for a plan that may have other replicas or fragments than the one that wrote it.

    Checkpoints of earlier versions hold no residuals, which then begin with zeros.
    """
    out = recoloured(without_spare_peers(arrays, like), like)
    spare = {name: x for name, x in out.items() if name.startswith("residual/") and "residual" not in like}
    out = {name: x for name, x in out.items() if name not in spare}
    if any(x.any() for x in spare.values()):
        note("gradients that a codec had kept for later are dropped: nothing is compressed from here on")
    for name, shape in shapes_by_path({s: x for s, x in like.items() if s == "residual"}).items():
        saved = arrays.get(name)
        if saved is None:
            out[name] = np.zeros(shape)
        elif saved.shape[1:] == shape[1:] and saved.shape[0] != shape[0]:
            out[name] = _shared_out(saved, shape, plan)
    return out


def _shared_out(saved: np.ndarray, shape: tuple[int, ...], plan: Plan) -> np.ndarray:
    """Residuals of another number of replicas: all together they owe the params what they owed before."""
    if plan.solo:  # each gradient is applied by itself
        return np.broadcast_to(saved.sum(0, dtype=np.float64) / shape[0], shape)
    weights = [len(groups) / plan.batches for groups in deal(plan.batches, len(saved))]
    return np.broadcast_to(np.tensordot(weights, saved.astype(np.float64), 1), shape)


def lacks_replay(training: Training, snapshot: Slots) -> bool:
    """Whether a replay was left out of a snapshot, so that it has to be filled again."""
    return training.algorithm.store.persistent and "buffer" not in snapshot


def template(plan: Plan, training: Training, shapes: Shapes) -> Slots:
    """A snapshot like those of this plan, all zeros: what a checkpoint is read into."""
    names: dict[str, Any] = {}
    for i in range(len(plan.fragments)):
        for slot in initial_shapes(training, plan, i, 0):
            names[slot] = shapes[slot]
    names |= {s: shapes[s] for s in ("env_state", "timesteps", "episode") if s in shapes}
    hosted = HOST_STATE if isinstance(training.env, HostEnvironment) else ()
    out = {s: v for s, v in names.items() if SLOTS[s].persistent and s not in hosted}
    for slot in [s for s in out if SLOTS[s].layout == "own"]:
        replicas = plan.fragments[plan.home("grad")].replicas
        out[slot] = jax.tree.map(lambda x, n=replicas: jax.ShapeDtypeStruct((n, *x.shape), x.dtype), out[slot])
    if plan.exchange:
        out["peers"] = (out["state"],) * (plan.fragments[plan.home("apply")].replicas - 1)
    for channel in plan.channels:
        if plan.trails(channel):
            groups = plan.batches if channel.stream == "priorities" else plan.groups
            out[FLIGHT + channel.slot] = (message_shape(plan, shapes, channel.slot, groups, None),) * channel.lag
    return jax.tree.map(_zeros, out)


def whole_state(training: Training) -> State:
    """The learner's whole state, in shape."""
    return jax.eval_shape(lambda key: initial_state(training.algorithm, key, 1), jax.random.key(0))


def _joined(slot: str, values: list[Any]) -> Any:
    """What replicas hold of one slot, made whole."""
    known = SLOTS[slot]
    match known.layout:
        case "groups":
            return values[0] if len(values) == 1 else jax.tree.map(partial(_joined_groups, known.axis), *values)
        case "own":
            return jax.tree.map(lambda *xs: np.stack([np.asarray(x) for x in xs]), *values)
        case _:  # replicas at their own pace go on from the latest clock, so that none uses a key again
            return max(values, key=count_of) if slot in CLOCKS else values[0]


def _joined_groups(axis: int, *arrays: Any) -> Any:
    """Groups of all replicas; arrays that any of them streams stay where they are."""
    if any(isinstance(x, StreamedArray) for x in arrays):
        return JoinedArrays(arrays)
    return concatenate_trees(list(arrays), axis)


def _sent(route: Route, number: int, value: Any) -> Any:
    """What of a message that was under way replica `number` had sent."""
    match route.channel.route:
        case RouteKind.JOIN:
            assert route.shards is not None
            target = route.shards.part(value.target, number) if jax.tree.leaves(value.target) else ()
            return value._replace(params=route.shards.part(value.params, number), target=target)
        case RouteKind.RESHARD:
            return _groups(value, route.made(number))
        case _:
            return value


def _groups(value: Any, mine: tuple[int, ...]) -> Any:
    return jax.tree.map(lambda x: x[mine[0] : mine[-1] + 1], value)


def _zeros(x: Any) -> Any:
    if is_key(x):
        return jax.random.wrap_key_data(jnp.zeros((*x.shape, 2), jnp.uint32))
    return np.zeros(x.shape, x.dtype)


def _shards(plan: Plan, training: Training) -> Shards:
    return shards_of(training.algorithm, plan.fragments[plan.home("apply")].replicas)
