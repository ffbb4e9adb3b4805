"""Wrappers by name: each on hand-computed episodes, on the device and on the host, alone and together."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from scripted_envs import Counter, Echo, register_counters
from scripted_teams import Leavers

import tessera
from tessera import envs
from tessera.cli.main import main
from tessera.envs.base import Box, DeviceEnvironment, Discrete, HostEnvironment, Spec, Timestep
from tessera.envs.pettingzoo import PettingZooEnvironment
from tessera.envs.wrappers import words_of, wrap_by_name
from tessera.envs.wrappers.device import DeviceWrapper
from tessera.errors import TesseraError


class DeviceCounter(DeviceEnvironment):
    """`scripted_envs.Counter` as a device environment: observes 10 * episode + step, earns the step's number."""

    name, spec = "counter", Spec((1,), "float32", Discrete(2))

    def reset(self, key):
        return (jnp.int32(0), jnp.int32(0)), jnp.zeros(1)

    def step(self, state, action, key):
        episode, step = state[0], state[1] + 1
        return (episode, step), self._seen(episode, step), jnp.float32(step), step == 3, jnp.bool_(False)

    def restart(self, state, key):
        return (state[0] + 1, jnp.int32(0)), self._seen(state[0] + 1, jnp.int32(0))

    def player(self, state):
        return state[1]

    def _seen(self, episode, step):
        return jnp.float32(10 * episode + step)[None]


class Added(gymnasium.ObservationWrapper):
    """Adds 100."""

    def observation(self, observation: Any) -> Any:
        return observation + 100


def on_device(env: DeviceEnvironment, steps: int) -> list[Timestep]:
    """Timesteps as the framework makes them."""
    key = jax.random.key(0)

    @jax.jit
    def one(state):
        state, final, reward, terminated, truncated = env.step(state, jnp.int32(1), key)
        over = terminated | truncated
        fresh = env.restart(state, key)
        state, seen = jax.tree.map(lambda a, b: jnp.where(over, a, b), fresh, (state, final))
        return state, Timestep(seen, reward, terminated, truncated, final)

    state, seen = jax.jit(env.reset)(key)
    steps_played = [Timestep(seen, 0.0, False, False, seen)]
    for _ in range(steps):
        state, timestep = one(state)
        steps_played.append(timestep)
    return [jax.tree.map(np.asarray, t) for t in steps_played]


def on_host(env: HostEnvironment, steps: int, envs_open: int = 2) -> list[Timestep]:
    """Timesteps of the first of some environments, without the reset steps; returned arrays are never written."""
    vector = env.open(np.arange(envs_open).reshape(1, -1), 7)
    timesteps = [vector.reset()]
    kept = copy.deepcopy(timesteps)
    actions = np.ones((1, envs_open), np.int32)
    while len(timesteps) < steps + 1:
        timesteps.append(vector.step(actions))
        kept.append(copy.deepcopy(timesteps[-1]))
    vector.close()
    jax.tree.map(np.testing.assert_array_equal, timesteps, kept)
    return [jax.tree.map(lambda x: x[0, 0], t) for t in timesteps]


def seen(timesteps: list[Timestep], field: str = "observation") -> list[Any]:
    values = [np.asarray(getattr(t, field)) for t in timesteps]
    return [v.item() if v.size == 1 else v.tolist() for v in values]


BOTH = pytest.mark.parametrize(
    "play",
    [lambda n, **o: on_device(envs.make(DeviceCounter, **o), n), lambda n, **o: on_host(envs.make(Counter, **o), n)],
    ids=["device", "host"],
)


@BOTH
def test_a_stack_begins_full_of_the_first_observation_and_never_reaches_into_another_episode(play):
    played = play(4, stack=3)
    assert seen(played) == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [10, 10, 10], [10, 10, 11]]
    assert seen(played, "final")[3] == [1, 2, 3]


@BOTH
def test_rewards_are_clipped(play):
    assert seen(play(4, clip_reward=2), "reward") == [0, 1, 2, 2, 1]


@BOTH
def test_a_time_limit_truncates_starts_anew_and_shows_the_last_observation(play):
    played = play(5, time_limit=2)
    assert seen(played) == [0, 1, 10, 11, 20, 21]
    assert seen(played, "final") == [0, 1, 2, 11, 12, 21]
    assert seen(played, "truncated") == [False, False, True, False, True, False]
    assert seen(played, "reward") == [0, 1, 2, 1, 2, 1]


@BOTH
def test_what_terminates_at_the_time_limit_is_not_truncated_and_a_longer_limit_changes_nothing(play):
    for limit in (3, 9):
        played = play(4, time_limit=limit)
        assert seen(played, "terminated") == [False, False, False, True, False]
        assert not any(seen(played, "truncated"))
        assert seen(played) == [0, 1, 2, 10, 11]


@BOTH
def test_repeated_actions_sum_rewards_and_stop_where_the_episode_ends(play):
    played = play(4, repeat=2)
    assert seen(played, "reward") == [0, 1 + 2, 3, 1 + 2, 3]
    assert seen(played) == [0, 2, 10, 12, 20]
    assert seen(played, "final") == [0, 2, 3, 12, 13]
    assert seen(played, "terminated") == [False, False, True, False, True]


@BOTH
def test_statistics_of_normalise_last_over_episodes(play):
    played = play(4, normalise=True)
    raw = [0.0, 1.0, 2.0, 3.0, 10.0, 11.0]  # 3 ends an episode, 10 begins the next
    expected = [
        np.clip((x - np.mean(raw[: k + 1])) / np.sqrt(np.var(raw[: k + 1]) + 1e-8), -10, 10) for k, x in enumerate(raw)
    ]
    np.testing.assert_allclose(seen(played), [*expected[:3], *expected[4:]], rtol=1e-5)
    np.testing.assert_allclose(seen(played, "final")[3], expected[3], rtol=1e-5)


@BOTH
def test_wrappers_are_put_on_in_the_order_in_which_they_are_written(play):
    assert seen(play(2, stack=2, repeat=2)) == [[0, 0], [1, 2], [10, 10]]
    assert seen(play(2, repeat=2, stack=2)) == [[0, 0], [0, 2], [10, 10]]
    assert seen(play(2, clip_reward=1, repeat=2), "reward") == [0, 2, 1]
    assert seen(play(2, repeat=2, clip_reward=1), "reward") == [0, 1, 1]
    assert seen(play(4, time_limit=2, repeat=2), "truncated")[1:] == [True] * 4
    assert seen(play(4, repeat=2, time_limit=1), "truncated")[1:] == [True] * 4
    assert seen(play(3, time_limit=2, stack=2)) == [[0, 0], [0, 1], [10, 10], [10, 11]]


def test_both_kinds_of_environment_play_the_same_under_many_wrappers():
    for options in (
        {"repeat": 2, "stack": 2, "normalise": True},
        {"normalise": True, "time_limit": 2, "stack": 3},
        {"stack": 2, "hide": (0,), "repeat": 2, "time_limit": 4, "clip_reward": 2.5},
    ):
        device, host = on_device(envs.make(DeviceCounter, **options), 9), on_host(envs.make(Counter, **options), 9)
        for a, b in zip(device, host, strict=True):
            jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a, b)


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP", "DISABLED"])
def test_every_way_to_reset_gives_the_same_episodes(mode):
    register_counters()
    env = envs.make(f"tessera/Counter{mode}-v0?stack=2&clip_reward=2&normalise=false")
    played = on_host(env, 8)
    assert env.masks == (mode == "NEXT_STEP")
    kept = [t for t in played if t.valid is None or t.valid]
    assert seen(kept, "final")[:6] == [[0, 0], [0, 1], [1, 2], [2, 3], [10, 11], [11, 12]]
    assert seen(kept, "reward")[:6] == [0, 1, 2, 2, 1, 2]
    skipped = [t for t in played if t.valid is not None and not t.valid]
    assert [t.observation.tolist() for t in skipped[:1]] == [[10, 10]][: len(skipped)]
    statistics = on_host(envs.make(f"tessera/Counter{mode}-v0?normalise"), 8)
    np.testing.assert_allclose(
        [t.final for t in statistics if t.valid is None or t.valid],
        [t.final for t in on_host(envs.make(Counter, normalise=True), 8)][: len(kept)],
    )


def test_what_cannot_be_stepped_alone_is_opened_one_by_one_for_a_time_limit():
    env = envs.make("CartPole-v1?time_limit=7")
    assert (env.spec.time_limit, env.masks) == (7, False)
    assert envs.make("CartPole-v1").masks
    truncated = [bool(t.truncated) for t in on_host(env, 7)]
    assert truncated == [False] * 7 + [True]


def test_agents_are_wrapped_together():
    env = wrap_by_name(wrap_by_name(PettingZooEnvironment("leavers", Leavers), "repeat", 2), "stack", 2)
    vector = env.open(np.arange(2).reshape(1, 2), 0)
    first, second = vector.reset(), vector.step(np.zeros((1, 2, 3), np.int32))
    np.testing.assert_array_equal(first.observation[0, 1], [[10, 10], [20, 20], [30, 30]])
    np.testing.assert_array_equal(second.observation[0, 1], [[10, 0], [20, 22], [30, 32]])
    np.testing.assert_array_equal(second.reward[0, 1], [1, 2 + 4, 3 + 6])
    np.testing.assert_array_equal(second.alive[0, 1], [False, True, True])
    cut = wrap_by_name(PettingZooEnvironment("leavers", Leavers), "time_limit", 2).open(np.arange(1).reshape(1, 1), 0)
    cut.reset()
    played = [cut.step(np.zeros((1, 1, 3), np.int32)) for _ in range(2)]
    np.testing.assert_array_equal(played[1].alive[0, 0], [True] * 3)  # of the new episode
    np.testing.assert_array_equal(played[1].observation[0, 0], [[110], [120], [130]])
    np.testing.assert_array_equal(played[1].final[0, 0], [[0], [22], [32]])


@pytest.mark.parametrize(
    ("shape", "dtype", "stacked"),
    [
        ((2, 3), np.float32, (2, 3, 4)),
        ((8, 8, 3), np.float32, (8, 8, 12)),
        ((2, 84, 84), np.uint8, (8, 84, 84)),
        ((84, 84, 1), np.uint8, (84, 84, 4)),
        ((5,), np.float32, (20,)),
    ],
)
def test_frames_are_stacked_along_their_channels_and_bytes_stay_bytes(shape, dtype, stacked):
    space = spaces.Box(0, 1, shape, dtype)
    env = envs.make(lambda: Echo(space, spaces.Discrete(2)), stack=4)
    played = on_host(env, 1)[-1]
    assert env.spec.observation_shape == stacked == played.observation.shape
    assert env.spec.observation_dtype == played.observation.dtype == np.dtype(dtype).name


def test_observations_are_scaled_by_their_bounds_and_bytes_to_one():
    space = spaces.Box(np.float32([-2, 0]), np.float32([2, 10]))
    env = envs.make(lambda: Echo(space, spaces.Discrete(2)), scale=True)
    raw = on_host(envs.make(lambda: Echo(space, spaces.Discrete(2))), 3)
    for a, b in zip(on_host(env, 3), raw, strict=True):
        np.testing.assert_allclose(
            a.observation, [b.observation[0] / 2, b.observation[1] / 5 - 1], rtol=1e-5, atol=1e-6
        )
    np.testing.assert_array_equal(env.observation_bounds, [[-1, -1], [1, 1]])
    env = envs.make(lambda: Echo(spaces.Box(0, 255, (4, 4, 1), np.uint8), spaces.Discrete(2)), scale=True)
    played = on_host(env, 2)[-1].observation
    assert env.spec.observation_dtype == "float32" == played.dtype
    assert 0.5 < played.max() <= 1
    device = envs.make("gymnax:Pendulum-v1?scale")
    low, high = envs.make("gymnax:Pendulum-v1").observation_bounds
    observation = envs.make("gymnax:Pendulum-v1").reset(jax.random.key(0))[1]
    np.testing.assert_allclose(
        device.reset(jax.random.key(0))[1], 2 * (observation - low) / (high - low) - 1, rtol=1e-5
    )


def test_sticky_actions_of_host_environments_depend_on_their_index_alone():
    register_counters()

    def taken(ids: Any) -> dict[int, list[Any]]:
        made: list[Echo] = []
        env = envs.make(lambda: made.append(Echo(spaces.Box(0, 1, (1,)), spaces.Discrete(100))) or made[-1], sticky=0.3)
        made.clear()
        vector = env.open(np.array([ids]), 3)
        vector.reset()
        for t in range(1, 41):
            vector.step(np.full((1, len(ids)), t, np.int32))
        return {index: [int(a) for a in one.seen] for index, one in zip(ids, made, strict=True)}

    together, alone = taken([0, 1, 2]), taken([1])
    assert together[1] == alone[1] != together[0]
    for t, (given, before) in enumerate(zip(alone[1], [0, *alone[1]], strict=False), 1):
        assert given in (t, before)
    assert 4 < sum(given != t for t, given in enumerate(alone[1], 1)) < 30


def test_what_an_environment_has_besides_is_passed_on():
    env = envs.make(DeviceCounter, stack=2, repeat=2, time_limit=5)
    state = env.step(env.reset(jax.random.key(0))[0], jnp.int32(0), jax.random.key(0))[0]
    assert int(env.player(state)) == 2
    optional = {n for n, f in inspect.getmembers(DeviceEnvironment, inspect.isfunction) if not n.startswith("_")}
    assert optional <= set(vars(DeviceWrapper))  # a method that the base class gets must be passed on too
    for wrapped in (env, envs.make("CartPole-v1?stack=2&time_limit=9")):
        again = pickle.loads(pickle.dumps(wrapped))
        assert (again.name, again.spec) == (wrapped.name, wrapped.spec)


def test_names_make_the_same_environment_again():
    for given, name in (
        ("CartPole-v1?stack=2", "gymnasium:CartPole-v1?stack=2"),
        ("gymnax:CartPole-v1?hide=1,3&normalise", "gymnax:CartPole-v1?hide=1,3&normalise"),
    ):
        env = envs.make(given)
        assert env.name == name
        assert envs.make(name).spec == env.spec
    env = envs.make("gymnax:CartPole-v1?stack=2", hide=(0, 1), clip_reward=1, normalise=True)
    assert env.name == "gymnax:CartPole-v1?stack=2&hide=0,1&clip_reward=1&normalise"
    assert envs.make(env.name).spec == env.spec
    assert envs.make("CartPole-v1", wrap=Added).name == "gymnasium:CartPole-v1?wrap=test_wrappers:Added"


def test_wrappers_of_ones_own_go_around_each_gymnasium_environment():
    env = envs.make("py:scripted_envs.Counter?wrap=test_wrappers:Added&stack=2")
    assert seen(on_host(env, 3)) == [[100, 100], [100, 101], [101, 102], [110, 110]]
    assert words_of(env) == ("wrapped in test_wrappers:Added", "2 observations stacked")
    twice = envs.make(Counter, wrap=[Added, Added])
    assert seen(on_host(twice, 1)) == [200, 201]
    assert envs.make("CartPole-v1?wrap=test_wrappers:Added", "bf16").spec.precision == "bf16"


@pytest.mark.parametrize(
    ("name", "foreign"),
    [
        ("gymnasium:CartPole-v1?wrap=os:system", True),
        ("CartPole-v1?stack=2&wrap=a:B", True),
        ("gymnasium:CartPole-v1?wrap", True),
        ("gymnasium:CartPole-v1?stack=4", False),
    ],
)
def test_names_with_wrappers_of_ones_own_run_foreign_code(name, foreign):
    assert envs.runs_foreign_code(name) is foreign


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gymnax:CartPole-v1?stack", "stack=True: give the number"),
        ("gymnax:CartPole-v1?stack=0", "stack=0: give the number"),
        ("CartPole-v1?clip_reward=-1", "above 0, as in clip_reward=1"),
        ("CartPole-v1?time_limit=2.5", "time_limit=2.5: give the most steps"),
        ("CartPole-v1?repeat=no", "repeat=no: give how often"),
        ("CartPole-v1?normalise=3", "takes no value; write \\?normalise"),
        ("CartPole-v1?scale", "use normalise instead"),
        ("gymnax:CartPole-v1?scale", "use normalise instead"),
        ("gymnax:CartPole-v1?hide=a", "hide=a: name entries"),
        ("gymnax:CartPole-v1?stack=2&stack=3", "sets stack twice"),
        ("gymnax:CartPole-v1?stack=", "options are written"),
        ("gymnax:CartPole-v1?wrap=a:B", "single Gymnasium environments"),
        ("CartPole-v1?stack=2&wrap=test_wrappers:Added", "write it before those of"),
        ("CartPole-v1?wrap=os", "as module:Class"),
        ("CartPole-v1?wrap=os:system", "derives from gymnasium.Wrapper"),
        ("ale:pong?repeat=2", "its own option frameskip"),
        ("ale:pong?normalise", "observes bytes: use scale"),
        ("envpool:CartPole-v1?time_limit=9", "its own option max_episode_steps"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(name, words):
    if name.startswith(("ale", "envpool")):
        pytest.importorskip({"ale": "ale_py", "envpool": "envpool"}[name.partition(":")[0]])
    with pytest.raises(TesseraError, match=words) as refused:
        envs.make(name)
    assert "\n" not in str(refused.value)


def test_an_option_may_not_be_set_twice():
    with pytest.raises(TesseraError, match="both set stack"):
        envs.make("CartPole-v1?stack=2", stack=3)


def test_a_plan_says_in_words_what_is_put_around_the_environment(capsys):
    main(["plan", "ppo", "gymnax:CartPole-v1?stack=4&clip_reward=1&time_limit=200"])
    words = "4 observations stacked, then rewards clipped to ±1, then episodes truncated at 200 steps"
    assert f"wrappers  {words}\n" in capsys.readouterr().out
    with pytest.raises(SystemExit) as left:
        main(["plan", "ppo", "gymnax:CartPole-v1?stack=none"])
    assert left.value.code == 2


def test_box_actions_stick_and_images_are_hidden_from_nobody():
    env = envs.make("gymnax:Pendulum-v1?sticky=0.5&repeat=2&time_limit=3")
    assert isinstance(env.spec.actions, Box)
    assert env.spec.time_limit == 3
    assert envs.make("gymnax:Pendulum-v1?repeat=3").spec.time_limit == 67
    with pytest.raises(TesseraError, match="flat observations"):
        envs.make("gymnax:Breakout-MinAtar?hide=1")


TINY = {"steps": 512, "envs": 8, "quiet": True, "eval_episodes": 2}
HERE = {**TINY, "steps": 256, "lag": 0, "groups": 2, "engine": "serial"}
SMALL = tessera.A2C(unroll=8, widths=(8,), anneal=False)
ON_DEVICE = "gymnax:CartPole-v1?sticky=0.2&normalise&stack=2&time_limit=20"


def test_a_run_with_wrappers_on_the_device_is_resumed_exactly(tmp_path):
    whole = tessera.train(SMALL, ON_DEVICE, "fused:devices=1", **HERE)
    tessera.train(SMALL, ON_DEVICE, "fused:devices=1", run_dir=tmp_path / "run", **{**HERE, "steps": 128})
    again = tessera.train(SMALL, ON_DEVICE, "fused:devices=1", run_dir=tmp_path / "run", resume=True, **HERE)
    jax.tree.map(np.testing.assert_array_equal, again.params, whole.params)


def test_a_resumed_run_says_that_host_environments_have_lost_their_statistics(tmp_path, capsys):
    algorithm, name = tessera.A2C(unroll=8, widths=(8,)), "CartPole-v1?normalise&stack=2"
    loud = {**TINY, "quiet": False, "run_dir": tmp_path / "run"}
    tessera.train(algorithm, name, "fused:devices=1", **{**loud, "steps": 256})
    assert "start anew" not in capsys.readouterr().out
    tessera.train(algorithm, name, "fused:devices=1", resume=True, **loud)
    assert "host environments start anew, and with them the statistics of ?normalise" in capsys.readouterr().out
    assert tessera.evaluate_run(tmp_path / "run", episodes=2).env == "gymnasium:CartPole-v1?normalise&stack=2"


def test_a_run_folder_imports_no_wrapper_unless_the_user_says_so(tmp_path):
    algorithm, folder = tessera.A2C(unroll=8, widths=(8,)), tmp_path / "run"
    tessera.train(algorithm, "CartPole-v1?wrap=test_wrappers:Added", "fused:devices=1", run_dir=folder, **TINY)
    with pytest.raises(TesseraError, match="add --trust"):
        tessera.load(folder)
    assert tessera.evaluate_run(folder, episodes=2, trust=True).returns.size == 2


@pytest.mark.parametrize("name", [ON_DEVICE, "CartPole-v1?sticky=0.2&normalise&repeat=2"])
def test_params_do_not_depend_on_where_wrapped_environments_run(name):
    fused = tessera.train(SMALL, name, "fused:devices=1", **HERE)
    apart = tessera.train(SMALL, name, "single_learner_coarse:actors=2", **HERE)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), apart.params, fused.params)
