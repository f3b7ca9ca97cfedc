# SPDX-License-Identifier: Apache-2.0
"""A dataset in a configuration: its source and its sample definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.hooks import SampleMaker
from energon_grain.datasets.lowering import Lowering, Part
from energon_grain.errors import ConfigError
from energon_grain.forms import Place, errors_at
from energon_grain.samplers.expression import Expression
from energon_grain.samplers.split_ratio import SplitRatio
from energon_grain.samplers.subset import Subset, part_of
from energon_grain.samples.types import CrudeSample
from energon_grain.sources.cache_pool import CachePool
from energon_grain.sources.kinds import Kind, Opened, kind_at, opener_of
from energon_grain.sources.rows import selected
from energon_grain.sources.source import PartFilter, Source
from energon_grain.storage.epath import EPath
from energon_grain.storage.location import is_url, located, without_revision
from energon_grain.storage.remote import shared_client
from energon_grain.storage.settings import storage_settings
from energon_grain.stream.extensions import CHECK_AUX, COOKING, extension
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.spec import Ordering, Resolved, ResolvedLeaf
from energon_grain.transforms.decode import ColumnDecoder, SampleDecoder
from energon_grain.transforms.field_map import FieldMap

_DATASET_CONFIG = "dataset.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleDefinition:
    """How samples are made from parts.

    Attributes:
        sample_type: None: samples are crude, and cooked by the task encoder.
        field_map: Sources of the fields of `sample_type`.
        load: Replaces a field map: makes a sample from a crude one, whose parts are bytes. May run in several threads.
        decoder: Decodes the parts; None keeps them as bytes.
        part_filter: Parts to read without a field map.
    """

    sample_type: type[Any] | None = None
    field_map: FieldMap | None = None
    load: Callable[[Any], Any] | None = None
    decoder: SampleDecoder | None = None
    part_filter: PartFilter = None


class SampleFactory:
    """Base of the classes that a `dataset.yaml` may name; constructed with the arguments in the file.

    Attributes:
        _takes: Further constructor arguments: "subflavors", "decoder".
        _crude: Whether the program may select the parts to read.
    """

    _takes: ClassVar[tuple[str, ...]] = ()
    _crude: ClassVar[bool] = False

    def definition(self) -> SampleDefinition:
        """Return how samples are made."""
        raise NotImplementedError


class CheckResult:
    """Passes the result of `check` to the next `open`. Copies are empty."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return CheckResult, ()

    def put(self, value: Any) -> None:
        """Store a value."""
        self._value = value

    def take(self) -> Any:
        """Return the value and forget it; None if empty."""
        value, self._value = self._value, None
        return value


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafDataset(SavableDataset):
    """One split part of a dataset, with its order.

    Attributes:
        path: The dataset's folder, a file, or another identifier of data.
        kind: Kind of the data; None: detected on opening.
        split_part: Name of the split part in the split configuration; a JSONL file has one part, with any name.
        subset: Range of its samples; excluded ones count.
        where: Condition on columns that selects among these.
        tags: `subflavors` set by the program and the metadatasets.
        split_ratio: Split for data without a split file.
        training: Whether samples are shuffled; otherwise they keep the order of the shards.
        max_samples_per_sequence: Consecutive samples that are read together (the block of the block shuffle). None: a
            full shuffle, except that object stores are read in blocks of about 4 MiB.
        shuffle_buffer_size: Minimum number of samples that mix when blocks are read; None or less than a block: one
            block in each lane.
        parallel_shard_iters: Blocks that mix in each lane, where batches are formed inside a lane.
        shuffle_over_epochs_multiplier: Passes that are shuffled together; -1: draw with replacement; None: keep order.
        written: The path as written in the configuration (for a single dataset, the folder name).
        through: Paths of the enclosing metadatasets, as written, outermost first.
        name: The leaf's identity in random keys. Default: `through` and `written`, the split part, the subset, `where`,
            and an occurrence number for duplicates. A moved folder therefore keeps its order.
        task_encoder: Its decoder and cookers make samples from parts.
        trusted_modules: Modules that the dataset's own configuration may name.
        aux: Stores that its cookers read by key, by parameter name.
        definition: How samples are made; replaces the dataset's own configuration, which is then not read.
        place: Its position in a metadataset, for messages.
        checked: Result of `check`, for `resolve`.
    """

    path: str
    kind: Kind | None = None
    split_part: str
    split_config: str | None = None
    split_ratio: SplitRatio | None = None
    dataset_config: str = _DATASET_CONFIG
    subset: Subset | None = None
    where: Expression | None = None
    tags: Mapping[str, Any] = field(default_factory=dict[str, Any])
    training: bool = True
    max_samples_per_sequence: int | None = None
    shuffle_buffer_size: int | None = None
    parallel_shard_iters: int | None = None
    shuffle_over_epochs_multiplier: int | None = 1
    written: str | None = None
    through: tuple[str, ...] = ()
    name: str | None = None
    task_encoder: SampleMaker
    part_filter: PartFilter = None
    sample_type: type[Any] | None = None
    trusted_modules: tuple[str, ...] = ()
    aux: Mapping[str, Any] = field(default_factory=dict[str, Any])
    definition: SampleDefinition | None = None
    place: Place = field(default=Place("LeafDataset"), compare=False, repr=False)
    checked: CheckResult = field(default_factory=CheckResult, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.ordering()

    @property
    def identity(self) -> tuple[str, ...]:
        """Identity of this leaf among the leaves of a configuration, before duplicates are counted."""
        if self.name is not None:
            return ("name", self.name)
        return ("path", self.label, self.split_part, part_of(self.subset, self.where))

    @property
    def paths(self) -> list[EPath]:
        """The path as a list, for programs written for Energon."""
        return [EPath(self.path)]

    @property
    def kind_there(self) -> Kind:
        """The kind of the data at its path."""
        return self.kind or kind_at(located(self.path))

    @property
    def subflavors(self) -> dict[str, Any]:
        """Tags of its samples: those of its own configuration, which is read for them, overridden by `tags`."""
        opener = None if self.definition is not None else opener_of(self.kind_there)
        return {**({} if opener is None else opener.subflavors(self)), **self.tags}

    @property
    def label(self) -> str:
        """The path as written, through all enclosing metadatasets; a Hub path without its revision."""
        written = Path(without_revision(self.path)).name if self.written is None else self.written
        return "/".join(map(without_revision, (*self.through, written)))

    def lower(self, to: Lowering) -> Part:
        return to.leaf(self)

    def cook(self, leaf: Resolved, cache_pool: CachePool | None) -> HookSpec | None:
        """Return the hook that turns its crude samples into typed ones. See `cooking`."""
        return extension(COOKING)(self.task_encoder, leaf, self.aux, self.path, cache_pool)

    def resolve(self, *, whole: bool = False) -> ResolvedLeaf:
        """Read the dataset's configuration and open its index.

        Args:
            whole: Serve all samples of the dataset, regardless of its split. Indices are then its sample numbers.

        Raises:
            DatasetNotFoundError: `path` does not exist, or is not prepared.
            SplitError: The split part does not exist.
            FieldMapError: The field map does not fit the sample type.
            UntrustedCodeError: The configuration names a class of a module that the program did not allow.
            ConfigError: The configuration has another error.
            EmptyDatasetError: No sample is left.
            KeyNotFoundError: A column of `where` does not exist.
        """
        with errors_at(self.place):
            pinned = shared_client(storage_settings()).pinned(self.path) if is_url(self.path) else self.path
            leaf = self if pinned == self.path else replace(self, path=pinned)
            content = open_leaf(leaf, whole)
            definition = content.definition
            extension(CHECK_AUX)(self.aux, self.path, definition.sample_type)
        return ResolvedLeaf(
            source=content.source,
            sample_type=definition.sample_type,
            field_map=definition.field_map,
            load=definition.load,
            decoder=None if definition.load is not None else definition.decoder,
            subflavors={**content.subflavors, **self.tags},
            ordering=self.ordering(content.overrides),
        )

    def check(self, *, whole: bool = False) -> None:
        """Raise the errors of `resolve` that can be found without an index and without requests to a store."""
        if not is_url(self.path):
            with errors_at(self.place):
                kind = self.kind_there
                opener: Opener | None = opener_of(kind)
                _check_files(self, kind) if opener is None else opener.check(self, whole)

    def ordering(self, overrides: Mapping[str, Any] | None = None, error_prefix: str = "") -> Ordering:
        """Return the order of samples as set by the program, with the `overrides` of the dataset's own configuration.

        Raises ConfigError if a number is invalid.
        """
        settings = {
            "training": self.training,
            "shuffle_over_epochs": self.shuffle_over_epochs_multiplier if self.training else None,
            "max_samples_per_sequence": self.max_samples_per_sequence,
            "parallel_shard_iters": self.parallel_shard_iters,
        }
        if overrides:
            error_prefix = f"{self.path}: "
            settings |= {name: overrides[name] for name in settings if name in overrides}
        return Ordering(
            error_prefix=error_prefix,
            training=bool(settings["training"]),
            passes=settings["shuffle_over_epochs"],
            block=settings["max_samples_per_sequence"],
            mixing=self.shuffle_buffer_size,
            blocks_in_lane=settings["parallel_shard_iters"],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """The opened content of a leaf's path.

    Attributes:
        source: The samples of the split part and the subset.
        definition: How samples are made.
        subflavors: Tags from a configuration next to the data.
        overrides: Arguments of `LeafDataset.ordering` that this configuration fixes.
    """

    source: Source
    definition: SampleDefinition
    subflavors: Mapping[str, Any] = field(default_factory=dict[str, Any])
    overrides: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Opener(Protocol):
    """Opens leaves of a kind whose data have their own configuration or split parts: `Kind.opener`."""

    def open(self, leaf: LeafDataset, whole: bool) -> Content:
        """Open a leaf; `whole`: all samples at its path, regardless of split and subset."""
        ...

    def check(self, leaf: LeafDataset, whole: bool) -> None:
        """Raise the errors of `open` that can be found without an index."""
        ...

    def subflavors(self, leaf: LeafDataset) -> Mapping[str, Any]:
        """Return the tags from the configuration next to the data, which is read for them."""
        ...


def open_leaf(leaf: LeafDataset, whole: bool) -> Content:
    """Open a leaf. See `Opener.open`."""
    kind = leaf.kind_there
    opener: Opener | None = opener_of(kind)
    return _open_files(leaf, whole, kind) if opener is None else opener.open(leaf, whole)


def _open_files(leaf: LeafDataset, whole: bool, kind: Kind) -> Content:
    """Open files of crude samples. They form one split part, with any name, unless a ratio splits them."""
    assert kind.open is not None
    _check_files(leaf, kind)
    definition = leaf.definition
    if definition is None:
        definition = SampleDefinition(decoder=leaf.task_encoder.decoder, part_filter=leaf.part_filter)
    if definition.field_map is not None:
        definition = replace(definition, part_filter=frozenset(definition.field_map.parts))
    found = kind.open(leaf.path, definition.part_filter)
    if definition.field_map is not None and not found.has_lists:
        definition.field_map.check_parts(found.part_names, where=f"{leaf.path}: field_map")
    definition = replace(definition, decoder=_decoder_of(leaf, definition, found))
    source = found.source if whole else _chosen_of(leaf, found)
    return Content(source=source, definition=definition)


def _decoder_of(leaf: LeafDataset, definition: SampleDefinition, found: Opened) -> SampleDecoder | ColumnDecoder | None:
    """Return the decoder of the parts."""
    if found.decoded == "never":
        return None
    if found.decoded == "always" and leaf.definition is None and definition.decoder is None:
        return leaf.task_encoder.decoder_type()
    if definition.decoder is None or not found.endings:
        return definition.decoder
    return ColumnDecoder(definition.decoder, found.endings)


def _chosen_of(leaf: LeafDataset, found: Opened) -> Source:
    """Return the samples of the split part and the subset that meet `where`."""
    ratio, subset, rows = leaf.split_ratio, leaf.subset, found.rows
    runs = None if ratio is None else ratio.runs(leaf.split_part, rows.shard_counts)
    total = len(found.source) if runs is None else sum(end - begin for begin, end in runs)
    start, stop = (0, total) if subset is None else subset.resolve(total, of=leaf.path)
    if runs is None and subset is None and leaf.where is None:
        return found.source
    return selected(rows, start, stop, leaf.where, runs)


def _check_files(leaf: LeafDataset, kind: Kind) -> None:
    refuse_configuration(leaf, kind.described)
    if leaf.split_ratio is not None:
        leaf.split_ratio.runs(leaf.split_part, {})


def refuse_configuration(leaf: LeafDataset, kind: str) -> None:
    """Raise ConfigError if a leaf names a configuration file that its kind does not have."""
    for name, given in (("split_config", leaf.split_config), ("dataset_config", leaf.dataset_config)):
        if given not in (None, _DATASET_CONFIG):
            raise ConfigError(f"{leaf.path}: {name}={given!r}, but {kind} has no {name}: remove it")


@dataclass(frozen=True, slots=True)
class LoadSample:
    """Makes a typed sample from a crude one with a function that returns its fields. Picklable if the function is.

    Attributes:
        sample_type: Type of the samples.
        fields: Returns the fields as a mapping, with those base fields that are to differ.
        decoder: Decodes the parts first; None keeps them as bytes.
    """

    sample_type: type[Any]
    fields: Callable[[Any], Mapping[str, Any]]
    decoder: SampleDecoder | None

    def __call__(self, sample: Any) -> Any:
        crude = sample if self.decoder is None else CrudeSample(self.decoder(sample))
        base = {name: crude[name] for name in ("__key__", "__restore_key__", "__subflavors__", "__sources__")}
        return self.sample_type(**{**base, **self.fields(crude)})
