"""What calls of Ray cost: measured once, kept, and used where messages between machines have no other costs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tessera import TesseraError
from tessera.cli.main import main
from tessera.engines.simulated.costs import Costs, LinkCosts
from tessera.planning.simulate import CALLS_OF_RAY, with_calls_of_ray
from tessera.profiling import ray_calls
from tessera.profiling.ray_calls import in_words, path_of_calls, save_calls, saved_calls

SOME = LinkCosts(latency=2e-4, cpu_per_message=5e-4, cpu_per_byte=1e-9)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_CACHE", str(tmp_path))
    return tmp_path


def test_calls_are_kept_as_they_were_measured():
    assert saved_calls() is None
    assert save_calls(SOME) == path_of_calls()
    assert saved_calls() == SOME


def test_calls_of_another_version_of_ray_do_not_count(monkeypatch):
    save_calls(SOME)
    path = path_of_calls()
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, "circumstances": {**found["circumstances"], "ray": "1.0"}}))
    assert saved_calls() is None


def test_nothing_is_kept_where_the_user_wants_nothing_kept(monkeypatch):
    monkeypatch.setenv("TESSERA_CACHE", "")
    assert save_calls(SOME) is None
    assert saved_calls() is None


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"calls": {"latency": -1, "cpu_per_message": 0, "cpu_per_byte": 0}}', "x"]
)
def test_a_file_that_does_not_say_it_is_refused_in_one_sentence(text, capsys):
    save_calls(SOME)
    path_of_calls().write_text(text)
    with pytest.raises(TesseraError, match="calls_of_ray") as refused:
        saved_calls()
    assert "\n" not in str(refused.value)
    main(["doctor"])
    assert "calls_of_ray" in capsys.readouterr().out


def test_messages_between_machines_cost_what_was_measured_here_unless_the_costs_say_it():
    known = LinkCosts(cpu_per_message=1.0)
    assert with_calls_of_ray(Costs(remote_links=known), SOME).remote_links == known
    assert with_calls_of_ray(Costs(), SOME).remote_links == SOME
    assert with_calls_of_ray(Costs()).remote_links == CALLS_OF_RAY


def test_doctor_says_what_they_cost_or_how_that_is_found_out(capsys):
    main(["doctor"])
    assert "calls     of Ray not measured: tessera profile" in capsys.readouterr().out
    save_calls(SOME)
    main(["doctor"])
    assert in_words(SOME) in capsys.readouterr().out
    assert in_words(SOME).startswith("200 µs on the way, 500 µs of a core at each end")


def test_without_ray_nothing_is_begun(monkeypatch, capsys):
    monkeypatch.setattr(ray_calls.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        main(["profile", "ppo", "gymnax:CartPole-v1", "--ray"])
    assert ended.value.code == 2
    assert "--ray needs Ray, which is not installed" in capsys.readouterr().err


MEASURE = """
if __name__ == "__main__":
    from tessera.profiling.ray_calls import measure_calls_of_ray, save_calls
    told = []
    save_calls(measure_calls_of_ray(told.append))
    assert told == ["Ray starts", "calls of Ray"], told
"""


def test_two_actors_measure_what_calls_take(tmp_path):
    script = tmp_path / "measure.py"
    script.write_text(MEASURE)
    # in a process of its own: a process reads Ray's token once
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = saved_calls()
    assert found is not None
    assert 1e-5 < found.latency < 0.5
    assert 1e-5 < found.cpu_per_message < 0.5
    assert 0 <= found.cpu_per_byte < 1e-6
