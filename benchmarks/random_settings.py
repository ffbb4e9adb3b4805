"""PPO with random settings, each run with its own, all in one program: which of them matter?

    python benchmarks/random_settings.py --runs 128 --steps 1e7                 # MinAtar Breakout; 100 s on an H200
    python benchmarks/random_settings.py --torso small --runs 32 --vary learning_rate entropy_coefficient
    python benchmarks/random_settings.py --torso small --runs 64 --first-seed 2000 \\
        --choices learning_rate=5e-3,entropy_coefficient=0.02 learning_rate=5e-3,entropy_coefficient=0.03

Step size, weight of the entropy bonus, clipping range, largest gradient norm and weight of the value loss, or those of
them that `--vary` names, are drawn from wide ranges, evenly on a logarithmic scale. Shown are the medians of the best
and of the worst quarter of runs. With `--choices` each run draws one of the settings that are named, and shown is each
choice's mean, worst and best return. `--output` keeps every run's settings and return.
"""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tessera
from tessera.algorithms.ppo import ppo_loss

RANGES = {
    "learning_rate": (5e-4, 2e-2),
    "entropy_coefficient": (0.003, 0.04),
    "clip": (0.1, 0.4),
    "max_gradient_norm": (0.2, 5.0),
    "value_coefficient": (0.2, 1.5),
}


def network_only(view: tessera.View) -> tessera.View:
    return view._replace(params=view.params["network"])


@dataclasses.dataclass(frozen=True)
class RandomPPO(tessera.PPO):
    """PPO that draws its settings with its first params, and keeps them beside the network's."""

    vary: tuple[str, ...] = tuple(RANGES)
    """Settings to draw; the others are the algorithm's own."""
    choices: tuple[tuple[tuple[str, float], ...], ...] = ()
    """Instead: names and values, of which each run draws one line."""

    def init(self, key: jax.Array) -> Any:
        """Make the network's params, and draw the settings."""
        share = jax.random.uniform(jax.random.fold_in(key, 1), (len(RANGES),))
        bounds = zip(RANGES.items(), share, strict=True)
        drawn = {name: jnp.exp(jnp.log(low) + u * jnp.log(high / low)) for (name, (low, high)), u in bounds}
        if self.choices:
            line = jax.random.randint(jax.random.fold_in(key, 7), (), 0, len(self.choices))
            drawn |= {name: jnp.asarray([dict(c)[name] for c in self.choices])[line] for name, _ in self.choices[0]}
        settings = {name: x if name in self.vary else jnp.asarray(getattr(self, name)) for name, x in drawn.items()}
        return {"network": super().init(key), "settings": settings}

    def act(self, view: tessera.View, *more: Any) -> Any:
        """Act with the network."""
        return super().act(network_only(view), *more)

    def greedy(self, view: tessera.View, *more: Any) -> Any:
        """Act with the network."""
        return super().greedy(network_only(view), *more)

    def prepare(self, view: tessera.View, sample: Any) -> Any:
        """Estimate with the network."""
        return super().prepare(network_only(view), sample)

    def gradient(self, view: tessera.View, batch: Any, summary: Any, key: jax.Array) -> Any:
        """Gradient of PPO's loss with the run's own coefficients; settings have none."""
        del key
        own = view.params["settings"]
        batch = batch._replace(advantage=self.advantages(batch, summary))

        def loss(network: Any) -> Any:
            distribution, value = self.evaluate(network, view.statistics, batch)
            coefficients = (own["clip"], own["value_coefficient"], own["entropy_coefficient"])
            return ppo_loss(distribution, value, batch, summary, *coefficients)

        gradients, metrics = jax.grad(loss, has_aux=True)(view.params["network"])
        return {"network": gradients, "settings": jax.tree.map(jnp.zeros_like, own)}, tessera.Feedback(metrics)

    def apply(self, state: tessera.State, gradients: Any, norm: jax.Array) -> tessera.State:
        """Adam's step, with the run's own step size and norm."""
        own = state.params["settings"]
        scale = jnp.minimum(1.0, own["max_gradient_norm"] / (norm + 1e-6))
        gradients = jax.tree.map(lambda g: g * scale, gradients)
        steps, optimizer = self.stepper.update(gradients, state.optimizer, state.params)
        rate = own["learning_rate"] * (1.0 - state.clock.progress)
        network = jax.tree.map(lambda p, s: p - rate * s, state.params["network"], steps["network"])
        return state._replace(params={"network": network, "settings": own}, optimizer=optimizer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="gymnax:Breakout-MinAtar")
    parser.add_argument("--runs", type=int, default=128)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--steps", type=float, default=1e7)
    parser.add_argument("--minibatches", type=int, default=8)
    parser.add_argument("--torso", default="mlp")
    parser.add_argument("--vary", nargs="+", choices=tuple(RANGES), default=tuple(RANGES), help="settings to draw")
    parser.add_argument("--output", type=Path, help="JSON: settings and return of every run")
    parser.add_argument("--choices", nargs="+", default=[], help="settings to choose from: name=value,name=value …")
    options = parser.parse_args()
    choices = tuple(
        tuple((name, float(value)) for name, value in (pair.split("=") for pair in choice.split(",")))
        for choice in options.choices
    )
    vary = tuple(name for name, _ in choices[0]) if choices else tuple(options.vary)
    algorithm = RandomPPO(
        torso=options.torso, activation="relu", minibatches=options.minibatches, vary=vary, choices=choices
    )
    result = tessera.train(
        algorithm, options.env, seeds=options.runs, seed=options.first_seed, steps=int(options.steps),
        eval_episodes=4, quiet=True,
    )  # fmt: skip
    rows = [
        {**{k: float(x) for k, x in run.params["settings"].items()}, "return": run.summary["train_return_mean"] or 0.0}
        for run in result.runs.values()
    ]
    if options.output is not None:
        options.output.write_text(json.dumps(rows, indent=1) + "\n")
    rows.sort(key=lambda row: row["return"])
    for choice in choices:
        returns = [row["return"] for row in rows if all(np.isclose(row[name], x) for name, x in choice)]
        if returns:
            text = ", ".join(f"{name} {x:g}" for name, x in choice)
            mean, worst, best = np.mean(returns), returns[0], returns[-1]
            print(f"{text}: {len(returns)} runs, mean {mean:.1f}, worst {worst:.1f}, best {best:.1f}")
    if choices:
        return
    quarter = max(1, len(rows) // 4)
    for name, part in (("best", rows[-quarter:]), ("worst", rows[:quarter])):
        medians = "  ".join(f"{key} {np.median([row[key] for row in part]):.2g}" for key in RANGES)
        print(f"{name:5s} quarter: mean return {np.mean([row['return'] for row in part]):.1f}  {medians}")


if __name__ == "__main__":
    main()
