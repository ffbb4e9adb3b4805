"""Which processes take most of an accelerator's memory as they start: a lone run may, the driver of others may not."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

WATCHED = """
import json, os, sys
from jax._src import xla_bridge
made, init = [], xla_bridge._init_backend
def watched(platform):
    made.append(os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE"))
    return init(platform)
xla_bridge._init_backend = watched
import tessera
from tessera import api
assert not made, "importing makes no devices"
class Planned(Exception):
    pass
def stop(*arguments):
    raise Planned
api.Run.go = stop
algorithm, env = tessera.A2C(widths=(8,)), "gymnax:CartPole-v1"
try:
    exec(sys.argv[1])
except (Planned, tessera.TesseraError):
    pass
print(json.dumps(made))
"""


def seen(code: str, **given: str) -> list[str | None]:
    """What JAX saw when it made its devices."""
    environment = {k: v for k, v in os.environ.items() if k != "XLA_PYTHON_CLIENT_PREALLOCATE"}
    command = [sys.executable, "-c", WATCHED, code]
    done = subprocess.run(command, env={**environment, **given}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("tessera.train(algorithm, env, 'single_learner_coarse', quiet=True)", "false"),
        ("tessera.train(algorithm, env, quiet=True)", None),
        pytest.param("tessera.train(algorithm, env, engine='local', quiet=True)", "false", marks=pytest.mark.slow),
        pytest.param("tessera.train(algorithm, env, evaluate_every=5, quiet=True)", "false", marks=pytest.mark.slow),
        pytest.param("tessera.compare(algorithm, env, ['fused', 'central'])", "false", marks=pytest.mark.slow),
    ],
)
def test_the_driver_of_other_processes_leaves_them_the_accelerator(code, expected):
    assert seen(code) == [expected]


def test_what_the_user_has_set_stays():
    code = "tessera.train(algorithm, env, 'single_learner_coarse', quiet=True)"
    assert seen(code, XLA_PYTHON_CLIENT_PREALLOCATE="true") == ["true"]
