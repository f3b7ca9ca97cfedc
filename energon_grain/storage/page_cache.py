"""Pages of remote objects on a local disk, shared by all processes of a host: one file a page, whole or not there.

    <folder>/<2 hex digits>/<object>/<page>         the bytes of the page, then their CRC-32 (4 bytes)
    <folder>/<2 hex digits>/<object>/<page>.part    a page that is being fetched; its writer holds a lock on it

An object is named by its URL, its version and its size, so another version has other files. A page is written into its
`.part` file and renamed, so a killed process leaves no half page, and its lock goes with it; a page that lost its bytes
with the power is told by its sum, and fetched again. The lock lets others wait for a fetch in place of repeating it;
nothing depends on it, and pages that two processes do fetch are the same.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import resource
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence

from filelock import FileLock, Timeout

from energon_grain.errors import ConfigError
from energon_grain.storage.file_lock import open_unlinked
from energon_grain.storage.given_up import given_up

_logger = logging.getLogger("energon_grain")
_PART = ".part"
_SUM_BYTES = 4
_DISK_BLOCK = 4096
_KEPT_SHARE = 0.9
_RECOUNT_SHARE = 0.05
"""Of the limit: after so many bytes were written, what others wrote is counted too."""
_PAUSE_SECONDS = 60.0
_TOUCH_SECONDS = 60.0
_LOOK_SECONDS = 0.005
_MAX_VERIFIED = 200_000
_OPEN_SHARE = 8
"""One in so many of the descriptors that a process may have is for pages that were read last."""
_MAX_LOCKS = 256
"""Descriptors of a process for pages that it fetches: it may have 1,024, as a rule."""


class PageCache:
    """A folder of pages. Thread-safe.

    Nothing here raises because of the local disk but the making: what cannot be read is missing, what cannot be
    written is not kept.

    Args:
        folder: Made if missing. All processes of a host should name the same one.
        limit_bytes: What the pages may take on disk; the least recently used ones go. Several processes that write at
            once may pass it by a twentieth each.
        page_bytes: Of all pages but the last of an object.

    Raises:
        ConfigError: The folder cannot be made.
    """

    def __init__(self, folder: str, *, limit_bytes: int, page_bytes: int) -> None:
        self.folder = os.path.abspath(folder)
        self.limit_bytes = limit_bytes
        self.page_bytes = page_bytes
        try:
            os.makedirs(self.folder, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"cannot make the cache folder {self.folder}: {error.strerror}; name another as `cache_dir` in the "
                "storage settings"
            ) from error
        self.locks = threading.BoundedSemaphore(_MAX_LOCKS)
        self.verified: dict[str, float] = {}  # when each page that was seen to be right is to be touched again
        self.opened: dict[str, _OpenPage] = {}
        self._max_open = max(8, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 8192) // _OPEN_SHARE)
        self._space = threading.Lock()
        self._used_bytes = limit_bytes  # so that the first write counts
        self._written_bytes = 0
        self._closed_until = 0.0
        self._warned = False

    def open(self, name: str, version: bytes, size_bytes: int) -> CachedObject:
        """The pages of a version of an object."""
        identity = json.dumps([2, name, version.hex(), size_bytes, self.page_bytes])
        digest = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:40]
        return CachedObject(self, os.path.join(self.folder, digest[:2], digest[2:]), size_bytes)

    def remember(self, path: str, page: _OpenPage) -> None:
        """Keep a page open for the next read, in place of the one that was opened first."""
        with self._space:
            self.opened[path] = page
            if len(self.opened) > self._max_open:
                del self.opened[next(iter(self.opened))]

    def forget(self, path: str) -> None:
        """A page is not what it was."""
        self.verified.pop(path, None)
        with self._space:
            self.opened.pop(path, None)

    def make_room(self, size_bytes: int) -> bool:
        """Count bytes that are about to be written, and evict pages if they would pass the limit; whether they fit."""
        size_bytes = -(-size_bytes // _DISK_BLOCK) * _DISK_BLOCK
        if size_bytes > self.limit_bytes or time.monotonic() < self._closed_until:
            return False
        with self._space:
            self._written_bytes += size_bytes
            self._used_bytes += size_bytes
            if self._used_bytes > self.limit_bytes or self._written_bytes > self.limit_bytes * _RECOUNT_SHARE:
                try:
                    # Whoever else evicts makes room for this page too, but nobody knows when.
                    with FileLock(os.path.join(self.folder, "evict.lock"), timeout=0):
                        self._used_bytes = self._evicted(size_bytes) + size_bytes
                except (Timeout, OSError):
                    self._used_bytes = self.limit_bytes
                    return False
                self._written_bytes = size_bytes
            return self._used_bytes <= self.limit_bytes

    def _evicted(self, needed_bytes: int) -> int:
        """Count the pages, and remove the oldest if there is no room for `needed_bytes`; the bytes that are left."""
        pages: list[tuple[float, int, str]] = []
        for shelf in _folders(self.folder):
            for one in _folders(shelf):
                with contextlib.suppress(OSError), os.scandir(one) as entries:
                    for entry in entries:
                        with contextlib.suppress(FileNotFoundError):
                            told = entry.stat(follow_symlinks=False)
                            pages.append((told.st_mtime, told.st_blocks * 512, entry.path))
        used = sum(size for _, size, _ in pages)
        if used + needed_bytes <= self.limit_bytes:
            return used
        kept = min(int(self.limit_bytes * _KEPT_SHARE), self.limit_bytes - needed_bytes)
        for _, size, path in sorted(pages):
            if used <= kept:
                break
            if path.endswith(_PART) and _is_locked(path):
                continue
            with contextlib.suppress(OSError):
                os.unlink(path)
                used -= size
                self.verified.pop(path, None)
                self.opened.pop(path, None)
                os.rmdir(os.path.dirname(path))  # the last page of an object
        return used

    def give_up(self, error: OSError) -> None:
        """Write nothing for a minute, and say so once, because something is wrong with the disk."""
        self._closed_until = time.monotonic() + _PAUSE_SECONDS
        if not self._warned:
            self._warned = True
            _logger.warning(
                "the page cache %s cannot be written (%s); reading goes on without adding to it", self.folder, error
            )


class CachedObject:
    """The pages of one version of an object.

    Args:
        cache: Where they are.
        folder: Of theirs.
        size_bytes: Of the object.
    """

    __slots__ = ("_cache", "_folder", "_size_bytes")

    def __init__(self, cache: PageCache, folder: str, size_bytes: int) -> None:
        self._cache = cache
        self._folder = folder
        self._size_bytes = size_bytes

    def read(self, start: int, stop: int) -> bytes | None:
        """Bytes [start, stop) of the object, or None where a page of theirs is missing."""
        size = self._cache.page_bytes
        parts: list[bytes] = []
        while start < stop:
            page, end = start // size, min(stop, (start // size + 1) * size)
            part = self._read(page, start - page * size, end - page * size)
            if part is None:
                return None
            parts.append(part)
            start = end
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def missing(self, first: int, stop: int) -> list[int]:
        """Those of the pages [first, stop) that are absent or damaged. Each is verified once, and may go afterwards."""
        return [page for page in range(first, stop) if not self._is_there(page)]

    def has_verified(self, first: int, stop: int) -> bool:
        """Whether this process knows, without looking, that the pages [first, stop) are there."""
        return all(self.path(page) in self._cache.verified for page in range(first, stop))

    def claim(self, pages: Iterable[int]) -> Claim:
        """Take the right to fetch those pages that are missing and that nobody else is fetching, without waiting.

        Whoever holds claims must not `wait`: fetch, put and release them first, or two would wait for each other.
        """
        claim = Claim(self._cache, self)
        try:
            for page in pages:
                claim.take(page)
        except BaseException:
            claim.release()
            raise
        return claim

    def wait(self, pages: Sequence[int], *, timeout_seconds: float) -> None:
        """Wait until nobody is fetching any of the pages: then they are there, or can be claimed."""
        end = time.monotonic() + timeout_seconds
        for page in pages:
            while _is_locked(self.path(page) + _PART) and time.monotonic() < end and not given_up():
                time.sleep(_LOOK_SECONDS)

    def path(self, page: int) -> str:
        """Of the file of a page."""
        return f"{self._folder}/{page:08x}"

    def page_size(self, page: int) -> int:
        """Bytes of a page."""
        return min(self._cache.page_bytes, self._size_bytes - page * self._cache.page_bytes)

    def _is_there(self, page: int) -> bool:
        return self.path(page) in self._cache.verified or self._read(page, 0, 0) is not None

    def _read(self, page: int, start: int, stop: int) -> bytes | None:
        """Bytes [start, stop) of a page. All of it is read, and checked, the first time."""
        cache, path = self._cache, self.path(page)
        try:
            opened = cache.opened.get(path)
            if opened is None:
                opened = _OpenPage(path)
                if path not in cache.verified and not self._is_right(opened, page):
                    os.unlink(path)
                    return None
                cache.remember(path, opened)
            data = os.pread(opened.descriptor, stop - start, start)
            now = time.monotonic()
            if now > cache.verified.get(path, 0.0):
                if len(cache.verified) > _MAX_VERIFIED:
                    cache.verified.clear()
                cache.verified[path] = now + _TOUCH_SECONDS
                with contextlib.suppress(OSError):  # of somebody else's page, say
                    os.utime(opened.descriptor)
        except OSError:
            data = None
        if data is None or len(data) != stop - start:
            cache.forget(path)
            return None
        return data

    def _is_right(self, opened: _OpenPage, page: int) -> bool:
        size = self.page_size(page)
        data = os.pread(opened.descriptor, size + _SUM_BYTES + 1, 0)
        return len(data) == size + _SUM_BYTES and _sum(memoryview(data)[:size]) == data[size:]


class _OpenPage:
    """An open page, closed when the last reader lets go of it."""

    __slots__ = ("descriptor",)

    def __init__(self, path: str) -> None:
        self.descriptor = -1
        self.descriptor = open_unlinked(path, os.O_RDONLY)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # modules may be gone when programs end
        if self.descriptor >= 0:
            close(self.descriptor)


class Claim:
    """Pages that this thread is to fetch. A context that ends when they were fetched, or could not be.

    Attributes:
        pages: Which, ascending.
    """

    def __init__(self, cache: PageCache, of: CachedObject) -> None:
        self.pages: list[int] = []
        self._cache = cache
        self._of = of
        self._held: dict[int, int] = {}

    def take(self, page: int) -> None:
        """Claim a page, unless it is there or somebody else is fetching it."""
        path = self._of.path(page) + _PART
        if not self._cache.locks.acquire(blocking=False):
            self.pages.append(page)  # fetched, but not kept
            return
        held = None
        try:
            held = _locked_part(path)
            if held is None:
                return  # somebody else's
            if self._of.missing(page, page + 1):
                self.pages.append(page)
                self._held[page], held = held, None
            else:
                os.unlink(path)
        except OSError as error:
            self._cache.give_up(error)
            self.pages.append(page)
        finally:
            if page not in self._held:
                self._cache.locks.release()
                if held is not None:
                    _let_go(held)

    def put(self, first: int, data: bytes) -> bool:
        """Keep whole pages from `first` on, and let others have them.

        Returns:
            False: not all of them are kept.
        """
        view, kept = memoryview(data), True
        for page in range(first, first - (-len(data) // self._cache.page_bytes)):
            at = (page - first) * self._cache.page_bytes
            kept = self._put(page, view[at : at + self._of.page_size(page)]) and kept
        return kept

    def _put(self, page: int, data: memoryview) -> bool:
        held = self._held.get(page)
        if held is None or not self._cache.make_room(len(data) + _SUM_BYTES):
            return False
        path = self._of.path(page)
        try:
            os.ftruncate(held, 0)  # what a killed process had written
            if os.pwritev(held, [data, _sum(data)], 0) != len(data) + _SUM_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.rename(path + _PART, path)
        except OSError as error:
            self._cache.give_up(error)
            return False
        self._cache.verified[path] = time.monotonic() + _TOUCH_SECONDS
        del self._held[page]
        self._cache.locks.release()
        _let_go(held)
        return True

    def release(self) -> None:
        """Let others fetch what was not put."""
        for page, held in self._held.items():
            with contextlib.suppress(OSError):
                os.unlink(self._of.path(page) + _PART)
            self._cache.locks.release()
            _let_go(held)
        self._held.clear()

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _sum(data: memoryview) -> bytes:
    return zlib.crc32(data).to_bytes(_SUM_BYTES, "little")


def _locked_part(path: str) -> int | None:
    """Open and lock a `.part` file, made if there is none; None: another holds it. Raises OSError."""
    while True:
        try:
            descriptor = open_unlinked(path)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False)):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass  # it became a page, or was let go, before the lock was had
        _let_go(descriptor)


def _is_locked(path: str) -> bool:
    """Whether somebody is fetching a page."""
    try:
        descriptor = open_unlinked(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return False
    finally:
        os.close(descriptor)


def _let_go(descriptor: int) -> None:
    """Unlock a file and close it: closing does not unlock it where a child that was forked meanwhile has it too."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _folders(folder: str) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []
