# SPDX-License-Identifier: Apache-2.0
"""Random access to the samples of ArrayRecord files."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar, Unpack

import numpy as np
import numpy.typing as npt

from energon_grain.errors import DatasetNotFoundError, FormatError, RangeError, ReadError, StaleIndexError
from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.data_folder import DataFolder, needing_shards
from energon_grain.formats.nv_meta import META_FOLDER, RECORDS_JSON, preparing
from energon_grain.formats.records import RECORD_ENCODINGS, read_records_file
from energon_grain.kinds.array_record.files import ArrayRecordFile, record_decoder
from energon_grain.kinds.array_record.ranges import RecordPlaces, find_places, read_records, record_extents
from energon_grain.kinds.prepared.source import IndexedFileStore, IndexedRows, IndexedSource, RowOptions
from energon_grain.samples.sample import SourceInfo
from energon_grain.sources.remote_runs import RemoteExtents, remote_extents
from energon_grain.sources.source import PartValue, RawBatch
from energon_grain.storage.remote import RemoteFiles

Int64Array = npt.NDArray[np.int64]


File = TypeVar("File", ArrayRecordFile, RecordPlaces)


class OpenFiles(Generic[File]):
    """An LRU cache of open files, or of their record locations. Thread-safe. Empty in a forked child.

    Args:
        max_files: Maximum number of files.
        max_records: Maximum number of records of all files together, which limits memory: 15 to 20 bytes each.
    """

    def __init__(self, *, max_files: int = 256, max_records: int = 10_000_000) -> None:
        self._limits = max_files, max_records
        self.close()

    def get(self, path: str) -> File | None:
        """The file, if it is open."""
        if self._process != os.getpid():
            self.close()
        with self._lock:
            if path in self._open:
                self._open.move_to_end(path)
            return self._open.get(path)

    def put(self, path: str, file: File) -> File:
        """Add an open file, and evict others above the limits."""
        max_files, max_records = self._limits
        with self._lock:
            self._open[path] = file
            records = sum(each.records for each in self._open.values())
            while len(self._open) > 1 and (len(self._open) > max_files or records > max_records):
                records -= self._open.popitem(last=False)[1].records
        return file

    def close(self) -> None:
        self._process, self._lock = os.getpid(), threading.Lock()
        self._open: OrderedDict[str, File] = OrderedDict()


class LocalRecords:
    """A `RecordReader` of local files. Keeps files open within `OpenFiles` limits, and checks them after reads."""

    def __init__(self, shards: RecordShards) -> None:
        self._shards = shards
        self._files = OpenFiles[ArrayRecordFile]()
        self._written: dict[int, tuple[int, int]] = {}

    def read(self, shard: Int64Array, record: Int64Array) -> list[bytes]:
        numbers, first = np.unique(shard, return_index=True)
        records = record.tolist()
        ends = [*first.tolist(), len(records)]
        found: list[bytes] = []
        for place, number in enumerate(numbers.tolist()):
            file = self._file(number)
            try:
                found += file.read(records[ends[place] : ends[place + 1]])
            finally:
                if self._size_and_mtime(number) != self._written[number]:
                    raise self._shards.stale(number, "it was changed while it was read")
        return found

    def _file(self, shard: int) -> ArrayRecordFile:
        path = self._shards.paths[shard]
        if shard in self._written:
            return self._files.get(path) or self._files.put(path, ArrayRecordFile(path))
        expected = self._shards.size_bytes[shard]
        size, written_ns = self._size_and_mtime(shard)
        if size != expected:
            raise self._shards.stale(shard, f"it has {size} bytes, not {expected}")
        file = self._files.get(path) or self._files.put(path, ArrayRecordFile(path))
        self._shards.check_records(shard, file.records)
        self._written[shard] = size, written_ns
        return file

    def _size_and_mtime(self, shard: int) -> tuple[int, int]:
        """Current size of a file, and its modification time in ns."""
        path = self._shards.paths[shard]
        try:
            status = os.stat(path)
        except OSError as error:
            raise ReadError(f"{path}: {error.strerror}") from error
        return status.st_size, status.st_mtime_ns

    def close(self) -> None:
        self._files.close()


class ObjectRecords:
    """A `RecordReader` of objects.

    Keeps the record locations of the files used last, up to ten million records at 16 bytes each.

    Args:
        store: The objects' store.
    """

    def __init__(self, shards: RecordShards, store: RemoteFiles) -> None:
        self.store = store
        self._shards = shards
        self._places = OpenFiles[RecordPlaces](max_files=1 << 20)

    def read(self, shard: Int64Array, record: Int64Array) -> list[bytes]:
        paths, places, file = self._files(shard)
        return read_records(self.store, paths, places, file, record)

    def extents(self, shard: Int64Array, record: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(n,) offset and (n,) size of the chunk of each record. Raises like `read`."""
        _, places, file = self._files(shard)
        return record_extents(places, file, record)[:2]

    def _files(self, shard: Int64Array) -> tuple[list[str], list[RecordPlaces], Int64Array]:
        """The files used, their record locations, and (n,) the index of each number's file among them."""
        numbers, file = np.unique(shard, return_inverse=True)
        wanted: list[int] = numbers.tolist()
        paths = [self._shards.paths[number] for number in wanted]
        places = [self._places.get(path) for path in paths]
        unknown = [place for place, known in enumerate(places) if known is None]
        if unknown:
            for place, found in zip(unknown, self._find_places([wanted[place] for place in unknown]), strict=True):
                places[place] = found
                self._places.put(paths[place], found)
        return paths, places, file.reshape(-1)  # type: ignore[return-value]

    def _find_places(self, numbers: Sequence[int]) -> list[RecordPlaces]:
        """Compare files with the index, and read their record locations."""
        shards = self._shards
        paths = [shards.paths[number] for number in numbers]
        sizes = [shards.size_bytes[number] for number in numbers]
        try:
            tails = self.store.tails(paths, sizes)
        except RangeError as error:
            raise shards.changed(str(error)) from error
        for number, tail in zip(numbers, tails, strict=True):
            if tail:
                size = shards.size_bytes[number]
                raise shards.stale(number, f"it has {size + len(tail)} bytes, not {size}")
        found = find_places(self.store, paths, sizes)
        for number, places in zip(numbers, found, strict=True):
            shards.check_records(number, places.records)
        return found

    def close(self) -> None:
        self._places.close()
        self.store.close()


@dataclass(frozen=True, slots=True, eq=False)
class RecordShards:
    """The files by their number in the index.

    Attributes:
        location: The dataset, for messages.
        paths: Path or URL of each file.
        size_bytes: Size of each when it was indexed.
        records: Number of records of each when it was indexed.
    """

    location: str
    paths: list[str]
    size_bytes: list[int]
    records: list[int]

    @staticmethod
    def of(folder: DataFolder, index: ColumnarIndex) -> RecordShards:
        paths = folder.shards(index.shards)
        return RecordShards(folder.location, paths, index.shard_bytes.tolist(), np.diff(index.shard_first).tolist())

    def stale(self, shard: int, found: str) -> StaleIndexError:
        """The error for a file that differs from the indexed one."""
        return self.changed(f"{self.paths[shard]}: {found}")

    def changed(self, found: str) -> StaleIndexError:
        """The same, for a text that already names the file."""
        return StaleIndexError(
            f"{found}; the file changed after it was indexed: run `energon-grain prepare {self.location} "
            f"--tar-index-only`"
        )

    def check_records(self, shard: int, records: int) -> None:
        """Raise StaleIndexError if the number of records differs from that in the index."""
        if records != self.records[shard]:
            raise self.stale(shard, f"it has {records} records, not {self.records[shard]}")


class RecordReader(Protocol):
    """Reads records of a dataset's files. Thread-safe."""

    def read(self, shard: Int64Array, record: Int64Array) -> list[bytes]:
        """Read records in the order requested.

        Args:
            shard: (n,) number of the file, ascending.
            record: (n,) number in it, ascending within each.

        Raises:
            StaleIndexError: The size or number of records of a file differs from that in the index.
            ReadError: A file is missing, or a record cannot be read.
        """
        ...

    def close(self) -> None:
        """Close files. The next read opens them again."""
        ...


class ArrayRecordRows(IndexedRows):
    """The samples of all ArrayRecord files of a prepared dataset.

    A record is always read whole. A read takes all requested records of a file at once. Opening maps the columnar index
    and reads no file. The first read of a file compares its size and number of records with the index, and every read
    compares the keys.

    Local files are read by array_record's own reader. Files in an object store are read by byte ranges: their records
    may be compressed, and in groups, but not transposed.

    Thread-safe and picklable (paths only). A forked process opens the files again.

    Arguments: see `WebDatasetSource`.

    Raises DatasetNotFoundError if it is not prepared as a dataset of ArrayRecord files.
    """

    def __init__(self, path: str | os.PathLike[str] | DataFolder, **options: Unpack[RowOptions]) -> None:
        options["lazy"] = None  # records are read whole
        super().__init__(path, **options)
        encoding = read_records_file(self._folder.local)
        if encoding is None:
            raise DatasetNotFoundError(
                f"{self.path}: {META_FOLDER}/{RECORDS_JSON} is missing, so it is not prepared as ArrayRecord files; "
                f"run `{preparing(self._folder.local)} --records {'|'.join(RECORD_ENCODINGS)}`"
            )
        self._decode = record_decoder(encoding)
        self._shards = RecordShards.of(self._folder, self._index)
        store = self._folder.store
        self._objects = ObjectRecords(self._shards, store) if isinstance(store, RemoteFiles) else None
        self._reader: RecordReader = self._objects or LocalRecords(self._shards)

    @property
    def remote_files(self) -> Sequence[RemoteFiles]:
        return () if self._objects is None else (self._objects.store,)

    def extents(self, numbers: Int64Array) -> list[RemoteExtents]:
        """See `Rows.extents`. Empty for local files: array_record's own reader does not expose offsets."""
        objects = self._objects
        if objects is None:
            return []
        shard = self._shard_of(numbers)
        with needing_shards(self._folder):
            start, size = objects.extents(shard, numbers - self._shard_first[shard])
        return [remote_extents(objects.store, self._shards.paths, shard, start, size, np.arange(len(numbers)))]

    def read_rows(self, numbers: Int64Array) -> RawBatch:
        """See `Rows.read_rows`. Raises StaleIndexError if a file differs from the indexed one."""
        keys = self._index.keys(numbers)
        rows = self._records(numbers, keys)
        names = self._index.shards
        columns, orders = _columns(rows, self._index.part_names, None if self._wanted is None else {*self.part_names})
        batch = RawBatch(
            indices=numbers,
            keys=keys,
            shards=[names[number] for number in self._shard_of(numbers).tolist()],
            columns=columns,
            orders=orders,
        )
        self._touch(numbers)
        return batch

    def _records(self, samples: Int64Array, keys: list[str]) -> list[Mapping[str, PartValue]]:
        """Read and decode records; repeated ones are read once.

        Args:
            samples: (n,) numbers in the dataset, in any order.
            keys: Their keys in the index.

        Raises:
            StaleIndexError: The size or number of records of a file, or the key of a record, differs from the index.
            ReadError: A file is missing, or a record cannot be read.
        """
        wanted, first, back = np.unique(samples, return_index=True, return_inverse=True)
        shard = self._shard_of(wanted)
        record = wanted - self._shard_first[shard]
        with needing_shards(self._folder):
            data = self._reader.read(shard, record)
        rows: list[Mapping[str, PartValue]] = []
        for place, found in enumerate(data):
            try:
                key, parts = self._decode(found)
            except FormatError as error:
                raise self._shards.stale(int(shard[place]), f"record {record[place]} {error}") from error
            if key is not None and key != keys[first[place]]:
                raise self._shards.stale(
                    int(shard[place]), f"record {record[place]} has the key {key!r}, not {keys[first[place]]!r}"
                )
            rows.append(parts)
        return [rows[place] for place in back.tolist()]

    def close(self) -> None:
        self._reader.close()


class ArrayRecordSource(IndexedSource):
    """The samples of some ArrayRecord files of a prepared dataset, in the order of the files. See `ArrayRecordRows`."""

    _kind = ArrayRecordRows


def _columns(
    rows: Sequence[Mapping[str, PartValue]], known: Sequence[str], wanted: set[str] | None
) -> tuple[dict[str, list[PartValue | None]], list[tuple[str, ...]] | None]:
    """One list per part name, and the orders of parts, as in `RawBatch`.

    If the orders differ, columns are in the order of the names in `known`, as for tars.
    """
    if not rows:
        return {}, None
    if wanted is not None:
        rows = [{name: value for name, value in row.items() if name in wanted} for row in rows]
    orders = list(map(tuple, rows))
    names: Sequence[str] = orders[0]
    uniform = len(set(orders)) == 1
    if not uniform:
        places = {name: place for place, name in enumerate(known)}
        names = sorted(set(chain.from_iterable(set(orders))), key=lambda name: (places.get(name, len(places)), name))
    return {name: [row.get(name) for row in rows] for name in names}, None if uniform else orders


class ArrayRecordFileStore(IndexedFileStore[Any]):
    """Reads single parts of samples. A key is the sample's key, a dot and the part's name: `000012.jpg`.

    The record of a sample is read whole, once for all of its requested parts. See `IndexedFileStore`.
    """

    _kind = ArrayRecordRows

    def read(self, keys: Sequence[str]) -> list[tuple[Any, SourceInfo]]:
        samples, rows = self._found(keys)
        names = [self._index.part_names[number] for number in self._index.part_name[rows].tolist()]
        records = self._rows._records(samples, self._index.keys(samples))
        return self._with_sources(keys, samples, (record[name] for record, name in zip(records, names, strict=True)))

    def _find(self, key: str) -> tuple[int, int] | None:
        """Keys of records may contain dots, and so may names of parts."""
        dot = key.find(".")
        while dot >= 0:
            part = key[dot + 1 :]
            sample = self._index.find(key[:dot]) if part in self._parts else None
            if sample is not None and (row := self._row(sample, part)) is not None:
                return sample, row
            dot = key.find(".", dot + 1)
        return None

    def _why_not(self, key: str) -> str:
        return (
            f"no part {key!r}; a key is the key of a sample, a dot and the name of a part, one of "
            f"{', '.join(list(self._parts)[:10])}"
        )
