"""From a dataset to a loader."""

from __future__ import annotations

from typing import Any, Unpack

from energon_grain.compat.arguments import IdleArguments, check_idle
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.samples.subscripts import Item
from energon_grain.sources.cache_pool import CachePool
from energon_grain.stream.cursor import with_agreement
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stage import PureStage
from energon_grain.stream.stream import Stream, config_to_run
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.stream.workers import WorkerPool
from energon_grain_torch.group_processes import group_processes
from energon_grain_torch.loader import SavableDataLoader
from energon_grain_torch.pinning import pinning
from energon_grain_torch.worker_processes import process_pool


def get_savable_loader(
    dataset: SavableDataset[Item],
    *,
    worker_config: WorkerConfig | None = None,
    prefetch_factor: int = 2,
    cache_pool: CachePool | None = None,
    pin_memory: bool | None = None,
    multiprocessing_context: Any = None,
    **idle: Unpack[IdleArguments],
) -> SavableDataLoader[Item]:
    """A loader for a dataset, with workers, read-ahead and state.

    Args:
        dataset: What `get_train_dataset` or `get_val_dataset` returned.
        worker_config: In place of the dataset's own.
        prefetch_factor: Batches that are made ahead for each worker.
        cache_pool: Where hooks and `need_cache` cookers get values from; not closed with the loader. Default: a
            `NoCachePool`.
        pin_memory: Whether batches come in page-locked memory; default: where there is a CUDA device.
        multiprocessing_context: How worker processes are started: "fork", "forkserver", "spawn" or a
            `multiprocessing` context; default: as Python does, and "forkserver" instead of "fork" where there are
            arrays among the data or data in an object store. The order does not depend on it.
        **idle: See `IdleArguments`.

    Raises:
        ConfigError: The dataset's configuration is wrong.
        EmptyDatasetError: There is no sample, or no complete batch.
    """
    check_idle(idle)
    config = config_to_run(dataset, worker_config)
    config = with_agreement(config, group_processes(config.data_parallel_group))

    def processes(spec: StreamSpec, stage: PureStage) -> WorkerPool:
        return process_pool(spec, stage.sources, config.num_workers, config.prefetch_bytes, multiprocessing_context)

    return SavableDataLoader(
        Stream.of(
            dataset,
            worker_config=config,
            prefetch_factor=prefetch_factor,
            cache_pool=cache_pool,
            make_pool=processes if str(config.worker_type) == "dataloader" else None,
            finish=pinning(pin_memory),
        )
    )


def get_loader(dataset: SavableDataset[Item], **options: Any) -> SavableDataLoader[Item]:
    """The same as `get_savable_loader`: state costs nothing here, so every loader has it."""
    return get_savable_loader(dataset, **options)
