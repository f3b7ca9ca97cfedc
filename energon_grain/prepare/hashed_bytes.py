# SPDX-License-Identifier: Apache-2.0
"""The digest of a file or object, made of the bytes that a scan reads anyway."""

from __future__ import annotations

import xxhash

from energon_grain.storage.digests import PAGE_BYTES, ShardDigest
from energon_grain.storage.scanned_bytes import ScannedBytes

_FREE_BYTES = 1 << 20
_FREE_SHARE = 8
"""Bytes read for the digest alone: at most a MiB and this share of the bytes that the scan reads."""


class HashedBytes(ScannedBytes):
    """Bytes of a scan, hashed as they pass by, with the short pieces that the scan skips.

    If the scan skips more, there is no digest, unless `whole`: then the skipped bytes are read, too. For local files.
    """

    def __init__(self, data: ScannedBytes, *, whole: bool = False) -> None:
        self._data, self._whole_file = data, whole
        self.size_bytes, self.generation, self.skip_bytes = data.size_bytes, data.generation, data.skip_bytes
        self._whole, self._page, self._pages = xxhash.xxh3_128(), xxhash.xxh3_64(), bytearray()
        self._at = self._extra = 0  # bytes that are hashed, and those of them that were read for this alone
        self._lost = False

    def digest(self) -> ShardDigest | None:
        """The digest, after the scan; None: the scan skipped too many bytes."""
        self._reach(self.size_bytes)
        if self._lost or self._at < self.size_bytes:
            return None
        if self._at % PAGE_BYTES:
            self._pages += self._page.digest()
        return ShardDigest(size_bytes=self.size_bytes, digest=self._whole.hexdigest(), pages=bytes(self._pages))

    def read_random(self, offset: int, size_bytes: int) -> bytes:
        data = self._data.read_random(offset, size_bytes)
        self._seen(offset, memoryview(data))
        return data

    def read_sequential(self, offset: int, size_bytes: int) -> bytes:
        data = self._data.read_sequential(offset, size_bytes)
        self._seen(offset, memoryview(data))
        return data

    def fill(self, buffer: memoryview, offset: int) -> int:
        count = self._data.fill(buffer, offset)
        self._seen(offset, buffer[:count])
        return count

    def close(self) -> None:
        self._data.close()

    def _seen(self, offset: int, data: memoryview) -> None:
        if self._at < offset:
            self._reach(offset)
        if not self._lost and offset + len(data) > self._at:
            self._add(data[self._at - offset :])

    def _reach(self, offset: int) -> None:
        """Hash the bytes up to an offset that were not read."""
        while self._at < offset and not self._lost:
            size_bytes = min(offset - self._at, PAGE_BYTES)
            self._extra += size_bytes
            if not self._whole_file and self._extra > _FREE_BYTES + self._at // _FREE_SHARE:
                self._lose()
                return
            piece = self._data.read_sequential(self._at, size_bytes)
            if not piece:
                return
            self._add(memoryview(piece))

    def _lose(self) -> None:
        """Hash no more: from now on, reads are those of the file itself."""
        self._lost = True
        data = self._data
        vars(self).update(read_random=data.read_random, read_sequential=data.read_sequential, fill=data.fill)

    def _add(self, data: memoryview) -> None:
        self._whole.update(data)
        while len(data):
            left = PAGE_BYTES - self._at % PAGE_BYTES
            self._page.update(data[:left])
            self._at += min(left, len(data))
            if not self._at % PAGE_BYTES:
                self._pages += self._page.digest()
                self._page.reset()
            data = data[left:]
