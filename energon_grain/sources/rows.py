# SPDX-License-Identifier: Apache-2.0
"""`Rows`, which a kind of data implements, and `SelectedSource`, which implements split parts, subsets and `where`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from energon_grain.errors import EmptyDatasetError, KeyNotFoundError
from energon_grain.samplers.expression import Expression
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.subset import Selection
from energon_grain.sources.remote_runs import RemoteExtents
from energon_grain.sources.source import (
    Int64Array,
    PartValue,
    RawBatch,
    SampleLocation,
    in_pieces,
    in_range,
    release_mapped,
)
from energon_grain.storage.cores import usable_cores
from energon_grain.storage.location import join, name_of
from energon_grain.storage.remote import RemoteFiles

_EVALUATED_AT_ONCE = 1 << 18
_THREADS = 8


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Blocks:
    """Groups of rows that can only be read together.

    Attributes:
        first: (blocks + 1,) the first row of each block, and the number of rows.
        at_least: Default minimum of rows per block: smaller neighbors are merged; None: blocks are not merged.
        are_read_whole: Whether a read takes whole blocks; else all rows cost the same to read.
        warn: Called with the first and last row served, and the number of blocks in use at a time (None: all). Returns
            a warning, or None.
    """

    first: Int64Array
    at_least: int | None
    are_read_whole: bool
    warn: Callable[[int, int, int | None], str | None]


class Kept(Protocol):
    """Columns stored beside the data: one number for each of all rows, see `formats.columns.KeptColumns`."""

    def __iter__(self) -> Iterator[str]: ...

    def __contains__(self, name: object, /) -> bool: ...

    def at(self, name: str, samples: Int64Array | slice, /) -> npt.NDArray[Any]:
        """(n,) values of a column for row numbers, or for a slice of them with explicit start and stop."""
        ...

    def id(self, name: str, /) -> str:
        """Digest that changes with the numbers of a column."""
        ...

    def no_column(self, name: str, /) -> KeyNotFoundError:
        """The error for a name that no column has."""
        ...

    def used(self) -> dict[str, str]:
        """Ids of the stored columns that were used."""
        ...

    def require(self, used: Mapping[str, str], /) -> None:
        """Raise StaleIndexError unless the columns are those that `used` returned in another process."""
        ...


class Rows(ABC):
    """All samples of some data, by number: the interface a kind of data implements. Thread-safe and picklable.

    A *number* counts all samples of all files, in order, from 0. Callers have checked its range. A copy in another
    process opens the data itself, and raises StaleIndexError if they have changed.

    Six members must be implemented: `path` and the abstract ones. The others have defaults.

    Attributes:
        path: Path or URL of the data, for provenance and messages.
        own_columns: Names of columns that are part of the data; see `own_column`.
        lost_by_fork: Whether a forked process cannot read them.
    """

    path: str
    lost_by_fork: bool = False
    own_columns: Sequence[str] = ("bytes",)
    _slices_columns: ClassVar[bool] = False
    """Whether `own_column` takes slices."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """Digest of all rows: equal content has an equal digest, wherever it is."""

    @property
    @abstractmethod
    def shard_counts(self) -> Mapping[str, int]:
        """Rows of each file, by its name, in order."""

    @property
    def data_files(self) -> Mapping[str, str]:
        """Path or URL of each file that determines the rows, by name, in order, for digests of their bytes.

        Default: the shards in the folder `path`, or `path` itself if it is the only one. Rows that combine other
        sources list those as an attribute `members` instead.
        """
        names = list(self.shard_counts)
        if names == [name_of(self.path)]:
            return {names[0]: self.path}
        return {name: join(self.path, name) for name in names}

    @property
    @abstractmethod
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts that a read may return."""

    @property
    def all_part_names(self) -> tuple[str, ...]:
        """Names of all parts, including those not read."""
        return self.part_names

    @abstractmethod
    def read_rows(self, numbers: Int64Array) -> RawBatch:
        """Read (n,) rows in the order requested, with their numbers as indices; see `batch`.

        Raises ReadError where bytes cannot be read.
        """

    @abstractmethod
    def sizes(self, numbers: Int64Array) -> Int64Array:
        """(n,) payload bytes of each row, known without reading it."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, rows={sum(self.shard_counts.values())})"

    def batch(self, numbers: Int64Array, columns: Mapping[str, Sequence[PartValue | None]]) -> RawBatch:
        """The return value of `read_rows`: for each part the values of the rows; None for rows without it."""
        return RawBatch(indices=numbers, keys=self.keys(numbers), shards=self.shards(numbers), columns=columns)

    def keys(self, numbers: Int64Array) -> list[str]:
        """The key of each row; default: its number."""
        return list(map(str, numbers.tolist()))

    def find(self, key: str) -> list[int]:
        """The numbers of the rows with a key. By default, compares all keys unless they are the numbers."""
        total = sum(self.shard_counts.values())
        if type(self).keys is Rows.keys:
            return [int(key)] if key.isdecimal() and str(int(key)) == key and int(key) < total else []
        pieces = (np.arange(at, min(at + _EVALUATED_AT_ONCE, total)) for at in range(0, total, _EVALUATED_AT_ONCE))
        return [int(piece[at]) for piece in pieces for at, other in enumerate(self.keys(piece)) if other == key]

    def shards(self, numbers: Int64Array) -> list[str]:
        """The file of each row."""
        names = list(self.shard_counts)
        if len(names) == 1:
            return names * len(numbers)
        ends = np.cumsum(list(self.shard_counts.values()))
        return [names[file] for file in np.searchsorted(ends, numbers, side="right").tolist()]

    def locate(self, number: int) -> SampleLocation:
        """Location of a row, without reading it; default: its file, as if rows were bytes."""
        at = np.array([number], np.int64)
        (size,) = self.sizes(at).tolist()
        return SampleLocation(
            index=number, shard=self.shards(at)[0], key=self.keys(at)[0], start=0, stop=size, parts={}
        )

    def place_of(self, number: int) -> str:
        """Location of a row, for messages."""
        place = self.locate(number)
        return f"{place.shard}: {place.key}"

    @cached_property
    def kept(self) -> Kept | None:
        """The measured columns; None: columns cannot be measured."""
        return None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns."""
        return tuple(dict.fromkeys((*self.own_columns, *(self.kept or ()))))

    def column(self, name: str, numbers: Int64Array | slice) -> npt.NDArray[Any]:
        """(n,) values of a column for rows, or a slice with explicit start and stop. Raises as `Source.column`."""
        if self.kept is not None and name in self.kept:
            return self.kept.at(name, numbers)
        if name not in self.own_columns:
            raise self.no_column(name)
        if self._slices_columns or not isinstance(numbers, slice):
            return self.own_column(name, numbers)
        return in_pieces(numbers, numbers.stop, partial(self.own_column, name))

    def own_column(self, name: str, numbers: Any) -> npt.NDArray[Any]:
        """(n,) values of a column of `own_columns` for rows."""
        del name
        return self.sizes(numbers)

    def column_id(self, name: str) -> str:
        """Digest that changes with the numbers of a column; empty: use the content id of the source."""
        if self.kept is not None and name in self.kept:
            return self.kept.id(name)
        if name not in self.own_columns:
            raise self.no_column(name)
        return f"{self.digest}-{fold(name):016x}"

    def no_column(self, name: str) -> KeyNotFoundError:
        """The error for a name that no column has."""
        if self.kept is not None:
            return self.kept.no_column(name)
        return KeyNotFoundError(f"{self.path}: no column {name!r}; the columns are {', '.join(self.columns)}")

    @property
    def run_rows(self) -> int | None:
        """Consecutive rows to read together in a shuffle; None: single rows."""
        return None

    @property
    def blocks(self) -> Blocks | None:
        """Groups of rows that can only be read together; None: rows are read individually."""
        return None

    @property
    def remote_files(self) -> Sequence[RemoteFiles]:
        """Readers of the data in object stores; empty: the data are local."""
        return ()

    def extents(self, numbers: Int64Array) -> list[RemoteExtents]:
        """Location of rows in objects; empty for local data."""
        del numbers
        return []

    def close(self) -> None:  # noqa: B027
        """Release file handles. The next read opens them again."""


class SelectedSource:
    """A `Source` of some of the rows of a kind of data.

    Args:
        rows: All rows.
        start: First row to serve.
        stop: One past the last; default: the end.
        where: Condition on columns that served rows meet; default: none.
        runs: [begin, end) in each file: the rows to select from; default: all.

    Raises:
        ConfigError: `start` or `stop` exceeds the number of rows.
        EmptyDatasetError: No rows are selected.
        KeyNotFoundError, IndexFileError, FormatError, ReadError: As `column`.
    """

    _what: ClassVar[str] = "sample"
    _rows: Any

    def __init__(
        self,
        rows: Rows,
        *,
        start: int = 0,
        stop: int | None = None,
        where: Expression | None = None,
        runs: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        self._rows, self.lost_by_fork = rows, rows.lost_by_fork
        counts = rows.shard_counts.values()
        if runs is None:
            self._selection = Selection(sum(counts), start=start, stop=stop)
        else:
            firsts = accumulate(counts, initial=0)
            if not any(begin < end for begin, end in runs):
                raise EmptyDatasetError(
                    f"{self.path}: this split part gets none of the {sum(counts)} samples; give it a larger share"
                )
            whole = [(first + begin, first + end) for first, (begin, end) in zip(firsts, runs, strict=False)]
            self._selection = Selection.of_runs(sum(counts), whole, start=start, stop=stop)
        self._narrow(where)

    def _narrow(self, where: Expression | None) -> None:
        """Serve only samples for which an expression over the columns holds; None: all of them.

        Only columns are read, in blocks that fit into a core's cache, in threads on this process's cores.
        Raises EmptyDatasetError, ConfigError, KeyNotFoundError, IndexFileError and ReadError.
        """
        if where is None:
            return
        total = len(self)
        keep = np.empty(total, np.bool_)

        def evaluate(begin: int) -> None:
            piece = slice(begin, min(begin + _EVALUATED_AT_ONCE, total))
            blocks: list[npt.NDArray[Any]] = []

            def column(name: str) -> npt.NDArray[Any]:
                blocks.append(self.column(name, piece))
                return blocks[-1]

            keep[piece] = where.holds(column)
            for block in blocks:
                release_mapped(block)

        begins = range(0, total, _EVALUATED_AT_ONCE)
        with ThreadPoolExecutor(min(usable_cores(), _THREADS, len(begins)), "energon_grain-where") as threads:
            deque(threads.map(evaluate, begins), maxlen=0)  # raises their errors
        if not keep.any():
            raise EmptyDatasetError(
                f"{self.path}: where {where.text!r} matches none of the {total:,} samples; relax the condition"
            )
        columns = {name: self.column_id(name) for name in where.names}
        self._selection = self._selection.where(keep, {"expression": where.text, "columns": columns, "of": total})

    def __getstate__(self) -> dict[str, Any]:
        """The state for a copy in another process, with the ids of the measured columns that were used.

        The copy must find the same numbers in these columns.
        """
        kept = vars(self._rows).get("kept")
        own = ("_rows", "_selection", "lost_by_fork")
        return {**{name: vars(self).get(name) for name in own}, "_used": {} if kept is None else kept.used()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        used = state.pop("_used", {})
        self.__dict__.update(state)
        if used and self.kept is not None:
            self.kept.require(used)

    def __len__(self) -> int:
        return len(self._selection)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._rows!r}, samples={len(self)}, content_id={self.content_id!r})"

    @property
    def where(self) -> Mapping[str, Any] | None:
        """The condition that its samples meet; None without one.

        `expression`, the ids of its `columns`, and the number of samples that it was applied to as `of`.
        """
        return self._selection.condition

    @property
    def path(self) -> str:
        return self._rows.path

    @property
    def content_id(self) -> str:
        """Digest of all rows and of the selection."""
        chosen = self._selection
        return f"{self._rows.digest}-{fold(chosen.start, chosen.stop, *chosen.digest):016x}"

    @cached_property
    def kept(self) -> Kept | None:
        """Measured columns of all rows; None: columns cannot be measured."""
        return self._rows.kept

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts that a read may return."""
        return self._rows.part_names

    @property
    def all_part_names(self) -> tuple[str, ...]:
        """Names of all parts, including those not read."""
        return self._rows.all_part_names

    def numbers(self, indices: npt.NDArray[np.integer[Any]]) -> Int64Array:
        """(n,) number of each sample among all rows. Raises IndexError."""
        return self._selection.to_raw(in_range(indices, len(self), where=self.path, what=self._what))

    def _number(self, index: int) -> int:
        return int(self.numbers(np.array([index], np.int64))[0])

    def read(self, indices: Int64Array) -> RawBatch:
        """See `Source.read`."""
        batch = self._rows.read_rows(self.numbers(indices))
        batch.indices = np.asarray(indices, np.int64)
        return batch

    def keys(self, indices: Int64Array) -> list[str]:
        """See `Source.keys`."""
        return self._rows.keys(self.numbers(indices))

    def find(self, key: str) -> Int64Array:
        """(k,) the samples with a key; usually one or none. By the sorted index of keys, if the data have one."""
        return np.concatenate([np.empty(0, np.int64), *map(self._selection.indices_of, self._rows.find(key))])

    def sizes(self, indices: Int64Array) -> Int64Array:
        """See `Source.sizes`."""
        return self._rows.sizes(self.numbers(indices))

    @property
    def columns(self) -> tuple[str, ...]:
        """See `Source.columns`."""
        return self._rows.columns

    def column(self, name: str, indices: Int64Array | slice) -> npt.NDArray[Any]:
        """See `Source.column`."""
        if not isinstance(indices, slice):
            return self._rows.column(name, self.numbers(indices))
        wanted = range(*indices.indices(len(self)))
        runs = self._selection.raw_runs(wanted.start, wanted.stop) if wanted.step == 1 else []
        if not runs:
            return in_pieces(indices, len(self), partial(self.column, name))
        found = [self._rows.column(name, run) for run in runs]
        if len(found) == 1:
            return found[0]
        joined = np.concatenate(found)
        release_mapped(found[0])
        return joined

    def column_id(self, name: str) -> str:
        """See `Source.column_id`."""
        return self._rows.column_id(name) or self.content_id

    def locate(self, index: int) -> SampleLocation:
        """See `Source.locate`."""
        return replace(self._rows.locate(self._number(index)), index=index)

    def place_of(self, index: int) -> str:
        """See `Source.place_of`."""
        return self._rows.place_of(self._number(index))

    @property
    def run_samples(self) -> int | None:
        """See `ReadInRuns`."""
        return self._rows.run_rows

    @property
    def remote_files(self) -> Sequence[RemoteFiles]:
        """See `RemoteSource`."""
        return self._rows.remote_files

    def extents(self, indices: Int64Array) -> list[RemoteExtents]:
        """See `RemoteSource`."""
        return self._rows.extents(self.numbers(indices))

    def close(self) -> None:
        """Release file handles. The next read opens them again."""
        self._rows.close()


class SelectedBlocks(SelectedSource):
    """A `SelectedSource` of rows that are read in blocks. See `ReadInBlocks`."""

    @property
    def _blocks(self) -> Blocks:
        blocks = self._rows.blocks
        assert blocks is not None
        return blocks

    @property
    def run_samples(self) -> int | None:
        """Mean number of samples per block; None: all samples cost the same to read."""
        return max(1, len(self) // (len(self.block_starts()) - 1)) if self._blocks.are_read_whole else None

    def block_starts(self, at_least: int | None = None) -> Int64Array:
        """(blocks + 1,) the first sample of each block, and the number of samples. See `ReadInBlocks`."""
        bounds = self._selection.cut_by(self._blocks.first)
        at_least = self._blocks.at_least if at_least is None else at_least
        if at_least is None:
            return bounds
        kept = [0]
        for bound in bounds[1:-1].tolist():
            if bound - kept[-1] >= at_least:
                kept.append(bound)
        return np.array([*kept, len(self)], np.int64)

    def warn_of_order(self, blocks_at_once: int | None) -> str | None:
        """A warning for an order with this number of blocks in use at a time (None: all), or None."""
        return self._blocks.warn(self._number(0), self._number(len(self) - 1), blocks_at_once)


def selected(
    rows: Rows,
    start: int = 0,
    stop: int | None = None,
    where: Expression | None = None,
    runs: Sequence[tuple[int, int]] | None = None,
) -> SelectedSource:
    """Some of the rows as a source. Arguments and errors: see `SelectedSource`."""
    kind = SelectedSource if rows.blocks is None else SelectedBlocks
    return kind(rows, start=start, stop=stop, where=where, runs=runs)


def rows_of(source: Any) -> Rows | None:
    """The rows behind a source; None if it is no `SelectedSource`."""
    return source._rows if isinstance(source, SelectedSource) else None
