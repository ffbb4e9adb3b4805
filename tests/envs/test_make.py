from __future__ import annotations

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from scripted_envs import Counter, LinkSpec, Quacks

from tessera import envs
from tessera.errors import TesseraError


def test_importing_the_package_imports_no_simulator():
    code = "import sys, tessera.envs; print({'jax', 'gymnax', 'gymnasium', 'brax'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_an_unknown_prefix_is_answered_with_the_nearest():
    with pytest.raises(TesseraError, match="unknown environment prefix 'gymnx': did you mean 'gymnax'"):
        envs.make("gymnx:CartPole-v1")


def test_an_unknown_precision_is_answered_with_the_nearest():
    with pytest.raises(TesseraError, match="unknown precision 'bf61': did you mean 'bf16'"):
        envs.make("CartPole-v1", precision="bf61")


@pytest.mark.parametrize(
    ("package", "name", "install"),
    [
        ("envpool", "envpool:CartPole-v1", "envpool>="),
        ("ale_py", "ale:pong", "ale-py>="),
        ("brax", "brax:fast", "brax>="),
        ("gymnax", "gymnax:CartPole-v1", "gymnax>=1.0"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch, package, name, install):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(TesseraError, match=rf"not installed \({package}\): run pip install '{install}"):
        envs.make(name)


def test_precision_is_set_on_the_spec_and_not_on_the_callers_object():
    mine = LinkSpec()
    assert envs.make(mine, precision="f64").spec.precision == "f64"
    assert mine.spec.precision == "f32"
    assert envs.make("CartPole-v1", precision="bf16").spec.precision == "bf16"
    assert envs.make("gymnax:CartPole-v1", precision="f64").spec.precision == "f64"


def test_import_paths_name_classes_of_ones_own():
    counter = envs.make("py:scripted_envs.Counter", ending="truncated")
    assert isinstance(counter, envs.HostEnvironment)
    assert counter.name == "py:scripted_envs.Counter"
    line = envs.make("py:scripted_envs.LinkSpec", length=7.0)
    assert envs.is_device(line)
    assert line.length == 7.0


def test_import_paths_that_lead_nowhere_say_so():
    with pytest.raises(TesseraError, match="cannot be imported"):
        envs.make("py:no_such_package.Thing")
    with pytest.raises(TesseraError, match="unknown class in scripted_envs 'Countr': did you mean 'Counter'"):
        envs.make("py:scripted_envs.Countr")
    with pytest.raises(TesseraError, match="names no module"):
        envs.make("py:Thing")


def test_objects_classes_and_functions_are_taken():
    line = LinkSpec()
    assert envs.make(line) is line
    assert isinstance(envs.make(LinkSpec), LinkSpec)
    assert isinstance(envs.make(lambda: LinkSpec()), LinkSpec)
    assert isinstance(envs.make(Counter), envs.HostEnvironment)
    host = envs.make("CartPole-v1")
    assert envs.make(host) is host
    assert envs.make(lambda: host) is host


def test_an_object_that_only_quacks_gets_the_members_it_lacks():
    quacks = envs.make(Quacks())
    assert isinstance(quacks, envs.DeviceEnvironment)
    assert quacks.restart(5.0, None) == (0.0, 0.0)
    assert quacks.name.endswith("Quacks")


def test_each_environment_of_a_vector_is_made_afresh():
    made = []
    env = envs.make(lambda: made.append(Counter()) or made[-1])
    env.open(np.arange(4).reshape(2, 2), 0)
    assert len(made) == 5  # one to learn the spaces


def test_what_is_no_environment_is_refused():
    with pytest.raises(TesseraError, match="which is no environment"):
        envs.make(lambda: 3)
    with pytest.raises(TesseraError, match="give a class or a function"):
        envs.make(gymnasium.make("CartPole-v1"))


def test_options_that_nothing_takes_are_refused():
    with pytest.raises(TesseraError, match="with options wings"):
        envs.make("Pendulum-v1", wings=2)
    with pytest.raises(TesseraError, match="with options wings"):
        envs.make("gymnax:CartPole-v1", wings=2)
    with pytest.raises(TesseraError, match="already made"):
        envs.make(LinkSpec(), wings=2)
    with pytest.raises(TesseraError, match="takes no option autoreset"):
        envs.make(LinkSpec, autoreset="same_step")
