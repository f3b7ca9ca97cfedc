# SPDX-License-Identifier: Apache-2.0
"""Converting a dataset: shards anew as shards of the other kind, one for one; or any other data as a dataset of shards.

In the first case keys, parts and their order stay, and so do splits and configuration: the new dataset goes on with
saved states of the old one. In the second, samples are cut into shards of as many, and are all `train`.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

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
from energon_grain.prepare.encode import encode_part, extension_for, has_known_extension, has_same_encoder
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
from energon_grain.sources.kinds import METADATASET, Kind, Streamed, kind_at, streaming_kind
from energon_grain.sources.source import Source
from energon_grain.storage.atomic import atomic_write_bytes, remove_temporaries
from energon_grain.storage.byte_stream import ByteStream
from energon_grain.storage.epath import EPath
from energon_grain.storage.location import is_url, located

_AT_ONCE = 4096
_AT_ONCE_BYTES = 16 << 20
_SHARD_SAMPLES = 5000
_COPIED = (".yaml", ".yml", ".py", ".json")
_NOT_COPIED = (INFO_YAML, RECORDS_JSON)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversionReport:
    """What a conversion wrote.

    Attributes:
        source: Path or URL of the data that was read.
        target: The new dataset.
        container: Kind of its shards.
        shard_counts: Samples of each of its shards.
        source_bytes: Size of the old shards, or of what was read.
        target_bytes: Size of the new shards.
        shards_reused: Shards that an interrupted run had written already.
        verified: Whether what was written was read back and compared.
        notes: What the caller should know though it is no error.
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
    num_workers: int | None = None,
    verify: bool = True,
    sqlite: bool = True,
    progress: Callable[[PrepareProgress], None] | None = None,
) -> ConversionReport:
    """Write data anew as a dataset of tars or ArrayRecord files, and prepare it.

    Of a prepared dataset every shard becomes one of the other kind. Keys, parts and their order stay, so the new
    dataset gives the same stream under the same name, and goes on with cursors of the old one. The split files are
    copied with the new names of shards, other YAML, JSON and Python files of `.nv-meta` as they are.

    Anything else that can be trained on (JSONL files, arrays, and what else `get_train_dataset` takes), and JSONL files
    that are compressed as a whole, `.jsonl.gz` and `.jsonl.zst`, becomes a crude dataset, all of it `train`. Keys and
    parts stay; a part whose name does not say how it is decoded gets an ending that does (`caption` becomes
    `caption.txt`, `image` becomes `image.jpg`).

    A shard appears when all of it is written and compared; a conversion that was killed goes on where it was when it is
    called again.

    Args:
        source: The data, a path or URL.
        target: A new or empty folder of this machine, or one with an interrupted conversion of the same data.
        to: Kind of the new shards; None: the other one, and of data that is in no shards, tars.
        compression: Of each record of an ArrayRecord file. Uncompressed ones are read fastest.
        shard_samples: Samples of each new shard, 5,000 if None. Shards of a prepared dataset keep theirs.
        num_workers: Processes at most; 0 converts in this one, None takes one for each core (at most 16). For a dataset
            in an object store: threads, None takes 16.
        verify: Read every new shard back and compare all keys and bytes.
        sqlite: Whether `index.sqlite` is written for tars.
        progress: Called after every shard.

    Raises:
        DatasetNotFoundError: There is no such data.
        RefusedError: `target` holds something else.
        ConfigError: The arguments do not fit.
        DecodingError: A line of a JSONL file holds no object; names it.
        FormatError: The new container cannot hold a sample; names it.
        ReadError: A shard cannot be read, or what was written is not what was read.
        WorkerError: A process died.
    """
    begun_s = time.monotonic()
    if is_url(located(target)):
        raise ConfigError(f"{target}: a conversion writes to a file system; copy the new dataset to the store")
    if shard_samples is not None and shard_samples < 1:
        raise ConfigError(f"shard_samples={shard_samples}: must be at least 1")
    location, root = located(source), Path(located(target))
    origin = _origin(location, to, shard_samples)
    container = origin.container
    check_container(container, compression)
    begin_writing(root, {**origin.plan, "container": container, "compression": compression, "verify": verify})

    def tell(written: Mapping[str, ScannedShard]) -> None:
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

    def tell_index(now: PrepareProgress) -> None:
        if progress is not None:
            progress(replace(now, stage="index"))

    remove_temporaries(root / META_FOLDER, ".*.tmp")
    tell({})
    written, reused = write_shards(
        root,
        origin.jobs(),
        container=container,
        compression=compression,
        verify=verify,
        count=origin.shards,
        size_bytes=None if is_url(location) else origin.size_bytes,
        num_workers=num_workers,
        progress=tell,
    )
    counts = {name: written[name].samples for name in origin.order(written)}
    notes = origin.prepare(root, counts, sqlite, tell_index)
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


def _origin(location: str, to: ContainerName | None, shard_samples: int | None) -> _Shards | _Samples:
    """What lies at a path or URL, as it is to be converted."""
    kind = streaming_kind(location) or kind_at(location)
    if kind.streamed is not None:
        return _Samples.of_stream(location, kind.streamed, to or "tar", shard_samples or _SHARD_SAMPLES)
    if kind is METADATASET:
        raise ConfigError(
            f"{location}: a conversion takes one dataset, but this is a metadataset: convert its datasets one by one, "
            f"`energon-grain info` names them"
        )
    if kind.is_configured:
        if shard_samples is not None:
            raise ConfigError(f"shard_samples={shard_samples}: shards of {location} keep theirs; leave it out")
        return _Shards(location, to)
    return _Samples.of_source(location, kind, to or "tar", shard_samples or _SHARD_SAMPLES)


class _Shards:
    """A prepared dataset, each shard of which becomes one of the other kind.

    Args:
        location: Path or URL.
        to: That kind; None: the other one.

    Attributes:
        container: That kind.
        plan: What must be the same for a conversion to go on.
        shards: How many there will be.
        size_bytes: Of all that is read.
        read_bytes: For each new shard, the size of what is read for it.

    Raises:
        DatasetNotFoundError: It is not prepared.
        ConfigError: Its shards are of this kind, or two new ones would get the same name.
    """

    def __init__(self, location: str, to: ContainerName | None) -> None:
        self._folder = folder = open_folder(location)
        with naming(folder), closing(open_prepared(folder)):  # refuses what cannot be read
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
        """New shards in the order of the dataset."""
        return list(self._new)

    def prepare(
        self, root: Path, counts: dict[str, int], sqlite: bool, tell: Callable[[PrepareProgress], None]
    ) -> tuple[str, ...]:
        """Write what says how the new shards are read, configuration and splits of the old ones, and the index."""
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
        prepare_dataset(root, tar_index_only=True, sqlite=sqlite, num_workers=0, progress=tell)
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
        "samples have a part twice, of which the later one was kept, as it is when samples are read. So the new "
        "dataset counts as other data: cursors and joins of the old one do not fit it.",
    )


def shard_samples_of(folder: DataFolder, shard: str) -> Iterator[Sample]:
    """Read a shard, about 32 MiB at a time. A part that a sample has twice comes once, the later one.

    Raises UnfitSampleError if a part is not bytes but numbers, as features of a `tf.train.Example` may be.
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
    """Numbers of samples [start, stop), in blocks of about 16 MiB."""
    while start < stop:
        block = np.arange(start, min(start + _AT_ONCE, stop))
        block = block[: max(1, int(np.searchsorted(np.cumsum(source.sizes(block)), _AT_ONCE_BYTES, side="right")))]
        yield block
        start += len(block)


class _Samples:
    """Samples of any other kind, cut into shards of as many. Attributes are those of `_Shards`."""

    def __init__(
        self,
        location: str,
        plan: dict[str, Any],
        container: ContainerName,
        runs: Callable[[], Iterator[tuple[int, Callable[[], Iterator[Sample]]]]],
        *,
        shards: int | None,
        size_bytes: int,
    ) -> None:
        self.plan, self.shards, self.size_bytes = plan, shards, size_bytes
        self.container: ContainerName = container
        self.read_bytes: dict[str, int] = {}
        self._runs, self._where = runs, location

    @classmethod
    def of_source(cls, location: str, kind: Kind, container: ContainerName, count: int) -> _Samples:
        """Whatever a leaf can be."""
        endings: Mapping[str, str] = {}
        if kind.open is not None:
            found = kind.open(location, None)
            source, endings = found.source, found.endings
        else:
            folder = open_data(location)
            source = open_prepared(folder)
            _check_keys(location, open_columnar(folder))

        def runs() -> Iterator[tuple[int, Callable[[], Iterator[Sample]]]]:
            for start in range(0, len(source), count):
                stop = min(start + count, len(source))
                size_bytes = sum(int(source.sizes(block).sum()) for block in _blocks(source, start, stop))
                yield size_bytes, partial(source_samples, source, start, stop, endings)

        return cls(
            location,
            {"content_id": source.content_id, "shard_samples": count},
            container,
            runs,
            shards=-(-len(source) // count),
            size_bytes=sum(int(source.sizes(block).sum()) for block in _blocks(source, 0, len(source))),
        )

    @classmethod
    def of_stream(cls, location: str, streamed: Streamed, container: ContainerName, count: int) -> _Samples:
        """A file that is read once, front to back."""
        size_bytes = EPath(location).stat().content_length

        def runs() -> Iterator[tuple[int, Callable[[], Iterator[Sample]]]]:
            for read_bytes, samples in streamed.runs(location, count):
                yield read_bytes, partial(_encoded, samples)

        plan = {"file": location, "size_bytes": size_bytes, "shard_samples": count}
        return cls(location, plan, container, runs, shards=None, size_bytes=size_bytes)

    def jobs(self) -> Iterator[ShardJob]:
        """The new shards."""
        records = container_named(self.container).written
        for number, (size_bytes, samples) in enumerate(self._runs()):
            task = ShardTask(name=f"shard-{number:06d}{container_named(self.container).suffix}", records=records)
            self.read_bytes[task.name] = size_bytes
            yield task, samples, self._where

    def order(self, written: Mapping[str, ScannedShard]) -> list[str]:
        """New shards in the order of the data."""
        return list(written)

    def prepare(
        self, root: Path, counts: dict[str, int], sqlite: bool, tell: Callable[[PrepareProgress], None]
    ) -> tuple[str, ...]:
        """Make the index of the new shards."""
        if not counts:
            end_writing(root)
            raise EmptyDatasetError("there is no sample to convert")
        prepare_dataset(
            root,
            shards=list(counts),
            records=container_named(self.container).written,
            crude=True,
            split_ratio={"train": 1},
            sqlite=sqlite,
            num_workers=0,
            progress=tell,
        )
        return ()


def _check_keys(location: str, index: ColumnarIndex) -> None:
    """Refuse before anything is written what would be refused behind the last sample."""
    order = np.asarray(index.key_order)
    places = duplicate_keys(np.asarray(index.key_start), np.asarray(index.key_bytes), order)
    if len(places):
        twice = index.keys(order[places[:1]])[0]
        raise DuplicateKeyError(
            f"{location}: {len(places):,} samples have the key of another one, such as {twice!r}; in the new dataset "
            f"a key may occur once. `energon-grain prepare --fix-duplicates` on the folder of these tars puts the path "
            f"of its tar before the name of each"
        )


def source_samples(source: Source, start: int, stop: int, endings: Mapping[str, str]) -> Iterator[Sample]:
    """Read samples [start, stop), with parts whose names say how they are decoded.

    Args:
        source: What is read.
        start: The first one.
        stop: The first one behind.
        endings: Of columns that are not decoded by their names, see `Opened.endings`.
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
    """Name and bytes of a part: under the name that it has, where that says how it is decoded."""
    if isinstance(value, ByteStream):
        value = value.readall()
    said = endings.get(part) or endings.get(part.rpartition(".")[0])  # of a column, or of the column of a list's entry
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
