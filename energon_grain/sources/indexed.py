"""What sources of prepared datasets have in common: everything but reading."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, EmptyDatasetError, StaleIndexError
from energon_grain.formats.columnar import ColumnarIndex, open_columnar
from energon_grain.formats.columnar_header import release_pages
from energon_grain.formats.data_folder import DataFolder, open_folder
from energon_grain.formats.nv_meta import DatasetInfo
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.subset import Selection
from energon_grain.sources.source import PartFilter, SampleLocation, accepts, in_range

LEFT_ALONE_BYTES = 16 << 20
RESIDENT_BYTES = 8 << 20
_FAULT_BYTES = 64 << 10
_ROW_BYTES = 8


class IndexPages:
    """Keeps account of what reads have touched, in windows of as many samples as one page fault covers.

    Args:
        columns: Of the index.
        samples: How many it has.
        rows: Of the longest column.
        left_alone_bytes: Indices up to this size stay resident.
        resident_bytes: Pages are given back after a read that leaves more than about this many bytes touched.
    """

    def __init__(
        self,
        columns: Sequence[npt.NDArray[Any]],
        *,
        samples: int,
        rows: int,
        left_alone_bytes: int = LEFT_ALONE_BYTES,
        resident_bytes: int = RESIDENT_BYTES,
    ) -> None:
        self._columns = columns
        total_bytes = sum(column.nbytes for column in self._columns)
        window = max(1, _FAULT_BYTES // _ROW_BYTES * samples // max(rows, 1))
        self._shift = window.bit_length() - 1
        self._touched = np.zeros((samples >> self._shift) + 1, np.bool_)
        self._limit: int | None = None
        if total_bytes > left_alone_bytes:
            self._limit = resident_bytes * len(self._touched) // total_bytes

    def touch(self, samples: npt.NDArray[np.int64]) -> None:
        """Note that the index was read at these samples, and give pages back if that makes too many."""
        if self._limit is None:
            return
        self._touched[samples >> self._shift] = True
        if np.count_nonzero(self._touched) > self._limit:
            self.release()

    def release(self) -> None:
        """Give all pages back."""
        # Other threads may be reading: to them a page that went costs a page fault, nothing else.
        self._touched[:] = False
        for column in self._columns:
            release_pages(column)


Int64Array = npt.NDArray[np.int64]


def part_rows(first: Int64Array, count: Int64Array) -> tuple[Int64Array, Int64Array]:
    """(owner, row) of `count[i]` rows from `first[i]` on, for every i: i, and the row."""
    owner = np.repeat(np.arange(len(first)), count)
    ends = np.cumsum(count)
    rows = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(first - (ends - count), count)
    return owner, rows


class IndexedSamples:
    """The samples of some shards, in the order of the shards: everything about them but their bytes.

    An *index* counts the samples served, a *number* those of the whole dataset; `resolve` leads from one to the other.

    Args:
        index: Of the whole dataset.
        where: The dataset, as messages name it.
        shards: Names of the shards to serve, in order; default: all of them, in the order of the index.
        parts: Which parts to read: names, or a predicate on the name; default: all.
        start: First sample to serve, counted over `shards` before `excluded` are taken out.
        stop: One past the last sample, counted likewise; default: the end.
        excluded: (shard, key) of samples to leave out. The length and the indices count what remains.

    Attributes:
        index: As given.
        wanted: (part names,) which parts are read; None: all.

    Raises:
        ConfigError: A shard is unknown, or the range does not fit.
        EmptyDatasetError: No sample is left.
    """

    def __init__(
        self,
        index: ColumnarIndex,
        *,
        where: str,
        shards: Sequence[str] | None = None,
        parts: PartFilter = None,
        start: int = 0,
        stop: int | None = None,
        excluded: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.index = index
        self._where = where
        numbers = {name: number for number, name in enumerate(index.shards)}
        self._shard_order = self._chosen_shards(shards, numbers)
        counts = index.shard_first[self._shard_order + 1] - index.shard_first[self._shard_order]
        self._first = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=self._first[1:])
        total = int(self._first[-1])
        self._selection = Selection(
            total=total, start=start, stop=total if stop is None else stop, excluded=self._raw_ranks(excluded, numbers)
        )
        if len(self._selection) == 0:
            raise EmptyDatasetError(
                f"{where}: nothing is left of {total} samples in {len(self._shard_order)} shards after taking the "
                f"range [{start}, {stop}) and {len(excluded)} excludes; widen the subset or the split"
            )
        self.wanted = self._wanted_parts(parts)
        self._pages = IndexPages(index.columns, samples=len(index), rows=index.rows)
        self._pages.release()  # looking up excluded keys goes all over the index
        # Plain arrays: indexing a memmap costs microseconds of subclass bookkeeping each time.
        self._sample_start = np.asarray(index.sample_start)
        self._part_start = np.asarray(index.part_start)
        self._part_name = np.asarray(index.part_name)
        self._part_offset = np.asarray(index.part_offset)
        self._part_size = np.asarray(index.part_size)

    def _raw_ranks(self, excluded: Sequence[tuple[str, str]], numbers: dict[str, int]) -> Int64Array:
        """Ranks, over the chosen shards, of the samples to leave out. Samples that do not exist are noted."""
        ranks: list[int] = []
        unmatched: list[str] = []
        for shard, key in excluded:
            number = numbers.get(shard)
            places = () if number is None else np.flatnonzero(self._shard_order == number).tolist()
            if number is not None and places:
                within = self._within(number, key)
                ranks += [int(self._first[place]) + sample for place in places for sample in within]
                if not within:
                    unmatched.append(f"{shard}/{key}")
        self.unmatched_excludes = tuple(unmatched)
        return np.asarray(ranks, np.int64)

    def _within(self, shard: int, key: str) -> list[int]:
        """Places in a shard of the samples with this key: none or one, but for datasets with repeated keys."""
        first, last = int(self.index.shard_first[shard]), int(self.index.shard_first[shard + 1])
        sample = self.index.find(key)
        if sample is None:
            return []
        if first <= sample < last:
            return [sample - first]
        return [place for place, other in enumerate(self.index.keys(np.arange(first, last))) if other == key]

    def _chosen_shards(self, shards: Sequence[str] | None, numbers: dict[str, int]) -> Int64Array:
        names = self.index.shards if shards is None else shards
        unknown = [name for name in names if name not in numbers]
        if unknown:
            raise ConfigError(
                f"{self._where}: has no shard {unknown[0]!r}; it has {len(numbers)}, such as "
                f"{next(iter(numbers), None)!r}"
            )
        return np.array([numbers[name] for name in names], np.int64)

    def _wanted_parts(self, parts: PartFilter) -> npt.NDArray[np.bool_] | None:
        names = self.index.part_names
        if parts is None:
            return None
        wanted = np.fromiter((accepts(parts, name) for name in names), np.bool_, len(names))
        return None if wanted.all() else wanted

    @cached_property
    def content_id(self) -> str:
        """Digest of the index and of which of its samples are served."""
        selection = self._selection
        return "{}-{:016x}".format(
            self.index.content_id[:16],
            fold(
                self._shard_order.tobytes(), selection.start, selection.stop, np.asarray(selection.excluded).tobytes()
            ),
        )

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts that a read may return."""
        names = self.index.part_names
        return names if self.wanted is None else tuple(n for n, w in zip(names, self.wanted, strict=True) if w)

    def __len__(self) -> int:
        return len(self._selection)

    def resolve(self, indices: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(n,) number of each sample in the dataset, and of its shard.

        Raises:
            IndexError: An index is out of range.
        """
        raw = self._selection.to_raw(in_range(indices, len(self), where=self._where))
        position = np.searchsorted(self._first, raw, side="right") - 1
        shard = self._shard_order[position]
        return raw - self._first[position] + self.index.shard_first[shard], shard

    def part_bounds(self, samples: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(n,) first row in the part columns of each sample, numbered as in the dataset, and how many it has.

        Raises:
            IndexFileError: The index is damaged there.
        """
        self.index.check(samples)
        first = self._part_start[samples]
        return first, self._part_start[samples + 1] - first

    def part_rows(self, samples: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(owner, row) of every wanted part: which of `samples` it belongs to, and its row in the part columns.

        Args:
            samples: Numbers in the dataset.

        Raises:
            IndexFileError: The index is damaged there.
        """
        owner, rows = part_rows(*self.part_bounds(samples))
        if self.wanted is not None:
            keep = self.wanted[self._part_name[rows]]
            owner, rows = owner[keep], rows[keep]
        return owner, rows

    def described(
        self, rows: Int64Array
    ) -> tuple[npt.NDArray[np.int32], Int64Array, Int64Array, npt.NDArray[np.bool_]]:
        """Name, offset, size of rows of the part columns, and whether each is wanted."""
        name = self._part_name[rows]
        wanted = np.ones(len(rows), np.bool_) if self.wanted is None else self.wanted[name]
        return name, self._part_offset[rows], self._part_size[rows], wanted

    def part_name(self, rows: Int64Array) -> npt.NDArray[np.int32]:
        """Place in `index.part_names` of each row of the part columns."""
        return self._part_name[rows]

    def part_offset(self, rows: Int64Array) -> Int64Array:
        """First payload byte, in its shard, of each row of the part columns."""
        return self._part_offset[rows]

    def part_size(self, rows: Int64Array) -> Int64Array:
        """Payload bytes of each row of the part columns."""
        return self._part_size[rows]

    def touch(self, samples: Int64Array) -> None:
        """Note that the index was read at these numbers; says which of its pages may go. After every read."""
        self._pages.touch(samples)

    def sizes(self, indices: Int64Array) -> Int64Array:
        """(n,) bytes of each sample: its extent in the shard when all parts are read, else its wanted payloads."""
        samples, shard = self.resolve(indices)
        if self.wanted is None:
            self.index.check(samples)
            row = samples + shard
            taken = self._sample_start[row + 1] - self._sample_start[row]
        else:
            owner, rows = self.part_rows(samples)
            taken = np.bincount(owner, weights=self._part_size[rows], minlength=len(samples)).astype(np.int64)
        self._pages.touch(samples)
        return taken

    def locate(self, index: int) -> SampleLocation:
        """Where sample `index` lies. Raises IndexError when it is out of range."""
        samples, shard = self.resolve(np.array([index], np.int64))
        sample, number = int(samples[0]), int(shard[0])
        _, rows = self.part_rows(samples)
        names = self.index.part_names
        row = sample + number
        return SampleLocation(
            index=index,
            shard=self.index.shards[number],
            key=self.index.keys(samples)[0],
            start=int(self._sample_start[row]),
            stop=int(self._sample_start[row + 1]),
            parts={
                names[int(self._part_name[r])]: (int(self._part_offset[r]), int(self._part_size[r]))
                for r in rows.tolist()
            },
        )

    def place_of(self, index: int) -> str:
        """The shard and the key of sample `index`."""
        place = self.locate(index)
        return f"{place.shard}: {place.key}"


class SourceOptions(TypedDict, total=False):
    """Arguments of sources. `WebDatasetSource` says what they mean."""

    shards: Sequence[str] | None
    parts: PartFilter
    start: int
    stop: int | None
    excluded: Sequence[tuple[str, str]]
    index_cache_dir: str | os.PathLike[str] | None
    info: DatasetInfo | None


class IndexedSource:
    """The samples of some shards of a prepared dataset, in the order of the shards. Thread-safe and picklable.

    Opening maps the columnar index and reads no shard, whatever their number.

    Arguments and what is raised: see `WebDatasetSource`.
    """

    def __init__(self, path: str | os.PathLike[str] | DataFolder, **options: Unpack[SourceOptions]) -> None:
        self._folder = open_folder(path)
        info = options.pop("info", None)
        self._options = options
        selected = dict(options)
        cache_dir: Any = selected.pop("index_cache_dir", None)
        self._index = open_columnar(self._folder, info=info, cache_dir=None if cache_dir is None else Path(cache_dir))
        self._samples = IndexedSamples(self._index, where=self._folder.location, **cast("Any", selected))

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (type(self), self._folder, self._options, self.content_id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, samples={len(self)}, content_id={self.content_id!r})"

    @property
    def path(self) -> str:
        """The dataset's folder, path or URL."""
        return self._folder.location

    @property
    def content_id(self) -> str:
        """Digest of the index and of which of its samples are served: the same for tars and ArrayRecord files."""
        return self._samples.content_id

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts that a read may return."""
        return self._samples.part_names

    @property
    def all_part_names(self) -> tuple[str, ...]:
        """Names of the parts that samples of the dataset have, read or not."""
        return self._index.part_names

    @property
    def unmatched_excludes(self) -> tuple[str, ...]:
        """Samples that were to be left out and are not there, as `<shard>/<key>`."""
        return self._samples.unmatched_excludes

    def __len__(self) -> int:
        return len(self._samples)

    def sizes(self, indices: Int64Array) -> Int64Array:
        """(n,) bytes that reading each sample takes: its extent in the shard when all parts are read, else theirs."""
        return self._samples.sizes(indices)

    def locate(self, index: int) -> SampleLocation:
        """Where sample `index` lies. Raises IndexError when it is out of range.

        In ArrayRecord files offsets are as if the records lay one behind the other; those of parts are 0.
        """
        return self._samples.locate(index)

    def place_of(self, index: int) -> str:
        """The shard and the key of sample `index`."""
        return self._samples.place_of(index)


def _opened(kind: type[IndexedSource], folder: DataFolder, options: SourceOptions, content_id: str) -> IndexedSource:
    """The copy of a source, in another process: of the same samples, or an error."""
    source = kind(folder, **options)
    if source.content_id != content_id:
        raise StaleIndexError(
            f"{folder.location}: was prepared anew since this process's parent opened it, with other samples; begin "
            "anew, and prepare no dataset that is being read"
        )
    return source
