"""From a resolved metadataset to dataset nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.joined_leaf import ArrayDataset, JoinedLeafDataset
from energon_grain.datasets.leaf import LeafDataset, Ordering
from energon_grain.datasets.loaded_dataset import DatasetBlendMode, LoadedDataset, LoadedDatasets
from energon_grain.datasets.mixtures import BlendDataset, BlendEpochizedDataset, ConcatDataset
from energon_grain.datasets.task_encoder import TaskEncoder
from energon_grain.datasets.worker_config import WorkerConfig
from energon_grain.errors import ConfigError
from energon_grain.formats.nv_meta import DatasetKind
from energon_grain.metadataset.flat import flatten_blend, flatten_epochized, leaves_of
from energon_grain.metadataset.load import Source, load_metadataset
from energon_grain.metadataset.tree import (
    ArrayReference,
    Blend,
    BlendEpochized,
    Concat,
    Join,
    LeafReference,
    TreeLeaf,
    TreeNode,
)
from energon_grain.storage.location import is_url
from energon_grain.transforms.decode import SampleDecoder

_DECODER = SampleDecoder()


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


def loaded_datasets(
    source: Source,
    *,
    training: bool,
    worker_config: WorkerConfig,
    decoder: SampleDecoder | None = _DECODER,
    task_encoder: TaskEncoder | None = None,
    split_part: str,
    subflavors: Mapping[str, Any] | None = None,
    shuffle_over_epochs_multiplier: int | None = 1,
    subset: Any = None,
    trusted_modules: Collection[str] = (),
    **options: Any,
) -> LoadedDatasets:
    """The datasets of a split; see `DatasetLoaderInterface.get_datasets`."""
    if task_encoder is None:
        task_encoder = TaskEncoder[Any, Any, Any, Any]()
        task_encoder.decoder = decoder
    known = [each.name for each in fields(LeafOptions)]
    for name in options:
        if name not in known:
            raise TypeError(f"get_datasets() got an unexpected keyword argument {name!r}")
    tree = load_metadataset(
        source,
        split_part=split_part,
        subflavors=subflavors,
        shuffle_over_epochs_multiplier=shuffle_over_epochs_multiplier,
        subset=subset,
    )
    leaf_options = LeafOptions(
        worker_config=worker_config,
        task_encoder=task_encoder,
        training=training,
        trusted_modules=tuple(trusted_modules),
        **options,
    )
    return training_datasets(tree, leaf_options)


def training_datasets(tree: TreeNode, options: LeafOptions) -> LoadedDatasets:
    """The datasets at the top of a metadataset, and how they are combined; a single leaf is one too.

    Raises:
        ConfigError: Something in it cannot be trained on.
    """
    match tree:
        case Blend():
            children, schedule = flatten_blend(tree)
            return LoadedDatasets(
                datasets=[
                    _loaded(child, options, weight=weight, combined_at=str(tree.place))
                    for child, weight in zip(children, schedule[0][1], strict=True)
                ],
                blend_mode=DatasetBlendMode.DATASET_WEIGHT,
                schedule=schedule if len(schedule) > 1 else None,
            )
        case BlendEpochized():
            children, repetitions = flatten_epochized(tree)
            return LoadedDatasets(
                datasets=[
                    _loaded(child, options, repetitions=number, combined_at=str(tree.place))
                    for child, number in zip(children, repetitions, strict=True)
                ],
                blend_mode=DatasetBlendMode.SAMPLE_REPETITIONS,
            )
        case _:
            return LoadedDatasets(datasets=[_loaded(tree, options)], blend_mode=DatasetBlendMode.NONE)


def validation_datasets(tree: TreeNode, options: LeafOptions) -> list[tuple[LoadedDataset, TreeLeaf]]:
    """Each leaf by itself, in document order, with what the metadataset says of it. Its numbers have no meaning here.

    Raises:
        ConfigError: A leaf cannot be read.
    """
    return [(_loaded(leaf, options), leaf) for leaf in leaves_of(tree)]


def _loaded(tree: TreeNode, options: LeafOptions, **combination: Any) -> LoadedDataset:
    dataset = _mixture(tree, options)
    if not isinstance(tree, LeafReference):
        return LoadedDataset(dataset, **combination)
    return LoadedDataset(
        dataset,
        **combination,
        subflavors=tree.subflavors,
        path=tree.path,
        split_part=tree.split_part,
        name=tree.name,
    )


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


def _joined(join: Join, options: LeafOptions) -> JoinedLeafDataset:
    # Rows are ordered and cut, not the datasets that they are made of; a joiner says what they hold.
    plain = replace(options, training=False, sample_type=None)
    return JoinedLeafDataset(
        worker_config=options.worker_config,
        join=join,
        members=tuple(
            ArrayDataset(path=member.leaf.path, written=_written(member.leaf), field=member.leaf.field)
            if isinstance(member.leaf, ArrayReference)
            else _leaf_dataset(member.leaf, plain, whole=True)
            for member in join.members
        ),
        ordering=Ordering(
            said_by=f"{join.place}: ",
            training=options.training,
            passes=join.shuffle_over_epochs_multiplier if options.training else None,
            block=options.max_samples_per_sequence,
            mixing=options.shuffle_buffer_size,
            blocks_in_lane=options.parallel_shard_iters,
        ),
        task_encoder=options.task_encoder,
        split_config=options.split_config,
        dataset_config=options.dataset_config,
        trusted_modules=options.trusted_modules,
    )


def _written(leaf: LeafReference | ArrayReference) -> str:
    """The path, through all nested metadatasets."""
    return "/".join((*leaf.through, leaf.written))


def _leaf(leaf: TreeLeaf, options: LeafOptions) -> LeafDataset | JoinedLeafDataset:
    return _joined(leaf, options) if isinstance(leaf, Join) else _leaf_dataset(leaf, options)


def _leaf_dataset(leaf: LeafReference, options: LeafOptions, *, whole: bool = False) -> LeafDataset:
    """The node of a leaf. What is wrong with one on this machine is said now, and of one in a store when it is used."""
    remote = is_url(leaf.path)
    dataset = LeafDataset(
        worker_config=options.worker_config,
        path=leaf.path,
        kind=None if remote or leaf.kind is DatasetKind.INVALID else leaf.kind,
        written=_written(leaf),
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
        aux=leaf.aux,
        place=leaf.place,
    )
    if not remote:
        dataset.check(whole=whole)
    return dataset
