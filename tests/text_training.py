"""Training on a text dataset, by the loaders of whichever framework."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stream_hosts import quiet

from energon_grain import SavableDataset


def text_training(
    text_dataset: Callable[..., Path], get_train_dataset: Callable[..., SavableDataset], config: Any, worker_type: str
) -> Callable[..., SavableDataset]:
    """`train(n=53, broken=(), rank=0, world_size=1, num_workers=0, …)`: batches of 4 of a text dataset.

    Args:
        text_dataset: The fixture.
        get_train_dataset: Of the core or of an adapter.
        config: The `WorkerConfig` that belongs to it.
        worker_type: Where `train` is told none.
    """

    def train(
        *,
        n: int = 53,
        broken: frozenset[int] = frozenset(),
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        worker_type: str = worker_type,
        handler: Callable[..., None] = quiet,
        **options: Any,
    ) -> SavableDataset:
        workers = config(rank, world_size, num_workers, worker_type=worker_type, global_error_handler=handler)
        given = {"batch_size": 4, "shuffle_buffer_size": 20, "max_samples_per_sequence": 4, **options}
        return get_train_dataset(text_dataset(n, broken=broken), worker_config=workers, **given)

    return train
