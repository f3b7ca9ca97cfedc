"""Reading rows of several arrays at once.

TensorStore reads and decompresses in threads of its own. So that these have work, reads are issued before earlier ones
are awaited, up to a bound on the chunks that are on the way; so that no thread waits for one array's last chunk, all
arrays of a sample share that bound.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ReadError
from energon_grain.sources.array_store import StoredArray

Int64Array = npt.NDArray[np.int64]

IN_FLIGHT_BYTES = 64 << 20
"""Chunks that one read decompresses at a time, of all arrays together; one chunk at least."""
_READS_IN_FLIGHT = 8
"""Into about how many reads that is cut."""
_SLICED_ROWS = 64
"""A read costs 20 µs, and a row that is picked 0.4 µs more than one in a slice: from this length on, runs of
consecutive rows are read as slices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenArray:
    """An array to read from.

    Attributes:
        stored: Which it is.
        store: The `tensorstore.TensorStore`.
    """

    stored: StoredArray
    store: Any

    @classmethod
    def of(cls, stored: StoredArray) -> OpenArray:
        """Open an array. Raises as `StoredArray.open`."""
        return cls(stored=stored, store=stored.open())

    @property
    def chunk_rows(self) -> int:
        """Consecutive rows that are decompressed together."""
        return int(self.store.chunk_layout.read_chunk.shape[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Read:
    array: int
    rows: Int64Array
    chunk_bytes: int


def read_rows(arrays: Sequence[OpenArray], indices: Int64Array) -> list[list[npt.NDArray[Any]]]:
    """Read the same rows of every array, in the order asked for, each an array of its own.

    Of every array, chunks that hold a wanted row are read once each.

    Args:
        arrays: With at least as many rows as `indices` name.
        indices: (n,) in any order, repeated or not.

    Raises:
        ReadError: A chunk could not be read or does not decode.
    """
    wanted, place = np.unique(indices, return_inverse=True)
    reads = [read for number, array in enumerate(arrays) for read in _reads(number, array, wanted)]
    found: list[list[npt.NDArray[Any]]] = [[] for _ in arrays]
    waiting: deque[tuple[_Read, Any]] = deque()
    in_flight = 0
    for read in [*reads, None]:
        while waiting and (read is None or in_flight + read.chunk_bytes > IN_FLIGHT_BYTES):
            done, future = waiting.popleft()
            found[done.array] += _finish(arrays[done.array].stored.location, done.rows, future)
            in_flight -= done.chunk_bytes
        if read is not None:
            waiting.append((read, arrays[read.array].store[_as_range(read.rows)].read()))
            in_flight += read.chunk_bytes
    places = place.tolist()
    if len(wanted) < len(places):
        return [[rows[row].copy() for row in places] for rows in found]
    return [[rows[row] for row in places] for rows in found]


def _finish(path: str, rows: Int64Array, future: Any) -> list[npt.NDArray[Any]]:
    try:
        block: npt.NDArray[Any] = future.result()
    except Exception as error:
        raise ReadError(f"{path}: rows {int(rows[0])} to {int(rows[-1])}: {error}") from error
    return separate_rows(block)


def separate_rows(block: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """The rows of a block as arrays of their own; numbers as arrays without an axis.

    Copies, as a sample that is kept for long would else keep the rows of all that were read with it.
    """
    if block.ndim > 1:
        return [row.copy() for row in block]
    return [block[row, ...].copy() for row in range(len(block))]


def _reads(number: int, array: OpenArray, wanted: Int64Array) -> Iterator[_Read]:
    """Cut rows, ascending, into reads of some chunks each, and into runs where these are long."""
    if not len(wanted):
        return
    chunk_rows = array.chunk_rows
    chunk_bytes = max(1, chunk_rows * array.stored.row_bytes)
    at_once = max(1, IN_FLIGHT_BYTES // _READS_IN_FLIGHT // chunk_bytes)
    chunk = np.cumsum(np.diff(wanted // chunk_rows, prepend=-1) != 0) - 1  # numbered as they are read
    cuts = np.diff(chunk // at_once) != 0
    gaps = np.diff(wanted) != 1
    if len(wanted) >= _SLICED_ROWS * (np.count_nonzero(gaps) + 1):
        cuts |= gaps
    bounds = [0, *(np.flatnonzero(cuts) + 1).tolist(), len(wanted)]
    for begin, end in itertools.pairwise(bounds):
        chunks = int(chunk[end - 1] - chunk[begin]) + 1
        yield _Read(array=number, rows=wanted[begin:end], chunk_bytes=chunks * chunk_bytes)


def _as_range(rows: Int64Array) -> slice | Int64Array:
    """Rows, ascending, as a slice where they are all there between the first and the last."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows
