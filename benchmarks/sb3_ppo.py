"""Speed of Stable-Baselines3's PPO on Gymnasium's CartPole, in SB3's own virtual environment.

Set-up, once (PyTorch first and by itself, so that pip takes the build for CPUs):

    python3.11 -m venv /tmp/sb3-venv
    /tmp/sb3-venv/bin/pip install torch==2.13.0
    /tmp/sb3-venv/bin/pip install -r benchmarks/requirements-sb3.txt
    /tmp/sb3-venv/bin/python benchmarks/sb3_ppo.py

Prints one JSON line per setting. What is timed is `learn` from the first step to the last of a fresh model, so that
playing and updating are in it and building is not. Environments are stepped by DummyVecEnv, in this process, which for
so quick an environment is far faster than SubprocVecEnv.
"""

import argparse
import json
import statistics
import sys
import time
from typing import Any

ENV = "CartPole-v1"

ZOO: dict[str, Any] = {
    "envs": 8, "unroll": 32, "epochs": 20, "minibatches": 1, "learning_rate": 1e-3, "gamma": 0.98, "gae_lambda": 0.8,
    "entropy": 0.0,
}  # fmt: skip
"""What RL Baselines3 Zoo has for CartPole: rates for the step and the clip that fall to zero, 256 rows per gradient."""

OURS: dict[str, Any] = {
    "unroll": 32, "epochs": 4, "minibatches": 4, "learning_rate": 2e-3, "gamma": 0.99, "gae_lambda": 0.95,
    "entropy": 0.01,
}  # fmt: skip
"""Tessera's defaults for such a task; the learning rate falls to zero here too."""

SETTINGS: dict[str, dict[str, Any]] = {
    "zoo": ZOO,
    **{f"{envs} envs": {**OURS, "envs": envs} for envs in (8, 32, 64, 256, 512, 1024)},
    **{f"{envs} envs, 1 minibatch": {**OURS, "envs": envs, "minibatches": 1} for envs in (64, 256, 1024)},
}


def train(setting: dict[str, Any], threads: int, steps: int, seed: int = 0) -> dict[str, Any]:
    """Train a fresh model; its speed, and the mean return of the last 100 episodes."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(threads)
    env = make_vec_env(ENV, n_envs=setting["envs"], seed=seed)
    model = PPO(
        "MlpPolicy",  # two networks of 64 x 64 with tanh, as Tessera's
        env,
        learning_rate=lambda left: left * setting["learning_rate"],
        n_steps=setting["unroll"],
        batch_size=setting["envs"] * setting["unroll"] // setting["minibatches"],
        n_epochs=setting["epochs"],
        gamma=setting["gamma"],
        gae_lambda=setting["gae_lambda"],
        clip_range=(lambda left: left * 0.2) if setting is ZOO else 0.2,
        ent_coef=setting["entropy"],
        device="cpu",
        seed=seed,
    )
    begin = time.perf_counter()
    model.learn(steps)
    seconds = time.perf_counter() - begin
    env.close()
    return {
        "steps": model.num_timesteps,
        "seconds": round(seconds, 3),
        "steps_per_second": round(model.num_timesteps / seconds),
        "train_return": round(statistics.fmean(episode["r"] for episode in model.ep_info_buffer), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000, help="of each training run")
    parser.add_argument("--on-demand", action="store_true", help="one run for each JSON line of standard input")
    options = parser.parse_args()
    if options.on_demand:
        for line in sys.stdin:
            asked = json.loads(line)
            told = train(SETTINGS[asked["setting"]], asked["threads"], asked["steps"], asked["seed"])
            print(json.dumps(told), flush=True)
        return
    for name, setting in SETTINGS.items():
        for threads in (1, 2):
            told = train(setting, threads, options.steps)
            print(json.dumps({"setting": name, "threads": threads, **told}), flush=True)


if __name__ == "__main__":
    main()
