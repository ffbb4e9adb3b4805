"""A pseudo-random permutation computed element by element, without a sort."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp


def _grid(n: int) -> tuple[int, int]:
    """Find the squarest (a, b) with a <= b and a * b = n; if all are far from square, one with a * b just above n."""
    root = math.isqrt(n)
    for a in range(root, max(root // 2, 1) - 1, -1):
        if n % a == 0 and (a > 1 or n <= 2):
            return a, n // a
    a = root if root * root == n else root + 1
    return -(-n // a), a


def _rounds(a: int) -> int:
    """Rounds that decorrelate neighbours: two rounds leave a correlation of about 1 / a; the result leaves 2^-20."""
    return max(6, 2 * math.ceil(20 / math.log2(max(a, 2))))


def _mix(x: jax.Array) -> jax.Array:
    """Hash uint32 to uint32 so that every bit depends on every bit (lowbias32, Ellis 2018)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def permutation(key: jax.Array, n: int) -> jax.Array:
    """Permute range(n) at random: int32 [n]; `n` is static.

    A Feistel network: with i = left * b + right, add a keyed hash of one part to the other, modulo its size, and
    alternate. Each round can be undone, so the network is a bijection of range(a * b), whatever the hash. Where
    a * b > n, an element that lands at n or above goes through the network again until it lands below ("cycle
    walking"), which gives a bijection of range(n).
    """
    if n <= 1:
        return jnp.zeros((n,), jnp.int32)
    a, b = _grid(n)
    rounds = _rounds(a)
    words = jax.random.bits(key, (rounds,), jnp.uint32)

    def network(i: jax.Array) -> jax.Array:
        left, right = i // jnp.uint32(b), i % jnp.uint32(b)
        for k in range(0, rounds, 2):
            left = (left + _mix(right + words[k]) % jnp.uint32(a)) % jnp.uint32(a)
            right = (right + _mix(left + words[k + 1]) % jnp.uint32(b)) % jnp.uint32(b)
        return left * jnp.uint32(b) + right

    image = network(jnp.arange(n, dtype=jnp.uint32))
    if a * b > n:
        image = jax.lax.while_loop(lambda i: jnp.any(i >= n), lambda i: jnp.where(i >= n, network(i), i), image)
    return image.astype(jnp.int32)
