"""Acting with NumPy gives what acting with JAX gives, is chosen by counting, and is given up where it disagrees."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tessera import A2C, DQN, PPO, policies
from tessera.api import train
from tessera.engines.serial import SerialEngine
from tessera.errors import TesseraError
from tessera.planning.prepare import prepare_plan
from tessera.program.numpy_lowering import lowering, numpy_forms
from tessera.program.numpy_lowering.lowering import Loop, Lowered, is_small

FUSED = policies.get("fused", devices=1)


class Walk(gymnasium.Env):
    """Observes noise; ends every seventh step; takes any actions."""

    observation_space = gymnasium.spaces.Box(-5, 5, (3,), np.float32)

    def __init__(self, actions: gymnasium.spaces.Space) -> None:
        self.action_space = actions

    def _observation(self) -> np.ndarray:
        return self.np_random.normal(0, 2, 3).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.now = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action)
        self.now += 1
        return self._observation(), float(self.np_random.normal()), self.now == 7, False, {}


def walk(actions: gymnasium.spaces.Space) -> Callable[[], Walk]:
    return lambda: Walk(actions)


SPACES = gymnasium.spaces
SMALL = {"unroll": 16, "widths": (8, 8)}
CASES = {
    "discrete": (PPO(**SMALL, minibatches=1, epochs=1), "gymnasium:CartPole-v1"),
    "normalised": (A2C(**SMALL, normalise_observations=True, normalise_rewards=True), "gymnasium:CartPole-v1"),
    "box": (PPO(**SMALL, minibatches=1, epochs=1, activation="silu"), walk(SPACES.Box(-10, 10, (2, 2), np.float32))),
    "several choices": (A2C(**SMALL, activation="gelu"), walk(SPACES.MultiDiscrete([2, 3, 4]))),
    "many choices": (A2C(**SMALL, activation="elu"), walk(SPACES.Discrete(40))),
    "q-values": (DQN(**SMALL, warmup=4, draws=1, batch=32, capacity=1024), "gymnasium:CartPole-v1"),
    "dueling": (
        DQN(**SMALL, warmup=4, draws=1, batch=32, capacity=1024, dueling=True, n_step=3, epsilon_end=0.0),
        "gymnasium:CartPole-v1",
    ),
    "turns and masks": (PPO(**SMALL, minibatches=1, epochs=1), "pettingzoo:classic.leduc_holdem_v4"),
    "q-values of legal moves": (
        DQN(**SMALL, warmup=4, draws=1, batch=32, capacity=1024),
        "pettingzoo:classic.leduc_holdem_v4",
    ),
}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Lowered]:
    """All functions that are lowered during a test."""
    found: list[Lowered] = []

    class Noted(Lowered):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            found.append(self)

    monkeypatch.setattr(lowering, "Lowered", Noted)
    return found


@pytest.fixture
def always_checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """NumPy acts, every call is checked, and a disagreement is an error."""
    monkeypatch.setenv("TESSERA_LOWERING", "numpy")
    monkeypatch.setattr(lowering, "CHECK_EVERY", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


def play(case: str, updates: int, **options: Any) -> None:
    algorithm, env = CASES[case]
    bound, opened, plan = prepare_plan(algorithm, env, FUSED, envs=8, groups=4, **options)
    engine = SerialEngine(plan, bound, opened, seed=2, horizon=20)
    try:
        engine.start()
        engine.advance(updates)
    finally:
        engine.close()


def calls(made: list[Lowered]) -> int:
    """How often NumPy acted."""
    assert {f.acting for f in made} <= {"numpy", "undecided"}
    return sum(form.calls for f in made for form in f._forms.values())


@pytest.mark.usefixtures("always_checked")
@pytest.mark.parametrize("case", CASES)
def test_both_forms_agree_at_every_step_of_a_run(case, made):
    play(case, updates=13)
    assert calls(made) >= 13 * SMALL["unroll"]


@pytest.mark.usefixtures("always_checked", "x64")
@pytest.mark.parametrize("case", ["box", "dueling"])
def test_in_double_precision_they_agree_to_the_last_digits(case, made, monkeypatch):
    monkeypatch.setattr(lowering, "TOLERANCE", 1e-12)
    play(case, updates=2, precision="f64")
    assert calls(made) >= 2 * SMALL["unroll"]


def test_a_run_gives_the_same_params_in_either_form(monkeypatch):
    results = {}
    for form in ("jit", "numpy"):
        monkeypatch.setenv("TESSERA_LOWERING", form)
        algorithm = PPO(unroll=16, epochs=2, minibatches=2, widths=(16, 16), learning_rate=0.01)
        results[form] = train(algorithm, "CartPole-v1", FUSED, steps=640, envs=8, seed=5, eval_episodes=1, quiet=True)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), *(r.params for r in results.values()))
    assert results["jit"].summary["eval_return_mean"] == results["numpy"].summary["eval_return_mean"]


def lower(function: Callable[..., tuple[Any, Any]], count: int = 4) -> Lowered:
    """Lower (memory, view, observed, keys [T, G, n], t) -> (memory, actions)."""

    def run(gone: dict[str, Any], seen: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        names = ("acting", "observed", "act_keys", "t")
        memory, actions = function(gone["memory"], *(seen[s] for s in names))
        return {"memory": memory}, {"actions": actions}

    changes = frozenset({"memory", "observed", "actions"})
    return Lowered(jax.jit(run, donate_argnums=0), ("actions",), Loop("t", count, changes))


def inputs(seed: int = 0, rows: int = 3) -> tuple[dict[str, Any], dict[str, Any]]:
    keys = jax.random.split(jax.random.key(seed), (4, 2, rows))
    normal = np.random.default_rng(seed).normal
    view = jnp.asarray(normal(size=(5, 3)), jnp.float32)
    observed = normal(size=(2, rows, 5)).astype(np.float32)
    return {"memory": jnp.zeros((2, rows))}, {"acting": view, "observed": observed, "act_keys": keys, "t": np.int32(0)}


def draw(memory: Any, view: Any, observed: Any, keys: Any, t: Any) -> tuple[Any, Any]:
    """Remember sums of what was seen, and draw around a product."""
    noise = jax.vmap(lambda k: jax.random.normal(k, (3,)))(keys[t].reshape(-1))
    mean = jnp.tanh(observed.reshape(-1, 5) @ view)
    return memory + observed.sum(-1), (mean + noise).reshape(*memory.shape, 3)


def expected(function: Callable[..., Any], gone: Any, seen: Any) -> Any:
    return jax.jit(function)(gone["memory"], *(seen[s] for s in ("acting", "observed", "act_keys", "t")))


def close(x: Any, y: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), x, y)


@pytest.fixture
def with_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_LOWERING", "numpy")


@pytest.mark.usefixtures("with_numpy")
def test_replicas_that_take_turns_do_not_get_each_others_params_or_draws():
    lowered = lower(draw)
    replicas = [inputs(0), inputs(1), inputs(2, rows=5)]
    for t in range(4):
        for gone, seen in replicas:
            seen["t"] = np.int32(t)
            memory, actions = expected(draw, gone, seen)
            got, fresh = lowered(dict(gone), seen)
            close((got["memory"], fresh["actions"]), (memory, actions))
            assert isinstance(fresh["actions"], np.ndarray)
            assert fresh["actions"].dtype == np.float32
            gone["memory"] = got["memory"]
    assert lowered.acting == "numpy"


@pytest.mark.usefixtures("with_numpy")
def test_a_new_view_is_used_at_once_and_old_ones_are_let_go():
    lowered = lower(draw)
    gone, seen = inputs()
    for scale in range(2 * lowering.UNROLLS):
        seen["acting"] = seen["acting"] * 0 + scale
        _, actions = expected(draw, gone, seen)
        close(lowered({"memory": np.zeros((2, 3), np.float32)}, seen)[1]["actions"], actions)
    assert len(lowered._unrolls) == lowering.UNROLLS


@pytest.mark.usefixtures("with_numpy")
def test_the_function_is_traced_once_for_both_forms():
    traced = []

    def noted(*values: Any) -> tuple[Any, Any]:
        traced.append(1)
        return draw(*values)

    lowered = lower(noted)
    gone, seen = inputs()
    for _ in range(5):
        gone = lowered(gone, seen)[0]
    assert len(traced) <= 2  # memory comes from JAX at first and then from NumPy


def looped(memory: Any, view: Any, observed: Any, keys: Any, t: Any) -> tuple[Any, Any]:
    return memory, jax.lax.fori_loop(0, t + 1, lambda _, x: x + 1, observed)


def convolved(memory: Any, view: Any, observed: Any, keys: Any, t: Any) -> tuple[Any, Any]:
    return memory, jax.lax.conv(observed[:, None], jnp.ones((1, 1, 2, 2)), (1, 1), "SAME")


def coarse(memory: Any, view: Any, observed: Any, keys: Any, t: Any) -> tuple[Any, Any]:
    return memory, (observed.astype(jnp.bfloat16) * 2).astype(jnp.float32)


def printed(memory: Any, view: Any, observed: Any, keys: Any, t: Any) -> tuple[Any, Any]:
    jax.debug.callback(lambda x: None, observed)
    return memory, observed


@pytest.mark.usefixtures("with_numpy")
@pytest.mark.parametrize("function", [looped, convolved, coarse, printed])
def test_what_numpy_has_no_form_for_stays_compiled(function):
    lowered = lower(function)
    gone, seen = inputs()
    _, actions = expected(function, gone, seen)
    close(lowered(gone, seen)[1]["actions"], actions)
    assert lowered.acting == "jit"


@pytest.mark.usefixtures("with_numpy")
def test_a_disagreement_is_told_once_and_the_compiled_form_acts_from_then_on(monkeypatch):
    monkeypatch.setitem(numpy_forms.UFUNCS, "tanh", np.sin)
    lowered = lower(draw)
    gone, seen = inputs()
    _, actions = expected(draw, gone, seen)
    with pytest.warns(RuntimeWarning, match="disagrees with JAX"):
        gone, first = lowered(gone, seen)
    with warnings.catch_warnings(action="error"):
        _, second = lowered(gone, seen)
    close([first["actions"], second["actions"]], [actions, actions])
    assert lowered.acting == "jit"


@pytest.mark.usefixtures("with_numpy")
def test_a_form_that_breaks_is_told_and_the_compiled_form_acts(monkeypatch):
    monkeypatch.setitem(numpy_forms.UFUNCS, "tanh", lambda x, *out: x.no_such_attribute)
    lowered = lower(draw)
    gone, seen = inputs()
    _, actions = expected(draw, gone, seen)
    with pytest.warns(RuntimeWarning, match="no_such_attribute"):
        _, fresh = lowered(gone, seen)
    close(fresh["actions"], actions)
    assert lowered.acting == "jit"


@pytest.mark.usefixtures("with_numpy")
def test_a_disagreement_that_comes_later_is_noticed_too(monkeypatch):
    monkeypatch.setattr(lowering, "CHECK_EVERY", 10)
    lowered = lower(draw)
    gone, seen = inputs()
    for _ in range(9):
        gone = lowered(gone, seen)[0]
    (form,) = (f for f in lowered._forms.values() if f.calls == 9)
    steps = form.staged.steps
    steps.append(lambda values: [np.multiply(x, 2, x) for x in values if np.shape(x) == (2, 3, 3)])
    with pytest.warns(RuntimeWarning, match="instead of"):
        gone, fresh = lowered(gone, seen)
    close(fresh["actions"], expected(draw, gone, seen)[1])
    assert lowered.acting == "jit"


def test_the_rule_counts_rows_of_a_group_and_not_those_of_a_replica(monkeypatch):
    monkeypatch.setenv("TESSERA_LOWERING", "auto")
    assert is_small(calls=34, multiplications=4480, rows=2, steps=32)
    assert not is_small(calls=34, multiplications=4480, rows=128, steps=32)
    assert not is_small(calls=34, multiplications=265_000, rows=2, steps=32)
    assert not is_small(calls=140, multiplications=4480, rows=2, steps=32)
    small, large = lower(draw), lower(lambda m, v, *rest: draw(m, v @ jnp.ones((3, 3)), *rest))
    monkeypatch.setattr(lowering, "LIMIT", 50.0)
    small(*inputs(rows=3))
    large(*inputs(rows=40_000))
    assert (small.acting, large.acting) == ("numpy", "jit")


def test_gymnasium_with_a_small_network_acts_with_numpy_unless_told_otherwise(made, monkeypatch):
    monkeypatch.setenv("TESSERA_LOWERING", "jit")
    play("discrete", updates=1)
    assert not made
    monkeypatch.delenv("TESSERA_LOWERING")
    play("discrete", updates=1)
    assert calls(made) == SMALL["unroll"]


TABLE = jnp.linspace(-1, 1, 5)


def various(memory: Any, view: Any, observed: Any, keys: Any, t: Any) -> tuple[Any, Any]:
    """What networks and heads of other kinds than ours are made of."""
    flat = (observed.reshape(-1, 5) + TABLE) @ jnp.concatenate([view, view[:, ::-1]], axis=1)
    left, right = jnp.split(jnp.clip(flat, -2, 2), 2, axis=1)
    mixed = jnp.stack([left, jnp.where(right > 0, right, jnp.expm1(right))], axis=1).mean(axis=1)
    ranked = jnp.argmax(mixed, axis=-1) + (mixed.sum(-1) > 0).astype(jnp.int32) + (10 * mixed[:, 0]).astype(jnp.int32)
    weights = jax.nn.sigmoid(mixed) * jnp.cumsum(left, axis=1)[:, -1:] ** 3 / jnp.sqrt(1.0 + mixed**2)
    squared = jax.lax.dot_general(weights, weights, (((0,), (0,)), ((), ())))
    return memory * 0.5 + jnp.max(observed, axis=-1), (ranked.reshape(memory.shape), weights, squared, t + 1, view.T)


@pytest.mark.usefixtures("always_checked")
def test_other_functions_than_ours_have_a_form_too():
    lowered = lower(various)
    gone, seen = inputs(rows=200)
    for t in range(4):
        seen["t"] = np.int32(t)
        memory, actions = expected(various, gone, seen)
        replaced, fresh = lowered(gone, seen)
        close((replaced["memory"], fresh["actions"]), (memory, actions))
        gone = replaced
    assert lowered.acting == "numpy"


def kept(memory: Any, view: Any, observed: Any, keys: Any, t: Any) -> tuple[Any, Any]:
    return memory.reshape(-1).reshape(memory.shape), (observed, observed.reshape(-1), observed[..., 0])


@pytest.mark.usefixtures("with_numpy")
def test_memory_comes_back_as_it_is_and_nothing_shares_memory_with_what_was_observed():
    lowered = lower(kept)
    gone, seen = inputs()
    replaced, fresh = lowered(gone, seen)
    assert replaced["memory"] is gone["memory"]
    close(fresh["actions"], expected(kept, gone, seen)[1])
    assert not any(np.shares_memory(x, seen["observed"]) for x in fresh["actions"])
    assert lowered.acting == "numpy"


def test_an_unknown_form_is_refused(monkeypatch):
    monkeypatch.setenv("TESSERA_LOWERING", "fortran")
    with pytest.raises(TesseraError, match="auto, jit, numpy"):
        lower(draw)
