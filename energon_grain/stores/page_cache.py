# SPDX-License-Identifier: Apache-2.0
"""Pages of remote objects on a local disk, shared by all processes of a host, without locks for reads or writes.

    <folder>/<2 hex digits>/<object>-<number>    a stretch of 8 MiB of an object, one file:
        4096 bytes        a sum of each page, 8 bytes each; 0: the page is missing; at the end the object's size
        32 x 256 KiB      the pages, each at its position; the file has a hole for a missing one

An object is identified by its URL, version and size, so another version has other files. A page is written before its
sum, and is valid only if the two match. After a killed writer, a power cut, or a truncated or overwritten file, such
pages count as missing and are fetched again. The bytes of a response are written as they arrive, and their sums only
after the whole response was checked: until then they are not pages. Two processes that fetch the same page write the
same bytes and the same sum to the same place. A file has its full length from the beginning and never changes it. A
truncated file is not extended, which would show zeros to readers that have verified it, but replaced. An open file
therefore stays valid, even after it is evicted.

The sum is XXH3-64 (https://xxhash.com), whose cost is negligible beside the copying.

Why not one file per page: on ext4, creating and removing a file takes as long as writing a megabyte. Writing a GB takes
1.3 core-seconds in files of 256 KiB and 0.3 in files of 8 MiB, and 32 times as many pages stay open for reading.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import logging
import os
import resource
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

import xxhash
from filelock import FileLock, Timeout

from energon_grain.errors import ConfigError
from energon_grain.storage.traffic import count

_logger = logging.getLogger("energon_grain")
_SUM_BYTES = 8
_HEADER_BYTES = 4096
_SIZE_AT = _HEADER_BYTES - 8
_DISK_BLOCK = 4096
_NO_SUM = bytes(_SUM_BYTES)
_FORMAT = 5
"""Part of each file's name. A new number drops the pages of earlier releases, if these may be wrong. Pages of format 4
may hold bytes that a server sent after the requested range."""
_KEPT_SHARE = 0.9
_RECOUNT_SHARE = 0.05
"""Share of the limit: after writing this many bytes, other processes' writes are counted, too."""
_PAUSE_SECONDS = 60.0
_FULL_SECONDS = 60.0
"""How long a cache that is full of files in use counts as full."""
_ROUNDED_TIMES = 2
_COUNT_SECONDS = 1.0
_IDLE_SECONDS = 180.0
"""A file that was used since is probably in use by another process."""
_TOUCH_SECONDS = 60.0
_MAX_KNOWN = 100_000
_OPEN_SHARE = 8
"""The open stretches may use one in this many of the process's file descriptors and of the bytes of the limit: a
stretch that another process evicts occupies disk space until it is closed."""
_MAX_OPEN = 1024
_MOST_PARTS = 256
"""Maximum number of parts of a page while its bytes arrive: the system writes 1,024 at once."""
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW
"""A folder that others may write to may hold symbolic links, which could lead anywhere."""


class PageCache:
    """A folder of pages. Thread-safe.

    Apart from the constructor, nothing raises errors of the local disk: unreadable pages count as missing, and pages
    that cannot be written are not cached.

    Args:
        folder: Created if it is missing. All processes of a host should use the same one.
        limit_bytes: Maximum size of the pages on disk; the least recently read stretches are evicted first. Processes
            that write at the same time may exceed it by a twentieth each.
        page_bytes: Size of all pages except the last one of an object; a multiple of 4096.

    Raises ConfigError: the folder cannot be created.
    """

    def __init__(self, folder: str, *, limit_bytes: int, page_bytes: int = 256 << 10, stretch_pages: int = 32) -> None:
        assert stretch_pages * _SUM_BYTES <= _SIZE_AT
        self.folder = os.path.abspath(folder)
        self.limit_bytes = limit_bytes
        self.page_bytes = page_bytes
        self.stretch_pages = stretch_pages
        try:
            os.makedirs(self.folder, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"cannot create the cache folder {self.folder}: {error.strerror}; set `cache_dir` in the storage "
                "settings to a writable folder"
            ) from error
        self._file_bytes = _HEADER_BYTES + page_bytes * stretch_pages
        self.in_flight: dict[tuple[int, str, int], threading.Event] = {}
        self._opened: dict[str, _Stretch] = {}
        self._known: dict[str, _Known] = {}
        self._evicted_paths: set[str] = set()  # evicted stretches, up to a limit
        self._passed: dict[str, int] = {}  # by stretch, up to a limit: bit p: bytes of page p were fetched and not kept
        # One thread hashes and writes at a time: dozens would mostly contend for the GIL.
        self.writing = threading.Lock()
        self._space = threading.Lock()
        self._used_bytes = limit_bytes  # so that the first write counts the files
        self._written_bytes = 0
        self._closed_until = self._full_until = self._count_open_at = 0.0
        self._rounds = True
        self._open: weakref.WeakValueDictionary[str, CachedObject] = weakref.WeakValueDictionary()
        self._warned = False

    def open(self, name: str, version: bytes, size_bytes: int) -> CachedObject:
        """The pages of a version of an object."""
        identity = json.dumps([_FORMAT, name, version.hex(), size_bytes, self.page_bytes, self.stretch_pages])
        digest = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:40]
        path = os.path.join(self.folder, digest[:2], digest[2:])
        found = self._open.get(path)
        return self._open.setdefault(path, CachedObject(self, path, size_bytes)) if found is None else found

    def stretch(self, path: str, *, writing: bool = False) -> _Stretch:
        """The open file of a stretch, created if it is missing and `writing`. Raises OSError."""
        found = self._opened.get(path)
        now = time.monotonic()
        if found is not None and (writing or now > found.known.touch_at) and not self._serves(found, path, writing):
            found = None
        if found is None:
            self._opened.pop(path, None)
            found = _Stretch(path, self.known(path), self._file_bytes if writing else None)
            self._opened[path] = found
            with contextlib.suppress(StopIteration, RuntimeError, KeyError):  # concurrent changes by other threads
                while len(self._opened) > self._max_open():
                    del self._opened[next(iter(self._opened))]
        if now > found.known.touch_at:
            found.known.touch_at = now + _TOUCH_SECONDS
            with contextlib.suppress(OSError):  # for example, another user's file
                os.utime(found.descriptor)
        return found

    def _serves(self, stretch: _Stretch, path: str, writing: bool) -> bool:
        status = os.fstat(stretch.descriptor)
        if status.st_nlink == 0:  # evicted: a new file at this path has other pages
            self.forget(path)
            return False
        # A file that is not writable belongs to another user, or was truncated.
        return not writing or (stretch.writable and status.st_size == self._file_bytes)

    def known(self, path: str) -> _Known:
        """This process's knowledge of a stretch."""
        if len(self._known) > _MAX_KNOWN:
            self._known.clear()
        return self._known.setdefault(path, _Known(bytearray(_SUM_BYTES * self.stretch_pages)))

    def forget(self, path: str) -> None:
        """Discard the knowledge of a stretch, because its file has changed."""
        self._opened.pop(path, None)
        self._known.pop(path, None)

    def admits(self, size_bytes: int) -> bool:
        """Whether this number of bytes may be written without evicting files in use."""
        return time.monotonic() >= self._closed_until and self._has_room(self._on_disk(size_bytes), in_use=False)

    def rounds(self) -> bool:
        """Whether pages are worth fetching for ranges that need only parts of them.

        The other parts are used later if at least half of the open objects fits. In a smaller cache, few of the pages
        are there when they are needed, so only pages that were fetched as a whole are written.
        """
        with self._space:
            now = time.monotonic()
            if now >= self._count_open_at:
                self._count_open_at = now + _COUNT_SECONDS
                open_bytes = sum(each.size_bytes for each in list(self._open.values()))
                self._rounds = open_bytes <= self.limit_bytes * _ROUNDED_TIMES
            return self._rounds

    def reserve(self, size_bytes: int, *, makes_room: bool = False) -> bool:
        """Reserve bytes for a write; returns whether they fit.

        Args:
            makes_room: Evict files in use, too, the least recently used first.
        """
        size_bytes = self._on_disk(size_bytes)
        if time.monotonic() < self._closed_until or not self._has_room(size_bytes, in_use=makes_room):
            return False
        with self._space:
            self._written_bytes += size_bytes
            self._used_bytes += size_bytes
        return True

    def _on_disk(self, size_bytes: int) -> int:
        return _HEADER_BYTES - (-size_bytes // _DISK_BLOCK) * _DISK_BLOCK

    def _has_room(self, size_bytes: int, *, in_use: bool) -> bool:
        """Whether bytes fit, after evicting files if necessary."""
        if size_bytes > self.limit_bytes:
            return False
        with self._space:
            after = self._used_bytes + size_bytes
            if after <= self.limit_bytes and self._written_bytes + size_bytes <= self.limit_bytes * _RECOUNT_SHARE:
                return True
            if not in_use and time.monotonic() < self._full_until:
                return False
            try:
                with FileLock(os.path.join(self.folder, "evict.lock"), timeout=0):
                    self._used_bytes = self._evicted(size_bytes, in_use=in_use)
            except Timeout:  # another process is evicting, which makes space for this page, too
                return after <= self.limit_bytes * (1 + _RECOUNT_SHARE)
            except (OSError, NotImplementedError):  # the latter: a file system without locks
                self._used_bytes = self.limit_bytes
                return False
            self._written_bytes = 0
            fits = self._used_bytes + size_bytes <= self.limit_bytes
            if not fits:
                self._full_until = time.monotonic() + _FULL_SECONDS
            return fits

    def _files(self) -> Iterator[tuple[float, int, str]]:
        """(time of use, bytes, path) of each file, except those being created."""
        being_made = time.time() - _PAUSE_SECONDS  # an older empty file was left by a killed process
        with contextlib.suppress(OSError), os.scandir(self.folder) as subfolders:
            for subfolder in subfolders:
                if not subfolder.is_dir(follow_symlinks=False):
                    continue
                with contextlib.suppress(OSError), os.scandir(subfolder) as entries:
                    for entry in entries:
                        with contextlib.suppress(FileNotFoundError):
                            status = entry.stat(follow_symlinks=False)
                            if status.st_blocks or status.st_mtime < being_made:
                                yield status.st_mtime, status.st_blocks * 512, entry.path

    def _evicted(self, needed_bytes: int, *, in_use: bool) -> int:
        """Count the used bytes, and remove the oldest files until `needed_bytes` fit; returns the bytes used.

        Files in use remain, unless `in_use`, or all together exceed the limit: every pass reads them again, in another
        order, so replacing them by others of the same pass would save no requests.
        """
        files = sorted(self._files())
        used = sum(size for _, size, _ in files)
        if used + needed_bytes <= self.limit_bytes:
            return used
        kept = min(int(self.limit_bytes * _KEPT_SHARE), self.limit_bytes - needed_bytes)
        idle = time.time() - _IDLE_SECONDS
        for modified, size, path in files:
            if used <= kept:
                break
            if used <= self.limit_bytes and not in_use and (modified > idle or path[: -len("-000000")] in self._open):
                continue
            with contextlib.suppress(OSError):
                os.unlink(path)
                used -= size
                self.forget(path)
                if len(self._evicted_paths) < _MAX_KNOWN:
                    self._evicted_paths.add(path)
        return used

    def was_evicted(self, path: str) -> bool:
        """Whether this process has evicted this stretch before."""
        return path in self._evicted_paths

    def passes(self, path: str, page: int) -> bool:
        """Record that bytes of a page were fetched and not kept; returns whether this is not the first time."""
        before = self._passed.get(path, 0)
        if path in self._passed or len(self._passed) < _MAX_KNOWN:
            self._passed[path] = before | 1 << page
        return bool(before >> page & 1)

    def pause_writing(self, error: OSError) -> None:
        """Stop writing for a minute, with one warning, because the disk has a problem."""
        self._closed_until = time.monotonic() + _PAUSE_SECONDS
        if not self._warned:
            self._warned = True
            _logger.warning(
                "cannot write to the page cache %s (%s); reading continues without caching. It holds up to %.1f GB of "
                "pages: free that much space, or set a smaller `cache_bytes`, or another `cache_dir`, in the storage "
                "settings",
                self.folder,
                error,
                self.limit_bytes / 1e9,
            )

    def _max_open(self) -> int:
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _OPEN_SHARE
        capacity = self.limit_bytes // (self.page_bytes * self.stretch_pages) // _OPEN_SHARE
        return max(8, min(descriptors, capacity, _MAX_OPEN))


class CachedObject:
    """The pages of one version of an object, in files whose paths begin with `path`."""

    __slots__ = ("__weakref__", "_cache", "_path", "_paths", "_stretch_bytes", "page_bytes", "size_bytes")

    def __init__(self, cache: PageCache, path: str, size_bytes: int) -> None:
        self._cache = cache
        self._path = path
        self._paths: dict[int, str] = {}
        self.size_bytes = size_bytes
        self._stretch_bytes = cache.page_bytes * cache.stretch_pages
        self.page_bytes = cache.page_bytes

    def read(self, start: int, stop: int) -> bytes | None:
        """Bytes [start, stop) of the object, or None if a page of them is missing."""
        return self.read_each([start], [stop])[0]

    def read_each(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes | None]:
        """Bytes [starts[i], stops[i]) of the object for every i, or None if a page of them is missing.

        For pages that this process has checked, each is one `pread`. Ranges in the same stretch, up to the next missing
        or unchecked page, need no further check.
        """
        found: list[bytes | None] = []
        stretch: _Stretch | None = None
        low = high = shift = 0  # bytes [low, high) of the object are known to be in the stretch
        for start, stop in zip(starts, stops, strict=True):
            if low > start or stop > high:
                number = start // self._stretch_bytes
                base = number * self._stretch_bytes
                if start >= stop:
                    found.append(b"")
                    continue
                if stop > base + self._stretch_bytes:
                    cuts = [start, *range(base + self._stretch_bytes, stop, self._stretch_bytes), stop]
                    parts = self.read_each(cuts[:-1], cuts[1:])
                    found.append(None if None in parts else b"".join(parts))  # type: ignore[arg-type]
                    continue
                first, end = (start - base) // self.page_bytes, -((base - stop) // self.page_bytes)
                stretch = self._open(number)
                if stretch is None or not self._has(stretch, number, first, end):
                    stretch, low, high = None, 0, 0
                    found.append(None)
                    continue
                absent = ~stretch.there >> end
                low = base + first * self.page_bytes
                high = base + (end + (absent & -absent).bit_length() - 1) * self.page_bytes
                shift = _HEADER_BYTES - base
            try:
                data = os.pread(stretch.descriptor, stop - start, start + shift) if stretch else b""
            except OSError:
                data = b""
            if len(data) != stop - start:  # truncated, or on a bad part of the disk: the knowledge is outdated
                self._cache.forget(self._path_of(start // self._stretch_bytes))
                stretch, low, high = None, 0, 0
                found.append(None)
            else:
                found.append(data)
        return found

    def missing(self, first: int, stop: int) -> list[int]:
        """The pages in [first, stop) that are missing or damaged. Each is checked once, and may be evicted later."""
        return self._missing(range(first, stop))

    def _missing(self, pages: Iterable[int]) -> list[int]:
        found: list[int] = []
        for number, own in itertools.groupby(pages, lambda page: page // self._cache.stretch_pages):
            stretch = self._open(number)
            places = [page - number * self._cache.stretch_pages for page in own]
            lost = [at for at in places if stretch is None or not self._has(stretch, number, at, at + 1)]
            found += [number * self._cache.stretch_pages + at for at in lost]
        return found

    def has_checked(self, first: int, stop: int) -> bool:
        """Whether this process has verified pages [first, stop); it checks a file again once a minute."""
        pages, now = self._cache.stretch_pages, time.monotonic()
        for number in range(first // pages, -(-stop // pages)):
            known = self._cache.known(self._path_of(number))
            begin, end = max(first, number * pages), min(stop, (number + 1) * pages)
            wanted = _bits(begin - number * pages, end - number * pages)
            if known.checked & wanted != wanted or (now > known.touch_at and self.missing(begin, end)):
                return False
        return True

    @contextlib.contextmanager
    def fetching(self, pages: Iterable[int]) -> Generator[tuple[list[int], set[threading.Event]]]:
        """Yield the missing pages that this thread must fetch and `put` inside the block, and events for the others.

        Other threads of this process are fetching the others, and set the events at the end of their blocks. Wait for
        them after the block, never inside: two threads would wait for each other.
        """
        process, mine = os.getpid(), threading.Event()  # another process after a fork: nothing is in flight
        in_flight = self._cache.in_flight
        others: set[threading.Event] = set()
        claimed: list[int] = []
        try:
            for page in pages:
                event = in_flight.setdefault((process, self._path, page), mine)
                if event is mine:
                    claimed.append(page)
                else:
                    others.add(event)
            yield self._missing(claimed), others
        finally:
            for page in claimed:
                del in_flight[process, self._path, page]
            mine.set()

    def admits(self, missing: Sequence[int]) -> bool:
        """Whether missing pages should be fetched and written: they fit without evicting files in use."""
        return self._cache.rounds() and self._cache.admits(len(missing) * self.page_bytes)

    def put_whole(self, start: int, pieces: Iterable[bytes | memoryview]) -> None:
        """Cache the pages that bytes from `start` on contain as a whole, if they fit without evicting files in use.

        The other bytes are counted if their pages were fetched before: a larger cache would have them.
        """
        parts = [memoryview(piece) for piece in pieces]
        stop = start + sum(map(len, parts))
        first, end = -(-start // self.page_bytes), stop // self.page_bytes
        if stop == self.size_bytes:
            end = -(-stop // self.page_bytes)
        if first < end and not self.missing(first, end):
            return
        if first >= end or not self._cache.admits((end - first) * self.page_bytes):
            self._count_passed(start, stop)
            return
        self._count_passed(start, first * self.page_bytes)
        self._count_passed(end * self.page_bytes, stop)
        writer = PageWriter(self, first, end)
        at, last = start, min(end * self.page_bytes, self.size_bytes)
        for part in parts:
            inside = part[max(0, first * self.page_bytes - at) : max(0, last - at)]
            if inside:
                writer.append(inside)
            at += len(part)
        writer.finish()

    def _count_passed(self, start: int, stop: int) -> None:
        """Count bytes [start, stop), which are not kept, if their pages were fetched before."""
        for page in range(start // self.page_bytes, -(-stop // self.page_bytes)):
            number, place = divmod(page, self._cache.stretch_pages)
            if self._cache.passes(self._path_of(number), place):
                begin = page * self.page_bytes
                count(fetched_again_bytes=min(stop, begin + self.page_bytes) - max(start, begin))

    def discard(self, page: int) -> None:
        """Remove a wrong page, even if its sum matches."""
        number, place = divmod(page, self._cache.stretch_pages)
        with contextlib.suppress(OSError):
            stretch = self._cache.stretch(self._path_of(number), writing=True)
            _write(stretch.descriptor, [_NO_SUM], place * _SUM_BYTES)
        self._cache.forget(self._path_of(number))

    def put(self, first: int, data: bytes | memoryview) -> bool:
        """Cache whole pages from `first` on, for all processes; returns whether all of them were cached."""
        writer = PageWriter(self, first, first + -(-len(data) // self.page_bytes))
        writer.append(data)
        return writer.finish()

    def write(
        self, first: int, parts: Sequence[bytes | memoryview], *, makes_room: bool = False
    ) -> list[_Written | None]:
        """Write whole pages from `first` on, or one in parts, without their sums; None for pages not cached."""
        data, size, pages = memoryview(parts[0]), self.page_bytes, self._cache.stretch_pages
        if len(parts) > 1:
            return [self._write(*divmod(first, pages), parts, makes_room=makes_room)]
        found: list[_Written | None] = []
        for number in range(first // pages, (first * size + len(data) - 1) // self._stretch_bytes + 1):
            page = max(first, number * pages)
            part = data[(page - first) * size : ((number + 1) * pages - first) * size]
            found.append(self._write(number, page - number * pages, [part], makes_room=makes_room))
        return found

    def _write(
        self, number: int, page: int, parts: Sequence[bytes | memoryview], *, makes_room: bool
    ) -> _Written | None:
        length, size, data = sum(map(len, parts)), self.page_bytes, parts[0]
        with self._cache.writing:
            if not self._cache.reserve(length, makes_room=makes_room):
                count(not_kept_bytes=length)
                return None
            in_pages = [[data[at : at + size]] for at in range(0, len(data), size)] if len(parts) == 1 else [parts]
            sums = b"".join(_sum(*each) for each in in_pages)
            try:
                stretch = self._cache.stretch(self._path_of(number), writing=True)
                known = os.pread(stretch.descriptor, len(sums), page * _SUM_BYTES)
                if any(known) and not self._may_replace(stretch, number, page, sums):
                    return None
                _write(stretch.descriptor, parts, _HEADER_BYTES + page * size)
            except OSError as error:
                self._cache.pause_writing(error)
                return None
            return _Written(self._path_of(number), stretch, page, sums, length)

    def _may_replace(self, stretch: _Stretch, number: int, first: int, sums: bytes) -> bool:
        """Whether pages, some with sums already, may be overwritten although other processes may read them.

        Pages that another process has cached meanwhile must be the same. A damaged one loses its sum. Raises OSError.
        """
        for page in range(first, first + len(sums) // _SUM_BYTES):
            if not self._check(stretch, number, page, page + 1):
                _write(stretch.descriptor, [_NO_SUM], page * _SUM_BYTES)
            elif stretch.known.sum_of(page) != sums[(page - first) * _SUM_BYTES :][:_SUM_BYTES]:
                _logger.warning(
                    "%s: the store sent different bytes for the same version of an object; the first ones are kept; "
                    "run `energon-grain cache check --against URL` to compare them with the store",
                    self._path_of(number),
                )
                return False
        return True

    def seal(self, written: _Written) -> bool:
        """Write the sums of written pages, which makes them valid; returns whether that succeeded."""
        try:
            _write(written.stretch.descriptor, [self.size_bytes.to_bytes(8, "little")], _SIZE_AT)
            _write(written.stretch.descriptor, [written.sums], written.page * _SUM_BYTES)
        except OSError as error:
            self._cache.pause_writing(error)
            return False
        written.stretch.has(written.page, written.sums)
        if self._cache.was_evicted(written.path):
            count(fetched_again_bytes=written.size_bytes)
        return True

    def _path_of(self, number: int) -> str:
        found = self._paths.get(number)
        if found is None:
            found = self._paths[number] = f"{self._path}-{number:06x}"
        return found

    def _open(self, number: int) -> _Stretch | None:
        try:
            return self._cache.stretch(self._path_of(number))
        except OSError:
            self._cache.forget(self._path_of(number))
            return None

    def _has(self, stretch: _Stretch, number: int, first: int, stop: int) -> bool:
        """Whether pages [first, stop) of a stretch are valid. Checks those that were not checked before."""
        wanted = _bits(first, stop)
        try:
            return stretch.there & wanted == wanted or self._check(stretch, number, first, stop)
        except OSError:
            self._cache.forget(self._path_of(number))
            return False

    def _check(self, stretch: _Stretch, number: int, first: int, stop: int) -> bool:
        """Whether pages [first, stop) of a stretch are valid. A page is hashed once per process, even if reopened."""
        sums = os.pread(stretch.descriptor, stop * _SUM_BYTES, 0)
        for page in range(first, stop):
            place = slice(page * _SUM_BYTES, (page + 1) * _SUM_BYTES)
            found = sums[place]
            if len(found) < _SUM_BYTES or found == _NO_SUM:
                return False
            if found != stretch.known.sum_of(page):
                start = number * self._stretch_bytes + page * self.page_bytes
                size = min(self.page_bytes, self.size_bytes - start)
                data = os.pread(stretch.descriptor, size, _HEADER_BYTES + page * self.page_bytes)
                if len(data) != size or _sum(data) != found:
                    return False
            stretch.has(page, found)
        return True


@dataclass(slots=True)
class _Written:
    """Pages of a stretch whose bytes are written, but not their sums."""

    path: str
    stretch: _Stretch
    page: int
    sums: bytes
    size_bytes: int

    def extend(self, other: _Written) -> bool:
        """Merge pages that follow in the same file, to write their sums together; returns whether they follow."""
        if other.stretch is not self.stretch or other.page != self.page + len(self.sums) // _SUM_BYTES:
            return False
        self.sums += other.sums
        self.size_bytes += other.size_bytes
        return True


class PageWriter:
    """Writes pages [first, stop) of an object as their bytes arrive; `finish` makes them valid.

    Call `finish` after the response was checked. Without it nothing is cached. `append` refuses bytes after the last
    page.

    Args:
        makes_room: Evict files in use if necessary.

    Attributes:
        refused: (first page, parts) of pages that were not cached.
    """

    __slots__ = ("_left_bytes", "_makes_room", "_page", "_pages", "_rest", "_written", "refused")

    def __init__(self, pages: CachedObject, first: int, stop: int, *, makes_room: bool = False) -> None:
        self.refused: list[tuple[int, Sequence[memoryview]]] = []
        self._makes_room = makes_room
        self._pages = pages
        self._page = first
        self._left_bytes = min(stop * pages.page_bytes, pages.size_bytes) - first * pages.page_bytes
        self._rest: list[memoryview] = []
        self._written: list[_Written] = []

    def append(self, piece: bytes | memoryview, /) -> None:
        """Take the next bytes, in pieces of any length. Raises ValueError after the last page."""
        data, size = memoryview(piece), self._pages.page_bytes
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise ValueError(f"{-self._left_bytes} bytes more than the pages hold")
        if self._rest:
            left = size - sum(map(len, self._rest))
            self._rest.append(data[:left])
            if len(self._rest) == _MOST_PARTS:
                self._rest = [memoryview(b"".join(self._rest))]
            data = data[left:]
            if self._is_whole(sum(map(len, self._rest))):
                self._write(*self._rest)
                self._rest = []
        whole = len(data) if self._is_whole(len(data)) else len(data) - len(data) % size
        if whole:
            self._write(data[:whole])
        if whole < len(data):
            self._rest = [data[whole:]]

    def finish(self) -> bool:
        """Make the written pages valid, unless bytes are missing; returns whether all pages are cached."""
        if self._left_bytes:
            return False
        kept = [self._pages.seal(written) for written in self._written]
        return all(kept) and not self.refused

    def _is_whole(self, length: int) -> bool:
        """Whether this many bytes from the current page on are whole pages."""
        size = self._pages.page_bytes
        return length % size == 0 or self._page * size + length == self._pages.size_bytes

    def _write(self, *parts: memoryview) -> None:
        found = self._pages.write(self._page, parts, makes_room=self._makes_room)
        if None in found:
            self.refused.append((self._page, parts))
        for written in found:
            if written is not None and not (self._written and self._written[-1].extend(written)):
                self._written.append(written)
        self._page += sum(map(len, parts)) // self._pages.page_bytes


@dataclass(slots=True)
class _Known:
    """This process's knowledge of a stretch, open or not.

    Attributes:
        sums: Sums of the pages that were verified or written.
        checked: Bit p: page p is one of them.
        touch_at: When to update the file's modification time again.
    """

    sums: bytearray
    checked: int = 0
    touch_at: float = 0.0

    def sum_of(self, page: int) -> bytes:
        return bytes(self.sums[page * _SUM_BYTES : (page + 1) * _SUM_BYTES])


class _Stretch:
    """An open file of pages, closed when its last reader releases it.

    Attributes:
        descriptor: The file descriptor.
        writable: Whether the file may be written.
        known: Knowledge of the stretch at its path.
        there: Bit p: page p of this file is valid.
    """

    __slots__ = ("descriptor", "known", "there", "writable")

    def __init__(self, path: str, known: _Known, make_bytes: int | None) -> None:
        self.descriptor = -1
        self.known = known
        self.there = 0
        self.writable = True
        if make_bytes is not None:
            self.descriptor = _open_or_create(path, make_bytes)
            return
        try:
            self.descriptor = os.open(path, os.O_RDWR | _FLAGS)
        except FileNotFoundError:
            raise
        except OSError:  # another user's file, or a read-only file system
            self.writable = False
            self.descriptor = os.open(path, os.O_RDONLY | _FLAGS)

    def has(self, page: int, sums: bytes) -> None:
        """Record that pages from `page` on are valid and have these sums."""
        pages = _bits(page, page + len(sums) // _SUM_BYTES)
        self.known.sums[page * _SUM_BYTES : page * _SUM_BYTES + len(sums)] = sums
        self.known.checked |= pages
        self.there |= pages

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # modules may be gone at interpreter exit
        if self.descriptor >= 0:
            close(self.descriptor)


_creating = threading.Lock()


def _open_or_create(path: str, size_bytes: int) -> int:
    """Open a file of a size for writing. A missing file, a link, or one of another size is replaced by a new file.

    If another process does the same at the same time, one of the two files, and its pages, are lost.
    Raises OSError.
    """
    with _creating:
        with contextlib.suppress(FileNotFoundError):
            try:
                descriptor = os.open(path, os.O_RDWR | _FLAGS)
                if os.fstat(descriptor).st_size == size_bytes:
                    return descriptor
                os.close(descriptor)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.{secrets.token_hex(6)}"
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666)
        try:
            os.ftruncate(descriptor, size_bytes)
            os.rename(temporary, path)
        except OSError:
            os.close(descriptor)
            os.unlink(temporary)
            raise
        return descriptor


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """Result of checking a file of pages.

    Attributes:
        pages: Number of its pages, including damaged ones.
        size_bytes: Their size.
        damaged: Number of removed pages, which did not match their sums.
        of_earlier_release: Whether the whole file was removed, because this release does not read it.
    """

    pages: int = 0
    size_bytes: int = 0
    damaged: int = 0
    of_earlier_release: bool = False


def check_file(path: str, page_bytes: int, stretch_pages: int = 32) -> CheckedFile:
    """Compare the pages of a file with their sums, and remove mismatches. Raises OSError."""
    number = int(path.rpartition("-")[2], 16)
    descriptor = os.open(path, os.O_RDWR | _FLAGS)
    try:
        header = os.pread(descriptor, _HEADER_BYTES, 0).ljust(_HEADER_BYTES, b"\0")
        sums = [header[at : at + _SUM_BYTES] for at in range(0, stretch_pages * _SUM_BYTES, _SUM_BYTES)]
        there = [page for page in range(stretch_pages) if sums[page] != _NO_SUM]
        size_bytes = int.from_bytes(header[_SIZE_AT:], "little")
        if there and not size_bytes:
            os.unlink(path)
            return CheckedFile(of_earlier_release=True)
        read = damaged = 0
        for page in there:
            left = size_bytes - (number * stretch_pages + page) * page_bytes
            data = _readable(descriptor, max(0, min(page_bytes, left)), _HEADER_BYTES + page * page_bytes)
            read += len(data)
            if not data or _sum(data) != sums[page]:
                damaged += 1
                _write(descriptor, [_NO_SUM], page * _SUM_BYTES)
        return CheckedFile(len(there), read, damaged)
    finally:
        os.close(descriptor)


def _readable(descriptor: int, size_bytes: int, offset: int) -> bytes:
    try:
        return os.pread(descriptor, size_bytes, offset)
    except OSError:  # a bad part of the disk
        return b""


def _write(descriptor: int, parts: Sequence[bytes | memoryview], offset: int) -> None:
    if os.pwritev(descriptor, parts, offset) != sum(map(len, parts)):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _bits(first: int, stop: int) -> int:
    return (1 << stop) - (1 << first)


def _sum(*parts: bytes | memoryview) -> bytes:
    """The sum of a page, given in consecutive parts."""
    found = xxhash.xxh3_64()
    for part in parts:
        found.update(part)
    return found.digest().replace(_NO_SUM, b"\1" * _SUM_BYTES)
