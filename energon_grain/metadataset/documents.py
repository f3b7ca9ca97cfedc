"""Whole documents: `MetadatasetV2`, the older `Metadataset`, and `DatasetLoader` for a dataset by itself."""

# ruff: noqa: RUF009 (`key` is a field specifier)
from __future__ import annotations

import difflib
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from energon_grain.errors import ConfigError, DatasetNotFoundError, ReadError
from energon_grain.formats.class_ref import ClassRef
from energon_grain.formats.yaml_dialect import parse_yaml
from energon_grain.metadataset.blends import AnyNode, BlendEntry, MetadatasetBlend, Node
from energon_grain.metadataset.keys import build, check, form_schema, key, place_of
from energon_grain.metadataset.place import Place, as_mapping, wrong, wrong_type
from energon_grain.metadataset.references import (
    DATASET_CONFIG_DOC,
    NAME_DOC,
    PASSES_DOC,
    PATH_DOC,
    SPLIT_CONFIG_DOC,
    SPLIT_DOC,
    SUBFLAVOR_DOC,
    SUBFLAVORS_DOC,
    DatasetReference,
)
from energon_grain.metadataset.values import Amount, Passes, PathText, Tags, Text
from energon_grain.storage.epath import EPath
from energon_grain.storage.location import no_such_path
from energon_grain.storage.read_whole import read_whole

if TYPE_CHECKING:
    from energon_grain.datasets.loaded_dataset import LoadedDatasets
    from energon_grain.datasets.worker_config import WorkerConfig
    from energon_grain.metadataset.flat import TraversedDatasetReference


class DatasetLoaderInterface(ABC):
    """Something that says which node to load for a split part.

    Programs that were written for Energon may call its methods: `get_datasets`, `traverse`, `prepare` and
    `post_initialize`. `get_train_dataset` takes it as it is.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def file(self) -> str | None:
        """The file that paths are relative to, and that errors name; None: paths are relative to the working folder."""

    @abstractmethod
    def node(self, split_part: str) -> Node:
        """The node of a split.

        Raises:
            ConfigError: There is no such split.
        """

    def get_datasets(
        self,
        *,
        training: bool,
        split_part: str,
        worker_config: WorkerConfig,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs_multiplier: int | None = 1,
        subset: Any = None,
        **options: Any,
    ) -> LoadedDatasets:
        """The leaves of a split as datasets that can be run, each with its weight or its repetitions.

        They are what a task encoder's `build_train_datasets` and `build_val_datasets` get; nothing is batched.

        Args:
            training: Whether samples are shuffled.
            split_part: The split, and the part of datasets that name none.
            worker_config: Of the datasets.
            subflavors: Tags that override all others.
            shuffle_over_epochs_multiplier: Combined with those of all levels.
            subset: A range by percentages, taken of every leaf; by numbers too for a dataset by itself.
            **options: `decoder` (default: `SampleDecoder()`) or a whole `task_encoder`, with cookers; further arguments
                of `get_train_dataset` about leaves: `max_samples_per_sequence`, `shuffle_buffer_size`,
                `parallel_shard_iters`, `part_filter`, `sample_type`, `dataset_config`, `split_config`,
                `trusted_modules`.

        Raises:
            ConfigError: A document or an argument is not valid.
            DatasetNotFoundError: A file or a dataset is missing.
        """
        from energon_grain.datasets.get_datasets import loaded_datasets  # the layer above: for Energon's spelling

        return loaded_datasets(
            self,
            training=training,
            split_part=split_part,
            worker_config=worker_config,
            subflavors=subflavors,
            shuffle_over_epochs_multiplier=shuffle_over_epochs_multiplier,
            subset=subset,
            **options,
        )

    def traverse(self, mds_path: None = None, *, split_part: str) -> list[TraversedDatasetReference]:
        """The datasets that a split comes to; see `traverse_metadataset`."""
        from energon_grain.metadataset.flat import traverse_metadataset

        del mds_path
        return traverse_metadataset(self, split_part=split_part)

    def prepare(self, split_part: str | None = None) -> Sequence[EPath]:
        """Write the indices of all joins, of all splits, as `prepare_metadataset` does, and say where they lie."""
        del split_part
        if self.file is None:
            return ()
        from energon_grain.formats.join_index import index_file_name
        from energon_grain.metadataset.prepare_joins import prepare_metadataset

        joins = prepare_metadataset(self.file).joins
        return [EPath(join.folder / index_file_name(join.name)) for join in joins]

    def post_initialize(self, mds_path: None = None) -> None:
        """Accepted for compatibility: what the document refers to is read when it is used."""
        del mds_path


@dataclass(frozen=True, slots=True)
class Splits:
    """A mapping of split names to a form."""

    kind: Any

    def convert(self, value: Any, place: Place) -> dict[str, Any]:
        """Read them."""
        splits = as_mapping(value, place, "a mapping of split names to datasets")
        if not splits:
            raise wrong(place, "there is no split")
        return {name: self.kind.convert(split, place.at(name)) for name, split in splits.items()}

    def schema(self) -> dict[str, Any]:
        """JSON Schema."""
        return {"type": "object", "additionalProperties": self.kind.schema(), "minProperties": 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class MetadatasetV2(DatasetLoaderInterface):
    """A metadataset: for each split, a node that names or combines datasets."""

    path: str | os.PathLike[str] | None = None
    splits: Mapping[str, Node] = key(Splits(AnyNode()), "What to load, by split.")
    place: Place | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check(self)

    @property
    def file(self) -> str | None:
        """As in the interface."""
        return None if self.path is None else os.fspath(self.path)

    def node(self, split_part: str) -> Node:
        """As in the interface."""
        return _split(self.splits, split_part, place_of(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class MetadatasetReference:
    """A weighted dataset of the older form."""

    path: str = key(PathText(), PATH_DOC)
    weight: Fraction = key(Amount("weight"), "Share of the stream, relative to the other weights.", default=Fraction(1))
    split_part: str | None = key(Text(), SPLIT_DOC, default=None)
    subflavor: str | None = key(Text(), SUBFLAVOR_DOC, default=None)
    subflavors: Mapping[str, Any] | None = key(Tags(), SUBFLAVORS_DOC, default=None)
    shuffle_over_epochs_multiplier: int | None = key(Passes(), PASSES_DOC, default=1, nullable=True)
    dataset_config: str | None = key(Text(), DATASET_CONFIG_DOC, default=None)
    split_config: str | None = key(Text(), SPLIT_CONFIG_DOC, default=None)
    name: str | None = key(Text(), NAME_DOC, default=None)
    place: Place | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check(self)

    def entry(self) -> BlendEntry:
        """The same in the newer form."""
        node = DatasetReference(
            path=self.path,
            split_part=self.split_part,
            subflavor=self.subflavor,
            subflavors=self.subflavors,
            shuffle_over_epochs_multiplier=self.shuffle_over_epochs_multiplier,
            dataset_config=self.dataset_config,
            split_config=self.split_config,
            name=self.name,
            place=self.place,
        )
        return BlendEntry(node=node, weight=self.weight, place=self.place)


@dataclass(frozen=True, slots=True)
class _References:
    """A list of weighted datasets."""

    def convert(self, value: Any, place: Place) -> tuple[MetadatasetReference, ...]:
        if not isinstance(value, list | tuple) or not value:
            raise wrong_type(place, "a list of at least one dataset", value)
        return tuple(build(MetadatasetReference, item, place.at(number)) for number, item in enumerate(value))

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": form_schema(MetadatasetReference), "minItems": 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class MetadatasetBlender:
    """A split of the older form: datasets blended by weights."""

    datasets: tuple[MetadatasetReference, ...] = key(_References(), "The datasets, each with a `weight`.")
    place: Place | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class _Blender:
    """A split of the older form."""

    def convert(self, value: Any, place: Place) -> MetadatasetBlender:
        return build(MetadatasetBlender, value, place)

    def schema(self) -> dict[str, Any]:
        return form_schema(MetadatasetBlender)


@dataclass(frozen=True, kw_only=True, slots=True)
class Metadataset(DatasetLoaderInterface):
    """A metadataset of the older form: for each split, a list of weighted datasets."""

    path: str | os.PathLike[str] | None = None
    splits: Mapping[str, MetadatasetBlender] = key(Splits(_Blender()), "What to load, by split.")
    place: Place | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check(self)

    @property
    def file(self) -> str | None:
        """As in the interface."""
        return None if self.path is None else os.fspath(self.path)

    def node(self, split_part: str) -> Node:
        """As in the interface."""
        blender = _split(self.splits, split_part, place_of(self))
        # Places are those of the file: there the list is called `datasets`.
        return MetadatasetBlend(blend=tuple(each.entry() for each in blender.datasets), place=blender.place)


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetLoader(DatasetLoaderInterface):
    """A prepared dataset by itself."""

    path: str = key(PathText(), "A prepared dataset folder, or a .jsonl file.")
    split_part: str | None = key(Text(), SPLIT_DOC, default=None)
    subflavors: Mapping[str, Any] | None = key(Tags(), SUBFLAVORS_DOC, default=None)
    shuffle_over_epochs_multiplier: int | None = key(Passes(), PASSES_DOC, default=1, nullable=True)
    dataset_config: str | None = key(Text(), DATASET_CONFIG_DOC, default=None)
    split_config: str | None = key(Text(), SPLIT_CONFIG_DOC, default=None)
    place: Place | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check(self)

    @property
    def file(self) -> str | None:
        """As in the interface: paths are relative to the working folder."""
        return None

    def node(self, split_part: str) -> Node:
        """As in the interface; every split part is taken to exist."""
        return DatasetReference(
            path=self.path,
            split_part=self.split_part,
            subflavors=self.subflavors,
            shuffle_over_epochs_multiplier=self.shuffle_over_epochs_multiplier,
            dataset_config=self.dataset_config,
            split_config=self.split_config,
            place=self.place or Place(self.path),
        )


DOCUMENT_FORMS: dict[str, type[Any]] = {"MetadatasetV2": MetadatasetV2, "Metadataset": Metadataset}
"""The classes that a file can name. Without one, it is of the older form."""

EXTENSION = "x-"
"""Keys at the top of a document that begin so are passed over: a place for anchors."""


def read_document(path: str | os.PathLike[str]) -> MetadatasetV2 | Metadataset:
    """Read a metadataset file. Files that it refers to are not opened.

    Raises:
        ConfigError: It is not valid; names the place in the document.
        DatasetNotFoundError: There is no such file.
        ReadError: An object store cannot be reached.
    """
    file = os.fspath(path)
    try:
        data = read_whole(file)
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetNotFoundError(no_such_path(file, "file")) from None
    except ReadError:
        raise
    except OSError as error:
        raise ConfigError(f"{file}: a metadataset is a file that can be read: {error.strerror}") from error
    return parse_document(parse_yaml(data, where=file), file=file)


def parse_document(content: Any, *, file: str | os.PathLike[str] | None = None) -> MetadatasetV2 | Metadataset:
    """Check and type the content of a metadataset.

    Args:
        content: What the file holds, as mappings, lists and scalars.
        file: Where it lies: paths are relative to its folder. None: to the working folder.

    Raises:
        ConfigError: It is not valid; names the place in the document.
    """
    place = Place("metadataset" if file is None else os.fspath(file))
    mapping = as_mapping(content, place, "a mapping with `splits`")
    form = _document_form(mapping, place)
    body = {name: value for name, value in mapping.items() if not name.startswith((EXTENSION, "__"))}
    document = build(form, body, place)
    if file is not None:
        object.__setattr__(document, "path", os.fspath(file))
    return document


def _document_form(mapping: Mapping[str, Any], place: Place) -> type[Any]:
    for name in mapping:
        if name.startswith("__") and name not in ("__module__", "__class__"):
            raise wrong(place.at(name), "there is no such key. Known here: __module__, __class__, splits")
    module = mapping.get("__module__", "megatron.energon")
    if not isinstance(module, str):
        raise wrong_type(place.at("__module__"), "text", module)
    if "__class__" not in mapping:
        _older_form(mapping, place)
        return Metadataset
    name = mapping["__class__"]
    if not isinstance(name, str) or not ClassRef(module=module, name=name).is_ours or name not in DOCUMENT_FORMS:
        close = difflib.get_close_matches(str(name), DOCUMENT_FORMS, n=1)
        raise wrong(
            place.at("__class__"),
            f"{module}.{name} is no metadataset. "
            + (f"Did you mean {close[0]!r}?" if close and name not in DOCUMENT_FORMS else "")
            + f" A file can name megatron.energon.{' or .'.join(DOCUMENT_FORMS)}; an object of a class of your own "
            "is passed in place of the path",
        )
    return DOCUMENT_FORMS[name]


def _older_form(mapping: Mapping[str, Any], place: Place) -> None:
    """Say what is missing where a document of the newer form does not name its class."""
    splits = mapping.get("splits")
    for name, split in splits.items() if isinstance(splits, Mapping) else ():
        if isinstance(split, Mapping) and "datasets" not in split and any(form in split for form in _NEWER):
            raise wrong(
                place.at("splits", name),
                "this is the form of MetadatasetV2, but a file that names no class is an older Metadataset, with "
                "`datasets:` here. Write `__module__: megatron.energon` and `__class__: MetadatasetV2` at its top",
            )


_NEWER = ("path", "blend", "blend_epochized", "concat", "join")


def _split(splits: Mapping[str, Any], split_part: str, place: Place) -> Any:
    if split_part in splits:
        return splits[split_part]
    close = difflib.get_close_matches(split_part, splits, n=1)
    advice = f". Did you mean {close[0]!r}?" if close else f"; it has {', '.join(map(repr, splits))}"
    raise wrong(place.at("splits"), f"there is no split {split_part!r}{advice}")


__all__ = [
    "DOCUMENT_FORMS",
    "EXTENSION",
    "DatasetLoader",
    "DatasetLoaderInterface",
    "Metadataset",
    "MetadatasetBlender",
    "MetadatasetReference",
    "MetadatasetV2",
    "parse_document",
    "read_document",
]
