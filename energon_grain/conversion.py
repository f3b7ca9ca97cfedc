# SPDX-License-Identifier: Apache-2.0
"""Conversion to a prepared dataset: shards of one kind to the other, one by one, or any other data to shards.

Shards keep keys, parts, order, splits and configuration: the new dataset restores saved states of the old one. Samples
of other data are cut into shards of equal size. By default, all of them are `train`.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from energon_grain.atomic_files import atomic_write_bytes, remove_temporaries
from energon_grain.errors import (
    ConfigError,
    DuplicateKeyError,
    EmptyDatasetError,
    SplitError,
    public,
)
from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.data_folder import DataFolder, naming, open_folder
from energon_grain.formats.key_order import duplicate_keys
from energon_grain.formats.nv_meta import (
    COMPATIBLE_ENERGON_VERSION,
    INFO_YAML,
    META_FOLDER,
    RECORDS_JSON,
    DatasetInfo,
    write_info,
)
from energon_grain.formats.records import encode_records_file
from energon_grain.formats.splits import SplitConfig, excluded_sample, read_split_config, write_split_config
from energon_grain.prepare.columnar_build import open_columnar
from energon_grain.prepare.containers import (
    Compression,
    ContainerName,
    Sample,
    UnfitSampleError,
    container_in,
    container_named,
    containers,
    open_data,
    open_prepared,
)
from energon_grain.prepare.dataset_definition import CRUDE_CLASS, propose_definition
from energon_grain.prepare.encode import encode_part, extension_for, has_known_extension, has_same_encoder
from energon_grain.prepare.media_folder import CLASSES_JSON, MediaFolder, find_media, loose_parts
from energon_grain.prepare.preparation import prepare_dataset
from energon_grain.prepare.scan import PrepareProgress, ScannedShard, ShardTask
from energon_grain.prepare.write_shards import (
    ShardJob,
    WrittenSample,
    check_container,
    parts_of,
    write_shards,
)
from energon_grain.prepare.writing import begin_writing, end_writing
from energon_grain.samplers.split_ratio import parse_ratio
from energon_grain.sources.kinds import METADATASET, Kind, Streamed, kind_at, streaming_kind
from energon_grain.sources.source import Source
from energon_grain.storage.byte_stream import ByteStream
from energon_grain.storage.epath import EPath
from energon_grain.storage.location import is_url, located

_AT_ONCE = 4096
_AT_ONCE_BYTES = 16 << 20
_SHARD_SAMPLES = 5000
_SHARD_BYTES = 1 << 30
_COPIED = (".yaml", ".yml", ".py", ".json")
_NOT_COPIED = (INFO_YAML, RECORDS_JSON)
_Run: TypeAlias = tuple[str, int, Callable[[], Iterator[Sample]]]
"""Name of a shard without its ending, size of its source in bytes, and a function that reads its samples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversionReport:
    """The result of a conversion.

    Attributes:
        source: Path or URL of the source.
        target: Folder of the new dataset.
        container: Kind of its shards.
        shard_counts: Number of samples of each shard.
        source_bytes: Size of the source: its shards, files or values.
        target_bytes: Size of the new shards.
        shards_reused: Shards that an interrupted conversion had written.
        verified: Whether every new shard was read back and compared.
        notes: Facts that the caller should know, though they are not errors.
        elapsed_s: Wall-clock time.
    """

    source: str
    target: Path
    container: ContainerName
    shard_counts: dict[str, int]
    source_bytes: int
    target_bytes: int
    shards_reused: int
    verified: bool
    notes: tuple[str, ...]
    elapsed_s: float

    @property
    def samples(self) -> int:
        """Samples in all shards."""
        return sum(self.shard_counts.values())


@public
def convert_dataset(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    to: ContainerName | None = None,
    compression: Compression = "none",
    shard_samples: int | None = None,
    shard_bytes: int | None = None,
    split_ratio: str | Mapping[str, float] | None = None,
    class_folders: bool | None = None,
    num_workers: int | None = None,
    verify: bool = True,
    sqlite: bool = True,
    progress: Callable[[PrepareProgress], None] | None = None,
) -> ConversionReport:
    """Convert data to a dataset of tars or ArrayRecord files, and prepare it.

    *A prepared dataset*: each shard becomes a shard of the other kind. Keys, parts and their order stay, so the new
    dataset yields the same stream under the same name, and restores cursors of the old one. The split files get the new
    names of shards; other YAML, JSON and Python files of `.nv-meta` are copied.

    *A folder of loose media files* (images, videos, audio), with or without text and JSON files of the same name, or an
    ImageFolder: see `energon_grain.prepare.media_folder` for the layouts. The dataset gets the sample type and field
    map that suit its parts (`jpg` and `txt`: `CaptioningSample`; `jpg` and `cls`: `ImageClassificationSample`); if none
    does, it is crude. Names of classes are in `.nv-meta/classes.json`.

    *Any other data that can be opened* (JSONL files, Parquet, arrays, tars that are not prepared, …), and compressed
    JSONL files, `.jsonl.gz` and `.jsonl.zst`: a crude dataset. Keys and parts stay. If the name of a part does not
    determine its decoder, it gets an ending that does (`caption` becomes `caption.txt`, `image` becomes `image.jpg`).

    A shard appears after it is written completely and compared. An interrupted conversion continues with the same call.
    No file is ever overwritten.

    Args:
        source: Path or URL.
        target: A new or empty folder of this machine, or one with an interrupted conversion of the same data.
        to: Kind of the new shards; None: the other kind, or tars for data without shards.
        compression: Compression of each record of an ArrayRecord file. Uncompressed records are read fastest.
        shard_samples: Samples per new shard; None: 5,000. Not for prepared datasets, which keep their shards.
        shard_bytes: Largest size of the files in a shard of loose media; None: 1 GiB. A larger sample is a shard.
        split_ratio: How to split the new shards, or the samples of loose media (by a hash of the key, so that all
            parts have samples of all classes): "8,1,1", "train=9,val=1" or a mapping. None: by the folders
            `train`, `val` and `test` of loose media, else all are `train`. Prepared datasets keep their splits.
        class_folders: For loose media: whether folders are classes. None: yes if the folder is an ImageFolder.
        num_workers: Most processes; 0: none, None: one per core, at most 16. For a dataset in an object store, threads:
            None: 16.
        verify: Read every new shard back and compare all keys and bytes.
        sqlite: Whether to write `index.sqlite` for tars.
        progress: Called after every shard.

    Raises:
        DatasetNotFoundError: The source does not exist, or is no data.
        RefusedError: `target` is not empty, or holds an interrupted conversion of other data.
        ConfigError: The arguments do not fit the data.
        DecodingError: A line of a JSONL file is not an object, or a metadata file is malformed; names the line.
        FormatError: The new container cannot hold a sample; names it.
        ReadError: A shard or file cannot be read, or a new shard differs from its source.
        WorkerError: A process died.
    """
    begun_s = time.monotonic()
    if is_url(located(target)):
        raise ConfigError(f"{target}: a conversion writes to a file system; copy the new dataset to the store")
    location, root = located(source), Path(located(target))
    if not is_url(location) and Path(location).absolute() in root.absolute().parents:
        raise ConfigError(f"{target}: is inside of {source}; give a folder outside of it")
    origin = _origin(location, _Cut.of(to, shard_samples, shard_bytes, split_ratio, class_folders))
    container = origin.container
    check_container(container, compression)
    begin_writing(root, {**origin.plan, "container": container, "compression": compression, "verify": verify})

    def report_shards(written: Mapping[str, ScannedShard]) -> None:
        if progress is None:
            return
        now = PrepareProgress(
            stage="convert",
            shards_done=len(written),
            shards_total=origin.shards or 0,
            samples=sum(each.samples for each in written.values()),
            bytes_done=sum(origin.read_bytes.get(name, 0) for name in written),
            bytes_total=origin.size_bytes,
        )
        progress(now)

    def report_index(now: PrepareProgress) -> None:
        if progress is not None:
            progress(replace(now, stage="index"))

    remove_temporaries(root / META_FOLDER, ".*.tmp")
    report_shards({})
    written, reused = write_shards(
        root,
        origin.jobs(),
        container=container,
        compression=compression,
        verify=verify,
        count=origin.shards,
        size_bytes=None if is_url(location) else origin.size_bytes,
        num_workers=num_workers,
        progress=report_shards,
    )
    counts = {name: written[name].samples for name in origin.order(written)}
    notes = origin.prepare(root, counts, sqlite, report_index)
    return ConversionReport(
        source=location,
        target=root,
        container=container,
        shard_counts=counts,
        source_bytes=origin.size_bytes,
        target_bytes=sum(each.size_bytes for each in written.values()),
        shards_reused=reused,
        verified=verify,
        notes=notes,
        elapsed_s=time.monotonic() - begun_s,
    )


@dataclass(frozen=True, slots=True)
class _Cut:
    """The arguments of a conversion that decide its shards, see `convert_dataset`."""

    to: ContainerName | None
    shard_samples: int | None
    shard_bytes: int | None
    split_ratio: Mapping[str, float] | None
    class_folders: bool | None

    @classmethod
    def of(
        cls,
        to: ContainerName | None,
        shard_samples: int | None,
        shard_bytes: int | None,
        split_ratio: str | Mapping[str, float] | None,
        class_folders: bool | None,
    ) -> _Cut:
        """Raises ConfigError if a number is not positive, or a ratio is malformed."""
        for name, size in (("shard_samples", shard_samples), ("shard_bytes", shard_bytes)):
            if size is not None and size < 1:
                raise ConfigError(f"{name}={size}: must be at least 1")
        ratio = parse_ratio(split_ratio) if isinstance(split_ratio, str) else split_ratio
        return cls(to, shard_samples, shard_bytes, ratio, class_folders)

    def refuse(self, why: str, *names: str) -> None:
        """Raise ConfigError if any of these arguments is given."""
        given = [f"{name}={getattr(self, name)}" for name in names if getattr(self, name) is not None]
        if given:
            raise ConfigError(f"{why}; leave out {' and '.join(given)}")


def _origin(location: str, cut: _Cut) -> _Shards | _Samples:
    """The data at a path or URL, ready to be converted."""
    kind = streaming_kind(location) or kind_at(location)
    if kind.streamed is not None:
        cut.refuse(f"{location}: not a folder of media files", "shard_bytes", "class_folders")
        return _Samples.of_stream(location, kind.streamed, cut)
    if kind is METADATASET:
        raise ConfigError(
            f"{location}: is a metadataset, but a conversion takes one dataset: convert its datasets one by one. "
            f"`energon-grain info` lists them"
        )
    if kind.is_configured and kind.shards is None and (is_url(location) or os.path.isdir(location)):
        media = find_media(location, class_folders=cut.class_folders)
        if media is not None:
            return _Samples.of_media(media, cut)
    cut.refuse(f"{location}: not a folder of media files", "shard_bytes", "class_folders")
    if kind.is_configured:
        cut.refuse(f"{location}: a prepared dataset keeps its shards and splits", "shard_samples", "split_ratio")
        return _Shards(location, cut.to)
    return _Samples.of_source(location, kind, cut)


class _Shards:
    """A prepared dataset. Each shard becomes a shard of the other kind.

    Args:
        location: Path or URL.
        to: Kind of the new shards; None: the other kind.

    Attributes:
        container: Kind of the new shards.
        plan: Must be equal for an interrupted conversion to continue.
        shards: Number of new shards; None: unknown.
        size_bytes: Size of the source.
        read_bytes: Size of the source of each new shard.

    Raises:
        DatasetNotFoundError: It is not prepared.
        ConfigError: Its shards are of this kind, or two new shards would get the same name.
    """

    def __init__(self, location: str, to: ContainerName | None) -> None:
        self._folder = folder = open_folder(location)
        with naming(folder), closing(open_prepared(folder)):  # raises if it cannot be read
            self._index = index = open_columnar(folder)
        old = container_in(folder.local).name
        self.container: ContainerName = to or next(each.name for each in containers() if each.name != old)
        if self.container == old:
            raise ConfigError(f"{folder.location}: its shards are {old} files already")
        self._suffixes = container_in(folder.local).suffix, container_named(self.container).suffix
        self._new: dict[str, str] = {}
        for shard in index.shards:
            other = self._new.setdefault(self._renamed(shard), shard)
            if other != shard:
                raise ConfigError(
                    f"the shards {other!r} and {shard!r} would both become {self._renamed(shard)!r}; rename one of "
                    f"them, and prepare the dataset again"
                )
        self.plan: dict[str, Any] = {"content_id": index.content_id, "shards": list(index.shards)}
        self.shards: int | None = len(index.shards)
        self.size_bytes = int(index.shard_bytes.sum())
        self.read_bytes = dict(zip(self._new, index.shard_bytes.tolist(), strict=True))
        self._counts: dict[str, int] = dict(zip(index.shards, np.diff(index.shard_first).tolist(), strict=True))

    def _renamed(self, shard: str) -> str:
        return shard.removesuffix(self._suffixes[0]) + self._suffixes[1]

    def jobs(self) -> Iterator[ShardJob]:
        """The new shards."""
        records = container_named(self.container).written
        for new, shard in self._new.items():
            where = f"{self._folder.location}/{shard}"
            yield ShardTask(name=new, records=records), partial(shard_samples_of, self._folder, shard), where

    def order(self, _: Mapping[str, ScannedShard]) -> list[str]:
        """Names of the new shards in the order of the dataset."""
        return list(self._new)

    def prepare(
        self, root: Path, counts: dict[str, int], sqlite: bool, progress: Callable[[PrepareProgress], None]
    ) -> tuple[str, ...]:
        """Write configuration and splits of the old dataset, the encoding of the new records, and the index."""
        meta = root / META_FOLDER
        for path in sorted((self._folder.local / META_FOLDER).iterdir()):
            copied = path.suffix in _COPIED and path.is_file() and not path.name.startswith(".")
            if not copied or path.name in _NOT_COPIED:
                continue
            try:
                splits = read_split_config(self._folder.local, path.name, shards=self._counts)
            except SplitError:
                shutil.copyfile(path, meta / path.name)
            else:
                write_split_config(meta / path.name, self._renamed_splits(splits))
        if (encoding := container_named(self.container).written) is not None:
            atomic_write_bytes(meta / RECORDS_JSON, encode_records_file(encoding))
        write_info(root, DatasetInfo(shard_counts=counts, energon_version=COMPATIBLE_ENERGON_VERSION))
        prepare_dataset(root, tar_index_only=True, sqlite=sqlite, num_workers=0, progress=progress)
        return _notes(self._index, open_columnar(root))

    def _renamed_splits(self, splits: SplitConfig) -> SplitConfig:
        parts = {
            part: tuple(self._renamed(shard) if shard in self._counts else shard for shard in shards)
            for part, shards in splits.split_parts.items()
        }
        return SplitConfig(split_parts=parts, exclude=tuple(map(self._renamed_exclude, splits.exclude)))

    def _renamed_exclude(self, exclude: str) -> str:
        if exclude in self._counts:
            return self._renamed(exclude)
        sample = excluded_sample(exclude, DatasetInfo(shard_counts=self._counts))
        return exclude if sample is None else f"{self._renamed(sample[0])}/{sample[1]}"


def _notes(old: ColumnarIndex, new: ColumnarIndex) -> tuple[str, ...]:
    if old.content_id == new.content_id:
        return ()
    return (
        "samples have a part twice. The later one was kept, as when samples are read. The new dataset counts as other "
        "data: it does not restore cursors of the old one, and joins of the old one do not fit.",
    )


def shard_samples_of(folder: DataFolder, shard: str) -> Iterator[Sample]:
    """Read a shard, about 16 MiB at a time. Of a part that a sample has twice, the later one is read.

    Raises UnfitSampleError if a part is not bytes but numbers, which features of a `tf.train.Example` can be.
    """
    index = open_columnar(folder)
    first = int(index.shard_first[index.shards.index(shard)])
    with closing(open_prepared(folder, shards=[shard])) as source:
        for block in _blocks(source, 0, len(source)):
            batch = source.read(block)
            index.check(first + block)
            starts = index.part_start[first + block[0] : first + block[-1] + 2].tolist()
            names = index.part_name[starts[0] : starts[-1]].tolist()
            for place, key in enumerate(batch.keys):
                own = names[starts[place] - starts[0] : starts[place + 1] - starts[0]]
                parts: dict[str, bytes] = {}
                for part in map(index.part_names.__getitem__, own):
                    value = batch.columns[part][place]
                    if not isinstance(value, bytes):
                        raise UnfitSampleError(
                            f"sample {key!r}: the part {part!r} holds numbers; only bytes can be written to files of "
                            f"another kind"
                        )
                    parts[part] = value
                yield key, parts


def _blocks(source: Source, start: int, stop: int) -> Iterator[Any]:
    """Indices of samples [start, stop), in blocks of about 16 MiB."""
    while start < stop:
        block = np.arange(start, min(start + _AT_ONCE, stop))
        block = block[: max(1, int(np.searchsorted(np.cumsum(source.sizes(block)), _AT_ONCE_BYTES, side="right")))]
        yield block
        start += len(block)


class _Samples:
    """Samples of any other kind, cut into shards. Attributes are those of `_Shards`."""

    def __init__(
        self,
        location: str,
        plan: dict[str, Any],
        cut: _Cut,
        runs: Callable[[], Iterator[_Run]],
        *,
        shards: int | None,
        size_bytes: int,
        media: MediaFolder | None = None,
    ) -> None:
        self.plan, self.shards, self.size_bytes = plan, shards, size_bytes
        self.container: ContainerName = cut.to or "tar"
        self.read_bytes: dict[str, int] = {}
        self._runs, self._where, self._media, self._ratio = runs, location, media, cut.split_ratio

    @classmethod
    def of_media(cls, media: MediaFolder, cut: _Cut) -> _Samples:
        """Loose media files. Raises ConfigError if folders are split parts and there is a split ratio."""
        if any(sample.split for sample in media.samples):
            cut.refuse(f"{media.location}: its folders are split parts", "split_ratio")
        if cut.split_ratio is not None:
            media = media.split_by(cut.split_ratio)
        sizes = cut.shard_samples or _SHARD_SAMPLES, cut.shard_bytes or _SHARD_BYTES

        def runs() -> Iterator[_Run]:
            for name, size_bytes, samples in media.shards(*sizes):
                yield name, size_bytes, partial(loose_parts, media.location, samples)

        plan = {
            "content_id": media.content_id,
            "shard_samples": sizes[0],
            "shard_bytes": sizes[1],
            "classes": list(media.classes),
            "split_ratio": dict(cut.split_ratio or {}),
        }
        shards = sum(1 for _ in media.shards(*sizes))
        size_bytes = sum(sample.size_bytes for sample in media.samples)
        return cls(media.location, plan, cut, runs, shards=shards, size_bytes=size_bytes, media=media)

    @classmethod
    def of_source(cls, location: str, kind: Kind, cut: _Cut) -> _Samples:
        """Data of any kind that can be opened as a dataset."""
        count = cut.shard_samples or _SHARD_SAMPLES
        endings: Mapping[str, str] = {}
        if kind.open is not None:
            found = kind.open(location, None)
            source, endings = found.source, found.endings
        else:
            folder = open_data(location)
            source = open_prepared(folder)
            _check_keys(location, open_columnar(folder))

        def runs() -> Iterator[_Run]:
            for number, start in enumerate(range(0, len(source), count)):
                stop = min(start + count, len(source))
                size_bytes = sum(int(source.sizes(block).sum()) for block in _blocks(source, start, stop))
                yield _shard_name(number), size_bytes, partial(source_samples, source, start, stop, endings)

        return cls(
            location,
            {"content_id": source.content_id, "shard_samples": count},
            cut,
            runs,
            shards=-(-len(source) // count),
            size_bytes=sum(int(source.sizes(block).sum()) for block in _blocks(source, 0, len(source))),
        )

    @classmethod
    def of_stream(cls, location: str, streamed: Streamed, cut: _Cut) -> _Samples:
        """A file that is read once, from front to back."""
        size_bytes, count = EPath(location).stat().content_length, cut.shard_samples or _SHARD_SAMPLES

        def runs() -> Iterator[_Run]:
            for number, (read_bytes, samples) in enumerate(streamed.runs(location, count)):
                yield _shard_name(number), read_bytes, partial(_encoded, samples)

        plan = {"file": location, "size_bytes": size_bytes, "shard_samples": count}
        return cls(location, plan, cut, runs, shards=None, size_bytes=size_bytes)

    def jobs(self) -> Iterator[ShardJob]:
        """The new shards."""
        records = container_named(self.container).written
        for name, size_bytes, samples in self._runs():
            task = ShardTask(name=f"{name}{container_named(self.container).suffix}", records=records)
            self.read_bytes[task.name] = size_bytes
            yield task, samples, self._where

    def order(self, written: Mapping[str, ScannedShard]) -> list[str]:
        """Names of the new shards in the order of the data."""
        return list(written)

    def prepare(
        self, root: Path, counts: dict[str, int], sqlite: bool, progress: Callable[[PrepareProgress], None]
    ) -> tuple[str, ...]:
        """Index the new shards."""
        if not counts:
            end_writing(root)
            raise EmptyDatasetError(f"{self._where}: no sample to convert")
        if self._media is not None and self._media.classes:
            atomic_write_bytes(root / META_FOLDER / CLASSES_JSON, msgspec.json.encode(self._media.classes))
        definition, notes = _definition(self._media)
        prepare_dataset(
            root,
            shards=list(counts),
            records=container_named(self.container).written,
            sqlite=sqlite,
            num_workers=0,
            progress=progress,
            digest=False,  # a scan after a kill would make some
            **definition,
            **self._split(),
        )
        return notes

    def _split(self) -> dict[str, Any]:
        """The arguments of `prepare_dataset` for the split."""
        splits = list(dict.fromkeys(sample.split for sample in self._media.samples)) if self._media else []
        if not any(splits):
            return {"split_ratio": self._ratio or {"train": 1}}
        return {"split_patterns": {split: f"re:^{re.escape(split)}-[0-9]+[.]" for split in splits}}


def _definition(media: MediaFolder | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The arguments of `prepare_dataset` for the sample type, and notes: loose media get the type that suits."""
    if media is None:
        return {"crude": True}, ()
    name, fields = propose_definition(media.part_names, media.example())
    if name == CRUDE_CLASS:
        how = "no sample type suits these parts, so samples are plain dicts (crude)"
        return {"crude": True}, (how, *media.notes())
    how = f"samples are {name} ({', '.join(f'{field} from {part}' for field, part in fields.items())})"
    return {"sample_type": name, "field_map": fields}, (how, *media.notes())


def _shard_name(number: int) -> str:
    return f"shard-{number:06d}"


def _check_keys(location: str, index: ColumnarIndex) -> None:
    """Raise an error about duplicate keys before the first shard is written, instead of after the last one."""
    order = np.asarray(index.key_order)
    places = duplicate_keys(np.asarray(index.key_start), np.asarray(index.key_bytes), order)
    if len(places):
        twice = index.keys(order[places[:1]])[0]
        raise DuplicateKeyError(
            f"{location}: {len(places):,} samples have the key of another one, such as {twice!r}; keys must be unique "
            f"within the new dataset. `energon-grain prepare --fix-duplicates` on the folder of these tars makes them "
            f"unique: it puts the path of the tar before each member name"
        )


def source_samples(source: Source, start: int, stop: int, endings: Mapping[str, str]) -> Iterator[Sample]:
    """Read samples [start, stop), with part names that determine how parts are decoded.

    Args:
        source: The source.
        start: Index of the first sample.
        stop: Index after the last sample.
        endings: Endings of columns whose names do not determine their decoder, see `Opened.endings`.
    """
    for block in _blocks(source, start, stop):
        for raw in source.read(block):
            named = [_named(part, value, endings) for part, value in raw.parts.items()]
            parts = dict(named)
            if len(parts) < len(named):
                twice = next(name for place, (name, _) in enumerate(named) if name in dict(named[:place]))
                both = " and ".join(repr(old) for old, (name, _) in zip(raw.parts, named, strict=True) if name == twice)
                raise UnfitSampleError(f"sample {raw.key!r}: {both} would both become the part {twice!r}; rename one")
            yield parts_of({"__key__": raw.key, **parts})


def _named(part: str, value: Any, endings: Mapping[str, str]) -> tuple[str, bytes]:
    """Name and bytes of a part. It keeps its name if that determines how it is decoded."""
    if isinstance(value, ByteStream):
        value = value.readall()
    said = endings.get(part) or endings.get(part.rpartition(".")[0])  # of a column, or of its list
    if said is not None:
        if has_same_encoder(part, said):
            return part, encode_part(part, value)
        found = extension_for(value)
        return f"{part}.{said if said in ('txt', 'json') or found == 'bin' else found}", encode_part(part, value)
    if has_known_extension(part):
        with suppress(ConfigError):
            return part, encode_part(part, value)
    ending = extension_for(value)
    name = part if ending == "bin" else f"{part}.{ending}"
    return name, encode_part(name, value)


def _encoded(samples: Callable[[], Iterable[WrittenSample]]) -> Iterator[Sample]:
    return map(parts_of, samples())
