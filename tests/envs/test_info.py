"""Numbers in the `info` of environments: which count, in every way to step and reset, and on every engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from telling_envs import Silent, Telling, TellingDevice, TellingTeam

import tessera
from tessera import envs, policies
from tessera.engines.local import LocalEngine
from tessera.engines.population import PopulationEngine
from tessera.engines.serial import SerialEngine
from tessera.envs.base import InfoTotals, merge_totals
from tessera.envs.checks import check_env
from tessera.envs.info import MOST_NAMES, InfoSums
from tessera.planning.prepare import prepare_plan
from tessera.runs.metrics import read_metrics

UNROLL = 6  # two episodes, so that each update sees whole ones
SMALL = tessera.A2C(unroll=UNROLL, widths=(8,))


def played(env: Any, steps: int = 12, **options: Any) -> InfoTotals:
    """What 2 × 2 environments tell in some steps."""
    ids = np.arange(4).reshape(2, 2)
    made = envs.make(env, **options)
    assert isinstance(made, envs.HostEnvironment)
    vector = made.open(ids, 0)
    vector.reset()
    for _ in range(steps):
        vector.step(np.zeros((*ids.shape, *([2] if env is TellingTeam else [])), np.int32))
    taken = vector.take_info()
    assert vector.take_info() == {}
    vector.close()
    return taken


def episodes(count: int) -> InfoTotals:
    """What so many whole episodes tell."""
    return {"step": [6.0 * count, 3 * count], "gap": [2.0 * count, 2 * count], "success": [1.0 * count, count]}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 16),
        ({"autoreset": "same_step"}, 16),
        ({"autoreset": "disabled"}, 16),
        ({"autoreset": "next_step"}, 12),  # every fourth step is a reset
        ({"stack": 2, "clip_reward": 1}, 16),
        ({"repeat": 3}, 48),  # each repetition is a step
    ],
)
def test_numbers_of_steps_count_and_those_of_resets_do_not(options: dict[str, Any], expected: int) -> None:
    assert played(Telling, **options) == episodes(expected)


def test_an_episode_that_a_wrapper_cuts_tells_its_last_step() -> None:
    assert played(Telling, 4, time_limit=2) == {"step": [3.0 * 8, 16], "gap": [8.0, 8]}


@pytest.mark.parametrize("mode", AutoresetMode)
def test_vector_environments_tell_the_same(mode: AutoresetMode) -> None:
    def vector(num_envs: int, **_: Any) -> SyncVectorEnv:
        return SyncVectorEnv([Telling] * num_envs, autoreset_mode=mode)

    name = f"tessera/Telling{mode.name}-v0"
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point=Telling, vector_entry_point=vector)
    assert played(name) == episodes(12 if mode is AutoresetMode.NEXT_STEP else 16)


def test_agents_count_one_by_one() -> None:
    assert played(TellingTeam, 5) == {"score": [4.0 * 20, 40]}


def test_what_is_no_finite_number_is_left_out() -> None:
    sums = InfoSums()
    sums.add({"a": 1, "b": True, "c": np.array(2.0), "d": np.float16(1), "e": jnp.float32(4)})
    assert sums.take() == {"a": [1, 1], "b": [1, 1], "c": [2, 1], "d": [1, 1], "e": [4, 1]}
    sums.add({"a": 10**400, "b": None, "c": np.ones(1), "d": "3", "e": {"x": 1}, "f": 1j, "g": [1], 3: 1.0})
    sums.add({"h": np.float32(np.inf), "i": float("nan"), "episode": {"r": 1.0, "l": 2}})
    assert sums.take() == {}


def test_arrays_count_where_their_masks_and_the_step_allow_it() -> None:
    sums = InfoSums()
    mask = np.array([1, 1, 0, 1], bool)
    sums.add_batch({"a": np.float32([1, np.nan, 3, 4]), "b": np.arange(4), "_b": mask, "env_id": np.arange(4)})
    assert sums.take() == {"a": [8, 3], "b": [4, 3]}
    infos = {"a": np.array([None, np.bool_(True), "x", 2.0], object), "b": np.arange(4), "c": np.ones((4, 2))}
    sums.add_batch(infos, mask)
    assert sums.take() == {"a": [3, 2], "b": [4, 3]}


def test_only_so_many_names_are_kept() -> None:
    sums = InfoSums()
    for name in range(2 * MOST_NAMES):
        sums.add({str(name): 1.0})
    assert len(sums.take()) == MOST_NAMES


def engine_of(kind: Any, env: Any, policy: str = "fused:devices=1") -> Any:
    bound, made, plan = prepare_plan(SMALL, env, policies.parse(policy), envs=8, groups=4, engine=kind.name)
    return kind(plan, bound, made, seed=3, horizon=10)


def told(engine: Any, *, start: bool = True) -> InfoTotals:
    """What environments tell in four updates."""
    if start:
        engine.start()
    totals: InfoTotals = {}
    for _ in range(2):
        merge_totals(totals, engine.advance(2).info)
    return totals


def assert_same(found: InfoTotals, expected: InfoTotals) -> None:
    assert {name: n for name, (_, n) in found.items()} == {name: n for name, (_, n) in expected.items()}
    assert {name: x for name, (x, _) in found.items()} == pytest.approx({k: x for k, (x, _) in expected.items()})


@pytest.mark.parametrize(
    ("env", "kind", "policy"),
    [
        (Telling, SerialEngine, "split_inference"),
        (TellingDevice, SerialEngine, "fused:devices=2"),
        (Telling, LocalEngine, "single_learner_coarse:actors=2"),
        (TellingDevice, LocalEngine, "single_learner_fine:actors=2"),
    ],
)
def test_policies_and_engines_tell_what_one_thread_tells(env: Any, kind: Any, policy: str) -> None:
    one_thread = told(engine_of(SerialEngine, env))
    assert {name: one_thread[name] for name in ("step", "gap", "success")} == episodes(8 * 4 * UNROLL // 3)
    assert one_thread.keys() - {"draw"} == {"step", "gap", "success"}
    engine = engine_of(kind, env, policy)
    try:
        assert_same(told(engine), one_thread)
    finally:
        engine.close()


def test_wrapped_device_environments_tell_the_same() -> None:
    assert told(engine_of(SerialEngine, envs.make(TellingDevice, stack=2)))["success"] == [64.0, 64]


def test_what_is_told_changes_no_params() -> None:
    states = []
    for env in (TellingDevice, Silent):
        engine = engine_of(SerialEngine, env)
        assert bool(told(engine)) == (env is TellingDevice)
        states.append(engine.state())
    jax.tree.map(np.testing.assert_array_equal, *states)


def test_a_resumed_run_tells_what_the_uninterrupted_one_tells() -> None:
    engine, again = engine_of(SerialEngine, TellingDevice), engine_of(SerialEngine, TellingDevice)
    told(engine)
    again.restore(engine.snapshot())
    assert told(again, start=False) == told(engine, start=False)


def test_seeds_in_one_program_tell_what_each_tells_alone() -> None:
    bound, made, plan = prepare_plan(SMALL, TellingDevice, policies.parse("fused:devices=1"), envs=8, groups=4)
    population = PopulationEngine(plan, bound, made, [2, 3], updates=10)
    population.begin([None, None])
    members: tuple[InfoTotals, InfoTotals] = ({}, {})
    for _ in range(2):
        for totals, reports in zip(members, population.advance(2), strict=True):
            merge_totals(totals, reports.info)
    assert_same(members[1], told(engine_of(SerialEngine, TellingDevice)))
    assert members[0]["draw"] != members[1]["draw"]


def test_rows_hold_means_under_every_seed(tmp_path: Path) -> None:
    options = {"envs": 8, "steps": 8 * UNROLL * 4, "eval_episodes": 2, "quiet": True, "run_dir": tmp_path}
    tessera.train(SMALL, TellingDevice, seeds=2, **options)
    folders = [path.parent for path in tmp_path.glob("*/metrics.jsonl")]
    assert len(folders) == 2
    for rows in map(read_metrics, folders):
        told = [{k: v for k, v in row.items() if k in ("info/step", "info/gap", "info/success")} for row in rows]
        assert told == [{"info/step": 2.0, "info/gap": 1.0, "info/success": 1.0}] * len(rows)


def test_info_that_is_no_dict_is_refused() -> None:
    class Wrong(TellingDevice):
        def info(self, state: Any) -> Any:
            return state[1]

    (finding,) = check_env(Wrong).findings
    assert "info() of telling returns" in finding.text
    assert "it must be a dict: return each number under its name" in finding.text
