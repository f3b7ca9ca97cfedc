"""The two entry points: a dataset for training, and one for validation."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Any

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.leaf import LeafDataset
from energon_grain.datasets.nodes import (
    BatchDataset,
    EpochizeDataset,
    LastBatch,
    LimitDataset,
    MapDataset,
    RepeatDataset,
)
from energon_grain.datasets.run_settings import RunSettings
from energon_grain.datasets.subset_range import SubsetRange
from energon_grain.datasets.task_encoder import DefaultTaskEncoder, TaskEncoder, overridden_hook
from energon_grain.datasets.worker_config import WorkerConfig
from energon_grain.errors import ConfigError


def get_train_dataset(
    path: str | os.PathLike[str],
    *,
    split_part: str = "train",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None,
    batch_drop_last: bool = False,
    last_batch: LastBatch | None = None,
    shuffle_buffer_size: int | None,
    max_samples_per_sequence: int | None,
    parallel_shard_iters: int | None = None,
    virtual_epoch_length: int = 0,
    shuffle_over_epochs_multiplier: int | None = 1,
    task_encoder: TaskEncoder | None = None,
    repeat: bool = True,
    seed: int = 0,
    lanes: int | None = None,
    subset: Any = None,
    sample_type: type[Any] | None = None,
    part_filter: Callable[[str], bool] | Collection[str] | None = None,
    dataset_config: str = "dataset.yaml",
    split_config: str | None = None,
    trusted_modules: Collection[str] = (),
) -> SavableDataset:
    """Describe shuffled training batches of a prepared dataset.

    Which samples make a batch, and every random number used on them, depend on the data, these arguments and the step
    alone; `worker_config` decides who reads what, never what is read.

    Args:
        path: Folder of a prepared dataset (`energon-grain prepare`).
        split_part: Part of the split to read.
        worker_config: This host among all hosts, and its workers; default: this process alone, or as `jax.distributed`
            says, without workers.
        batch_size: Samples in the batch of one host; None: single samples.
        batch_drop_last: As `last_batch="drop"`.
        last_batch: What becomes of an incomplete last batch where `repeat=False`: "keep" it short (one host only; the
            default there), "drop" it, or "pad" it (the default on several hosts) with a mask in `__valid__`.
        shuffle_buffer_size: With `max_samples_per_sequence`: mix at least about this many samples.
        max_samples_per_sequence: Read this many consecutive samples as one block; None: full shuffle. See the how-to
            on choosing the shuffle.
        parallel_shard_iters: Blocks that mix in a lane, where batches are formed inside a lane; default 16.
        virtual_epoch_length: End an epoch after this many batches; 0: an iteration over an endless dataset never ends.
        shuffle_over_epochs_multiplier: Passes over the data that are shuffled as one; -1: draw with replacement; None:
            keep the order of the shards.
        task_encoder: The user's hooks; default: `DefaultTaskEncoder()`.
        repeat: Go over the data for ever. With False, an iteration is one pass and the next one is the next pass.
        seed: Of every random choice. `WorkerConfig.seed_offset` is mixed in.
        lanes: L, the number of interleaved sub-streams: a constant of the run, a multiple of every number of hosts that
            it shall continue on. Default: 48, or lcm(48, hosts).
        subset: Range of samples, `[start, end]` in numbers or percent.
        sample_type: What the dataset must hold; checked.
        part_filter: Parts to read of a crude dataset: names, or a predicate.
        dataset_config: Name of the dataset's configuration in `.nv-meta`.
        split_config: Name of its split configuration; default: as the dataset's configuration says, or `split.yaml`.
        trusted_modules: Modules whose classes the dataset's configuration may name.

    Raises:
        ConfigError: Arguments contradict each other. What the dataset itself lacks is raised when it is first used.
    """
    worker_config = worker_config or WorkerConfig.default_worker_config(num_workers=0)
    encoder = task_encoder or DefaultTaskEncoder()
    dataset: SavableDataset = LeafDataset(
        worker_config=worker_config,
        path=os.fspath(path),
        split_part=split_part,
        split_config=split_config,
        dataset_config=dataset_config,
        subset=None if subset is None else SubsetRange.parse(subset),
        training=True,
        max_samples_per_sequence=max_samples_per_sequence,
        shuffle_buffer_size=shuffle_buffer_size,
        parallel_shard_iters=parallel_shard_iters,
        shuffle_over_epochs_multiplier=shuffle_over_epochs_multiplier,
        task_encoder=encoder,
        part_filter=part_filter,
        sample_type=sample_type,
        trusted_modules=tuple(trusted_modules),
    )
    if repeat:
        dataset = RepeatDataset(worker_config=worker_config, dataset=dataset)
    dataset = _encode_and_batch(dataset, encoder, batch_size, _last_batch(last_batch, batch_drop_last, worker_config))
    if virtual_epoch_length < 0 or (virtual_epoch_length and not repeat):
        raise ConfigError(
            f"virtual_epoch_length={virtual_epoch_length} with repeat={repeat}: virtual epochs cut an endless stream; "
            f"give a positive number of batches and repeat=True, or 0"
        )
    if virtual_epoch_length:
        dataset = EpochizeDataset(worker_config=worker_config, dataset=dataset, length=virtual_epoch_length)
    return RunSettings(worker_config=worker_config, dataset=dataset, seed=seed, lanes=lanes)


def get_val_dataset(
    path: str | os.PathLike[str],
    *,
    split_part: str = "val",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None,
    batch_drop_last: bool = False,
    last_batch: LastBatch | None = None,
    limit: int | None = None,
    task_encoder: TaskEncoder | None = None,
    seed: int = 0,
    lanes: int | None = None,
    subset: Any = None,
    sample_type: type[Any] | None = None,
    part_filter: Callable[[str], bool] | Collection[str] | None = None,
    dataset_config: str = "dataset.yaml",
    split_config: str | None = None,
    trusted_modules: Collection[str] = (),
) -> SavableDataset:
    """Describe validation batches: every sample once, in the order of the shards, the same in every pass.

    Arguments are those of `get_train_dataset`, and `limit`: batches per host of each pass; None: all.

    Raises:
        ConfigError: Arguments contradict each other.
    """
    worker_config = worker_config or WorkerConfig.default_worker_config(num_workers=0)
    encoder = task_encoder or DefaultTaskEncoder()
    dataset: SavableDataset = LeafDataset(
        worker_config=worker_config,
        path=os.fspath(path),
        split_part=split_part,
        split_config=split_config,
        dataset_config=dataset_config,
        subset=None if subset is None else SubsetRange.parse(subset),
        training=False,
        shuffle_over_epochs_multiplier=None,
        task_encoder=encoder,
        part_filter=part_filter,
        sample_type=sample_type,
        trusted_modules=tuple(trusted_modules),
    )
    dataset = _encode_and_batch(dataset, encoder, batch_size, _last_batch(last_batch, batch_drop_last, worker_config))
    if limit is not None:
        dataset = LimitDataset(worker_config=worker_config, dataset=dataset, length=limit)
    return RunSettings(worker_config=worker_config, dataset=dataset, seed=seed, lanes=lanes, same_pass=True)


def _last_batch(last_batch: LastBatch | None, batch_drop_last: bool, worker_config: WorkerConfig) -> LastBatch:
    if last_batch is not None:
        if last_batch not in ("keep", "drop", "pad"):
            raise ConfigError(f"last_batch={last_batch!r}: 'keep', 'drop' or 'pad' is meant")
        if batch_drop_last and last_batch != "drop":
            raise ConfigError(f"batch_drop_last=True and last_batch={last_batch!r} contradict each other; give one")
        return last_batch
    if batch_drop_last:
        return "drop"
    return "keep" if worker_config.world_size == 1 else "pad"


def _encode_and_batch(
    dataset: SavableDataset, encoder: TaskEncoder, batch_size: int | None, last_batch: LastBatch
) -> SavableDataset:
    """The hooks that are overridden, in their order."""
    config = dataset.worker_config
    if (encode_sample := overridden_hook(encoder, "encode_sample")) is not None:
        dataset = MapDataset(
            worker_config=config, dataset=dataset, map_fn=encode_sample, hook="encode_sample", task_encoder=encoder
        )
    if batch_size is None:
        return dataset
    dataset = BatchDataset(
        worker_config=config,
        dataset=dataset,
        batch_size=batch_size,
        batcher=encoder.batch,
        last_batch=last_batch,
        task_encoder=encoder,
    )
    if (encode_batch := overridden_hook(encoder, "encode_batch")) is not None:
        dataset = MapDataset(
            worker_config=config, dataset=dataset, map_fn=encode_batch, hook="encode_batch", task_encoder=encoder
        )
    return dataset
