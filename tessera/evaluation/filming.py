"""Greedy episodes, frame by frame: those that an evaluation of one episode plays, and the ones after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from tessera.algorithms.contract import Algorithm, View
from tessera.envs.base import DeviceEnvironment, Environment, HostEnvironment, HostVector
from tessera.envs.drawing.pixels import HEIGHT
from tessera.envs.drawing.reel import Reel
from tessera.envs.drawing.shapes import Frame
from tessera.envs.wrappers.watched import WatchedEnvironment
from tessera.evaluation.evaluator import evaluation_plan, evaluation_programs, run_program
from tessera.program.initial import initial_slots
from tessera.program.training_program import Training


@dataclass(frozen=True)
class FilmedEpisode:
    """What an episode came to."""

    total: float
    """Its return."""
    length: int
    cut: bool = False
    """Whether filming ended before it did."""


class Shot(NamedTuple):
    """A frame, and the episode that ended with it."""

    frame: Frame
    ended: FilmedEpisode | None = None


class Camera:
    """Plays greedy episodes in one environment, one after the other, and draws each step."""

    def __init__(self, algorithm: Algorithm, env: Environment, height: int | None = None) -> None:
        """Pixels have about so many rows, where that can be chosen; an environment that cannot be drawn is refused."""
        self._scene: DeviceScene | HostScene = (
            HostScene(env, height or HEIGHT) if isinstance(env, HostEnvironment) else DeviceScene(env, height or HEIGHT)
        )
        self._training = Training(algorithm, self._scene.env, 1, greedy=True)
        self._programs = evaluation_programs(self._training, 1)

    @property
    def fps(self) -> float:
        """Frames of a second, at the pace at which the environment is watched."""
        return self._scene.fps

    def film(self, view: View, episodes: int, seed: int, most_steps: int) -> Iterator[Shot]:
        """The frames of so many episodes; the one that goes on after `most_steps` of them all is cut there."""
        plan = evaluation_plan(self._training.algorithm, self._scene.env, 1)
        slots = initial_slots(self._training, plan, 0, 0, seed, 1, None)
        slots["acting"] = jax.tree.map(jax.numpy.asarray, view._replace(target=()))
        try:
            run_program(self._programs.reset, slots)
            waiting = self._scene.begun(slots)
            for step in range(most_steps):
                run_program(self._programs.play, slots)
                shown, begun = self._scene.stepped(slots)
                ended = _ended(slots, cut=step + 1 == most_steps)
                waiting += shown
                if waiting:  # nothing is seen in a step that only resets
                    episodes -= ended is not None
                    yield from (Shot(frame) for frame in waiting[:-1])
                    yield Shot(waiting[-1], ended)
                if not episodes:
                    return
                waiting = begun
        finally:
            if isinstance(slots.get("env_state"), HostVector):
                slots["env_state"].close()


def _ended(slots: dict[str, Any], cut: bool) -> FilmedEpisode | None:
    """The episode that the last step ended, or that is cut there; None if it goes on."""
    played = jax.device_get(slots["episode_steps"])
    done = bool(np.ravel(played.done)[0])
    if not (done or cut):
        return None
    return FilmedEpisode(float(np.ravel(played.total)[0]), int(np.ravel(played.length)[0]), cut=not done)


class DeviceScene:
    """What is seen of a compiled environment."""

    def __init__(self, env: DeviceEnvironment, height: int) -> None:
        self._artist = env.artist(height)
        self.env, self.fps = WatchedEnvironment(env), self._artist.fps

    def begun(self, slots: dict[str, Any]) -> list[Frame]:
        """The beginning of an episode."""
        return [self._drawn(slots["env_state"].now)]

    def stepped(self, slots: dict[str, Any]) -> tuple[list[Frame], list[Frame]]:
        """Where the last step led; if an episode has ended there, also where the next one begins."""
        shown = [self._drawn(slots["env_state"].stepped)]
        return shown, self.begun(slots) if np.ravel(slots["episode_steps"].done)[0] else []

    def _drawn(self, states: Any) -> Frame:
        return self._artist.draw(jax.tree.map(lambda x: x[0, 0], jax.device_get(states)))


class HostScene:
    """What is seen of a host environment."""

    def __init__(self, env: HostEnvironment, height: int) -> None:
        self._reel = Reel()
        self.env = env.filmed(self._reel, height)

    @property
    def fps(self) -> float:
        """What the environment says."""
        return self._reel.fps

    def begun(self, slots: dict[str, Any]) -> list[Frame]:
        """The beginning of an episode, with what the other side did before the first own step."""
        del slots
        return [frame for frame, _ in self._reel.take()]

    def stepped(self, slots: dict[str, Any]) -> tuple[list[Frame], list[Frame]]:
        """What was seen in the last step; and where the next episode begins, if one has ended."""
        taken = self._reel.take()
        begins = next((k for k, (_, first) in enumerate(taken) if first), len(taken))
        frames: list[Frame] = [frame for frame, _ in taken]
        return frames[:begins], frames[begins:]
