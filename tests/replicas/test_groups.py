"""Which processes need the same batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from energon_grain import ConfigError, WorkerConfig, get_savable_loader
from energon_grain.replicas import ReplicaGroup

PROGRAM = """
import json, sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from energon_grain import ConfigError, WorkerConfig
from energon_grain.replicas.sharding import data_ranks
cases = [
    ((2, 2, 2), ("dp", "cp", "tp"), P("dp", "cp"), 1),
    ((2, 4), ("dp", "tp"), P("dp"), 2),
    ((4, 2), ("dp", "tp"), P("dp"), 4),
    ((2, 4), ("tp", "dp"), P("dp"), 1),
    ((2, 4), ("tp", "dp"), P("dp"), 2),
    ((2, 2, 2), ("replicate", "shard", "tp"), P(("replicate", "shard")), 2),
    ((8,), ("tp",), P(), 2),
]
found = []
for shape, names, spec, per in cases:
    sharding = NamedSharding(Mesh(np.array(jax.devices()).reshape(shape), names), spec)
    found.append(data_ranks(sharding, (32, 64), lambda device: device.id // per).replicas)
devices = np.array(jax.devices())[[0, 1, 2, 4, 3, 5, 6, 7]].reshape(2, 4)
mixed = NamedSharding(Mesh(devices, ("tp", "dp")), P("dp"))
try:
    data_ranks(mixed, (32, 64), lambda device: device.id // 2)
except ConfigError as error:
    found.append(str(error))
config = WorkerConfig.of_sharding(sharding, global_shape=(32, 64), num_workers=3)
found.append([config.rank, config.world_size, config.num_workers, config.replicas.ranks])
print(json.dumps(found))
"""


def test_processes_of_a_sharding() -> None:
    pytest.importorskip("jax")
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    *found, mixed, config = json.loads(done.stdout)
    assert found == [
        [[0, 1, 2, 3], [4, 5, 6, 7]],
        [[0, 1], [2, 3]],
        [[0], [1]],
        [[0, 4], [1, 5], [2, 6], [3, 7]],
        [[0, 2], [1, 3]],
        [[0], [1], [2], [3]],
        [[0, 1, 2, 3]],
    ]
    assert "which overlap in part or differ in number" in mixed or "not one range" in mixed
    assert config == [0, 1, 3, [0]]


def test_lists_of_ranks() -> None:
    config = WorkerConfig(rank=2, world_size=4, replicas=[[0, 1], [3, 2]])
    assert (config.rank, config.world_size, config.replicas) == (1, 2, ReplicaGroup(ranks=(2, 3), rank=2))
    config = WorkerConfig(replicas=[[0]])
    assert (config.rank, config.world_size) == (0, 1)


@pytest.mark.parametrize("lists", [[[0, 1]], [[0, 1], [1, 2, 3]], [[0, 1], [2, 3], []], [0, 1, 2, 3], [[0, 1], [2, 4]]])
def test_lists_that_do_not_divide_the_ranks_are_refused(lists: Any) -> None:
    with pytest.raises(ConfigError, match=r"must be in exactly one list|expected lists of ranks"):
        WorkerConfig(rank=0, world_size=4, replicas=lists)


def test_rank_and_world_size_are_still_required() -> None:
    with pytest.raises(ConfigError, match="rank must be in"):
        WorkerConfig()


def test_processes_must_be_connected(text_dataset: Any) -> None:
    from replica_loaders import dataset_of

    config = WorkerConfig(rank=0, world_size=2, replicas=[[0, 1]])
    with pytest.raises(ConfigError, match="the processes are not connected; initialise"):
        get_savable_loader(dataset_of(text_dataset(20), config))
