"""Figures that papers publish beside what is simulated with the sizes, and where there are any the costs, of the paper.

No constant is fitted. What a paper does not say (network, messages) is that of benchmarks/scaling_cluster.toml and of
calls of Ray. Where neither costs nor a ratio that does without them are published, there is nothing to simulate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tessera import ES, policies, systems
from tessera.algorithms.contract import Algorithm
from tessera.engines.simulated.cluster import Cluster, NodeKind
from tessera.engines.simulated.costs import Costs
from tessera.engines.simulated.deployment import on_cluster
from tessera.engines.simulated.engine import SimulatedEngine
from tessera.engines.simulated.prediction import Prediction
from tessera.planning.prepare import prepare_plan
from tessera.planning.simulate import with_calls_of_ray

MOST_EXACT = 64
ES_MEMBERS = 11_520
"""Of an update: 8 for each of 1,440 workers, since the authors' configurations/humanoid.json has at least 10,000."""
ES_CORES = {1: 18, 80: 1440}
"""Machines -> cores in all."""
ES_STEPS = 100, 1000
"""Of an episode, at least and at most."""
APEX_ACTORS, APEX_FRAMES, APEX_REPEAT = 360, 139.0, 4
"""Actors, frames/s of each, and frames of a step."""
APEX_BATCHES, APEX_ROWS, APEX_UNROLL = 19.0, 512, 100
"""Batches/s that the learner computes, their rows, and steps between two copies of the params (400 frames)."""
APEX_TAKEN = 8
"""Unrolls for each batch, so that the actors need 15.6 batches/s: fewer than the learner computes."""


@dataclass(frozen=True)
class Beside:
    """One row."""

    system: str
    source: str
    published: str
    taken: str
    """What of it is used."""
    simulated: str


def run(
    policy: str, algorithm: Algorithm, env: str, envs: int, groups: int, costs: Costs, kind: NodeKind
) -> Prediction:
    """Simulate a plan."""
    named = policies.parse(policy)
    bound, environment, plan = prepare_plan(algorithm, env, named, envs=envs, groups=groups, engine="ray")
    deployment = on_cluster(plan, Cluster((kind,)), MOST_EXACT)
    heard = 1 if plan.solo else max(1, plan.groups // plan.batches)
    return SimulatedEngine(plan, bound, environment, costs, deployment=deployment).run(2 * heard, 2 * heard)


def evolution_strategies(costs: Costs, node: NodeKind) -> Beside:
    """How many times as fast 1,440 cores are as 18, with one population."""
    found = []
    for steps in ES_STEPS:
        rates = []
        for machines, cores in ES_CORES.items():
            kind = replace(node, count=machines, cores=cores // machines)
            env = f"HalfCheetah-v5?time_limit={steps}"
            rates.append(run(f"mirrored:workers={cores}", ES(), env, ES_MEMBERS, 1440, costs, kind).steps_per_second)
        found.append(f"{rates[1] / rates[0]:.0f} times as fast with episodes of {steps:,} steps")
    return Beside(
        "ES, Humanoid",
        "Salimans et al. 2017, section 4.3",
        "11 hours on 18 cores, 10 minutes on 80 machines with 1,440: 66 times as fast on 80 times the cores",
        "cores and machines; episodes of an update from the authors' configuration. Not published: steps of an episode "
        "and what they cost. Costs are ours (HalfCheetah, a network of 32 × 32)",
        f"`mirrored`: {', '.join(found)}",
    )


def apex(node: NodeKind) -> Beside:
    """Frames/s of all actors and batches/s, from those of one actor and of the learner."""
    algorithm, system = systems.find("apex_dqn")
    assert system is not None
    settings = {"unroll": APEX_UNROLL, "draws": 1, "batch": APEX_ROWS, "warmup": 0, "capacity": 2_000_000}
    costs = with_calls_of_ray(
        Costs(
            {
                "env actions -> timesteps": ((1, APEX_REPEAT / APEX_FRAMES),),
                "grad batch+summary -> gradients": ((1, 1 / APEX_BATCHES),),
            }
        )
    )
    every = APEX_ACTORS // APEX_TAKEN
    policy = f"distributed_replay:actors={APEX_ACTORS},stores=1,mode=async,take={APEX_TAKEN},publish={every}"
    kind = replace(node, count=APEX_ACTORS + 2, cores=1, memory=0)
    found = run(policy, algorithm(**{**system.options, **settings}), "ale:pong", APEX_ACTORS, APEX_ACTORS, costs, kind)
    frames = APEX_REPEAT * found.steps_per_second
    samples = found.flows["samples"]
    size = samples.bytes / samples.messages / 1e6
    return Beside(
        "Ape-X DQN, Atari",
        "Horgan et al. 2018, section 4.1",
        "50,000 frames/s of 360 actors; 19 batches/s of 512",
        "139 frames/s of an actor, 19 batches/s of the learner, sizes. Messages are ours",
        f"{frames:,.0f} frames/s, {found.updates_per_second:.1f} batches/s; the limit is `{found.bottleneck}`: a batch "
        f"is a message of {size:.0f} MB, not compressed; {APEX_UNROLL * APEX_TAKEN} steps come in for each batch",
    )


NOTHING_TO_SIMULATE = (
    Beside(
        "IMPALA, DeepMind Lab",
        "Espeholt et al. 2018",
        "250,000 frames/s",
        "neither what a step nor what a batch costs is published",
        "",
    ),
    Beside(
        "SEED RL, DeepMind Lab",
        "Espeholt et al. 2020",
        "millions of frames/s",
        "neither what a step nor what a batch of inference costs is published",
        "",
    ),
    Beside(
        "OpenAI Five",
        "OpenAI 2018",
        "60 batches of about 1 M observations a minute, on 128,000 cores and 256 GPUs",
        "sizes are published; what a step, a forward pass and a gradient cost is not",
        "",
    ),
    Beside(
        "MSRL, PPO, HalfCheetah",
        "Zhu et al. 2023",
        "up to about 2.4 times between policies, 320 environments, 64 GPUs",
        "costs are not published, and ours are of processors",
        "",
    ),
)


def beside_published(es_costs: Costs, node: NodeKind) -> list[Beside]:
    """All rows."""
    return [evolution_strategies(es_costs, node), apex(node), *NOTHING_TO_SIMULATE]
