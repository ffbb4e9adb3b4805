"""What a run has learned, in one's hands: act, evaluate, train on, save and export. No engine is needed to act."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.agent.acting import Actor
from tessera.algorithms.contract import Algorithm
from tessera.envs.base import Environment
from tessera.errors import TesseraError
from tessera.evaluation.trust import Trust
from tessera.runs import directory
from tessera.runs.saved_agent import save_agent
from tessera.runs.saved_run import SavedRun, load_run, newest_update, statistics_hint
from tessera.runs.seed_folders import run_folders, seed_folder

if TYPE_CHECKING:  # acting needs none of these
    from tessera.agent.export import ExportedFile
    from tessera.api import Result
    from tessera.evaluation.many_runs import RunEvaluation

AS_BEFORE = ("policy", "engine", "envs", "groups", "lag", "seed", "precision")
"""Entries of config.json that are options of `train`."""


def load(
    path: str | Path,
    *,
    checkpoint: int | str | None = None,
    seed: int | None = None,
    trust: Trust = False,
    env: Any = None,
) -> Agent:
    """Load the agent of a run, or one that `Agent.save` wrote.

    Args:
        path: the folder.
        checkpoint: "newest", "best" (by greedy evaluations during training) or the number of an update; None: newest.
        seed: which of the seeds in a folder of several; None: the folder holds one.
        trust: True to import an algorithm or environment of your own that the folder names, if it is a class that
            derives from Tessera's or Gymnasium's; or names that are imported whatever they are, as `train` would.
        env: the environment that it was trained in, as for `train`; needed where that was passed as an object that no
            name makes again, such as a lambda. None: the one that the folder names.
    """
    saved = load_run(_one_run(Path(path), seed), trust, checkpoint, env)
    if hint := statistics_hint(saved.algorithm, saved.env):
        warnings.warn(f"{saved.folder}: {hint}", stacklevel=2)
    return Agent(saved, trust, env)


def _one_run(folder: Path, seed: int | None) -> Path:
    """The folder of one run: `folder` itself, or the one of a seed in it."""
    config = directory.read_config(folder)
    if "seeds" not in config:
        if seed not in (None, config["seed"]):
            raise TesseraError(f"{folder} holds one run, of seed {config['seed']}: leave seed={seed} out")
        return folder
    found = run_folders(folder)
    chosen = None if seed is None else seed_folder(folder, seed)
    if chosen in found:
        return chosen
    names = ", ".join(path.name for path in found[:8]) + (", …" if len(found) > 8 else "")
    raise TesseraError(
        f"{folder} holds several seeds ({names}){'' if seed is None else f' and not seed {seed}'}: load one of them, "
        f"such as {found[0]}, or pass seed="
    )


class Agent:
    """A trained agent. It keeps the memory of recurrent networks between calls of `act`; `reset` begins an episode."""

    def __init__(self, saved: SavedRun, trust: Trust = False, env: Any = None) -> None:
        self._trust, self._given_env = trust, env
        self._take(saved)

    def _take(self, saved: SavedRun) -> None:
        self._saved, self._actor = saved, Actor(saved.algorithm, saved.env, saved.view)

    def __repr__(self) -> str:
        name = directory.run_name(self.config)
        return f"<agent of {self._saved.folder}: {name} on {self.env.name}, update {self.update}>"

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm, bound to the environment."""
        return self._saved.algorithm

    @property
    def env(self) -> Environment:
        """The environment that it was trained in."""
        return self._saved.env

    @property
    def params(self) -> Any:
        """The params, as NumPy arrays."""
        return self._saved.view.params

    @property
    def config(self) -> dict[str, Any]:
        """The contents of config.json."""
        return self._saved.config

    @property
    def update(self) -> int:
        """Updates that the params have received."""
        return self._saved.update

    def act(self, observation: Any, greedy: bool = True, legal: Any = None) -> np.ndarray:
        """The action for one observation, or the actions for a batch; its shape tells which.

        With `greedy=False` the algorithm explores as it does in training at this point of the run. Where some actions
        are not allowed, `legal`, such as `info["action_mask"]`, says which are.
        """
        return self._actor(observation, greedy, legal)

    def reset(self, begins: Any = None, seed: int | None = None) -> None:
        """Begin a new episode; for a batch `begins`, bool [n], may say in which entries.

        `seed` restarts the random numbers of `act(…, greedy=False)`.
        """
        self._actor.reset(begins, seed)

    def initial_memory(self, entries: int = 1) -> tuple[np.ndarray, ...]:
        """What the agent remembers where `entries` episodes begin, as an exported function takes it."""
        from tessera.agent.export import GreedyFunction

        return GreedyFunction(self._actor).initial_memory(entries)

    def evaluate(self, episodes: int = 100, seed: int = 0) -> RunEvaluation:
        """Play greedy episodes in the environment that it was trained in, the same as `tessera eval` plays."""
        from tessera.api import evaluate_saved

        return evaluate_saved([self._saved], episodes, seed, self._trust)[0]

    def save(self, path: str | Path) -> None:
        """Write a small folder that `tessera.load` and `tessera eval` read: no optimiser state, replay or metrics.

        An agent that was saved there before is replaced; anything else is left alone.
        """
        save_agent(self._saved, Path(path))

    def export(self, path: str | Path) -> ExportedFile:
        """Write greedy acting as a function (observation, memory) -> (action, memory) that needs no Tessera.

        The ending of the name says in which form: .stablehlo (`jax.export`) or .onnx (needs the extra `onnx`).
        """
        from tessera.agent.export import export

        return export(self._actor, Path(path))

    def train(self, more_steps: float, **options: Any) -> Result:
        """Go on with the run in its folder for `more_steps` environment steps, and act with the new params.

        `options` are those of `tessera.train`. A run folder notes the name of the policy without its options, so these
        have to be given again: `policy="central:workers=4"`.
        """
        folder, config = self._saved.folder, self._saved.config
        more = int(more_steps)  # 1e6 is a number of steps too
        if more < 1:
            raise TesseraError(f"train: {more} more steps are none: ask for at least one")
        directory.refuse_saved_agent(folder, config)
        newest = newest_update(folder)
        if newest != self.update:
            raise TesseraError(
                f"this agent is of update {self.update}, and {folder} goes on from update {newest}: load it again "
                "without checkpoint="
            )
        from tessera.api import train
        from tessera.presets import find_preset

        given = {name: config.get(name) for name in AS_BEFORE}
        if config.get("preset") is not None:
            given["preset"] = find_preset(self.algorithm.name, self.env.name, config["preset"])
        steps = self._saved.meta["meter"]["env_steps"] + more
        result = train(self.algorithm, self.env, steps=steps, run_dir=folder, resume=True, **{**given, **options})
        self._take(load_run(folder, self._trust, env=self._given_env))
        return result
