# SPDX-License-Identifier: Apache-2.0
"""Rows of local and remote arrays (zarr v2 and v3, N5), opened and read by TensorStore.

TensorStore reads and decompresses in its own threads. To keep them busy, reads are issued before earlier ones are
awaited, up to a limit on the chunks in flight. All arrays of a sample share this limit, so no thread waits for the last
chunk of one array. Each process has one chunk cache.

TensorStore's threads do not survive a fork, and it aborts a forked process that uses it (`fork() use detected`).
Therefore we refuse such a process with an error that names other ways to start processes. Copies of a source in other
processes open their arrays on first read.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.errors import (
    ConfigError,
    EmptyDatasetError,
    FormatError,
    KeyNotFoundError,
    ReadError,
    StaleIndexError,
    WorkerError,
)
from energon_grain.extras import needed_for
from energon_grain.forms import encode_json
from energon_grain.kinds.arrays.folder import ArrayFolder, arrays_of, files_of, the_array
from energon_grain.sources.rows import Rows
from energon_grain.sources.source import PartFilter, RawBatch, SampleLocation, accepts, in_range
from energon_grain.storage.location import is_url, join, located, name_of
from energon_grain.storage.remote import address_of, aws_section, most_attempts, read_beginning
from energon_grain.storage.settings import StorageSettings, storage_settings

Int64Array = npt.NDArray[np.int64]

CACHE_BYTES = 256 << 20
"""Size of the cache of decompressed chunks: for all local arrays of a process together, and the same again for all
remote ones."""
IN_FLIGHT_BYTES = 64 << 20
"""Maximum size of the chunks that one read decompresses at a time, for all arrays together; at least one chunk."""
_READS_IN_FLIGHT = 8
"""Approximate number of reads that `IN_FLIGHT_BYTES` are split into."""
_SLICED_ROWS = 64
"""A read costs 20 µs, and a single row 0.4 µs more than a row in a slice: runs of at least this many consecutive rows
are read as slices."""
_DIGESTED_BYTES = 1 << 20
_NON_NUMERIC_KINDS = "OSUMm"
_EXCLUDE_ADVICE = "; in a group, exclude it by part_filter"
_UNREACHABLE = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "PERMISSION_DENIED", "UNAUTHENTICATED")
"""Prefixes of TensorStore errors that do not mean a damaged array."""
_STALLED_BYTES_PER_S = 1024

_forked = False
_contexts: dict[bytes, Any] = {}


def _after_fork() -> None:
    global _forked
    _forked = _forked or "tensorstore" in sys.modules


os.register_at_fork(after_in_child=_after_fork)


class ArraySource:
    """The rows of an array: the entries along its first axis. A sample is a row with one unnamed part.

    A read reads each chunk with a requested row once, a few at a time, so memory grows only with the rows returned.
    Rows that were never written have the array's fill value.

    Thread-safe and picklable: a copy opens the array on first read.

    Args:
        path: The array's folder, or its URL in an object store.

    Attributes:
        path: The array's folder or URL.
        shape: Rows first; empty for a single number.
        dtype: Of its elements; may be non-numeric.
        type_name: The format's name of the type.
        file_shape: Shape of the data in one file, a chunk or shard.
        lost_by_fork: TensorStore's threads do not survive a fork.

    Raises:
        DatasetNotFoundError: There is no array.
        FormatError: Its metadata is damaged, or TensorStore does not support it.
        ConfigError: It is a single number, or its elements are not numbers.
        EmptyDatasetError: It has zero rows.
        ReadError: Its metadata or the store cannot be read.
        WorkerError: This process was forked from one that had loaded TensorStore.
    """

    part_names = ("",)
    lost_by_fork = True

    def __init__(self, path: str | os.PathLike[str] | ArrayFolder) -> None:
        folder = path if isinstance(path, ArrayFolder) else the_array(located(path))
        self.path, self._driver = folder.location, folder.driver
        self._settings = storage_settings() if is_url(self.path) else None
        self._store = store = _await(self.path, _opening(self.path, self._driver, self._settings))
        metadata = store.spec().to_json()["metadata"]
        before, separator = "", metadata.get("dimension_separator", "/")
        if self._driver == "zarr3":
            encoding = metadata["chunk_key_encoding"]
            as_v2 = encoding["name"] == "v2"
            separator = encoding.get("configuration", {}).get("separator", "." if as_v2 else "/")
            before = "" if as_v2 else f"c{separator}"
        self._file_names = before, separator
        name = metadata[{"zarr": "dtype", "zarr3": "data_type", "n5": "dataType"}[self._driver]]
        self.type_name = name if isinstance(name, str) else repr(name)
        self.shape: tuple[int, ...] = store.shape
        self.dtype: np.dtype[Any] = store.dtype.numpy_dtype
        self.file_shape: tuple[int, ...] = store.chunk_layout.write_chunk.shape or ()
        self._content_id = ""
        if folder is not path:
            self.check_rows()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_store": None, "_content_id": ""}  # a copy checks the files itself

    def __repr__(self) -> str:
        return f"ArraySource({self.path!r}, rows={len(self)}, row={self.dtype}{list(self.row_shape)})"

    def __len__(self) -> int:
        """Number of rows; zero for a single number."""
        return self.shape[0] if self.shape else 0

    def check_rows(self) -> None:
        """Raise ConfigError unless there are rows of numbers, and EmptyDatasetError if there are none."""
        if self.dtype.kind in _NON_NUMERIC_KINDS or self.dtype.type is np.void or not self.dtype.itemsize:
            raise ConfigError(
                f"{self.path}: its elements are of type {self.type_name}, but rows must be arrays of plain "
                f"numbers{_EXCLUDE_ADVICE}"
            )
        if not self.shape:
            raise ConfigError(f"{self.path}: is a single number, so it has no rows{_EXCLUDE_ADVICE}")
        if not len(self):
            raise EmptyDatasetError(
                f"{self.path}: the array has shape {list(self.shape)}, so it has no rows{_EXCLUDE_ADVICE}"
            )

    @property
    def content_id(self) -> str:
        """16 hex digits from shape, type, and the beginning of the files with the first and the last row.

        It detects an array that was computed again, but not one with changes only in rows between. The files are read
        on first access.
        """
        if not self._content_id:
            self._content_id = self.digest(self.dtype.name)
        return self._content_id

    def digest(self, type_name: str) -> str:
        """The content id with another type name. Raises ReadError when a file cannot be read."""
        digest = hashlib.blake2b(encode_json([list(self.shape), type_name]), digest_size=8)
        for name in sorted({self._file_of(row) for row in (0, len(self) - 1)} if len(self) else ()):
            digest.update(b"\0" + name.encode() + b"\0" + read_beginning(join(self.path, name), _DIGESTED_BYTES))
        return digest.hexdigest()

    def _file_of(self, row: int) -> str:
        """The file with the beginning of a row, relative to the array's folder."""
        before, separator = self._file_names
        return before + separator.join(map(str, [row // self.file_shape[0], *(0 for _ in self.shape[1:])]))

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row; () for an array with one axis."""
        return self.shape[1:]

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.row_shape)

    @property
    def chunk_rows(self) -> int:
        """Consecutive rows that are decompressed together. Raises as `read`."""
        return int(self.opened().chunk_layout.read_chunk.shape[0])

    def read(self, indices: Int64Array) -> RawBatch:
        """Read rows in the order requested, each as a separate array; indices may repeat.

        Raises IndexError, ReadError, FormatError, StaleIndexError (the shape or type changed since the array was
        opened) and WorkerError (this process was forked from one that had loaded TensorStore).
        """
        rows = read_arrays([self], self.check(indices))[0]
        shards = [name_of(self.path)] * len(rows)
        return RawBatch(indices=indices, keys=self.keys(indices), shards=shards, columns={"": rows})

    def keys(self, indices: Int64Array) -> list[str]:
        """The number of each row. Raises IndexError when an index is out of range."""
        return list(map(str, self.check(indices).tolist()))

    def sizes(self, indices: Int64Array) -> Int64Array:
        """(n,) bytes of each row, the same for all. Raises IndexError when an index is out of range."""
        return np.full(len(self.check(indices)), self.row_bytes, np.int64)

    @property
    def is_column(self) -> bool:
        """Whether a row is one number."""
        return len(self.shape) == 1 and self.dtype.kind in "biuf"

    @property
    def data_files(self) -> dict[str, str]:
        """All files of the array; see `Rows.data_files`."""
        return files_of(self.path)

    @property
    def columns(self) -> tuple[str, ...]:
        """The array itself, unnamed, if a row is one number."""
        return ("",) if self.is_column else ()

    def column(self, name: str, indices: Int64Array | slice) -> npt.NDArray[Any]:
        """(n,) rows of an array that `is_column`, read at once. Raises as `read`, and KeyNotFoundError."""
        self.column_id(name)
        rows = np.arange(len(self))[indices] if isinstance(indices, slice) else self.check(indices)
        if not len(rows):
            return np.zeros(0, self.dtype)
        wanted, place = np.unique(rows, return_inverse=True)
        try:
            return self.opened()[_as_range(wanted)].read().result()[place.reshape(-1)]
        except Exception as error:
            raise ReadError(f"{self.path}: rows {int(wanted[0])} to {int(wanted[-1])}: {error}") from error

    def column_id(self, name: str) -> str:
        """The `content_id`. Raises KeyNotFoundError."""
        if name not in self.columns:
            raise KeyNotFoundError(f"{self.path}: the rows of the array have no column {name!r}")
        return self.content_id

    def locate(self, index: int) -> SampleLocation:
        """Location of a row: the file with its beginning, and its byte range in the uncompressed array.

        Raises IndexError when `index` is out of range.
        """
        self.check(np.array([index], np.int64))
        start, stop = index * self.row_bytes, (index + 1) * self.row_bytes
        shard = self._file_of(index)
        return SampleLocation(index=index, shard=shard, key=str(index), start=start, stop=stop, parts={})

    def place_of(self, index: int) -> str:
        """The file and the row. Raises IndexError as `locate` does."""
        place = self.locate(index)
        return f"{place.shard}: {place.key}"

    def check(self, indices: Int64Array) -> Int64Array:
        """Check rows. Raises IndexError when one is out of range."""
        return in_range(indices, len(self), where=self.path, what="row")

    def close(self) -> None:
        """Close the array. The next read opens it again. Cached chunks stay."""
        self._store = None

    def opened(self) -> Any:
        """The `tensorstore.TensorStore`. Concurrent calls may open it twice, which is harmless.

        Raises StaleIndexError, FormatError and WorkerError.
        """
        store = self._store
        if store is None or _forked:
            store = _await(self.path, _opening(self.path, self._driver, self._settings))
            if store.shape != self.shape or store.dtype.numpy_dtype != self.dtype:
                raise StaleIndexError(
                    f"{self.path}: is {store.dtype.name}{list(store.shape)}, but was {self.dtype}{list(self.shape)} "
                    f"when it was opened; restart, and do not write to the array during the run"
                )
            self._store = store
        return store


class ArrayGroupRows(Rows):
    """The rows of a zarr array (v2, v3) or an N5 array, or of all arrays directly in a group.

    A part of a sample is a row as a numpy array, named after its array. A standalone array has its folder's name
    without the ending: `embeddings` for `embeddings.zarr`. The key of a sample is its row number.

    A read issues the reads of all arrays before it awaits any. For excluded arrays only the metadata is read. The notes
    of `ArraySource` on forks and copies apply.

    Args:
        path: Folder of the array or group, or its URL in an object store.
        parts: Arrays to read: names or a predicate.

    Raises:
        ConfigError: The selected arrays differ in length, one of them is not numeric or is a single number, or none is
            selected.
        EmptyDatasetError: A selected array has no rows.
        DatasetNotFoundError, FormatError, ReadError, WorkerError: As `ArraySource`.
    """

    lost_by_fork = True

    def __init__(self, path: str | os.PathLike[str], *, parts: PartFilter = None) -> None:
        self.path = location = located(path)
        self._group: dict[str, ArraySource | str] = {}
        self._arrays: dict[str, ArraySource] = {}
        for folder in arrays_of(location):
            wanted = accepts(parts, folder.name)
            try:
                self._group[folder.name] = array = ArraySource(folder)
            except FormatError:
                if wanted:
                    raise
                self._group[folder.name] = hashlib.blake2b(folder.metadata, digest_size=8).hexdigest()
                continue
            if wanted:
                array.check_rows()
                self._arrays[folder.name] = array
        if not self._arrays:
            raise ConfigError(f"{path}: part_filter excludes all arrays; select some of {', '.join(self._group)}")
        lengths = {name: len(array) for name, array in self._arrays.items()}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise ConfigError(
                f"{location}: the arrays of a group must have the same number of rows, but {found}; select those of "
                "one length by part_filter, name a single array, or move the others to a separate group"
            )
        self._count = next(iter(lengths.values()))
        sizes = ("bytes", *(f"bytes.{name}" for name in self._arrays))
        self.own_columns = (*sizes, *(name for name in self._group if self._column(name)))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_digest"}

    def __repr__(self) -> str:
        return f"ArrayGroupRows({self.path!r}, arrays={list(self._arrays)})"

    @property
    def shard_counts(self) -> dict[str, int]:
        return {name_of(self.path): self._count}

    @property
    def data_files(self) -> dict[str, str]:
        return files_of(self.path)

    @property
    def arrays(self) -> dict[str, ArraySource]:
        return self._arrays

    @property
    def run_rows(self) -> int | None:
        """For arrays in an object store, rows of the largest chunk, which is always fetched whole."""
        rows = max(array.file_shape[0] for array in self._arrays.values())
        return rows if is_url(self.path) and rows > 1 else None

    @property
    def part_names(self) -> tuple[str, ...]:
        """The names of all arrays, including those not read."""
        return tuple(self._group)

    @property
    def digest(self) -> str:
        return self._digest

    @cached_property
    def _digest(self) -> str:
        """Digest of all arrays, including those not read, as `ArraySource.content_id`."""
        digest = hashlib.blake2b(digest_size=8)
        for name, array in self._group.items():
            own = array if isinstance(array, str) else array.digest(array.type_name)
            digest.update(f"{name}\0{own}\0".encode())
        return digest.hexdigest()

    @property
    def _row_bytes(self) -> int:
        return sum(array.row_bytes for array in self._arrays.values())

    def read_rows(self, numbers: Int64Array) -> RawBatch:
        """See `Rows.read_rows`. Also raises as `ArraySource.read`."""
        columns = read_arrays(list(self._arrays.values()), numbers)
        return self.batch(numbers, dict(zip(self._arrays, columns, strict=True)) if len(numbers) else {})

    def sizes(self, numbers: Int64Array) -> Int64Array:
        return np.full(len(numbers), self._row_bytes, np.int64)

    def _column(self, name: str) -> ArraySource | None:
        """The array with this name if it has one number per row, read or not."""
        array = self._group.get(name)
        return array if isinstance(array, ArraySource) and array.is_column and len(array) == self._count else None

    def own_column(self, name: str, numbers: Any) -> npt.NDArray[Any]:
        array = self._column(name)
        if array is not None:
            return array.column("", numbers)
        row_bytes = self._row_bytes if name == "bytes" else self._arrays[name.removeprefix("bytes.")].row_bytes
        return np.full(len(numbers), row_bytes, np.int64)

    def no_column(self, name: str) -> KeyNotFoundError:
        return KeyNotFoundError(
            f"{self.path}: no column {name!r}; the columns are {', '.join(self.columns)}. To add it, write an array "
            f"with one number per row to {self.path}/{name}"
        )

    def column_id(self, name: str) -> str:
        """See `Rows.column_id`. Sizes use the content id."""
        if name not in self.own_columns:
            raise self.no_column(name)
        array = self._column(name)
        return "" if array is None else array.content_id

    def locate(self, number: int) -> SampleLocation:
        """See `Rows.locate`. Offsets are those in each uncompressed array."""
        parts = {name: (number * array.row_bytes, array.row_bytes) for name, array in self._arrays.items()}
        start, stop = number * self._row_bytes, (number + 1) * self._row_bytes
        return SampleLocation(
            index=number, shard=name_of(self.path), key=str(number), start=start, stop=stop, parts=parts
        )

    def close(self) -> None:
        for array in self._arrays.values():
            array.close()


def _opening(location: str, driver: str, settings: StorageSettings | None) -> Any:
    """A future that opens the array for reading. Raises WorkerError in a forked process."""
    if _forked:
        raise WorkerError(
            f"{location}: this process was forked from one that had loaded TensorStore, whose threads do not survive "
            "a fork; start processes with `multiprocessing_context='forkserver'` or 'spawn', or use threads"
        )
    with needed_for("reading arrays"):
        import tensorstore

    spec = {
        "driver": driver,
        "kvstore": {"driver": "file", "path": f"{location.rstrip('/')}/"}
        if settings is None
        else _kvstore(location, settings),
        # An open array is not checked again: cached data stay valid.
        "recheck_cached_data": "open",
        "recheck_cached_metadata": "open",
    }
    return tensorstore.open(spec, open=True, read=True, context=_context(settings))


def _kvstore(url: str, settings: StorageSettings) -> dict[str, Any]:
    """TensorStore's specification of a folder in a store. Raises ConfigError for unsupported stores."""
    address = address_of(url, settings)
    store = address.store
    words: dict[str, Any] = {"driver": address.kind, "path": f"{address.key}/", "bucket": address.bucket}
    if address.kind in ("azure", "hub"):
        name = {"azure": "Azure", "hub": "the Hub"}[address.kind]
        raise ConfigError(
            f"{url}: arrays cannot be read from {name}; copy them to another store or mount the container"
        )
    if address.kind == "http":
        return {"driver": "http", "path": f"/{address.key}/", "base_url": store.endpoint}
    words |= {"endpoint": store.endpoint, "aws_region": store.region, "requester_pays": store.requester_pays}
    if store.anonymous:
        words["aws_credentials"] = {"type": "anonymous"}
    elif address.kind == "s3" and (section := aws_section(url, store)) is not None:
        # Single sign-on needs Amazon's complete credential search.
        own = section[1].keys() & {"aws_access_key_id", "credential_process", "role_arn"}
        words["aws_credentials"] = {"type": "profile" if own else "default", "profile": section[0]}
    return {word: meaning for word, meaning in words.items() if meaning}


def _await(location: str, opening: Any) -> Any:
    try:
        return opening.result()
    except Exception as error:
        kind = ReadError if str(error).startswith(_UNREACHABLE) else FormatError
        message = str(error).partition(" [tensorstore_spec=")[0]
        raise kind(f"{location}: TensorStore cannot open it: {message}{_EXCLUDE_ADVICE}") from error


def _context(settings: StorageSettings | None) -> Any:
    """The cache and the limit on requests in flight that all arrays of this process share.

    TensorStore repeats failed requests itself, since one read consists of many. Stalled requests would occupy the limit
    for ever. TensorStore takes their timeout from the environment at its first request, so the first settings of a
    process apply.
    """
    import tensorstore

    key = msgspec.json.encode(settings)
    if key not in _contexts:
        spec: dict[str, Any] = {"cache_pool": {"total_bytes_limit": CACHE_BYTES}}
        if settings is not None:
            os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", str(math.ceil(settings.timeout_s)))
            os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", str(_STALLED_BYTES_PER_S))
            retries = {
                "max_retries": most_attempts(settings) - 1,
                "initial_delay": f"{settings.first_pause_s}s",
                "max_delay": f"{settings.longest_pause_s}s",
            }
            for driver in ("s3", "gcs", "http"):
                spec[f"{driver}_request_retries"] = retries
                spec[f"{driver}_request_concurrency"] = {"limit": settings.requests_in_flight}
        _contexts.setdefault(key, tensorstore.Context(tensorstore.Context.Spec(spec)))
    return _contexts[key]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Read:
    array: int
    rows: Int64Array
    chunk_bytes: int


def read_arrays(arrays: Sequence[ArraySource], indices: Int64Array) -> list[list[npt.NDArray[Any]]]:
    """Read the same rows of every array, in the order requested, each as a separate array.

    Each chunk with a requested row is read once. Raises as `ArraySource.read`.
    """
    wanted, place = np.unique(indices, return_inverse=True)
    reads = [read for number, array in enumerate(arrays) for read in _reads(number, array, wanted)]
    found: list[list[npt.NDArray[Any]]] = [[] for _ in arrays]
    waiting: deque[tuple[_Read, Any]] = deque()
    in_flight = 0
    for read in [*reads, None]:
        while waiting and (read is None or in_flight + read.chunk_bytes > IN_FLIGHT_BYTES):
            done, future = waiting.popleft()
            found[done.array] += _separate_rows(arrays[done.array].path, done.rows, future)
            in_flight -= done.chunk_bytes
        if read is not None:
            waiting.append((read, arrays[read.array].opened()[_as_range(read.rows)].read()))
            in_flight += read.chunk_bytes
    places = place.tolist()
    if len(wanted) < len(places):
        return [[rows[row].copy() for row in places] for rows in found]
    return [[rows[row] for row in places] for rows in found]


def _separate_rows(path: str, rows: Int64Array, future: Any) -> list[npt.NDArray[Any]]:
    """The rows of a block as separate arrays; numbers become arrays without an axis.

    They are copies: a view would keep all rows of the read alive as long as one sample.
    """
    try:
        block: npt.NDArray[Any] = future.result()
    except Exception as error:
        raise ReadError(f"{path}: rows {int(rows[0])} to {int(rows[-1])}: {error}") from error
    if block.ndim > 1:
        return [row.copy() for row in block]
    return [block[row, ...].copy() for row in range(len(block))]


def _reads(number: int, array: ArraySource, wanted: Int64Array) -> Iterator[_Read]:
    """Split ascending rows into reads of a few chunks each, and into slices where runs are long."""
    if not len(wanted):
        return
    chunk_rows = array.chunk_rows
    chunk_bytes = max(1, chunk_rows * array.row_bytes)
    at_once = max(1, IN_FLIGHT_BYTES // _READS_IN_FLIGHT // chunk_bytes)
    chunk = np.cumsum(np.diff(wanted // chunk_rows, prepend=-1) != 0) - 1  # numbered in read order
    cuts = np.diff(chunk // at_once) != 0
    gaps = np.diff(wanted) != 1
    if len(wanted) >= _SLICED_ROWS * (np.count_nonzero(gaps) + 1):
        cuts |= gaps
    bounds = [0, *(np.flatnonzero(cuts) + 1).tolist(), len(wanted)]
    for begin, end in itertools.pairwise(bounds):
        chunks = int(chunk[end - 1] - chunk[begin]) + 1
        yield _Read(array=number, rows=wanted[begin:end], chunk_bytes=chunks * chunk_bytes)


def _as_range(rows: Int64Array) -> slice | Int64Array:
    """Ascending rows as a slice if they are contiguous."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows
