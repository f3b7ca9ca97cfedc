# SPDX-License-Identifier: Apache-2.0
"""Gathering what is known of media: from the headers of files in tars and folders into columns, and indices of videos.

Of a file its first 16 KiB are read, and more only where its header goes on behind these. A file whose header is damaged
has no metadata; how many these are, and a few of them, is told with the scan.
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
"""With media in more kinds of parts than so many, none of these has columns of its own."""
_ReadAt = Callable[[int, int], bytes]
_logger = logging.getLogger("energon_grain")


@dataclass(slots=True)
class _Found:
    """What was found so far."""

    part: list[int] = field(default_factory=list)
    is_av: list[bool] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    failures: int = 0
    listed: list[str] = field(default_factory=list)

    def look(self, row: int, name: str, size_bytes: int, head: bytes, read_at: _ReadAt, by: MediaFilterConfig) -> None:
        """Look at the file that is row `row` of the parts."""
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
    """Look for media among the parts of a shard that was scanned, whose parts have offsets.

    Raises OSError, and StaleIndexError if it changed since.

    Gives what is known of them, how many have damaged headers, and what is wrong with the first few.
    """
    found = _Found()
    with container.open_bytes(path) as shard:
        data = shard.data
        if shard.size_bytes != scan.size_bytes or data.generation != scan.generation:
            raise StaleIndexError(f"{path}: changed while it was scanned. Prepare again when nothing writes to it.")
        mean_bytes = scan.size_bytes / max(len(scan.part_offset), 1)
        read = data.alone if mean_bytes >= data.pass_over_bytes else data.near
        for row, name, offset, size_bytes in _candidates(scan, by):
            head = read(offset, min(size_bytes, HEADER_BYTES))

            def read_at(at: int, count: int, offset: int = offset) -> bytes:
                return data.alone(offset + at, count)

            found.look(row, name, size_bytes, head, read_at, by)
    return found.rows(), found.failures, found.listed


def _candidates(scan: ShardScan, by: MediaFilterConfig) -> Iterator[tuple[int, str, int, int]]:
    """Row, name, offset and size of each part that the filter takes by its name."""
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
    """Look for media among files of a folder or below a URL, which are samples of one part with the names as keys.

    Gives a scan of them; how many have damaged headers, and what is wrong with the first few. Raises OSError.
    """
    found, sizes = _Found(), list[int]()
    for row, (name, (size_bytes, head, read_at)) in enumerate(zip(names, _opened(root, names), strict=True)):
        sizes.append(size_bytes)
        found.look(row, name, size_bytes, head, read_at, by)
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
    """Size, first bytes, and what reads others, of each file."""
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
                found = client.read(ObjectRange(url))  # it is smaller than that
            if found is None or found.data is None or found.size_bytes is None:
                raise FileNotFoundError(f"{url}: there is no such object any more")
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
"""By name, what of metadata each holds: the first that is known."""


def write_media_columns(
    dataset: DataFolder,
    staging: Path,
    scans: Iterable[ShardScan],
    parts: Sequence[str],
    content_id: str,
    *,
    before: ColumnarIndex | None = None,
) -> tuple[list[str], list[str]]:
    """Write what is known of media as columns of a dataset; those that would hold nothing are left out.

    `width` is that of the first part of a sample that has one. Where media are in parts of several names, but not of
    hundreds, each has columns of its own as well, `width.jpg`. Gives what a commit is to put, and to remove.

    With `before`, the dataset until now, the first scans are of its shards, and were not looked at: what the columns
    say of these stays. Where it had no columns of media, or damaged ones, none are made; and where it had none for each
    part, there are none for each now.
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
    """Names of parts that have columns of their own: as until now, or where there are several, but not hundreds."""
    before = {name.partition(".")[2] for name in held} - {""}
    named = sorted({*before, *parts}) if held else list(parts)
    return named if (before or not held) and 1 < len(named) <= _MOST_PARTS else []


class _MediaColumns:
    """Columns of media being written, shard by shard: one set of all media, and one of each part in `own`."""

    def __init__(self, stage: ColumnStage, own: Sequence[str]) -> None:
        self._stage, self._own = stage, {part: number for number, part in enumerate(own)}
        names = [f"{name}.{part}" if part else name for part in ("", *own) for name in _COLUMNS]
        self._writers = {name: stage.new(name, function=HEADER_FUNCTION, version=HEADER_VERSION) for name in names}
        self._known = dict.fromkeys(names, 0)

    def _append(self, name: str, numbers: npt.NDArray[np.float64]) -> None:
        self._writers[name].append(numbers)
        self._known[name] += int(np.count_nonzero(~np.isnan(numbers)))

    def keep(self, held: Mapping[str, npt.NDArray[Any]], rows: slice, samples: int) -> None:
        """Take over what the columns say of the samples of a shard."""
        for name in self._writers:
            self._append(name, held[name][rows] if name in held else np.full(samples, np.nan))

    def add(self, scan: ShardScan) -> None:
        """Add what the headers in a shard say."""
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
                full[rows[there][::-1]] = found[there][::-1]  # of several the first
                self._append(f"{name}.{owner}" if owner else name, full)

    def drop_unknown(self) -> None:
        """Drop columns without any number."""
        for name, known in self._known.items():
            if not known:
                self._stage.drop(name)


def _held(dataset: DataFolder, index: ColumnarIndex) -> dict[str, npt.NDArray[Any]]:
    """The columns of media that a dataset has of all its samples; none where one of them is damaged."""
    try:
        columns = KeptColumns(ColumnFolder.of(dataset), Measured.of(index))
        everything = slice(0, columns.samples)
        made = HEADER_FUNCTION, HEADER_VERSION
        stored = columns.stored.items()
        return {name: columns.at(name, everything) for name, each in stored if (each.function, each.version) == made}
    except IndexFileError as error:
        _logger.warning("nothing is taken over from columns of media: %s", error)
        return {}


def media_numbers(metadata: ImageMetadata | AVMetadata) -> dict[str, float | None]:
    """What the columns of media say of one file."""
    known = metadata.to_dict()
    return {name: next((known[fact] for fact in facts if fact in known), None) for name, facts in _COLUMNS.items()}


def _values(media: MediaRows) -> npt.NDArray[np.float64]:
    """(k, number of columns) NaN for what is not known."""
    files: list[dict[str, Any]] = msgspec.json.decode(b"[" + media.texts.replace(b"\n", b",") + b"]")
    columns = _COLUMNS.values()
    rows = [[next((each[fact] for fact in facts if fact in each), np.nan) for facts in columns] for each in files]
    return np.array(rows, np.float64).reshape(len(files), len(_COLUMNS))


ENDINGS = frozenset({"mp4", "mov", "mkv", "webm"})
_AT_ONCE = 256


@public
def index_videos(path: str | os.PathLike[str], *, threads: int = 4) -> int:
    """Make the indices that videos of a prepared dataset lack.

    Those are mp4 and mov in fragments without `sidx`, and mkv and webm without Cues. With an index a clip of such a
    video takes its group of pictures and not all that lies in front. Of files that have one headers are read, of the
    others the headers of all fragments, or (mkv, webm) all bytes. All indices are in `.nv-meta/seek_table.bin`, which
    is written whole or not at all.

    Args:
        path: The dataset's folder, with tars.
        threads: How many videos are read at a time.

    Returns:
        How many there are.

    Raises:
        DatasetNotFoundError: It is not prepared.
        RefusedError: It lies in an object store: index it where it is prepared. Or its shards have no offsets, so that
            records are read whole.
        ReadError: A tar cannot be read.
        MissingPackageError: There is an mkv without Cues, and PyAV is not installed.
    """
    folder = open_folder(path)
    if folder.is_remote:
        raise RefusedError(f"{folder.location}: lies in an object store; index its videos before they are uploaded")
    container = container_in(folder.local)
    if not container.has_offsets:
        raise RefusedError(
            f"{folder.location}: records of {container.file}s are read whole, so an index of their videos is of no "
            f"use; clips of long videos want tars"
        )
    source = open_prepared(folder, parts=lambda part: part.rpartition(".")[2].lower() in ENDINGS)
    shards = {name: number for number, name in enumerate(source.all_shards)}

    def lacking(first: int) -> list[tuple[int, int, int, int, bytes]]:
        found: list[tuple[int, int, int, int, bytes]] = []
        for sample in range(first, min(first + _AT_ONCE, len(source))):
            place = source.locate(sample)
            for offset, size in place.parts.values():
                # Not `source.stream`, which has the index that was made before.
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
