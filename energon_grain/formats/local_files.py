# SPDX-License-Identifier: Apache-2.0
"""Local files: `pread` on a limited number of open files.

Why `pread` and not `mmap`: a mapping is half a microsecond per part faster with a warm cache. But it blocks the process
with a cold one, counts every touched page as resident, and kills the process when a file is truncated. Before a batch
is read, the kernel gets all its ranges (`posix_fadvise(WILLNEED)`), which on a cold cache is as fast as sixteen reading
threads. While reads return at memory speed, that call is skipped.

Files that an index describes must not change. Each is therefore checked through its open descriptor *after* the reads
of a batch and before any data is returned: 0.9 µs per batch and file. The modification time is set before the first
byte is written. If a check finds it unchanged, the data are those of the file that was opened first. A file replaced by
a rename stays open and is read on: it is the old one.
"""

from __future__ import annotations

import functools
import logging
import os
import resource
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from energon_grain.errors import RangeError, ReadError, StaleIndexError
from energon_grain.storage.byte_store import Spans
from energon_grain.storage.traffic import count, count_read

_logger = logging.getLogger("energon_grain")
_PAUSES_SECONDS = (0.1, 0.5, 2.0)
"""Delays before each new attempt to read a range."""
_COLD_SECONDS_PER_SPAN = 50e-6
_COLD_SECONDS_PER_BYTE = 1 / 0.5e9
_BEGINNING_BYTES = 4096
_Result = TypeVar("_Result")


class _Version:
    """Size and modification time of a file at its first opening; not the inode, which gcsfuse, say, may renumber."""

    __slots__ = ("_beginning", "_changed_ns", "_path", "_size", "_written_ns")

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        try:
            status = os.fstat(descriptor)
            self._beginning = hash(os.pread(descriptor, _BEGINNING_BYTES, 0))
        except OSError as error:
            raise ReadError(f"{path}: cannot be read: {error.strerror}") from error
        self._size, self._written_ns, self._changed_ns = status.st_size, status.st_mtime_ns, status.st_ctime_ns

    @property
    def key(self) -> tuple[int, int]:
        """Size and modification time."""
        return self._size, self._written_ns

    def is_in(self, descriptor: int) -> bool:
        """Whether an open file is this one, unmodified. Raises ReadError.

        Its mode, owner and links may have changed. If the modification time was reset to the same value, the first
        4 KiB are compared.
        """
        try:
            status = os.fstat(descriptor)
            if status.st_ctime_ns == self._changed_ns and status.st_mtime_ns == self._written_ns:
                return True
            if status.st_mtime_ns != self._written_ns or status.st_size != self._size:
                return False
            if hash(os.pread(descriptor, _BEGINNING_BYTES, 0)) != self._beginning:
                return False
        except OSError as error:
            raise ReadError(f"cannot stat {self._path}: {error.strerror}") from error
        self._changed_ns = status.st_ctime_ns
        return True


class OpenFile:
    """A file descriptor that is closed when its last user releases it."""

    __slots__ = ("descriptor", "version")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.version: _Version | None = None

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.descriptor)  # bound above: at interpreter exit, `os` may be gone before the last file is


def _with_retries(attempt: Callable[[], _Result], failed: str) -> _Result:
    """Run a call that may fail temporarily (network file system, too many open files); retry after each delay.

    Raises ReadError.
    """
    for pause in (*_PAUSES_SECONDS, None):
        try:
            return attempt()
        except ReadError:
            raise
        except OSError as error:
            if pause is None or isinstance(error, FileNotFoundError | PermissionError | NotADirectoryError):
                raise ReadError(f"{failed}: {error.strerror}") from error
            _logger.warning("%s: %s; retrying in %g s", failed, error.strerror, pause)
            time.sleep(pause)
            count(rereads=1, paused_s=pause)
    raise AssertionError


def _shared_open_files() -> int:
    """A quarter of this process's limit of open files, at most 1024."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1024 if allowed == resource.RLIM_INFINITY else max(16, min(1024, allowed // 4))


class _OpenFileLimit:
    """Limit of open files, shared by several stores: a new file closes the least recently used one.

    Stores are referenced weakly: the files of a collected store are closed with it, and their entries expire.
    """

    def __init__(self, files: int) -> None:
        self.files = files
        self.lock = threading.RLock()  # a signal handler may close a store that its thread is using
        self._used: OrderedDict[tuple[weakref.ref[LocalFiles], str], None] = OrderedDict()

    def use(self, store: weakref.ref[LocalFiles], path: str) -> None:
        """Record a use of a file, and close others if there are too many. Call under `lock`."""
        self._used[store, path] = None
        self._used.move_to_end((store, path))
        while len(self._used) > self.files:
            owner, name = self._used.popitem(last=False)[0]
            if (found := owner()) is not None:
                found._open.pop(name, None)

    def leave(self, store: weakref.ref[LocalFiles], path: str) -> None:
        """Record that a file was closed. Call under `lock`."""
        self._used.pop((store, path), None)


_shared_limit = _OpenFileLimit(_shared_open_files())
_limits: weakref.WeakSet[_OpenFileLimit] = weakref.WeakSet([_shared_limit])


class LocalFiles:
    """A `ByteStore` over the local file system.

    Args:
        max_open_files: Maximum number of open files; the least recently used ones are closed. None: a limit shared by
            all stores of this process, so that a thousand datasets use no more descriptors than ten.
        indexed_by: The command that indexes these files, which must not change while they are read: a change raises a
            StaleIndexError that names it. "": the files have no index, and a change raises a ReadError. None: the files
            may change between reads.
    """

    merge_gap_bytes = 8192
    solo_bytes = 16384
    least_bytes = 32 << 10

    def __init__(self, *, max_open_files: int | None = None, indexed_by: str | None = None) -> None:
        self._max_open_files, self._indexed_by = max_open_files, indexed_by
        self._versions: dict[str, _Version] = {}
        self._open: dict[str, OpenFile] = {}
        self._weak_self: weakref.ref[LocalFiles] = weakref.ref(self)
        self._limit = _shared_limit if max_open_files is None else _OpenFileLimit(max_open_files)
        _limits.add(self._limit)
        self._cold = True

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(LocalFiles, max_open_files=self._max_open_files, indexed_by=self._indexed_by), ()

    def _file(self, path: str) -> OpenFile:
        with self._limit.lock:
            file = self._open.get(path)
            if file is not None:
                self._limit.use(self._weak_self, path)
                return file
        flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
        file = OpenFile(_with_retries(lambda: os.open(path, flags), f"cannot open {path}"))
        if self._indexed_by is not None:
            file.version = self._versions.get(path)
            if file.version is None:
                file.version = self._versions.setdefault(path, _Version(path, file.descriptor))
            self._check_unchanged(path, file)
        with self._limit.lock:
            self._open[path] = file
            self._limit.use(self._weak_self, path)
        return file

    def _check_unchanged(self, path: str, file: OpenFile) -> None:
        """Check that an open file that must not change is the same as when it was first opened."""
        if file.version is not None and not file.version.is_in(file.descriptor):
            raise self._changed(path)

    def _changed(self, path: str) -> ReadError | StaleIndexError:
        if not self._indexed_by:
            return ReadError(f"{path}: was changed while it was read; stop other processes from writing to it")
        return StaleIndexError(
            f"{path}: was changed while it was read, so its index is outdated; run `{self._indexed_by}`, start again, "
            f"and stop other processes from writing to the dataset"
        )

    def version(self, path: str) -> tuple[int, int]:
        """Size and modification time of a file at its first opening. See `ByteStore`."""
        self._file(path)
        return self._versions[path].key

    def expect(self, path: str, version: tuple[int, int]) -> None:
        if self.version(path) != version:
            raise self._changed(path)

    def size(self, path: str) -> int:
        file = self._file(path)  # keep a reference: opening another file may close this one
        return os.fstat(file.descriptor).st_size

    def tails(self, paths: Sequence[str], starts: Sequence[int]) -> list[bytes]:
        tails: list[bytes] = []
        for path, start in zip(paths, starts, strict=True):
            stop = self.size(path)
            if stop < start:
                raise RangeError(f"{path} ends at byte {stop}, before the requested byte {start}")
            tails += self.read_spans([path], np.zeros(1, np.int64), np.array([start]), np.array([stop]))
        return tails

    def peek(self, paths: Sequence[str], starts: Sequence[int], size_bytes: int) -> list[bytes]:
        start = np.array(starts, np.int64)
        return self.read_spans(paths, np.arange(len(paths)), start, start + size_bytes)

    def read_spans(
        self,
        paths: Sequence[str],
        file: npt.NDArray[np.int64],
        start: npt.NDArray[np.int64],
        stop: npt.NDArray[np.int64],
    ) -> list[bytes]:
        """See `ByteStore`. Raises StaleIndexError if a file has changed since it was first opened."""
        spans: list[bytes] = []
        self._read(paths, file, start, stop, spans.append)
        return spans

    def read_ranges(self, paths: Sequence[str], spans: Spans, size: npt.NDArray[np.int64]) -> list[bytes]:
        """The bytes of each range, `size` long, in the caller's order. Raises as `read_spans`.

        As `spans.cut(read_spans(…), size)`. Each span is cut as soon as it is read: while it is in the caches of the
        core, and so that the next one reuses its memory.
        """
        order = np.argsort(spans.span, kind="stable")
        begin = spans.offset[order]
        bounds = zip(begin.tolist(), (begin + size[order]).tolist(), strict=True)
        counts = iter(np.bincount(spans.span, minlength=len(spans.file)).tolist())
        parts: list[bytes] = []

        def cut(data: bytes) -> None:
            parts.extend([data[first:last] for first, last in islice(bounds, next(counts))])

        self._read(paths, spans.file, spans.start, spans.stop, cut)
        if (order[1:] > order[:-1]).all():
            return parts
        values: list[Any] = [None] * len(parts)
        for place, part in zip(order.tolist(), parts, strict=True):
            values[place] = part
        return values

    def _read(
        self,
        paths: Sequence[str],
        file: npt.NDArray[np.int64],
        start: npt.NDArray[np.int64],
        stop: npt.NDArray[np.int64],
        take: Callable[[bytes], object],
    ) -> None:
        """Call `take` with the bytes of each span, in order. Raises as `read_spans`."""
        files: list[int] = file.tolist()
        starts: list[int] = start.tolist()
        sizes: list[int] = (stop - start).tolist()
        cold = self._cold
        if cold and len(files) > 1:
            self._advise(paths, files, starts, sizes)
        began = at = time.perf_counter()
        pread = os.pread
        current = -1
        handle: OpenFile | None = None
        descriptor = -1
        for number, offset, size in zip(files, starts, sizes, strict=True):
            if number != current:
                if handle is not None:
                    self._check_unchanged(paths[current], handle)  # after its reads
                    if cold:
                        before, at = at, time.perf_counter()
                        count_read(paths[current], at - before)
                handle = self._file(paths[number])
                descriptor = handle.descriptor
                current = number
            try:
                data = pread(descriptor, size, offset)
                if len(data) != size:
                    data = _finish(paths[number], descriptor, data, offset, size)
            except ReadError:
                raise
            except OSError:
                data = self._read_again(paths[number], offset, size)
                handle = self._file(paths[number])
                descriptor = handle.descriptor
            take(data)
            del data  # its memory is used for the next span
        if handle is not None:
            self._check_unchanged(paths[current], handle)
            if cold:
                count_read(paths[current], time.perf_counter() - at)
        # A racy estimate is fine: it only decides about advice, never about data.
        allowed = len(files) * _COLD_SECONDS_PER_SPAN + sum(sizes) * _COLD_SECONDS_PER_BYTE
        self._cold = time.perf_counter() - began > allowed

    def _advise(self, paths: Sequence[str], files: list[int], starts: list[int], sizes: list[int]) -> None:
        """Pass upcoming ranges to the kernel, so that a cold disk gets all requests at once.

        Skipped if there are more files than may stay open: opening each twice would cost more than it saves.
        """
        if len(set(files)) > self._limit.files or not hasattr(os, "posix_fadvise"):
            return
        current = -1
        handle: OpenFile | None = None
        for number, offset, size in zip(files, starts, sizes, strict=True):
            if handle is None or number != current:
                handle = self._file(paths[number])
                current = number
            os.posix_fadvise(handle.descriptor, offset, size, os.POSIX_FADV_WILLNEED)

    def _read_again(self, path: str, offset: int, size: int) -> bytes:
        """Retry a failed range through a new file handle (a network file system may have lost the old one).

        Raises ReadError.
        """

        def read() -> bytes:
            with self._limit.lock:
                self._open.pop(path, None)
                self._limit.leave(self._weak_self, path)
            file = self._file(path)  # as in `size`
            return _finish(path, file.descriptor, b"", offset, size)

        count(rereads=1)
        times = len(_PAUSES_SECONDS) + 2
        return _with_retries(read, f"reading {path} @ {offset} ({size} bytes) failed {times} times")

    def close(self) -> None:
        """Close every file that is not in use."""
        with self._limit.lock, suppress(KeyError):  # a signal handler may empty it concurrently
            while True:
                self._limit.leave(self._weak_self, self._open.popitem()[0])


def _finish(path: str, descriptor: int, data: bytes, offset: int, size: int) -> bytes:
    """Continue after a short read (a signal, or more than 2 GiB at once). Raises OSError and RangeError."""
    pieces = [data]
    have = len(data)
    while have < size:
        piece = os.pread(descriptor, size - have, offset + have)
        if not piece:
            raise RangeError(
                f"{path} ends at byte {offset + have}, but bytes {offset} to {offset + size} were requested; the file "
                f"was truncated after it was indexed: restore it, or run `energon-grain prepare` again"
            )
        pieces.append(piece)
        have += len(piece)
    return b"".join(pieces)


def _renew_locks() -> None:
    for limit in tuple(_limits):
        limit.lock = threading.RLock()


# In a forked child, no thread can release inherited locks. Open files are shared safely: `pread` moves no position.
os.register_at_fork(after_in_child=_renew_locks)
