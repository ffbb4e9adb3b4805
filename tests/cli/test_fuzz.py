"""Whatever is typed or read: a command ends with 0 or 2, and says why in one sentence, never with a trace."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tessera import policies
from tessera.cli.main import main

SETTINGS = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
WORDS = (
    "envs groups lag mesh engine precision actors unroll gamma widths learning-rate minibatches epochs capacity preset "
    "nonsense"
)
NUMBERS = st.one_of(
    st.integers(-3, 40),
    st.sampled_from([2**31 - 1, 2**31, 2**63, 10**12, 10**30, -(2**63)]),
    st.floats(allow_nan=True),
    st.sampled_from(["", "nan", "inf", "-inf", "1e9", "0x10", "\x00", "ü", "--", "-1", "none", "None", "true"]),
).map(str)
TEXTS = st.one_of(NUMBERS, st.text(max_size=8), st.sampled_from(["fused", "a,b", "a=b", ":", "py:", "py:os", "/", "."]))
POLICIES = st.builds(
    lambda name, options: name + (":" + ",".join(f"{k}={v}" for k, v in options.items()) if options else ""),
    st.sampled_from([*(path.stem for path in Path(policies.__path__[0]).glob("[a-z]*.py")), "nobody"]),
    st.dictionaries(
        st.sampled_from(["actors", "workers", "learners", "shards", "stores", "mode", "lag", "wait", "every", "x", ""]),
        st.one_of(NUMBERS, st.sampled_from(["async", "sync", "first"])),
        max_size=3,
    ),
)
FLAGS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from([f"--{name}" for name in WORDS.split()]),
            TEXTS,
        ),
        st.tuples(st.just("--policy"), POLICIES),
        st.tuples(TEXTS),
    ),
    max_size=4,
).map(lambda pairs: [word for pair in pairs for word in pair])


def ending(*arguments: str) -> tuple[int, str]:
    """The exit code of a command and what it wrote to standard error; whatever else it raises is a failure."""
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            main(list(arguments))
        except SystemExit as left:
            return int(left.code or 0), said.getvalue()
    return 0, said.getvalue()


def assert_civil(code: int, said: str) -> None:
    assert code in (0, 2), said
    assert "Traceback" not in said
    if code == 2:
        assert said.startswith("tessera: "), said
        assert said.count("\n") == 1, said


@SETTINGS
@given(
    st.sampled_from(["ppo", "dqn", "a2c", "impala", "es", "nobody"]),
    st.sampled_from(["gymnax:CartPole-v1", "CartPole-v1", "gymnax:Pendulum-v1", "nobody:x", "gymnax:", ":"]),
    FLAGS,
)
def test_flags(algorithm: str, env: str, flags: list[str]) -> None:
    assert_civil(*ending("plan", algorithm, env, *flags))


@SETTINGS
@given(
    st.sampled_from(
        ["train", "plan", "eval", "export", "plot", "compare", "policies", "pairs", "cluster", "doctor", "x"]
    ),
    FLAGS,
)
def test_commands(command: str, words: list[str]) -> None:
    if command == "cluster":
        words = ["up", "--nodes", "0", *words]  # starts nothing
    if command in ("policies", "pairs", "doctor"):
        words = ["--nonsense", *words]
    if command in ("train", "compare", "plan"):
        words = ["nobody", *words]
    assert_civil(*ending(command, *words))


JSON: Any = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 2**40), st.floats(), st.text(max_size=6)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)
FRAGMENT = st.dictionaries(
    st.sampled_from(["operators", "replicas", "devices", "model", "by", "platform", "cores", "processes", "x"]),
    st.one_of(JSON, st.sampled_from(["env act", "store grad apply", "env", "act store", "groups", "cpu"])),
    max_size=4,
)
CUTS = st.dictionaries(
    st.sampled_from(["params", "experience", "gradients", "timesteps", "actions", "samples", "x"]),
    st.one_of(
        JSON, st.dictionaries(st.sampled_from(["mode", "lag", "first", "bound", "codec", "x"]), JSON, max_size=3)
    ),
    max_size=3,
)
FILES = st.one_of(
    JSON,
    st.fixed_dictionaries(
        {},
        optional={"name": JSON, "fragments": st.lists(st.one_of(FRAGMENT, JSON), max_size=3), "cuts": CUTS, "x": JSON},
    ),
    st.fixed_dictionaries(
        {"name": st.just("mine"), "fragments": st.lists(FRAGMENT, min_size=1, max_size=3)}, optional={"cuts": CUTS}
    ),
)


@SETTINGS
@given(content=st.one_of(FILES.map(lambda value: json.dumps(value).encode()), st.binary(max_size=40)))
@pytest.mark.parametrize("suffix", ["json", "toml"])
def test_policy_files(suffix: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"mine.{suffix}"
    path.write_bytes(content)
    assert_civil(*ending("plan", "ppo", "gymnax:CartPole-v1", "--policy", str(path)))
