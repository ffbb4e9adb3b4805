"""Networks of a user's own: as objects or by name, of linen or nnx, in a run, in its folder and in an agent."""

from __future__ import annotations

import functools
import subprocess
import sys

import flax.linen as nn
import jax
import numpy as np
import pytest
from own_networks import Fails, Features, ForgetsTheBatch, NoNetwork, PolicyAndValue, Values, VectorFeatures

import tessera
from tessera.cli.main import main
from tessera.envs import Discrete, Spec
from tessera.errors import TesseraError
from tessera.networks.own import check_torso
from tessera.support.named_objects import import_named, name_of

CARTPOLE = "gymnax:CartPole-v1"
SMALL = {"unroll": 8, "minibatches": 1, "epochs": 1}
SPEC = Spec((4,), "float32", Discrete(2))


def shapes(algorithm: tessera.Algorithm) -> dict[str, tuple[int, ...]]:
    bound = algorithm.bind(SPEC)
    bound.check()
    params = jax.eval_shape(bound.init, jax.random.key(0))
    return {jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


@pytest.mark.parametrize(
    "torso",
    [Features(8), Features, functools.partial(Features, width=8), "py:own_networks.Features?width=8"],
    ids=["module", "class", "partial", "name"],
)
def test_every_way_to_give_a_torso_is_the_same(torso):
    found = shapes(tessera.PPO(torso=torso))
    assert sorted(shape for name, shape in found.items() if "kernel" in name) == [(4, 8), (4, 8), (8, 1), (8, 2)]


@pytest.mark.parametrize("torso", [VectorFeatures, functools.partial(VectorFeatures, width=8)])
def test_a_torso_of_nnx_is_read_twice_with_params_of_its_own(torso):
    found = shapes(tessera.PPO(torso=torso))
    assert sum(shape == (4, 8) for shape in found.values()) == 2


@pytest.mark.parametrize("make", [tessera.DQN, tessera.C51, tessera.PQN, tessera.ES])
def test_algorithms_with_values_read_by_it_too(make):
    assert any(shape == (4, 24) for shape in shapes(make(torso=Features(24))).values())


def test_both_critics_have_a_torso_of_their_own():
    spec = Spec((4,), "float32", tessera.Box((1,), (-1.0,), (1.0,)))
    params = jax.eval_shape(tessera.SAC(torso=Features(24), widths=(8,)).bind(spec).init, jax.random.key(0))
    assert sum(leaf.shape == (4, 24) for leaf in jax.tree.leaves(params["critic"])) == 2
    assert sum(leaf.shape == (25, 8) for leaf in jax.tree.leaves(params["critic"])) == 2


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (tessera.PPO(torso=ForgetsTheBatch()), r"ForgetsTheBatch turns observations .* into \[\(8,\)\], and features"),
        (tessera.PPO(torso=Fails()), r"Fails cannot read these observations \(float32\[4\], .* TypeError"),
        (tessera.DQN(torso=NoNetwork), "NoNetwork is no Flax module"),
        (tessera.PPO(torso="py:own_networks.Featurs"), "unknown class in own_networks 'Featurs'"),
        (tessera.PPO(torso="py:own_networks.Features?depth=3"), "Features.depth=3 cannot be made"),
        (tessera.PPO(core=Features()), "Features is no recurrent cell"),
        (tessera.PPO(network=Values()), "must make the head output of a distribution over actions and a value"),
        (tessera.DQN(network=Values(3)), r"into \[\(2, 3, 3\)\], and must make values of actions: \[\(2, 3, 2\)\]"),
        (tessera.DQN(network=Values(), dueling=True), "--network is a whole one: leave out --torso"),
        (tessera.PPO(network=PolicyAndValue(), core="lstm"), "--network is a whole one, for one agent: leave out"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(algorithm, sentence, tmp_path):
    with pytest.raises(tessera.TesseraError, match=sentence):
        tessera.train(algorithm, CARTPOLE, steps=1000, run_dir=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_network_that_expects_an_array_is_told_of_the_dict():
    tree = Spec({"eye": (3, 3, 1), "wheels": (2,)}, {"eye": "uint8", "wheels": "float32"}, Discrete(2))
    with pytest.raises(
        TesseraError, match=r"come as a dict of arrays, so have it read each, as in observation\['eye'\]"
    ):
        check_torso(tree, Fails())


@pytest.mark.parametrize(
    "algorithm",
    [
        tessera.PPO(network=PolicyAndValue(), **SMALL),
        tessera.DQN(network=Values(), batch=16),
        tessera.PPO(core=nn.OptimizedLSTMCell(8), torso=Features(8), burn_in=2, **SMALL),
    ],
    ids=["actor-critic", "values", "core"],
)
def test_own_networks_train_and_their_agents_act(algorithm, tmp_path):
    folder = tmp_path / "run"
    result = tessera.train(algorithm, CARTPOLE, steps=2000, envs=8, run_dir=folder, quiet=True, eval_episodes=2)
    with pytest.raises(tessera.TesseraError, match="is not one of Tessera's"):
        tessera.load(folder)
    agent = tessera.load(folder, trust=True)
    seen = np.random.default_rng(0).normal(size=4).astype(np.float32)
    assert agent.act(seen) == result.act(seen)


def test_the_command_line_takes_a_name_and_notes_it(tmp_path):
    flags = ["--steps", "600", "--unroll", "8", "--minibatches", "1", "--envs", "8", "--eval-episodes", "1"]
    torso = "py:own_networks.Features?width=6"
    assert main(["train", "ppo", CARTPOLE, "--torso", torso, "--run-dir", str(tmp_path / "run"), *flags]) in (0, None)
    assert tessera.load(tmp_path / "run", trust=[torso]).config["algorithm"]["torso"] == torso


def test_names_of_objects_make_them_again():
    for thing in (Features(6), functools.partial(VectorFeatures, width=6)):
        name = name_of(thing, "--torso")
        again = import_named(name)
        assert name.endswith("?width=6")
        assert again.keywords == {"width": 6}
    assert name_of(Features(), "--torso") == "py:own_networks.Features"
    assert name_of((64, 64), "--widths") == (64, 64)

    class Hidden(nn.Module):
        pass

    with pytest.raises(tessera.TesseraError, match="it is no class of a module"):
        name_of(Hidden(), "--torso")


def test_a_class_of_the_script_that_runs_is_noted_by_the_name_that_others_import(tmp_path):
    script = tmp_path / "my_script.py"
    script.write_text(
        "import flax.linen as nn\n"
        "from tessera.support.named_objects import name_of\n\n\n"
        "class Mine(nn.Module):\n    width: int = 3\n\n\n"
        "if __name__ == '__main__':\n    print(name_of(Mine(5), '--torso'))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "py:my_script.Mine?width=5"
