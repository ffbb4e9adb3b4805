"""Wide layers cut over devices: memory of the learner's state on each device, and how far params are from one device's.

    python benchmarks/model_parallel.py

PPO with two layers of 1,024 on CartPole, and with a small CNN and a fully connected layer of 512 on MinAtar's Breakout,
on 8 virtual devices of the processor, in float64. `state_mb` is what the first device holds of params and Adam's
moments; `share` is that of what one device alone would hold; `furthest` is the largest difference of any parameter
after two updates.
"""

import os

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import json
from typing import Any

import jax
import numpy as np

from tessera import PPO, policies
from tessera.engines.serial import SerialEngine
from tessera.planning.prepare import prepare_plan

TASKS = {
    "mlp 1024 1024": (PPO(unroll=8, epochs=1, minibatches=2, widths=(1024, 1024)), "gymnax:CartPole-v1"),
    "cnn": (PPO(unroll=4, epochs=1, minibatches=2, torso="small", widths=(512,)), "gymnax:Breakout-MinAtar"),
}
MESHES = ((1, 1), (8, 1), (4, 2), (2, 4), (1, 8))


def run(algorithm: Any, env: str, data: int, model: int) -> tuple[Any, float]:
    policy = policies.get("fused", devices=data, model=model)
    bound, made, plan = prepare_plan(algorithm, env, policy, envs=16, groups=8, precision="f64")
    engine = SerialEngine(plan, bound, made, seed=1, horizon=10)
    try:
        engine.start()
        engine.advance(2)
        state = engine.replicas[0].slots["state"]
        held = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state)) / 2**20
        return jax.tree.map(np.array, engine.state().params), held
    finally:
        engine.close()


def main() -> None:
    for name, (algorithm, env) in TASKS.items():
        alone: Any = None
        for data, model in MESHES:
            params, held = run(algorithm, env, data, model)
            alone = alone or (params, held)
            gaps = jax.tree.map(lambda x, y: float(np.abs(x - y).max()), params, alone[0])
            told = {"network": name, "mesh": f"data={data},model={model}", "state_mb": round(held, 2)}
            told |= {"share": round(held / alone[1], 3), "furthest": max(jax.tree.leaves(gaps))}
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
