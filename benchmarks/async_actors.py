"""What a learner costs its actors: env steps per second under `single_learner_coarse` async, and of the actor alone.

    python benchmarks/async_actors.py
    python benchmarks/async_actors.py ale                  # one of the families

Both sides run the same projected program of `env act`, for the same environments, in a process of the same kind that is
pinned to the same core. Alone, what it sends is dropped and its params stay as they are. Under async the learner has
the other core, takes unrolls from the bounded queue and publishes params after every update. Sides take turns, each
standing still while the other is measured, and the ratio is the median over pairs.

An actor that is faster than its learner waits for room in the queue, whatever the engine does; so the algorithm is A2C,
one gradient per unroll, on networks that one core can train as fast as the other can play. `queued` says how many
unrolls were waiting behind the one that the learner took: 0 if the learner kept up, 1 if the actor had to wait.
"""

import argparse
import json
import os
import statistics
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

from tessera import A2C, Fragment, Policy
from tessera.channels.in_process import InProcessLink
from tessera.channels.routes import make_routes
from tessera.engines.driver.pool import PooledProcess, start_process
from tessera.engines.local import LocalEngine
from tessera.engines.replica.replica import Replica, make_programs, make_training
from tessera.graph.plan import Plan
from tessera.graph.policy import Cut
from tessera.planning.prepare import prepare_plan
from tessera.program.compile import CHUNK

POLICY = Policy(
    "single_learner_coarse",
    (Fragment("env act", cores=1), Fragment("store grad apply", cores=1)),
    {"experience": Cut("async"), "params": Cut("async")},
)
ACTOR, LEARNER = 0, 1
HORIZON = 1_000_000

FAMILIES: dict[str, tuple[str, int, A2C]] = {
    "gymnasium": ("Acrobot-v1", 16, A2C(unroll=32)),
    "vector": ("CartPole-v1", 16, A2C(unroll=32)),
    "envpool": ("envpool:CartPole-v1", 16, A2C(unroll=32)),
    "ale": ("ale:pong", 8, A2C(unroll=32, torso="mlp", widths=(16,))),
}
"""Environment, how many of them, and what learns: Gymnasium's one by one and in a vector of its own, EnvPool, ALE."""


@dataclass(frozen=True)
class SoloGradient:
    """The work of a process that is the actor of a plan, without anyone else."""

    plan: Plan
    algorithm: Any
    env: Any

    def work(self, connection: Connection) -> None:
        """Play for as many seconds as each message says, and answer with the number of unrolls per second."""
        training = make_training(self.plan, self.algorithm, self.env)
        programs, routes = make_programs(training, self.plan, ACTOR), make_routes(self.plan, self.algorithm)
        links = [InProcessLink(1, 1, register=True) for _ in self.plan.channels]  # takes everything, keeps the newest
        replica = Replica(
            self.plan, training, programs, routes, ACTOR, 0, 0, HORIZON, lambda k, p: links[k], lambda k: None
        )  # fmt: skip
        for link, channel in zip(links, self.plan.channels, strict=True):
            if channel.stream == "params":
                link.put(jax.tree.map(np.array, replica.slots["acting"]), 0)
        for _ in replica.run(programs.start):
            pass
        unrolls(replica, 0.0)
        connection.send(None)
        while (seconds := connection.recv()) is not None:
            connection.send(unrolls(replica, seconds))
        replica.close()


def unrolls(replica: Replica, seconds: float, count: int = 8) -> float:
    """Unrolls per second."""
    begin, made = time.perf_counter(), 0
    while not made or time.perf_counter() - begin < seconds:
        for _ in replica.run(replica.programs.updates, count):
            pass
        replica.note_reports(count)
        replica.take_reports()
        made += count
    return made / (time.perf_counter() - begin)


def start_alone(plan: Plan, algorithm: Any, env: Any) -> PooledProcess:
    """A process as the engine would give it to the actor, on the same core."""
    member = start_process(plan.fragments[ACTOR], (min(os.sched_getaffinity(0)),))
    member.connection.send(SoloGradient(plan, algorithm, env))
    member.connection.recv()
    return member


def alone(member: PooledProcess, seconds: float) -> float:
    """Unrolls per second of the actor by itself."""
    member.connection.send(seconds)
    return member.connection.recv()


def together(engine: LocalEngine, seconds: float, count: int) -> tuple[float, float, float]:
    """Unrolls per second of the actor under async, unrolls waiting behind each that was taken, updates per second."""
    engine.advance(count, count)  # the queue was full while all stood still
    actor, learner = engine.controls[ACTOR], engine.controls[LEARNER]
    begin, first, learned, fill, messages = time.perf_counter(), actor.done, learner.done, 0.0, 0
    while time.perf_counter() - begin < seconds:
        flow = engine.advance(count, count).flows["experience"]
        fill, messages = fill + flow.fill, messages + flow.messages
    passed = time.perf_counter() - begin
    behind = fill / max(messages, 1) * engine.plan.channels[0].capacity - 1  # what is taken counts as waiting
    return (actor.done - first) / passed, behind, (learner.done - learned) / passed


def measure(name: str, pairs: int, seconds: float) -> dict[str, Any]:
    env_name, envs, algorithm = FAMILIES[name]
    bound, env, plan = prepare_plan(algorithm, env_name, POLICY, envs=envs, groups=1)
    member, engine = start_alone(plan, bound, env), LocalEngine(plan, bound, env, 0, HORIZON)
    try:
        engine.start()
        engine.advance(1)
        count = int(np.clip(0.1 * together(engine, 1.0, 1)[2], 1, CHUNK // 2))
        rows = []
        for k in range(pairs + 1):
            both = {}
            for side in ("alone", "together") if k % 2 else ("together", "alone"):
                both[side] = (alone(member, seconds),) if side == "alone" else together(engine, seconds, count)
            rows.append((both["alone"][0], *both["together"]))
    finally:
        engine.close()
        member.kill()
    by_itself, under, queued, _ = np.asarray(rows[1:]).T
    steps = bound.schedule.unroll * envs
    return {
        "family": name,
        "env": env_name,
        "envs": envs,
        "alone_steps_per_second": round(steps * statistics.median(by_itself)),
        "async_steps_per_second": round(steps * statistics.median(under)),
        "ratio": round(float(np.median(under / by_itself)), 3),
        "queued": round(float(np.median(queued)), 2),
        "pairs": pairs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", default=list(FAMILIES), help=", ".join(FAMILIES))
    parser.add_argument("--pairs", type=int, default=9, help="interleaved pairs")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    options = parser.parse_args()
    for name in options.families:
        print(json.dumps(measure(name, options.pairs, options.seconds)), flush=True)


if __name__ == "__main__":
    main()
