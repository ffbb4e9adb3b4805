"""Evolution strategies: evaluations per second of a whole population on one device, in one round and in several.

    python benchmarks/evolution.py
    python benchmarks/evolution.py --population 4096 --env gymnax:CartPole-v1 --envs 4096 1024 256

An evaluation is one member's unroll: with CartPole's time limit 500 steps. Params are copied for --envs members at a
time, so fewer environments are more rounds with less memory; `copies_mb` is what those copies take. Evaluations are
counted from the second generation on, after everything is compiled, over at least --seconds.
"""

import argparse
import json
import time

import jax
import numpy as np

from tessera import ES
from tessera.engines.serial import SerialEngine
from tessera.planning.prepare import prepare_plan


def measure(env: str, population: int, envs: int, seconds: float) -> dict[str, float]:
    algorithm, made, plan = prepare_plan(ES(members=population), env, "fused:devices=1", envs=envs)
    engine = SerialEngine(plan, algorithm, made, seed=1, horizon=1000)
    try:
        engine.start()
        engine.advance(1)
        begun, generations = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            engine.advance(4)
            generations += 4
        took = time.perf_counter() - begun
        size = sum(x.nbytes for x in jax.tree.leaves(engine.state().params))
    finally:
        engine.close()
    schedule = algorithm.schedule
    return {
        "population": population,
        "envs": envs,
        "rounds": schedule.rounds,
        "steps_per_evaluation": schedule.unroll,
        "evaluations_per_second": round(generations * population / took, 1),
        "steps_per_second": round(generations * population * schedule.unroll / took),
        "generation_ms": round(1000 * took / generations, 2),
        "params": int(np.sum([x.size for x in jax.tree.leaves(engine.state().params)])),
        "copies_mb": round(envs * size / 2**20, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="gymnax:CartPole-v1")
    parser.add_argument("--population", type=int, default=4096)
    parser.add_argument("--envs", type=int, nargs="+", default=[4096, 1024, 256])
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    print(json.dumps({"device": jax.devices()[0].device_kind, "env": options.env}))
    for envs in options.envs:
        print(json.dumps(measure(options.env, options.population, envs, options.seconds)), flush=True)


if __name__ == "__main__":
    main()
