"""Objects of stores as Python's file objects."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from energon_grain.storage.object_client import shared_client
from energon_grain.storage.remote_files import RemoteFiles
from energon_grain.storage.settings import storage_settings

READ_BYTES = 1 << 20
"""What `open_object` fetches at a time, at least."""


class _RawObject(io.RawIOBase):
    """The bytes of one version of an object, from anywhere."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._files = RemoteFiles(storage_settings())
        self._size = self._files.size(url)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError(f"negative seek position {start + offset}")
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        stop = min(self._at + len(buffer), self._size)
        if stop <= self._at:
            return 0
        first = np.zeros(1, np.int64)
        (data,) = self._files.read_spans([self._url], first, first + self._at, first + stop)
        buffer[: len(data)] = data
        self._at = stop
        return len(data)


class _WrittenObject(io.BytesIO):
    """Bytes that become an object when the file is closed, unless the `with` block around it fails."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url: str | None = url

    def discard(self) -> None:
        """Write nothing."""
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


def open_object(url: str) -> io.BufferedReader:
    """Open an object for reading. What is read comes out of the cache on disk where it is there.

    Raises:
        MissingObjectError: There is none.
        ReadError: It cannot be reached.
    """
    return io.BufferedReader(_RawObject(url), READ_BYTES)


def create_object(url: str, *, text: bool = False) -> io.BytesIO | io.TextIOWrapper:
    """Open an object for writing. It is put, whole, when the file is closed; not, when the `with` block fails."""
    written = _WrittenObject(url)
    return _WrittenText(written) if text else written
