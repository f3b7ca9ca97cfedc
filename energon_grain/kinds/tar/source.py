# SPDX-License-Identifier: Apache-2.0
"""Random access to the samples of tar shards."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt

from energon_grain.errors import public
from energon_grain.formats.data_folder import DataFolder, needing_shards
from energon_grain.formats.local_files import LocalFiles
from energon_grain.formats.seek_table import SeekTable, open_seek_table
from energon_grain.kinds.prepared.source import (
    IndexedFileStore,
    IndexedRows,
    IndexedSource,
    RowOptions,
    rows_of,
)
from energon_grain.kinds.tar.index import check_shards
from energon_grain.kinds.tar.names import split_member_name
from energon_grain.samplers.subset import select
from energon_grain.samples.sample import SourceInfo
from energon_grain.sources.remote_runs import RemoteExtents, remote_extents, side_by_side
from energon_grain.sources.source import LazyFrom, RawBatch, in_range
from energon_grain.storage.byte_store import Spans, coalesce
from energon_grain.storage.byte_stream import ByteStream
from energon_grain.storage.remote import RemoteFiles

Int64Array = npt.NDArray[np.int64]


class TarRows(IndexedRows):
    """The samples of all shards of a prepared dataset of tars.

    Opening maps the columnar index and reads no shard, for any number of shards. The first read of a shard checks that
    it is the file that was indexed.
    """

    def __init__(self, path: str | os.PathLike[str] | DataFolder, **options: Unpack[RowOptions]) -> None:
        super().__init__(path, **options)
        self._store = self._folder.store
        self._verified = np.zeros(len(self._index.shards), np.bool_)

    @cached_property
    def _paths(self) -> list[str]:
        """Paths of all shards; built on first use, which takes a second for a million shards."""
        return self._folder.shards(self._index.shards)

    @property
    def remote_files(self) -> Sequence[RemoteFiles]:
        """Readers of shards in an object store."""
        local = isinstance(self._store, LocalFiles)  # checking a protocol takes 30 µs in Python 3.11
        return (self._store,) if not local and isinstance(self._store, RemoteFiles) else ()

    def extents(self, numbers: Int64Array) -> list[RemoteExtents]:
        shard = self._shard_of(numbers)
        self._check_shards(shard)
        owner, rows = self._part_rows(numbers)
        name, start, size = self._described(rows)
        lazy = self._is_lazy(name, size)
        if lazy is not None:
            owner, start, size = owner[~lazy], start[~lazy], size[~lazy]
        return [remote_extents(files, self._paths, shard[owner], start, size, owner) for files in self.remote_files]

    def read_rows(self, numbers: Int64Array, keys: list[str] | None = None) -> RawBatch:
        """See `Rows.read_rows`. Known keys are not looked up."""
        shard = self._shard_of(numbers)
        owner, rows = self._part_rows(numbers)
        name, offset, size = self._described(rows)
        values = self._values(shard, shard[owner], offset, size, self._is_lazy(name, size))
        names = self._index.shards
        columns, orders = _columns(self._index.part_names, owner, name, values, len(numbers))
        batch = RawBatch(
            indices=numbers,
            keys=self._index.keys(numbers) if keys is None else keys,
            shards=[names[number] for number in shard.tolist()],
            columns=columns,
            orders=orders,
        )
        self._touch(numbers)
        return batch

    def _values(
        self,
        shards: Int64Array,
        file: Int64Array,
        offset: Int64Array,
        size: Int64Array,
        lazy: npt.NDArray[np.bool_] | None,
    ) -> Sequence[bytes | ByteStream | None]:
        """Check all `shards`, then return parts: streams of `lazy` ones, bytes of the others."""
        if lazy is None:
            return self._payloads(shards, file, offset, size)
        now = ~lazy
        read = self._payloads(shards, file[now], offset[now], size[now])
        return merged(lazy, read, self._streams(file[lazy], offset[lazy], size[lazy]))

    def _streams(self, file: Int64Array, offset: Int64Array, size: Int64Array) -> list[ByteStream]:
        """Streams of bytes [offset[i], offset[i] + size[i]) of shard file[i]. Shards must have been checked."""
        return list(map(self.stream, file.tolist(), offset.tolist(), size.tolist()))

    def stream(self, shard: int, offset: int, size: int) -> ByteStream:
        """A part of the shard with this number, with a generated seek index if it has none; see `index_videos`.

        Raises:
            ReadError: The shard cannot be read.
            IndexFileError: The generated index is damaged.
        """
        table = self._seek_table
        inserted = (0, b"") if table is None else table.find(shard, offset, size)
        return ByteStream(self._store, self._paths[shard], offset, size, inserted=inserted)

    @cached_property
    def _seek_table(self) -> SeekTable | None:
        return open_seek_table(self._folder.local, self._index.content_id)

    def _payloads(self, shards: Int64Array, file: Int64Array, offset: Int64Array, size: Int64Array) -> Sequence[bytes]:
        """Check all `shards`, then return bytes [offset[i], offset[i] + size[i]) of shard file[i]."""
        self._check_shards(shards)
        if len(size) == 1:  # nothing to merge; merging would take half of the time
            return self._read_spans(file, offset, offset + size)
        gap, solo = self.coalescing
        spans = coalesce(file, offset, size, merge_gap_bytes=gap, solo_bytes=solo)
        if isinstance(self._store, LocalFiles):
            with needing_shards(self._folder):
                return self._store.read_ranges(self._paths, spans, size)
        return spans.cut(self._read_spans(spans.file, spans.start, spans.stop), size)

    def _read_spans(self, file: Int64Array, start: Int64Array, stop: Int64Array) -> list[bytes]:
        """Bytes [start[i], stop[i]) of shard file[i]. Shards must have been checked."""
        with needing_shards(self._folder):
            return self._store.read_spans(self._paths, file, start, stop)

    @property
    def coalescing(self) -> tuple[int, int]:
        """The maximum gap and size for merging ranges into one read of the store; see `coalesce`."""
        return self._store.merge_gap_bytes, self._store.solo_bytes

    def _check_shards(self, shard: Int64Array) -> None:
        """Compare size and end marker of shards with the index before their first read."""
        verified = self._verified[shard]
        if verified.all():
            return
        numbers: list[int] = np.unique(shard[~verified]).tolist()
        with needing_shards(self._folder):
            check_shards(self._folder, self._index, numbers)
        self._verified[numbers] = True

    def close(self) -> None:
        """Close the shards. The next read opens them again."""
        self._store.close()


class WebDatasetSource(IndexedSource):
    """The samples of some shards of a prepared dataset, in the order of the shards.

    Opening maps the columnar index and reads no shard, for any number of shards. The first read of a shard checks that
    it is the file that was indexed.

    Args:
        path: The dataset's folder (the one with `.nv-meta`): a path, a URL, or the result of `open_folder`.
        shards: Names of the shards to serve, in order; default: all of them, in the order of `.info.json`.
        parts: Parts to read: names, or a predicate on the name; default: all.
        lazy: Which of these are returned as a `ByteStream` instead of being read; see `LazyFrom`.
        start: First sample to serve, counted over `shards` before `excluded` are removed.
        stop: One past the last sample, counted in the same way; default: the end.
        excluded: (shard, key) of samples to leave out. The length and the indices count the remaining samples.
        where: Condition on columns that served samples meet; default: none.
        runs: First sample of each of `shards` to serve, and one past the last; not combined with `excluded`. Default:
            all.
        index_cache_dir: Folder for a missing columnar index if the dataset is not writable.
        info: The content of its `.info.json`, if already read.

    Raises:
        DatasetNotFoundError: `path` is not a prepared dataset.
        ConfigError: The range or a shard does not exist.
        StaleIndexError: The index does not match the shards.
        EmptyDatasetError: No samples are selected.
        KeyNotFoundError: A column in `where` does not exist. Names the command that creates it.
    """

    _kind = TarRows

    def read(self, indices: Int64Array, *, keys: list[str] | None = None) -> RawBatch:
        """Read samples in the order requested. See `Source.read`.

        Args:
            indices: Indices of the samples.
            keys: Keys of the samples, if known.
        """
        batch = self._rows.read_rows(self.numbers(indices), keys)
        batch.indices = np.asarray(indices, np.int64)
        return batch

    def _read_by_keys(self, indices: Int64Array, keys: list[str]) -> RawBatch:
        return self.read(indices, keys=keys)

    def stream(self, shard: int, offset: int, size: int) -> ByteStream:
        """A part of the shard with this number, with a generated seek index if it has none; see `index_videos`.

        Raises:
            ReadError: The shard cannot be read.
            IndexFileError: The generated index is damaged.
        """
        return self._rows.stream(shard, offset, size)

    @property
    def coalescing(self) -> tuple[int, int]:
        """The maximum gap and size for merging ranges into one read of the store; see `coalesce`."""
        return self._rows.coalescing

    def _read_key(self) -> Hashable:
        """See `ReadInGroups`. A subclass may read in its own way, so it is not grouped."""
        if type(self) is not WebDatasetSource:
            return None
        rows = self._rows
        parts = [None if each is None else each.tobytes() for each in (rows._wanted, rows._lazy_from)]
        return rows._index.part_names, *parts, rows._folder.is_remote, rows.coalescing

    def _group(self, sources: Sequence[WebDatasetSource]) -> WebDatasetGroup:
        return WebDatasetGroup(sources)


@public
class WebdatasetFileStore(IndexedFileStore[bytes]):
    """Reads single files from tar shards. A key is the full name of a member, `folder/000012.jpg`.

    All shards are served, independent of splits, subsets and excludes. Names are those in the archive, not normalised.
    Opening maps the columnar index and reads no shard. At most 40 of the shards read stay open.

    Args:
        path: The dataset's folder (the one with `.nv-meta`): a path, a URL, or the result of `open_folder`.
        index_cache_dir: Folder for a missing columnar index if the dataset is not writable.

    Raises:
        DatasetNotFoundError: `path` is not a prepared dataset.
        StaleIndexError: The index does not match the shards.
    """

    _kind = TarRows

    def read(self, keys: Sequence[str]) -> list[tuple[bytes, SourceInfo]]:
        """Read files in the order requested; neighbors in a shard are read together. See `FileStore.read`."""
        return WebdatasetFileStore.read_or_open(self, keys, None)

    def read_or_open(self, keys: Sequence[str], lazy: LazyFrom) -> list[tuple[Any, SourceInfo]]:
        samples, rows = self._found(keys)
        shard = self._index.shard_of(samples)
        name, offset, size = self._rows._described(rows)
        opened = None
        if lazy is not None:
            least = [lazy(self._index.part_names[number]) for number in name.tolist()]
            opened = np.array([at is not None and long >= at for at, long in zip(least, size.tolist(), strict=True)])
        data = self._rows._values(shard, shard, offset, size, opened)
        self._rows._touch(samples)
        return self._with_sources(keys, samples, data)

    def _find(self, key: str) -> tuple[int, int] | None:
        # "keep": an index without hidden files finds none.
        split = split_member_name(key, hidden="keep")
        sample = None if split is None or split[1] not in self._parts else self._index.find(split[0])
        row = None if split is None or sample is None else self._row(sample, split[1])
        return None if sample is None or row is None else (sample, row)

    def _why_not(self, key: str) -> str:
        message = f"no file {key!r}"
        split = split_member_name(key, hidden="keep")
        if split is None:
            return f"{message}; a key is the full name of a file in a shard, including folders and endings"
        sample = self._index.find(split[0])
        if sample is None:
            return f"{message}, and no sample {split[0]!r}; a key is the full name of a file in a shard"
        rows = self._index.part_name[self._index.part_start[sample] : self._index.part_start[sample + 1]]
        names = ", ".join(f"{split[0]}.{self._index.part_names[number]}" for number in rows.tolist())
        return f"{message}; the sample {split[0]!r} has {names}"


_Run: TypeAlias = tuple[int, int, int]
"""Number of a source, and the first and one past the last of its samples, sorted by source."""


class WebDatasetGroup:
    """Several datasets whose samples are read together: in numpy for all at once, and in parallel from object stores.

    With a thousand datasets, a chunk has a few samples of each, and a call costs about the same for few samples as for
    many. All have the same parts in the same order; see `WebDatasetSource._read_key`.
    """

    def __init__(self, sources: Sequence[WebDatasetSource]) -> None:
        self._sources = sources
        self._rows: list[TarRows] = [source._rows for source in sources]
        self._selections = [source._selection for source in sources]
        # All stretches concatenated, and the samples and shards of all datasets.
        self._begin = np.cumsum([0, *(each.total for each in self._selections)])[:-1]
        self._number = np.cumsum([0, *(len(rows._index) for rows in self._rows)])[:-1]
        self._first_file = np.cumsum([0, *(len(rows._index.shards) for rows in self._rows)])
        stretches = [each.stretches for each in self._selections]
        self._first = np.concatenate([first + at for (first, _), at in zip(stretches, self._begin, strict=True)])
        moved = zip(stretches, self._number - self._begin, strict=True)
        self._shift = np.concatenate([shift + by for (_, shift), by in moved])
        firsts = zip(self._rows, self._number, strict=True)
        self._shard_first = np.concatenate([rows._shard_first[:-1] + at for rows, at in firsts])
        self._start = np.array([each.start for each in self._selections])
        self._length = np.array([len(source) for source in sources])
        # Selections that are not plain ranges: their numbers, without and with a bitmap.
        others = list(enumerate(self._selections))
        self._excluding, self._narrowed = (
            [number for number, each in others if not each.is_range and each.has_bitmap is bitmap]
            for bitmap in (False, True)
        )
        self._checked = np.zeros(self._first_file[-1], np.bool_)

    def read(self, which: npt.NDArray[np.integer[Any]], indices: Int64Array) -> RawBatch:
        """Read samples of the (n,) numbered sources, in the order requested. See `Source.read`."""
        order = np.argsort(which, kind="stable")
        which = which[order]
        samples, shard = self._resolve(which, indices[order])
        cuts = [0, *(np.flatnonzero(np.diff(which)) + 1).tolist(), len(order)]
        runs: list[_Run] = list(zip(which[cuts[:-1]].tolist(), cuts[:-1], cuts[1:], strict=True))
        owner, name, offset, size = self._parts(runs, samples)
        keys: list[str] = []
        shards: list[str] = []
        numbers: list[int] = shard.tolist()
        for number, begin, end in runs:
            source = self._rows[number]
            keys += source._index.keys(samples[begin:end])
            shards += [source._index.shards[number] for number in numbers[begin:end]]
            source._touch(samples[begin:end])

        # From here on, in the order requested.
        asked = np.argsort(order[owner], kind="stable")
        owner, name, offset, size = owner[asked], name[asked], offset[asked], size[asked]
        file = shard + self._first_file[which]
        self._check(runs, shard, file)
        first = self._rows[0]
        gap, solo = first.coalescing
        lazy = first._is_lazy(name, size)
        now = slice(None) if lazy is None else ~lazy
        spans = coalesce(file[owner[now]], offset[now], size[now], merge_gap_bytes=gap, solo_bytes=solo)
        values = spans.cut(self._bytes(runs, spans), size[now])
        if lazy is not None:
            values = merged(lazy, values, self._streams(which[owner], shard[owner], offset, size, lazy))
        columns, orders = _columns(first._index.part_names, order[owner], name, values, len(order))
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        places: list[int] = back.tolist()
        return RawBatch(
            indices=indices,
            keys=[keys[place] for place in places],
            shards=[shards[place] for place in places],
            columns=columns,
            orders=orders,
        )

    def _parts(
        self, runs: list[_Run], samples: Int64Array
    ) -> tuple[Int64Array, npt.NDArray[np.int32], Int64Array, Int64Array]:
        """(m,) sample index, name, offset and size of every wanted part. See `IndexedSource._part_rows`."""
        first, last, after = np.empty_like(samples), np.empty_like(samples), samples + 1
        for number, begin, end in runs:
            source = self._rows[number]
            source._index.check(samples[begin:end])
            first[begin:end] = source._part_start[samples[begin:end]]
            last[begin:end] = source._part_start[after[begin:end]]
        owner, rows = rows_of(first, last - first)
        name, offset, size = np.empty(len(rows), np.int32), np.empty_like(rows), np.empty_like(rows)
        cuts = np.searchsorted(owner, [begin for _, begin, _ in runs]).tolist()
        for (number, _, _), begin, end in zip(runs, cuts, [*cuts[1:], len(rows)], strict=True):
            described = self._rows[number]._described(rows[begin:end])
            name[begin:end], offset[begin:end], size[begin:end] = described
        wanted = self._rows[0]._wanted
        if wanted is None:
            return owner, name, offset, size
        keep = wanted[name]
        return owner[keep], name[keep], offset[keep], size[keep]

    def _resolve(self, which: npt.NDArray[np.integer[Any]], indices: Int64Array) -> tuple[Int64Array, Int64Array]:
        (wrong,) = np.nonzero((indices < 0) | (indices >= self._length[which]))
        if len(wrong):
            source = self._sources[int(which[wrong[0]])]
            in_range(indices[wrong[:1]], len(source), where=source.path)
        rank = indices + (self._begin + self._start)[which]
        for number in self._excluding:
            (own,) = np.nonzero(which == number)
            rank[own] = self._selections[number].ranks(indices[own]) + self._begin[number]
        if self._narrowed:
            begin = np.searchsorted(which, self._narrowed)
            stop = np.searchsorted(which, self._narrowed, side="right")
            here = [run for run in zip(self._narrowed, begin.tolist(), stop.tolist(), strict=True) if run[1] < run[2]]
            found = [self._selections[number].blocks_of(indices[first:last]) for number, first, last in here]
            if found:
                own = np.concatenate([np.arange(first, last) for _, first, last in here])
                rank[own] = select(*map(np.concatenate, zip(*found, strict=True))) + self._begin[which[own]]
        number = rank + self._shift[np.searchsorted(self._first, rank, side="right") - 1]
        shard = np.searchsorted(self._shard_first, number, side="right") - 1
        return number - self._number[which], shard - self._first_file[which]

    def _check(self, runs: list[_Run], shard: Int64Array, file: Int64Array) -> None:
        """As `WebDatasetSource._check_shards`. Shard and file number of each sample, among those of all sources."""
        if self._checked[file].all():
            return

        def check(run: _Run) -> None:
            number, begin, end = run
            self._rows[number]._check_shards(shard[begin:end])

        new = [run for run in runs if not self._checked[file[run[1] : run[2]]].all()]
        side_by_side(check, new, self._rows[0].remote_files)
        self._checked[file] = True

    def _streams(
        self,
        which: npt.NDArray[np.integer[Any]],
        shard: Int64Array,
        offset: Int64Array,
        size: Int64Array,
        lazy: npt.NDArray[np.bool_],
    ) -> list[ByteStream]:
        """Streams of the parts that are `lazy`, with their sources and shards."""
        places = np.flatnonzero(lazy)[:, None]
        return [
            stream
            for number, place in zip(which[lazy].tolist(), places, strict=True)
            for stream in self._rows[number]._streams(shard[place], offset[place], size[place])
        ]

    def _bytes(self, runs: list[_Run], spans: Spans) -> list[bytes]:
        """The bytes of spans, in their order, which is that of the sources."""
        numbers = [number for number, _, _ in runs]
        first = self._first_file[numbers]
        cuts = [*np.searchsorted(spans.file, first).tolist(), len(spans.file)]
        file = spans.file - np.repeat(first, np.diff(cuts))

        def read(part: tuple[int, int, int]) -> list[bytes]:
            number, begin, end = part
            return self._rows[number]._read_spans(file[begin:end], spans.start[begin:end], spans.stop[begin:end])

        found = side_by_side(read, list(zip(numbers, cuts[:-1], cuts[1:], strict=True)), self._rows[0].remote_files)
        return list(chain.from_iterable(found))


def merged(
    lazy: npt.NDArray[np.bool_], read: Iterable[bytes | None], streams: Iterable[ByteStream]
) -> list[bytes | ByteStream | None]:
    """Merge streams where `lazy` is true with bytes elsewhere, each in order."""
    of = iter(read), iter(streams)
    return [next(of[is_lazy]) for is_lazy in lazy.tolist()]


_Columns: TypeAlias = Mapping[str, Sequence[bytes | ByteStream | None]]


def _columns(
    names: Sequence[str],
    owner: Int64Array,
    name: npt.NDArray[np.int32],
    values: Sequence[bytes | ByteStream | None],
    count: int,
) -> tuple[_Columns, list[tuple[str, ...]] | None]:
    """One list per part name, and the orders of parts, as in `RawBatch`.

    If a sample has a part twice, the last one counts. Owners, 0 to `count`, are ascending.
    """
    width = len(owner) // max(1, count)
    if width * count == len(owner):
        table = name.reshape(count, width)
        if (owner.reshape(count, width) == np.arange(count)[:, None]).all() and (table == table[:1]).all():
            # All samples have the same parts in the same order.
            first: list[int] = name[:width].tolist()
            return {names[number]: values[place::width] for place, number in enumerate(first)}, None
    columns: dict[int, list[bytes | ByteStream | None]] = {
        number: [None] * count for number in np.flatnonzero(np.bincount(name)).tolist()
    }
    for number, sample, value in zip(name.tolist(), owner.tolist(), values, strict=True):
        columns[number][sample] = value
    return {names[number]: column for number, column in columns.items()}, _orders(names, owner, name, count)


def _orders(names: Sequence[str], owner: Int64Array, name: npt.NDArray[np.int32], count: int) -> list[tuple[str, ...]]:
    """The part names of each sample, in order; samples with the same names share a tuple."""
    numbers = name.tobytes()
    ends: list[int] = (np.searchsorted(owner, np.arange(count + 1)) * name.itemsize).tolist()
    known: dict[bytes, tuple[str, ...]] = {}
    orders: list[tuple[str, ...]] = []
    for begin, end in pairwise(ends):
        own = numbers[begin:end]
        order = known.get(own)
        if order is None:
            parts: list[int] = np.frombuffer(own, name.dtype).tolist()
            order = known[own] = tuple(dict.fromkeys(names[number] for number in parts))
        orders.append(order)
    return orders
