"""A dataset as it stands in a configuration: what kinds of files it can be read from, and how samples are made.

Samples are made as the `dataset.yaml` says, or the program.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, cast

from energon_grain.datasets.aux_stores import AuxReference, check_aux_has_a_cooker
from energon_grain.datasets.cooker import SampleMaker, cooking
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.lowering import Lowering, Part
from energon_grain.errors import ConfigError, SplitError, UntrustedCodeError
from energon_grain.formats.class_ref import function_beside, resolve_class
from energon_grain.formats.columns import ColumnFolder
from energon_grain.formats.data_folder import DataFolder, naming, open_folder
from energon_grain.formats.dataset_config import DEFAULT_DATASET_CONFIG, DatasetConfig, read_dataset_config
from energon_grain.formats.nv_meta import (
    INFO_JSON,
    INFO_YAML,
    META_FOLDER,
    DatasetInfo,
    read_info,
)
from energon_grain.formats.splits import SelectedShards, read_split_config, select_shards
from energon_grain.forms import Place, asked_at, did_you_mean
from energon_grain.prepare.bare_tars import ALL_OF_THEM, find_tars
from energon_grain.prepare.containers import open_data, open_prepared
from energon_grain.samplers.expression import Expression
from energon_grain.samplers.split_ratio import SplitRatio
from energon_grain.samplers.subset import Subset, part_of
from energon_grain.samples.types import CrudeSample
from energon_grain.sources.cache_pool import CachePool
from energon_grain.sources.kinds import Kind, Opened, kind_at
from energon_grain.sources.rows import Rows, selected
from energon_grain.sources.source import PartFilter, Source
from energon_grain.storage.epath import EPath
from energon_grain.storage.location import is_url, join, located, without_revision
from energon_grain.storage.remote import shared_client
from energon_grain.storage.settings import storage_settings
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.spec import Ordering, Resolved, ResolvedLeaf
from energon_grain.transforms.decode import ColumnDecoder, SampleDecoder
from energon_grain.transforms.field_map import FieldMap

_logger = logging.getLogger("energon_grain")


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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chosen:
    """What is served of a folder of shards, as its three small files say.

    Attributes:
        info: `.info.json`.
        config: `dataset.yaml`.
        options: Shards, range and excludes, as the sources take them; none: all samples.
        unmatched_excludes: Excludes that name no shard.
        where: The split part, as messages name it.
    """

    info: DatasetInfo
    config: DatasetConfig
    options: Mapping[str, Any]
    unmatched_excludes: tuple[str, ...]
    where: str


class Chosen:
    """Hands what `check` read to the `open` that follows, unless a file changed since. Copies of it are empty."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: tuple[_Chosen, list[str], list[Any]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Chosen, ()

    def put(self, chosen: _Chosen, files: list[str], stamps: list[Any]) -> None:
        """Hold what was read of these files, which looked like this before."""
        self._held = chosen, files, stamps

    def take(self) -> _Chosen | None:
        """Give it up; None: nothing is held, or not any more what the files say."""
        held, self._held = self._held, None
        return held[0] if held is not None and _stamps(held[1]) == held[2] else None


def _stamps(files: list[str]) -> list[Any]:
    """What changes when one of these files does."""
    found: list[Any] = []
    for file in files:
        try:
            status = os.stat(file)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafDataset(SavableDataset):
    """One split part of a dataset, with how it is ordered.

    Attributes:
        path: The dataset's folder, a file, or what names bare tars (see `TarList`).
        kind: What lies there; None: that is looked at when it is opened.
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
        chosen: What `check` read, for `resolve`.
    """

    path: str
    kind: Kind | None = None
    split_part: str
    split_config: str | None = None
    split_ratio: SplitRatio | None = None
    dataset_config: str = DEFAULT_DATASET_CONFIG
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
    chosen: Chosen = field(default_factory=Chosen, init=False, compare=False, repr=False)

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
        own: Mapping[str, Any] = {}
        if self.definition is None and self.kind_there.is_configured:
            own = read_dataset_config(open_folder(self.path).local, self.dataset_config).subflavors
        return {**own, **self.tags}

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
        with asked_at(self.place):
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
            subflavors={**content.config.subflavors, **self.tags},
            ordering=self.ordering(content.config),
        )

    def check(self, *, whole: bool = False) -> None:
        """Raise what `resolve` would, as far as it can be told without an index, and without asking a store."""
        if not is_url(self.path):
            with asked_at(self.place):
                _check_leaf(self, whole)

    def ordering(self, config: DatasetConfig | None = None, said_by: str = "") -> Ordering:
        """How samples are ordered: as the program asks, or as the dataset's own configuration insists.

        Raises ConfigError if a number is not valid.
        """
        asked = {
            "training": self.training,
            "shuffle_over_epochs": self.shuffle_over_epochs_multiplier if self.training else None,
            "max_samples_per_sequence": self.max_samples_per_sequence,
            "parallel_shard_iters": self.parallel_shard_iters,
        }
        if config is not None and config.overrides:
            said_by = f"{self.path}: "
            asked |= {name: getattr(config, name) for name in asked if name in config.overrides}
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
    """What lies at the path of a leaf.

    Attributes:
        source: Its samples, those of the split part and the subset alone.
        config: What lies beside the data and says how to read it.
        definition: How samples are made.
    """

    source: Source
    config: DatasetConfig
    definition: SampleDefinition


def open_leaf(leaf: LeafDataset, whole: bool) -> Content:
    """Open a leaf; `whole`: all samples at its path, whatever its split and subset say.

    What is not there, or unknown, is opened as a prepared dataset, and the error says so.
    """
    kind = leaf.kind_there
    return _open_shards(leaf, whole) if kind.open is None else _open_files(leaf, whole, kind)


def _check_leaf(leaf: LeafDataset, whole: bool) -> None:
    """Raise what `open_leaf` would, as far as it can be known without an index."""
    kind = leaf.kind_there
    if kind.open is not None:
        _check_files(leaf, kind)
    elif kind.is_configured:
        _check_shards(leaf, whole)
    else:
        _runs_of(leaf, {})
        find_tars(leaf.path)


def _check_shards(leaf: LeafDataset, whole: bool) -> None:
    folder = open_folder(leaf.path)
    meta = os.path.join(folder.local, META_FOLDER, "")
    names = (INFO_JSON, INFO_YAML, leaf.dataset_config, leaf.split_config or "split.yaml", "split.json")
    files = [meta + name for name in names]
    stamps = _stamps(files)
    chosen = _choose(folder, leaf, whole)
    _define(leaf, chosen)
    if leaf.where is not None:
        ColumnFolder.of(folder).refuse_unknown(leaf.where.names)
    if not whole and not chosen.config.split_config:
        leaf.chosen.put(chosen, files, stamps)


def _runs_of(leaf: LeafDataset, counts: Mapping[str, int]) -> list[tuple[int, int]] | None:
    """Runs of bare tars that are in the split part; None: all of each."""
    _refuse_configuration(leaf, leaf.kind_there.described)
    if leaf.split_ratio is not None:
        return leaf.split_ratio.runs(leaf.split_part, counts)
    if leaf.split_part == ALL_OF_THEM:
        return None
    raise SplitError(
        f"{leaf.path}: tars that were not prepared have one split part, {ALL_OF_THEM!r}, which is all of them, and no "
        f"{leaf.split_part!r}. Give split_part={ALL_OF_THEM!r}, or, the same wherever parts of them are used, "
        f"split_ratio='{ALL_OF_THEM}:0.9,{leaf.split_part}:0.1'"
    )


def _open_shards(leaf: LeafDataset, whole: bool) -> Content:
    folder = open_data(leaf.path)
    with naming(folder):
        chosen = (None if whole else leaf.chosen.take()) or _choose(folder, leaf, whole)
        definition = _define(leaf, chosen)
        field_map = definition.field_map
        decoder = None if definition.load is not None else definition.decoder
        source = open_prepared(
            folder,
            info=chosen.info,
            lazy=getattr(decoder, "lazy_from", None),
            parts=definition.part_filter if field_map is None else frozenset(field_map.parts),
            **chosen.options,
        )
        unmatched = (*chosen.unmatched_excludes, *source.unmatched_excludes)
        if unmatched:
            said = "%s: excludes that name nothing that is there: %d, such as %r"
            _logger.warning(said, chosen.where, len(unmatched), unmatched[0])
        if field_map is not None:
            field_map.check_parts(source.all_part_names, where=f"{folder.location}: field_map")
        return Content(source=source, config=chosen.config, definition=definition)


def _define(leaf: LeafDataset, chosen: _Chosen) -> SampleDefinition:
    return define_samples(leaf, chosen.config) if leaf.definition is None else leaf.definition


def _choose(folder: DataFolder, leaf: LeafDataset, whole: bool) -> _Chosen:
    info = read_info(folder.local)
    if leaf.definition is None:
        config = read_dataset_config(folder.local, leaf.dataset_config)
    else:
        config = DatasetConfig(kind="crude")
    if whole:
        return _Chosen(info=info, config=config, options={}, unmatched_excludes=(), where=folder.location)
    part = config.split_part or leaf.split_part
    where = f"split part {part!r} of {folder.location if folder.bare is None else folder.bare}"
    if folder.bare is not None:
        runs = _runs_of(leaf, info.shard_counts)
        selected = SelectedShards(shards=tuple(info.shard_counts))
        total = sum(info.shard_counts.values()) if runs is None else sum(end - begin for begin, end in runs)
    else:
        if leaf.split_ratio is not None:
            raise ConfigError(
                f"{leaf.path}: is prepared, so that its split file says what its parts are; give no split_ratio"
            )
        name = leaf.split_config or config.split_config or "split.yaml"
        selected = select_shards(read_split_config(folder.local, name, shards=info.shard_counts), part, info)
        runs, total = None, sum(info.shard_counts[shard] for shard in selected.shards)
    subset = Subset.parse(config.subset) if "subset" in config.overrides and config.subset else leaf.subset
    start, stop = (0, total) if subset is None else subset.resolve(total, of=where)
    return _Chosen(
        info=info,
        config=config,
        options={
            "shards": selected.shards,
            "excluded": selected.excluded_samples,
            "runs": runs,
            "start": start,
            "stop": stop,
            "where": leaf.where,
        },
        unmatched_excludes=selected.unmatched_excludes,
        where=where,
    )


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
    return Content(source=source, config=DatasetConfig(kind="crude"), definition=definition)


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
    return (
        selected(rows, start, stop, leaf.where, runs)
        if isinstance(rows, Rows)
        else rows.cut(start, stop, leaf.where, runs)
    )


def _check_files(leaf: LeafDataset, kind: Kind) -> None:
    _refuse_configuration(leaf, kind.described)
    if leaf.split_ratio is not None:
        leaf.split_ratio.runs(leaf.split_part, {})


def _refuse_configuration(leaf: LeafDataset, kind: str) -> None:
    for name, given in (("split_config", leaf.split_config), ("dataset_config", leaf.dataset_config)):
        if given not in (None, DEFAULT_DATASET_CONFIG):
            raise ConfigError(f"{leaf.path}: {name}={given!r}, but {kind} has no {name}; leave it out")


def define_samples(leaf: LeafDataset, config: DatasetConfig) -> SampleDefinition:
    """What the `dataset.yaml` of a leaf says.

    Raises:
        ConfigError: It is wrong.
        FieldMapError: The field map does not fit the sample type.
        UntrustedCodeError: It names a class of a module, or code beside the data, that the program did not declare.
    """
    root = leaf.path
    decoder = None if config.raw_bytes else leaf.task_encoder.decoder
    if config.decoder is not None:
        decoder = _declared_decoder(leaf.task_encoder.decoder_type, config.decoder, root)
    if config.kind == "crude":
        return SampleDefinition(decoder=decoder, part_filter=_parts(leaf, config, crude=True))
    sample_type = None
    if config.sample_type is not None:
        sample_type = resolve_class(
            config.sample_type, trusted_modules=leaf.trusted_modules, where=f"{root}: {leaf.dataset_config}"
        )
    if config.kind == "custom":
        definition = _of_factory(leaf, config, sample_type, decoder)
        sample_type = definition.sample_type
    elif config.sample_loader is not None:
        assert sample_type is not None
        load = LoadSample(sample_type, _beside(leaf, config.sample_loader, "sample_loader"), decoder)
        definition = SampleDefinition(sample_type=sample_type, load=load, part_filter=_parts(leaf, config, crude=False))
    else:
        assert sample_type is not None
        assert config.field_map is not None
        field_map = FieldMap.parse(config.field_map, sample_type, where=f"{root}: field_map")
        definition = SampleDefinition(sample_type=sample_type, field_map=field_map, decoder=decoder)
    asked = leaf.sample_type
    if asked is not None and sample_type is not None and not issubclass(sample_type, asked):
        raise ConfigError(f"{root}: holds {sample_type.__name__}, but sample_type={asked.__name__} was asked for")
    return definition


def _of_factory(
    leaf: LeafDataset,
    config: DatasetConfig,
    sample_type: type[Any] | None,
    decoder: SampleDecoder | None,
) -> SampleDefinition:
    """What a class of the program's says, made with the arguments in the file."""
    assert config.class_ref is not None
    factory = resolve_class(
        config.class_ref, trusted_modules=leaf.trusted_modules, where=f"{leaf.path}: {leaf.dataset_config}"
    )
    if not issubclass(factory, SampleFactory):
        raise ConfigError(
            f"{leaf.path}: a dataset configuration of class {config.class_ref} cannot be read; give a `sample_type` "
            f"with a `field_map`, make it crude (`__class__: CrudeWebdataset`) and cook it in the task encoder, or "
            f"derive the class from DefaultDecoderWebdatasetFactory"
        )
    arguments: dict[str, Any] = {
        "split_part": leaf.split_part,
        "training": leaf.training,
        "worker_config": leaf.worker_config,
        **config.options,
    }
    offered = {"subflavors": {**config.subflavors, **leaf.tags}, "decoder": decoder}
    arguments |= {name: offered[name] for name in factory._takes}
    parts = _parts(leaf, config, crude=factory._crude)
    given = {"sample_type": sample_type, "field_map": config.field_map, "part_filter": parts}
    arguments |= {name: value for name, value in given.items() if value is not None}
    try:
        made = cast("type[Any]", factory)(leaf.path, **arguments)
    except TypeError as error:
        raise ConfigError(
            f"{leaf.path}: {config.class_ref} does not take what its dataset configuration says: {error}"
        ) from error
    return made.definition()


def _declared_decoder(decoder_type: type[SampleDecoder], options: Mapping[str, Any], root: str) -> SampleDecoder:
    try:
        return decoder_type(**options)
    except TypeError as error:
        known = inspect.signature(decoder_type).parameters
        unknown = next((name for name in options if name not in known), None)
        said = error if unknown is None else f"there is no option {unknown!r}{did_you_mean(unknown, known)}"
        raise ConfigError(f"{root}: `decoder` in the dataset's configuration: {said}") from error


def _parts(leaf: LeafDataset, config: DatasetConfig, *, crude: bool) -> PartFilter:
    """Parts to read: of a crude dataset the program may say which."""
    if config.part_filter is None or (crude and leaf.part_filter is not None):
        return leaf.part_filter if crude else None
    if isinstance(config.part_filter, str):
        return _beside(leaf, config.part_filter, "part_filter")
    return frozenset(config.part_filter)


def _beside(leaf: LeafDataset, written: str, key: str) -> Callable[..., Any]:
    """The function that the dataset's configuration names, of a file that lies beside it."""
    where, folder = f"{leaf.path}: `{key}: {written}`", join(leaf.path, META_FOLDER)
    try:
        return function_beside(written, folder, key, trusted_modules=leaf.trusted_modules, where=where)
    except UntrustedCodeError as error:
        instead = (
            f". Or list the names of the parts in {leaf.dataset_config}"
            if key == "part_filter"
            else f". Or import its functions in the program and pass them: StandardWebdatasetFactory({leaf.path!r}, "
            f"sample_type=…, sample_loader=function, part_filter=function, split_part=…, training=…, "
            f"worker_config=…).build() is the same dataset. Or use a `field_map`; or make the dataset crude "
            f"(`__class__: CrudeWebdataset`) with a cooker in the task encoder"
        )
        raise UntrustedCodeError(f"{error}{instead}") from None


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
