"""Blocks of remote objects on a local disk, shared by all processes of a host, so that nothing is fetched twice.

A reader asks for bytes. Those that are missing it claims, fetches and puts; for those that others fetch it waits:

    cached = cache.open(url, etag, size_bytes)
    while (data := cached.read(start, stop)) is None:
        with cached.claim(cached.missing(first, end)) as claim:
            ...                                              # fetch the bytes of claim.blocks
            claim.put(block, fetched)                        # and use them here, kept or not
        cached.wait(range(first, end), timeout_seconds=60)   # then try again: another's fetch may have failed
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from typing import Any

from energon_grain.errors import ConfigError
from energon_grain.storage.block_copy import BlockCopy, ObjectVersion, new_token
from energon_grain.storage.block_space import BlockSpace
from energon_grain.storage.block_sums import PAGE_BYTES
from energon_grain.storage.cached_object import CachedObject
from energon_grain.storage.range_locks import EVERYTHING, RangeLocks

_MAX_OPEN = 40
_MAX_REMEMBERED = 10_000
"""Copies of which is remembered which blocks were verified: one byte a block."""

_all: weakref.WeakSet[BlockCache] = weakref.WeakSet()


class BlockCache:
    """A folder of blocks. Thread-safe, picklable, and safe to use in a forked child.

    Killing any process at any moment leaves a right cache, and so does a power cut: each process checks each block
    against its sum before it uses it for the first time.

    Args:
        folder: Made if missing. All processes of a host should name the same one.
        limit_bytes: What the files in it may take on disk, over all processes. Least recently used objects go as a
            whole. Blocks that do not fit even then are not kept.
        block_bytes: Multiple of 4096. Caches with other blocks may share the folder, but no data.

    Raises:
        ConfigError: The folder cannot be made, or its file system has no locks, or a number is out of range.
    """

    def __init__(self, folder: str | os.PathLike[str], *, limit_bytes: int, block_bytes: int = 256 << 10) -> None:
        if block_bytes < PAGE_BYTES or block_bytes % PAGE_BYTES:
            raise ConfigError(f"block_bytes={block_bytes}: use a multiple of {PAGE_BYTES}")
        if limit_bytes < 1:
            raise ConfigError(f"limit_bytes={limit_bytes}: a block cache needs space")
        self.folder = os.path.abspath(folder)
        self.limit_bytes = limit_bytes
        self.block_bytes = block_bytes
        try:
            os.makedirs(os.path.join(self.folder, "objects"), exist_ok=True)
            self.space = BlockSpace(self.folder, limit_bytes)
        except OSError as error:
            raise ConfigError(
                f"cannot make the block cache {self.folder}: {error.strerror}; name a folder on a local disk"
            ) from error
        self._open: OrderedDict[ObjectVersion, CachedObject] = OrderedDict()
        self._verified: OrderedDict[bytes, bytearray] = OrderedDict()
        self._lock = threading.Lock()
        _all.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.folder, self.limit_bytes, self.block_bytes)

    def open(self, name: str, version: bytes, size_bytes: int) -> CachedObject:
        """The blocks of an object. At most 40 objects are kept open; their users hold others as long as they need them.

        Args:
            name: Of the object: its URL.
            version: What changes with its content: generation or entity tag.
            size_bytes: Of this version.
        """
        key = ObjectVersion(name=name, version=version, size_bytes=size_bytes, block_bytes=self.block_bytes)
        with self._lock:
            cached = self._open.get(key)
            if cached is None:
                cached = self._open[key] = CachedObject(self, key, key.path(self.folder))
                if len(self._open) > _MAX_OPEN:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(key)
            return cached

    def open_copy(self, of: ObjectVersion, path: str) -> BlockCopy | None:
        """The copy at `path`, made if there is none. None: the disk or the limit does not allow it."""
        try:
            copy = BlockCopy(path, of)
        except FileNotFoundError:
            copy = self._make_copy(of, path)
        except OSError as error:
            self.space.give_up(error)
            return None
        if copy is not None:
            with self._lock:
                copy.verified = self._verified.setdefault(copy.token, copy.verified)
                self._verified.move_to_end(copy.token)
                if len(self._verified) > _MAX_REMEMBERED:
                    self._verified.popitem(last=False)
        return copy

    def close(self) -> None:
        """Close every file that no reader is using."""
        with self._lock:
            self._open.clear()

    def _make_copy(self, of: ObjectVersion, path: str) -> BlockCopy | None:
        if self.space.closed:
            return None
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with self.space.lock():
                try:
                    return BlockCopy(path, of)  # somebody else was quicker
                except FileNotFoundError:
                    return self._write_copy(of, path)
        except OSError as error:
            self.space.give_up(error)
            return None

    def _write_copy(self, of: ObjectVersion, path: str) -> BlockCopy | None:
        """Make a copy without any block, inside the lock of the space.

        A header that is not yet written, or was lost with the power, is none: then the file is made anew.
        """
        locks = RangeLocks(path, create=True)
        try:
            if not locks.take(0, EVERYTHING):
                return None
            os.ftruncate(locks.descriptor, 0)
            if not self.space.allocate(locks.descriptor, 0, of.data_start):
                os.unlink(path)
                return None
            os.pwrite(locks.descriptor, of.header(new_token()), 0)
        finally:
            locks.close()
        return BlockCopy(path, of)


def _renew_locks() -> None:
    for cache in tuple(_all):
        cache._lock = threading.Lock()


# In a forked child nobody is left to release what another thread held. Open files are shared: `pread` moves nothing.
os.register_at_fork(after_in_child=_renew_locks)


def _restore(folder: str, limit_bytes: int, block_bytes: int) -> BlockCache:
    return BlockCache(folder, limit_bytes=limit_bytes, block_bytes=block_bytes)
