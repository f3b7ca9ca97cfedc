"""The bytes of one file or object as a scan reads them: front to back, passing over what is large."""

from __future__ import annotations

import os
from typing import Protocol

_WINDOW_BYTES = 256 << 10


class ScannedBytes(Protocol):
    """One open file or object. For one thread."""

    @property
    def size_bytes(self) -> int:
        """Size of the whole."""
        ...

    @property
    def generation(self) -> bytes:
        """Version of an object; empty for a file."""
        ...

    @property
    def pass_over_bytes(self) -> int:
        """What is at least this large is quicker passed over than read."""
        ...

    def alone(self, offset: int, size_bytes: int) -> bytes:
        """Read bytes of which those that follow may not matter; fewer only at the end.

        Raises:
            OSError: They cannot be read.
            StaleIndexError: The object is not the one any more that was opened.
        """
        ...

    def near(self, offset: int, size_bytes: int) -> bytes:
        """Read bytes after which those that follow will be asked for; fewer only at the end. Raises like `alone`."""
        ...

    def fill(self, buffer: memoryview, offset: int) -> int:
        """`near`, into a buffer; gives the number of bytes, fewer than the buffer has only at the end."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


class FileBytes:
    """`ScannedBytes` of a file, by `pread` only.

    Args:
        descriptor: Of the file; closed with this.
    """

    generation = b""
    pass_over_bytes = 16 << 10

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._window, self._window_at = b"", 0
        self.size_bytes = os.fstat(descriptor).st_size

    def alone(self, offset: int, size_bytes: int) -> bytes:
        """See `ScannedBytes`."""
        data = os.pread(self._descriptor, size_bytes, offset)
        while len(data) < size_bytes:
            more = os.pread(self._descriptor, size_bytes - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def near(self, offset: int, size_bytes: int) -> bytes:
        """See `ScannedBytes`."""
        start = offset - self._window_at
        if not 0 <= start <= len(self._window) - size_bytes:
            self._window, self._window_at, start = self.alone(offset, max(size_bytes, _WINDOW_BYTES)), offset, 0
        return self._window[start : start + size_bytes]

    def fill(self, buffer: memoryview, offset: int) -> int:
        """See `ScannedBytes`."""
        return os.preadv(self._descriptor, [buffer], offset)

    def close(self) -> None:
        """See `ScannedBytes`."""
        os.close(self._descriptor)
