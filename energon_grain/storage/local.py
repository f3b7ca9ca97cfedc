# SPDX-License-Identifier: Apache-2.0
"""Local files: `pread` on a bounded number of open files.

Why `pread` and not `mmap`: a mapping is faster by half a microsecond a part when the cache is warm, but it holds the
process when it is cold, counts every page it ever touched as resident, and kills the process when a file is truncated.
Before a batch is read, the kernel is told of all its ranges (`posix_fadvise(WILLNEED)`), which on a cold cache is as
fast as sixteen reading threads. While reads come back at the speed of memory, that advice is saved.

Files that an index describes must not change. So each is looked at again, by its open descriptor, *behind* the reads of
a batch and before anybody gets what was read: 0.9 µs a batch and file. The time of modification is set before the first
byte is written, so what a look finds unchanged was read from the file that was opened first. A file that was replaced
by a rename is read on while it is open: it is the old one.
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
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from energon_grain.errors import RangeError, ReadError, StaleIndexError
from energon_grain.storage.traffic import count, took

_logger = logging.getLogger("energon_grain")
_PAUSES_SECONDS = (0.1, 0.5, 2.0)
"""How long to wait before each new attempt to read a range."""
_COLD_SECONDS_PER_SPAN = 50e-6
_COLD_SECONDS_PER_BYTE = 1 / 0.5e9
_BEGINNING_BYTES = 4096
_Result = TypeVar("_Result")


class _Version:
    """What a file was when it was first opened: its size and its time of modification.

    Not its inode, which file systems of stores (gcsfuse, say) may number anew.
    """

    __slots__ = ("_beginning", "_changed_ns", "_path", "_size", "_written_ns")

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        try:
            status = os.fstat(descriptor)
            self._beginning = hash(os.pread(descriptor, _BEGINNING_BYTES, 0))
        except OSError as error:
            raise ReadError(f"cannot look at {path}: {error.strerror}") from error
        self._size, self._written_ns, self._changed_ns = status.st_size, status.st_mtime_ns, status.st_ctime_ns

    @property
    def key(self) -> tuple[int, int]:
        """Size, and time of modification."""
        return self._size, self._written_ns

    def is_in(self, descriptor: int) -> bool:
        """Whether an open file is this one, and nobody has written to it since. Raises ReadError.

        Its mode, owner and links may have changed. So may its time of modification have been set back to what it was,
        which looks the same; then its first 4 KiB decide.
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
            raise ReadError(f"cannot look at {self._path}: {error.strerror}") from error
        self._changed_ns = status.st_ctime_ns
        return True


class OpenFile:
    """A file descriptor that is closed when the last user lets go of it."""

    __slots__ = ("descriptor", "version")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.version: _Version | None = None

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.descriptor)  # bound above: when the interpreter ends, `os` may be gone before the last file is


def _patiently(attempt: Callable[[], _Result], failed: str) -> _Result:
    """Do what may fail for a moment (a network file system, too many open files), again after each of the pauses.

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
            _logger.warning("%s: %s; trying again in %g s", failed, error.strerror, pause)
            time.sleep(pause)
            count(rereads=1, paused_s=pause)
    raise AssertionError


def _shared_open_files() -> int:
    """A quarter of what this process may have open, at most 1024."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1024 if allowed == resource.RLIM_INFINITY else max(16, min(1024, allowed // 4))


class _Room:
    """How many files may be open, of all stores that share it: another one takes the place of the one used longest ago.

    Whose they are is known weakly: the files of a store that is gone are closed with it, and their names here give way.
    """

    def __init__(self, files: int) -> None:
        self.files = files
        self.lock = threading.RLock()  # a signal handler may close a store that its thread is working on
        self._used: OrderedDict[tuple[weakref.ref[LocalFiles], str], None] = OrderedDict()

    def use(self, store: weakref.ref[LocalFiles], path: str) -> None:
        """Note that a file is used now, and close others if there are too many. Under `lock`."""
        self._used[store, path] = None
        self._used.move_to_end((store, path))
        while len(self._used) > self.files:
            owner, name = self._used.popitem(last=False)[0]
            if (found := owner()) is not None:
                found._open.pop(name, None)

    def leave(self, store: weakref.ref[LocalFiles], path: str) -> None:
        """Note that a file was closed. Under `lock`."""
        self._used.pop((store, path), None)


_shared_room = _Room(_shared_open_files())
_rooms: weakref.WeakSet[_Room] = weakref.WeakSet([_shared_room])


class LocalFiles:
    """A `ByteStore` over the local file system.

    Args:
        max_open_files: Least recently used files beyond this number are closed. None: beyond a number of all stores of
            this process together, so that it takes no more descriptors for a thousand datasets than for ten.
        indexed_by: The command that indexes these files, which must not change while they are read: a change is a
            StaleIndexError that names it. "": they have no index, and a change is a ReadError. None: they may change
            between reads.
    """

    merge_gap_bytes = 8192
    solo_bytes = 16384
    least_bytes = 32 << 10

    def __init__(self, *, max_open_files: int | None = None, indexed_by: str | None = None) -> None:
        self._max_open_files, self._indexed_by = max_open_files, indexed_by
        self._versions: dict[str, _Version] = {}
        self._open: dict[str, OpenFile] = {}
        self._me: weakref.ref[LocalFiles] = weakref.ref(self)
        self._room = _shared_room if max_open_files is None else _Room(max_open_files)
        _rooms.add(self._room)
        self._cold = True

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(LocalFiles, max_open_files=self._max_open_files, indexed_by=self._indexed_by), ()

    def _file(self, path: str) -> OpenFile:
        with self._room.lock:
            file = self._open.get(path)
            if file is not None:
                self._room.use(self._me, path)
                return file
        flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
        file = OpenFile(_patiently(lambda: os.open(path, flags), f"cannot open {path}"))
        if self._indexed_by is not None:
            file.version = self._versions.get(path)
            if file.version is None:
                file.version = self._versions.setdefault(path, _Version(path, file.descriptor))
            self._look_at(path, file)
        with self._room.lock:
            self._open[path] = file
            self._room.use(self._me, path)
        return file

    def _look_at(self, path: str, file: OpenFile) -> None:
        """Compare an open file that must not change with what it was when it was first opened."""
        if file.version is not None and not file.version.is_in(file.descriptor):
            raise self._changed(path)

    def _changed(self, path: str) -> ReadError | StaleIndexError:
        if not self._indexed_by:
            return ReadError(f"{path}: was changed while it was read; let nothing write to files that are being read")
        return StaleIndexError(
            f"{path}: was changed while it was read, so that its index does not fit it any more; begin anew after "
            f"`{self._indexed_by}`, and let nothing write to a dataset that is being read"
        )

    def version(self, path: str) -> tuple[int, int]:
        """Size and time of modification of a file, when this first opened it. See `ByteStore`."""
        self._file(path)
        return self._versions[path].key

    def expect(self, path: str, version: tuple[int, int]) -> None:
        if self.version(path) != version:
            raise self._changed(path)

    def size(self, path: str) -> int:
        file = self._file(path)  # held until it was asked: who opens another file may close it
        return os.fstat(file.descriptor).st_size

    def tails(self, paths: Sequence[str], starts: Sequence[int]) -> list[bytes]:
        tails: list[bytes] = []
        for path, start in zip(paths, starts, strict=True):
            stop = self.size(path)
            if stop < start:
                raise RangeError(f"{path} ends at byte {stop}, but byte {start} was asked for")
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
        """See `ByteStore`. Raises StaleIndexError where a file was changed since it was first opened."""
        files: list[int] = file.tolist()
        starts: list[int] = start.tolist()
        sizes: list[int] = (stop - start).tolist()
        cold = self._cold
        if cold and len(files) > 1:
            self._advise(paths, files, starts, sizes)
        began = at = time.perf_counter()
        pread = os.pread
        spans: list[bytes] = []
        current = -1
        handle: OpenFile | None = None
        descriptor = -1
        for number, offset, size in zip(files, starts, sizes, strict=True):
            if number != current:
                if handle is not None:
                    self._look_at(paths[current], handle)  # behind its reads
                    if cold:
                        before, at = at, time.perf_counter()
                        took(paths[current], at - before)
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
            spans.append(data)
        if handle is not None:
            self._look_at(paths[current], handle)
            if cold:
                took(paths[current], time.perf_counter() - at)
        # An estimate that threads may overwrite at any time: it decides about advice alone, never about data.
        allowed = len(files) * _COLD_SECONDS_PER_SPAN + sum(sizes) * _COLD_SECONDS_PER_BYTE
        self._cold = time.perf_counter() - began > allowed
        return spans

    def _advise(self, paths: Sequence[str], files: list[int], starts: list[int], sizes: list[int]) -> None:
        """Tell the kernel what comes, so that a cold disk sees all requests at once.

        Skipped for files beyond what may stay open: opening each twice would cost more than it brings.
        """
        if len(set(files)) > self._room.files or not hasattr(os, "posix_fadvise"):
            return
        current = -1
        handle: OpenFile | None = None
        for number, offset, size in zip(files, starts, sizes, strict=True):
            if handle is None or number != current:
                handle = self._file(paths[number])
                current = number
            os.posix_fadvise(handle.descriptor, offset, size, os.POSIX_FADV_WILLNEED)

    def _read_again(self, path: str, offset: int, size: int) -> bytes:
        """Read a range that could not be read, through a new file handle (a network file system may have lost the old).

        Raises ReadError.
        """

        def read() -> bytes:
            with self._room.lock:
                self._open.pop(path, None)
                self._room.leave(self._me, path)
            file = self._file(path)  # as in `size`
            return _finish(path, file.descriptor, b"", offset, size)

        count(rereads=1)
        times = len(_PAUSES_SECONDS) + 2
        return _patiently(read, f"reading {path} @ {offset} ({size} bytes) failed {times} times")

    def close(self) -> None:
        """Close every file that no reader is using."""
        with self._room.lock, suppress(KeyError):  # of what is empty: a signal handler may do the same, in between
            while True:
                self._room.leave(self._me, self._open.popitem()[0])


def _finish(path: str, descriptor: int, data: bytes, offset: int, size: int) -> bytes:
    """Go on after a short read (a signal, or more than 2 GiB at once). Raises OSError and RangeError."""
    pieces = [data]
    have = len(data)
    while have < size:
        piece = os.pread(descriptor, size - have, offset + have)
        if not piece:
            raise RangeError(
                f"{path} ends at byte {offset + have}, but bytes {offset} to {offset + size} were asked for; the file "
                f"was truncated after it was indexed: restore it, or run `energon-grain prepare` again"
            )
        pieces.append(piece)
        have += len(piece)
    return b"".join(pieces)


def _renew_locks() -> None:
    for room in tuple(_rooms):
        room.lock = threading.RLock()


# In a forked child nobody is left to release what another thread held. Open files are shared: `pread` moves nothing.
os.register_at_fork(after_in_child=_renew_locks)
