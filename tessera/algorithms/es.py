"""Evolution strategies (Salimans et al., 2017): perturb the params, compare returns, move towards the better ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from tessera.algorithms.contract import Algorithm, Feedback, Schedule, Transition, View
from tessera.envs.base import Spec, Timestep
from tessera.errors import TesseraError
from tessera.maths.evolution import centred_ranks, mean_return, noise, weighted_noise
from tessera.networks import Chooser
from tessera.stores.base import Experience, Sample
from tessera.support.fields import option

MIN_MEMBERS = 32
"""Fewest members where the user gives no number."""
MAX_UNROLL = 1000
"""Most steps of an evaluation where the user gives no number."""


class MemberMemory(NamedTuple):
    """The member that an environment evaluates."""

    env_id: jax.Array
    seed: jax.Array
    """Seed of its noise; the same for both of a pair."""
    params: Any = ()
    """Its params; () between evaluations."""


class MemberScore(NamedTuple):
    """The result of an evaluation: all that crosses between replicas."""

    seed: jax.Array
    score: jax.Array


@dataclass(frozen=True)
class ES(Algorithm):
    """Neighbouring environments evaluate an antithetic pair; a large population is evaluated in rounds."""

    name: ClassVar[str] = "es"
    summary: ClassVar[str] = "evolution strategies: antithetic pairs from shared seeds, ranked returns, Adam"
    default_envs: ClassVar[int] = 32
    together: ClassVar[int] = 2

    members: int | None = option(None, low=1)
    """Members evaluated per update, a multiple of --envs: each environment evaluates one after the other. Params are
    copied for --envs of them at a time. Default: one for each environment, and at least 32."""
    unroll: int | None = option(None, low=1)
    """Steps that a member plays. It scores the mean return of the episodes that end within them. Default: the time
    limit of the environment, 1000 at the most."""
    sigma: float = option(0.1, low=0, tunable=True)
    """Deviation of the noise that is added to params."""
    learning_rate: float = option(0.1, low=0, tunable=True)
    """Step size at the beginning."""
    anneal: bool = False
    """Let the learning rate fall to zero, in a straight line, by the end of the run."""
    weight_decay: float = option(0.005, low=0, tunable=True)
    """How strongly params are drawn to zero."""
    torso: Any = "auto"
    """Network that reads observations: auto, mlp, nature, small, resnet, or a Flax module of yours, by name
    py:module.Class?width=64."""
    widths: tuple[int, ...] | None = (32, 32)
    """Widths of the fully connected layers."""

    def bind(self, spec: Spec) -> Self:
        """Make the unroll as long as an episode may last."""
        unroll = self.unroll or min(spec.time_limit or MAX_UNROLL, MAX_UNROLL)
        return replace(super().bind(spec), unroll=unroll)

    @property
    def schedule(self) -> Schedule:
        """Rounds of fresh episodes, then one gradient."""
        members = self.members or self.envs * math.ceil(MIN_MEMBERS / self.envs)
        if members % self.envs:
            raise TesseraError(
                f"es: --members {members} is no multiple of {self.envs} environments, each of which evaluates "
                "equally many: change --members or --envs"
            )
        return Schedule(self.unroll or MAX_UNROLL, rounds=members // self.envs, episodic=True)

    @property
    def model(self) -> Chooser:
        """The network, as a Flax module."""
        return Chooser(self.world, self.widths, self.torso)

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam, on gradients that also draw params to zero."""
        return optax.chain(optax.add_decayed_weights(self.weight_decay), optax.scale_by_adam())

    def init(self, key: jax.Array) -> Any:
        """Make the network's params."""
        return self.model.init(key, self.world.zeros(jnp, 1))

    def memory(self, env_id: jax.Array) -> MemberMemory:
        """No member yet."""
        return MemberMemory(env_id, jnp.zeros_like(jax.random.key_data(jax.random.key(0))))

    def ready(self, view: View, memory: MemberMemory, key: jax.Array) -> MemberMemory:
        """Make the next member: the two of a pair add and subtract the noise of one seed."""
        seed = jax.random.key_data(jax.random.fold_in(key, memory.env_id // 2))
        scale = self.sigma * (1 - 2 * (memory.env_id % 2))
        params = jax.tree.map(lambda p, e: p + (scale * e).astype(p.dtype), view.params, noise(seed, view.params))
        return memory._replace(seed=seed, params=params)

    def act(self, view: View, memory: MemberMemory, timestep: Timestep, key: jax.Array) -> tuple[Any, Any, Any]:
        """Act with the member's params."""
        del view, key
        return self.model.apply(memory.params, timestep.observation, timestep.legal), memory, ()

    def greedy(self, view: View, memory: MemberMemory, timestep: Timestep, key: jax.Array) -> tuple[Any, Any]:
        """Act with the params without noise."""
        del key
        return self.model.apply(view.params, timestep.observation, timestep.legal), memory

    def digest(self, view: View, memory: MemberMemory, trajectory: Transition) -> tuple[Experience, MemberMemory]:
        """Reduce the unroll to a seed and a score."""
        del view
        reward = trajectory.reward if trajectory.valid is None else trajectory.reward * trajectory.valid
        score = mean_return(reward, trajectory.terminated | trajectory.truncated)
        rows = jax.tree.map(lambda x: x[None], MemberScore(memory.seed, score))
        return Experience(rows, version=trajectory.version[:1]), memory._replace(params=())

    def prepare(self, view: View, sample: Sample) -> tuple[MemberScore, jax.Array]:
        """Make rows of pairs, a seed and two scores; the scores of all groups are ranked together."""
        del view
        rows = sample.rows
        score = rows.score.reshape(-1, 2)
        return MemberScore(rows.seed[:, ::2].reshape(score.shape[0], -1), score), score

    def gradient(self, view: View, batch: MemberScore, summary: jax.Array, key: jax.Array) -> tuple[Any, Feedback]:
        """Mean over pairs of the noise, weighted by how much lower it ranks than its opposite."""
        del key
        ranks = centred_ranks(batch.score, summary)
        weight = (ranks[:, 1] - ranks[:, 0]) / (2 * self.sigma * ranks.shape[0])
        metrics = {"score": batch.score.mean(), "best_score": summary.max()}
        return weighted_noise(batch.seed, weight, view.params), Feedback(metrics)
