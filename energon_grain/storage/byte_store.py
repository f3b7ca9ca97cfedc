# SPDX-License-Identifier: Apache-2.0
"""The interface between formats and stores of bytes, and merging the byte ranges of many samples into few reads.

Ranges are sorted by file and offset. Neighbours with a small gap are read as one *span*; every range is then a slice of
its span. With blocks of consecutive samples, a span covers dozens of samples, so one system call or request reads them
all. A large range is its own span: its slice is then the whole `bytes` object, which Python returns without copying.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class ByteStore(Protocol):
    """Reads byte ranges of named objects.

    Callers request many ranges at once, already sorted and merged to `Spans`, so that a store can run its requests in
    parallel. Implementations are thread-safe and picklable; a copy in another process opens its own handles.
    """

    @property
    def merge_gap_bytes(self) -> int:
        """Ranges at most this far apart are cheaper to read together than separately."""
        ...

    @property
    def solo_bytes(self) -> int:
        """Ranges of at least this size are read separately, so that none of their bytes is copied twice."""
        ...

    @property
    def least_bytes(self) -> int:
        """Reading this many bytes takes about as long as reading one."""
        ...

    def version(self, path: str) -> Any:
        """An identifier of the object's current version; picklable, never None.

        Raises ReadError if the object does not exist or cannot be reached.
        """
        ...

    def expect(self, path: str, version: Any) -> None:
        """Read only this version of an object, which another process determined.

        Raises StaleIndexError if the object has changed, and ReadError if it does not exist or cannot be reached.
        """
        ...

    def size(self, path: str) -> int:
        """Size of an object in bytes. Raises ReadError if the object does not exist or cannot be reached."""
        ...

    def tails(self, paths: Sequence[str], starts: Sequence[int]) -> list[bytes]:
        """The bytes of each object from `starts[i]` to its end: those after the last sample, and so the object's size.

        In an object store this is one request per object; the size alone may take several.

        Raises RangeError if an object ends before its start, and ReadError if one does not exist or cannot be reached.
        """
        ...

    def peek(self, paths: Sequence[str], starts: Sequence[int], size_bytes: int) -> list[bytes]:
        """A few bytes of each object from `starts[i]` on, to check a header: nothing else is read or cached.

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
            RangeError: An object is shorter than the requested range.
            ReadError: An object is missing, or unreadable after retries.
        """
        ...

    def close(self) -> None:
        """Release every handle. Reading opens them again."""
        ...


Int64Array = npt.NDArray[np.int64]

MAX_SPAN_BYTES = 8 << 20
_MOST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spans:
    """Spans to read, and the position of each range in them."""

    file: Int64Array
    """(m,) file of each span."""
    start: Int64Array
    """(m,) first byte of each span."""
    stop: Int64Array
    """(m,) one past the last byte of each span."""
    span: Int64Array
    """(n,) span of each range, in the caller's order."""
    offset: Int64Array
    """(n,) start of the range in its span."""

    def cut(self, data: Sequence[bytes], size: Int64Array) -> list[bytes]:
        """The bytes of each range, `size` long, in the caller's order, given the bytes of all spans."""
        places = zip(self.span.tolist(), self.offset.tolist(), (self.offset + size).tolist(), strict=True)
        return [data[span][begin:end] for span, begin, end in places]


def coalesce(file: Int64Array, start: Int64Array, size: Int64Array, *, merge_gap_bytes: int, solo_bytes: int) -> Spans:
    """Group ranges into spans.

    Ranges of one file at most `merge_gap_bytes` apart share a span, unless one of them has at least `solo_bytes` or the
    span would exceed 8 MiB. Ranges may overlap and repeat.

    Example: ranges (0, 10), (12, 5), (500, 5) of one file with a gap of 4 become the spans [0, 17) and [500, 505).
    """
    count = len(start)
    if count == 0:
        empty = np.empty(0, np.int64)
        return Spans(file=empty, start=empty, stop=empty, span=empty, offset=empty)
    width = int(start.max()) + 1
    whole = int(file.max()) < _MOST // width  # sorting one combined number takes half the time
    order = np.argsort(file * width + start) if whole else np.lexsort((start, file))
    file_sorted, start_sorted = file[order], start[order]
    stop_sorted = start_sorted + size[order]
    large = size[order] >= solo_bytes
    begins = np.empty(count, np.bool_)
    begins[0] = True
    # Compare each range with the end of the one before it; the first term separates files.
    begins[1:] = (
        (file_sorted[1:] != file_sorted[:-1])
        | (start_sorted[1:] - stop_sorted[:-1] > merge_gap_bytes)
        | large[1:]
        | large[:-1]
    )
    # Cut relative to the start of a run: absolute multiples of 8 MiB would cut many shorter runs.
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
