# SPDX-License-Identifier: Apache-2.0
"""Single files and objects: whole, as a scan reads them from front to back, and as Python's file objects.

A request takes as long as a connection needs for some 256 KiB: 10 ms at 25 MB/s, or 1 ms at 250. So what is smaller is
scanned in passing, in windows of 8 MiB that are fetched in four pieces at once; what is larger is passed over, and each
stop fetches 16 KiB, twice as much where the next one is near. Shards are scanned side by side, which makes up for the
time that each of these requests takes.
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
    """An object. One that changes is an error, and never a mixture.

    Args:
        keep: What is read in windows stays in the page cache, for those who read samples next.

    Raises ReadError: there is none, or it cannot be reached.
    """

    pass_over_bytes = 256 << 10

    def __init__(self, url: str, *, keep: bool = False) -> None:
        self._url = url
        self._files = RemoteFiles(storage_settings())
        self._version = self._files.versions.of(url)
        self.size_bytes, self.generation = self._version.size_bytes, self._version.generation
        self._stop_bytes = _STOP_BYTES
        self._keep = keep
        self._fetch(0, _FIRST_BYTES, keep=keep)

    def alone(self, offset: int, size_bytes: int) -> bytes:
        if not self._has(offset, size_bytes):
            is_near = 0 <= offset - self._window_at - len(self._window) < self.pass_over_bytes
            self._stop_bytes = min(2 * self._stop_bytes, self.pass_over_bytes) if is_near else _STOP_BYTES
            self._fetch(offset, max(size_bytes, self._stop_bytes), keep=False)
        return self._slice(offset, size_bytes)

    def near(self, offset: int, size_bytes: int) -> bytes:
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
        """Make [offset, offset + size_bytes), as far as the object has it, the window; what is there is kept."""
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
    """An object for reading, as `open(path, "rb")` gives a file. What is read comes from the page cache or goes there.

    Raises MissingObjectError if there is none, and ReadError if it cannot be reached.
    """

    def __init__(self, url: str, buffer_bytes: int = _BUFFER_BYTES) -> None:
        files = RemoteFiles(storage_settings())
        super().__init__(ByteStream(files, url, 0, files.size(url)), buffer_bytes)


class _WrittenObject(io.BytesIO):
    """Bytes that become an object when the file is closed, unless the `with` block around it fails."""

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
        self.discard()  # a file that nobody closed is not finished


class _WrittenText(io.TextIOWrapper):
    def __init__(self, written: _WrittenObject) -> None:
        super().__init__(written, encoding="utf-8", newline="")
        self._written = written

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is not None:
            self._written.discard()
        super().__exit__(kind, *rest)


def create_object(url: str, *, text: bool = False) -> io.BytesIO | io.TextIOWrapper:
    """Open an object for writing. It is put, whole, when the file is closed; not, when the `with` block fails."""
    written = _WrittenObject(url)
    return _WrittenText(written) if text else written
