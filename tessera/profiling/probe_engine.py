"""The serial engine with stopwatches, and with the links of processes: what replicas would do, in one thread."""

from __future__ import annotations

from typing import Any

from tessera.algorithms.contract import Algorithm
from tessera.channels.link import HERE, LinkSpec
from tessera.channels.link_specs import LinkName, make_link_specs
from tessera.channels.rings import PlacedLink, RingLink, lay_out
from tessera.channels.shared_memory import Arena, Bell
from tessera.engines.serial import SerialEngine
from tessera.engines.simulated.costs import exchange_name
from tessera.envs.base import Environment
from tessera.graph.plan import Plan
from tessera.profiling.stopwatch import Stopwatch
from tessera.program.shapes import slot_shapes
from tessera.support.trees import bytes_of


class ProbeLink(RingLink):
    """A ring in memory, of which both ends are in this process."""

    def __init__(self, arena: Arena, placed: PlacedLink, bell: Bell) -> None:
        super().__init__(arena, placed, bell, lambda place: HERE)
        self._readers = range(len(placed.spec.readers))

    @property
    def moved(self) -> int:
        """Messages sent and taken, by which progress is seen."""
        return self.sent + sum(map(self.taken, self._readers))

    def clear(self) -> None:
        """Be done with all that was sent."""
        for reader in self._readers:
            self.skip(reader)


class ProbeEngine(SerialEngine):
    """Times a plan's segments, Ops and messages; replicas of one fragment share a stopwatch."""

    def __init__(self, plan: Plan, algorithm: Algorithm, env: Environment, seed: int = 0) -> None:
        super().__init__(plan, algorithm, env, seed, horizon=1 << 20)
        self.stopwatches = [Stopwatch() for _ in plan.fragments]
        for replica in self.replicas:
            replica.record(self.stopwatches[replica.fragment])

    def make_links(self) -> dict[LinkName, Any]:
        """Rings as between processes."""
        plan, routes = self.plan, self.routes
        shards = routes[0].shards if routes else None
        self.specs: dict[LinkName, LinkSpec] = make_link_specs(plan, routes, slot_shapes(self.training, plan), shards)
        layout = lay_out(plan, self.specs, None)
        arena = Arena(layout.size)
        bell = Bell(arena, layout.bells, layout.processes + 1, layout.processes)
        return {name: ProbeLink(arena, placed, bell) for name, placed in layout.links.items()}

    def clear(self) -> None:
        """Forget what was timed."""
        for stopwatch in self.stopwatches:
            stopwatch.clear()

    def measure(self, updates: int) -> None:
        """Make updates."""
        for stopwatch in self.stopwatches:
            stopwatch.turns = updates
            stopwatch.begin()
        self.advance(updates)

    def size_of(self, fragment: int, channel: int, name: str) -> tuple[int, int]:
        """Links that an exchange of a fragment's first replica goes through, and bytes of all of its messages."""
        place, sends = self.plan.place(fragment, 0), name == exchange_name(self.plan.channels[channel].slot, True)
        mine = [
            spec
            for (k, _), spec in self.specs.items()
            if k == channel and place in ((spec.writer,) if sends else spec.readers)
        ]
        return len(mine), sum(bytes_of(spec.like) for spec in mine)
