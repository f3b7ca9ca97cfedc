"""Programs of the ranks of `tests/replicas/test_meshes.py`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from replica_loaders import Rows, Tokens, dataset_of, rows
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import energon_grain_torch
from energon_grain_torch import SavableDataLoader, SequenceSlice, WorkerConfig, get_savable_loader

Mesh = dict[str, int]


class Tensors(Tokens):
    """Tensors in place of arrays."""

    def array(self, values: Any) -> Any:
        return torch.from_numpy(values)


def open_loader(
    path: Path, config: WorkerConfig, *, cut: Any = None, encoder: Any = None, worker_type: Any = "thread"
) -> SavableDataLoader[Any]:
    config.worker_type = worker_type
    dataset = dataset_of(path, config, encoder or Tensors(), library=energon_grain_torch)
    return get_savable_loader(dataset, sequence_slice=cut, multiprocessing_context="fork")


def on_mesh(shape: Mesh, data: str | Sequence[str], **options: Any) -> WorkerConfig | None:
    """The configuration on a mesh of the first ranks; None: this rank is not among them."""
    ranks = torch.arange(math.prod(shape.values())).reshape(*shape.values())
    mesh = DeviceMesh("cpu", ranks, mesh_dim_names=tuple(shape))
    return None if mesh.get_coordinate() is None else WorkerConfig.of_mesh(mesh, data, **options)


def runs(path: Path, shapes: list[Mesh], node_size: int | None = None) -> list[dict[str, Any]]:
    """This rank's part of a run that goes on, on one mesh after the other.

    `node_size`: Ranks of a node; one of them reads for all nodes. None: all ranks are on one.
    """
    found: list[dict[str, Any]] = []
    states = None
    for shape in shapes:
        config = on_mesh(shape, "dp", num_workers=1, across="broadcast")
        if config is not None and node_size is not None:
            node = f"node {dist.get_rank() // node_size}"
            config.replicas = dataclasses.replace(config.replicas, node=node)
        found.append({} if config is None else read(path, config, states))
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, found[-1])
        states = list({entry["rank"]: entry["state"] for entry in everyone if entry}.values())
    return found


def read(path: Path, config: WorkerConfig, states: Any = None, count: int = 6) -> dict[str, Any]:
    """This rank's batches, and its state in the middle. `states`: where to begin."""
    encoder = Tensors()
    with open_loader(path, config, encoder=encoder) as loader:
        if states is not None:
            loader.restore_state_global(states)
        before = [rows(next(loader)) for _ in range(count)]
        own, everyone = loader.save_state_rank(), loader.state_dict()
        after = [rows(next(loader)) for _ in range(count)]
    return {
        "rank": config.rank,
        "world": config.world_size,
        "replicas": config.replicas.ranks,
        "before": before,
        "after": after,
        "state": own,
        "everyone": everyone,
        "decoded": encoder.decoded,
    }


def slices(path: Path, shape: Mesh) -> tuple[int, list[list[list[int]]]]:
    """This rank of context parallelism, and the positions of each kind that it has in the first batch."""
    found = []
    config: Any = on_mesh(shape, "dp")
    for kind in ("zigzag", "contiguous"):
        with open_loader(path, config, cut=SequenceSlice({"tokens": 1}, dim="cp", kind=kind)) as loader:
            batch = next(loader)
            found.append((batch["tokens"] - 7 * torch.tensor([[int(key)] for key in batch["__key__"]])).tolist())
            dist.barrier()
    return config.replicas.coordinates["cp"][0], found


def flattened(path: Path) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """HSDP, with a dimension that the program flattened."""
    shape = {"replicate": 2, "shard": 1, "tp": 2}
    mesh = init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
    both = WorkerConfig.of_mesh(mesh, ("replicate", "shard"))
    mesh["replicate", "shard"]._flatten("dp")
    one = WorkerConfig.of_mesh(mesh, "dp")
    return both.rank, one.rank, both.replicas.ranks, one.replicas.ranks


def of_lists(path: Path) -> tuple[int, int, int, list[Rows]]:
    config = WorkerConfig(replicas=[[0, 2], [1, 3]], num_workers=1)
    with open_loader(path, config) as loader:
        found = [rows(next(loader)) for _ in range(5)]
        merged = loader.save_state_global()
        dist.barrier()
    assert (merged is None) == (dist.get_rank() != 0)
    return config.rank, config.world_size, config.global_rank(), found
