"""One algorithm with random settings, each run with its own, all in one program: which of them matter?

    python benchmarks/random_settings.py ppo gymnax:Breakout-MinAtar "--torso mlp --activation relu" --runs 128 \\
        --vary learning_rate=5e-4:2e-2 clip=0.1:0.4 entropy_coefficient=0.003:0.04 --steps 1e7
    python benchmarks/random_settings.py ppo gymnax:Breakout-MinAtar --runs 64 --first-seed 2000 --steps 1e7 \\
        --choices learning_rate=5e-3,entropy_coefficient=0.02 learning_rate=5e-3,entropy_coefficient=0.03
    python benchmarks/random_settings.py dqn gymnax:Asterix-MinAtar "--n-step 3" --runs 32 --steps 2e6 \\
        --choices learning_rate=3e-4 learning_rate=1e-3

The text behind the environment holds flags of `tessera train` that all runs share. With `--vary` each run draws its
settings, evenly on a logarithmic scale, from the ranges that are named; shown are the medians of the best and of the
worst quarter of runs. With `--choices` each run draws one of the settings that are named; shown is each choice's mean,
worst and best training return. A setting is a number on which neither shapes nor branches depend. `--output` keeps
every run's settings and return.
"""

import argparse
import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

import tessera
from tessera.cli.options import parse_arguments
from tessera.cli.train import TrainOptions


@dataclasses.dataclass(frozen=True)
class RandomSettings(tessera.Algorithm):
    """An algorithm that draws some of its settings with its first params, and keeps them beside the network's."""

    inner: Any = None
    """The algorithm whose settings are drawn."""
    names: tuple[str, ...] = ()
    """Settings to draw."""
    ranges: tuple[tuple[float, float], ...] = ()
    """Lowest and highest value of each."""
    choices: tuple[tuple[float, ...], ...] = ()
    """Instead: values of all of them, of which each run draws one line."""

    def bind(self, spec: tessera.Spec) -> Self:
        """Bind the inner algorithm too."""
        return dataclasses.replace(super().bind(spec), inner=self.inner.bind(spec))

    def __getattr__(self, name: str) -> Any:
        """What no algorithm must have, such as a target's period, is the inner one's."""
        return getattr(object.__getattribute__(self, "inner"), name)

    schedule = property(lambda self: self.inner.schedule)
    store = property(lambda self: self.inner.store)
    optimizer = property(lambda self: self.inner.optimizer)
    absorbs = property(lambda self: self.inner.absorbs)
    noisy_loss = property(lambda self: self.inner.noisy_loss)

    def own(self, params: Any) -> Any:
        """Return the inner algorithm with a run's own settings."""
        return dataclasses.replace(self.inner, **params["settings"])

    def init(self, key: jax.Array) -> Any:
        """Make the network's params, and draw the settings."""
        if self.choices:
            drawn = jax.random.choice(jax.random.fold_in(key, 7), jnp.asarray(self.choices))
        else:
            low, high = jnp.log(jnp.asarray(self.ranges)).T
            drawn = jnp.exp(jax.random.uniform(jax.random.fold_in(key, 1), low.shape, minval=low, maxval=high))
        return {"network": self.inner.init(key), "settings": dict(zip(self.names, drawn, strict=True))}

    def start(self, params: Any) -> tessera.State:
        """Start the network's state; settings have neither moments nor a target."""
        return self.inner.start(params["network"])._replace(params=params)

    def memory(self, env_id: jax.Array) -> Any:
        """As the inner algorithm."""
        return self.inner.memory(env_id)

    def act(self, view: tessera.View, *more: Any) -> Any:
        """Act as the run's own algorithm."""
        return self.own(view.params).act(network_only(view), *more)

    def greedy(self, view: tessera.View, *more: Any) -> Any:
        """Act as the run's own algorithm."""
        return self.own(view.params).greedy(network_only(view), *more)

    def digest(self, view: tessera.View, *more: Any) -> Any:
        """Digest as the run's own algorithm."""
        return self.own(view.params).digest(network_only(view), *more)

    def prepare(self, view: tessera.View, sample: Any) -> Any:
        """Prepare as the run's own algorithm."""
        return self.own(view.params).prepare(network_only(view), sample)

    def gradient(self, view: tessera.View, *more: Any) -> Any:
        """Gradient of the run's own loss; settings have none."""
        gradients, feedback = self.own(view.params).gradient(network_only(view), *more)
        return {"network": gradients, "settings": jax.tree.map(jnp.zeros_like, view.params["settings"])}, feedback

    def apply(self, state: tessera.State, gradients: Any, step: tessera.Step) -> tessera.State:
        """Step as the run's own algorithm."""
        applied = self.own(state.params).apply(network_only(state), gradients["network"], step)
        return applied._replace(params={**state.params, "network": applied.params})

    def absorb(self, state: tessera.State, summary: Any) -> tessera.State:
        """Absorb as the run's own algorithm."""
        return self.own(state.params).absorb(network_only(state), summary)._replace(params=state.params)


class RandomSettingsReady(RandomSettings):
    """The same for an algorithm that renews its memory before each update."""

    def ready(self, view: tessera.View, *more: Any) -> Any:
        """As the run's own algorithm."""
        return self.own(view.params).ready(network_only(view), *more)


def network_only(view: Any) -> Any:
    """The view or state that the inner algorithm knows."""
    return view._replace(params=view.params["network"])


def parse_choice(text: str) -> dict[str, float]:
    """Read name=value,name=value."""
    return {name: float(value) for name, value in (pair.split("=") for pair in text.split(","))}


def show_choices(rows: list[dict[str, float]], choices: list[dict[str, float]]) -> None:
    """Print a line for each choice."""
    for choice in choices:
        returns = sorted(row["return"] for row in rows if all(np.isclose(row[name], x) for name, x in choice.items()))
        if returns:
            text = ", ".join(f"{name} {x:g}" for name, x in choice.items())
            mean, worst, best = np.mean(returns), returns[0], returns[-1]
            print(f"{text}: {len(returns)} runs, mean {mean:.1f}, worst {worst:.1f}, best {best:.1f}")


def show_quarters(rows: list[dict[str, float]], names: tuple[str, ...]) -> None:
    """Print a line for the best and for the worst quarter of runs."""
    rows, quarter = sorted(rows, key=lambda row: row["return"]), max(1, len(rows) // 4)
    for name, part in (("best", rows[-quarter:]), ("worst", rows[:quarter])):
        medians = "  ".join(f"{key} {np.median([row[key] for row in part]):.2g}" for key in names)
        print(f"{name:5s} quarter: mean return {np.mean([row['return'] for row in part]):.1f}  {medians}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm")
    parser.add_argument("env")
    parser.add_argument("flags", nargs="?", default="", help="flags of `tessera train` that all runs share")
    parser.add_argument("--runs", type=int, default=32)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--steps", type=float, default=5e5)
    drawn = parser.add_mutually_exclusive_group(required=True)
    drawn.add_argument("--vary", nargs="+", help="ranges to draw from: name=low:high …")
    drawn.add_argument("--choices", nargs="+", type=parse_choice, help="settings to choose from: name=value,… …")
    parser.add_argument("--output", type=Path, help="JSON: settings and return of every run")
    options = parser.parse_args()
    arguments = [options.algorithm, options.env, *shlex.split(options.flags)]
    world, _, inner = parse_arguments("train", arguments, TrainOptions)
    if options.choices:
        names = tuple(options.choices[0])
        drawn = {"choices": tuple(tuple(choice[name] for name in names) for choice in options.choices)}
    else:
        bounds = {name: tuple(map(float, text.split(":"))) for name, text in (v.split("=") for v in options.vary)}
        names, drawn = tuple(bounds), {"ranges": tuple(bounds.values())}
    renews = type(inner).ready is not tessera.Algorithm.ready
    wrapper = RandomSettingsReady if renews else RandomSettings
    result = tessera.train(
        wrapper(inner=inner, names=names, **drawn), options.env, seeds=options.runs, seed=options.first_seed,
        steps=int(options.steps), envs=world.envs or inner.default_envs, policy="fused:devices=1", eval_episodes=4,
        quiet=True,
    )  # fmt: skip
    rows = [
        {**{k: float(x) for k, x in run.params["settings"].items()}, "return": run.summary["train_return_mean"] or 0.0}
        for run in result.runs.values()
    ]
    if options.output is not None:
        options.output.write_text(json.dumps(rows, indent=1) + "\n")
    if options.choices:
        show_choices(rows, options.choices)
    else:
        show_quarters(rows, names)


if __name__ == "__main__":
    main()
