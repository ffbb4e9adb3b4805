"""AlphaZero (Silver et al., 2018): a network that learns from its own search, by playing against itself."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from tessera.algorithms.contract import Algorithm, Feedback, Schedule, Transition, View
from tessera.algorithms.parts.finished_games import GamePosition, Moves, Waiting, hand_on, nothing_waits
from tessera.envs.base import Discrete, Spec, Timestep
from tessera.errors import TesseraError, unknown_name
from tessera.maths.search import following, search_root
from tessera.networks.game import GameNetwork
from tessera.networks.mlp import output_dtype
from tessera.stores.base import Experience, Sample
from tessera.stores.replay import Replay
from tessera.support.extras import install_hint
from tessera.support.fields import option, resolved

SEARCHES = ("gumbel", "puct")
SMALL_BOARD = 16
"""Cells of a board for which a small network is enough."""


class GameMemory(NamedTuple):
    """What acting carries from move to move."""

    waiting: Waiting
    moves: jax.Array
    """Made in the game so far."""


@dataclass(frozen=True)
class AlphaZero(Algorithm):
    """Each move is searched in the game itself; the network learns the search's moves, and who won.

    One update, step by step:

    1. `act` searches: the network judges positions, and the game's own rules say what follows on a move. Both players
       are the same network, and a position is judged for who moves.
    2. `digest` keeps positions until their game is over, and then hands them on with the outcome: each once
       (parts/finished_games.py).
    3. `gradient` is of the cross-entropy of moves and the squared error of outcomes, on boards turned at random where
       the game is the same for them.
    """

    name: ClassVar[str] = "alphazero"
    summary: ClassVar[str] = (
        "games: a network and a tree search that teach each other, by playing themselves (AlphaZero)"
    )
    reads_state: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = True
    default_steps: ClassVar[int] = 150_000

    unroll: int = option(16, low=1)
    """Moves in each game between updates."""
    simulations: int = option(32, low=1)
    """Positions that a search looks at for one move."""
    search: str = "gumbel"
    """How it searches: gumbel (Danihelka et al., 2022), which needs few simulations, or puct (Silver et al., 2018)."""
    considered: int = option(16, low=1)
    """Moves that a search by gumbel begins with."""
    dirichlet: float = option(0.3, low=0)
    """Concentration of the noise that puct adds to moves at the root."""
    noise_share: float = option(0.25, low=0, high=1)
    """Share of that noise."""
    exploring_moves: int = option(8, low=0)
    """Moves at the beginning of a game that are drawn in proportion to what the search finds; later the best."""
    draws: int = option(8, low=1)
    """Batches drawn, and gradients applied, per update."""
    batch: int = option(256, low=1)
    """Positions per draw, over all games."""
    capacity: int = option(100_000, low=1)
    """Positions that the replay holds, over all games."""
    warmup: int = option(4, low=0)
    """Unrolls played before learning starts, beyond those of the longest game."""
    learning_rate: float = option(2e-3, low=0)
    """Step size at the beginning."""
    anneal: bool = True
    """Let the learning rate fall to zero, in a straight line, by the end of the run."""
    weight_decay: float = option(1e-4, low=0)
    """Share of each weight that a step of size 1 takes away."""
    value_weight: float = option(1.0, low=0)
    """Weight of the outcome in the loss."""
    max_gradient_norm: float = option(10.0, low=0)
    """Gradients are scaled down to this global norm; 0 leaves them alone."""
    channels: int | None = option(None, low=1)
    """Channels of the network's layers; default 32 for boards of at most 16 cells, else 64."""
    blocks: int | None = option(None, low=1)
    """Residual blocks of two layers each; default 2 for such boards, else 3."""
    head_planes: int = option(2, low=1)
    """Channels through which the network's two ends, for moves and for the value, read the board."""

    def bind(self, spec: Spec) -> Self:
        """A smaller network for small boards."""
        small = math.prod(spec.array.shape[:2]) <= SMALL_BOARD
        channels, blocks = (32, 2) if small else (64, 3)
        return dataclasses.replace(
            super().bind(spec),
            channels=channels if self.channels is None else self.channels,
            blocks=blocks if self.blocks is None else self.blocks,
        )

    def check(self) -> None:
        """Refuse what is no game of two, or one that may never end."""
        super().check()
        try:
            import mctx  # noqa: F401
        except ImportError as error:
            raise TesseraError(f"{self.name} needs mctx, which is missing: run {install_hint('games')}") from error
        if self.search not in SEARCHES:
            raise unknown_name("search", self.search, SEARCHES)
        if self.world.players != 2:
            raise TesseraError(f"{self.name} is for games of two players who take turns, such as pgx:connect_four")
        if not self.world.time_limit:
            raise TesseraError(f"{self.name} needs to know how long a game may be: say so in its spec (time_limit)")
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
    def model(self) -> GameNetwork:
        """The network."""
        assert isinstance(self.world.actions, Discrete)
        board = len(self.world.array.shape) == 3
        channels, blocks = resolved(self.channels), resolved(self.blocks)
        return GameNetwork(
            self.world.actions.n, channels, blocks, channels, self.head_planes, board, self.world.precision
        )

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam, and weights that decay."""
        return optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(self.weight_decay))

    def init(self, key: jax.Array) -> Any:
        """Params of the network."""
        return self.model.init(key, self.world.zeros(jnp))

    def memory(self, env_id: jax.Array) -> GameMemory:
        """Nothing waits."""
        del env_id
        return GameMemory(nothing_waits(self.world, output_dtype(self.world.precision)), jnp.int32(0))

    def unsent(self, memory: GameMemory) -> jax.Array:
        """Positions that wait."""
        return memory.waiting.size

    def act(self, view: View, memory: GameMemory, timestep: Timestep, key: jax.Array) -> tuple[Any, Any, Any]:
        """Search, and move: at the beginning of a game by chance, in proportion to what was found."""
        search_key, move_key = jax.random.split(key)
        best, policy = self.searched(view.params, timestep, search_key, explores=True)
        moves = jnp.where(timestep.first, 0, memory.moves)
        drawn = jax.random.categorical(move_key, jnp.log(policy))
        action = jnp.where(moves < self.exploring_moves, drawn, best).astype(jnp.int32)
        return action, memory._replace(moves=moves + 1), policy

    def greedy(self, view: View, memory: GameMemory, timestep: Timestep, key: jax.Array) -> tuple[Any, Any]:
        """Search without noise; where the state is not known, the network's own best move."""
        if timestep.state is None:
            logits, _ = self.judged(view.params, timestep.observation, timestep.legal)
            return jnp.argmax(logits).astype(jnp.int32), memory
        return self.searched(view.params, timestep, key, explores=False)[0], memory

    def judged(self, params: Any, observation: Any, legal: Any) -> tuple[jax.Array, jax.Array]:
        """Logits of moves, with those that the rules forbid far below all others, and the value for who moves."""
        made: Any = self.model.apply(params, observation)
        logits, value = made
        return jnp.where(legal, logits - logits.max(-1, keepdims=True), jnp.finfo(logits.dtype).min), value

    def searched(self, params: Any, timestep: Timestep, key: jax.Array, explores: bool) -> tuple[jax.Array, jax.Array]:
        """The best move, and how likely each move is after the search. It is a batch of one game, with its own key."""
        import mctx

        logits, value = self.judged(params, timestep.observation, timestep.legal)
        root = search_root(logits, value, timestep.state)
        follow = following(self.game, lambda params, at, key: self.judged(params, at.observation, at.legal))
        given = (params, key, root, follow, self.simulations, ~timestep.legal[None])
        if self.search == "gumbel":
            found = mctx.gumbel_muzero_policy(
                *given,
                qtransform=mctx.qtransform_completed_by_mix_value,
                max_num_considered_actions=self.considered,
                gumbel_scale=1.0 if explores else 0.0,
            )
        else:
            found = mctx.muzero_policy(
                *given,
                qtransform=partial(mctx.qtransform_by_min_max, min_value=-1.0, max_value=1.0),
                dirichlet_fraction=self.noise_share if explores else 0.0,
                dirichlet_alpha=self.dirichlet,
                temperature=1.0 if explores else 0.0,
            )
        policy = found.action_weights[0]
        best = found.action[0] if self.search == "gumbel" else jnp.argmax(policy)
        return best.astype(jnp.int32), policy

    def digest(self, view: View, memory: GameMemory, trajectory: Transition) -> tuple[Experience, Any]:
        """Hand on positions of games that are over, each with the outcome for who moved."""
        del view
        t = trajectory
        nothing = jnp.zeros(t.reward.shape, output_dtype(self.world.precision))
        made = Moves(
            GamePosition(t.observation, t.extras, t.legal, nothing), t.player, t.version, t.reward,
            t.terminated | t.truncated,
        )  # fmt: skip
        rows, valid, version, waiting = hand_on(memory.waiting, made)
        return Experience(rows, valid, version=version), memory._replace(waiting=waiting)

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
        rows = jax.vmap(self.turned)(batch, key) if self.noisy_loss else batch

        def loss(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            logits, value = self.judged(params, rows.observation, rows.legal)
            likely = jax.nn.log_softmax(logits)
            moves = -jnp.where(rows.legal, rows.policy * likely, 0).sum(-1).mean()
            outcomes = jnp.square(value - rows.outcome).mean()
            spread = -jnp.where(rows.policy > 0, rows.policy * jnp.log(jnp.maximum(rows.policy, 1e-9)), 0).sum(-1)
            metrics = {
                "policy_loss": moves,
                "value_loss": outcomes,
                "policy_error": moves - spread.mean(),
                "search_entropy": spread.mean(),
            }
            return moves + self.value_weight * outcomes, metrics

        gradients, metrics = jax.grad(loss, has_aux=True)(view.params)
        return gradients, Feedback(metrics)

    def turned(self, row: GamePosition, key: jax.Array) -> GamePosition:
        """One position on a board that is turned or mirrored at random."""
        cells, actions = (jnp.asarray(x) for x in zip(*self.world.symmetries, strict=True))
        k = jax.random.randint(key, (), 0, cells.shape[0])
        board = row.observation
        turned = board.reshape(-1, board.shape[-1])[cells[k]].reshape(board.shape)
        return row._replace(observation=turned, policy=row.policy[actions[k]], legal=row.legal[actions[k]])
