"""What sources of prepared datasets have in common: everything but reading."""

from __future__ import annotations

import os
import threading
import weakref
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, KeyNotFoundError, StaleIndexError
from energon_grain.formats.columns import ColumnFolder, KeptColumns, Measured
from energon_grain.formats.data_folder import DataFolder, naming, open_folder
from energon_grain.formats.nv_meta import DatasetInfo
from energon_grain.kinds.prepared.file_stores import MediaFileStore
from energon_grain.prepare.columnar_build import open_columnar
from energon_grain.samplers.expression import Expression
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.subset import Selection
from energon_grain.sources.file_store import T_co, with_sources
from energon_grain.sources.index_pages import IndexPages
from energon_grain.sources.remote_runs import remote_run
from energon_grain.sources.source import (
    CLIP_BYTES,
    LazyFrom,
    PartFilter,
    SampleLocation,
    Selected,
    accepts,
    in_pieces,
    in_range,
    release_mapped,
)
from energon_grain.storage.cores import over_forks

_SHORT_RUN = 256
_NEVER = np.iinfo(np.int64).max


Int64Array = npt.NDArray[np.int64]


class SourceOptions(TypedDict, total=False):
    """Arguments of sources. `WebDatasetSource` says what they mean."""

    shards: Sequence[str] | None
    parts: PartFilter
    lazy: LazyFrom
    start: int
    stop: int | None
    excluded: Sequence[tuple[str, str]]
    where: Expression | None
    selection: Selection | None
    runs: Sequence[tuple[int, int]] | None
    index_cache_dir: str | os.PathLike[str] | None
    info: DatasetInfo | None


class IndexedSource(Selected):
    """The samples of some shards of a prepared dataset, in the order of the shards: everything but their bytes.

    Opening maps the columnar index and reads no shard, whatever their number. An *index* counts the samples served, a
    *number* those of the whole dataset; `_resolve` leads from one to the other. Thread-safe and picklable.

    Arguments and what is raised: see `WebDatasetSource`.
    """

    def __init__(self, path: str | os.PathLike[str] | DataFolder, **options: Unpack[SourceOptions]) -> None:
        self._folder = open_folder(path)
        info = options.pop("info", None)
        self._options = options
        cache_dir = options.get("index_cache_dir")
        self._index = index = open_columnar(
            self._folder, info=info, cache_dir=None if cache_dir is None else Path(cache_dir)
        )
        # (c,) number of each chosen shard; (c + 1,) samples of these before each; (c,) and what makes the number of a
        # sample in the dataset of its rank among those of the chosen shards.
        self._shard = self._chosen_shards(options.get("shards"))
        begin, end = index.shard_first[self._shard], index.shard_first[self._shard + 1]
        self._runs = np.array(options.get("runs") or (), np.int64).reshape(-1, 2)
        if len(self._runs):
            begin, end = begin + self._runs[:, 0], begin + self._runs[:, 1]
        self._first = np.zeros(len(self._shard) + 1, np.int64)
        np.cumsum(end - begin, out=self._first[1:])
        self._shift = begin - self._first[:-1]
        total, start, stop = int(self._first[-1]), options.get("start", 0), options.get("stop")
        excluded = options.get("excluded", ())
        ranks, self._unmatched = self._ranks(excluded) if excluded else ((), ())
        selection = options.pop("selection", None)  # which another process made of the others
        self._selection = selection or Selection(total=total, start=start, stop=stop, excluded=ranks)
        self._wanted = self._wanted_parts(options.get("parts"))
        self._lazy_from = self._lazy_parts(options.get("lazy"))
        self._pages = IndexPages(index.columns, samples=len(index), rows=index.rows)
        if excluded:
            self._pages.release()  # looking up their keys goes all over the index
        # Plain arrays: indexing a memmap costs microseconds of subclass bookkeeping each time.
        self._sample_start = np.asarray(index.sample_start)
        self._part_start = np.asarray(index.part_start)
        self._part_name = np.asarray(index.part_name)
        self._part_offset = np.asarray(index.part_offset)
        self._part_size = np.asarray(index.part_size)
        if selection is None:
            self._narrow(options.get("where"))

    def __reduce__(self) -> tuple[Any, ...]:
        options = self._options
        if options.get("where") is not None:
            options = {**options, "selection": self._selection}
        return _opened, (type(self), self._folder, options, self.content_id), self._state()

    def with_parts(self, parts: frozenset[str]) -> Self:
        """The same samples, of which these parts alone are read."""
        return type(self)(self._folder, **{**self._options, "parts": parts})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, samples={len(self)}, content_id={self.content_id!r})"

    def _chosen_shards(self, names: Sequence[str] | None) -> Int64Array:
        known = self._index.shards
        if names is None:
            return np.arange(len(known))
        numbers = {name: number for number, name in enumerate(known)}
        unknown = next((name for name in names if name not in numbers), None)
        if unknown is not None:
            raise ConfigError(
                f"{self.path}: has no shard {unknown!r}; it has {len(known)}, such as {next(iter(known), None)!r}"
            )
        return np.array([numbers[name] for name in names], np.int64)

    def _ranks(self, excluded: Sequence[tuple[str, str]]) -> tuple[list[int], tuple[str, ...]]:
        """Ranks, over the chosen shards, of the samples to leave out; and those that do not exist."""
        places: dict[str, list[int]] = {}
        for place, number in enumerate(self._shard.tolist()):
            places.setdefault(self._index.shards[number], []).append(place)
        ranks: list[int] = []
        unmatched: list[str] = []
        for shard, key in excluded:
            if shard in places:
                within = self._within(int(self._shard[places[shard][0]]), key)
                ranks += [int(self._first[place]) + sample for place in places[shard] for sample in within]
                if not within:
                    unmatched.append(f"{shard}/{key}")
        return ranks, tuple(unmatched)

    def _within(self, shard: int, key: str) -> list[int]:
        """Places in a shard of the samples with this key: none or one, but for datasets with repeated keys."""
        first, last = int(self._index.shard_first[shard]), int(self._index.shard_first[shard + 1])
        sample = self._index.find(key)
        if sample is None:
            return []
        if first <= sample < last:
            return [sample - first]
        return [place for place, other in enumerate(self._index.keys(np.arange(first, last))) if other == key]

    def _wanted_parts(self, parts: PartFilter) -> npt.NDArray[np.bool_] | None:
        wanted = [accepts(parts, name) for name in self._index.part_names]
        return None if all(wanted) else np.array(wanted)

    def _lazy_parts(self, lazy: LazyFrom) -> Int64Array | None:
        """(names,) from how many bytes on a part of a name is given as a stream; None: none is."""
        found = [None if lazy is None else lazy(name) for name in self._index.part_names]
        return None if found.count(None) == len(found) else np.array([_NEVER if n is None else n for n in found])

    def _is_lazy(self, name: npt.NDArray[np.int32], size: Int64Array) -> npt.NDArray[np.bool_] | None:
        """(n,) which parts are given as streams, by their names and sizes; None: none is."""
        if self._lazy_from is None:
            return None
        lazy = size >= self._lazy_from[name]
        return lazy if lazy.any() else None

    @property
    def path(self) -> str:
        return self._folder.location

    @property
    def content_id(self) -> str:
        """Digest of the index and of which of its samples are served: the same for tars and ArrayRecord files.

        Of a dataset that shards were appended to, the index when it first had all shards that samples are served of.
        """
        chosen, shard = self._selection, self._shard
        shards, content_id = self._served_state()
        if shards < len(self._index.shards):
            reached = self._reached()
            rest = shard[len(reached) :]
            shard = np.concatenate([reached, rest[rest < shards]])
        served = fold(shard.tobytes(), chosen.start, chosen.stop, chosen.excluded.tobytes(), *chosen.digest)
        if len(self._runs):
            served = fold(served, self._runs.tobytes())
        return f"{content_id[:16]}-{served:016x}"

    @property
    def index_id(self) -> str:
        """Content id of the index, whatever is served of it."""
        return self._index.content_id

    @property
    def all_shards(self) -> Sequence[str]:
        """Names of the dataset's shards, served or not."""
        return self._index.shards

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts that a read may return."""
        names = self._index.part_names
        return names if self._wanted is None else tuple(n for n, w in zip(names, self._wanted, strict=True) if w)

    @property
    def all_part_names(self) -> tuple[str, ...]:
        """Names of the parts that samples of the dataset have, read or not."""
        return self._index.part_names

    @property
    def unmatched_excludes(self) -> tuple[str, ...]:
        """Samples that were to be left out and are not there, as `<shard>/<key>`."""
        return self._unmatched

    @property
    def run_samples(self) -> int | None:
        """Of shards in an object store, samples in about 4 MiB; None: they lie on this machine, or are that large."""
        index = self._index
        return remote_run(int(index.shard_bytes.sum()), len(index)) if self._folder.is_remote else None

    def _resolve(self, indices: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(n,) number of each sample in the dataset, and of its shard.

        Raises IndexError if an index is out of range.
        """
        rank = self._selection.to_raw(in_range(indices, len(self), where=self.path))
        place = np.searchsorted(self._first, rank, side="right") - 1
        return rank + self._shift[place], self._shard[place]

    def numbers(self, indices: Int64Array) -> Int64Array:
        """(n,) number of each sample in the whole dataset, which columns go by. Raises IndexError as `_resolve`."""
        return self._resolve(indices)[0]

    def keys(self, indices: Int64Array) -> list[str]:
        """The key of each sample. Raises IndexError as `_resolve`."""
        return self._index.keys(self.numbers(indices))

    def _part_rows(self, samples: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(owner, row) of every wanted part: which of `samples` it belongs to, and its row in the part columns.

        Raises IndexFileError if the index is damaged there.
        """
        self._index.check(samples)
        first = self._part_start[samples]
        owner, rows = rows_of(first, self._part_start[samples + 1] - first)
        if self._wanted is not None:
            keep = self._wanted[self._part_name[rows]]
            owner, rows = owner[keep], rows[keep]
        return owner, rows

    def _described(self, rows: Int64Array) -> tuple[npt.NDArray[np.int32], Int64Array, Int64Array]:
        """Place in the names of all parts, offset and size of rows of the part columns."""
        return self._part_name[rows], self._part_offset[rows], self._part_size[rows]

    def _touch(self, samples: Int64Array) -> None:
        """Note that the index was read at these numbers; says which of its pages may go. After every read."""
        self._pages.touch(samples)

    def sizes(self, indices: Int64Array) -> Int64Array:
        """(n,) bytes that reading each sample takes: its extent in the shard when all parts are read, else theirs."""
        samples, shard = self._resolve(indices)
        if self._wanted is None and self._lazy_from is None:
            self._index.check(samples)
            row = samples + shard
            taken = self._sample_start[row + 1] - self._sample_start[row]
        else:
            owner, rows = self._part_rows(samples)
            sizes = self._part_size[rows]
            lazy = self._is_lazy(self._part_name[rows], sizes)
            if lazy is not None:
                sizes = np.where(lazy, np.minimum(sizes, CLIP_BYTES), sizes)
            taken = np.bincount(owner, weights=sizes, minlength=len(samples)).astype(np.int64)
        self._touch(samples)
        return taken

    @cached_property
    def kept(self) -> KeptColumns:
        with naming(self._folder):
            return KeptColumns(ColumnFolder.of(self._folder), Measured.of(self._index))

    def _reached(self) -> Int64Array:
        """Numbers of the shards up to the last one that samples are served of."""
        return self._shard[: int(np.searchsorted(self._first, self._selection.stop))]

    def _served_state(self) -> tuple[int, str]:
        """How many shards the dataset had when it first had all that samples are served of, and its content id."""
        return self._index.state_of(int(self._reached().max()) + 1)

    @property
    def columns(self) -> tuple[str, ...]:
        """See `Source.columns`: sizes of parts, read or not, and what was measured."""
        return tuple(self.kept)

    def column(self, name: str, indices: Int64Array | slice) -> npt.NDArray[Any]:
        if not isinstance(indices, slice):
            numbers = self.numbers(indices)
            found = self.kept.at(name, numbers)
            self._touch(numbers)
            return found
        runs = self._stretches(range(*indices.indices(len(self))))
        if not runs:
            return in_pieces(indices, len(self), partial(self.column, name))
        found = [self.kept.at(name, run) for run in runs]
        if len(found) == 1:
            return found[0]
        joined = np.concatenate(found)
        release_mapped(found[0])
        return joined

    def _stretches(self, indices: range) -> list[slice]:
        """The numbers of samples as slices, one for each stretch of shards; none: they are too scattered."""
        ranks = self._selection.raw_run(indices.start, indices.stop) if indices.step == 1 and indices else None
        if ranks is None:
            return []
        first, last = (np.searchsorted(self._first, [ranks.start, ranks.stop - 1], side="right") - 1).tolist()
        shift = self._shift[first : last + 1]
        cuts = np.flatnonzero(np.diff(shift)) + 1
        if len(cuts) > len(indices) // _SHORT_RUN:
            return []
        ends = np.concatenate([[ranks.start], self._first[first + cuts], [ranks.stop]])
        shifts = shift[np.concatenate([[0], cuts])]
        return [slice(*bounds) for bounds in np.stack([ends[:-1] + shifts, ends[1:] + shifts], 1).tolist()]

    def column_id(self, name: str) -> str:
        """See `Source.column_id`. Of a dataset that shards were appended to it is what `content_id` is of."""
        shards, content_id = self._served_state()
        if shards == len(self._index.shards):
            return self.kept.id(name)
        return self.kept.id_of_first(name, int(self._index.shard_first[shards]), content_id)

    def locate(self, index: int) -> SampleLocation:
        """Where sample `index` lies. Raises IndexError when it is out of range.

        In ArrayRecord files offsets are as if the records lay one behind the other; those of parts are 0.
        """
        samples, shard = self._resolve(np.array([index], np.int64))
        number = int(shard[0])
        row = int(samples[0]) + number
        _, rows = self._part_rows(samples)
        name, offset, size = (column.tolist() for column in self._described(rows))
        return SampleLocation(
            index=index,
            shard=self._index.shards[number],
            key=self._index.keys(samples)[0],
            start=int(self._sample_start[row]),
            stop=int(self._sample_start[row + 1]),
            parts={self._index.part_names[n]: (at, long) for n, at, long in zip(name, offset, size, strict=True)},
        )

    def place_of(self, index: int) -> str:
        """The shard and the key of sample `index`."""
        place = self.locate(index)
        return f"{place.shard}: {place.key}"


class IndexedFileStore(MediaFileStore[T_co]):
    """Single parts of the samples of a prepared dataset: what its kinds have in common.

    All shards are served: splits, subsets and excluded samples have no meaning here. Opening maps the columnar index
    and reads no shard. A copy in another process is the store that it has open already, if there is one.

    Args:
        path: The dataset's folder (the one that holds `.nv-meta`): a path, a URL, or what `open_folder` made of it.
        index_cache_dir: Where a missing columnar index is built when the dataset is not writable.

    Raises:
        DatasetNotFoundError: `path` is not a prepared dataset of this kind.
        StaleIndexError: The index does not fit the shards.
    """

    _kind: ClassVar[type[IndexedSource]]

    def __init__(
        self, path: str | os.PathLike[str] | DataFolder, *, index_cache_dir: str | os.PathLike[str] | None = None
    ) -> None:
        folder = open_folder(path)
        self._arguments = folder, None if index_cache_dir is None else os.fspath(index_cache_dir)
        self._source: Any = self._kind(folder, index_cache_dir=index_cache_dir)
        self._index = self._source._index
        self._parts = {name: number for number, name in enumerate(self._index.part_names)}
        with _lock:
            _open_stores[type(self), self._arguments] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (type(self), *self._arguments)

    def get_path(self) -> str:
        return self._source.path

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._find(key) is not None

    @property
    def _identity(self) -> Any:
        return self._arguments

    def _place(self, key: str) -> object:
        return self._found((key,))

    @abstractmethod
    def _find(self, key: str) -> tuple[int, int] | None:
        """Sample, and row of the part columns, of a key."""

    def _found(self, keys: Sequence[str]) -> tuple[Int64Array, Int64Array]:
        """The same for several. Raises KeyNotFoundError."""
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
        """Why there is nothing under a key, and what there is."""

    def _row(self, sample: int, part: str) -> int | None:
        """Row of a part of a sample; of several the last, as when samples are read."""
        first, last = self._index.part_start[sample : sample + 2].tolist()
        names: list[int] = self._index.part_name[first:last].tolist()
        wanted = self._parts.get(part)
        return next((row for row in range(last - 1, first - 1, -1) if names[row - first] == wanted), None)

    def _with_sources(self, keys: Sequence[str], samples: Int64Array, values: Iterable[Any]) -> list[Any]:
        shards = map(self._index.shards.__getitem__, self._index.shard_of(samples).tolist())
        return with_sources(self.get_path(), keys, shards, values)

    def close(self) -> None:
        self._source.close()


_open_stores: weakref.WeakValueDictionary[Any, IndexedFileStore[Any]] = weakref.WeakValueDictionary()
_lock = over_forks(threading.Lock())


def _reopened(kind: type[IndexedFileStore[Any]], folder: DataFolder, cache_dir: str | None) -> IndexedFileStore[Any]:
    """The store of this class that this process has open, else a new one."""
    with _lock:
        opened = _open_stores.get((kind, (folder, cache_dir)))
    return kind(folder, index_cache_dir=cache_dir) if opened is None else opened


def rows_of(first: Int64Array, count: Int64Array) -> tuple[Int64Array, Int64Array]:
    """(owner, row) of `count[i]` rows from `first[i]` on, for every i: i, and the row."""
    owner = np.repeat(np.arange(len(first)), count)
    ends = np.cumsum(count)
    rows = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(first - (ends - count), count)
    return owner, rows


def _opened(kind: type[IndexedSource], folder: DataFolder, options: SourceOptions, content_id: str) -> IndexedSource:
    """The copy of a source, in another process: of the same samples, or an error."""
    source = kind(folder, **options)
    if source.content_id != content_id:
        raise StaleIndexError(
            f"{folder.location}: was prepared anew since this process's parent opened it, with other samples; begin "
            "anew, and prepare no dataset that is being read"
        )
    return source
