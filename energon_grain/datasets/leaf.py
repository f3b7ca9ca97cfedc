# SPDX-License-Identifier: Apache-2.0
"""A dataset as it is in a configuration: what it is read from, and how samples are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

from energon_grain.datasets.aux_stores import AuxReference, check_aux_has_a_cooker
from energon_grain.datasets.cooker import SampleMaker, cooking
from energon_grain.datasets.dataset import SavableDataset
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
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.spec import Ordering, Resolved, ResolvedLeaf
from energon_grain.transforms.decode import ColumnDecoder, SampleDecoder
from energon_grain.transforms.field_map import FieldMap

_DATASET_CONFIG = "dataset.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleDefinition:
    """How samples are made of parts.

    Attributes:
        sample_type: None: they are crude, and cooked by the task encoder.
        field_map: Where the fields of `sample_type` are found.
        load: In place of a field map: makes a sample of a crude one, whose parts are bytes. May run in several threads.
        decoder: Decodes the parts; None leaves them bytes.
        part_filter: Parts to read, where there is no field map.
    """

    sample_type: type[Any] | None = None
    field_map: FieldMap | None = None
    load: Callable[[Any], Any] | None = None
    decoder: SampleDecoder | None = None
    part_filter: PartFilter = None


class SampleFactory:
    """Base of classes that a `dataset.yaml` may name: with the arguments in the file, it says how samples are made.

    Attributes:
        _takes: What else it is given: "subflavors", "decoder".
        _crude: Whether the program may say which parts it reads.
    """

    _takes: ClassVar[tuple[str, ...]] = ()
    _crude: ClassVar[bool] = False

    def definition(self) -> SampleDefinition:
        """How samples are made."""
        raise NotImplementedError


class Held:
    """Hands what `check` read to the `open` that follows. Copies of it are empty."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Held, ()

    def put(self, value: Any) -> None:
        """Hold this."""
        self._value = value

    def take(self) -> Any:
        """Give it up; None: nothing is held."""
        value, self._value = self._value, None
        return value


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafDataset(SavableDataset):
    """One split part of a dataset, with how it is ordered.

    Attributes:
        path: The dataset's folder, a file, or what else names data of some kind.
        kind: What is there; None: that is looked at when it is opened.
        split_part: Name of the split part, as in the split configuration; a JSONL file has but one, whatever its name.
        subset: Its samples to take; excluded ones count.
        where: Which of these to take, by their columns.
        tags: What the program and the metadatasets say of `subflavors`.
        split_ratio: How what has no split file is split.
        training: Whether samples are shuffled; otherwise they come in the order of the shards.
        max_samples_per_sequence: Consecutive samples that are read together (the block of the block shuffle); None:
            every sample is placed by itself (full shuffle), but for object stores, where about 4 MiB are read together.
        shuffle_buffer_size: At least how many samples mix, where blocks are read; None or less than a block: a block
            in each lane.
        parallel_shard_iters: Blocks that mix in each lane, where batches are formed inside a lane.
        shuffle_over_epochs_multiplier: Passes that are shuffled as one; -1: draw with replacement; None: keep order.
        written: The path as the configuration writes it (the folder's name, for a dataset given by itself).
        through: Paths of the nested metadatasets that lead here, as written, outermost first.
        name: The leaf's identity in random keys; default: `through` and `written`, the split part, the subset, `where`
            and the occurrence number among equals. So a moved folder keeps its order.
        task_encoder: Its decoder and cookers make samples of the parts.
        trusted_modules: Modules that the dataset's own configuration may name.
        aux: Stores that its cookers read from by key, by the name of the parameter.
        definition: How samples are made; then the dataset's own configuration is not read. Default: as that says.
        place: Where a metadataset names it, for messages.
        held: What `check` read, for `resolve`.
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
    aux: Mapping[str, AuxReference] = field(default_factory=dict[str, AuxReference])
    definition: SampleDefinition | None = None
    place: Place = field(default=Place("LeafDataset"), compare=False, repr=False)
    held: Held = field(default_factory=Held, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.ordering()

    @property
    def identity(self) -> tuple[str, ...]:
        """What distinguishes this leaf from others in a configuration, before occurrences are counted."""
        if self.name is not None:
            return ("name", self.name)
        return ("path", self.label, self.split_part, part_of(self.subset, self.where))

    @property
    def paths(self) -> list[EPath]:
        """The path alone: programs that were written for Energon look for it here."""
        return [EPath(self.path)]

    @property
    def kind_there(self) -> Kind:
        """What is at its path."""
        return self.kind or kind_at(located(self.path))

    @property
    def subflavors(self) -> dict[str, Any]:
        """Tags of its samples: those of its own configuration, which is read for them, and `tags`, which win."""
        opener = None if self.definition is not None else opener_of(self.kind_there)
        return {**({} if opener is None else opener.subflavors(self)), **self.tags}

    @property
    def label(self) -> str:
        """The path as it is written, through all nested metadatasets; of the Hub, without a revision."""
        written = Path(without_revision(self.path)).name if self.written is None else self.written
        return "/".join(map(without_revision, (*self.through, written)))

    def lower(self, to: Lowering) -> Part:
        return to.leaf(self)

    def cook(self, leaf: Resolved, cache_pool: CachePool | None) -> HookSpec | None:
        """What turns its crude samples into samples. See `cooking`."""
        return cooking(self.task_encoder, leaf, self.aux, self.path, cache_pool)

    def resolve(self, *, whole: bool = False) -> ResolvedLeaf:
        """Read the dataset's configuration and open its index.

        Args:
            whole: The source serves all samples of the dataset, whatever its split says, so that indices are sample
                numbers of the dataset.

        Raises:
            DatasetNotFoundError: `path` is not there, or not prepared.
            SplitError: There is no such split part.
            FieldMapError: The field map does not fit the sample type.
            UntrustedCodeError: The configuration names a class of a module that the program did not declare.
            ConfigError: The configuration is wrong in another way.
            EmptyDatasetError: No sample is left.
            KeyNotFoundError: There is no column that `where` asks for.
        """
        with errors_at(self.place):
            pinned = shared_client(storage_settings()).pinned(self.path) if is_url(self.path) else self.path
            leaf = self if pinned == self.path else replace(self, path=pinned)
            content = open_leaf(leaf, whole)
            definition = content.definition
            check_aux_has_a_cooker(self.aux, self.path, definition.sample_type)
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
        """Raise what `resolve` would, as far as it can be told without an index, and without asking a store."""
        if not is_url(self.path):
            with errors_at(self.place):
                kind = self.kind_there
                opener: Opener | None = opener_of(kind)
                _check_files(self, kind) if opener is None else opener.check(self, whole)

    def ordering(self, overrides: Mapping[str, Any] | None = None, said_by: str = "") -> Ordering:
        """How samples are ordered: as the program asks, or as the dataset's own configuration insists in `overrides`.

        Raises ConfigError if a number is not valid.
        """
        asked = {
            "training": self.training,
            "shuffle_over_epochs": self.shuffle_over_epochs_multiplier if self.training else None,
            "max_samples_per_sequence": self.max_samples_per_sequence,
            "parallel_shard_iters": self.parallel_shard_iters,
        }
        if overrides:
            said_by = f"{self.path}: "
            asked |= {name: overrides[name] for name in asked if name in overrides}
        return Ordering(
            said_by=said_by,
            training=bool(asked["training"]),
            passes=asked["shuffle_over_epochs"],
            block=asked["max_samples_per_sequence"],
            mixing=self.shuffle_buffer_size,
            blocks_in_lane=asked["parallel_shard_iters"],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """What is at the path of a leaf.

    Attributes:
        source: Its samples, those of the split part and the subset alone.
        definition: How samples are made.
        subflavors: Tags that a configuration beside the data gives them.
        overrides: Arguments of `LeafDataset.ordering` on which that configuration insists.
    """

    source: Source
    definition: SampleDefinition
    subflavors: Mapping[str, Any] = field(default_factory=dict[str, Any])
    overrides: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Opener(Protocol):
    """Opens leaves of a kind whose data have a configuration or split parts of their own: `Kind.opener`."""

    def open(self, leaf: LeafDataset, whole: bool) -> Content:
        """Open a leaf; `whole`: all samples at its path, whatever its split and subset say."""
        ...

    def check(self, leaf: LeafDataset, whole: bool) -> None:
        """Raise what `open` would, as far as it can be known without an index."""
        ...

    def subflavors(self, leaf: LeafDataset) -> Mapping[str, Any]:
        """Tags that the configuration beside the data gives its samples, which is read for them."""
        ...


def open_leaf(leaf: LeafDataset, whole: bool) -> Content:
    """Open a leaf. See `Opener.open`."""
    kind = leaf.kind_there
    opener: Opener | None = opener_of(kind)
    return _open_files(leaf, whole, kind) if opener is None else opener.open(leaf, whole)


def _open_files(leaf: LeafDataset, whole: bool, kind: Kind) -> Content:
    """Files that are read as they are, of crude samples: one split part, whatever it is called, unless by a ratio."""
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
    """What decodes the parts."""
    if found.decoded == "never":
        return None
    if found.decoded == "always" and leaf.definition is None and definition.decoder is None:
        return leaf.task_encoder.decoder_type()
    if definition.decoder is None or not found.endings:
        return definition.decoder
    return ColumnDecoder(definition.decoder, found.endings)


def _chosen_of(leaf: LeafDataset, found: Opened) -> Source:
    """The samples of the split part and the subset, for which `where` holds."""
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
    """Raise ConfigError where a leaf names files that its kind does not have."""
    for name, given in (("split_config", leaf.split_config), ("dataset_config", leaf.dataset_config)):
        if given not in (None, _DATASET_CONFIG):
            raise ConfigError(f"{leaf.path}: {name}={given!r}, but {kind} has no {name}; leave it out")


@dataclass(frozen=True, slots=True)
class LoadSample:
    """Makes a sample of a crude one by a function that gives its fields; picklable if that is.

    Attributes:
        sample_type: Of the samples.
        fields: Gives them, as a mapping; of the base of all samples those that are to differ.
        decoder: Decodes the parts before; None leaves them bytes.
    """

    sample_type: type[Any]
    fields: Callable[[Any], Mapping[str, Any]]
    decoder: SampleDecoder | None

    def __call__(self, sample: Any) -> Any:
        crude = sample if self.decoder is None else CrudeSample(self.decoder(sample))
        base = {name: crude[name] for name in ("__key__", "__restore_key__", "__subflavors__", "__sources__")}
        return self.sample_type(**{**base, **self.fields(crude)})
