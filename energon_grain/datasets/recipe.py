"""The recipe of a task encoder's default builders: which dataset nodes stand over which, for which hooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from energon_grain.datasets.batching import BatchDataset, GroupBatchDataset, LastBatch
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.hooks import overridden_hook, owner_of_hook
from energon_grain.datasets.loaded_dataset import DatasetBlendMode, LoadedDataset, Schedule
from energon_grain.datasets.mapping import MapDataset
from energon_grain.datasets.mixtures import BlendDataset, BlendEpochizedDataset, ConcatDataset
from energon_grain.datasets.nodes import RepeatDataset
from energon_grain.datasets.packing import PackingDataset
from energon_grain.datasets.worker_config import WorkerConfig
from energon_grain.errors import ConfigError

if TYPE_CHECKING:
    from energon_grain.datasets.task_encoder import TaskEncoder


def combine_for_training(
    datasets: Sequence[LoadedDataset],
    worker_config: WorkerConfig,
    *,
    blend_mode: DatasetBlendMode,
    schedule: Schedule | None,
    repeat: bool,
) -> SavableDataset:
    """The mixture of the datasets, in the way that the metadataset says.

    Raises:
        ConfigError: There is no dataset, or the mixture has no end although `repeat` is False.
    """
    if not datasets:
        raise ConfigError("build_train_datasets: there is no dataset; pass at least one")
    if blend_mode is DatasetBlendMode.DATASET_WEIGHT:
        if not repeat:
            place = getattr(datasets[0], "combined_at", "")
            raise ConfigError(
                f"{place}{': ' if place else ''}a blend by weights has no end, so repeat=False has no meaning; use "
                f"`blend_epochized` with repetitions, or virtual_epoch_length"
            )
        return BlendDataset(*datasets, schedule=schedule, worker_config=worker_config)
    if blend_mode is DatasetBlendMode.SAMPLE_REPETITIONS:
        mixture: SavableDataset = BlendEpochizedDataset(*datasets, worker_config=worker_config)
    elif len(datasets) == 1:
        mixture = datasets[0][0]
    elif repeat:  # numbers that are neither weights nor repetitions do not count: equal shares
        return BlendDataset(*(dataset for dataset, _ in datasets), worker_config=worker_config)
    else:
        mixture = BlendEpochizedDataset(*(dataset for dataset, _ in datasets), worker_config=worker_config)
    return RepeatDataset(mixture, worker_config=worker_config) if repeat else mixture


def combine_for_validation(datasets: Sequence[LoadedDataset], worker_config: WorkerConfig) -> SavableDataset:
    """The datasets one after the other, each sample once; weights and repetitions have no meaning here.

    Raises:
        ConfigError: There is no dataset.
    """
    if not datasets:
        raise ConfigError("build_val_datasets: there is no dataset; pass at least one")
    return datasets[0][0] if len(datasets) == 1 else ConcatDataset(*datasets, worker_config=worker_config)


def encode_samples(dataset: SavableDataset, encoder: TaskEncoder, worker_config: WorkerConfig) -> SavableDataset:
    """The dataset with `encode_sample` or `preencode_sample` applied, where one of them is overridden.

    Raises:
        ConfigError: Both are.
    """
    both = [name for name in ("encode_sample", "preencode_sample") if overridden_hook(encoder, name) is not None]
    if len(both) > 1:
        raise ConfigError(
            f"{type(encoder).__name__} has encode_sample (or encoded_sample_type=…, which converts there) and "
            f"preencode_sample; they stand at the same place, so keep one of them"
        )
    return _map(dataset, encoder, both[0], worker_config) if both else dataset


def pack_and_batch(
    dataset: SavableDataset,
    encoder: TaskEncoder,
    worker_config: WorkerConfig,
    *,
    batch_size: int | None,
    batch_drop_last: bool,
    last_batch: LastBatch | None,
    packing_buffer_size: int | None,
) -> SavableDataset:
    """The dataset packed and batched, with the hooks that are overridden at their places.

    Raises:
        ConfigError: A hook that is needed is not overridden, or is a generator where one value is needed.
    """
    if packing_buffer_size is not None:
        dataset = _pack(dataset, encoder, worker_config, packing_buffer_size)
    elif overridden_hook(encoder, "postencode_sample") is not None:
        dataset = _map(dataset, encoder, "postencode_sample", worker_config)
    batcher = owner_of_hook(encoder, "batch").batch
    if (criterion := overridden_hook(encoder, "batch_group_criterion")) is not None:
        if last_batch == "pad":
            raise ConfigError(
                f"last_batch='pad' with {type(encoder).__name__}.batch_group_criterion: groups that are incomplete at "
                f"the end cannot be filled up; use 'drop', or 'keep' on one host"
            )
        dataset = GroupBatchDataset(
            dataset,
            batch_size,
            criterion,
            batcher,
            drop_last=batch_drop_last or last_batch == "drop",
            task_encoder=_owner(encoder, "batch", "batch_group_criterion"),
            worker_config=worker_config,
        )
    elif batch_size is not None:
        dataset = BatchDataset(
            dataset,
            batch_size,
            batcher,
            drop_last=batch_drop_last,
            last_batch=last_batch,
            task_encoder=_owner(encoder, "batch"),
            worker_config=worker_config,
        )
    else:
        return dataset
    if overridden_hook(encoder, "encode_batch") is not None:
        dataset = _map(dataset, encoder, "encode_batch", worker_config)
    return dataset


def _pack(
    dataset: SavableDataset, encoder: TaskEncoder, worker_config: WorkerConfig, buffer_size: int
) -> SavableDataset:
    select, pack = (overridden_hook(encoder, name) for name in ("select_samples_to_pack", "pack_selected_samples"))
    if select is None or pack is None:
        missing = "select_samples_to_pack" if select is None else "pack_selected_samples"
        raise ConfigError(
            f"packing_buffer_size={buffer_size}, but {type(encoder).__name__} has no {missing}; packing needs "
            f"select_samples_to_pack (which samples go together) and pack_selected_samples (one sample of each group)"
        )
    return PackingDataset(
        dataset,
        buffer_size,
        select,
        pack,
        sample_encoder=overridden_hook(encoder, "postencode_sample"),
        task_encoder=_owner(encoder, "select_samples_to_pack", "pack_selected_samples", "postencode_sample"),
        worker_config=worker_config,
    )


def _map(dataset: SavableDataset, encoder: TaskEncoder, hook: str, worker_config: WorkerConfig) -> SavableDataset:
    return MapDataset(
        dataset,
        overridden_hook(encoder, hook),
        hook=hook,
        task_encoder=_owner(encoder, hook),
        worker_config=worker_config,
    )


def _owner(encoder: TaskEncoder, *hooks: str) -> TaskEncoder:
    """Whose `thread_safe` counts: the encoder that has all of the hooks, or the outer one where they are of several."""
    owners = [owner_of_hook(encoder, hook) for hook in hooks]
    return owners[0] if all(owner is owners[0] for owner in owners) else encoder
