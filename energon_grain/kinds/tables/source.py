# SPDX-License-Identifier: Apache-2.0
"""Random access to the rows of files of tables (Parquet, Arrow, MDS), each a crude sample.

A row group is the smallest unit that can be decoded. The wanted columns are decoded at once and cached for further
rows: up to `memory_bytes()` in memory, and beyond that in memory-mapped files (uncompressed, in the cache folder,
unlinked so that they disappear with the process). Therefore a shuffle should read one row group after another: row
groups are its blocks, see `block_starts`.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, DuplicateKeyError, FormatError, KeyNotFoundError
from energon_grain.formats.columns import KeptColumns, Measured
from energon_grain.formats.mapped_files import map_file
from energon_grain.kinds.tables.arrow_columns import Take, column_kinds, nothing, plain_numbers, validity_of, with_nan
from energon_grain.kinds.tables.files import TableFiles, is_memory_short, named_error
from energon_grain.samples.sample import BASE_FIELDS, SourceInfo
from energon_grain.sources.file_store import OwnFileStore, with_sources
from energon_grain.sources.remote_runs import RemoteExtents, remote_extents, remote_run
from energon_grain.sources.rows import Blocks, Rows
from energon_grain.sources.source import PartFilter, PartValue, RawBatch, SampleLocation, accepts
from energon_grain.storage.remote import RemoteFiles
from energon_grain.storage.settings import storage_settings
from energon_grain.stream.memory import holders
from energon_grain.words import counted

Int64Array = npt.NDArray[np.int64]
KEY_COLUMN = "__key__"
_UNREADABLE = (ValueError, LookupError, MemoryError, NotImplementedError, OverflowError)
_SIZES = "bytes"
_GROUPS_DIGESTED, _KEYS_DIGESTED = 8, 1000
_KEYS_AT_ONCE = 8192
_MAX_MEMORY_BYTES = 4 << 30
_MEMORY_SHARE = 4
_DISK_SHARE = 4
_MAPPED_BYTES = 64 << 10
"""Nominal size of a mapped group, which limits the number of such groups."""


@cache
def memory_bytes() -> int:
    """Limit on decoded data in memory for all sources of a process: a quarter of the machine's, at most 4 GiB."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(_MAX_MEMORY_BYTES, total // _MEMORY_SHARE)


@dataclass(slots=True, eq=False)
class _Group:
    """A decoded row group.

    Attributes:
        table: Its columns, a `pyarrow.Table`; None: it has none of the wanted ones.
        size_bytes: Memory that it occupies.
        is_mapped: Whether it is a memory-mapped file, which occupies almost none.
        takes: Functions that return the values of the columns used.
    """

    table: Any
    size_bytes: int
    is_mapped: bool = False
    takes: dict[str, Take] = field(default_factory=dict[str, Take])


class _GroupCache:
    """The row groups in memory, or those on disk, least recently used first."""

    def __init__(self) -> None:
        self.groups: OrderedDict[tuple[object, int], _Group] = OrderedDict()
        self.size_bytes = 0

    def get(self, key: tuple[object, int]) -> _Group | None:
        if key in self.groups:
            self.groups.move_to_end(key)
        return self.groups.get(key)

    def put(self, key: tuple[object, int], group: _Group, limit_bytes: int) -> list[tuple[tuple[object, int], _Group]]:
        """Add a row group; return the evicted ones."""
        before = self.groups.pop(key, None)  # decoded again during the move
        self.groups[key] = group
        self.size_bytes += group.size_bytes - (before.size_bytes if before is not None else 0)
        return self.shrink(limit_bytes)

    def shrink(self, limit_bytes: int) -> list[tuple[tuple[object, int], _Group]]:
        """Evict row groups until the others fit, or one is left; return them."""
        leaving: list[tuple[tuple[object, int], _Group]] = []
        while self.size_bytes > limit_bytes and len(self.groups) > 1:
            leaving.append(self.groups.popitem(last=False))
            self.size_bytes -= leaving[-1][1].size_bytes
        return leaving

    def forget(self, owner: object) -> None:
        for key in [key for key in self.groups if key[0] is owner]:
            self.size_bytes -= self.groups.pop(key).size_bytes


class DecodedGroups:
    """A cache of the row groups decoded last: in memory, then in mapped files. Thread-safe. A memory holder.

    Args:
        limit_bytes: Limit in memory; at least one row group.

    Attributes:
        decoded: Total number of decoded row groups.
    """

    holder = "caches"

    def __init__(self, limit_bytes: int, folder: str) -> None:
        self.limit_bytes, self._folder = limit_bytes, folder
        self._most_bytes = limit_bytes
        self.decoded = 0
        self.renew()
        holders.add(self)

    def held_bytes(self) -> int:
        """Decoded data in memory."""
        return self._memory.size_bytes

    def allow(self, size_bytes: int) -> None:
        """Hold at most this much in memory from now on, and at least one row group."""
        self.limit_bytes = min(self._most_bytes, size_bytes)
        if self._memory.size_bytes <= self.limit_bytes:
            return
        with self._lock:
            leaving = self._memory.shrink(self.limit_bytes)
        for key, group in leaving:
            self._move_to_disk(key, group)

    def renew(self) -> None:
        """Clear the cache: in a forked child, the threads that were decoding do not exist."""
        self._lock = threading.Lock()
        self._memory, self._disk = _GroupCache(), _GroupCache()
        self._pending: dict[tuple[object, int], Future[_Group]] = {}

    def __contains__(self, key: tuple[object, int]) -> bool:
        return key in self._memory.groups or key in self._disk.groups

    def get(self, key: tuple[object, int], decode: Callable[[], Any], *, is_mapped: bool = False) -> _Group:
        """The row group with this key. Of several threads one decodes it. Raises as `decode`."""
        with self._lock:
            found = self._memory.get(key) or self._disk.get(key)
            if found is not None:
                return found
            mine = Future[_Group]()
            pending = self._pending.setdefault(key, mine)
        if pending is not mine:
            return pending.result()
        try:
            table = decode()
            found = _Group(table, _MAPPED_BYTES if is_mapped else 0 if table is None else table.nbytes, is_mapped)
        except BaseException as error:
            with self._lock:
                self._pending.pop(key, None)
            mine.set_exception(error)
            raise
        with self._lock:
            self.decoded += 1
            self._pending.pop(key, None)
            leaving = self._memory.put(key, found, self.limit_bytes)
        mine.set_result(found)
        for other, group in leaving:
            self._move_to_disk(other, group)
        return found

    @cached_property
    def _disk_bytes(self) -> int:
        with suppress(OSError):
            os.makedirs(self._folder, exist_ok=True)
            return shutil.disk_usage(self._folder).free // _DISK_SHARE
        return 0

    def capacity_bytes(self) -> int:
        """Capacity in memory and on disk."""
        return self.limit_bytes + self._disk_bytes

    def _move_to_disk(self, key: tuple[object, int], group: _Group) -> None:
        """Store a row group in a file. If that fails it is decoded again when it is needed."""
        import pyarrow

        if group.table is None or group.is_mapped or group.size_bytes > self._disk_bytes:
            return
        with suppress(OSError, pyarrow.ArrowException):
            descriptor, name = tempfile.mkstemp(dir=self._folder, prefix="rows-")
            try:
                options = pyarrow.ipc.IpcWriteOptions(unify_dictionaries=True)
                schema = group.table.schema
                with os.fdopen(descriptor, "wb") as file, pyarrow.ipc.new_file(file, schema, options=options) as writer:
                    writer.write_table(group.table)
                with open(name, "rb") as written:
                    table = pyarrow.ipc.open_file(pyarrow.py_buffer(map_file(written.fileno()))).read_all()
            finally:
                os.unlink(name)
            with self._lock:
                self._disk.put(key, _Group(table, group.size_bytes), self._disk_bytes)

    def forget(self, owner: object) -> None:
        """Remove all groups whose key begins with `owner`."""
        with self._lock:
            self._memory.forget(owner)
            self._disk.forget(owner)


@cache
def decoded_groups() -> DecodedGroups:
    """The cache that all sources of this process share."""
    return DecodedGroups(memory_bytes(), os.path.join(os.path.dirname(storage_settings().cache_folder), "decoded"))


os.register_at_fork(after_in_child=lambda: decoded_groups().renew() if decoded_groups.cache_info().currsize else None)


class TableRows(Rows):
    """The rows of files of tables, in the order of the file names and of the rows in each.

    The key of a row is the name of its file without the ending, a slash, and the row's number in the file, from 0; or
    the value of a column `__key__`. Opening reads each footer once (see `TableFiles`). A read decodes the row groups
    that it touches, unless they are cached. Thread-safe and picklable.

    Args:
        parts: Columns to read, names or a predicate.

    Raises:
        ConfigError: No column is selected, or one has a reserved name.
        FormatError: A schema is not supported.
    """

    _slices_columns = True

    def __init__(self, files: TableFiles, *, parts: PartFilter = None) -> None:
        self.files, self.path = files, files.location
        self._parts = parts
        self._kinds = column_kinds(map(files.schema, range(len(files.names))), files.columns)
        entries = [] if parts is None or callable(parts) else list(parts)
        self._wanted = [
            name
            for name, kind in self._kinds.items()
            if name != KEY_COLUMN
            and (accepts(parts, name) or (kind.many and any(entry.startswith(f"{name}.") for entry in entries)))
        ]
        if not self._wanted:
            raise ConfigError(f"{self.path}: part_filter excludes all columns; select some of {', '.join(self._kinds)}")
        self._refuse_taken()
        numeric = (name for name, kind in self._kinds.items() if kind.is_numeric)
        self.own_columns = tuple(dict.fromkeys((_SIZES, *numeric)))  # `bytes` equals `sizes`, unless the files have it
        self._key = KEY_COLUMN if KEY_COLUMN in self._kinds else None
        self._read = (*self._wanted, *([self._key] if self._key else []))
        groups = self.files.groups
        self._first = groups.first
        places = [self.files.columns.index(name) for name in self._wanted]
        self._group_bytes = groups.extents[:, places, 2].sum(axis=1)
        self._row_bytes = -(-self._group_bytes // np.maximum(1, np.diff(self._first)))
        stems = [_stem(name, files.endings) for name in files.names]
        self._stems = stems if len(set(stems)) == len(stems) else files.names
        begins = np.searchsorted(groups.file, np.arange(len(files.names)))
        self._file_first = self._first[begins]
        ends = self._first[np.searchsorted(groups.file, np.arange(len(files.names)), side="right")]
        self._counts = dict(zip(files.names, (ends - self._file_first).tolist(), strict=True))
        self._owner = object()  # identifies its row groups in the cache
        self._reading_column = threading.Lock()

    def _refuse_taken(self) -> None:
        """Raise ConfigError if a part would replace another, or a metadata field of samples."""
        for name in self._wanted:
            listed, dot, entry = name.rpartition(".")
            others = listed if dot and listed in self.lists and entry.isdecimal() else None
            if name in BASE_FIELDS or name == "__shard__" or others:
                by = f"an entry of the list {others!r}" if others else "a metadata field of samples"
                raise ConfigError(
                    f"{self.path}: the column {name!r} has the name of {by}; exclude it by a part_filter, or write the "
                    "files with another name"
                )

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(TableRows, parts=self._parts), (self.files,)

    def __repr__(self) -> str:
        return f"TableRows({self.path!r}, columns={self._wanted})"

    @property
    def shard_counts(self) -> dict[str, int]:
        return self._counts

    @property
    def data_files(self) -> dict[str, str]:
        return self.files.described_by | dict(zip(self.files.names, self.files.paths, strict=True))

    @property
    def digest(self) -> str:
        return self.files.content_id

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the columns that are read. A list of files has one name for all entries."""
        return tuple(self._wanted)

    @property
    def all_part_names(self) -> tuple[str, ...]:
        """Names of all columns, including those not read."""
        return tuple(name for name in self._kinds if name != KEY_COLUMN)

    @property
    def lists(self) -> frozenset[str]:
        """Columns with lists of files."""
        return frozenset(name for name, kind in self._kinds.items() if kind.many)

    @property
    def endings(self) -> dict[str, str]:
        """Columns that are decoded by another ending than their own, with that ending."""
        return {name: kind.ending for name, kind in self._kinds.items() if kind.ending}

    def _groups_of(self, numbers: Int64Array) -> Int64Array:
        """(n,) the row group of each row."""
        return np.searchsorted(self._first, numbers, side="right") - 1

    # Row groups as blocks.

    @property
    def blocks(self) -> Blocks:
        """Row groups; in an object store merged to at least 4 MiB."""
        at_least = remote_run(int(self._group_bytes.sum()), len(self.files)) if self.remote_files else None
        return Blocks(
            first=self._first, at_least=at_least, are_read_whole=not self.files.is_mapped, warn=self._warn_of_order
        )

    def _warn_of_order(self, first: int, last: int, blocks_at_once: int | None) -> str | None:
        """A warning for an order with this number of blocks in use at a time (None: all); None if it is cheap."""
        if self.files.is_mapped:
            return None
        touched = self._groups_of(np.array([first, last]))
        sizes = self._group_bytes[touched[0] : touched[1] + 1]
        count = len(sizes) if blocks_at_once is None else min(len(sizes), blocks_at_once)
        in_use = int(np.sort(sizes)[-count:].sum()) if blocks_at_once is None else int(sizes.mean() * count)
        kept = decoded_groups()
        if in_use <= kept.limit_bytes:
            return None
        beyond = in_use - kept.capacity_bytes()
        outcome = (
            f"data above {_gigabytes(kept.limit_bytes)} go to a cache on disk"
            if beyond <= 0
            else f"memory and disk have space for {_gigabytes(kept.capacity_bytes())}, so most rows decode a whole "
            f"{self.files.group_word}"
        )
        return (
            f"{self.path}: this order has {counted(count, self.files.group_word)} of {_megabytes(float(sizes.mean()))} "
            f"in use at a time, {_gigabytes(in_use)} decoded (on one host; several hosts share this); {outcome}. "
            f"Groups of a few MB are best: write the files again ({self.files.group_option}), or use fewer `lanes`"
        )

    # Reading.

    @property
    def remote_files(self) -> Sequence[RemoteFiles]:
        return (self.files.store,) if isinstance(self.files.store, RemoteFiles) else ()

    def extents(self, numbers: Int64Array) -> list[RemoteExtents]:
        """The wanted columns of each row group, owned by the first row that needs them."""
        groups, first = np.unique(self._groups_of(numbers), return_index=True)
        file, start, size, owner = self.files.spans(groups, self._read)
        return [remote_extents(each, self.files.paths, file, start, size, first[owner]) for each in self.remote_files]

    def read_rows(self, numbers: Int64Array) -> RawBatch:
        """Read rows in the order requested. See `Rows.read_rows`.

        Raises:
            FormatError: A row group is damaged.
            StaleIndexError: A file changed after it was opened.
        """
        group = self._groups_of(numbers)
        files = self.files.groups.file[group].tolist()
        columns: dict[str, list[PartValue | None]] = {}
        keys = self._usual_keys(numbers, files)
        order = np.argsort(group, kind="stable")
        cuts = np.flatnonzero(np.diff(group[order], prepend=-1)).tolist()
        runs = [order[begin:end] for begin, end in itertools.pairwise([*cuts, len(order)])]
        # Cached groups come first: groups decoded later then evict others, not those that this read needs.
        for at in sorted(runs, key=lambda run: (self._owner, int(group[run[0]])) not in decoded_groups()):
            places, number = at.tolist(), int(group[at[0]])
            decoded = self._decoded(number)
            within = (numbers[at] - self._first[number]).tolist()
            for name in self._wanted:
                self._scatter(name, number, decoded, within, places, columns, len(numbers))
            if self._key is not None:
                self._take_keys(number, decoded, within, places, keys)
        shards = [self.files.names[file] for file in files]
        return RawBatch(indices=numbers, keys=keys, shards=shards, columns=self._in_order(columns))

    def _in_order(self, columns: dict[str, list[PartValue | None]]) -> dict[str, list[PartValue | None]]:
        """Sort columns by their order in the files, and entries of lists by number, independent of the read order."""
        if not any(self._kinds[name].many for name in self._wanted):
            return columns
        places = {name: (place, 0) for place, name in enumerate(self._wanted)}

        def place_of(part: str) -> tuple[int, int]:
            name, _, entry = part.rpartition(".")
            return places[part] if part in places else (places[name][0], int(entry))

        return {part: columns[part] for part in sorted(columns, key=place_of)}

    def _scatter(
        self,
        name: str,
        number: int,
        decoded: _Group,
        within: list[int],
        places: list[int],
        columns: dict[str, list[PartValue | None]],
        count: int,
    ) -> None:
        values = self._values(name, number, decoded, within)
        if not self._kinds[name].many:
            column = columns.setdefault(name, [None] * count)
            for place, value in zip(places, values, strict=True):
                column[place] = value
            return
        for place, entries in zip(places, values, strict=True):
            for entry, value in enumerate(entries or ()):
                part = f"{name}.{entry}"
                if value is not None and (accepts(self._parts, part) or accepts(self._parts, name)):
                    columns.setdefault(part, [None] * count)[place] = value

    def _decoded(self, number: int) -> _Group:
        return decoded_groups().get(
            (self._owner, number), lambda: self.files.read(number, self._read), is_mapped=self.files.is_mapped
        )

    def _values(self, name: str, number: int, decoded: _Group, within: list[int]) -> list[Any]:
        with self._converting(name, number):
            take = decoded.takes.get(name)
            if take is None:
                array = self._kinds[name].array(decoded.table, name)
                take = decoded.takes[name] = nothing if array is None else self._kinds[name].values(array)
            return take(within)

    @contextmanager
    def _converting(self, name: str, number: int) -> Generator[None]:
        """Adds the file, the row group and the column to errors of pyarrow and NumPy."""
        try:
            yield
        except _UNREADABLE as error:
            file, within = (int(each[number]) for each in (self.files.groups.file, self.files.groups.number))
            where = f"{self.files.paths[file]}: {self.files.group_word} {within}: column {name!r}"
            if is_memory_short(error) or isinstance(error, NotImplementedError | LookupError):
                raise named_error(where, error) from error
            raise FormatError(f"{where}: {error}") from error

    def keys(self, numbers: Int64Array) -> list[str]:
        """The key of each row. Raises as `read_rows`, which it calls if keys are in a column."""
        if self._key is not None:
            return self.read_rows(numbers).keys
        return self._usual_keys(numbers, self.files.groups.file[self._groups_of(numbers)].tolist())

    def find(self, key: str) -> list[int]:
        """See `Rows.find`. If keys are in a column, reads it."""
        if self._key is not None:
            keys = itertools.chain.from_iterable(self.key_blocks(self._key))
            return [number for number, other in enumerate(keys) if other == key]
        stem, _, row = key.rpartition("/")
        if stem not in self._stems or not row.isdecimal():
            return []
        number = int(self._file_first[self._stems.index(stem)]) + int(row)
        return [number] if number < self._first[-1] and self.keys(np.array([number])) == [key] else []

    def _usual_keys(self, rows: Int64Array, files: list[int]) -> list[str]:
        within = (rows - self._file_first[files]).tolist() if files else []
        return [f"{self._stems[file]}/{row}" for file, row in zip(files, within, strict=True)]

    def _take_keys(self, number: int, decoded: _Group, within: list[int], places: list[int], keys: list[str]) -> None:
        values = self._values(self._key or "", number, decoded, within)
        for at, (place, value) in enumerate(zip(places, values, strict=True)):
            if value is not None:  # a null keeps the default key
                keys[place] = self._key_of(value, self._key or "", number, within[at])

    def key_blocks(self, column: str | None = None) -> Iterator[list[str]]:
        """The keys of all rows, in blocks; from a column, if one is named. Also raises as `read`.

        Raises:
            KeyNotFoundError: There is no such column.
            FormatError: A row has no key in the column.
        """
        name = self._key_column(column)
        groups = np.flatnonzero(np.diff(self._first))
        tables = itertools.repeat(None) if name is None else self._column_tables(name, groups)
        for number, table in zip(groups.tolist(), tables, strict=False):
            first, end = int(self._first[number]), int(self._first[number + 1])
            file = int(self.files.groups.file[number])
            group = _Group(table, 0)
            for begin in range(first, end, _KEYS_AT_ONCE):
                rows = np.arange(begin, min(begin + _KEYS_AT_ONCE, end))
                keys = self._usual_keys(rows, [file] * len(rows))
                if name is not None:
                    within = (rows - first).tolist()
                    found = self._values(name, number, group, within)
                    if column is not None and None in found:
                        row = int(rows[found.index(None)] - self._file_first[file])
                        raise FormatError(
                            f"{self.files.paths[file]}: row {row}: has no key in column {column!r}; add one, or "
                            "name another column"
                        )
                    keys = [
                        key if value is None else self._key_of(value, name, number, row)
                        for key, value, row in zip(keys, found, within, strict=True)
                    ]
                yield keys

    def keys_id(self, column: str | None = None) -> str:
        """Digest of keys stored in the data, from some rows of some groups; empty if file names determine them.

        Heads do not change if rows of equal length are reordered. Raises as `key_blocks`.
        """
        name = self._key_column(column)
        if name is None:
            return ""
        digest = hashlib.blake2b(digest_size=8)
        full = np.flatnonzero(np.diff(self._first))
        some = full[_spread(len(full), _GROUPS_DIGESTED)]
        for number, table in zip(some.tolist(), self._column_tables(name, some), strict=True):
            rows = _spread(int(self._first[number + 1] - self._first[number]), _KEYS_DIGESTED).tolist()
            found = zip(self._values(name, number, _Group(table, 0), rows), rows, strict=True)
            keys = [None if value is None else self._key_of(value, name, number, row) for value, row in found]
            digest.update(msgspec.msgpack.encode(keys))
        return digest.hexdigest()

    def _key_of(self, value: Any, name: str, number: int, row: int) -> str:
        """The key from a column value, in a row of a row group. Raises FormatError if it is not UTF-8."""
        try:
            return value.decode() if isinstance(value, bytes) else str(value)
        except UnicodeDecodeError as error:
            file = int(self.files.groups.file[number])
            within = int(self._first[number]) + row - int(self._file_first[file])
            raise FormatError(
                f"{self.files.paths[file]}: row {within}: its key in column {name!r} is not UTF-8: {value[:50]!r}"
            ) from error

    def _key_column(self, column: str | None) -> str | None:
        if column is not None and column not in self._kinds:
            raise KeyNotFoundError(f"{self.path}: no column {column!r}; the columns are {', '.join(self._kinds)}")
        return column or self._key

    def _column_tables(self, name: str, groups: Int64Array) -> Iterator[Any]:
        """A column of consecutive row groups, without caching. Raises as `read`.

        From a store it is prefetched, for some groups at a time.
        """
        files = self.files.uncached()
        file, start, size, owner = files.spans(groups, (name,))
        most = storage_settings().ahead_bytes // 2
        part = np.zeros(len(groups), np.int64)
        np.add.at(part, owner, size)
        part = np.cumsum(part) // max(1, most)  # which groups are fetched together
        for place, number in enumerate(groups.tolist()):
            if place == 0 or part[place] > part[place - 1]:
                chosen = part[owner] == part[place]
                files.fetch(file[chosen], start[chosen], size[chosen])
            yield files.read(number, (name,))
        if files is not self.files:
            files.store.close()

    def sizes(self, numbers: Int64Array) -> Int64Array:
        """(n,) bytes of each row: the uncompressed mean of its row group."""
        return self._row_bytes[self._groups_of(numbers)]

    def _place(self, number: int) -> tuple[int, int, int]:
        """The row group and the file of a row, and its number in the file."""
        group = int(self._groups_of(np.array([number]))[0])
        file = int(self.files.groups.file[group])
        return group, file, number - int(self._file_first[file])

    def locate(self, number: int) -> SampleLocation:
        """See `Rows.locate`. Offsets assume rows of equal length. Raises as `read_rows`."""
        group, file, within = self._place(number)
        keys = self._usual_keys(np.array([number]), [file])
        if self._key is not None:
            self._take_keys(group, self._decoded(group), [number - int(self._first[group])], [0], keys)
        size = int(self._row_bytes[group])
        start = within * size
        return SampleLocation(
            index=number,
            shard=self.files.names[file],
            key=keys[0],
            start=start,
            stop=start + size,
            parts=dict.fromkeys(self._wanted, (0, size)),
        )

    def place_of(self, number: int) -> str:
        """The file and the row: `train-00000.parquet: row 123`."""
        _, file, within = self._place(number)
        return f"{self.files.names[file]}: row {within}"

    # Columns of numbers.

    @cached_property
    def kept(self) -> KeptColumns:
        of = Measured(content_id=self.files.content_id, samples=len(self.files), parts=())
        return KeptColumns(self.files.column_folder(), of)

    def own_column(self, name: str, numbers: Any) -> npt.NDArray[Any]:
        """See `Rows`. Also raises as `read_rows`.

        The column of all files is read on first access, stored beside the footers and memory-mapped. Missing numbers
        are NaN, which makes the column floating-point.
        """
        if name == _SIZES and not (name in self._kinds and self._kinds[name].is_numeric):
            return self.sizes(np.arange(numbers.start, numbers.stop) if isinstance(numbers, slice) else numbers)
        with self._reading_column:  # otherwise each thread would read the whole column
            return np.asarray(self._whole_column(name)[numbers])

    def no_column(self, name: str) -> KeyNotFoundError:
        """See `Rows`. Also raises KeyNotFoundError if a column of other samples has this name."""
        self.kept.refuse_stale(name)
        making = f"`energon-grain measure {self.path} --column {name}=module:function` creates it"
        return KeyNotFoundError(
            f"{self.path}: no numeric column {name!r}; the columns are {', '.join(self.columns[:50])}; "
            f"{making}{self.kept.folder.read_only_note}"
        )

    def _whole_column(self, name: str) -> npt.NDArray[Any]:
        beside = self.files.cache_prefix
        path = beside.with_name(f"{beside.name}-{self.column_id(name)}.npy")
        with suppress(OSError, ValueError):
            found = np.load(path, mmap_mode="r")
            if found.shape == (len(self.files),):
                return np.asarray(found)
        groups = np.flatnonzero(np.diff(self._first))
        tables = zip(groups.tolist(), self._column_tables(name, groups), strict=True)
        whole = np.concatenate([self._numbers_of(name, number, table) for number, table in tables])
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".column-")
            with os.fdopen(descriptor, "wb") as file:
                np.save(file, whole)
            os.replace(temporary, path)
            return np.asarray(np.load(path, mmap_mode="r"))
        return whole

    def _numbers_of(self, name: str, number: int, table: Any) -> npt.NDArray[Any]:
        """The numbers of a non-empty row group; floating-point if one is missing."""
        with self._converting(name, number):
            array = self._kinds[name].array(table, name)
            if array is None:
                return np.full(int(self._first[number + 1] - self._first[number]), np.nan)
            numbers = plain_numbers(array)
            if numbers.dtype == np.uint64:  # NumPy would convert these to floats when concatenating
                if numbers.max(initial=0) >= 2**63:
                    raise OverflowError(f"{numbers.max()} is too large; integers in columns must be below 2**63")
                numbers = numbers.astype(np.int64)
            return with_nan(numbers, validity_of(array))

    def close(self) -> None:
        decoded_groups().forget(self._owner)
        self.files.close()


class TableFileStore(OwnFileStore[Any]):
    """Reads single parts of rows. A key is the row's key, a dot, and the part: `train-00000/17.image`, `17.pages.0`.

    All rows are served, independent of the subset of a leaf. Only the column of a part is decoded, a row group at a
    time, which is cached as for `TableRows`. If keys are in a column `__key__`, the first lookup loads all of them
    into memory: about 200 bytes per row.
    """

    def __init__(self, files: TableFiles) -> None:
        self._whole = TableRows(files)
        self._sources: dict[str, TableRows] = {}
        self._finding = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return TableFileStore, (self._whole.files,)

    @property
    def _identity(self) -> Any:
        return self._whole.digest

    def _decoded_as(self, key: str) -> str:
        """The key with the ending that decodes its column, if it has one."""
        part = part_of_key(key)[1]
        endings = self._whole.endings
        ending = endings.get(part) or endings.get(part.rpartition(".")[0])
        return f"{key}.{ending}" if ending else key

    def get_path(self) -> str:
        return self._whole.path

    def __contains__(self, key: object) -> bool:
        try:
            return isinstance(key, str) and bool(self.read((key,)))
        except KeyNotFoundError:
            return False

    def read(self, keys: Sequence[str]) -> list[tuple[Any, SourceInfo]]:
        """Read parts in the order requested. Parts of one column are read together. See `FileStore.read`."""
        places: dict[str, list[int]] = {}
        split = [part_of_key(key) for key in keys]
        for place, (_, part) in enumerate(split):
            places.setdefault(part, []).append(place)
        values: list[Any] = [None] * len(keys)
        shards = [""] * len(keys)
        for part, at in places.items():
            rows = [self._row(split[place][0]) for place in at]
            if None in rows or not (source := self._source_of(part)):
                raise self._missing(keys[at[rows.index(None)] if None in rows else at[0]])
            batch = source.read_rows(np.array(rows, np.int64))
            found = batch.columns.get(part) or [None] * len(at)
            for place, shard, value in zip(at, batch.shards, found, strict=True):
                if value is None:
                    raise self._missing(keys[place])
                shards[place], values[place] = shard, value
        return with_sources(self.get_path(), keys, shards, values)

    def _missing(self, key: str) -> KeyNotFoundError:
        source = self._whole
        usual = f"{source._stems[0]}/0" if source._key is None else f"the value of column {source._key}"
        return KeyNotFoundError(
            f"{source.path}: no key {key!r}; a key is {usual}, a dot, and a column with a value in that row: "
            f"{', '.join(source.all_part_names)}"
        )

    def _source_of(self, part: str) -> TableRows | None:
        column = part if part in self._whole.all_part_names else part.rpartition(".")[0]
        if column not in self._sources and column in self._whole.all_part_names:
            self._sources[column] = TableRows(self._whole.files, parts={column})
        return self._sources.get(column)

    def _row(self, key: str) -> int | None:
        """The number of a row; None if no row has the key."""
        source = self._whole
        if source._key is not None:
            with self._finding:
                return self._rows_by_key.get(key)
        stem, _, number = key.rpartition("/")
        if stem not in source._stems or not (number.isascii() and number.isdecimal()) or str(int(number)) != number:
            return None
        file = source._stems.index(stem)
        count = source.shard_counts[source.files.names[file]]
        return int(source._file_first[file]) + int(number) if int(number) < count else None

    @cached_property
    def _rows_by_key(self) -> dict[str, int]:
        rows: dict[str, int] = {}
        for row, key in enumerate(chain.from_iterable(self._whole.key_blocks())):
            if rows.setdefault(key, row) != row:
                raise DuplicateKeyError(
                    f"{self.get_path()}: rows {rows[key]} and {row} have the same key {key!r} in column {KEY_COLUMN}, "
                    f"so neither can be looked up; make the keys unique"
                )
        return rows

    def close(self) -> None:
        self._whole.close()


def part_of_key(key: str) -> tuple[str, str]:
    """Split a key of a table store into the key of a row and the part."""
    dot = key.find(".", key.rfind("/") + 1)
    return (key[:dot], key[dot + 1 :]) if dot >= 0 else (key, "")


def _spread(count: int, most: int) -> Int64Array:
    """At most `most` evenly spaced numbers below `count`, including the first and the last."""
    return np.unique(np.linspace(0, count - 1, most).astype(np.int64))


def _stem(name: str, endings: tuple[str, ...]) -> str:
    ending = next((each for each in endings if name.endswith(each)), "")
    return name.removesuffix(ending)


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.3g} GB"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.3g} MB"
