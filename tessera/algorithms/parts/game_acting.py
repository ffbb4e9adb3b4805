"""Acting of AlphaZero: a network that judges positions, a search that moves, positions that wait for the outcome."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp

from tessera.algorithms.contract import Algorithm, Transition, View
from tessera.algorithms.parts.finished_games import GamePosition, Moves, Waiting, hand_on, nothing_waits
from tessera.envs.base import Discrete, Spec, Timestep
from tessera.errors import TesseraError, unknown_name
from tessera.maths.search import following, gumbel_search, puct_search, search_root
from tessera.networks.game import GameNetwork
from tessera.networks.mlp import output_dtype
from tessera.stores.base import Experience
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
class GameActing(Algorithm):
    """Fields of the network and of the search, and acting with them."""

    reads_state: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = True

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

    @property
    def model(self) -> GameNetwork:
        """The network."""
        assert isinstance(self.world.actions, Discrete)
        board = len(self.world.array.shape) == 3
        channels, blocks = resolved(self.channels), resolved(self.blocks)
        return GameNetwork(
            self.world.actions.n, channels, blocks, channels, self.head_planes, board, self.world.precision
        )

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
        """The best move, and how likely each move is after the search."""
        logits, value = self.judged(params, timestep.observation, timestep.legal)
        root = search_root(logits, value, timestep.state)
        follow = following(self.game, lambda params, at, key: self.judged(params, at.observation, at.legal))
        given = (params, key, root, follow, self.simulations, ~timestep.legal[None])
        if self.search == "gumbel":
            return gumbel_search(*given, considered=self.considered, explores=explores)
        noise = self.noise_share if explores else 0.0
        return puct_search(*given, dirichlet=self.dirichlet, noise_share=noise, explores=explores)

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
