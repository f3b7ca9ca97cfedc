# SPDX-License-Identifier: Apache-2.0
"""The seam between formats and where bytes live, and turning the byte ranges of many samples into few reads.

Ranges are sorted by file and offset, and neighbours whose gap is small are read as one *span*; every range is then a
slice of its span. With blocks of consecutive samples a span covers dozens of samples, so a read costs one system call
(or one request) for all of them. A large range is a span by itself: its slice is then the whole `bytes` object, which
Python hands out without copying.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class ByteStore(Protocol):
    """Reads byte ranges of named objects.

    Everything above asks for many ranges at once, already sorted and coalesced to `Spans`, so that a store
    can overlap its requests. Implementations are thread-safe and picklable; a copy in another process opens its own
    handles.
    """

    @property
    def merge_gap_bytes(self) -> int:
        """Ranges at most this far apart are cheaper to read together than apart."""
        ...

    @property
    def solo_bytes(self) -> int:
        """Ranges of at least this size are read by themselves, so that no byte of theirs is copied twice."""
        ...

    @property
    def least_bytes(self) -> int:
        """As many bytes take about as long to read as one."""
        ...

    def version(self, path: str) -> Any:
        """What tells an object that does not change from what may take its place; picklable, never None.

        Raises ReadError if the object does not exist or cannot be reached.
        """
        ...

    def expect(self, path: str, version: Any) -> None:
        """Read an object in this version alone, which another process learnt.

        Raises StaleIndexError if it is another one by now, and ReadError if it does not exist or cannot be reached.
        """
        ...

    def size(self, path: str) -> int:
        """Size of an object in bytes. Raises ReadError if the object does not exist or cannot be reached."""
        ...

    def tails(self, paths: Sequence[str], starts: Sequence[int]) -> list[bytes]:
        """The bytes of each object from `starts[i]` to its end: what lies behind the last sample, and so the sizes.

        In an object store this is one request an object, where a size by itself may take several.

        Raises RangeError if an object ends before its start, and ReadError if one does not exist or cannot be reached.
        """
        ...

    def peek(self, paths: Sequence[str], starts: Sequence[int], size_bytes: int) -> list[bytes]:
        """A few bytes of each object from `starts[i]` on, for a look at a header: nothing around them is read or kept.

        Raises RangeError if an object ends before, and ReadError if one does not exist or cannot be reached.
        """
        ...

    def read_spans(
        self,
        paths: Sequence[str],
        file: npt.NDArray[np.int64],
        start: npt.NDArray[np.int64],
        stop: npt.NDArray[np.int64],
    ) -> list[bytes]:
        """Read bytes [start[i], stop[i]) of object `paths[file[i]]` for every i, in that order.

        Args:
            paths: Names of the objects.
            file: (n,) index into `paths`.
            start: (n,) first byte.
            stop: (n,) one past the last byte.

        Raises:
            RangeError: An object is shorter than asked for.
            ReadError: One is missing, or unreadable after retries.
        """
        ...

    def close(self) -> None:
        """Release every handle. Reading again opens them anew."""
        ...


Int64Array = npt.NDArray[np.int64]

MAX_SPAN_BYTES = 8 << 20
_MOST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spans:
    """What to read, and where each range lies in it."""

    file: Int64Array
    """(m,) file of each span."""
    start: Int64Array
    """(m,) first byte of each span."""
    stop: Int64Array
    """(m,) one past the last byte of each span."""
    span: Int64Array
    """(n,) span of each range, in the order in which the ranges were given."""
    offset: Int64Array
    """(n,) where the range begins in its span."""

    def cut(self, data: Sequence[bytes], size: Int64Array) -> list[bytes]:
        """The bytes of each range, `size` long, in the order in which they were given: of the bytes of all spans."""
        places = zip(self.span.tolist(), self.offset.tolist(), (self.offset + size).tolist(), strict=True)
        return [data[span][begin:end] for span, begin, end in places]


def coalesce(file: Int64Array, start: Int64Array, size: Int64Array, *, merge_gap_bytes: int, solo_bytes: int) -> Spans:
    """Group ranges into spans.

    Ranges of one file at most `merge_gap_bytes` apart share a span, unless one of them has `solo_bytes` or more or the
    span would pass 8 MiB. Overlapping and repeated ranges are fine.

    Example: ranges (0, 10), (12, 5), (500, 5) of one file with a gap of 4 become the spans [0, 17) and [500, 505).
    """
    count = len(start)
    if count == 0:
        empty = np.empty(0, np.int64)
        return Spans(file=empty, start=empty, stop=empty, span=empty, offset=empty)
    width = int(start.max()) + 1
    whole = int(file.max()) < _MOST // width  # both in one number are sorted in half the time
    order = np.argsort(file * width + start) if whole else np.lexsort((start, file))
    file_sorted, start_sorted = file[order], start[order]
    stop_sorted = start_sorted + size[order]
    large = size[order] >= solo_bytes
    begins = np.empty(count, np.bool_)
    begins[0] = True
    # A range reaches as far as the furthest one before it; only inside one file, which the first term guards.
    begins[1:] = (
        (file_sorted[1:] != file_sorted[:-1])
        | (start_sorted[1:] - stop_sorted[:-1] > merge_gap_bytes)
        | large[1:]
        | large[:-1]
    )
    # Cut by the distance from where a run begins: at multiples in the file most runs would be cut that are shorter.
    part = (start_sorted - start_sorted[begins][np.cumsum(begins) - 1]) // MAX_SPAN_BYTES
    begins[1:] |= part[1:] != part[:-1]
    heads = np.flatnonzero(begins)
    span_sorted = np.cumsum(begins) - 1
    span_start = start_sorted[heads]
    span_stop = np.maximum.reduceat(stop_sorted, heads)
    span = np.empty(count, np.int64)
    span[order] = span_sorted
    offset = start - span_start[span]
    return Spans(file=file_sorted[heads], start=span_start, stop=span_stop, span=span, offset=offset)
