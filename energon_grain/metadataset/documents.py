# SPDX-License-Identifier: Apache-2.0
"""Whole documents: `MetadatasetV2`, the older `Metadataset`, and `DatasetLoader` for a single dataset."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import msgspec

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.leaf import LeafDataset
from energon_grain.datasets.mixtures import (
    BlendDataset,
    BlendEpochizedDataset,
    DatasetBlendMode,
    LoadedDataset,
    LoadedDatasets,
)
from energon_grain.errors import ConfigError, DatasetNotFoundError, ReadError, public
from energon_grain.formats.class_ref import ClassRef
from energon_grain.formats.data_files import one_text
from energon_grain.formats.yaml_dialect import parse_yaml
from energon_grain.forms import Place, as_mapping, did_you_mean, expected, unknown, wrong
from energon_grain.kinds.joins.build import JOIN_MEMORY_BYTES
from energon_grain.kinds.joins.index import index_file_name
from energon_grain.kinds.joins.leaf import JoinedLeafDataset
from energon_grain.metadataset.flat import flatten_blend, flatten_epochized, flattened, leaves_of
from energon_grain.metadataset.forms import (
    NODE_KEYS,
    OLDER,
    Child,
    DatasetReference,
    MetadatasetBlend,
    Node,
    node_schemas,
    older_schema,
    passes_of,
    plain,
    read_node,
)
from energon_grain.metadataset.prepare_joins import JoinProgress, MetadatasetReport, prepare_joins
from energon_grain.metadataset.resolve import Inherited, Leaf, Resolver
from energon_grain.samplers.expression import Expression
from energon_grain.samplers.split_ratio import SplitRatio
from energon_grain.samplers.subset import Subset
from energon_grain.sources.kinds import NOTHING, kind_at
from energon_grain.storage.epath import EPath
from energon_grain.storage.location import METADATASET_ENDINGS, is_url, join, located, name_of, no_such_path
from energon_grain.storage.remote import read_whole
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.task_encoder import TaskEncoder
from energon_grain.transforms.decode import SampleDecoder

_DECODER = SampleDecoder()
OF_LEAVES = (
    *("max_samples_per_sequence", "shuffle_buffer_size", "parallel_shard_iters", "part_filter", "sample_type"),
    *("dataset_config", "split_config", "split_ratio"),
)
"""Further arguments of `get_datasets`."""


@public
class DatasetLoaderInterface(ABC):
    """Returns the node to load for a split part.

    Programs written for Energon may call its methods `get_datasets`, `traverse`, `prepare` and `post_initialize`.
    `get_train_dataset` accepts it directly.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def file(self) -> str | None:
        """File for relative paths and for messages; None: paths are relative to the working directory."""

    @abstractmethod
    def node(self, split_part: str) -> Node | Mapping[str, Any]:
        """Return the node of a split; custom classes may return a mapping, as in a file. Raises ConfigError."""

    def get_datasets(
        self,
        *,
        training: bool,
        split_part: str,
        worker_config: WorkerConfig,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs_multiplier: int | None = 1,
        subset: Any = None,
        where: str | None = None,
        **options: Any,
    ) -> LoadedDatasets:
        """Return the leaves of a split as runnable datasets, each with its weight or its repetitions.

        These are the `datasets` of a task encoder's `build_train_datasets` and `build_val_datasets`; nothing is
        batched.

        Args:
            training: Whether samples are shuffled.
            split_part: The split, and the part of datasets that name none.
            worker_config: Configuration of the datasets.
            subflavors: Tags that override all others.
            shuffle_over_epochs_multiplier: Combined with the multipliers of all levels.
            subset: A range in percent for every leaf; for a single dataset also in numbers.
            where: A condition on columns for the samples of every leaf.
            **options: `decoder` (default: `SampleDecoder()`) or a whole `task_encoder` with cookers; arguments of
                `get_train_dataset` for leaves: `max_samples_per_sequence`, `shuffle_buffer_size`,
                `parallel_shard_iters`, `part_filter`, `sample_type`, `dataset_config`, `split_config`, `split_ratio`,
                `trusted_modules`.

        Raises:
            ConfigError: A document or an argument is invalid.
            DatasetNotFoundError: A file or a dataset is missing.
        """
        task_encoder = options.pop("task_encoder", None)
        decoder = options.pop("decoder", _DECODER)
        if task_encoder is None:
            task_encoder = TaskEncoder[Any, Any, Any, Any]()
            task_encoder.decoder = decoder
        trusted_modules = tuple(options.pop("trusted_modules", ()))
        for name in options:
            if name not in OF_LEAVES:
                raise TypeError(f"get_datasets() got an unexpected keyword argument {name!r}")
        leaf = leaf_maker(
            worker_config=worker_config,
            task_encoder=task_encoder,
            training=training,
            trusted_modules=trusted_modules,
            **options,
        )
        return training_datasets(
            self,
            True,
            leaf,
            split_part=split_part,
            subflavors=subflavors,
            shuffle_over_epochs_multiplier=shuffle_over_epochs_multiplier,
            subset=subset,
            where=where,
        )

    def traverse(self, mds_path: None = None, *, split_part: str) -> list[TraversedDatasetReference]:
        """Return the datasets of a split; see `traverse_metadataset`."""
        del mds_path
        return traverse_metadataset(self, split_part=split_part)

    def prepare(self, split_part: str | None = None) -> Sequence[EPath]:
        """Write the indexes of all joins of all splits, like `prepare_metadataset`, and return their paths."""
        del split_part
        joins = () if self.file is None else prepare_metadataset(self.file).joins
        return [EPath(join.folder / index_file_name(join.name)) for join in joins]

    def post_initialize(self, mds_path: None = None) -> None:
        """Do nothing; accepted for compatibility. Referenced files are read on use."""
        del mds_path


@public
@dataclass(frozen=True, kw_only=True, slots=True)
class _Splits(DatasetLoaderInterface):
    """A document with a node for each split."""

    path: str | os.PathLike[str] | None = None
    splits: Mapping[str, Any]
    place: Place | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        place = self._place.at("splits")
        splits = as_mapping(self.splits, place, "a mapping of split names to datasets")
        if not splits:
            raise wrong(place, "the mapping of splits is empty: add a split, such as `train`")
        read = {name: self._read(split, place.at(name)) for name, split in splits.items()}
        object.__setattr__(self, "splits", read)

    @abstractmethod
    def _read(self, value: Any, place: Place) -> Node:
        """Parse the node of a split; a parsed node is returned unchanged."""

    @property
    def _place(self) -> Place:
        return self.place or Place(type(self).__name__)

    @property
    def file(self) -> str | None:
        """See the interface."""
        return None if self.path is None else os.fspath(self.path)

    def node(self, split_part: str) -> Node:
        """See the interface."""
        if split_part in self.splits:
            return self.splits[split_part]
        advice = did_you_mean(split_part, self.splits) or f"; it has {', '.join(map(repr, self.splits))}"
        raise wrong(self._place.at("splits"), f"there is no split {split_part!r}{advice}")


class MetadatasetV2(_Splits):
    """A metadataset: for each split, a node that names or combines datasets."""

    __slots__ = ()

    def _read(self, value: Any, place: Place) -> Node:
        return read_node(value, place)


class Metadataset(_Splits):
    """A metadataset of the older form: for each split, a list of weighted datasets."""

    __slots__ = ()

    def _read(self, value: Any, place: Place) -> Node:
        return value if isinstance(value, Node) else _read_older(value, place)


def _read_older(value: Any, place: Place) -> Node:
    """Convert a split of the older form, `datasets:`, to the newer one. Places are those of the file."""
    split = as_mapping(value, place, "a mapping with datasets")
    for key in split:
        if key != "datasets":
            raise unknown(place, key, ("datasets",))
    if "datasets" not in split:
        raise wrong(place, "the key `datasets` is missing: write a list of datasets, each with a `weight`")
    datasets, at = split["datasets"], place.at("datasets")
    if not isinstance(datasets, list | tuple) or not datasets:
        raise wrong(at, expected("a list of at least one dataset", datasets))
    children = tuple(_read_older_child(each, at.at(number)) for number, each in enumerate(datasets))
    return MetadatasetBlend(blend=children, place=place)


def _read_older_child(value: Any, place: Place) -> Child:
    written = OLDER.read(value, place)
    if written.weight == 0:
        raise wrong(written.at.at("weight"), "weight 0: it must be above 0; to exclude the dataset, remove it")
    named = {key: getattr(written, key) for key in (*OLDER.keys, "place") if key != "weight"}
    return Child(DatasetReference(**named), None if written.weight is msgspec.UNSET else written.weight)


@public
@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetLoader(DatasetLoaderInterface):
    """A single prepared dataset."""

    path: str
    split_part: str | None = None
    subflavors: Mapping[str, Any] | None = None
    shuffle_over_epochs_multiplier: int | None = 1
    dataset_config: str | None = None
    split_config: str | None = None
    place: Place | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        node = self.node("")
        assert isinstance(node, DatasetReference)
        object.__setattr__(self, "path", str(node.path))

    @property
    def file(self) -> str | None:
        """See the interface: paths are relative to the working directory."""
        return None

    def node(self, split_part: str) -> Node:
        """See `DatasetLoaderInterface.node`. The dataset is assumed to have the split part."""
        names = ("path", "split_part", "subflavors", "shuffle_over_epochs_multiplier", "dataset_config", "split_config")
        fields = {name: getattr(self, name) for name in names}
        return read_node(fields, self.place or Place(str(self.path)))


DOCUMENT_FORMS: dict[str, type[MetadatasetV2 | Metadataset]] = {
    "MetadatasetV2": MetadatasetV2,
    "Metadataset": Metadataset,
}
"""The classes that a file can name. A file without a class has the older form."""
EXTENSION = "x-"
"""Prefix of top-level keys that are ignored, for anchors."""
_SPLITS_DOC = "The datasets to load, by split."


def read_document(path: str | os.PathLike[str]) -> MetadatasetV2 | Metadataset:
    """Read a metadataset file, without opening the files that it refers to.

    Raises ConfigError, DatasetNotFoundError and ReadError.
    """
    file = os.fspath(path)
    try:
        data = read_whole(file)
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetNotFoundError(no_such_path(file, "file")) from None
    except ReadError:
        raise
    except OSError as error:
        raise ConfigError(f"{file}: the metadataset cannot be read: {error.strerror}") from error
    return parse_document(parse_yaml(data, where=file), file=file)


def parse_document(content: Any, *, file: str | os.PathLike[str] | None = None) -> MetadatasetV2 | Metadataset:
    """Check and type the content of a metadataset. Raises ConfigError with the position in the document.

    Paths are relative to the folder of `file`; without one, to the working directory.
    """
    place = Place("metadataset" if file is None else os.fspath(file))
    mapping = as_mapping(content, place, "a mapping with `splits`")
    form = _document_form(mapping, place)
    for key in mapping:
        if key != "splits" and not key.startswith((EXTENSION, "__")):
            raise unknown(place, key, ("splits",))
    if "splits" not in mapping:
        raise wrong(place, f"the key `splits` is missing. {_SPLITS_DOC}")
    return form(path=None if file is None else os.fspath(file), splits=mapping["splits"], place=place)


def _check_older(splits: Any, place: Place) -> None:
    for name, split in splits.items() if isinstance(splits, Mapping) else ():
        if isinstance(split, Mapping) and "datasets" not in split and any(key in split for key in NODE_KEYS):
            raise wrong(
                place.at("splits", name),
                "this is the form of MetadatasetV2, but a file without a class has the older form with `datasets:`. "
                "Add `__module__: megatron.energon` and `__class__: MetadatasetV2` at the top of the file",
            )


def _document_form(mapping: Mapping[str, Any], place: Place) -> type[MetadatasetV2 | Metadataset]:
    for name in mapping:
        if name.startswith("__") and name not in ("__module__", "__class__"):
            raise wrong(place.at(name), "there is no such key. Known keys: __module__, __class__, splits")
    module = mapping.get("__module__", "megatron.energon")
    if not isinstance(module, str):
        raise wrong(place.at("__module__"), expected("text", module))
    if "__class__" not in mapping:
        _check_older(mapping.get("splits"), place)
        return Metadataset
    name = mapping["__class__"]
    if not isinstance(name, str) or not ClassRef(module=module, name=name).is_ours or name not in DOCUMENT_FORMS:
        raise wrong(
            place.at("__class__"),
            f"{module}.{name} is not a metadataset class"
            f"{'.' if name in DOCUMENT_FORMS else did_you_mean(str(name), DOCUMENT_FORMS) or '.'} "
            f"A file can name megatron.energon.{' or .'.join(DOCUMENT_FORMS)}; pass an object of a custom class in "
            "place of the path",
        )
    return DOCUMENT_FORMS[name]


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 7) of metadataset files of both forms, for editors.

    A file that matches the schema can still break rules that a schema cannot express, such as a `blend` inside
    `blend_epochized`, or a schedule that does not ascend.
    """
    datasets = {"description": "The datasets, each with a `weight`.", "type": "array", "items": older_schema()}
    blender = {
        "type": "object",
        "description": "A split of the older form: datasets blended by weights.",
        "properties": {"datasets": {**datasets, "minItems": 1}},
        "required": ["datasets"],
        "additionalProperties": False,
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Energon metadataset",
        "if": {"required": ["__class__"], "properties": {"__class__": {"const": "MetadatasetV2"}}},
        "then": _document_schema(MetadatasetV2, {"$ref": "#/definitions/node"}, "__class__", "splits"),
        "else": _document_schema(Metadataset, blender, "splits"),
        "definitions": node_schemas(),
    }


def _document_schema(form: type[Any], split: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "description": (form.__doc__ or "").split("\n")[0],
        "properties": {
            "__module__": {"description": "Module of the class in Energon: megatron.energon.", "type": "string"},
            "__class__": {"description": "The form of this file.", "const": form.__name__},
            "splits": {
                "description": _SPLITS_DOC,
                "type": "object",
                "additionalProperties": split,
                "minProperties": 1,
            },
        },
        "required": list(required),
        "additionalProperties": False,
        "patternProperties": {f"^{EXTENSION}": {"description": "Any value; for anchors."}},
    }


Source: TypeAlias = (
    str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, Any] | DatasetLoaderInterface
)
"""A path of a dataset or metadataset, a list of tars, the content of a metadataset, or a document object."""
LeafMaker: TypeAlias = Callable[..., LeafDataset]
"""Makes a leaf from the settings of a metadataset; the program's settings for all leaves are already bound."""


def leaf_maker(
    *, worker_config: WorkerConfig | None = None, task_encoder: TaskEncoder | None = None, **options: Any
) -> LeafMaker:
    """Return the maker of a program's leaves, with these fields of `LeafDataset` unless they are None.

    Settings in a document override `dataset_config` and `split_config`. By default, leaves belong to a single process
    and have no hooks.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if "split_ratio" in given:
        given["split_ratio"] = SplitRatio(given["split_ratio"])
    encoder = task_encoder or TaskEncoder[Any, Any, Any, Any]()
    config = worker_config or WorkerConfig(rank=0, world_size=1, num_workers=0)
    return partial(LeafDataset, worker_config=config, task_encoder=encoder, **given)


@public
def load_dataset(path: Source, *, root: str | os.PathLike[str] | None = None) -> DatasetLoaderInterface:
    """Read a metadataset, or describe a single dataset. Referenced files and datasets are not opened.

    Args:
        path: A path, the content of a metadataset as a mapping, or a document, which is returned unchanged.
        root: Folder for relative paths in a mapping. Default: the working directory.

    Raises:
        ConfigError: The metadataset is invalid; names the position in the document.
        DatasetNotFoundError: The path does not exist.
    """
    if isinstance(path, DatasetLoaderInterface):
        return path
    if isinstance(path, Mapping):
        document = parse_document(path)
        return document if root is None else replace(document, path=join(located(root), "metadataset"))
    path = located(path) if isinstance(path, str | os.PathLike) else one_text(path)
    single = not path.endswith(METADATASET_ENDINGS) if is_url(path) else os.path.isdir(path)
    if single or not (path.endswith(METADATASET_ENDINGS) or kind_at(path) is NOTHING):
        return DatasetLoader(path=path)
    if not (is_url(path) or os.path.exists(path) or path.endswith(METADATASET_ENDINGS)):
        raise DatasetNotFoundError(no_such_path(path))
    return read_document(path)


def load_metadataset(
    source: Source,
    leaf: LeafMaker | None = None,
    *,
    split_part: str,
    require_data: bool = True,
    root: str | os.PathLike[str] | None = None,
    **outer: Any,
) -> SavableDataset:
    """Resolve one split of a metadataset into a node: a leaf, or a mixture nested as in the file.

    Nested files are read and inserted, paths are made absolute, and split parts, tags, passes and subsets of all levels
    are merged into the leaves. No dataset is opened, and no code named by a file is imported. The path of a single
    dataset results in its leaf. With `require_data`, each dataset must exist locally and be prepared. For `source` and
    `root`, see `load_dataset`; for `outer` (`subflavors`, `shuffle_over_epochs_multiplier`, `subset`, `where`), see
    `get_datasets`.

    Raises ConfigError and DatasetNotFoundError, which name the file and the position in it.
    """
    resolver = Resolver(leaf or leaf_maker(), read_document, require_data=require_data)
    return _resolved(load_dataset(source, root=root), resolver, split_part=split_part, **outer)


def _resolved(
    document: DatasetLoaderInterface,
    resolver: Resolver,
    *,
    split_part: str,
    subflavors: Mapping[str, Any] | None = None,
    shuffle_over_epochs_multiplier: int | None = 1,
    subset: Subset | Any = None,
    where: str | None = None,
) -> SavableDataset:
    try:
        passes = passes_of(shuffle_over_epochs_multiplier)
    except ConfigError as error:
        raise ConfigError(f"shuffle_over_epochs_multiplier: {error}") from None
    subset = None if subset is None else Subset.parse(subset)
    outer = Inherited(
        split_part=split_part,
        subflavors=plain(subflavors or {}),
        passes=passes,
        subset=subset,
        where=None if where is None else Expression.parse(where, where="where"),
    )
    if not isinstance(document, DatasetLoader):
        return resolver.document(document, outer)
    # For a single dataset, the program may count samples, and its identity is the folder name, independent of location.
    node = document.node(split_part)
    assert isinstance(node, DatasetReference)
    alone = replace(outer, subset=None, folder=os.getcwd())
    leaf = resolver.node(msgspec.structs.replace(node, subset=subset), alone)
    assert isinstance(leaf, LeafDataset)
    return replace(leaf, written=name_of(node.path))


def training_datasets(source: Source, require_data: bool, leaf: LeafMaker, **outer: Any) -> LoadedDatasets:
    """Return the datasets at the top of a metadataset, and how to combine them. A single leaf is one dataset.

    Arguments and errors are those of `load_metadataset`; also raises ConfigError if a part cannot be trained on.
    """
    resolver = Resolver(leaf, read_document, require_data=require_data)
    tree = _resolved(load_dataset(source), resolver, **outer)
    if resolver.endless_at is not None:
        raise wrong(
            resolver.endless_at,
            "a blend by weights is endless, so nothing can follow it: use `blend_epochized` inside a concat",
        )
    for each in leaves_of(tree):
        each.check()
    at = str(resolver.mixed_at)
    if isinstance(tree, BlendDataset) and tree.weight_unit is None:
        children, schedule = flatten_blend(tree)
        weighted = zip(children, schedule[0][1], strict=True)
        return LoadedDatasets(
            datasets=[_loaded(child, weight=weight, combined_at=at) for child, weight in weighted],
            blend_mode=DatasetBlendMode.DATASET_WEIGHT,
            schedule=schedule if len(schedule) > 1 else None,
        )
    if isinstance(tree, BlendEpochizedDataset):
        repeated = flatten_epochized(tree)
        return LoadedDatasets(
            datasets=[_loaded(child, repetitions=number, combined_at=at) for child, number in repeated],
            blend_mode=DatasetBlendMode.SAMPLE_REPETITIONS,
        )
    return LoadedDatasets(datasets=[_loaded(tree, combined_at=at)], blend_mode=DatasetBlendMode.NONE)


def validation_datasets(source: Source, require_data: bool, leaf: LeafMaker, **outer: Any) -> list[LoadedDataset]:
    """Return the leaves in document order, without weights.

    Arguments are those of `training_datasets`. Raises ConfigError.
    """
    leaves = leaves_of(load_metadataset(source, leaf, require_data=require_data, **outer))
    for each in leaves:
        each.check()
    return [_loaded(each) for each in leaves]


def _loaded(node: SavableDataset, **combination: Any) -> LoadedDataset:
    if not isinstance(node, LeafDataset):
        return LoadedDataset(flattened(node), **combination)
    return LoadedDataset(
        node,
        **combination,
        subflavors=node.tags,
        path=node.path,
        split_part=node.split_part,
        name=node.name,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TraversedDatasetReference:
    """A leaf of a metadataset, as returned by `traverse_metadataset`.

    Attributes:
        path: The dataset.
        split_part: Its split part.
        aux: Paths of auxiliary stores, by name.
        subflavors: Tags of all levels, without those of the dataset's own `dataset.yaml`.
    """

    path: EPath
    split_part: str
    aux: dict[str, EPath]
    subflavors: dict[str, Any]


@public
def traverse_metadataset(path: Source, *, split_part: str) -> list[TraversedDatasetReference]:
    """List the datasets of a split of a metadataset, in document order. They need not exist.

    Datasets of a join are listed one by one, without the join's arrays.

    Raises:
        ConfigError: A document is invalid.
        DatasetNotFoundError: A nested metadataset is missing.
    """
    tree = load_metadataset(path, split_part=split_part, require_data=False)
    return [
        TraversedDatasetReference(
            path=EPath(dataset.path),
            split_part=dataset.split_part,
            aux={name: EPath(aux.path) for name, aux in dataset.aux.items()},
            subflavors=dict(dataset.tags),
        )
        for leaf in leaves_of(tree)
        for dataset in datasets_of(leaf)
    ]


def datasets_of(leaf: Leaf) -> tuple[LeafDataset, ...]:
    """Return the datasets that a leaf reads: itself, or the members of a join."""
    return leaf.datasets if isinstance(leaf, JoinedLeafDataset) else (leaf,)


def find_joins(path: str | os.PathLike[str], split_part: str | None = None) -> tuple[JoinedLeafDataset, ...]:
    """List the joins of a split of a metadataset (None: of all splits), also of nested ones, in document order.

    Raises ConfigError and DatasetNotFoundError.
    """
    document = read_document(path)
    splits = document.splits if split_part is None else (split_part,)
    trees = [load_metadataset(document, split_part=split, require_data=False) for split in splits]
    return tuple(leaf for tree in trees for leaf in leaves_of(tree) if isinstance(leaf, JoinedLeafDataset))


@public
def prepare_metadataset(
    path: str | os.PathLike[str],
    *,
    progress: JoinProgress | None = None,
    memory_bytes: int = JOIN_MEMORY_BYTES,
) -> MetadatasetReport:
    """Write the index of every join of a metadataset, and remove indexes of this library that no join needs any more.

    An index is written to `<file>.cache`, next to the file that contains the join: for a join in a nested metadataset,
    next to the nested file; for a metadataset in an object store, into the store. Valid indexes are kept. If Energon's
    name for the index is unambiguous, the file also gets that name. Files written by Energon are never changed or
    removed.

    Args:
        path: The metadataset file.
        progress: Called with the progress.
        memory_bytes: See `build_join`.

    Raises:
        ConfigError: A document is invalid, or a key is missing in a dataset and `nonmatch` does not allow that.
        DatasetNotFoundError: A metadataset, or a joined dataset or array, is missing.
        DuplicateKeyError: A dataset contains a key twice.
        EmptyDatasetError: A join has no row.
    """
    path = located(path)
    return prepare_joins(path, find_joins(path), progress=progress, memory_bytes=memory_bytes)
