"""AlphaZero (Silver et al., 2018): a network that learns from its own search, by playing against itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from tessera.algorithms.contract import Feedback, Schedule, View
from tessera.algorithms.parts.finished_games import GamePosition, turned
from tessera.algorithms.parts.game_acting import GameActing
from tessera.errors import TesseraError
from tessera.stores.base import Sample
from tessera.stores.replay import Replay
from tessera.support.fields import option


@dataclass(frozen=True)
class AlphaZero(GameActing):
    """Each move is searched in the game itself; the network learns the search's moves, and who won.

    One update, step by step:

    1. `act` searches: the network judges positions, and the game's own rules say what follows on a move. Both players
       are the same network, and a position is judged for who moves (parts/game_acting.py, maths/search.py).
    2. `digest` keeps positions until their game is over, and then hands them on with the outcome: each once
       (parts/finished_games.py).
    3. `gradient` is of the cross-entropy of moves and the squared error of outcomes, on boards turned at random where
       the game is the same for them.
    """

    name: ClassVar[str] = "alphazero"
    summary: ClassVar[str] = (
        "games: a network and a tree search that teach each other, by playing themselves (AlphaZero)"
    )
    default_steps: ClassVar[int] = 150_000

    unroll: int = option(16, low=1)
    """Moves in each game between updates."""
    draws: int = option(8, low=1)
    """Batches drawn, and gradients applied, per update."""
    batch: int = option(256, low=1)
    """Positions per draw, over all games."""
    capacity: int = option(100_000, low=1)
    """Positions that the replay holds, over all games."""
    warmup: int = option(4, low=0)
    """Unrolls played before learning starts, beyond those of the longest game."""
    learning_rate: float = option(2e-3, low=0, tunable=True)
    """Step size at the beginning."""
    anneal: bool = True
    """Let the learning rate fall to zero, in a straight line, by the end of the run."""
    weight_decay: float = option(1e-4, low=0, tunable=True)
    """Share of each weight that a step of size 1 takes away."""
    value_weight: float = option(1.0, low=0, tunable=True)
    """Weight of the outcome in the loss."""
    max_gradient_norm: float = option(10.0, low=0)
    """Gradients are scaled down to this global norm; 0 leaves them alone."""

    def check(self) -> None:
        """Refuse a replay that does not hold a draw."""
        super().check()
        if self.capacity < self.batch:
            raise TesseraError(f"--capacity {self.capacity} is below --batch {self.batch}: a replay must hold a draw")

    @property
    def schedule(self) -> Schedule:
        """Unroll, then several draws; nothing is drawn before each environment has played a whole game."""
        longest = -(-self.world.time_limit // self.unroll)
        return Schedule(self.unroll, draws=self.draws, warmup=longest + self.warmup)

    @property
    def store(self) -> Replay:
        """A replay of positions."""
        return Replay(self.capacity, self.batch)

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam, and weights that decay."""
        return optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(self.weight_decay))

    def prepare(self, view: View, sample: Sample) -> tuple[GamePosition, Any]:
        """Rows as they are."""
        del view
        return sample.rows, ()

    @property
    def noisy_loss(self) -> bool:
        """Whether boards are turned at random."""
        return len(self.world.symmetries) > 1

    def gradient(self, view: View, batch: GamePosition, summary: Any, key: jax.Array) -> tuple[Any, Feedback]:
        """Gradient of the cross-entropy of moves and the squared error of outcomes."""
        del summary
        rows = batch
        if self.noisy_loss:
            rows = jax.vmap(lambda row, key: turned(row, self.world.symmetries, key))(batch, key)

        def loss(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            return alphazero_loss(*self.judged(params, rows.observation, rows.legal), rows, self.value_weight)

        gradients, metrics = jax.grad(loss, has_aux=True)(view.params)
        return gradients, Feedback(metrics)


def alphazero_loss(
    logits: jax.Array, value: jax.Array, rows: GamePosition, value_weight: float
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The cross-entropy of moves, plus the squared error of outcomes: (loss, metrics).

    Args:
        logits: of moves at each row, [rows, actions], by the present params.
        value: [rows] by the present params, for who moves.
        rows: positions, with what the search found and who won.
        value_weight: weight of the outcome.
    """
    policy = -jnp.where(rows.legal, rows.policy * jax.nn.log_softmax(logits), 0).sum(-1).mean()
    error = jnp.square(value - rows.outcome).mean()
    entropy = -jnp.where(rows.policy > 0, rows.policy * jnp.log(jnp.maximum(rows.policy, 1e-9)), 0).sum(-1).mean()
    return policy + value_weight * error, {
        "policy_loss": policy,
        "value_loss": error,
        "policy_error": policy - entropy,
        "search_entropy": entropy,
    }
