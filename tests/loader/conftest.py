"""What the loader's tests share: quiet datasets of known keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_grain import SavableDataset, TaskEncoder, WorkerConfig, get_train_dataset


def ignore(error: Exception, sample: Any, sources: Any = None) -> None:
    """An error handler that lets samples go without a word."""


@pytest.fixture
def train(text_dataset: Callable[..., Path]) -> Callable[..., SavableDataset]:
    """`train(n=53, broken=(), rank=0, world_size=1, num_workers=0, …)`: batches of 4 of a text dataset."""

    def make(
        *,
        n: int = 53,
        broken: frozenset[int] = frozenset(),
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        worker_type: Any = "thread",
        batch_size: int = 4,
        task_encoder: TaskEncoder | None = None,
        **options: Any,
    ) -> SavableDataset:
        config = WorkerConfig(rank, world_size, num_workers, worker_type=worker_type, global_error_handler=ignore)
        arguments = {"shuffle_buffer_size": 20, "max_samples_per_sequence": 4, **options}
        return get_train_dataset(
            text_dataset(n, broken=broken),
            worker_config=config,
            batch_size=batch_size,
            task_encoder=task_encoder,
            **arguments,
        )

    return make
