"""AlphaZero written by hand as one JAX program over mctx and pgx: a yardstick for the speed of Tessera's own version.

One update is an unroll of searched moves in every game, written to a ring, and a few gradients from positions of games
that are over. All games take a step at the same time, so a step is one row of the ring; outcomes are filled in when
games end. mctx is called once for all games.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import mctx
import optax
import pgx
from jax import lax


@dataclass(frozen=True)
class Settings:
    """What both programs have in common."""

    game: str = "connect_four"
    games: int = 1024
    unroll: int = 16
    simulations: int = 32
    considered: int = 16
    exploring_moves: int = 8
    draws: int = 8
    batch: int = 2048
    capacity: int = 400_000
    learning_rate: float = 2e-3
    weight_decay: float = 1e-4
    max_gradient_norm: float = 10.0
    blocks: int = 6
    channels: int = 128
    head_planes: int = 2
    precision: str = "bf16"


class Tower(nn.Module):
    """A residual tower with LayerNorm over [B, H, W, C], and two heads."""

    actions: int
    blocks: int
    channels: int
    head_planes: int
    dtype: Any

    @nn.compact
    def __call__(self, board: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Logits [B, actions] and values [B]."""
        x = nn.relu(self.normalised(self.convolved(board.astype(self.dtype), self.channels, 3)))
        for _ in range(self.blocks):
            y = nn.relu(self.normalised(self.convolved(x, self.channels, 3)))
            x = nn.relu(x + self.normalised(self.convolved(y, self.channels, 3)))
        policy, value = (
            nn.relu(self.normalised(self.convolved(x, self.head_planes, 1).reshape(board.shape[0], -1)))
            for _ in range(2)
        )
        logits = nn.Dense(self.actions, dtype=self.dtype)(policy)
        hidden = nn.relu(nn.Dense(self.channels, dtype=self.dtype)(value))
        estimate = jnp.tanh(nn.Dense(1, dtype=self.dtype)(hidden))[..., 0]
        return logits.astype(jnp.float32), estimate.astype(jnp.float32)

    def convolved(self, x: jax.Array, channels: int, kernel: int) -> jax.Array:
        """A new convolution, applied."""
        return nn.Conv(channels, (kernel, kernel), dtype=self.dtype)(x)

    def normalised(self, x: jax.Array) -> jax.Array:
        """A new normalisation, applied."""
        return nn.LayerNorm(dtype=self.dtype)(x)


class Ring(NamedTuple):
    """Positions by time and game, [slots, games, ...]; step t lies at t % slots."""

    board: jax.Array
    policy: jax.Array
    legal: jax.Array
    player: jax.Array
    reward: jax.Array
    """Of the player who moved."""
    over: jax.Array
    outcome: jax.Array
    """For the player who moved; nothing before the game is over."""


class Carry(NamedTuple):
    """All that lives from one update to the next."""

    params: Any
    optimiser: Any
    state: Any
    moves: jax.Array
    """[games] made in the game under way."""
    ring: Ring
    time: jax.Array
    """Steps made."""
    key: jax.Array


class Programs(NamedTuple):
    """What can be timed."""

    init: Callable[[int], Carry]
    self_play: Callable[[Carry, int], Carry]
    """Play so many unrolls."""
    updates: Callable[[Carry, int], Carry]
    """Play and learn, so many times."""


def make(s: Settings, longest: int, symmetries: Any) -> Programs:
    """Build the programs; `longest` is the longest game, `symmetries` are (cells, actions) of each turned board."""
    env = pgx.make(s.game)
    first = jax.eval_shape(env.init, jax.random.key(0))
    actions, shape = first.legal_action_mask.shape[0], first.observation.shape
    dtype = {"f32": jnp.float32, "bf16": jnp.bfloat16}[s.precision]
    network = Tower(actions, s.blocks, s.channels, s.head_planes, dtype)
    # whole unrolls, and room for the games under way
    slots = -(-(-(-s.capacity // s.games) + longest) // s.unroll) * s.unroll
    optimiser = optax.chain(
        optax.clip_by_global_norm(s.max_gradient_norm),
        optax.scale_by_adam(),
        optax.add_decayed_weights(s.weight_decay),
        optax.scale_by_schedule(optax.linear_schedule(-s.learning_rate, 0.0, 10_000_000)),
    )
    step, begin = jax.vmap(env.step), jax.vmap(env.init)

    def judged(params: Any, board: jax.Array, legal: jax.Array) -> tuple[jax.Array, jax.Array]:
        made: Any = network.apply(params, board)
        logits, value = made
        return jnp.where(legal, logits - logits.max(-1, keepdims=True), jnp.finfo(logits.dtype).min), value

    def follow(params: Any, key: jax.Array, action: jax.Array, state: Any) -> tuple[Any, Any]:
        del key
        player = state.current_player
        state = step(state, action)
        logits, value = judged(params, state.observation, state.legal_action_mask)
        reward = jnp.take_along_axis(state.rewards, player[:, None], 1)[:, 0]
        discount = jnp.where(state.terminated, 0.0, jnp.where(state.current_player == player, 1.0, -1.0))
        value = jnp.where(state.terminated, 0.0, value)
        return mctx.RecurrentFnOutput(reward=reward, discount=discount, prior_logits=logits, value=value), state

    def move(carry: Carry, key: jax.Array) -> tuple[Carry, Ring]:
        search_key, draw_key, reset_key = jax.random.split(key, 3)
        state, legal = carry.state, carry.state.legal_action_mask
        logits, value = judged(carry.params, state.observation, legal)
        found = mctx.gumbel_muzero_policy(
            carry.params, search_key, mctx.RootFnOutput(prior_logits=logits, value=value, embedding=state), follow,
            s.simulations, ~legal, max_num_considered_actions=s.considered,
            qtransform=mctx.qtransform_completed_by_mix_value,
        )  # fmt: skip
        drawn = jax.random.categorical(draw_key, jnp.log(found.action_weights))
        action = jnp.where(carry.moves < s.exploring_moves, drawn, found.action).astype(jnp.int32)
        after = step(state, action)
        reward = jnp.take_along_axis(after.rewards, state.current_player[:, None], 1)[:, 0]
        row = Ring(
            state.observation, found.action_weights, legal, state.current_player, reward, after.terminated,
            jnp.zeros_like(reward),
        )  # fmt: skip
        fresh = begin(jax.random.split(reset_key, s.games))
        over = after.terminated
        state = jax.tree.map(lambda a, b: jnp.where(over.reshape(-1, *[1] * (a.ndim - 1)), a, b), fresh, after)
        return carry._replace(state=state, moves=jnp.where(over, 0, carry.moves + 1)), row

    def outcomes(ring: Ring, time: jax.Array) -> Ring:
        """Fill in the outcomes of games that are over, in the newest steps; the longest game and an unroll at most."""
        window = longest + s.unroll
        where = (time - window + jnp.arange(window)) % slots
        player, reward, over, known = (x[where] for x in (ring.player, ring.reward, ring.over, ring.outcome))

        def back(later: Any, row: Any) -> tuple[Any, jax.Array]:
            player, reward, over, known = row
            winner, result, ended = later
            winner, result, ended = jnp.where(over, player, winner), jnp.where(over, reward, result), ended | over
            return (winner, result, ended), jnp.where(ended, jnp.where(player == winner, result, -result), known)

        nobody = (player[0], jnp.zeros_like(reward[0]), jnp.zeros_like(over[0]))
        _, outcome = lax.scan(back, nobody, (player, reward, over, known), reverse=True)
        return ring._replace(outcome=ring.outcome.at[where].set(outcome))

    def collect(carry: Carry) -> Carry:
        key, own = jax.random.split(carry.key)
        carry, rows = lax.scan(move, carry._replace(key=key), jax.random.split(own, s.unroll))
        at = carry.time % slots
        ring = jax.tree.map(lambda x, new: lax.dynamic_update_slice_in_dim(x, new, at, 0), carry.ring, rows)
        time = carry.time + s.unroll
        return carry._replace(ring=outcomes(ring, time), time=time)

    def turned(board: jax.Array, policy: jax.Array, legal: jax.Array, key: jax.Array) -> tuple[jax.Array, ...]:
        cells, moves = symmetries
        k = jax.random.randint(key, (), 0, cells.shape[0])
        return board.reshape(-1, board.shape[-1])[cells[k]].reshape(board.shape), policy[moves[k]], legal[moves[k]]

    def loss(params: Any, board: jax.Array, policy: jax.Array, legal: jax.Array, outcome: jax.Array) -> jax.Array:
        logits, value = judged(params, board, legal)
        moves = -jnp.where(legal, policy * jax.nn.log_softmax(logits), 0).sum(-1).mean()
        return moves + jnp.square(value - outcome).mean()

    def gradient_step(carry: Carry, key: jax.Array) -> tuple[Carry, None]:
        game_key, time_key, turn_key = jax.random.split(key, 3)
        game = jax.random.randint(game_key, (s.batch,), 0, s.games)
        newest, oldest = carry.time - carry.moves[game], jnp.maximum(carry.time - slots, 0)
        slot = jax.random.randint(time_key, (s.batch,), oldest, jnp.maximum(newest, oldest + 1)) % slots
        board, policy, legal, outcome = (x[slot, game] for x in (*carry.ring[:3], carry.ring.outcome))
        if symmetries is not None:
            board, policy, legal = jax.vmap(turned)(board, policy, legal, jax.random.split(turn_key, s.batch))
        gradient = jax.grad(loss)(carry.params, board, policy, legal, outcome)
        change, state = optimiser.update(gradient, carry.optimiser, carry.params)
        return carry._replace(params=optax.apply_updates(carry.params, change), optimiser=state), None

    def update(_: Any, carry: Carry) -> Carry:
        carry = collect(carry)
        key, own = jax.random.split(carry.key)
        return lax.scan(gradient_step, carry._replace(key=key), jax.random.split(own, s.draws))[0]

    @jax.jit
    def init(seed: Any) -> Carry:
        key, network_key, game_key = jax.random.split(jax.random.key(seed), 3)
        state = begin(jax.random.split(game_key, s.games))
        params = network.init(network_key, state.observation)
        lead, number = (slots, s.games), jnp.zeros((slots, s.games))
        ring = Ring(
            jnp.zeros((*lead, *shape), first.observation.dtype), jnp.zeros((*lead, actions)),
            jnp.zeros((*lead, actions), bool), jnp.zeros(lead, jnp.int32), number, jnp.zeros(lead, bool), number,
        )  # fmt: skip
        return Carry(params, optimiser.init(params), state, jnp.zeros(s.games, jnp.int32), ring, jnp.int32(0), key)

    return Programs(
        init,
        jax.jit(lambda carry, n: lax.fori_loop(0, n, lambda _, c: collect(c), carry), donate_argnums=0),
        jax.jit(lambda carry, n: lax.fori_loop(0, n, update, carry), donate_argnums=0),
    )
