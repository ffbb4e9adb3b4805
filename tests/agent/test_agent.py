"""Agents act as the evaluator does, remember, are saved and loaded again, and say what is wrong in one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from written_runs import OWN, write_run

import tessera
from tessera.cli.main import main
from tessera.envs.base import Timestep
from tessera.errors import TesseraError
from tessera.program.nodes import Op, Repeat
from tessera.program.training_program import Training, bounded, over_envs
from tessera.runs import saved_agent
from tessera.runs.checkpoint import Checkpoints

CARTPOLE = "gymnax:CartPole-v1"
SMALL = {"unroll": 8, "widths": (16, 16)}
LSTM = tessera.PPO(**SMALL, minibatches=1, core="lstm", core_width=8)
CASES: dict[str, tuple[tessera.Algorithm, str]] = {
    "discrete": (tessera.PPO(**SMALL, minibatches=1), CARTPOLE),
    "continuous": (tessera.PPO(**SMALL, minibatches=1), "py:written_runs.Still"),  # observations are normalised
    "deterministic": (tessera.DPG(widths=(16, 16)), "py:written_runs.Still"),
    "q-values": (tessera.DQN(**SMALL), CARTPOLE),
    "recurrent": (LSTM, CARTPOLE),
    "recurrent q-values": (tessera.R2D2(widths=(16,), core="gru", core_width=8), CARTPOLE),
    "team": (tessera.MAPPO(**SMALL, minibatches=1), "py:written_runs.Team"),
    "evolved": (tessera.ES(widths=(16,)), CARTPOLE),
    "board": (tessera.PPO(unroll=8, minibatches=1, widths=(16,)), "py:written_runs.Board"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run folder for each case."""
    where = tmp_path_factory.mktemp("runs")
    return {name: write_run(where / name, *case) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    algorithm = tessera.PPO(unroll=8, widths=(8,), epochs=1, minibatches=1)
    options = {"envs": 8, "eval_episodes": 2, "quiet": True, "policy": "fused:devices=1"}
    tessera.train(algorithm, CARTPOLE, steps=256, run_dir=folder, **options)
    return folder


def load(folders: dict[str, Path], name: str) -> tessera.Agent:
    return tessera.load(folders[name], trust=OWN)


def observations(agent: tessera.Agent, *leading: int, seed: int = 0) -> np.ndarray:
    world = agent.algorithm.world
    drawn = np.random.default_rng(seed).normal(size=(*leading, *world.observation_shape))
    return drawn.astype(world.observation_dtype)


def evaluated(agent: tessera.Agent, seen: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Actions that an evaluation chooses, [T, n, ...]; seen [T, n, ...] and first [T, n]."""
    algorithm, env, view = agent.algorithm, agent.env, agent._saved.view
    (loop,) = (node for node in Training(algorithm, env, 1, greedy=True).play(1) if isinstance(node, Repeat))
    (act,) = (node for node in loop.body if isinstance(node, Op) and "actions" in node.writes)
    keys = jax.random.split(jax.random.key(0), (1, 1, seen.shape[1]))
    memory, bound, actions = over_envs(algorithm.memory)(np.arange(seen.shape[1])[None]), bounded(env), []
    step = jax.jit(lambda memory, seen: act.function(view, memory, seen, keys, 0))
    for observation, begins in zip(seen, first, strict=True):
        timestep = Timestep(
            observation[None], jnp.zeros((1, *first.shape[1:])), begins[None], ~begins[None] & False, None
        )
        action, memory, _ = step(memory, timestep)
        actions.append(bound(np.asarray(action[0]), np))
    return np.stack(actions)


@pytest.mark.parametrize("name", CASES)
def test_greedy_actions_are_those_of_the_evaluator(folders, name):
    agent = load(folders, name)
    seen, first = observations(agent, 5, 200), np.zeros((5, 200), bool)
    first[1:] = np.random.default_rng(1).random((4, 200)) < 0.2
    wanted = evaluated(agent, seen, first)
    found = []
    for observation, begins in zip(seen, first, strict=True):
        agent.reset(begins)
        found.append(agent.act(observation))
    assert found[0].dtype == wanted.dtype
    assert len(np.unique(wanted)) > 1
    np.testing.assert_allclose(np.stack(found), wanted, atol=1e-5)


@pytest.mark.parametrize("name", ["discrete", "continuous", "recurrent", "team", "board"])
def test_one_observation_is_a_batch_of_one(folders, name):
    agent = load(folders, name)
    seen = observations(agent, 3)
    together = agent.act(seen)
    for observation, action in zip(seen, together, strict=True):
        agent.reset()
        alone = agent.act(observation)
        assert alone.shape == action.shape
        np.testing.assert_allclose(alone, action, atol=1e-5)
    agent.reset()
    np.testing.assert_allclose(agent.act(seen.tolist()), together, atol=1e-5)


@pytest.mark.parametrize("name", ["continuous", "q-values", "recurrent", "evolved"])
def test_sampled_actions_explore_and_come_again_with_their_seed(folders, name, monkeypatch):
    agent = load(folders, name)
    seen = np.repeat(observations(agent, 1), 64, axis=0)

    def actions(agent: tessera.Agent, seed: int) -> np.ndarray:
        agent.reset(seed=seed)
        return np.stack([agent.act(seen, greedy=False) for _ in range(3)])

    drawn = actions(agent, 3)
    assert len(np.unique(drawn)) > 1
    np.testing.assert_array_equal(actions(agent, 3), drawn)
    assert (actions(agent, 4) != drawn).any()
    monkeypatch.setenv("TESSERA_LOWERING", "jit")
    np.testing.assert_allclose(actions(load(folders, name), 3), drawn, atol=1e-5)


def test_random_numbers_last_longer_than_one_block(folders, monkeypatch):
    monkeypatch.setattr("tessera.agent.acting.BLOCK", 4)
    agent = load(folders, "continuous")
    seen = observations(agent, 16)
    assert len({agent.act(seen, greedy=False).tobytes() for _ in range(12)}) == 12


def test_small_networks_act_in_numpy_and_others_are_compiled(folders):
    for name, in_numpy in {"discrete": True, "recurrent": True, "q-values": True, "board": False}.items():
        agent = load(folders, name)
        agent.act(observations(agent))
        assert (agent._actor._forms[1, True]._staged is not None) == in_numpy, name


def test_a_recurrent_agent_remembers_until_it_is_reset(folders):
    agent = load(folders, "recurrent")
    seen = observations(agent, 40)
    first = [int(agent.act(observation)) for observation in seen]
    second = [int(agent.act(observation)) for observation in seen]
    agent.reset()
    assert [int(agent.act(observation)) for observation in seen] == first != second
    with pytest.raises(TesseraError, match=r"remembers 1 episodes, and this batch has 2: call reset\(\)"):
        agent.act(seen[:2])
    with pytest.raises(TesseraError, match=r"pass bool\[1\]"):
        agent.reset([True, False])


def test_a_saved_agent_acts_alike_without_the_state_of_its_training(folders, tmp_path, capsys):
    for name in ("recurrent", "q-values", "continuous"):
        agent, folder = load(folders, name), tmp_path / "agents" / name
        agent.save(folder)
        again = tessera.load(folder, trust=OWN)
        seen = observations(agent, 20)
        np.testing.assert_array_equal(again.act(seen), agent.act(seen))
        assert jax.tree.all(jax.tree.map(np.array_equal, again.params, agent.params))
        arrays, _ = Checkpoints(folder / "checkpoints", read_only=True).load(agent.update)
        assert {path.split("/")[1] for path in arrays} <= {"params", "statistics", "clock"}
        assert sorted(path.name for path in folder.iterdir()) == ["checkpoints", "config.json"]
        with pytest.raises(TesseraError, match=r"without the optimiser's state .* go on with the run folder"):
            again.train(100)
        with pytest.raises(TesseraError, match="is a saved agent"):
            tessera.train(agent.algorithm, agent.env, run_dir=folder, resume=True, policy="fused:devices=1", envs=8)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["continuous", "q-values", "recurrent"]
    main(["eval", str(tmp_path / "agents" / "q-values"), "--episodes", "2"])
    assert capsys.readouterr().out.endswith("2 greedy episodes\n")


def test_a_saved_agent_is_replaced_at_once_and_nothing_else_is(folders, tmp_path, monkeypatch):
    agent, folder = load(folders, "discrete"), tmp_path / "agent"
    load(folders, "q-values").save(folder)
    agent.save(folder)
    assert tessera.load(folder).algorithm.name == "ppo"

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saved_agent, "write_json", fail)
    with pytest.raises(TesseraError, match=r"cannot be written to \(No space left on device\)"):
        load(folders, "q-values").save(folder)
    assert tessera.load(folder).algorithm.name == "ppo"
    assert [path.name for path in tmp_path.iterdir()] == ["agent"]
    with pytest.raises(TesseraError, match="is no saved agent, and would be lost"):
        agent.save(folders["q-values"])
    (tmp_path / "file").touch()
    with pytest.raises(TesseraError, match="is a file or a link"):
        agent.save(tmp_path / "file")


def test_a_run_goes_on_with_its_agent(trained):
    agent = tessera.load(trained)
    before, seen = agent.update, observations(agent, 8)
    played = agent.evaluate(4, seed=3).returns
    np.testing.assert_array_equal(played, tessera.evaluate_run(trained, 4, 3).returns)
    result = agent.train(128, policy="fused:devices=1", quiet=True, eval_episodes=2)
    assert agent.update == before + 2
    assert result.summary["env_steps"] == 256 + 128
    assert jax.tree.all(jax.tree.map(np.array_equal, agent.params, result.params))
    np.testing.assert_array_equal(agent.act(seen), [result.act(observation) for observation in seen])
    old = tessera.load(trained, checkpoint=before)
    assert old.update == before
    with pytest.raises(TesseraError, match=f"is of update {before}, and .* goes on from update {agent.update}"):
        old.train(100)
    with pytest.raises(TesseraError, match="0 more steps are none"):
        agent.train(0)
    with pytest.raises(TesseraError, match="0 episodes: at least one is needed"):
        agent.evaluate(0)


def test_checkpoints_are_named_by_number(tmp_path):
    folder = write_run(tmp_path / "run", *CASES["discrete"], updates=(1, 5))
    assert tessera.load(folder).update == 5
    assert tessera.load(folder, checkpoint=1).update == 1
    with pytest.raises(TesseraError, match="has no checkpoint 3: it keeps those of update 1, 5"):
        tessera.load(folder, checkpoint=3)
    assert tessera.load(folder, checkpoint="newest").update == 5
    assert tessera.load(folder, checkpoint="1").update == 1
    with pytest.raises(TesseraError, match="keeps no best checkpoint: train it with --evaluate-every"):
        tessera.load(folder, checkpoint="best")
    with pytest.raises(TesseraError, match="--checkpoint latest: choose newest, best, or the number of an update"):
        tessera.load(folder, checkpoint="latest")


def test_one_of_several_seeds_is_named(tmp_path):
    algorithm, env = CASES["discrete"]
    for seed in (3, 4):
        folder = write_run(tmp_path / f"seed-{seed}", algorithm, env)
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "seed": 3, "seeds": 2}))
    with pytest.raises(
        TesseraError, match=r"holds several seeds \(seed-3, seed-4\): load one of them, such as .*seed-3"
    ):
        tessera.load(tmp_path)
    with pytest.raises(TesseraError, match=r"\(seed-3, seed-4\) and not seed 7"):
        tessera.load(tmp_path, seed=7)
    assert tessera.load(tmp_path, seed=4)._saved.folder == tmp_path / "seed-4"
    with pytest.raises(TesseraError, match="holds one run, of seed 0: leave seed=7 out"):
        tessera.load(folder, seed=7)


def test_a_folder_does_not_decide_what_is_imported(folders):
    with pytest.raises(TesseraError, match=r"'py:written_runs\.Still' is not one of Tessera's"):
        tessera.load(folders["continuous"])
    assert tessera.load(folders["continuous"], trust=True).env.name == "py:written_runs.Still"


@pytest.mark.parametrize(
    ("given", "sentence"),
    {
        "too short": (np.zeros(3), r"one observation of shape \[4\] or a batch \[n, 4\], not \[3\]"),
        "too many axes": (np.zeros((2, 2, 4)), r"not \[2, 2, 4\]"),
        "an empty batch": (np.zeros((0, 4)), r"not \[0, 4\]"),
        "rows of two lengths": ([[1.0, 2.0], [3.0]], r"the observation is no array \(setting an array element"),
        "words": (["a", "b", "c", "d"], "reads observations of float32, not <U1"),
    }.values(),
)
def test_observations_that_do_not_fit_are_refused(folders, given, sentence):
    with pytest.raises(TesseraError, match=sentence):
        load(folders, "discrete").act(given)


def test_loading_and_acting_import_nothing_of_training(folders):
    code = f"""
import sys, numpy, tessera
agent = tessera.load({str(folders["recurrent"])!r})
agent.act(numpy.zeros(4)), agent.act(numpy.zeros(4), greedy=False)
rooms = tuple(f"tessera.{{room}}" for room in ("engines", "channels", "planning", "graph", "api"))
print([name for name in sys.modules if name.startswith(rooms)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


SCRIPT = """
from dataclasses import dataclass
import tessera

@dataclass(frozen=True)
class Mine(tessera.A2C):
    name = "mine"

if __name__ == "__main__":
    options = {"steps": 500, "eval_episodes": 1, "quiet": True, "run_dir": "run"}
    tessera.train(Mine(widths=(8,)), "gymnax:CartPole-v1", "fused:devices=1", **options)
"""


def test_the_run_of_a_class_that_a_script_defines_is_loaded_by_the_name_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "own_script.py").write_text(SCRIPT)
    subprocess.run([sys.executable, "own_script.py"], cwd=tmp_path, check=True)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["algorithm"]["class"] == "own_script.Mine"
    code = "import tessera; print(tessera.load('run', trust=True).act([0.0] * 4) in (0, 1))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    with pytest.raises(TesseraError, match=r"py:own_script\.Mine"):
        tessera.load(tmp_path / "run")


def test_an_environment_without_a_name_is_passed_again(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", tessera.A2C(**SMALL), "CartPole-v1")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "env": "__main__.<lambda>"}))
    for trust in (False, True):
        with pytest.raises(TesseraError, match=r"no name makes it again: pass it again, as in tessera.load\(run, env="):
            tessera.load(folder, trust=trust)
    agent = tessera.load(folder, env=lambda: gymnasium.make("CartPole-v1"))
    assert repr(agent) == f"<agent of {folder}: a2c on __main__.<lambda>, update 3>"
    assert agent.act(np.zeros(4)) in (0, 1)
    assert len(agent.evaluate(3).returns) == 3
    with pytest.raises(TesseraError, match="its params are for other observations or actions than those of env="):
        tessera.load(folder, env="Acrobot-v1")


def test_loading_warns_of_statistics_that_stay_with_environments(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", tessera.A2C(**SMALL), f"{CARTPOLE}?normalise&repeat=2")
    with pytest.warns(UserWarning, match=r"the statistics of \?normalise stay .*; --normalise-observations has them"):
        tessera.load(folder)
