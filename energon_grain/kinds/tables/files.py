# SPDX-License-Identifier: Apache-2.0
"""Files of tables: which lie at a path, what they say of themselves, and groups of their rows as Arrow tables.

A file's head says how many rows each of its groups has and where these lie: a footer, an index. The heads of all files
are read once and kept in one file in the cache folder, so that a folder of thousands is opened by looking at sizes and
times of modification (in a store: one list, with entity tags) and reading one file:

    heads, one behind the other | records of the files (msgpack) | bytes of these (8) | XXH3-64 of these (8)

Bytes are read by our own storage (pages that are kept, attempts, versions) and given to pyarrow, which decodes. All of
it comes from strangers: what is decoded is compared with what the head said.
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

from energon_grain.errors import (
    EmptyDatasetError,
    FormatError,
    ReadError,
    StaleIndexError,
)
from energon_grain.extras import needed_for
from energon_grain.formats.columns import ColumnFolder
from energon_grain.formats.data_files import Version, find_files, version_of
from energon_grain.forms import Form
from energon_grain.storage.atomic import atomic_write
from energon_grain.storage.byte_store import coalesce
from energon_grain.storage.local import LocalFiles
from energon_grain.storage.location import is_url, join, located
from energon_grain.storage.remote import RemoteFiles, mirror_of, remote_files, shared_client
from energon_grain.storage.settings import storage_settings

Int64Array = npt.NDArray[np.int64]
MOST_ROWS = 1 << 56
DAMAGED = "the file is damaged, or none of its kind; write it anew, or leave it out by a pattern"
_NO_MEMORY = "Cannot allocate memory"
_Store = LocalFiles | RemoteFiles


class Record(msgspec.Struct, array_like=True, kw_only=True):
    """What is kept of a file. Reading any bytes of a group gives its row group, record batch or run of samples.

    Attributes:
        version: When its head was read.
        begin: Where its head lies in the file of all heads.
        head_bytes: Of it.
        head_sum: XXH3-64 of it.
        columns: Names of the columns.
        rows: (groups,) int64.
        extents: (groups, columns, 3) int64: first byte, one past the last, and bytes uncompressed, of each column.
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
        first: (groups + 1,) number of the first row of each, and of all rows.
        file: (groups,) the file of each.
        number: (groups,) which group of its file each is.
        extents: (groups, columns, 3) see `Record`; zeros where a file lacks a column.
    """

    first: Int64Array
    file: Int64Array
    number: Int64Array
    extents: Int64Array


class TableFiles(ABC):
    """The files of one kind at a path, and what they say of themselves. Picklable: copies look at the files anew.

    Args:
        path: A file, a folder (with all files below), a pattern (`data/**/train-*.parquet`), with braces too
            (`{000..009}.parquet`); or a URL of one of these.
        cache_dir: Where what is known of files is kept; default: with the caches of the user.

    Attributes:
        location: The path.
        names: Of the files, relative to the folder that they have in common, in order.
        paths: Of the files.
        columns: Names of the columns of any file, in order.
        content_id: Digest of names, sizes and heads.
        is_mapped: Whether groups take no memory of their own, so that any row is as near as any other.
        kind: What messages call the files.
        endings: How their names end.
        group_word: What messages call a group.
        group_option: What says how large groups are, where such files are written.
        reads_whole_groups: Whether all columns are read for any.

    Raises:
        DatasetNotFoundError: There is no file.
        FormatError: A head is damaged.
        EmptyDatasetError: There is no row.
        MissingPackageError: pyarrow is not installed.
        ReadError: A store cannot be reached, or a file not be read.
    """

    kind: ClassVar[str]
    endings: ClassVar[tuple[str, ...]]
    group_word: ClassVar[str] = "row group"
    group_option: ClassVar[str]
    reads_whole_groups: ClassVar[bool] = True
    is_mapped = False
    _kept_as: ClassVar[str] = ".footers"
    """How the name of the file in the cache folder ends; another one where what was kept before is not trusted."""
    _named_by = ""
    """Digest of what names the files, where that says something of them, too."""

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
        once = self.past_pages()
        self._records = once._kept()
        if once is not self:
            once.store.close()
        self.columns = tuple(dict.fromkeys(name for record in self._records for name in record.columns))
        digest = hashlib.blake2b(digest_size=8)
        for record in self._records:
            said = msgspec.msgpack.encode((record.name, record.version[0], record.head_sum))
            digest.update(said)
        self.content_id = digest.hexdigest()
        if not len(self):
            raise EmptyDatasetError(f"{self.location}: its {len(self.names)} {self.kind} have no row")

    def past_pages(self) -> Self:
        """The same files; of a store no more is fetched than what is read, and no pages of it are kept.

        For what lies scattered and is kept in another form: heads, and columns that are read as a whole.
        """
        if isinstance(self.store, LocalFiles):
            return self
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other.store = remote_files(msgspec.structs.replace(self.store.settings, cache_bytes=0))
        return other

    def fetch(self, file: Int64Array, start: Int64Array, size: Int64Array) -> None:
        """Fetch pieces of files that lie in a store, side by side, so that they are there when they are read."""
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
        """The `pyarrow.Schema` of a file. Raises FormatError where it is not understood."""

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
        """What a head says. Raises FormatError where it contradicts itself or the size of the file."""

    @abstractmethod
    def _table(self, group: int, names: list[str]) -> Any:
        """These columns of a group. What pyarrow raises, and ValueError, become a FormatError."""

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
        """(file, start, size, owner) of the bytes of columns of row groups; `owner`: the place in `groups`."""
        if self.reads_whole_groups:
            start, stop, _ = self.groups.extents[groups].max(axis=1).T
            return self.groups.file[groups], start, stop - start, np.arange(len(groups))
        places = [number for number, name in enumerate(self.columns) if name in columns]
        extents = self.groups.extents[groups][:, places]
        start, stop = extents[..., 0].reshape(-1), extents[..., 1].reshape(-1)
        owner = np.repeat(np.arange(len(groups)), len(places))
        there = stop > start
        return self.groups.file[groups][owner[there]], start[there], (stop - start)[there], owner[there]

    def read(self, group: int, columns: Sequence[str]) -> Any:
        """A group as a `pyarrow.Table` of these columns, without those that its file lacks; None: it lacks all.

        Raises:
            FormatError: It does not decode, or not to what the head says.
            StaleIndexError, ReadError: The file was changed since it was opened, or cannot be read.
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
        """Which of some columns of a group do not decode by themselves; all, where each of them does."""
        wrong: list[str] = []
        for name in names:
            try:
                self._table(group, [name])
            except _raw_errors():
                wrong.append(name)
        return wrong or names

    def _check_size(self, group: int, sizes: Mapping[str, int]) -> None:
        """Refuse a group of which columns take more than the settings allow, decoded. Raises FormatError."""
        total, most = sum(sizes.values()), storage_settings().largest_group_bytes
        if total <= most:
            return
        largest = max(sizes, key=sizes.__getitem__)
        whole = f", with the other columns {total:,}" if total > sizes[largest] else ""
        raise FormatError(
            f"{self.paths[int(self.groups.file[group])]}: {self.group_word} {int(self.groups.number[group])}: column "
            f"{largest!r} takes {sizes[largest]:,} bytes{whole}, but `largest_group_bytes` is {most:,}; write "
            f"smaller groups ({self.group_option}), leave the column out by a part_filter, or raise the limit: "
            f"`use_storage(StorageSettings(largest_group_bytes=…))`, or in the file with the storage settings"
        )

    def _read(self, file: int, start: int, stop: int) -> bytes:
        one = np.zeros(1, np.int64)
        return self.store.read_spans([self.paths[file]], one, one + start, one + stop)[0]

    def _recorded(self, file: int, head: bytes, columns: list[str], rows: Sequence[int], extents: Any) -> Record:
        """A record of a file.

        Args:
            extents: As the record has them; of groups that are read whole, (groups, 3) of all columns together.
        """
        width = 1 if self.reads_whole_groups else len(columns)
        extents = np.asarray(extents, "<i8").reshape(len(rows), width, 3)
        if self.reads_whole_groups:
            share = -(-extents[..., 2:] // max(1, len(columns)))
            extents = np.repeat(np.concatenate([extents[..., :2], share], axis=2), len(columns), axis=1)
        if min(rows, default=0) < 0 or sum(rows) >= MOST_ROWS:
            raise FormatError(f"{self.paths[file]}: says that it has {sum(rows)} rows; {DAMAGED}")
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
        """Pieces of a file, some of them read together, by their first places in it."""
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
        """Errors of pyarrow name the place."""
        try:
            yield
        except _raw_errors() as error:
            if _is_ours(error):
                raise
            raise named_error(where, error) from error

    # What is known of heads.

    def _index_path(self, root: str) -> Path:
        identity = hashlib.blake2b(
            "\0".join([root, *self.names, self._named_by]).encode("utf-8", "surrogateescape"), digest_size=16
        )
        name = f"{identity.hexdigest()}{self._kept_as}"
        if self._cache_dir is None and is_url(root):
            return mirror_of(root).folder / "parquet" / name
        base = self._cache_dir or os.path.join(os.path.dirname(storage_settings().cache_folder), "parquet")
        identity.update(os.fsencode(os.path.realpath(root)))
        return Path(base) / f"{identity.hexdigest()}{self._kept_as}"

    def _kept(self) -> list[Record]:
        """What is known of all files: of those that are new or changed it is read now, and written."""
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
        """The head of a file, as it is kept; else from the file itself."""
        record = self._records[file]
        with contextlib.suppress(OSError), open(self._index, "rb") as kept:
            head = os.pread(kept.fileno(), record.head_bytes, record.begin)
            if xxhash.xxh3_64_intdigest(head) == record.head_sum:
                return head
        (head,) = self._read_heads([file])
        if xxhash.xxh3_64_intdigest(head) != record.head_sum:
            raise StaleIndexError(f"{self.paths[file]}: was changed since it was opened; begin anew")
        return head

    def _write(self, records: list[Record], fresh: dict[int, bytes]) -> list[Record]:
        """Keep heads and records, if there is somewhere to."""
        self._records = records
        heads = [fresh[number] if number in fresh else self._head(number) for number in range(len(records))]
        begins = itertools.accumulate(map(len, heads), initial=0)
        placed = [msgspec.structs.replace(record, begin=at) for record, at in zip(records, begins, strict=False)]
        said = msgspec.msgpack.encode(placed)
        with contextlib.suppress(OSError):
            self._index.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(self._index) as file:
                file.writelines(heads)
                file.write(said)
                file.write(len(said).to_bytes(8, "little") + xxhash.xxh3_64_intdigest(said).to_bytes(8, "little"))
        return placed

    @property
    def kept_ever(self) -> Path:
        """The file in the cache folder that belongs to these, whatever becomes of them."""
        return self._index

    @property
    def kept_beside(self) -> Path:
        """What the names of files in the cache folder that belong to these begin with, as they are now.

        By their versions, too: other numbers may well have the same head.
        """
        said = msgspec.msgpack.encode(self._versions)
        return self._index.with_name(f"{self._index.stem}-{xxhash.xxh3_64_hexdigest(said)}")

    def column_folder(self) -> ColumnFolder:
        """Where their columns are: beside them; of files in a store, or named by a pattern, in the cache folder."""
        path = Path(self.location)
        beside = path / ".columns" if path.is_dir() else path.with_name(f"{path.name}.columns")
        return ColumnFolder.beside(
            self.location, f"{beside if path.exists() else self.kept_ever.with_suffix('.columns')}"
        )

    def close(self) -> None:
        self.store.close()


def _raw_errors() -> tuple[type[Exception], ...]:
    """What pyarrow raises where it decodes, and our own code where it parses heads."""
    import pyarrow

    return pyarrow.ArrowException, ValueError, OSError, OverflowError, LookupError, MemoryError


def _is_ours(error: Exception) -> bool:
    return type(error).__module__.startswith("energon_grain")


def is_memory_short(error: Exception) -> bool:
    """Whether an error says that memory could not be had, which says nothing of the file."""
    no_memory = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return no_memory or isinstance(error, MemoryError) or _NO_MEMORY in str(error)


def named_error(where: str, error: Exception, advice: str = DAMAGED) -> ReadError | FormatError:
    """What pyarrow, NumPy or the system raised, as an error of ours that names the place and the kind of trouble.

    Args:
        advice: What to do where the file is at fault, and not the machine that reads it.
    """
    said = str(error).strip() or type(error).__name__
    if is_memory_short(error):
        return ReadError(
            f"{where}: there is not enough memory to decode it ({said}); read fewer columns, write smaller groups, or "
            "give the process more memory"
        )
    if isinstance(error, OSError) and error.errno is not None:
        return ReadError(f"{where}: cannot be read: {said}")
    if isinstance(error, NotImplementedError):
        return FormatError(f"{where}: {said}: pyarrow does not support this; leave the column out by a part_filter")
    if isinstance(error, LookupError):
        said = f"{type(error).__name__}: {said}"
    return FormatError(f"{where}: {said}{advice and '; '}{advice}")


def _opened(kind: type[TableFiles], location: str, cache_dir: str | None, content_id: str) -> TableFiles:
    files = kind(location, cache_dir=cache_dir)
    if files.content_id != content_id:
        raise StaleIndexError(
            f"{location}: its files were changed since this process's parent opened them; begin anew, and write to no "
            "files that are being read"
        )
    return files


def _read_records(path: Path) -> list[Record]:
    """What was kept; nothing where that is damaged."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError), open(path, "rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - 16))
        end = file.read(16)
        length = int.from_bytes(end[:8], "little")
        if len(end) == 16 and length <= size - 16:
            file.seek(size - 16 - length)
            said = file.read(length)
            if xxhash.xxh3_64_intdigest(said) == int.from_bytes(end[8:], "little"):
                return _RECORDS.from_msgpack(said)
    return []


class HeldFile:
    """A file of which some ranges are in memory; others are read when pyarrow asks for them.

    Args:
        store: Reads what is not there.
        held: Bytes, by their first place in the file.
    """

    closed = False

    def __init__(self, path: str, store: _Store, held: dict[int, bytes]) -> None:
        self._path, self._store = path, store
        self._starts = sorted(held)
        self._data = [memoryview(held[start]) for start in self._starts]
        self._at = 0

    def read(self, size: int = -1) -> memoryview | bytes:
        """The next bytes, as `io.RawIOBase.read`."""
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
        """Nothing is open."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False
