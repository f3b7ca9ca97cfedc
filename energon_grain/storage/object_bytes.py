"""The bytes of one object of a store as a scan reads them.

A request takes as long as a connection needs for some 256 KiB: 10 ms at 25 MB/s, or 1 ms at 250. So what is smaller is
read in passing, in windows of 8 MiB that are fetched in four pieces at once; what is larger is passed over, and each
stop fetches 16 KiB, twice as much where the next one is near. Shards are scanned side by side, which makes up for the
time that each of these requests takes.
"""

from __future__ import annotations

import numpy as np

from energon_grain.storage.object_client import ObjectRange, shared_client
from energon_grain.storage.remote_files import RemoteFiles
from energon_grain.storage.storage_settings import storage_settings

_FIRST_BYTES = 256 << 10
_STOP_BYTES = 16 << 10
_PASS_OVER_BYTES = 256 << 10
_PIECE_BYTES = 2 << 20
_PIECES = 4


class ObjectBytes:
    """`ScannedBytes` of an object. An object that changes is an error, and never a mixture.

    Args:
        url: Of the object.
        keep: What is read in windows stays in the block cache, for those who read samples next.

    Raises:
        ReadError: There is none, or it cannot be reached.
    """

    pass_over_bytes = _PASS_OVER_BYTES

    def __init__(self, url: str, *, keep: bool = False) -> None:
        settings = storage_settings()
        self._url = url
        self._files = RemoteFiles(settings)
        self._client = shared_client(settings)
        self._version = self._files.versions.of(url)
        self._window, self._window_at = b"", 0
        self._stop_bytes = _STOP_BYTES
        self._keep = keep
        self._fetch(0, _FIRST_BYTES, keep=keep)

    @property
    def size_bytes(self) -> int:
        """Size of the object."""
        return self._version.size_bytes

    @property
    def generation(self) -> bytes:
        """Version of the object."""
        return self._version.generation

    def alone(self, offset: int, size_bytes: int) -> bytes:
        """See `ScannedBytes`."""
        if not self._has(offset, size_bytes):
            is_near = 0 <= offset - self._window_at - len(self._window) < _PASS_OVER_BYTES
            self._stop_bytes = min(2 * self._stop_bytes, _PASS_OVER_BYTES) if is_near else _STOP_BYTES
            self._fetch(offset, max(size_bytes, self._stop_bytes), keep=False)
        return self._slice(offset, size_bytes)

    def near(self, offset: int, size_bytes: int) -> bytes:
        """See `ScannedBytes`."""
        if not self._has(offset, size_bytes):
            self._fetch(offset, max(size_bytes, _PIECES * _PIECE_BYTES), keep=self._keep)
        return self._slice(offset, size_bytes)

    def fill(self, buffer: memoryview, offset: int) -> int:
        """See `ScannedBytes`."""
        data = self.near(offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """See `ScannedBytes`."""
        self._window = b""

    def _has(self, offset: int, size_bytes: int) -> bool:
        stop = min(offset + size_bytes, self.size_bytes)
        return stop <= offset or (self._window_at <= offset and stop <= self._window_at + len(self._window))

    def _slice(self, offset: int, size_bytes: int) -> bytes:
        start = max(offset - self._window_at, 0)
        return self._window[start : start + size_bytes]

    def _fetch(self, offset: int, size_bytes: int, *, keep: bool) -> None:
        """Make [offset, offset + size_bytes), as far as the object has it, the window; what is there is kept."""
        stop = min(offset + size_bytes, self.size_bytes)
        kept = self._window[offset - self._window_at :] if offset >= self._window_at else b""
        begin = offset + len(kept)
        fetched = self._through_cache(begin, stop) if keep else self._in_pieces(begin, stop)
        self._window = b"".join([kept, *fetched])
        self._window_at = offset

    def _through_cache(self, start: int, stop: int) -> list[bytes]:
        if start >= stop:
            return []
        return self._files.read_spans([self._url], np.zeros(1, np.int64), np.array([start]), np.array([stop]))

    def _in_pieces(self, start: int, stop: int) -> list[memoryview]:
        def read(at: int) -> memoryview:
            return self._files.versions.read(self._url, self._version, at, min(at + _PIECE_BYTES, stop))

        return self._client.map(read, range(start, stop, _PIECE_BYTES))


class ObjectStream:
    """An object from its first byte to its last, as `open(path, "rb")` gives a file. It stays in the block cache.

    Args:
        url: Of the object.

    Raises:
        ReadError: There is none, or it cannot be reached.
    """

    def __init__(self, url: str) -> None:
        self._data = ObjectBytes(url, keep=True)
        self._at = 0

    def __enter__(self) -> ObjectStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._data.close()

    def read(self, size_bytes: int) -> bytes:
        """The next bytes; fewer only at the end, where there are none. Raises like `ObjectBytes`."""
        data = self._data.near(self._at, size_bytes)
        self._at += len(data)
        return data


def is_unchanged(url: str, generation: bytes) -> bool:
    """Whether an object still is the version that it was. Raises ReadError where that cannot be told."""
    found = shared_client(storage_settings()).read(ObjectRange(url, 0, 1, known=generation))
    return found is not None and found.data is None
