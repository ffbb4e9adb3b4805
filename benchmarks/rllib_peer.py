"""RLlib on a Gymnasium environment, for benchmarks/ray_engine.py: trains for some seconds, prints one line of JSON.

python -m venv /tmp/rllib-venv
/tmp/rllib-venv/bin/pip install torch==2.13.0                             # first: pip finds the build for CPUs
/tmp/rllib-venv/bin/pip install -r benchmarks/requirements-rllib.txt
"""

import argparse
import json
import logging
import time

import ray
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig

CONFIGS = {"impala": IMPALAConfig, "ppo": PPOConfig}


def main() -> None:
    """Train once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--algorithm", choices=CONFIGS, default="impala")
    parser.add_argument("--envs", type=int, default=16, help="environments of each of the two runners")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to measure, after as much warm-up / 3")
    options = parser.parse_args()
    ray.init(num_cpus=4, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    config = (
        CONFIGS[options.algorithm]()
        .environment(options.env)
        .env_runners(num_env_runners=2, num_envs_per_env_runner=options.envs, rollout_fragment_length="auto")
        .learners(num_learners=0)
        .debugging(seed=1, log_level="ERROR")
    )
    if options.algorithm == "impala":
        config = config.training(train_batch_size_per_learner=64 * options.envs)
        config = config.env_runners(rollout_fragment_length=32)
    else:
        config = config.training(train_batch_size_per_learner=128 * 2 * options.envs, minibatch_size=1024, num_epochs=4)
    config.min_time_s_per_iteration = 1
    algorithm = config.build_algo()

    def steps() -> tuple[int, float]:
        result = algorithm.train()
        return int(result["env_runners"].get("num_env_steps_sampled_lifetime", 0)), result["env_runners"].get(
            "episode_return_mean", float("nan")
        )

    until = time.perf_counter() + options.seconds / 3
    first, mean = steps()
    while time.perf_counter() < until:
        first, mean = steps()
    begun = time.perf_counter()
    last = first
    while time.perf_counter() < begun + options.seconds:
        last, mean = steps()
    wall = time.perf_counter() - begun
    print(json.dumps({"steps_per_second": (last - first) / wall, "train_return": mean, "steps": last}))


if __name__ == "__main__":
    main()
