"""The two entry points: a dataset for training, and one for validation."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Any

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.from_metadataset import (
    LeafOptions,
    training_dataset,
    validation_dataset,
    validation_leaves,
)
from energon_grain.datasets.leaf import check_passes
from energon_grain.datasets.nodes import (
    BatchDataset,
    EpochizeDataset,
    LastBatch,
    LimitDataset,
    MapDataset,
)
from energon_grain.datasets.run_settings import RunSettings
from energon_grain.datasets.task_encoder import DefaultTaskEncoder, TaskEncoder, overridden_hook
from energon_grain.datasets.worker_config import WorkerConfig
from energon_grain.errors import ConfigError
from energon_grain.metadataset.documents import DatasetLoader
from energon_grain.metadataset.load import Source, load_metadataset
from energon_grain.metadataset.resolve import METADATASET_ENDINGS
from energon_grain.metadataset.tree import TreeLeaf, TreeNode


def get_train_dataset(
    path: Source,
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
    dataset_config: str | None = None,
    split_config: str | None = None,
    trusted_modules: Collection[str] = (),
) -> SavableDataset:
    """Describe shuffled training batches of a prepared dataset.

    Which samples make a batch, and every random number used on them, depend on the data, these arguments and the step
    alone; `worker_config` decides who reads what, never what is read.

    Args:
        path: Folder of a prepared dataset (`energon-grain prepare`), or a metadataset: a YAML file, its content as a
            mapping, or a `MetadatasetV2` made in Python.
        split_part: Part of the split to read.
        worker_config: This host among all hosts, and its workers; default: this process alone, or as `jax.distributed`
            says, without workers.
        batch_size: Samples in the batch of one host; None: single samples (of a finite pass on several hosts, those
            at the end that do not give one to each host are left out).
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
        dataset_config: Name of the dataset's configuration in `.nv-meta`; default: `dataset.yaml`.
        split_config: Name of its split configuration; default: as the dataset's configuration says, or `split.yaml`.
        trusted_modules: Modules whose classes the dataset's configuration may name.

    Raises:
        ConfigError: Arguments contradict each other. What the dataset itself lacks is raised when it is first used.
    """
    check_passes(shuffle_over_epochs_multiplier)
    worker_config = worker_config or WorkerConfig.default_worker_config(num_workers=0)
    encoder = task_encoder or DefaultTaskEncoder()
    options = LeafOptions(
        worker_config=worker_config,
        task_encoder=encoder,
        training=True,
        max_samples_per_sequence=max_samples_per_sequence,
        shuffle_buffer_size=shuffle_buffer_size,
        parallel_shard_iters=parallel_shard_iters,
        dataset_config=dataset_config,
        split_config=split_config,
        part_filter=part_filter,
        sample_type=sample_type,
        trusted_modules=tuple(trusted_modules),
    )
    tree = _tree(
        path, split_part=split_part, shuffle_over_epochs_multiplier=shuffle_over_epochs_multiplier, subset=subset
    )
    dataset = training_dataset(tree, options, repeat=repeat)
    dataset = _encode_and_batch(dataset, encoder, batch_size, _last_batch(last_batch, batch_drop_last, worker_config))
    if virtual_epoch_length < 0 or (virtual_epoch_length and not repeat):
        raise ConfigError(
            f"virtual_epoch_length={virtual_epoch_length} with repeat={repeat}: virtual epochs cut an endless stream; "
            f"give a positive number of batches and repeat=True, or 0"
        )
    if virtual_epoch_length:
        dataset = EpochizeDataset(dataset, virtual_epoch_length, worker_config=worker_config)
    return RunSettings(worker_config=worker_config, dataset=dataset, seed=seed, lanes=lanes)


def get_val_dataset(
    path: Source,
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
    dataset_config: str | None = None,
    split_config: str | None = None,
    trusted_modules: Collection[str] = (),
) -> SavableDataset:
    """Describe validation batches: every sample once, in the order of the shards, the same in every pass.

    Arguments are those of `get_train_dataset`, and `limit`: batches per host of each pass; None: all.

    Raises:
        ConfigError: Arguments contradict each other.
    """
    worker_config = worker_config or WorkerConfig.default_worker_config(num_workers=0)
    options = LeafOptions(
        worker_config=worker_config,
        task_encoder=task_encoder or DefaultTaskEncoder(),
        training=False,
        dataset_config=dataset_config,
        split_config=split_config,
        part_filter=part_filter,
        sample_type=sample_type,
        trusted_modules=tuple(trusted_modules),
    )
    dataset = validation_dataset(_tree(path, split_part=split_part, subset=subset), options)
    last = _last_batch(last_batch, batch_drop_last, worker_config)
    return _validation_run(dataset, options, batch_size, last, limit, seed, lanes)


def get_val_datasets(
    path: Source,
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
    dataset_config: str | None = None,
    split_config: str | None = None,
    trusted_modules: Collection[str] = (),
) -> list[tuple[SavableDataset, TreeLeaf]]:
    """Describe validation batches of each leaf by itself, to report one loss for each.

    Arguments are those of `get_val_dataset`; `limit` counts batches of each leaf.

    Returns:
        For each leaf of the metadataset, in document order, its dataset and where it comes from: path, split part,
        subset, subflavors, name. A dataset by itself is one leaf.

    Raises:
        ConfigError: Arguments contradict each other, or a leaf cannot be read.
    """
    worker_config = worker_config or WorkerConfig.default_worker_config(num_workers=0)
    options = LeafOptions(
        worker_config=worker_config,
        task_encoder=task_encoder or DefaultTaskEncoder(),
        training=False,
        dataset_config=dataset_config,
        split_config=split_config,
        part_filter=part_filter,
        sample_type=sample_type,
        trusted_modules=tuple(trusted_modules),
    )
    leaves = validation_leaves(_tree(path, split_part=split_part, subset=subset), options)
    last = _last_batch(last_batch, batch_drop_last, worker_config)
    return [
        (_validation_run(dataset, options, batch_size, last, limit, seed, lanes), reference)
        for dataset, reference in leaves
    ]


def _validation_run(
    dataset: SavableDataset,
    options: LeafOptions,
    batch_size: int | None,
    last_batch: LastBatch,
    limit: int | None,
    seed: int,
    lanes: int | None,
) -> SavableDataset:
    dataset = _encode_and_batch(dataset, options.task_encoder, batch_size, last_batch)
    if limit is not None:
        if limit < 1:
            raise ConfigError(f"limit={limit}: a positive number of batches, or None for all, is meant")
        dataset = LimitDataset(dataset, limit, worker_config=options.worker_config)
    return RunSettings(worker_config=options.worker_config, dataset=dataset, seed=seed, lanes=lanes, same_pass=True)


def _tree(path: Source, **options: Any) -> TreeNode:
    """What `path` describes. The documents of a metadataset are read; of a dataset nothing is, it may not exist yet."""
    if isinstance(path, str | os.PathLike) and not os.fspath(path).endswith(METADATASET_ENDINGS):
        return load_metadataset(DatasetLoader(path=os.fspath(path)), require_data=False, **options)
    return load_metadataset(path, **options)


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
    if (encode_sample := overridden_hook(encoder, "encode_sample")) is not None:
        dataset = MapDataset(dataset, encode_sample, hook="encode_sample", task_encoder=encoder)
    if batch_size is None:
        return dataset
    dataset = BatchDataset(dataset, batch_size, encoder.batch, last_batch=last_batch, task_encoder=encoder)
    if (encode_batch := overridden_hook(encoder, "encode_batch")) is not None:
        dataset = MapDataset(dataset, encode_batch, hook="encode_batch", task_encoder=encoder)
    return dataset
