"""Cluster files: what is read, and what is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera import TesseraError
from tessera.engines.simulated.cluster import Cluster, NodeKind
from tessera.planning.cluster_file import load_cluster

GOOD = """
[nodes.learner]
count = 1
cores = 32
accelerators = 4
memory_gb = 256
accelerator_memory_gb = 80.5
accelerator_speed = 2
bandwidth_gbit_s = 100
latency_ms = 0.05
price_per_hour = 12

[nodes.actor]
count = 1000
cores = 16
speed = 0.8
"""


def load(tmp_path: Path, text: str) -> Cluster:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    return load_cluster(path)


def test_kinds_of_nodes_are_read_in_the_units_of_their_names(tmp_path):
    learner, actor = load(tmp_path, GOOD).kinds
    assert learner == NodeKind(
        name="learner", count=1, cores=32, accelerators=4, memory=256 * 10**9, accelerator_memory=80_500_000_000,
        accelerator_speed=2, bandwidth=12.5e9, latency=5e-5, price=12,
    )  # fmt: skip
    assert actor == NodeKind(name="actor", count=1000, cores=16, speed=0.8)
    assert load(tmp_path, GOOD).price == 0  # of one kind it is not known


NODE = "[nodes.actor]\ncount = 2\ncores = 4\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no nodes: describe at least one kind in a table"),
        ("[nodes]", "has no nodes"),
        ("[node.actor]\ncount = 1", "unknown key in .*: 'node': did you mean 'nodes'?"),
        ("nodes = 3", "has no nodes"),
        ("[nodes]\nactor = 3", "nodes.actor must be a table with count, cores, not 3"),
        (NODE + "core = 3", "unknown key in .*nodes.actor: 'core': did you mean 'cores'?"),
        (NODE + "gpus = 1", "unknown key in .*nodes.actor: 'gpus'"),
        ("[nodes.actor]\ncount = 0\ncores = 4", "count is 0: a whole number of at least 1 is needed"),
        ("[nodes.actor]\ncount = -3\ncores = 4", "count is -3"),
        ("[nodes.actor]\ncount = 2.5\ncores = 4", "count must be a whole number, not 2.5"),
        ("[nodes.actor]\ncount = true\ncores = 4", "count must be a whole number, not True"),
        ("[nodes.actor]\ncount = 2", "nodes.actor needs 'cores'"),
        (NODE + "speed = 0", "speed is 0: a number of more than 0 is needed"),
        (NODE + "speed = 'fast'", "speed must be a number, not 'fast'"),
        (NODE + "latency_ms = -1", "latency_ms is -1: a number of at least 0"),
        (NODE + "bandwidth_gbit_s = inf", "bandwidth_gbit_s is inf"),
        (NODE + "memory_gb = nan", "memory_gb is nan"),
        ("[nodes.actor]\ncount = 2000000\ncores = 4", "has 2,000,000 nodes: at most 1,000,000"),
        ("[nodes.actor\ncount", "is not TOML"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, text, sentence):
    with pytest.raises(TesseraError, match=sentence):
        load(tmp_path, text)


def test_a_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(TesseraError, match="does not exist"):
        load_cluster(tmp_path / "no.toml")
    with pytest.raises(TesseraError, match=r"must end in \.toml"):
        load_cluster(tmp_path / "cluster.yaml")
    (tmp_path / "odd.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(TesseraError, match="is not TOML"):
        load_cluster(tmp_path / "odd.toml")
