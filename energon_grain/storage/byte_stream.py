# SPDX-License-Identifier: Apache-2.0
"""A range of a file or object as a seekable binary file: how a decoder reads clips of a video in a tar.

libav reads 32 KiB at a time. In a bucket, each read would be a request, although a group of pictures is one range.
Therefore a stream reads ahead, in proportion to the bytes read sequentially, and callers that know the next ranges pass
them to `prefetch`. The last reads are kept, because libav reads the beginning of a file twice.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from energon_grain.storage.byte_store import ByteStore

AHEAD_SHARE = 8
"""An eighth of the sequentially read bytes is read ahead: this limits wasted reads to less than that."""
LONGEST_AHEAD_BYTES = 1 << 20
PREFETCHED_BYTES = 64 << 20
"""Limit of prefetched bytes in memory; the rest is read on demand."""
_WINDOWS = 4


class ByteStream(io.RawIOBase):
    """Bytes [start, start + size) of a path in a store, as a seekable binary file.

    Nothing is read before it is requested. Every read is of the same version of the file, the one that a dataset's
    index describes; this includes copies in other processes. For one thread at a time, like any file. A pickle has the
    position, and a few hundred bytes.

    Args:
        version: Version of the file from the store; None: its current one.
        inserted: Extra bytes of the stream: (position, bytes).

    Raises ReadError: the file does not exist, or cannot be reached.
    """

    def __init__(
        self,
        store: ByteStore,
        path: str,
        start: int,
        size: int,
        version: Any = None,
        *,
        inserted: tuple[int, bytes] = (0, b""),
    ) -> None:
        super().__init__()
        self.path, self.start, self.size = path, start, size + len(inserted[1])
        self._store = store
        self._version = store.version(path) if version is None else version
        self.inserted = inserted
        self._place = 0
        self._next = -1  # end of the last read from the store
        self._run = 0  # bytes read sequentially
        self._windows: list[tuple[int, bytes]] = []  # read on demand, the most recently used one first
        self._prefetched: list[tuple[int, bytes]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        size = self.size - len(self.inserted[1])
        again = partial(ByteStream, inserted=self.inserted)
        return again, (self._store, self.path, self.start, size, self._version), {"_place": self._place}

    def __repr__(self) -> str:
        return f"ByteStream({self.path!r} @ {self.start}, {self.size} bytes)"

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a position, which may be beyond the end, as in any file. Reads nothing."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ValueError(f"{self!r}: cannot seek to byte {base + offset}")
        self._place = base + offset
        return self._place

    def read(self, size: int | None = -1, /) -> bytes:
        """Read `size` bytes, fewer only at the end; None or -1: all remaining bytes.

        Raises ReadError and StaleIndexError.
        """
        if self.closed:
            raise ValueError("I/O operation on closed file")
        left = max(self.size - self._place, 0)
        count = left if size is None or size < 0 else min(size, left)
        pieces: list[bytes] = []
        while count > 0:
            piece = self._held(count) or self._fetch(count)
            pieces.append(piece)
            self._place += len(piece)
            count -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self.read()

    def prefetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Read ranges that will be needed, together: from an object store in few parallel requests.

        They are kept until the next call, 64 MiB at most; a call without ranges reads nothing and releases them.

        Args:
            ranges: (first byte, one past the last) of each, in this stream.

        Raises:
            ReadError: They could not be read after retries.
            StaleIndexError: The file has changed.
        """
        merged = self._merged(ranges)
        place, data = self.inserted
        pieces = [(begin, min(end, place)) for begin, end in merged]
        pieces += [(max(begin, place + len(data)), end) for begin, end in merged]
        left = PREFETCHED_BYTES
        wanted: list[tuple[int, int]] = []
        for begin, end in sorted(pieces):
            if begin < end and left:
                wanted.append((begin, min(end, begin + left)))
                left -= wanted[-1][1] - begin
        self._prefetched = []  # release memory before the next read
        if wanted:
            self._prefetched = list(zip([begin for begin, _ in wanted], self._read(wanted), strict=True))

    def _merged(self, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """The ranges within the stream, ascending; neighbours are merged."""
        merged: list[tuple[int, int]] = []
        for begin, end in sorted((max(begin, 0), min(end, self.size)) for begin, end in ranges):
            if merged and begin - merged[-1][1] <= self._store.least_bytes:
                merged[-1] = merged[-1][0], max(end, merged[-1][1])
            elif begin < end:
                merged.append((begin, end))
        return merged

    def _held(self, count: int) -> bytes:
        """Bytes in memory from the current position on, at most `count`; b"" if there are none."""
        at = self._place
        for start, data in (self.inserted, *self._prefetched):
            if start <= at < start + len(data):
                return data[at - start : at - start + count]
        for place, (start, data) in enumerate(self._windows):
            if start <= at < start + len(data):
                if place:
                    self._windows.insert(0, self._windows.pop(place))
                return data[at - start : at - start + count]
        return b""

    def _fetch(self, count: int) -> bytes:
        """Read `count` bytes from the current position, and a few more that are likely to be needed next."""
        self._run = self._run if self._place == self._next else 0
        least = self._store.least_bytes
        ahead = min(max(self._run // AHEAD_SHARE, least), LONGEST_AHEAD_BYTES)
        stop = self._place + max(count, ahead)
        stop = max(stop - (self.start + stop) % least, self._place + count)  # stores fetch pages of this size
        stop = min(stop, self.size)
        stop = min([stop, *(start for start, _ in (self.inserted, *self._prefetched) if start > self._place)])
        (data,) = self._read([(self._place, stop)])
        self._run += len(data)
        self._next = stop
        if len(data) <= LONGEST_AHEAD_BYTES:
            self._windows = [(self._place, data), *self._windows[: _WINDOWS - 1]]
        return data[:count]

    def _read(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        self._store.expect(self.path, self._version)
        place, data = self.inserted
        found = np.array(ranges, np.int64).reshape(-1, 2)
        start, stop = (found - np.where(found[:, :1] < place, 0, len(data)) + self.start).T
        return self._store.read_spans([self.path], np.zeros(len(ranges), np.int64), start, stop)
