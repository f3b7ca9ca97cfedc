"""From a dataset to a loader."""

from __future__ import annotations

from typing import Any, Unpack

from energon_grain.datasets.cache_pool import CachePool
from energon_grain.datasets.dataset import SavableDataset, config_to_run
from energon_grain.datasets.worker_config import WorkerConfig
from energon_grain.loader.iterator import SavableDataLoader
from energon_grain.loader.jax_processes import jax_processes
from energon_grain.stream.host_processes import with_agreement
from energon_grain.stream.idle_arguments import IdleArguments, check_idle
from energon_grain.stream.run import Stream


def get_savable_loader(
    dataset: SavableDataset,
    *,
    worker_config: WorkerConfig | None = None,
    prefetch_factor: int = 2,
    cache_pool: CachePool | None = None,
    **idle: Unpack[IdleArguments],
) -> SavableDataLoader:
    """A loader for a dataset: a `grain.DatasetIterator` with threads, read-ahead and state.

    Args:
        dataset: What `get_train_dataset` or `get_val_dataset` returned.
        worker_config: In place of the dataset's own.
        prefetch_factor: Batches that are made ahead for each worker.
        cache_pool: Where hooks and `need_cache` cookers get values from; not closed with the loader. Default: a
            `NoCachePool`.
        **idle: See `IdleArguments`.

    Raises:
        ConfigError: The dataset's configuration is wrong.
        EmptyDatasetError: There is no sample, or no complete batch.
    """
    check_idle(idle)
    config = with_agreement(config_to_run(dataset, worker_config), jax_processes())
    return SavableDataLoader(
        Stream.of(dataset, worker_config=config, prefetch_factor=prefetch_factor, cache_pool=cache_pool)
    )


def get_loader(dataset: SavableDataset, **options: Any) -> SavableDataLoader:
    """The same as `get_savable_loader`: state costs nothing here, so every loader has it."""
    return get_savable_loader(dataset, **options)
