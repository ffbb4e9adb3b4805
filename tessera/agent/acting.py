"""Acting with given params, one call at a time: in NumPy where the network is small, else compiled."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tessera.algorithms.contract import Algorithm, View
from tessera.envs.base import Array, Environment, HostEnvironment, Spec, Timestep, map_arrays
from tessera.errors import TesseraError
from tessera.program.keys import derive, root_key
from tessera.program.numpy_lowering.equations import Unsupported
from tessera.program.numpy_lowering.lowering import disagreement, fetch, is_small, mode, warn
from tessera.program.numpy_lowering.staged import HELD, KEYED, STEPPED, Staged, Unroll
from tessera.program.training_program import acting, bounded

BLOCK = 256
"""Calls whose random numbers are drawn at once."""
MOST_FORMS = 16
"""Batch sizes that are kept ready."""

Leaves = list[Any]


class Actor:
    """Chooses actions within bounds for one observation or a batch, and remembers what a recurrent network must.

    Args:
        algorithm: bound to its environment.
        env: the environment, for the bounds of its actions.
        view: the params and what belongs to them.
    """

    def __init__(self, algorithm: Algorithm, env: Environment, view: View) -> None:
        self.algorithm, self.env = algorithm, env
        self.view = jax.tree.map(np.asarray, acting(view))
        self._form, self._parts = algorithm.world.observation, list(algorithm.world.parts.items())
        # wrappers of ours change what is observed, so that only an observation in the form of the spec is known
        self._translate: Any = None
        if isinstance(env, HostEnvironment) and not hasattr(env, "wrapper_words"):
            self._translate = env.translate
        self._forms: dict[tuple[int, bool], BatchForm] = {}
        self._begun: dict[int, Any] = {}
        """Batch size -> the memory of a batch in which all episodes begin."""
        self._memory: Leaves | None = None
        self._begins: np.ndarray | None = None
        self._seed = self._calls = self._episodes = 0

    def reset(self, begins: Any = None, seed: int | None = None) -> None:
        """Begin a new episode; `begins` [n] says in which entries of the batch. `seed` restarts random numbers."""
        if seed is not None:
            self._seed, self._calls, self._episodes = seed % 2**32, 0, 0
        if begins is None:
            self._memory = self._begins = None
            if type(self.algorithm).ready is not Algorithm.ready:  # it explores in another way in each episode
                self._begun.clear()
                self._episodes += 1
        elif self._memory is not None:
            mask, entries = np.asarray(begins), len(self._memory[0])
            if mask.shape != (entries,) or mask.dtype != bool:
                raise TesseraError(
                    f"reset: {mask.dtype}{list(mask.shape)} does not say which of {entries} entries begin anew: pass "
                    f"bool[{entries}], or nothing to begin all of them"
                )
            self._begins = mask.copy() if self._begins is None else self._begins | mask

    def __call__(self, observation: Any, greedy: bool = True, legal: Any = None) -> np.ndarray:
        """The action for one observation, or the actions for a batch; of those that are `legal`, if given."""
        batch, alone = self._as_batch(observation)
        entries = len(batch[0])
        if legal is not None or self.algorithm.world.restricted:
            batch.append(self._as_mask(legal, entries, alone))
        form = self._forms.get((entries, greedy)) or self._add_form(entries, greedy)
        memory = self._remembered(entries) if form.remembers else jax.tree.leaves(self.initial_memory(entries))
        begins = form.nothing if self._begins is None else self._begins
        action, after = form(self._seed, self._calls, (*memory, *batch, begins))
        if form.remembers:
            self._memory, self._begins = after, None
        self._calls += 1
        return action[0] if alone else action

    def initial_memory(self, entries: int) -> Any:
        """The memory of a batch in which all episodes begin."""
        if entries not in self._begun:
            algorithm = self.algorithm
            ids = jnp.arange(entries, dtype=jnp.int32) % algorithm.envs
            key = derive(root_key(self._seed), "ready", self._episodes)
            begin = jax.vmap(
                lambda env_id: algorithm.tuned_by(self.view.clock).ready(self.view, algorithm.memory(env_id), key)
            )
            self._begun[entries] = fetch(jax.jit(begin)(ids))
        return self._begun[entries]

    def _as_batch(self, observation: Any) -> tuple[Leaves, bool]:
        """The arrays of observations with a leading axis, and whether there was none."""
        if self._translate is not None and (translated := self._translate(observation)) is not None:
            observation = translated
        if isinstance(self._form, Array):
            array, alone = _with_batch_axis("observation", observation, self._form)
            return [array], alone
        try:
            leaves: list[Any] = []
            map_arrays(lambda _, given: leaves.append(given), self._form, observation)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            names = ", ".join(path for path, _ in self._parts)
            raise TesseraError(
                f"act: this agent reads observations with the parts {names}, and something is missing or has another "
                "form: pass them as the environment returns them"
            ) from error
        both = [_with_batch_axis(path, given, part) for (path, part), given in zip(self._parts, leaves, strict=True)]
        if len({(alone, len(array)) for array, alone in both}) > 1:
            raise TesseraError("act: the parts of the observation differ in their leading axis: pass one, or a batch")
        return [array for array, _ in both], both[0][1]

    def _as_mask(self, legal: Any, entries: int, alone: bool) -> np.ndarray:
        world = self.algorithm.world
        if legal is None or not world.restricted:
            raise TesseraError(
                "act: this agent was trained where some actions are not allowed: pass legal=mask, such as "
                "info['action_mask']"
                if legal is None
                else "act: in this agent's environment all actions are always allowed: leave legal= out"
            )
        given = np.asarray(legal).astype(bool)
        wanted = world.mask_shape if alone else (entries, *world.mask_shape)
        if given.shape != wanted:
            raise TesseraError(f"act: legal has shape {list(given.shape)}, and must have {list(wanted)}")
        if not given.any(-1).all():
            raise TesseraError("act: legal allows no action at all: ask for an action only where one is allowed")
        return given[None] if alone else given

    def _remembered(self, entries: int) -> Sequence[Any]:
        if self._memory is None:
            return jax.tree.leaves(self.initial_memory(entries))
        if len(self._memory[0]) != entries:
            raise TesseraError(
                f"act: the agent remembers {len(self._memory[0])} episodes, and this batch has {entries}: call reset() "
                "to begin new ones"
            )
        return self._memory

    def _add_form(self, entries: int, greedy: bool) -> BatchForm:
        while len(self._forms) >= MOST_FORMS:
            oldest = next(iter(self._forms))
            del self._forms[oldest]
            self._begun.pop(oldest[0], None)
        one = act_function(self.algorithm, self.env, greedy)
        example = example_of(self.algorithm.world, entries)
        self._forms[entries, greedy] = form = BatchForm(one, self.view, self.initial_memory(entries), example)
        return form


def act_function(algorithm: Algorithm, env: Environment, greedy: bool) -> Callable[..., tuple[Any, Any]]:
    """Make (view, memory, (observation, legal), begins, key) -> (action within bounds, memory), for one environment."""
    bound, agents = bounded(env), algorithm.world.agents

    def act(view: View, memory: Any, seen: tuple[Any, Any], begins: Any, key: Any) -> tuple[Any, Any]:
        reward = jnp.zeros((agents,) if agents else ())
        timestep = Timestep(seen[0], reward, begins, jnp.zeros_like(begins), None, legal=seen[1])
        actor = algorithm.tuned_by(view.clock)
        if greedy:
            action, memory = actor.greedy(view, memory, timestep, key)
        else:
            action, memory, _ = actor.act(view, memory, timestep, key)
        return bound(action, jnp), memory

    return act


def example_of(world: Spec, entries: int) -> tuple[Any, Any]:
    """A batch of observations and of masks, which are None where all actions are always allowed."""
    legal = np.ones((entries, *world.mask_shape), bool) if world.restricted else None
    return world.zeros(np, entries), legal


def _with_batch_axis(name: str, observation: Any, part: Array) -> tuple[np.ndarray, bool]:
    """An array of a batch of observations, and whether it was one observation without the axis."""
    shape, dtype = part.shape, np.dtype(part.dtype)
    try:
        given = np.asarray(observation)
    except ValueError as error:
        raise TesseraError(f"act: the {name or 'observation'} is no array ({error}): pass one of numbers") from error
    if given.dtype != dtype:
        if given.dtype.kind not in "biuf" or (given.dtype.kind == "f" and dtype.kind != "f"):
            raise TesseraError(
                f"act: this agent reads observations of {dtype}, not {given.dtype}: pass them as the environment "
                "returns them"
            )
        given = given.astype(dtype)
    if given.shape == shape:
        return given[None], True
    if given.shape[1:] != shape or not given.size:
        text = ", ".join(map(str, shape))
        raise TesseraError(
            f"act: this agent reads one {name} of shape [{text}] or a batch [n, {text}], not {list(given.shape)}"
        )
    return given, False


class BatchForm:
    """Acting for one size of batches, greedy or not: compiled, and in NumPy if that is faster."""

    def __init__(self, one: Callable[..., Any], view: View, memory: Any, example: tuple[Any, Any]) -> None:
        seen: Leaves = jax.tree.leaves(example)
        entries = len(seen[0])
        self.nothing = np.zeros(entries, bool)
        self._view, leaves = jax.tree.leaves(view), jax.tree.leaves(memory)
        view_tree: Any = jax.tree.structure(view)
        memory_tree: Any = jax.tree.structure(memory)
        seen_tree: Any = jax.tree.structure(example)

        def act(view: Leaves, key: Any, t: Any, changing: Sequence[Any]) -> tuple[Any, Leaves]:
            *both, begins = changing
            memory, observations = both[: len(leaves)], seen_tree.unflatten(both[len(leaves) :])
            keys = jax.random.split(jax.random.fold_in(key, t), entries)
            each = jax.vmap(one, in_axes=(None, 0, 0, 0, 0))
            action, after = each(view_tree.unflatten(view), memory_tree.unflatten(memory), observations, begins, keys)
            return action, jax.tree.leaves(after)

        self._compiled = jax.jit(act)
        changing = (*leaves, *seen, self.nothing)
        traced: Any = self._compiled.trace(self._view, _block_key(0, 0), np.int32(0), changing)
        jaxpr, first = traced.jaxpr.jaxpr, len(self._view) + 2
        kept = zip(jaxpr.outvars[1:], jaxpr.invars[first:], strict=False)
        self.remembers = any(after is not before for after, before in kept)
        """Whether a call changes the memory."""
        self._staged = _in_numpy(traced.jaxpr, len(self._view), len(changing), entries)
        self._unroll: Unroll | None = None
        self._drawn_for: tuple[int, int] | None = None
        if self._staged is not None:
            read = {*self._staged.arrays, *self._staged.passed}
            self._fills = [(first + k, k) for k in range(len(changing)) if first + k in read]
        self._checked = False

    def __call__(self, seed: int, calls: int, changing: Sequence[Any]) -> tuple[np.ndarray, Leaves]:
        """Act in call number `calls`; `changing` are the leaves of the memory, what is seen and who begins."""
        block, t = divmod(calls, BLOCK)
        if self._staged is None:
            return self._compute(_block_key(seed, block), t, changing)
        if self._unroll is None or (self._staged.draws and self._drawn_for != (seed, block)):
            self._unroll = self._staged.unroll([*self._view, _block_key(seed, block), np.int32(0), *changing])
            self._drawn_for = seed, block
        values = self._unroll.values.copy()
        for number, k in self._fills:
            values[number] = changing[k]
        action, *memory = self._staged.step(self._unroll, t, values)
        if not self._checked:
            return self._check((action, memory), _block_key(seed, block), t, changing)
        return action, memory

    def _check(self, ours: Any, key: jax.Array, t: int, changing: Sequence[Any]) -> tuple[np.ndarray, Leaves]:
        """Compare the first results of NumPy with those of JAX, which acts from then on if they disagree."""
        self._checked = True
        with on_cpu():
            theirs = self._compute(key, t, changing)
        problem = disagreement(ours, theirs)
        if problem is None:
            return ours
        self._staged = None
        warn(f"acting with NumPy disagrees with JAX: {problem}. JAX acts from now on")
        return theirs

    def _compute(self, key: jax.Array, t: int, changing: Sequence[Any]) -> tuple[np.ndarray, Leaves]:
        action, memory = self._compiled(self._view, key, np.int32(t), changing)
        return np.asarray(action), memory


@functools.lru_cache(maxsize=4)
def _block_key(seed: int, block: int) -> jax.Array:
    """The key of the random numbers of one block of calls."""
    return derive(root_key(seed), "act", block)


def _in_numpy(closed: Any, held: int, changing: int, entries: int) -> Staged | None:
    """The NumPy form of a function of (held leaves, key, t, changing leaves), if there is one and it is faster."""
    if mode() == "jit":
        return None
    try:
        staged = Staged(closed, [HELD] * held + [KEYED, KEYED] + [STEPPED] * changing, held + 1, BLOCK)
    except Unsupported:
        return None
    work = staged.multiplications / entries
    small = is_small(len(staged.steps), work, entries, BLOCK, groups=1)
    return staged if small or mode() == "numpy" else None


def on_cpu() -> contextlib.AbstractContextManager[Any]:
    """Compute on the CPU if JAX may: products are exact there."""
    with contextlib.suppress(RuntimeError):
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    return contextlib.nullcontext()
