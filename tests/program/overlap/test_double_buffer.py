"""Double buffering: host Ops run in the executor, slices take turns, and the slots end as those of the plain loop."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Executor, Future
from typing import Any

import jax
import numpy as np
import pytest

from tessera import A2C, envs, policies
from tessera.engines.serial import SerialEngine
from tessera.envs.base import HostEnvironment, HostVector, Timestep
from tessera.planning.prepare import prepare_plan
from tessera.program.interpreter import drive
from tessera.program.nodes import HOST, WIRING, Op, Repeat
from tessera.program.overlap.double_buffer import DoubleBufferedVector, DoubleBuffering, open_environments
from tessera.program.overlap.scheduler import OverlapScheduler, PlainScheduler


class InlineExecutor(Executor):
    """Runs a call at once, in the thread that submits it."""

    def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Future:
        future: Future = Future()
        future.set_result(function(*arguments, **named))
        return future


class Counting(HostVector):
    """Environments whose observation is the sum of the actions so far; notes which thread steps them."""

    def __init__(self, ids: np.ndarray, threads: set[str]) -> None:
        self.total, self.threads, self.stepping, self.closed = np.zeros(ids.shape, np.int32), threads, False, False

    def reset(self) -> Timestep:
        return self._timestep()

    def step(self, actions: np.ndarray) -> Timestep:
        self.threads.add(threading.current_thread().name)
        self.total = self.total + actions
        if self.total.max() > 1000:
            raise ValueError("too much")
        self.stepping = True
        time.sleep(0.001)
        self.stepping = False
        return self._timestep()

    def close(self) -> None:
        assert not self.stepping
        self.closed = True

    def _timestep(self) -> Timestep:
        none = np.zeros(self.total.shape, bool)
        return Timestep(self.total, self.total.astype(np.float32), none, none, self.total)


class CountingEnvironment(HostEnvironment):
    name, threaded = "counting", True

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def open(self, ids: np.ndarray, seed: int) -> HostVector:
        return Counting(ids, self.threads)


def loop(acting_threads: set[str], steps: int = 5) -> tuple[Repeat, ...]:
    def act(seen: Timestep, memory: np.ndarray, t: Any) -> tuple[Any, Any]:
        acting_threads.add(threading.current_thread().name)
        return seen.observation % 7 + memory + t, memory * 2

    def step(vector: HostVector, actions: np.ndarray) -> tuple[Any, ...]:
        return vector, vector.step(actions)

    def count(tally: np.ndarray, seen: Timestep) -> tuple[Any]:
        return (tally + seen.reward,)

    def record(seen: Timestep, actions: np.ndarray) -> tuple[Any]:
        return ((seen.observation, actions),)

    nodes = (
        Op("act", act, ("timesteps", "memory", "t"), ("actions", "memory"), WIRING),
        Op("env", step, ("env_state", "actions"), ("env_state", "timesteps"), HOST),
        Op("env", count, ("tally", "timesteps"), ("tally",), HOST),
        Op("act", record, ("timesteps", "actions"), ("episode_step",), WIRING),
    )
    return (Repeat("t", steps, nodes, {"episode_step": "episode_steps"}),)


def first_slots(env: CountingEnvironment, groups: int = 5) -> dict[str, Any]:
    ids = np.arange(groups * 2).reshape(groups, 2)
    vector = open_environments(env, ids, 0)
    assert isinstance(vector, DoubleBufferedVector)
    memory = ids.astype(np.int32)
    return {"env_state": vector, "timesteps": vector.reset(), "memory": memory, "tally": np.zeros(ids.shape)}


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessera.support.machine.cores", lambda: 2)


@pytest.mark.usefixtures("two_cores")
def test_slots_end_as_those_of_the_plain_loop():
    plain = first_slots(CountingEnvironment())
    assert list(drive(loop(set()), plain, scheduler=PlainScheduler())) == []
    for scheduler in (DoubleBuffering(), DoubleBuffering(InlineExecutor()), None):
        slots = first_slots(CountingEnvironment())
        vector = slots["env_state"]
        assert list(drive(loop(set()), slots, scheduler=scheduler)) == []
        assert slots.pop("env_state") is vector
        assert {"timesteps", "memory", "tally", "episode_steps"} <= slots.keys() <= plain.keys()
        jax.tree.map(np.testing.assert_array_equal, slots, {s: plain[s] for s in slots})


@pytest.mark.usefixtures("two_cores")
def test_environments_step_in_the_executor_and_acting_stays_in_the_thread_that_drives():
    env, acting = CountingEnvironment(), set[str]()
    list(drive(loop(acting), first_slots(env), scheduler=OverlapScheduler()))
    assert acting == {threading.current_thread().name}
    assert len(env.threads) == 1
    assert next(iter(env.threads)).startswith("tessera-stepper")
    inline = CountingEnvironment()
    list(drive(loop(acting), first_slots(inline), scheduler=OverlapScheduler(InlineExecutor())))
    assert inline.threads == acting


@pytest.mark.usefixtures("two_cores")
def test_one_slice_acts_while_the_other_steps():
    env, order = CountingEnvironment(), list[str]()

    class Recorded(InlineExecutor):
        def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Future:
            order.append(f"step {len(arguments[1]['memory'])}")
            return super().submit(function, *arguments, **named)

    list(drive(loop(set(), steps=3), first_slots(env), scheduler=DoubleBuffering(Recorded())))
    assert order == ["step 2", "step 3"] * 3


@pytest.mark.usefixtures("two_cores")
def test_no_environment_steps_any_more_when_a_failure_is_reported():
    slots = first_slots(CountingEnvironment())
    vector = slots["env_state"]
    vector.parts[0].total += 999
    with pytest.raises(ValueError, match="too much"):
        list(drive(loop(set(), steps=50), slots, scheduler=DoubleBuffering()))
    assert not vector.parts[1].stepping
    vector.close()
    assert all(part.closed for part in vector.parts)


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("form", ["auto", "jit"])
def test_double_buffered_environments_give_the_same_bits(form, monkeypatch):
    monkeypatch.setenv("TESSERA_LOWERING", form)
    found = []
    for threaded in (False, True):
        env = envs.make("gymnasium:CartPole-v1")
        env.threaded = threaded
        bound, made, plan = prepare_plan(
            A2C(unroll=8, widths=(8,)), env, policies.parse("fused:devices=1"), envs=6, groups=3
        )
        engine = SerialEngine(plan, bound, made, seed=3, horizon=10)
        engine.start()
        assert isinstance(engine.replicas[0].slots["env_state"], DoubleBufferedVector) == threaded
        metrics = engine.advance(3).metrics
        found.append(jax.device_get((metrics, engine.snapshot())))
        engine.close()
    jax.tree.map(np.testing.assert_array_equal, *found)
