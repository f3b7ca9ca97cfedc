# SPDX-License-Identifier: Apache-2.0
"""Collect media metadata from the headers of files in tars and folders, into columns; and build video indices.

The first 16 KiB of a file are read, and more only if its header is longer. A file with a damaged header has no
metadata; the scan reports the number of such files and lists a few.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.errors import DecodingError, IndexFileError, RangeError, RefusedError, StaleIndexError, public
from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.columnar_header import columnar_folder
from energon_grain.formats.columns import ColumnFolder, ColumnStage, KeptColumns, Measured
from energon_grain.formats.data_folder import DataFolder, open_folder
from energon_grain.formats.scan import MediaRows, ShardScan
from energon_grain.formats.seek_table import write_seek_table
from energon_grain.media.headers import HEADER_BYTES, HEADER_FUNCTION, HEADER_VERSION, MediaFilterConfig, read_header
from energon_grain.media.seek_index import missing_index
from energon_grain.prepare.containers import Container, container_in, open_prepared
from energon_grain.samples.media_metadata import AVMetadata, ImageMetadata, serialize_media_metadata
from energon_grain.storage.byte_stream import ByteStream
from energon_grain.storage.location import is_url, join
from energon_grain.storage.remote import ObjectRange, shared_client
from energon_grain.storage.settings import storage_settings

LISTED_FAILURES = 5
_MOST_PARTS = 16
"""With media in more part names than this, no part gets its own columns."""
_ReadAt = Callable[[int, int], bytes]
_logger = logging.getLogger("energon_grain")


@dataclass(slots=True)
class _Found:
    """Media found so far."""

    part: list[int] = field(default_factory=list)
    is_av: list[bool] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    failures: int = 0
    listed: list[str] = field(default_factory=list)

    def add_file(
        self, row: int, name: str, size_bytes: int, head: bytes, read_at: _ReadAt, by: MediaFilterConfig
    ) -> None:
        """Read the header of the file that is row `row` of the parts."""
        try:
            metadata = read_header(head, size_bytes, read_at, name, by)
        except DecodingError as error:
            self.failures += 1
            if len(self.listed) < LISTED_FAILURES:
                self.listed.append(f"{name} {error}")
            return
        if metadata is not None:
            self.part.append(row)
            self.is_av.append(isinstance(metadata, AVMetadata))
            self.texts.append(serialize_media_metadata(metadata)[1])

    def rows(self) -> MediaRows:
        texts = "\n".join(self.texts).encode()
        return MediaRows(part=np.array(self.part, np.int64), is_av=np.array(self.is_av, np.bool_), texts=texts)


def media_in_shard(
    container: Container, path: str, scan: ShardScan, by: MediaFilterConfig
) -> tuple[MediaRows, int, list[str]]:
    """Read the headers of media among the parts of a scanned shard whose parts have offsets.

    Returns the metadata, the number of damaged headers, and messages about the first few.

    Raises OSError, and StaleIndexError if the shard changed after the scan.
    """
    found = _Found()
    with container.open_bytes(path) as shard:
        data = shard.data
        if shard.size_bytes != scan.size_bytes or data.generation != scan.generation:
            raise StaleIndexError(f"{path}: changed during the scan. Run prepare again when no process writes to it.")
        mean_bytes = scan.size_bytes / max(len(scan.part_offset), 1)
        read = data.read_random if mean_bytes >= data.skip_bytes else data.read_sequential
        for row, name, offset, size_bytes in _candidates(scan, by):
            head = read(offset, min(size_bytes, HEADER_BYTES))

            def read_at(at: int, count: int, offset: int = offset) -> bytes:
                return data.read_random(offset + at, count)

            found.add_file(row, name, size_bytes, head, read_at, by)
    return found.rows(), found.failures, found.listed


def _candidates(scan: ShardScan, by: MediaFilterConfig) -> Iterator[tuple[int, str, int, int]]:
    """Row, name, offset and size of each part whose name passes the filter."""
    keys = scan.keys()
    sample = np.repeat(np.arange(len(scan)), np.diff(scan.part_start))
    if by.patterns:
        rows = np.arange(len(sample))
    else:
        takes = np.array([by.may_take(f"a.{part}") for part in scan.part_names], np.bool_)
        rows = np.flatnonzero(takes[scan.part_name])
    columns = (rows, sample[rows], scan.part_name[rows], scan.part_offset[rows], scan.part_size[rows])
    for row, place, part, offset, size_bytes in zip(*(column.tolist() for column in columns), strict=True):
        name = f"{keys[place]}.{scan.part_names[part]}"
        if not by.patterns or by.may_take(name):
            yield row, name, offset, size_bytes


def media_in_files(root: str, names: Sequence[str], by: MediaFilterConfig) -> tuple[ShardScan, int, list[str]]:
    """Read the headers of files in a folder or below a URL. Each file is a sample with one part; its key is the name.

    Returns a scan of the files, the number of damaged headers, and messages about the first few. Raises OSError.
    """
    found, sizes = _Found(), list[int]()
    for row, (name, (size_bytes, head, read_at)) in enumerate(zip(names, _opened(root, names), strict=True)):
        sizes.append(size_bytes)
        found.add_file(row, name, size_bytes, head, read_at, by)
    keys = [name.encode("utf-8", "surrogateescape") for name in names]
    rows, zeros = np.arange(len(names) + 1), np.zeros(len(names), np.int64)
    scan = ShardScan(
        size_bytes=sum(sizes),
        sample_start=np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]),
        part_start=rows,
        part_names=("",),
        part_name=zeros.astype(np.int32),
        part_offset=zeros,
        part_size=np.array(sizes, np.int64),
        key_start=np.concatenate([[0], np.cumsum([len(key) for key in keys])]).astype(np.int64),
        key_bytes=np.frombuffer(b"".join(keys), np.uint8),
        media=found.rows(),
    )
    return scan, found.failures, found.listed


def _opened(root: str, names: Sequence[str]) -> Iterator[tuple[int, bytes, _ReadAt]]:
    """Size, first bytes, and a reader for other ranges, of each file."""
    if is_url(root):
        client = shared_client(storage_settings())

        def begin(name: str) -> tuple[int, bytes, _ReadAt]:
            url = join(root, name)

            def read_at(at: int, count: int) -> bytes:
                found = client.read(ObjectRange(url, at, at + count))
                return found.data or b"" if found is not None else b""

            try:
                found = client.read(ObjectRange(url, 0, HEADER_BYTES))
            except RangeError:
                found = client.read(ObjectRange(url))  # the object is smaller
            if found is None or found.data is None or found.size_bytes is None:
                raise FileNotFoundError(f"{url}: the object was deleted after it was listed; run the command again")
            return found.size_bytes, found.data, read_at

        yield from client.map(begin, names)
        return
    for name in names:
        descriptor = os.open(join(root, name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            size_bytes = os.fstat(descriptor).st_size

            def read_at(at: int, count: int, descriptor: int = descriptor) -> bytes:
                return os.pread(descriptor, count, at)

            yield size_bytes, os.pread(descriptor, HEADER_BYTES, 0), read_at
        finally:
            os.close(descriptor)


_COLUMNS: dict[str, tuple[str, ...]] = {
    "width": ("width", "video_width"),
    "height": ("height", "video_height"),
    "frames": ("video_num_frames",),
    "fps": ("video_fps",),
    "duration": ("video_duration", "audio_duration"),
    "sample_rate": ("audio_sample_rate",),
    "channels": ("audio_channels",),
}
"""Column name to the metadata fields it may hold; the first known one is used."""


def write_media_columns(
    dataset: DataFolder,
    staging: Path,
    scans: Iterable[ShardScan],
    parts: Sequence[str],
    content_id: str,
    *,
    before: ColumnarIndex | None = None,
) -> tuple[list[str], list[str]]:
    """Write media metadata as columns of a dataset; empty columns are left out.

    `width` is that of the first part of a sample that has one. If media are in parts of several names (at most 16),
    each name also gets its own columns, such as `width.jpg`. Returns the paths that a commit should add and remove.

    With `before`, the dataset's previous index, the first scans are of its shards and hold no media: their values are
    copied from the existing columns. If the dataset had no media columns, or damaged ones, none are written. If it had
    no columns per part, none per part are written.
    """
    held = {} if before is None else _held(dataset, before)
    if before is not None and not held:
        return [], []
    own = _own_parts(held, parts)
    stage = ColumnStage(ColumnFolder.of(dataset), columnar_folder(staging))
    columns = _MediaColumns(stage, own)
    for number, scan in enumerate(scans):
        if before is not None and number < len(before.shards):
            columns.keep(held, slice(*before.shard_first[number : number + 2].tolist()), len(scan))
        else:
            columns.add(scan)
    columns.drop_unknown()
    below = columnar_folder(Path())
    put, remove = ([str(below / name) for name in part] for part in stage.finish(content_id, fill=True))
    return put, remove


def _own_parts(held: Mapping[str, Any], parts: Sequence[str]) -> list[str]:
    """Names of parts with their own columns: the previous ones, or all if there are several (at most 16)."""
    before = {name.partition(".")[2] for name in held} - {""}
    named = sorted({*before, *parts}) if held else list(parts)
    return named if (before or not held) and 1 < len(named) <= _MOST_PARTS else []


class _MediaColumns:
    """Media columns being written, shard by shard: one set for all media, and one for each part in `own`."""

    def __init__(self, stage: ColumnStage, own: Sequence[str]) -> None:
        self._stage, self._own = stage, {part: number for number, part in enumerate(own)}
        names = [f"{name}.{part}" if part else name for part in ("", *own) for name in _COLUMNS]
        self._writers = {name: stage.new(name, function=HEADER_FUNCTION, version=HEADER_VERSION) for name in names}
        self._known = dict.fromkeys(names, 0)

    def _append(self, name: str, numbers: npt.NDArray[np.float64]) -> None:
        self._writers[name].append(numbers)
        self._known[name] += int(np.count_nonzero(~np.isnan(numbers)))

    def keep(self, held: Mapping[str, npt.NDArray[Any]], rows: slice, samples: int) -> None:
        """Copy the existing values for the samples of a shard."""
        for name in self._writers:
            self._append(name, held[name][rows] if name in held else np.full(samples, np.nan))

    def add(self, scan: ShardScan) -> None:
        """Add the values from the headers in a shard."""
        assert scan.media is not None
        values = _values(scan.media)
        sample = np.searchsorted(scan.part_start, scan.media.part, side="right") - 1
        numbers = [self._own.get(name, -1) for name in scan.part_names]
        part = np.array(numbers, np.int64)[scan.part_name[scan.media.part]]
        for owner, place in [("", None), *self._own.items()]:
            chosen = slice(None) if place is None else part == place
            for column, name in enumerate(_COLUMNS):
                rows, found = sample[chosen], values[chosen, column]
                there = ~np.isnan(found)
                full = np.full(len(scan), np.nan)
                full[rows[there][::-1]] = found[there][::-1]  # the first of several wins
                self._append(f"{name}.{owner}" if owner else name, full)

    def drop_unknown(self) -> None:
        """Drop columns without any value."""
        for name, known in self._known.items():
            if not known:
                self._stage.drop(name)


def _held(dataset: DataFolder, index: ColumnarIndex) -> dict[str, npt.NDArray[Any]]:
    """The media columns of a dataset for all its samples; empty if one of them is damaged."""
    try:
        columns = KeptColumns(ColumnFolder.of(dataset), Measured.of(index))
        everything = slice(0, columns.samples)
        made = HEADER_FUNCTION, HEADER_VERSION
        stored = columns.stored.items()
        return {name: columns.at(name, everything) for name, each in stored if (each.function, each.version) == made}
    except IndexFileError as error:
        _logger.warning("existing media columns are damaged and are not reused: %s", error)
        return {}


def media_numbers(metadata: ImageMetadata | AVMetadata) -> dict[str, float | None]:
    """The values of one file for the media columns."""
    known = metadata.to_dict()
    return {name: next((known[fact] for fact in facts if fact in known), None) for name, facts in _COLUMNS.items()}


def _values(media: MediaRows) -> npt.NDArray[np.float64]:
    """(k, number of columns) the values; NaN if unknown."""
    files: list[dict[str, Any]] = msgspec.json.decode(b"[" + media.texts.replace(b"\n", b",") + b"]")
    columns = _COLUMNS.values()
    rows = [[next((each[fact] for fact in facts if fact in each), np.nan) for facts in columns] for each in files]
    return np.array(rows, np.float64).reshape(len(files), len(_COLUMNS))


ENDINGS = frozenset({"mp4", "mov", "mkv", "webm"})
_AT_ONCE = 256


@public
def index_videos(path: str | os.PathLike[str], *, threads: int = 4) -> int:
    """Build missing seek indices for the videos of a prepared dataset.

    Indices are missing in fragmented mp4 and mov without `sidx`, and in mkv and webm without Cues. With an index,
    decoding a clip reads only its group of pictures instead of everything before it. For files that have an index,
    only headers are read; for the others, the headers of all fragments, or (mkv, webm) all bytes. All indices go into
    `.nv-meta/seek_table.bin`, which is written atomically.

    Args:
        path: The dataset's folder, with tars.
        threads: Number of videos read in parallel.

    Returns:
        The number of indices.

    Raises:
        DatasetNotFoundError: The dataset is not prepared.
        RefusedError: The dataset is in an object store: index it where it is prepared. Or its shards have no offsets,
            so records are always read whole.
        ReadError: A tar cannot be read.
        MissingPackageError: An mkv has no Cues, and PyAV is not installed.
    """
    folder = open_folder(path)
    if folder.is_remote:
        raise RefusedError(f"{folder.location}: is in an object store; index its videos before the upload")
    container = container_in(folder.local)
    if not container.has_offsets:
        raise RefusedError(
            f"{folder.location}: records of {container.file}s are always read whole, so a seek index is useless; store "
            f"long videos in tars to decode clips"
        )
    source = open_prepared(folder, parts=lambda part: part.rpartition(".")[2].lower() in ENDINGS)
    shards = {name: number for number, name in enumerate(source.all_shards)}

    def lacking(first: int) -> list[tuple[int, int, int, int, bytes]]:
        found: list[tuple[int, int, int, int, bytes]] = []
        for sample in range(first, min(first + _AT_ONCE, len(source))):
            place = source.locate(sample)
            for offset, size in place.parts.values():
                # Not `source.stream`, which would use an existing seek table.
                file = ByteStream(folder.store, folder.shard(place.shard), offset, size)
                index = missing_index(cast("BinaryIO", file))
                found += [] if index is None else [(shards[place.shard], offset, size, *index)]
        return found

    samples = range(0, len(source) if source.part_names else 0, _AT_ONCE)
    try:
        with ThreadPoolExecutor(threads) as executor:
            entries = [entry for found in executor.map(lacking, samples) for entry in found]
    finally:
        source.close()
    write_seek_table(Path(folder.local), source.index_id, entries)
    return len(entries)
