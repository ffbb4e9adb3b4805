"""Exported functions act as the agent does, for any number of entries; what does not is not written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from written_runs import OWN, write_run

import tessera
from tessera.agent import export
from tessera.cli.main import main
from tessera.errors import TesseraError

SMALL = {"unroll": 8, "widths": (16, 16), "minibatches": 1}
CASES: dict[str, tuple[tessera.Algorithm, str]] = {
    "discrete": (tessera.PPO(**SMALL), "gymnax:CartPole-v1"),
    "continuous": (tessera.PPO(**SMALL), "py:written_runs.Still"),
    "lstm": (tessera.PPO(**SMALL, core="lstm", core_width=8), "gymnax:CartPole-v1"),
    "recurrent q-values": (tessera.R2D2(widths=(16,), core_width=8, dueling=True), "gymnax:CartPole-v1"),
    "team": (tessera.MAPPO(**SMALL), "py:written_runs.Team"),
    "board": (tessera.PPO(unroll=8, minibatches=1, widths=(16,)), "py:written_runs.Board"),
}


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tessera.Agent]:
    """An agent for each case."""
    where = tmp_path_factory.mktemp("runs")
    return {name: tessera.load(write_run(where / name, *case), trust=OWN) for name, case in CASES.items()}


def check(agent: tessera.Agent, run: Any, entries: int) -> None:
    """Compare a function with the agent in several steps of new episodes."""
    random, memory, shape = np.random.default_rng(5), agent.initial_memory(entries), agent.env.spec.observation_shape
    agent.reset()
    for _ in range(4):
        seen = random.normal(size=(entries, *shape)).astype(np.float32)
        action, *memory = run(seen, *memory)
        np.testing.assert_allclose(action, agent.act(seen), atol=1e-4)
    agent.reset()


@pytest.mark.parametrize("name", CASES)
def test_stablehlo_acts_as_the_agent_does(agents, name, tmp_path):
    agent, file = agents[name], tmp_path / "act.stablehlo"
    written = agent.export(file)
    assert [path.name for path in tmp_path.iterdir()] == ["act.stablehlo"]
    run = jax.export.deserialize(bytearray(file.read_bytes())).call
    check(agent, run, 1)
    assert written.inputs[0].startswith("float32[b, ")
    check(agent, run, 7)


@pytest.mark.parametrize("name", CASES)
def test_onnx_acts_as_the_agent_does(agents, name, tmp_path):
    pytest.importorskip("jax2onnx")
    runtime = pytest.importorskip("onnxruntime")
    agent, file = agents[name], tmp_path / "act.onnx"
    written = agent.export(file)
    session = runtime.InferenceSession(str(file))
    names = [given.name for given in session.get_inputs()]
    memory = [f"memory_{k}" for k in range(len(names) - 1)]
    assert names == ["observation", *memory]
    assert [made.name for made in session.get_outputs()] == ["action", *(f"next_{name}" for name in memory)]

    def run(*arrays: Any) -> Any:
        return session.run(None, dict(zip(names, arrays, strict=True)))

    check(agent, run, 1)
    if written.inputs[0].startswith("float32[b, "):
        check(agent, run, 7)


def test_a_function_that_acts_otherwise_is_not_written(agents, tmp_path, monkeypatch):
    form = export.FORMS[".stablehlo"]

    def wrong(function: Any, shapes: Any) -> bytes:
        return form.write(lambda *given: (1 - function(*given)[0], *given[1:]), shapes)

    monkeypatch.setitem(export.FORMS, ".stablehlo", form._replace(write=wrong))
    with pytest.raises(TesseraError, match="is not written: it acts otherwise than the agent"):
        agents["discrete"].export(tmp_path / "act.stablehlo")
    assert not list(tmp_path.iterdir())


def test_the_command_line_exports(agents, tmp_path, capsys):
    run = str(agents["lstm"]._saved.folder)
    main(["export", run, str(tmp_path / "act.stablehlo")])
    shown = capsys.readouterr().out
    assert shown.startswith(f"wrote {tmp_path / 'act.stablehlo'}: float32[b, 4], float32[b, 8]")
    assert (tmp_path / "act.stablehlo").stat().st_size > 1000
    cases = {
        "act.txt": "end the name in .stablehlo or .onnx",
        "nowhere/act.onnx": "there is no such folder",
    }
    for name, sentence in cases.items():
        with pytest.raises(SystemExit) as left:
            main(["export", run, str(tmp_path / name)])
        shown = capsys.readouterr().err
        assert left.value.code == 2
        assert sentence in shown
        assert shown.count("\n") == 1
    assert [path.name for path in Path(tmp_path).iterdir()] == ["act.stablehlo"]
