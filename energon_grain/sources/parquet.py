"""Random access to the rows of Parquet files: a crude sample each.

A row group is the least that can be decoded, so it is decoded whole, but for the columns that nobody wants, and stays
decoded while others may ask for its rows: up to `memory_bytes()` in memory, and what does not fit goes to files that
are mapped (uncompressed, in the cache folder, without names, so that they vanish with the process). So a shuffle should
read row group by row group, and these are its blocks: see `block_starts`.

| column | part, before the decoder | with it |
|---|---|---|
| truth values, integers, floating-point numbers | an array without an axis | as it is |
| lists of these, of one length or several; Hugging Face's `Array2D` to `Array5D` | an array | as it is |
| strings | UTF-8 | `str` |
| bytes | bytes | by the column's name, as parts of tars |
| Hugging Face's images, sounds and videos (`{bytes, path}`) | the file | as `jpg`, `wav`, `mp4`, of any format |
| lists of these | `name.0`, `name.1`, … | likewise |
| anything else: structs, lists of strings, times, decimals | JSON | what the JSON says |

A part is called as its column. Where a row has no value (null), the sample lacks the part.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, FormatError, KeyNotFoundError
from energon_grain.formats.columns import Columns, columns_of_parquet
from energon_grain.formats.parquet import PARQUET_SUFFIX, ParquetFiles
from energon_grain.samplers.expression import Expression
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.subset import Selection
from energon_grain.sources.remote_runs import RemoteExtents, remote_extents, remote_run
from energon_grain.sources.source import (
    PartFilter,
    PartValue,
    RawBatch,
    SampleLocation,
    Selected,
    accepts,
    in_pieces,
    in_range,
)
from energon_grain.storage.remote_files import RemoteFiles
from energon_grain.storage.settings import storage_settings
from energon_grain.transforms.decode import Buffer, Codec, SampleDecoder

Int64Array = npt.NDArray[np.int64]
Take = Callable[[list[int]], list[Any]]
"""Gives the values of some rows of a column, None where there is none."""
KEY_COLUMN = "__key__"
_MEDIA = {"Image": "jpg", "Audio": "wav", "Video": "mp4"}
"""What Hugging Face calls a column, and which end of a part's name decodes it: by content, whatever the format."""
_SIZES = "bytes"
_MOST_MEMORY_BYTES = 4 << 30
_MEMORY_SHARE = 4
_DISK_SHARE = 4


@cache
def memory_bytes() -> int:
    """How much is kept decoded in memory, of all sources of a process: a quarter of the machine's, at most 4 GiB."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(_MOST_MEMORY_BYTES, total // _MEMORY_SHARE)


@dataclass(slots=True, eq=False)
class _Group:
    """A decoded row group.

    Attributes:
        table: Its columns, a `pyarrow.Table`; None: it has none of those wanted.
        size_bytes: Of it.
        takes: What gives the values of columns, those that were asked for.
    """

    table: Any
    size_bytes: int
    takes: dict[str, Take] = field(default_factory=dict[str, Take])


class _Kept:
    """The row groups in memory, or those on disk, the ones used longest ago first."""

    def __init__(self) -> None:
        self.groups: OrderedDict[tuple[object, int], _Group] = OrderedDict()
        self.size_bytes = 0

    def get(self, key: tuple[object, int]) -> _Group | None:
        if key in self.groups:
            self.groups.move_to_end(key)
        return self.groups.get(key)

    def put(self, key: tuple[object, int], group: _Group, limit_bytes: int) -> list[tuple[tuple[object, int], _Group]]:
        """Keep a row group; give those that have to leave for it."""
        before = self.groups.pop(key, None)  # decoded again while it was moved here
        self.groups[key] = group
        self.size_bytes += group.size_bytes - (before.size_bytes if before is not None else 0)
        leaving: list[tuple[tuple[object, int], _Group]] = []
        while self.size_bytes > limit_bytes and len(self.groups) > 1:
            leaving.append(self.groups.popitem(last=False))
            self.size_bytes -= leaving[-1][1].size_bytes
        return leaving

    def forget(self, owner: object) -> None:
        for key in [key for key in self.groups if key[0] is owner]:
            self.size_bytes -= self.groups.pop(key).size_bytes


class DecodedGroups:
    """Row groups that stay decoded, those used last: in memory, and behind that in mapped files. Thread-safe.

    Args:
        limit_bytes: In memory; one row group at least.
        folder: Where files are made.

    Attributes:
        decoded: How many were, ever.
    """

    def __init__(self, limit_bytes: int, folder: str) -> None:
        self.limit_bytes, self._folder = limit_bytes, folder
        self.decoded = 0
        self.renew()

    def renew(self) -> None:
        """Keep nothing: in a forked child nobody is left to bring what another thread was decoding."""
        self._lock = threading.Lock()
        self._memory, self._disk = _Kept(), _Kept()
        self._coming: dict[tuple[object, int], Future[_Group]] = {}

    def __contains__(self, key: tuple[object, int]) -> bool:
        return key in self._memory.groups or key in self._disk.groups

    def get(self, key: tuple[object, int], decode: Callable[[], Any]) -> _Group:
        """The row group of this name; of several threads that ask for it one decodes it. Raises as `decode`."""
        with self._lock:
            found = self._memory.get(key) or self._disk.get(key)
            if found is not None:
                return found
            mine = Future[_Group]()
            coming = self._coming.setdefault(key, mine)
        if coming is not mine:
            return coming.result()
        try:
            table = decode()
            found = _Group(table, 0 if table is None else table.nbytes)
        except BaseException as error:
            with self._lock:
                self._coming.pop(key, None)
            mine.set_exception(error)
            raise
        with self._lock:
            self.decoded += 1
            self._coming.pop(key, None)
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

    def room_bytes(self) -> int:
        """How much is kept, in memory and on disk."""
        return self.limit_bytes + self._disk_bytes

    def _move_to_disk(self, key: tuple[object, int], group: _Group) -> None:
        """Keep a row group in a file; where that cannot be written it is decoded again when it is asked for."""
        import pyarrow

        if group.table is None or group.size_bytes > self._disk_bytes:
            return
        with suppress(OSError, pyarrow.ArrowException):
            descriptor, name = tempfile.mkstemp(dir=self._folder, prefix="rows-")
            try:
                with os.fdopen(descriptor, "wb") as file, pyarrow.ipc.new_file(file, group.table.schema) as writer:
                    writer.write_table(group.table)
                table = pyarrow.ipc.open_file(pyarrow.memory_map(name)).read_all()
            finally:
                os.unlink(name)
            with self._lock:
                self._disk.put(key, _Group(table, group.size_bytes), self._disk_bytes)

    def forget(self, owner: object) -> None:
        """Let go of what has a name that begins with `owner`."""
        with self._lock:
            self._memory.forget(owner)
            self._disk.forget(owner)


@cache
def decoded_groups() -> DecodedGroups:
    """What all sources of this process keep together."""
    return DecodedGroups(memory_bytes(), os.path.join(os.path.dirname(storage_settings().cache_folder), "decoded"))


os.register_at_fork(after_in_child=lambda: decoded_groups().renew() if decoded_groups.cache_info().currsize else None)


class ColumnDecoder(SampleDecoder):
    """Decodes parts that are called as columns of a table: what they are is known, whatever their names.

    Args:
        decoder: Decodes them, by the ends of names.
        endings: Which end stands for a column; a list's entries, `name.0`, are as their column.
    """

    def __init__(self, decoder: SampleDecoder, endings: Mapping[str, str]) -> None:
        self._inner, self._endings = decoder, dict(endings)
        self._config = decoder.config()

    def _named(self, part: str) -> str:
        column = part if part in self._endings else part.rpartition(".")[0]
        return f"{part}.{self._endings[column]}" if column in self._endings else part

    def decoder_for(self, part: str) -> Codec | None:
        """See `SampleDecoder`."""
        return self._inner.decoder_for(self._named(part))

    def decode_column(self, part: str, column: list[bytes], groups: Sequence[range] = ()) -> list[Any]:
        """See `SampleDecoder`."""
        return self._inner.decode_column(self._named(part), column, groups)

    def decode(self, fname: str, raw: Buffer) -> Any:
        """See `SampleDecoder`."""
        return self._inner.decode(self._named(fname), raw)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ColumnDecoder) and (self._inner, self._endings) == (other._inner, other._endings)

    def __hash__(self) -> int:
        return hash(self._inner)

    def __reduce__(self) -> tuple[Any, ...]:
        return ColumnDecoder, (self._inner, self._endings)


class ParquetSource(Selected):
    """The rows of Parquet files, in the order of the files' names and of the rows in each.

    The key of a row is the name of its file without the ending, a slash, and the row's number in the file, from 0; or
    what stands in a column `__key__`. Opening reads footers, and those once (see `ParquetFiles`); a read decodes the
    row groups that it touches, unless they still are decoded. Thread-safe and picklable.

    Args:
        path: Files, see `ParquetFiles`.
        start: First sample to serve.
        stop: One past the last sample; default: the end.
        where: Which of these to serve, by their columns; default: all.
        parts: Which columns to read, names or a predicate.

    Raises:
        ConfigError: No column is to be read.
        EnergonGrainError: As `ParquetFiles`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | ParquetFiles,
        *,
        start: int = 0,
        stop: int | None = None,
        where: Expression | None = None,
        parts: PartFilter = None,
    ) -> None:
        self.files = path if isinstance(path, ParquetFiles) else ParquetFiles(path)
        self._parts = parts
        self._kinds = _kinds(self.files)
        entries = [] if parts is None or callable(parts) else list(parts)
        self._wanted = [
            name
            for name in self._kinds
            if name != KEY_COLUMN and (accepts(parts, name) or any(entry.startswith(f"{name}.") for entry in entries))
        ]
        if not self._wanted:
            raise ConfigError(f"{self.path}: part_filter lets none of its columns pass: {', '.join(self._kinds)}")
        self._key = KEY_COLUMN if KEY_COLUMN in self._kinds else None
        self._read = (*self._wanted, *([self._key] if self._key else []))
        groups = self.files.groups
        self._first = groups.first
        places = [self.files.columns.index(name) for name in self._wanted]
        self._group_bytes = groups.extents[:, places, 2].sum(axis=1)
        self._row_bytes = -(-self._group_bytes // np.maximum(1, np.diff(self._first)))
        stems = [name.removesuffix(PARQUET_SUFFIX) for name in self.files.names]
        self._stems = stems if len(set(stems)) == len(stems) else self.files.names
        begins = np.searchsorted(groups.file, np.arange(len(self.files.names)))
        self._file_first = self._first[begins]
        self._owner = object()  # whose row groups are whose
        self._reading_column = threading.Lock()
        self._selection = Selection(len(self.files), start=start, stop=stop)
        self._narrow(where)

    def cut(self, start: int, stop: int | None, where: Expression | None = None) -> ParquetSource:
        """Rows [start, stop) of all, for which `where` holds.

        Raises:
            ConfigError: There are fewer.
            EmptyDatasetError: There are none between.
            KeyNotFoundError, FormatError, ReadError: As `column`.
        """
        return ParquetSource(self.files, start=start, stop=stop, where=where, parts=self._parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(ParquetSource, parts=self._parts), (self.files,), self._state()

    def __repr__(self) -> str:
        return f"ParquetSource({self.path!r}, samples={len(self)}, columns={self._wanted})"

    @property
    def path(self) -> str:
        """The files, as they were given."""
        return self.files.location

    @property
    def content_id(self) -> str:
        """Digest of names, sizes and footers of the files, and of which rows are served."""
        chosen = self._selection
        return f"{self.files.content_id}-{fold(chosen.start, chosen.stop, *chosen.digest):016x}"

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of all columns, read or not; of lists of files, one stands for all entries."""
        return tuple(name for name in self._kinds if name != KEY_COLUMN)

    @property
    def lists(self) -> frozenset[str]:
        """Columns with lists of files."""
        return frozenset(name for name, kind in self._kinds.items() if kind.many)

    @property
    def endings(self) -> dict[str, str]:
        """Which ends of names decode columns that are not decoded by their own."""
        return {name: kind.ending for name, kind in self._kinds.items() if kind.ending}

    def _rows(self, indices: npt.NDArray[np.integer[Any]]) -> tuple[Int64Array, Int64Array]:
        """(n,) number of each row among those of all files, and of its row group."""
        rows = self._selection.to_raw(in_range(indices, len(self), where=self.path))
        return rows, np.searchsorted(self._first, rows, side="right") - 1

    # Row groups as blocks.

    @property
    def run_samples(self) -> int | None:
        """Rows of a row group, in the mean."""
        return max(1, len(self) // (len(self.block_starts()) - 1))

    def block_starts(self, at_least: int | None = None) -> Int64Array:
        """(blocks + 1,) the first sample of each block, and how many samples there are.

        A block is a row group, or as many neighbours as have `at_least` samples; by default, in an object store, 4 MiB.
        """
        if at_least is None and self.remote_files:
            at_least = remote_run(int(self._group_bytes.sum()), len(self.files))
        low, high = np.zeros(len(self._first), np.int64), np.full(len(self._first), len(self), np.int64)
        while (open_ := low < high).any():  # how many samples lie before each bound: `to_raw` ascends
            middle = (low + high) // 2
            before = np.where(open_, self._selection.to_raw(np.minimum(middle, len(self) - 1)) < self._first, False)
            low, high = np.where(before, middle + 1, low), np.where(open_ & ~before, middle, high)
        bounds = np.unique(low)
        if at_least is not None:
            kept = [0]
            for bound in bounds[1:-1].tolist():
                if bound - kept[-1] >= at_least:
                    kept.append(bound)
            bounds = np.array([*kept, len(self)], np.int64)
        return bounds

    def warn_of_order(self, blocks_at_once: int | None) -> str | None:
        """What to warn of where an order keeps so many blocks in use at a time (None: all); None: it is cheap."""
        touched = np.unique(self._rows(np.array([0, len(self) - 1]))[1])
        sizes = self._group_bytes[touched[0] : touched[-1] + 1]
        count = len(sizes) if blocks_at_once is None else min(len(sizes), blocks_at_once)
        in_use = int(np.sort(sizes)[-count:].sum()) if blocks_at_once is None else int(sizes.mean() * count)
        kept = decoded_groups()
        if in_use <= kept.limit_bytes:
            return None
        beyond = in_use - kept.room_bytes()
        outcome = (
            f"what passes {_gigabytes(kept.limit_bytes)} goes to a cache on disk"
            if beyond <= 0
            else f"memory and disk have room for {_gigabytes(kept.room_bytes())}, so that most rows decode a whole row "
            "group"
        )
        return (
            f"{self.path}: this order has {count:,} row groups of {_megabytes(float(sizes.mean()))} in use at a time, "
            f"{_gigabytes(in_use)} decoded (on one host; several share it); {outcome}. Row groups of a few MB are "
            "best: write the files anew so (`row_group_size`), or take fewer `lanes`"
        )

    # Reading.

    @property
    def remote_files(self) -> Sequence[RemoteFiles]:
        """What reads the files where they lie in an object store."""
        return (self.files.store,) if isinstance(self.files.store, RemoteFiles) else ()

    def extents(self, indices: Int64Array) -> list[RemoteExtents]:
        """See `RemoteSource`: of each row group what is wanted of it, for the first sample that needs it."""
        groups, first = np.unique(self._rows(indices)[1], return_index=True)
        file, start, size, owner = self.files.spans(groups, self._read)
        return [remote_extents(each, self.files.paths, file, start, size, first[owner]) for each in self.remote_files]

    def read(self, indices: Int64Array) -> RawBatch:
        """Read samples in the order asked for. See `Source.read`.

        Raises:
            FormatError: A row group is damaged.
            StaleIndexError: A file was changed since it was opened.
        """
        indices = np.asarray(indices, np.int64)
        rows, group = self._rows(indices)
        files = self.files.groups.file[group].tolist()
        columns: dict[str, list[PartValue | None]] = {}
        keys = self._usual_keys(rows, files)
        order = np.argsort(group, kind="stable")
        cuts = np.flatnonzero(np.diff(group[order], prepend=-1)).tolist()
        runs = [order[begin:end] for begin, end in zip(cuts, [*cuts[1:], len(order)], strict=True)]
        # What is decoded comes first: what comes then takes the place of what was used before, and not of that.
        for at in sorted(runs, key=lambda run: (self._owner, int(group[run[0]])) not in decoded_groups()):
            places, number = at.tolist(), int(group[at[0]])
            decoded = self._decoded(number)
            within = (rows[at] - self._first[number]).tolist()
            for name in self._wanted:
                self._scatter(name, number, decoded, within, places, columns, len(indices))
            if self._key is not None:
                self._take_keys(number, decoded, within, places, keys)
        return RawBatch(indices=indices, keys=keys, shards=[self.files.names[file] for file in files], columns=columns)

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
        return decoded_groups().get((self._owner, number), lambda: self.files.read(number, self._read))

    def _values(self, name: str, number: int, decoded: _Group, within: list[int]) -> list[Any]:
        """Values of rows of a row group."""
        try:
            take = decoded.takes.get(name)
            if take is None:
                array = self._kinds[name].array(decoded.table, name)
                take = decoded.takes[name] = _nothing if array is None else self._kinds[name].take(array)
            return take(within)
        except (ValueError, OverflowError, TypeError, NotImplementedError) as error:
            raise self._wrong(name, number, error) from error

    def _wrong(self, name: str, number: int, error: Exception) -> FormatError:
        file = int(self.files.groups.file[number])
        within = int(self.files.groups.number[number])
        return FormatError(f"{self.files.paths[file]}: row group {within}: column {name!r}: {error}")

    def keys(self, indices: Int64Array) -> list[str]:
        """The key of each sample. Raises as `read`, which it does where a column says them."""
        if self._key is not None:
            return self.read(indices).keys
        rows, group = self._rows(indices)
        return self._usual_keys(rows, self.files.groups.file[group].tolist())

    def _usual_keys(self, rows: Int64Array, files: list[int]) -> list[str]:
        within = (rows - self._file_first[files]).tolist() if files else []
        return [f"{self._stems[file]}/{row}" for file, row in zip(files, within, strict=True)]

    def _take_keys(self, number: int, decoded: _Group, within: list[int], places: list[int], keys: list[str]) -> None:
        for place, value in zip(places, self._values(KEY_COLUMN, number, decoded, within), strict=True):
            if value is not None:  # else it keeps its usual one
                keys[place] = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    def sizes(self, indices: Int64Array) -> Int64Array:
        """(n,) bytes of each sample: the mean of its row group, uncompressed."""
        return self._row_bytes[self._rows(indices)[1]]

    def locate(self, index: int) -> SampleLocation:
        """Which row a sample is; places are counted as if rows were equally long. Raises IndexError, as `read` too."""
        rows, group = self._rows(np.array([index], np.int64))
        file, number = int(self.files.groups.file[group[0]]), int(group[0])
        keys = self._usual_keys(rows, [file])
        if self._key is not None:
            self._take_keys(number, self._decoded(number), [int(rows[0] - self._first[number])], [0], keys)
        size = int(self._row_bytes[number])
        start = int(rows[0] - self._file_first[file]) * size
        return SampleLocation(
            index=index,
            shard=self.files.names[file],
            key=keys[0],
            start=start,
            stop=start + size,
            parts=dict.fromkeys(self._wanted, (0, size)),
        )

    def place_of(self, index: int) -> str:
        """The file, and the row in it: `train-00000.parquet: row 123`. Raises IndexError as `locate` does."""
        rows, group = self._rows(np.array([index], np.int64))
        file = int(self.files.groups.file[group[0]])
        return f"{self.files.names[file]}: row {int(rows[0] - self._file_first[file])}"

    # Columns of numbers.

    @property
    def columns(self) -> tuple[str, ...]:
        """See `Source.columns`: `bytes`, as `sizes` says it, and the columns of numbers, one a row, read or not."""
        own = [name for name in self._kinds if name in self._numeric]
        return tuple(dict.fromkeys((_SIZES, *own, *self.kept)))

    @cached_property
    def kept(self) -> Columns:
        """What was measured of all rows, by their numbers, and does not lie in the files."""
        return columns_of_parquet(self.files)

    def column(self, name: str, indices: Int64Array | slice) -> npt.NDArray[Any]:
        """See `Source.column`. Raises as `read` too.

        That of all files is read when it is first asked for, kept beside the footers and mapped. Where a number is
        missing it is NaN, and the column floating-point.
        """
        if isinstance(indices, slice):
            begin, stop, step = indices.indices(len(self))
            run = self._selection.raw_run(begin, max(begin, stop)) if step == 1 and self._has(name) else None
            if run is None:
                return in_pieces(indices, len(self), partial(self.column, name))
            return self.kept.at(name, run) if name in self.kept else np.asarray(self._column(name)[run])
        if name == _SIZES and name not in self._numeric:
            return self.sizes(indices)
        rows = self._rows(indices)[0]
        return self.kept.at(name, rows) if name in self.kept else np.asarray(self._column(name)[rows])

    def _has(self, name: str) -> bool:
        return name in self._numeric or name in self.kept

    def column_id(self, name: str) -> str:
        """See `Source.column_id`: of what is in the files, that of these."""
        self._check_column(name)
        return self.kept.id(name) if name in self.kept else f"{self.files.content_id}-{fold(name):016x}"

    @cached_property
    def _numeric(self) -> frozenset[str]:
        return frozenset(name for name, kind in self._kinds.items() if kind.take is _numbers)

    def _check_column(self, name: str) -> None:
        if name not in self.columns:
            raise KeyNotFoundError(
                f"{self.path}: there is no column of numbers {name!r}; there are {', '.join(self.columns[:50])}; "
                f"`energon-grain measure {self.path} --column {name}=module:function` makes it"
            )

    def _column(self, name: str) -> npt.NDArray[Any]:
        self._check_column(name)
        with self._reading_column:  # else threads that ask for parts of it would each read the whole
            return self._whole_column(name)

    def _whole_column(self, name: str) -> npt.NDArray[Any]:
        beside = self.files.kept_beside
        path = beside.with_name(f"{beside.name}-{self.column_id(name)}.npy")
        with suppress(OSError, ValueError):
            found = np.load(path, mmap_mode="r")
            if found.shape == (len(self.files),):
                return np.asarray(found)
        whole = np.concatenate([self._numbers_of(name, each) for each in np.flatnonzero(np.diff(self._first)).tolist()])
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".column-")
            with os.fdopen(descriptor, "wb") as file:
                np.save(file, whole)
            os.replace(temporary, path)
            return np.asarray(np.load(path, mmap_mode="r"))
        return whole

    def _numbers_of(self, name: str, number: int) -> npt.NDArray[Any]:
        """The numbers of a row group that has rows; floating-point where one is missing."""
        try:
            array = self._kinds[name].array(self.files.read(number, (name,)), name)
            if array is None:
                return np.full(int(self._first[number + 1] - self._first[number]), np.nan)
            numbers = _plain(array)
            if numbers.dtype == np.uint64:  # which NumPy puts together with others as floats
                if numbers.max(initial=0) >= 2**63:
                    raise OverflowError(f"{numbers.max()} is too large; whole numbers of columns end at 2**63")
                numbers = numbers.astype(np.int64)
        except (ValueError, NotImplementedError, OverflowError) as error:
            raise self._wrong(name, number, error) from error
        return _with_nan(numbers, _there(array))

    def close(self) -> None:
        """Close the files, and let go of what is decoded; reading again opens them anew."""
        decoded_groups().forget(self._owner)
        self.files.close()


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.3g} GB"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.3g} MB"


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a column becomes.

    Attributes:
        arrow: Its type, in the file that says what it becomes.
        feature: What Hugging Face's `datasets` says of it there.
        take: Makes of its Arrow array what gives values of rows.
        ending: The end of a name by which its bytes are decoded; None: by its own name, or not at all.
        many: Whether a value is a list of files.
    """

    arrow: Any
    feature: Any
    take: Callable[[Any], Take]
    ending: str | None = None
    many: bool = False

    def array(self, table: Any, name: str) -> Any:
        """The column of a table, from any of the files, as one array for `take`; None: the table lacks it.

        Raises:
            ValueError, NotImplementedError: It is something else than in the file that says what it becomes.
        """
        if table is None or name not in table.column_names:
            return None
        array = _whole(table.column(name))
        if _is_blank(array.type):  # as pandas writes what has no value in this file
            return array.cast(self.arrow)
        kinds = self, _kind(array.type, self.feature)
        mine, its = ((getattr(each.take, "func", each.take), each.many) for each in kinds)
        if mine != its and self.take is not _json:
            raise ValueError(f"is of type {array.type} here, and of {self.arrow} in a file before; write them alike")
        return array


def _kinds(files: ParquetFiles) -> dict[str, _Kind]:
    """What each column becomes, by the first file that has it, and values in it.

    Raises:
        FormatError: A schema is not understood.
    """
    kinds: dict[str, _Kind] = {}
    for number in range(len(files.names)):
        if len(kinds) == len(files.columns) and not any(_is_blank(kind.arrow) for kind in kinds.values()):
            break
        schema = files.schema(number)
        features = _features(schema.metadata or {})
        for column in schema:
            if column.name not in kinds or _is_blank(kinds[column.name].arrow) > _is_blank(column.type):
                kinds[column.name] = _kind(column.type, features.get(column.name))
    return {name: kinds[name] for name in files.columns}


def _features(metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    """What Hugging Face's `datasets` says of columns; nothing where it does not."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    return cast("dict[str, Any]", features) if isinstance(features, dict) else {}


def _kind(kind: Any, feature: Any) -> _Kind:
    import pyarrow

    is_ = pyarrow.types
    while isinstance(kind, pyarrow.BaseExtensionType):
        kind = kind.storage_type
    if is_.is_dictionary(kind):
        kind = kind.value_type
    said = feature.get("_type") if isinstance(feature, dict) else None
    if is_.is_boolean(kind) or is_.is_integer(kind) or is_.is_floating(kind):
        return _Kind(kind, feature, _numbers)
    if is_.is_string(kind) or is_.is_large_string(kind) or is_.is_string_view(kind):
        return _Kind(kind, feature, _bytes, "txt")
    if is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind) or is_.is_binary_view(kind):
        return _Kind(kind, feature, _bytes, _MEDIA.get(str(said)))
    if said in _MEDIA and _is_file(kind):
        return _Kind(kind, feature, _files, _MEDIA[said])
    if _is_list(kind):
        inner = feature[0] if isinstance(feature, list) and feature else feature
        inner = inner.get("feature") if isinstance(inner, dict) and "feature" in inner else inner
        of = inner.get("_type") if isinstance(inner, dict) else None
        if of in _MEDIA and _is_file(kind.value_type):
            return _Kind(kind, feature, _lists_of_files, _MEDIA[of], many=True)
        shape = feature.get("shape") if isinstance(feature, dict) and str(said).startswith("Array") else None
        depth, leaf = 0, kind
        while _is_list(leaf):
            depth, leaf = depth + 1, leaf.value_type
        if is_.is_boolean(leaf) or is_.is_integer(leaf) or is_.is_floating(leaf):
            if depth == 1:
                return _Kind(kind, feature, partial(_arrays, shape=(-1,)))
            if isinstance(shape, list) and len(shape) == depth:
                sides = (-1, *(side for side in shape[1:] if isinstance(side, int) and side > 0))
                if len(sides) == depth:
                    return _Kind(kind, feature, partial(_arrays, shape=sides))
    return _Kind(kind, feature, _json, "json")


def _is_file(kind: Any) -> bool:
    """Whether it is Hugging Face's `{bytes, path}`."""
    import pyarrow

    return pyarrow.types.is_struct(kind) and kind.get_field_index("bytes") >= 0


def _is_list(kind: Any) -> bool:
    import pyarrow

    is_ = pyarrow.types
    return is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind)


def _is_blank(kind: Any) -> bool:
    """Whether nothing can stand in a column of this type, or in its lists."""
    import pyarrow

    while _is_list(kind):
        kind = kind.value_type
    return pyarrow.types.is_null(kind)


def _nothing(rows: list[int]) -> list[Any]:
    return [None] * len(rows)


def _whole(column: Any) -> Any:
    """A column as one array: its pieces, where it has several, put together with offsets of 64 bits."""
    import pyarrow

    if column.num_chunks == 1:
        array = column.chunk(0)
    else:
        wide = {pyarrow.string(): pyarrow.large_string(), pyarrow.binary(): pyarrow.large_binary()}
        array = pyarrow.concat_arrays(column.cast(wide.get(column.type, column.type)).chunks)
    while isinstance(array.type, pyarrow.BaseExtensionType):
        array = array.storage
    return array.dictionary_decode() if pyarrow.types.is_dictionary(array.type) else array


def _with_nan(numbers: npt.NDArray[Any], there: npt.NDArray[np.bool_] | None) -> npt.NDArray[Any]:
    """Numbers, floating-point with NaN where there is none."""
    if there is None or there.all():
        return numbers
    numbers = numbers.astype(numbers.dtype if numbers.dtype.kind == "f" else np.float64)
    numbers[~there] = np.nan
    return numbers


def _there(array: Any) -> npt.NDArray[np.bool_] | None:
    """(n,) where there is a value; None: everywhere."""
    return array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None


def _leaving_out(take: Take, there: npt.NDArray[np.bool_] | None) -> Take:
    """The same with None where there is no value."""
    if there is None:
        return take

    def checked(rows: list[int]) -> list[Any]:
        return [value if valid else None for value, valid in zip(take(rows), there[rows].tolist(), strict=True)]

    return checked


def _of_type(array: Any, right: bool, what: str) -> None:
    if not right:
        raise TypeError(f"is of type {array.type} here, and another file has {what}; write all files with one schema")


def _plain(array: Any) -> npt.NDArray[Any]:
    """Numbers of an Arrow array, whatever stands where there is none. Raises TypeError."""
    import pyarrow
    import pyarrow.compute

    _of_type(array, _kind(array.type, None).take is _numbers, "numbers")
    if array.null_count:
        array = pyarrow.compute.fill_null(array, pyarrow.scalar(0).cast(array.type))
    return array.to_numpy(zero_copy_only=False)


def _numbers(array: Any) -> Take:
    numbers = _plain(array)
    return _leaving_out(lambda rows: [numbers[row, ...].copy() for row in rows], _there(array))


def _bytes(array: Any) -> Take:
    import pyarrow

    kind = array.type
    _of_type(array, _kind(kind, None).take is _bytes, "texts or bytes")
    if pyarrow.types.is_string_view(kind) or pyarrow.types.is_binary_view(kind):
        array = array.cast(pyarrow.large_binary())
    elif pyarrow.types.is_fixed_size_binary(kind):
        array = array.cast(pyarrow.binary())
    wide = pyarrow.types.is_large_string(array.type) or pyarrow.types.is_large_binary(array.type)
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64 if wide else np.int32) if offsets is not None else np.zeros(1, np.int64)
    ends = ends[array.offset : array.offset + len(array) + 1]
    view = memoryview(b"" if data is None else data)

    def take(rows: list[int]) -> list[Any]:
        at = np.array(rows, np.int64)
        return [bytes(view[begin:end]) for begin, end in zip(ends[at].tolist(), ends[at + 1].tolist(), strict=True)]

    return _leaving_out(take, _there(array))


def _files(array: Any) -> Take:
    import pyarrow.compute

    _of_type(array, _is_file(array.type), "files")
    return _bytes(cast("Any", pyarrow.compute).struct_field(array, "bytes"))


def _offsets(array: Any) -> tuple[Int64Array, Any]:
    """(n + 1,) where each list begins in the array of all entries, and that array."""
    import pyarrow

    _of_type(array, _is_list(array.type), "lists")
    if not pyarrow.types.is_fixed_size_list(array.type):
        return array.offsets.to_numpy().astype(np.int64), array.values
    return (np.arange(len(array) + 1) + array.offset) * array.type.list_size, array.values


def _lists_of_files(array: Any) -> Take:
    offsets, entries = _offsets(array)
    inner = _files(entries)

    def take(rows: list[int]) -> list[Any]:
        return [inner(list(range(offsets[row], offsets[row + 1]))) for row in rows]

    return _leaving_out(take, _there(array))


def _arrays(array: Any, *, shape: tuple[int, ...]) -> Take:
    offsets, entries = _offsets(array)
    while _is_list(entries.type):
        inner, entries = _offsets(entries)
        offsets = inner[offsets]
    numbers, there = _plain(entries), _there(entries)

    def one(begin: int, end: int) -> npt.NDArray[Any]:
        piece = _with_nan(numbers[begin:end], None if there is None else there[begin:end])
        return piece.reshape(shape).copy()

    def take(rows: list[int]) -> list[Any]:
        return [one(offsets[row], offsets[row + 1]) for row in rows]

    return _leaving_out(take, _there(array))


def _json(array: Any) -> Take:
    import pyarrow

    array = array.cast(_in_microseconds(array.type), safe=False)

    def take(rows: list[int]) -> list[Any]:
        values = array.take(pyarrow.array(rows, pyarrow.int64())).to_pylist()
        return [None if value is None else msgspec.json.encode(value, enc_hook=str) for value in values]

    return take


def _in_microseconds(kind: Any) -> Any:
    """A type with what Python's own times can hold in place of nanoseconds, which need pandas."""
    import pyarrow as pa

    is_ = pa.types
    if is_.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if is_.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if is_.is_time64(kind):
        return pa.time64("us")
    if is_.is_struct(kind):
        return pa.struct([each.with_type(_in_microseconds(each.type)) for each in kind])
    if is_.is_map(kind):
        return pa.map_(*(each.with_type(_in_microseconds(each.type)) for each in (kind.key_field, kind.item_field)))
    if _is_list(kind):
        size = (kind.list_size,) if is_.is_fixed_size_list(kind) else ()
        make = pa.large_list if is_.is_large_list(kind) else pa.list_
        return make(kind.value_field.with_type(_in_microseconds(kind.value_type)), *size)
    return kind
