"""From a resolved metadataset to dataset nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.leaf import LeafDataset
from energon_grain.datasets.mixtures import BlendDataset, BlendEpochizedDataset, ConcatDataset
from energon_grain.datasets.nodes import RepeatDataset
from energon_grain.datasets.task_encoder import TaskEncoder
from energon_grain.datasets.worker_config import WorkerConfig
from energon_grain.errors import ConfigError
from energon_grain.formats.nv_meta import DatasetKind
from energon_grain.metadataset.flat import flatten_blend, flatten_epochized, leaves_of
from energon_grain.metadataset.tree import Blend, BlendEpochized, Concat, Join, TreeLeaf, TreeNode


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafOptions:
    """What the program says of every leaf; see `LeafDataset`."""

    worker_config: WorkerConfig
    task_encoder: TaskEncoder
    training: bool
    max_samples_per_sequence: int | None = None
    shuffle_buffer_size: int | None = None
    parallel_shard_iters: int | None = None
    dataset_config: str | None = None
    split_config: str | None = None
    part_filter: Callable[[str], bool] | Collection[str] | None = None
    sample_type: type[Any] | None = None
    trusted_modules: tuple[str, ...] = ()


def training_dataset(tree: TreeNode, options: LeafOptions, *, repeat: bool) -> SavableDataset:
    """The mixture that a metadataset describes; a single leaf is one too.

    Raises:
        ConfigError: Something in it cannot be trained on, or not with `repeat` as it is.
    """
    dataset = _mixture(tree, options)
    if isinstance(tree, Blend):
        if not repeat:
            raise ConfigError(
                f"{tree.place}: a blend by weights has no end, so repeat=False has no meaning; use `blend_epochized` "
                f"with repetitions, or virtual_epoch_length"
            )
        return dataset
    return RepeatDataset(dataset, worker_config=options.worker_config) if repeat else dataset


def validation_dataset(tree: TreeNode, options: LeafOptions) -> SavableDataset:
    """All leaves one after the other, each sample once; weights and repetitions have no meaning here."""
    leaves = [leaf for leaf, _ in validation_leaves(tree, options)]
    return leaves[0] if len(leaves) == 1 else ConcatDataset(*leaves)


def validation_leaves(tree: TreeNode, options: LeafOptions) -> list[tuple[LeafDataset, TreeLeaf]]:
    """Each leaf by itself, in document order, with what the metadataset says of it.

    Raises:
        ConfigError: A leaf cannot be read.
    """
    return [(_leaf(leaf, options), leaf) for leaf in leaves_of(tree)]


def _mixture(tree: TreeNode, options: LeafOptions) -> SavableDataset:
    match tree:
        case Blend():
            children, schedule = flatten_blend(tree)
            datasets = [_mixture(child, options) for child in children]
            return BlendDataset(*datasets, schedule=schedule)
        case BlendEpochized():
            children, repetitions = flatten_epochized(tree)
            datasets = [_mixture(child, options) for child in children]
            return BlendEpochizedDataset(*zip(datasets, repetitions, strict=True))
        case Concat():
            if any(isinstance(child, Blend) for child in tree.children):
                raise ConfigError(
                    f"{tree.place}: a blend by weights has no end, so nothing can follow it; use `blend_epochized` "
                    f"inside a concat"
                )
            return ConcatDataset(*(_mixture(child, options) for child in tree.children))
        case _:
            return _leaf(tree, options)


def _leaf(leaf: TreeLeaf, options: LeafOptions) -> LeafDataset:
    if isinstance(leaf, Join):
        raise ConfigError(f"{leaf.place}: joins cannot be read yet; join the datasets beforehand")
    if leaf.kind not in (DatasetKind.WEBDATASET, DatasetKind.INVALID):  # what is missing says so when it is opened
        raise ConfigError(f"{leaf.place}: {leaf.path} is a {leaf.kind.name} dataset; only tar shards can be read yet")
    if leaf.aux:
        raise ConfigError(f"{leaf.place}: auxiliary stores cannot be read yet; remove `aux`, or cook without them")
    return LeafDataset(
        worker_config=options.worker_config,
        path=leaf.path,
        written="/".join((*leaf.through, leaf.written)),
        split_part=leaf.split_part,
        split_config=leaf.split_config or options.split_config,
        dataset_config=leaf.dataset_config or options.dataset_config or "dataset.yaml",
        subset=leaf.subset,
        subflavors=leaf.subflavors,
        training=options.training,
        max_samples_per_sequence=options.max_samples_per_sequence,
        shuffle_buffer_size=options.shuffle_buffer_size,
        parallel_shard_iters=options.parallel_shard_iters,
        shuffle_over_epochs_multiplier=leaf.shuffle_over_epochs_multiplier if options.training else None,
        name=leaf.name,
        task_encoder=options.task_encoder,
        part_filter=options.part_filter,
        sample_type=options.sample_type,
        trusted_modules=options.trusted_modules,
    )
