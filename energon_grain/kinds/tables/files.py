# SPDX-License-Identifier: Apache-2.0
"""Files of tables: finding them at a path, reading their heads, and decoding groups of rows as Arrow tables.

The head of a file (a footer or an index) lists the number of rows in each group and their offsets. The heads of all
files are read once and stored in one file in the cache folder. A folder of thousands of files is then opened by
checking sizes and modification times (in a store: one listing, with entity tags) and reading one file:

    heads, concatenated | records of the files (msgpack) | bytes of these (8) | XXH3-64 of these (8)

Bytes are read by our own storage (page cache, retries, versions) and passed to pyarrow, which decodes them. The data
are untrusted: decoded results are compared with the head.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import itertools
import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from energon_grain.atomic_files import atomic_write
from energon_grain.errors import (
    EmptyDatasetError,
    FormatError,
    ReadError,
    StaleIndexError,
)
from energon_grain.extras import needed_for
from energon_grain.formats.columns import ColumnFolder
from energon_grain.formats.data_files import Version, find_files, version_of
from energon_grain.formats.local_files import LocalFiles
from energon_grain.forms import Form
from energon_grain.storage.byte_store import coalesce
from energon_grain.storage.location import is_url, join, located
from energon_grain.storage.remote import RemoteFiles, mirror_of, remote_files, shared_client
from energon_grain.storage.settings import storage_settings

Int64Array = npt.NDArray[np.int64]
MAX_ROWS = 1 << 56
DAMAGED = "the file is damaged or of another format; write it again, or exclude it by a pattern"
_NO_MEMORY = "Cannot allocate memory"
_Store = LocalFiles | RemoteFiles


class Record(msgspec.Struct, array_like=True, kw_only=True):
    """The stored description of a file. A group is a row group, record batch or run of samples, read as a unit.

    Attributes:
        version: Version of the file when its head was read.
        begin: Offset of its head in the file of all heads.
        head_bytes: Size of the head.
        head_sum: XXH3-64 of the head.
        columns: Names of the columns.
        rows: (groups,) int64.
        extents: (groups, columns, 3) int64: first byte, one past the last, and uncompressed bytes, of each column.
    """

    name: str
    version: tuple[int, int | bytes]
    begin: int
    head_bytes: int
    head_sum: int
    columns: list[str]
    rows: bytes
    extents: bytes


_RECORDS = Form(list[Record])


@dataclass(frozen=True, kw_only=True, slots=True)
class RowGroups:
    """All groups of rows that are decoded together, in the order of the files.

    Attributes:
        first: (groups + 1,) number of the first row of each, and the total number of rows.
        file: (groups,) file of each group.
        number: (groups,) number of each group in its file.
        extents: (groups, columns, 3) see `Record`; zeros if a file lacks a column.
    """

    first: Int64Array
    file: Int64Array
    number: Int64Array
    extents: Int64Array


class TableFiles(ABC):
    """The files of one kind at a path, and their heads. Picklable: copies check the files again.

    Args:
        path: A file, a folder (with all files below), a pattern (`data/**/train-*.parquet`), which may contain braces
            (`{000..009}.parquet`); or a URL of one of these.
        cache_dir: Folder of the cached heads; default: the user's cache folder.

    Attributes:
        location: The path.
        names: Names of the files, relative to their common folder, in order.
        paths: Paths of the files.
        columns: Names of the columns of any file, in order.
        content_id: Digest of names, sizes and heads.
        is_mapped: Whether groups are memory-mapped: they need no memory, and all rows cost the same to read.
        kind: Name of the files in messages.
        endings: File name endings.
        group_word: Name of a group in messages.
        group_option: The option of writers that sets the size of groups.
        reads_whole_groups: Whether all columns are read for any of them.

    Raises:
        DatasetNotFoundError: There is no file.
        FormatError: A head is damaged.
        EmptyDatasetError: There are no rows.
        MissingPackageError: pyarrow is not installed.
        ReadError: A store cannot be reached, or a file cannot be read.
    """

    kind: ClassVar[str]
    endings: ClassVar[tuple[str, ...]]
    group_word: ClassVar[str] = "row group"
    group_option: ClassVar[str]
    reads_whole_groups: ClassVar[bool] = True
    is_mapped = False
    _cache_ending: ClassVar[str] = ".footers"
    """Ending of the cache file's name. It changes when earlier cache files must not be used."""
    _named_by = ""
    """Digest of the index that lists the files, if there is one."""

    def __init__(self, path: str | os.PathLike[str], *, cache_dir: str | os.PathLike[str] | None = None) -> None:
        with needed_for(f"reading {self.kind}"):
            import pyarrow.parquet  # noqa: F401  # pyright: ignore[reportUnusedImport]
        self.location, self._cache_dir = located(path), cache_dir
        root, self.names, versions = self._find()
        self.paths = [join(root, name) for name in self.names]
        self.store: _Store = remote_files(storage_settings()) if is_url(root) else LocalFiles(indexed_by="")
        if isinstance(self.store, LocalFiles):
            self._versions: list[Version] = [version_of(path) for path in self.paths]
        elif versions is None:
            self._versions = shared_client(self.store.settings).map(self.store.version, self.paths)
        else:
            self._versions = [versions[name] for name in self.names]
        self._index = self._index_path(root)
        once = self.uncached()
        self._records = once._cached_records()
        if once is not self:
            once.store.close()
        self.columns = tuple(dict.fromkeys(name for record in self._records for name in record.columns))
        digest = hashlib.blake2b(digest_size=8)
        for record in self._records:
            encoded = msgspec.msgpack.encode((record.name, record.version[0], record.head_sum))
            digest.update(encoded)
        self.content_id = digest.hexdigest()
        if not len(self):
            raise EmptyDatasetError(f"{self.location}: its {len(self.names)} {self.kind} have no rows")

    def uncached(self) -> Self:
        """The same files without the page cache: a store fetches only the bytes read, and keeps no pages.

        For scattered reads whose result is stored in another form: heads, and columns that are read completely.
        """
        if isinstance(self.store, LocalFiles):
            return self
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other.store = remote_files(msgspec.structs.replace(self.store.settings, cache_bytes=0))
        return other

    def fetch(self, file: Int64Array, start: Int64Array, size: Int64Array) -> None:
        """Prefetch pieces of remote files in parallel."""
        store = self.store
        if isinstance(store, RemoteFiles):
            gap, solo = store.merge_gap_bytes, store.solo_bytes
            spans = coalesce(file, start, size, merge_gap_bytes=gap, solo_bytes=solo)
            for number in np.unique(file).tolist():
                store.expect(self.paths[number], self._versions[number])  # type: ignore[arg-type]
            ranges = zip(spans.file.tolist(), spans.start.tolist(), spans.stop.tolist(), strict=True)
            shared_client(store.settings).map(lambda each: store.prefetch(self.paths[each[0]], *each[1:]), list(ranges))

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (type(self), self.location, self._cache_dir, self.content_id)

    def _find(self) -> tuple[str, list[str], dict[str, Version] | None]:
        return find_files(self.location, self.endings)

    @abstractmethod
    def schema(self, file: int = 0) -> Any:
        """The `pyarrow.Schema` of a file. Raises FormatError if it is not supported."""

    def _read_heads(self, files: Sequence[int]) -> list[bytes]:
        """The heads of files. Raises as `_read_head`."""
        if isinstance(self.store, RemoteFiles):
            return shared_client(self.store.settings).map(self._read_head, files)
        return [self._read_head(file) for file in files]

    def _read_head(self, file: int) -> bytes:
        """The head of a file. Raises FormatError, ReadError."""
        raise NotImplementedError

    @abstractmethod
    def _record(self, file: int, head: bytes) -> Record:
        """Parse a head. Raises FormatError if it contradicts itself or the size of the file."""

    @abstractmethod
    def _table(self, group: int, names: list[str]) -> Any:
        """Some columns of a group. Errors of pyarrow and ValueError become a FormatError."""

    def __len__(self) -> int:
        return int(self.groups.first[-1])

    @cached_property
    def groups(self) -> RowGroups:
        place = {name: number for number, name in enumerate(self.columns)}
        counts = [len(record.rows) // 8 for record in self._records]
        rows = np.concatenate([np.frombuffer(record.rows, "<i8") for record in self._records])
        extents = np.zeros((len(rows), len(place), 3), np.int64)
        at = 0
        for record, count in zip(self._records, counts, strict=True):
            own = np.frombuffer(record.extents, "<i8").reshape(count, len(record.columns), 3)
            extents[at : at + count, [place[name] for name in record.columns]] = own
            at += count
        first = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(rows, out=first[1:])
        file = np.repeat(np.arange(len(counts)), counts)
        starts = np.cumsum([0, *counts[:-1]])
        return RowGroups(first=first, file=file, number=np.arange(len(rows)) - starts[file], extents=extents)

    def spans(
        self, groups: Int64Array, columns: Sequence[str]
    ) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """(file, start, size, owner) of the bytes of columns of row groups; `owner`: the index in `groups`."""
        if self.reads_whole_groups:
            start, stop, _ = self.groups.extents[groups].max(axis=1).T
            return self.groups.file[groups], start, stop - start, np.arange(len(groups))
        places = [number for number, name in enumerate(self.columns) if name in columns]
        extents = self.groups.extents[groups][:, places]
        start, stop = extents[..., 0].reshape(-1), extents[..., 1].reshape(-1)
        owner = np.repeat(np.arange(len(groups)), len(places))
        nonempty = stop > start
        return self.groups.file[groups][owner[nonempty]], start[nonempty], (stop - start)[nonempty], owner[nonempty]

    def read(self, group: int, columns: Sequence[str]) -> Any:
        """A group as a `pyarrow.Table` of these columns, without those that its file lacks; None if it lacks all.

        Raises:
            FormatError: Decoding fails, or the result differs from the head.
            StaleIndexError, ReadError: The file changed after it was opened, or cannot be read.
        """
        groups = self.groups
        file, rows = int(groups.file[group]), int(groups.first[group + 1] - groups.first[group])
        names = [name for name in self._records[file].columns if name in columns]
        if not names:
            return None
        self.store.expect(self.paths[file], self._versions[file])  # type: ignore[arg-type]
        extents = groups.extents[group, [self.columns.index(name) for name in names]]
        if not self.is_mapped:
            sizes = np.maximum(extents[:, 2], 0 if self.reads_whole_groups else extents[:, 1] - extents[:, 0])
            self._check_size(group, dict(zip(names, sizes.tolist(), strict=True)))
        try:
            table = self._table(group, names)
            if table.num_rows != rows or table.num_columns != len(names):
                raise ValueError(f"{table.num_rows} rows of {table.num_columns} columns, not {rows} of {len(names)}")
        except _raw_errors() as error:
            if _is_ours(error):
                raise
            wrong = names if is_memory_short(error) or len(names) == 1 else self._wrong_columns(group, names)
            shown = f"column{'s' * (len(wrong) > 1)} {', '.join(map(repr, wrong))}"
            where = f"{self.paths[file]}: {self.group_word} {int(groups.number[group])}: {shown}"
            raise named_error(where, error) from error
        return table

    def _wrong_columns(self, group: int, names: list[str]) -> list[str]:
        """The columns of a group that do not decode individually; all columns if each of them does."""
        wrong: list[str] = []
        for name in names:
            try:
                self._table(group, [name])
            except _raw_errors():
                wrong.append(name)
        return wrong or names

    def _check_size(self, group: int, sizes: Mapping[str, int]) -> None:
        """Refuse a group whose columns exceed the allowed decoded size. Raises FormatError."""
        total, most = sum(sizes.values()), storage_settings().largest_group_bytes
        if total <= most:
            return
        largest = max(sizes, key=sizes.__getitem__)
        whole = f", with the other columns {total:,}" if total > sizes[largest] else ""
        raise FormatError(
            f"{self.paths[int(self.groups.file[group])]}: {self.group_word} {int(self.groups.number[group])}: column "
            f"{largest!r} takes {sizes[largest]:,} bytes{whole}, but `largest_group_bytes` is {most:,}; write "
            f"smaller groups ({self.group_option}), exclude the column by a part_filter, or raise the limit with "
            f"`use_storage(StorageSettings(largest_group_bytes=…))`, or in the file with the storage settings"
        )

    def _read(self, file: int, start: int, stop: int) -> bytes:
        one = np.zeros(1, np.int64)
        return self.store.read_spans([self.paths[file]], one, one + start, one + stop)[0]

    def _recorded(self, file: int, head: bytes, columns: list[str], rows: Sequence[int], extents: Any) -> Record:
        """A record of a file.

        Args:
            extents: As in the record; for groups that are read whole, (groups, 3) of all columns together.
        """
        width = 1 if self.reads_whole_groups else len(columns)
        extents = np.asarray(extents, "<i8").reshape(len(rows), width, 3)
        if self.reads_whole_groups:
            share = -(-extents[..., 2:] // max(1, len(columns)))
            extents = np.repeat(np.concatenate([extents[..., :2], share], axis=2), len(columns), axis=1)
        if min(rows, default=0) < 0 or sum(rows) >= MAX_ROWS:
            raise FormatError(f"{self.paths[file]}: declares {sum(rows)} rows; {DAMAGED}")
        return Record(
            name=self.names[file],
            version=self._versions[file],
            begin=0,
            head_bytes=len(head),
            head_sum=xxhash.xxh3_64_intdigest(head),
            columns=columns,
            rows=np.array(rows, "<i8").tobytes(),
            extents=extents.tobytes(),
        )

    def _bytes_of(self, file: int, start: Int64Array, size: Int64Array) -> dict[int, bytes]:
        """Pieces of a file, some of them merged, by their offsets in it."""
        spans = coalesce(
            np.zeros(len(start), np.int64),
            start,
            size,
            merge_gap_bytes=self.store.merge_gap_bytes,
            solo_bytes=self.store.solo_bytes,
        )
        data = self.store.read_spans([self.paths[file]], spans.file, spans.start, spans.stop)
        return dict(zip(spans.start.tolist(), data, strict=True))

    @contextlib.contextmanager
    def _decoding(self, where: str) -> Generator[None]:
        """Adds the location to errors of pyarrow."""
        try:
            yield
        except _raw_errors() as error:
            if _is_ours(error):
                raise
            raise named_error(where, error) from error

    # The cache of heads.

    def _index_path(self, root: str) -> Path:
        identity = hashlib.blake2b(
            "\0".join([root, *self.names, self._named_by]).encode("utf-8", "surrogateescape"), digest_size=16
        )
        name = f"{identity.hexdigest()}{self._cache_ending}"
        if self._cache_dir is None and is_url(root):
            return mirror_of(root).folder / "parquet" / name
        base = self._cache_dir or os.path.join(os.path.dirname(storage_settings().cache_folder), "parquet")
        identity.update(os.fsencode(os.path.realpath(root)))
        return Path(base) / f"{identity.hexdigest()}{self._cache_ending}"

    def _cached_records(self) -> list[Record]:
        """Records of all files from the cache; new or changed files are read, and the cache is updated."""
        known = {record.name: record for record in _read_records(self._index)}
        fresh: dict[int, bytes] = {}
        records: list[Record | None] = []
        for number, (name, version) in enumerate(zip(self.names, self._versions, strict=True)):
            record = known.get(name)
            records.append(record if record is not None and tuple(record.version) == version and version[1] else None)
            if records[-1] is None:
                fresh[number] = b""
        if not fresh:
            return records  # type: ignore[return-value]
        fresh.update(zip(fresh, self._read_heads(list(fresh)), strict=True))
        for number, head in fresh.items():
            records[number] = self._record(number, head)
        return self._write(records, fresh)  # type: ignore[arg-type]

    def _head(self, file: int) -> bytes:
        """The head of a file, from the cache or else from the file itself."""
        record = self._records[file]
        with contextlib.suppress(OSError), open(self._index, "rb") as kept:
            head = os.pread(kept.fileno(), record.head_bytes, record.begin)
            if xxhash.xxh3_64_intdigest(head) == record.head_sum:
                return head
        (head,) = self._read_heads([file])
        if xxhash.xxh3_64_intdigest(head) != record.head_sum:
            raise StaleIndexError(f"{self.paths[file]}: changed after it was opened; restart")
        return head

    def _write(self, records: list[Record], fresh: dict[int, bytes]) -> list[Record]:
        """Store heads and records, if possible."""
        self._records = records
        heads = [fresh[number] if number in fresh else self._head(number) for number in range(len(records))]
        begins = itertools.accumulate(map(len, heads), initial=0)
        placed = [msgspec.structs.replace(record, begin=at) for record, at in zip(records, begins, strict=False)]
        encoded = msgspec.msgpack.encode(placed)
        with contextlib.suppress(OSError):
            self._index.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(self._index) as file:
                file.writelines(heads)
                file.write(encoded)
                file.write(len(encoded).to_bytes(8, "little") + xxhash.xxh3_64_intdigest(encoded).to_bytes(8, "little"))
        return placed

    @property
    def cache_file(self) -> Path:
        """The cache file of these files, for all their versions."""
        return self._index

    @property
    def cache_prefix(self) -> Path:
        """Prefix of the names of cache files that belong to the current versions of these files.

        It contains the versions, since different numbers may have the same head.
        """
        encoded = msgspec.msgpack.encode(self._versions)
        return self._index.with_name(f"{self._index.stem}-{xxhash.xxh3_64_hexdigest(encoded)}")

    @property
    def described_by(self) -> dict[str, str]:
        """Path or URL of the index that lists the files, by its name; empty: there is none."""
        return {}

    def column_folder(self) -> ColumnFolder:
        """The folder of their columns: beside them; in the cache folder for remote files and patterns."""
        path = Path(self.location)
        beside = path / ".columns" if path.is_dir() else path.with_name(f"{path.name}.columns")
        return ColumnFolder.beside(
            self.location, f"{beside if path.exists() else self.cache_file.with_suffix('.columns')}"
        )

    def close(self) -> None:
        self.store.close()


def _raw_errors() -> tuple[type[Exception], ...]:
    """Errors that pyarrow raises during decoding, and our own code when it parses heads."""
    import pyarrow

    return pyarrow.ArrowException, ValueError, OSError, OverflowError, LookupError, MemoryError


def _is_ours(error: Exception) -> bool:
    return type(error).__module__.startswith("energon_grain")


def is_memory_short(error: Exception) -> bool:
    """Whether an error means insufficient memory, independent of the file."""
    no_memory = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return no_memory or isinstance(error, MemoryError) or _NO_MEMORY in str(error)


def named_error(where: str, error: Exception, advice: str = DAMAGED) -> ReadError | FormatError:
    """Convert an error of pyarrow, NumPy or the system to one of ours, with the location.

    Args:
        advice: The remedy if the file, and not the machine, is at fault.
    """
    message = str(error).strip() or type(error).__name__
    if is_memory_short(error):
        return ReadError(
            f"{where}: not enough memory to decode it ({message}); read fewer columns, write smaller groups, or give "
            "the process more memory"
        )
    if isinstance(error, OSError) and error.errno is not None:
        return ReadError(f"{where}: cannot be read: {message}")
    if isinstance(error, NotImplementedError):
        return FormatError(f"{where}: {message}: pyarrow does not support this; exclude the column by a part_filter")
    if isinstance(error, LookupError):
        message = f"{type(error).__name__}: {message}"
    return FormatError(f"{where}: {message}{advice and '; '}{advice}")


def _opened(kind: type[TableFiles], location: str, cache_dir: str | None, content_id: str) -> TableFiles:
    files = kind(location, cache_dir=cache_dir)
    if files.content_id != content_id:
        raise StaleIndexError(
            f"{location}: its files changed after the parent process opened them; restart, and do not write to the "
            "files during a run"
        )
    return files


def _read_records(path: Path) -> list[Record]:
    """The stored records; empty if they are damaged."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError), open(path, "rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - 16))
        end = file.read(16)
        length = int.from_bytes(end[:8], "little")
        if len(end) == 16 and length <= size - 16:
            file.seek(size - 16 - length)
            encoded = file.read(length)
            if xxhash.xxh3_64_intdigest(encoded) == int.from_bytes(end[8:], "little"):
                return _RECORDS.from_msgpack(encoded)
    return []


class BufferedFile:
    """A file with some ranges in memory; others are read when pyarrow requests them.

    Args:
        store: Reads the other ranges.
        held: Bytes, by their offset in the file.
    """

    closed = False

    def __init__(self, path: str, store: _Store, held: dict[int, bytes]) -> None:
        self._path, self._store = path, store
        self._starts = sorted(held)
        self._data = [memoryview(held[start]) for start in self._starts]
        self._at = 0

    def read(self, size: int = -1) -> memoryview | bytes:
        """The next bytes, like `io.RawIOBase.read`."""
        at, self._at = self._at, self._at + max(size, 0)
        place = bisect_right(self._starts, at) - 1
        if place >= 0:
            begin = at - self._starts[place]
            if begin + size <= len(self._data[place]):
                return self._data[place][begin : begin + size]
        stop = min(at + size, self._store.size(self._path))
        one = np.zeros(1, np.int64)
        return self._store.read_spans([self._path], one, np.array([at]), np.array([stop]))[0] if stop > at else b""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: 0}[whence]
        self._at = (self._store.size(self._path) if whence == io.SEEK_END else base) + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        """Nothing to close."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False
