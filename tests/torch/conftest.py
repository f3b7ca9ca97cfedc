"""What tests of the PyTorch adapter share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forking import may_fork

from energon_grain import SavableDataset
from energon_grain_torch import WorkerConfig, get_train_dataset


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let all of them start workers."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(may_fork)


def ignore(error: Exception, sample: Any, sources: Any = None) -> None:
    """An error handler that lets samples go without a word."""


@pytest.fixture
def train(text_dataset: Callable[..., Path]) -> Callable[..., SavableDataset]:
    """`train(n=53, broken=(), num_workers=0, worker_type="dataloader", …)`: batches of 4 of a text dataset."""

    def make(
        *,
        n: int = 53,
        broken: frozenset[int] = frozenset(),
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        worker_type: Any = "dataloader",
        handler: Callable[..., None] = ignore,
        **options: Any,
    ) -> SavableDataset:
        config = WorkerConfig(rank, world_size, num_workers, worker_type=worker_type, global_error_handler=handler)
        arguments = {"batch_size": 4, "shuffle_buffer_size": 20, "max_samples_per_sequence": 4, **options}
        return get_train_dataset(text_dataset(n, broken=broken), worker_config=config, **arguments)

    return make
