# SPDX-License-Identifier: Apache-2.0
"""Single files and objects: scanned from start to end, or as Python file objects.

A request takes as long as transferring about 256 KiB: 10 ms at 25 MB/s, or 1 ms at 250 MB/s. Therefore smaller members
are scanned in passing, in windows of 8 MiB that are fetched in four parallel pieces. Larger ones are skipped; each stop
then fetches 16 KiB, twice as much if the next one is near. Shards are scanned in parallel, which hides the latency of
these requests.
"""

from __future__ import annotations

import io
from itertools import chain
from typing import Any

import numpy as np

from energon_grain.storage.byte_stream import ByteStream
from energon_grain.storage.scanned_bytes import ScannedBytes
from energon_grain.storage.settings import storage_settings
from energon_grain.stores.object_client import shared_client
from energon_grain.stores.remote_files import RemoteFiles

_FIRST_BYTES = 256 << 10
_STOP_BYTES = 16 << 10
_PIECE_BYTES = 2 << 20
_BUFFER_BYTES = 4 * _PIECE_BYTES


class ObjectBytes(ScannedBytes):
    """An object. A change during the scan raises an error; versions are never mixed.

    Args:
        keep: Store windows in the page cache, for later readers of samples.

    Raises ReadError: it does not exist, or cannot be reached.
    """

    skip_bytes = 256 << 10

    def __init__(self, url: str, *, keep: bool = False) -> None:
        self._url = url
        self._files = RemoteFiles(storage_settings())
        self._version = self._files.versions.of(url)
        self.size_bytes, self.generation = self._version.size_bytes, self._version.generation
        self._stop_bytes = _STOP_BYTES
        self._keep = keep
        self._fetch(0, _FIRST_BYTES, keep=keep)

    def read_random(self, offset: int, size_bytes: int) -> bytes:
        if not self._has(offset, size_bytes):
            is_near = 0 <= offset - self._window_at - len(self._window) < self.skip_bytes
            self._stop_bytes = min(2 * self._stop_bytes, self.skip_bytes) if is_near else _STOP_BYTES
            self._fetch(offset, max(size_bytes, self._stop_bytes), keep=False)
        return self._slice(offset, size_bytes)

    def read_sequential(self, offset: int, size_bytes: int) -> bytes:
        if not self._has(offset, size_bytes):
            self._fetch(offset, max(size_bytes, _BUFFER_BYTES), keep=self._keep)
        return self._slice(offset, size_bytes)

    def _has(self, offset: int, size_bytes: int) -> bool:
        stop = min(offset + size_bytes, self.size_bytes)
        return stop <= offset or (self._window_at <= offset and stop <= self._window_at + len(self._window))

    def _slice(self, offset: int, size_bytes: int) -> bytes:
        start = max(offset - self._window_at, 0)
        return self._window[start : start + size_bytes]

    def _fetch(self, offset: int, size_bytes: int, *, keep: bool) -> None:
        """Make [offset, offset + size_bytes), up to the end of the object, the window; reuses bytes of the old one."""
        stop = min(offset + size_bytes, self.size_bytes)
        there = self._window[offset - self._window_at :] if offset >= self._window_at else b""
        begin = offset + len(there)

        def read(at: int) -> list[bytes]:
            return self._files.versions.read(self._url, self._version, at, min(at + _PIECE_BYTES, stop), list)

        if keep:
            fetched = [[_read(self._files, self._url, begin, max(begin, stop))]]
        else:
            fetched = shared_client(self._files.settings).map(read, range(begin, stop, _PIECE_BYTES))
        self._window, self._window_at = b"".join(chain([there], *fetched)), offset


def _read(files: RemoteFiles, url: str, start: int, stop: int) -> bytes:
    """Bytes of an object, through the page cache."""
    (data,) = files.read_spans([url], np.zeros(1, np.int64), np.array([start]), np.array([stop]))
    return data


class ObjectStream(io.BufferedReader):
    """An object opened for reading, like `open(path, "rb")`, through the page cache.

    Raises MissingObjectError if it does not exist, and ReadError if it cannot be reached.
    """

    def __init__(self, url: str, buffer_bytes: int = _BUFFER_BYTES) -> None:
        files = RemoteFiles(storage_settings())
        super().__init__(ByteStream(files, url, 0, files.size(url)), buffer_bytes)


class _WrittenObject(io.BytesIO):
    """Bytes that are uploaded as an object when the file is closed, unless the `with` block fails."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url: str | None = url

    def discard(self) -> None:
        self._url = None

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is not None:
            self.discard()
        super().__exit__(kind, *rest)

    def close(self) -> None:
        if not self.closed and self._url is not None:
            shared_client(storage_settings()).write(self._url, self.getvalue())
        super().close()

    def __del__(self) -> None:
        self.discard()  # a file that was not closed is incomplete


class _WrittenText(io.TextIOWrapper):
    def __init__(self, written: _WrittenObject) -> None:
        super().__init__(written, encoding="utf-8", newline="")
        self._written = written

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is not None:
            self._written.discard()
        super().__exit__(kind, *rest)


def create_object(url: str, *, text: bool = False) -> io.BytesIO | io.TextIOWrapper:
    """Open an object for writing. It is uploaded when the file is closed, but not if the `with` block fails."""
    written = _WrittenObject(url)
    return _WrittenText(written) if text else written
