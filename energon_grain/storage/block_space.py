"""How many bytes a block cache takes, over all processes of a host, and which copies go when it is full.

Space is allocated (`fallocate`) under one lock, so the limit is never passed, and a count over all files is exact at
any time. Between such counts a number in the file `usage` is kept, which can only be too high: by what a killed process
meant to take.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Generator
from dataclasses import dataclass

from energon_grain.storage.block_sums import PAGE_BYTES
from energon_grain.storage.file_lock import open_unlinked
from energon_grain.storage.range_locks import EVERYTHING, RangeLocks

_logger = logging.getLogger("energon_grain")
_PATIENCE_SECONDS = 10.0
_PAUSE_SECONDS = 60.0
_FULL = (errno.ENOSPC, errno.EDQUOT)
_KEPT_SHARE = 0.9
_MAP_BYTES = 4 * PAGE_BYTES
"""What the file system may take to note where the pieces of a file lie."""
_COUNTING_SHARE = 20
"""After counting in vain, that many times as long passes before the next try."""


class CacheStuckError(OSError):
    """Another process holds the lock of the cache and does not go on."""


@dataclass(frozen=True, slots=True)
class _Found:
    used_seconds: float
    allocated_bytes: int
    path: str


class BlockSpace:
    """The bound on a cache folder.

    Args:
        folder: Of the cache.
        limit_bytes: Most bytes that its files take on disk.

    Raises:
        OSError: The folder cannot be written, or has no locks.
    """

    def __init__(self, folder: str, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._boot = _boot_id()
        self._closed_until = 0.0
        self._warned = False
        with self.lock():
            pass

    @property
    def closed(self) -> bool:
        """Whether it is not worth trying to write for now."""
        return time.monotonic() < self._closed_until

    @contextlib.contextmanager
    def lock(self) -> Generator[None]:
        """Exclude every other process and thread from `allocate` and from making or evicting copies.

        Raises:
            CacheStuckError: It was not had within 10 s.
            OSError: The folder cannot be written.
        """
        locks = RangeLocks(os.path.join(self._folder, "usage"), create=True)
        try:
            if not locks.take_within(0, 1, timeout_seconds=_PATIENCE_SECONDS):
                raise CacheStuckError(f"{self._folder} was locked by another process for {_PATIENCE_SECONDS:g} s")
            yield
        finally:
            locks.close()

    def allocate(self, descriptor: int, start: int, stop: int) -> bool:
        """Give bytes [start, stop) of a file their place on disk, inside `lock()`.

        Least recently used copies go where the limit or the disk asks for it.

        Returns:
            False: the limit does not allow it, even with all copies gone that nobody is writing to.

        Raises:
            OSError: The disk is full, also after copies have gone, or fails.
        """
        size = -(-(stop - start) // PAGE_BYTES) * PAGE_BYTES + _MAP_BYTES
        used = self._used_bytes()
        if used is None or used + size > self._limit_bytes:
            began = time.monotonic()
            used = self._evict(int(self._limit_bytes * _KEPT_SHARE) - size, self._limit_bytes - size)
            if used + size > self._limit_bytes:
                self._write_used_bytes(used)
                now = time.monotonic()
                self._closed_until = now + _COUNTING_SHARE * (now - began)
                return False
        self._write_used_bytes(used + size)
        before = os.fstat(descriptor).st_blocks
        try:
            os.posix_fallocate(descriptor, start, stop - start)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            kept = int(used * _KEPT_SHARE)
            used = self._evict(kept, kept)
            self._write_used_bytes(used + size)
            os.posix_fallocate(descriptor, start, stop - start)
        self._write_used_bytes(used + (os.fstat(descriptor).st_blocks - before) * 512)
        return True

    def give_up(self, error: Exception) -> None:
        """Write nothing for a minute, and say so once, because something is wrong with the disk or its lock."""
        self._closed_until = time.monotonic() + _PAUSE_SECONDS
        if not self._warned:
            self._warned = True
            _logger.warning(
                "the block cache %s cannot be written (%s); reading goes on without adding to it",
                self._folder,
                error,
            )

    def _evict(self, kept_bytes: int, needed_bytes: int) -> int:
        """Count what is there, and remove copies until `kept_bytes` are left if there are more than `needed_bytes`.

        Copies of which a block is being fetched stay.

        Returns:
            Bytes that are left.
        """
        found = self._scan()
        used = sum(copy.allocated_bytes for copy in found)
        if used <= needed_bytes:
            return used
        for copy in sorted(found, key=lambda copy: copy.used_seconds):
            if used <= kept_bytes:
                break
            if _remove(copy.path):
                used -= copy.allocated_bytes
        return used

    def _scan(self) -> list[_Found]:
        found: list[_Found] = []
        objects = os.path.join(self._folder, "objects")
        with contextlib.suppress(FileNotFoundError):
            for shelf in os.scandir(objects):
                for entry in os.scandir(shelf):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat()
                        found.append(_Found(status.st_mtime, status.st_blocks * 512, entry.path))
        return found

    def _used_bytes(self) -> int | None:
        """What the file says. None: it was written before the machine started last, or not at all."""
        try:
            with open(os.path.join(self._folder, "usage"), encoding="ascii", opener=open_unlinked) as file:
                boot, used = file.read().split()
            return int(used) if boot == self._boot else None
        except (OSError, ValueError):
            return None

    def _write_used_bytes(self, used: int) -> None:
        text = f"{self._boot} {used:20d}\n"
        descriptor = open_unlinked(os.path.join(self._folder, "usage"), os.O_WRONLY)
        try:
            os.pwrite(descriptor, text.encode(), 0)
        finally:
            os.close(descriptor)


def _remove(path: str) -> bool:
    """Unlink a copy and free its space at once, though readers may have it open: they then find less than was there.

    Returns:
        False: a block of it is being fetched, or it is not ours to remove.
    """
    try:
        locks = RangeLocks(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        if not locks.take(0, EVERYTHING):
            return False
        os.unlink(path)
        os.ftruncate(locks.descriptor, 0)  # nobody writes: who took the locks of a block since sees that it is unlinked
        return True
    finally:
        locks.close()


def _boot_id() -> str:
    """Changes when the machine starts: files that were not flushed may since be old."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "unknown"
