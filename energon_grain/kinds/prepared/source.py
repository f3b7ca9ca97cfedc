# SPDX-License-Identifier: Apache-2.0
"""Shared code of sources of prepared datasets: everything except reading bytes."""

from __future__ import annotations

import os
import threading
import weakref
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict, Unpack, cast

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, KeyNotFoundError, StaleIndexError
from energon_grain.formats.columns import ColumnFolder, KeptColumns, Measured
from energon_grain.formats.data_folder import DataFolder, naming, open_folder
from energon_grain.formats.index_pages import IndexPages
from energon_grain.formats.nv_meta import DatasetInfo
from energon_grain.kinds.prepared.file_stores import MediaFileStore
from energon_grain.prepare.columnar_build import open_columnar
from energon_grain.samplers.expression import Expression
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.subset import Selection
from energon_grain.sources.file_store import T_co, with_sources
from energon_grain.sources.remote_runs import remote_run
from energon_grain.sources.rows import Rows, SelectedSource
from energon_grain.sources.source import CLIP_BYTES, LazyFrom, PartFilter, SampleLocation, accepts
from energon_grain.storage.cores import reset_after_fork

_NEVER = np.iinfo(np.int64).max


Int64Array = npt.NDArray[np.int64]


class RowOptions(TypedDict, total=False):
    """Options of rows and sources. Documented in `WebDatasetSource`."""

    parts: PartFilter
    lazy: LazyFrom
    index_cache_dir: str | os.PathLike[str] | None
    info: DatasetInfo | None


class SourceOptions(RowOptions, total=False):
    """Options of sources. Documented in `WebDatasetSource`."""

    shards: Sequence[str] | None
    start: int
    stop: int | None
    excluded: Sequence[tuple[str, str]]
    where: Expression | None
    runs: Sequence[tuple[int, int]] | None


class IndexedRows(Rows):
    """The samples of all shards of a prepared dataset, without access to their bytes.

    Opening maps the columnar index and reads no shard, for any number of shards.
    """

    own_columns = ()

    def __init__(self, path: str | os.PathLike[str] | DataFolder, **options: Unpack[RowOptions]) -> None:
        self._folder = open_folder(path)
        self.path = self._folder.location
        info = options.pop("info", None)
        self._options = options
        cache_dir = options.get("index_cache_dir")
        self._index = index = open_columnar(
            self._folder, info=info, cache_dir=None if cache_dir is None else Path(cache_dir)
        )
        self._wanted = self._wanted_parts(options.get("parts"))
        self._lazy_from = self._lazy_parts(options.get("lazy"))
        self._pages = IndexPages(index.columns, samples=len(index), rows=index.rows)
        # Plain arrays: indexing a memmap costs microseconds of subclass overhead each time.
        self._shard_first = np.asarray(index.shard_first)
        self._sample_start = np.asarray(index.sample_start)
        self._part_start = np.asarray(index.part_start)
        self._part_name = np.asarray(index.part_name)
        self._part_offset = np.asarray(index.part_offset)
        self._part_size = np.asarray(index.part_size)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._options), (self._folder,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, rows={len(self._index)})"

    def with_parts(self, parts: frozenset[str]) -> Self:
        """The same rows with only these parts read."""
        return type(self)(self._folder, **{**self._options, "parts": parts})

    def _wanted_parts(self, parts: PartFilter) -> npt.NDArray[np.bool_] | None:
        wanted = [accepts(parts, name) for name in self._index.part_names]
        return None if all(wanted) else np.array(wanted)

    def _lazy_parts(self, lazy: LazyFrom) -> Int64Array | None:
        """(names,) the size in bytes from which parts of each name become streams; None: none do."""
        found = [None if lazy is None else lazy(name) for name in self._index.part_names]
        return None if found.count(None) == len(found) else np.array([_NEVER if n is None else n for n in found])

    def _is_lazy(self, name: npt.NDArray[np.int32], size: Int64Array) -> npt.NDArray[np.bool_] | None:
        """(n,) which parts become streams, by their names and sizes; None: none do."""
        if self._lazy_from is None:
            return None
        lazy = size >= self._lazy_from[name]
        return lazy if lazy.any() else None

    @property
    def digest(self) -> str:
        return self._index.content_id

    @property
    def shard_counts(self) -> Mapping[str, int]:
        return dict(zip(self._index.shards, np.diff(self._shard_first).tolist(), strict=True))

    @property
    def data_files(self) -> Mapping[str, str]:
        names = self._index.shards
        return dict(zip(names, self._folder.shards(names), strict=True))

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts that a read may return."""
        names = self._index.part_names
        return names if self._wanted is None else tuple(n for n, w in zip(names, self._wanted, strict=True) if w)

    @property
    def all_part_names(self) -> tuple[str, ...]:
        """Names of all parts of the dataset, including those not read."""
        return self._index.part_names

    @property
    def run_rows(self) -> int | None:
        """For shards in an object store, samples in about 4 MiB; None for local shards or larger samples."""
        index = self._index
        return remote_run(int(index.shard_bytes.sum()), len(index)) if self._folder.is_remote else None

    def keys(self, numbers: Int64Array) -> list[str]:
        return self._index.keys(numbers)

    def find(self, key: str) -> list[int]:
        """See `Rows.find`. Also finds `shard/key`, as `which` prints it."""
        found = self._index.find(key)
        if found is not None:
            return [found]
        for shard in (name for name in self._index.shards if key.startswith(f"{name}/")):
            found = self._index.find(key.removeprefix(f"{shard}/"))
            if found is not None and self.shards(np.array([found]))[0] == shard:
                return [found]
        return []

    def _shard_of(self, numbers: Int64Array) -> Int64Array:
        """(n,) number of the shard of each sample."""
        return np.searchsorted(self._shard_first, numbers, side="right") - 1

    def _part_rows(self, samples: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(owner, row) of every wanted part: which of `samples` it belongs to, and its row in the part columns.

        Raises IndexFileError if that range of the index is damaged.
        """
        self._index.check(samples)
        first = self._part_start[samples]
        owner, rows = rows_of(first, self._part_start[samples + 1] - first)
        if self._wanted is not None:
            keep = self._wanted[self._part_name[rows]]
            owner, rows = owner[keep], rows[keep]
        return owner, rows

    def _described(self, rows: Int64Array) -> tuple[npt.NDArray[np.int32], Int64Array, Int64Array]:
        """Part name numbers, offsets and sizes of rows of the part columns."""
        return self._part_name[rows], self._part_offset[rows], self._part_size[rows]

    def _touch(self, samples: Int64Array) -> None:
        """Record that the index was read at these numbers, so its pages can be released. Called after every read."""
        self._pages.touch(samples)

    def sizes(self, numbers: Int64Array) -> Int64Array:
        """(n,) bytes of each sample: its extent in the shard if all parts are read, else the sum of its parts."""
        if self._wanted is None and self._lazy_from is None:
            self._index.check(numbers)
            row = numbers + self._shard_of(numbers)
            taken = self._sample_start[row + 1] - self._sample_start[row]
        else:
            owner, rows = self._part_rows(numbers)
            sizes = self._part_size[rows]
            lazy = self._is_lazy(self._part_name[rows], sizes)
            if lazy is not None:
                sizes = np.where(lazy, np.minimum(sizes, CLIP_BYTES), sizes)
            taken = np.bincount(owner, weights=sizes, minlength=len(numbers)).astype(np.int64)
        self._touch(numbers)
        return taken

    @cached_property
    def kept(self) -> KeptColumns:
        with naming(self._folder):
            return KeptColumns(ColumnFolder.of(self._folder), Measured.of(self._index))

    def column(self, name: str, numbers: Int64Array | slice) -> npt.NDArray[Any]:
        found = super().column(name, numbers)
        if not isinstance(numbers, slice):
            self._touch(numbers)
        return found

    def locate(self, number: int) -> SampleLocation:
        """See `Rows.locate`.

        In ArrayRecord files offsets count records as contiguous; offsets of parts are 0.
        """
        at = np.array([number])
        shard = int(self._shard_of(at)[0])
        row = number + shard
        _, rows = self._part_rows(at)
        name, offset, size = (column.tolist() for column in self._described(rows))
        return SampleLocation(
            index=number,
            shard=self._index.shards[shard],
            key=self._index.keys(at)[0],
            start=int(self._sample_start[row]),
            stop=int(self._sample_start[row + 1]),
            parts={self._index.part_names[n]: (at, long) for n, at, long in zip(name, offset, size, strict=True)},
        )


class IndexedSource(SelectedSource):
    """The samples of some shards of a prepared dataset, in the order of the shards.

    An *index* counts the samples served, a *number* those of the whole dataset. Thread-safe and picklable.

    Arguments and errors: see `WebDatasetSource`.
    """

    _kind: ClassVar[type[IndexedRows]]
    _rows: Any  # of `_kind`

    def __init__(self, path: str | os.PathLike[str] | DataFolder, **options: Unpack[SourceOptions]) -> None:
        names, runs, excluded = options.pop("shards", None), options.pop("runs", None), options.pop("excluded", ())
        start, stop, where = options.pop("start", 0), options.pop("stop", None), options.pop("where", None)
        self._rows = self._kind(path, **cast("RowOptions", options))
        self._shard = self._chosen_shards(names)  # (c,) number of each chosen shard
        first = self._rows._shard_first
        begin, end = first[self._shard], first[self._shard + 1]
        self._runs = np.array(runs or (), np.int64).reshape(-1, 2)
        if len(self._runs):
            begin, end = begin + self._runs[:, 0], begin + self._runs[:, 1]
        ranks, self._unmatched = self._ranks(excluded, np.cumsum(end - begin) - (end - begin)) if excluded else ((), ())
        self._selection = Selection.of_stretches(begin, end, start=start, stop=stop, excluded=ranks)
        # (c,) one past the last rank of each chosen shard
        self._ends = np.cumsum(end - begin)
        self._narrow(where)

    def __getstate__(self) -> dict[str, Any]:
        own = {name: self.__dict__[name] for name in ("_shard", "_runs", "_ends", "_unmatched")}
        return {**super().__getstate__(), **own, "_content_id": self.content_id}

    def __setstate__(self, state: dict[str, Any]) -> None:
        content_id = state.pop("_content_id")
        super().__setstate__(state)
        if self.content_id != content_id:
            raise StaleIndexError(
                f"{self.path}: was prepared again with other samples after the parent process opened it; restart, and "
                "do not prepare a dataset during a run"
            )

    def with_parts(self, parts: frozenset[str]) -> Self:
        """The same samples with only these parts read."""
        found = copy(self)
        found._rows = self._rows.with_parts(parts)
        return found

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, samples={len(self)}, content_id={self.content_id!r})"

    def _chosen_shards(self, names: Sequence[str] | None) -> Int64Array:
        known = self._rows._index.shards
        if names is None:
            return np.arange(len(known))
        numbers = {name: number for number, name in enumerate(known)}
        unknown = next((name for name in names if name not in numbers), None)
        if unknown is not None:
            raise ConfigError(
                f"{self.path}: has no shard {unknown!r}; it has {len(known)}, such as {next(iter(known), None)!r}"
            )
        return np.array([numbers[name] for name in names], np.int64)

    def _ranks(self, excluded: Sequence[tuple[str, str]], first: Int64Array) -> tuple[list[int], tuple[str, ...]]:
        """Ranks of the excluded samples among the selected shards; and excludes that match no sample."""
        places: dict[str, list[int]] = {}
        for place, number in enumerate(self._shard.tolist()):
            places.setdefault(self._rows._index.shards[number], []).append(place)
        ranks: list[int] = []
        unmatched: list[str] = []
        for shard, key in excluded:
            if shard in places:
                within = self._within(int(self._shard[places[shard][0]]), key)
                ranks += [int(first[place]) + sample for place in places[shard] for sample in within]
                if not within:
                    unmatched.append(f"{shard}/{key}")
        self._rows._pages.release()  # key lookups touch the whole index
        return ranks, tuple(unmatched)

    def _within(self, shard: int, key: str) -> list[int]:
        """Positions in a shard of the samples with this key: zero or one, unless keys repeat."""
        first, last = int(self._rows._index.shard_first[shard]), int(self._rows._index.shard_first[shard + 1])
        sample = self._rows._index.find(key)
        if sample is None:
            return []
        if first <= sample < last:
            return [sample - first]
        return [place for place, other in enumerate(self._rows._index.keys(np.arange(first, last))) if other == key]

    @property
    def content_id(self) -> str:
        """Digest of the index and of the selection: the same for tars and ArrayRecord files.

        After shards were appended to a dataset, the earliest index with all shards of the selection counts.
        """
        chosen, shard = self._selection, self._shard
        shards, content_id = self._served_state()
        if shards < len(self._rows._index.shards):
            reached = self._reached()
            rest = shard[len(reached) :]
            shard = np.concatenate([reached, rest[rest < shards]])
        served = fold(shard.tobytes(), chosen.start, chosen.stop, chosen.excluded.tobytes(), *chosen.digest)
        if len(self._runs):
            served = fold(served, self._runs.tobytes())
        return f"{content_id[:16]}-{served:016x}"

    @property
    def index_id(self) -> str:
        """Content id of the index, independent of the selection."""
        return self._rows._index.content_id

    @property
    def all_shards(self) -> Sequence[str]:
        """Names of all shards of the dataset."""
        return self._rows._index.shards

    @property
    def unmatched_excludes(self) -> tuple[str, ...]:
        """Excludes that match no sample, as `<shard>/<key>`."""
        return self._unmatched

    def _reached(self) -> Int64Array:
        """Numbers of the shards up to the last one with served samples."""
        return self._shard[: int(np.searchsorted(self._ends, self._selection.stop)) + 1]

    def _served_state(self) -> tuple[int, str]:
        """Number of shards and content id of the dataset when it first had all shards of the selection."""
        return self._rows._index.state_of(int(self._reached().max()) + 1)

    def column_id(self, name: str) -> str:
        """See `Source.column_id`. After shards were appended, the state of `content_id` counts."""
        shards, content_id = self._served_state()
        if shards == len(self._rows._index.shards):
            return self._rows.kept.id(name)
        return self._rows.kept.id_of_first(name, int(self._rows._index.shard_first[shards]), content_id)


class IndexedFileStore(MediaFileStore[T_co]):
    """Single parts of the samples of a prepared dataset: shared code of its kinds.

    All shards are served, independent of splits, subsets and excludes. Opening maps the columnar index and reads no
    shard. Unpickling in another process returns the store that the process already has open, if any.

    Args:
        path: The dataset's folder (the one with `.nv-meta`): a path, a URL, or the result of `open_folder`.
        index_cache_dir: Folder for a missing columnar index if the dataset is not writable.

    Raises:
        DatasetNotFoundError: `path` is not a prepared dataset of this kind.
        StaleIndexError: The index does not match the shards.
    """

    _kind: ClassVar[type[IndexedRows]]

    def __init__(
        self, path: str | os.PathLike[str] | DataFolder, *, index_cache_dir: str | os.PathLike[str] | None = None
    ) -> None:
        folder = open_folder(path)
        self._arguments = folder, None if index_cache_dir is None else os.fspath(index_cache_dir)
        self._rows: Any = self._kind(folder, index_cache_dir=index_cache_dir)
        self._index = self._rows._index
        self._parts = {name: number for number, name in enumerate(self._index.part_names)}
        with _lock:
            _open_stores[type(self), self._arguments] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (type(self), *self._arguments)

    def get_path(self) -> str:
        return self._rows.path

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._find(key) is not None

    @property
    def _identity(self) -> Any:
        return self._arguments

    def _place(self, key: str) -> object:
        return self._found((key,))

    @abstractmethod
    def _find(self, key: str) -> tuple[int, int] | None:
        """Sample of a key, and its row in the part columns."""

    def _found(self, keys: Sequence[str]) -> tuple[Int64Array, Int64Array]:
        """`_find` for several keys. Raises KeyNotFoundError."""
        found: list[tuple[int, int]] = []
        for key in keys:
            place = self._find(key)
            if place is None:
                raise KeyNotFoundError(f"{self.get_path()}: {self._why_not(key)}")
            found.append(place)
        sample, row = np.array(found, np.int64).reshape(len(found), 2).T
        return sample, row

    @abstractmethod
    def _why_not(self, key: str) -> str:
        """Message for a key without a part, with the existing ones."""

    def _row(self, sample: int, part: str) -> int | None:
        """Row of a part of a sample; the last one if there are several, as in reads of samples."""
        first, last = self._index.part_start[sample : sample + 2].tolist()
        names: list[int] = self._index.part_name[first:last].tolist()
        wanted = self._parts.get(part)
        return next((row for row in range(last - 1, first - 1, -1) if names[row - first] == wanted), None)

    def _with_sources(self, keys: Sequence[str], samples: Int64Array, values: Iterable[Any]) -> list[Any]:
        shards = map(self._index.shards.__getitem__, self._index.shard_of(samples).tolist())
        return with_sources(self.get_path(), keys, shards, values)

    def close(self) -> None:
        self._rows.close()


_open_stores: weakref.WeakValueDictionary[Any, IndexedFileStore[Any]] = weakref.WeakValueDictionary()
_lock = reset_after_fork(threading.Lock())


def _reopened(kind: type[IndexedFileStore[Any]], folder: DataFolder, cache_dir: str | None) -> IndexedFileStore[Any]:
    """The open store of this class in this process, or a new one."""
    with _lock:
        opened = _open_stores.get((kind, (folder, cache_dir)))
    return kind(folder, index_cache_dir=cache_dir) if opened is None else opened


def rows_of(first: Int64Array, count: Int64Array) -> tuple[Int64Array, Int64Array]:
    """(owner, row) of `count[i]` rows from `first[i]`, for every i: i, and the row."""
    owner = np.repeat(np.arange(len(first)), count)
    ends = np.cumsum(count)
    rows = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(first - (ends - count), count)
    return owner, rows
