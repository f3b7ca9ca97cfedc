# SPDX-License-Identifier: Apache-2.0
"""Reading one file or object from start to end."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

_LEAST_READ_BYTES = 256 << 10


class ScannedBytes(ABC):
    """One open file or object. For one thread.

    Attributes:
        size_bytes: Size of the file or object.
        generation: Version of an object; empty for a file.
        skip_bytes: From this size on, skipping is faster than reading.
    """

    size_bytes: int
    generation: bytes
    skip_bytes: int
    _window, _window_at = b"", 0

    @abstractmethod
    def read_random(self, offset: int, size_bytes: int) -> bytes:
        """Read bytes whose neighbours may not be needed; returns fewer only at the end.

        Raises OSError if they cannot be read, and StaleIndexError if the object has changed since it was opened.
        """

    @abstractmethod
    def read_sequential(self, offset: int, size_bytes: int) -> bytes:
        """Read bytes whose successors will be read next; returns fewer only at the end. Raises like `read_random`."""

    def fill(self, buffer: memoryview, offset: int) -> int:
        """`read_sequential`, into a buffer; returns the number of bytes, fewer only at the end."""
        data = self.read_sequential(offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._window = b""


class FileBytes(ScannedBytes):
    """A file, by `pread` only."""

    generation = b""
    skip_bytes = 16 << 10

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size_bytes = os.fstat(descriptor).st_size

    def read_random(self, offset: int, size_bytes: int) -> bytes:
        data = os.pread(self._descriptor, size_bytes, offset)
        while len(data) < size_bytes:
            more = os.pread(self._descriptor, size_bytes - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def read_sequential(self, offset: int, size_bytes: int) -> bytes:
        start = offset - self._window_at
        if not 0 <= start <= len(self._window) - size_bytes:
            self._window = self.read_random(offset, max(size_bytes, _LEAST_READ_BYTES))
            self._window_at, start = offset, 0
        return self._window[start : start + size_bytes]

    def fill(self, buffer: memoryview, offset: int) -> int:
        return os.preadv(self._descriptor, [buffer], offset)

    def close(self) -> None:
        os.close(self._descriptor)
