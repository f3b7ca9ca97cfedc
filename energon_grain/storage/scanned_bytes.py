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
        pass_over_bytes: From this size on, skipping is faster than reading.
    """

    size_bytes: int
    generation: bytes
    pass_over_bytes: int
    _window, _window_at = b"", 0

    @abstractmethod
    def alone(self, offset: int, size_bytes: int) -> bytes:
        """Read bytes whose neighbours may not be needed; returns fewer only at the end.

        Raises OSError if they cannot be read, and StaleIndexError if the object has changed since it was opened.
        """

    @abstractmethod
    def near(self, offset: int, size_bytes: int) -> bytes:
        """Read bytes whose successors will be read next; returns fewer only at the end. Raises like `alone`."""

    def fill(self, buffer: memoryview, offset: int) -> int:
        """`near`, into a buffer; returns the number of bytes, fewer than the buffer's size only at the end."""
        data = self.near(offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._window = b""


class FileBytes(ScannedBytes):
    """A file, by `pread` only."""

    generation = b""
    pass_over_bytes = 16 << 10

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size_bytes = os.fstat(descriptor).st_size

    def alone(self, offset: int, size_bytes: int) -> bytes:
        data = os.pread(self._descriptor, size_bytes, offset)
        while len(data) < size_bytes:
            more = os.pread(self._descriptor, size_bytes - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def near(self, offset: int, size_bytes: int) -> bytes:
        start = offset - self._window_at
        if not 0 <= start <= len(self._window) - size_bytes:
            self._window, self._window_at, start = self.alone(offset, max(size_bytes, _LEAST_READ_BYTES)), offset, 0
        return self._window[start : start + size_bytes]

    def fill(self, buffer: memoryview, offset: int) -> int:
        return os.preadv(self._descriptor, [buffer], offset)

    def close(self) -> None:
        os.close(self._descriptor)
