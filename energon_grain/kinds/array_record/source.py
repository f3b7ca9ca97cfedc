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
    """What stays open, or in memory, of the files that were used last. Thread-safe; in a forked child there are none.

    Args:
        max_files: Least recently used files beyond this number are let go of.
        max_records: The same by the records of all of them together: memory, 15 to 20 bytes each.
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
        """Keep a file open, and let go of others."""
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
    """A `RecordReader`. Files stay open, as many as `OpenFiles` keeps, and are looked at behind each read."""

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
                if self._look(number) != self._written[number]:
                    raise self._shards.stale(number, "it was changed while it was read")
        return found

    def _file(self, shard: int) -> ArrayRecordFile:
        path = self._shards.paths[shard]
        if shard in self._written:
            return self._files.get(path) or self._files.put(path, ArrayRecordFile(path))
        expected = self._shards.size_bytes[shard]
        size, written_ns = self._look(shard)
        if size != expected:
            raise self._shards.stale(shard, f"it has {size} bytes, not {expected}")
        file = self._files.get(path) or self._files.put(path, ArrayRecordFile(path))
        self._shards.check_records(shard, file.records)
        self._written[shard] = size, written_ns
        return file

    def _look(self, shard: int) -> tuple[int, int]:
        """Size, and time of modification in ns, of a file as it is now."""
        path = self._shards.paths[shard]
        try:
            status = os.stat(path)
        except OSError as error:
            raise ReadError(f"{path}: {error.strerror}") from error
        return status.st_size, status.st_mtime_ns

    def close(self) -> None:
        self._files.close()


class ObjectRecords:
    """A `RecordReader`.

    It stays known where the records of a file lie, 16 bytes a record, for the files used last: ten million records.

    Args:
        store: Where they lie.
    """

    def __init__(self, shards: RecordShards, store: RemoteFiles) -> None:
        self.store = store
        self._shards = shards
        self._places = OpenFiles[RecordPlaces](max_files=1 << 20)

    def read(self, shard: Int64Array, record: Int64Array) -> list[bytes]:
        paths, places, file = self._files(shard)
        return read_records(self.store, paths, places, file, record)

    def extents(self, shard: Int64Array, record: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(n,) where the chunk of each record begins in its file, and (n,) size of it. Raises like `read`."""
        _, places, file = self._files(shard)
        return record_extents(places, file, record)[:2]

    def _files(self, shard: Int64Array) -> tuple[list[str], list[RecordPlaces], Int64Array]:
        """Files that are asked for, where their records lie, and (n,) which of these files each number means."""
        numbers, file = np.unique(shard, return_inverse=True)
        wanted: list[int] = numbers.tolist()
        paths = [self._shards.paths[number] for number in wanted]
        places = [self._places.get(path) for path in paths]
        unknown = [place for place, known in enumerate(places) if known is None]
        if unknown:
            for place, found in zip(unknown, self._look([wanted[place] for place in unknown]), strict=True):
                places[place] = found
                self._places.put(paths[place], found)
        return paths, places, file.reshape(-1)  # type: ignore[return-value]

    def _look(self, numbers: Sequence[int]) -> list[RecordPlaces]:
        """Compare files with the index, and read where their records lie."""
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
    """The files by their numbers in the index.

    Attributes:
        location: The dataset, as messages name it.
        paths: Path or URL of each file.
        size_bytes: Of each, when it was indexed.
        records: How many each had then.
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
        """The error that says that a file is not the one that was indexed."""
        return self.changed(f"{self.paths[shard]}: {found}")

    def changed(self, found: str) -> StaleIndexError:
        """The same, where it is said already which file it is."""
        return StaleIndexError(
            f"{found}; the file was changed after it was indexed: run `energon-grain prepare {self.location} "
            f"--tar-index-only`"
        )

    def check_records(self, shard: int, records: int) -> None:
        """Raise StaleIndexError where a file has another number of records than when it was indexed."""
        if records != self.records[shard]:
            raise self.stale(shard, f"it has {records} records, not {self.records[shard]}")


class RecordReader(Protocol):
    """Reads records of a dataset's files. Thread-safe."""

    def read(self, shard: Int64Array, record: Int64Array) -> list[bytes]:
        """Read records in the order asked for.

        Args:
            shard: (n,) number of the file, ascending.
            record: (n,) number in it, ascending within each.

        Raises:
            StaleIndexError: A file has another size or number of records than when it was indexed.
            ReadError: A file is gone, or a record cannot be read.
        """
        ...

    def close(self) -> None:
        """Let go of files; reading again opens them anew."""
        ...


class ArrayRecordRows(IndexedRows):
    """The samples of all ArrayRecord files of a prepared dataset.

    A record is read whole, whatever parts are wanted of it. A read takes all records of a file at once. Opening maps
    the columnar index and reads no file; the first read from a file checks that it is the one that was indexed, by its
    size and number of records, and every read that records have the keys of the index.

    Files on this machine are read by array_record's own reader, those in an object store by ranges of bytes: then
    records may be compressed, and in groups, but not transposed.

    Thread-safe and picklable (paths only); in a forked process files are opened anew.

    Arguments: see `WebDatasetSource`.

    Raises DatasetNotFoundError if it is not prepared as a dataset of ArrayRecord files.
    """

    def __init__(self, path: str | os.PathLike[str] | DataFolder, **options: Unpack[RowOptions]) -> None:
        options["lazy"] = None  # records are read whole
        super().__init__(path, **options)
        encoding = read_records_file(self._folder.local)
        if encoding is None:
            raise DatasetNotFoundError(
                f"{self.path}: there is no {META_FOLDER}/{RECORDS_JSON}, so it is not prepared as ArrayRecord files; "
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
        """See `Rows.extents`. array_record's own reader keeps to itself where records lie in files of this machine."""
        objects = self._objects
        if objects is None:
            return []
        shard = self._shard_of(numbers)
        with needing_shards(self._folder):
            start, size = objects.extents(shard, numbers - self._shard_first[shard])
        return [remote_extents(objects.store, self._shards.paths, shard, start, size, np.arange(len(numbers)))]

    def read_rows(self, numbers: Int64Array) -> RawBatch:
        """See `Rows.read_rows`. Raises StaleIndexError if a file is not the one that was indexed."""
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
        """Read and take apart records; repeated ones are read once.

        Args:
            samples: (n,) numbers in the dataset, in any order.
            keys: Theirs, by the index.

        Raises:
            StaleIndexError: A file has another size or number of records than when it was indexed, or a record is not
                the sample that the index says.
            ReadError: A file is gone, or a record cannot be read.
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
    """One list for each part name, and the orders of parts, as `RawBatch` has both.

    Where these differ, the columns are in the order of the names that are `known`, as those of tars.
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
    """Reads single parts of samples; a key is the sample's key and the part's name with a dot between: `000012.jpg`.

    The record of a sample is read whole, once for all of its parts that are asked for together. See `IndexedFileStore`.
    """

    _kind = ArrayRecordRows

    def read(self, keys: Sequence[str]) -> list[tuple[Any, SourceInfo]]:
        samples, rows = self._found(keys)
        names = [self._index.part_names[number] for number in self._index.part_name[rows].tolist()]
        records = self._rows._records(samples, self._index.keys(samples))
        return self._with_sources(keys, samples, (record[name] for record, name in zip(records, names, strict=True)))

    def _find(self, key: str) -> tuple[int, int] | None:
        """Keys of records may have dots, and so may names of parts."""
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
            f"there is no part {key!r}; a key is the key of a sample, a dot, and the name of one of its parts. There "
            f"are parts {', '.join(list(self._parts)[:10])}"
        )
