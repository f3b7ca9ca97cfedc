"""Arrays under PyTorch: workers of any kind give the rows that this process reads, which has read some before."""

from __future__ import annotations

import multiprocessing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import numbered, write_group

from energon_grain import ConfigError
from energon_grain_torch import WorkerConfig, get_loader, get_train_dataset

ROWS = 300


@pytest.mark.parametrize(
    ("worker_type", "options"),
    [
        ("dataloader", {}),
        ("dataloader", {"multiprocessing_context": "spawn"}),
        ("thread", {}),
        ("process", {}),
    ],
)
def test_workers_change_nothing(tmp_path: Path, worker_type: Any, options: Any) -> None:
    path = write_group(tmp_path / "frames.zarr", "zarr3", number=np.arange(ROWS), image=numbered(ROWS, 3, 2))

    def run(num_workers: int, worker_type: Any) -> list[tuple[list[int], list[Any]]]:
        dataset = get_train_dataset(
            path,
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=num_workers, worker_type=worker_type),
            batch_size=4,
            shuffle_buffer_size=20,
            max_samples_per_sequence=7,
        )
        with get_loader(dataset, **(options if num_workers else {})) as loader:
            return [(batch["number"].tolist(), batch["image"].tolist()) for batch in islice(loader, 12)]

    here = run(0, "thread")
    assert all(images == numbered(ROWS, 3, 2)[numbers].tolist() for numbers, images in here)
    assert run(2, worker_type) == here


def test_forks_are_refused_before_they_are_made(tmp_path: Path) -> None:
    path = write_group(tmp_path / "frames.zarr", "zarr3", number=np.arange(ROWS))
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=2, worker_type="dataloader"),
        batch_size=4,
        shuffle_buffer_size=20,
        max_samples_per_sequence=7,
    )
    for context in ("fork", multiprocessing.get_context("fork")):
        with (
            get_loader(dataset, multiprocessing_context=context) as loader,
            pytest.raises(ConfigError, match=r"these data are arrays, .* does not outlive a fork; use 'forkserver'"),
        ):
            next(loader)
