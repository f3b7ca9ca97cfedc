"""Programs of the ranks of `tests/replicas/test_meshes.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from replica_loaders import Rows, rows
from torch.distributed.device_mesh import init_device_mesh

from energon_grain_torch import (
    DefaultTaskEncoder,
    SavableDataLoader,
    SequenceSlice,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)

GLOBAL_BATCH = 8
LENGTH = 4096
Mesh = dict[str, int]


class Tensors(DefaultTaskEncoder):
    """Tensors of 16 KB, and a count of what this encoder decoded."""

    thread_safe = True

    def __init__(self) -> None:
        super().__init__()
        self.decoded = 0

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        self.decoded += 1
        tokens = torch.arange(LENGTH, dtype=torch.int32) + 7 * int(sample.__key__)
        return {"__key__": sample.__key__, "__restore_key__": sample.__restore_key__, "tokens": tokens}


def open_loader(
    path: Path, config: WorkerConfig, *, cut: Any = None, encoder: Any = None, worker_type: Any = "thread"
) -> SavableDataLoader[Any]:
    config.worker_type = worker_type
    dataset = get_train_dataset(
        path,
        worker_config=config,
        batch_size=GLOBAL_BATCH // config.world_size,
        shuffle_buffer_size=20,
        max_samples_per_sequence=4,
        seed=3,
        task_encoder=encoder or Tensors(),
    )
    return get_savable_loader(dataset, sequence_slice=cut, multiprocessing_context="fork")


def on_mesh(shape: Mesh, data: str | Sequence[str], **options: Any) -> WorkerConfig:
    mesh = init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
    return WorkerConfig.of_mesh(mesh, data, **options)


def read(
    path: Path, shape: Mesh, data: str | Sequence[str] = "dp", count: int = 6, states: Any = None, **options: Any
) -> dict[str, Any]:
    """This rank's batches, and its state in the middle. `states`: where to begin."""
    encoder = Tensors()
    config = on_mesh(shape, data, num_workers=1)
    with open_loader(path, config, encoder=encoder, **options) as loader:
        if states is not None:
            loader.restore_state_global(states)
        before = [rows(next(loader)) for _ in range(count)]
        own, everyone = loader.save_state_rank(), loader.state_dict()
        after = [rows(next(loader)) for _ in range(count)]
        dist.barrier()
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


def slices(path: Path, shape: Mesh, kind: Any) -> tuple[int, list[list[int]]]:
    """This rank of context parallelism, and the positions that it has of each sequence of the first batch."""
    config = on_mesh(shape, "dp")
    with open_loader(path, config, cut=SequenceSlice({"tokens": 1}, dim="cp", kind=kind)) as loader:
        batch = next(loader)
        found = batch["tokens"] - 7 * torch.tensor([[int(key)] for key in batch["__key__"]])
        dist.barrier()
    return config.replicas.coordinates["cp"][0], found.tolist()


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
