"""What cannot fit into memory is refused with asked and available, before anything is made."""

from __future__ import annotations

import re

import pytest

import tessera
from tessera.engines import local
from tessera.errors import TesseraError
from tessera.graph.groups import divisors
from tessera.planning import memory
from tessera.planning.prepare import prepare_plan
from tessera.support import machine

CARTPOLE = "gymnax:CartPole-v1"


@pytest.mark.parametrize("envs", [10**9, 999_999_937, 10**15])
def test_environments_beyond_memory_are_refused(envs):
    with pytest.raises(TesseraError, match=rf"{envs:,} environments take at least .* GB, available: .*--envs"):
        prepare_plan(tessera.PPO(), CARTPOLE, "fused:devices=1", envs=envs)


def test_a_replay_beyond_memory_is_refused():
    with pytest.raises(TesseraError, match=r"replay of 100,000,000,000 rows take at least .* available: .*--capacity"):
        prepare_plan(tessera.DQN(capacity=10**11), CARTPOLE, "fused:devices=1")


def test_the_limit_is_what_the_arrays_take(monkeypatch):
    """A row of CartPole takes two observations of four numbers, an action, a reward and a discount at the least."""
    algorithm = tessera.DQN(capacity=100_000, unroll=8)
    for room, fits in ((100_000 * 20, False), (100_000 * 100, True)):
        monkeypatch.setattr(memory, "available_memory", lambda room=room: room)
        if fits:
            prepare_plan(algorithm, CARTPOLE, "fused:devices=1", envs=8)
        else:
            with pytest.raises(TesseraError, match="take at least"):
                prepare_plan(algorithm, CARTPOLE, "fused:devices=1", envs=8)


@pytest.mark.parametrize(
    ("policy", "replays"),
    [("multi_learner:learners=2", 1), ("distributed_replay:stores=2", 1), ("mirrored:workers=3", 3)],
)
def test_replicas_with_replays_that_do_not_fit_together_are_refused(policy, replays, monkeypatch):
    """Mirrored replicas hold the whole replay each, others their part of it."""
    algorithm = tessera.DQN(capacity=2**21, unroll=8, batch=48)
    bound, env, plan = prepare_plan(algorithm, CARTPOLE, policy, envs=48, groups=6)
    assert 2**21 * 44 * replays / 2**20 < 1.1 * refused(plan, bound, env, monkeypatch) < 2**21 * 60 * replays / 2**20


def refused(plan, algorithm, env, monkeypatch):
    """Megabytes of arrays that the refusal names."""
    monkeypatch.setattr(local, "available_memory", lambda: 2**20)
    with pytest.raises(
        TesseraError, match=r"processes, .* MB of shared memory take at least .* available: 0\.0 GB"
    ) as no:
        local.LocalEngine(plan, algorithm, env, seed=0, horizon=1)
    return float(re.search(r"([\d,]+) MB of replays", str(no.value))[1].replace(",", ""))


def test_divisors():
    assert divisors(1) == [1]
    assert divisors(36) == [1, 2, 3, 4, 6, 9, 12, 18, 36]
    assert divisors(97) == [1, 97]
    assert all(divisors(n) == [d for d in range(1, n + 1) if n % d == 0] for n in range(1, 200))


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_a_container_counts(version, monkeypatch, tmp_path):
    folder = tmp_path if version == 2 else tmp_path / "memory"
    folder.mkdir(exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    (folder / names[0]).write_text(f"{3 << 20}\n")
    (folder / names[1]).write_text(f"{2 << 20}\n")
    inactive = "inactive_file" if version == 2 else "total_inactive_file"
    (folder / "memory.stat").write_text(f"anon 5\n{inactive} {1 << 19}\n")
    before = machine.available_memory()
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert machine.available_memory() == (1 << 20) + (1 << 19) < before
    (folder / names[0]).write_text("max\n" if version == 2 else f"{2**63 - 4096}\n")
    assert machine.available_memory() > 1 << 21
