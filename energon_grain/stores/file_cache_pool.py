# SPDX-License-Identifier: Apache-2.0
"""A cache pool that fetches files in the background onto a local disk."""

from __future__ import annotations

import enum
import logging
import os
import pickle
import shutil
import tempfile
import threading
import uuid
import weakref
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from energon_grain.errors import ConfigError, public
from energon_grain.samples.sample import SourceInfo
from energon_grain.sources.cache_pool import CachePool, DirectLazy, HeldLazy, Lazy
from energon_grain.sources.file_store import FileStore

_LOGGER = logging.getLogger(__name__)
_WAIT_SECONDS = 1.0
_END_SECONDS = 5.0


class _State(enum.Enum):
    WAITING = enum.auto()  # for a thread, or for space
    COPIED = enum.auto()  # being copied
    KEPT = enum.auto()
    REFUSED = enum.auto()  # could not be read or written, or is read without a copy


@dataclass(slots=True, eq=False)
class Entry:
    """A file with pending readers.

    Attributes:
        store: Its store; None: only the copy exists.
        key: Its name in the store.
        readers: Number of pending readers.
        state: Progress of the copy.
        size_bytes: Size of the copy.
        path: Path of the copy.
        source: Source information from the store.
    """

    store: FileStore[Any] | None
    key: str
    readers: int = 1
    state: _State = _State.WAITING
    size_bytes: int = 0
    path: Path | None = None
    source: SourceInfo | None = None


class DiskCache:
    """Copies files into a folder, in threads, and deletes each after its last reader has read it.

    While there is no space, files wait, and a reader that comes before its file's turn reads from the store. Errors
    while copying are not raised: the reader then reads from the store and gets the error there. Thread-safe.

    Args:
        folder: An exclusive folder; deleted by `close`.
        threads: Number of copying threads.
        max_bytes: Maximum total size of the copies.
        max_files: Maximum number of copies.
        method: "raw": copies are the stored bytes, decoded on reading. "pickle": copies are pickled values.
    """

    def __init__(
        self, folder: Path, *, threads: int, max_bytes: int, max_files: int, method: Literal["raw", "pickle"]
    ) -> None:
        self.folder = folder
        self._used_bytes = 0
        self._used_files = 0
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._method = method
        self._most_threads = threads
        self._threads: list[threading.Thread] = []
        self._entries: dict[tuple[FileStore[Any], str], Entry] = {}
        self._queue: deque[Entry] = deque()
        self._without_space: deque[Entry] = deque()
        self._left: deque[Entry] = deque()
        self._names = 0
        self._closed = False
        self._warned = False
        self._process = os.getpid()
        # Not reentrant: `leave` may run at any point, even inside sections under this lock, and must then skip them.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    def want(self, store: FileStore[Any], key: str) -> Entry:
        """Register a reader of a file, who ends with `take` or `leave`; the file is queued for copying.

        Raises ValueError if the cache was closed.
        """
        with self._changed:
            self._settle()
            if self._closed:
                raise ValueError("the cache pool was closed; create a new one")
            entry = self._entries.get((store, key))
            if entry is not None:
                entry.readers += 1
                if entry.state is _State.REFUSED:
                    entry.state = _State.WAITING
                    self._enqueue(entry)
                return entry
            entry = self._entries[store, key] = Entry(store, key)
            self._enqueue(entry)
            return entry

    def put(self, value: Any, name: str) -> Entry | None:
        """Write a value into a file, for one reader; None if there is no space."""
        data = pickle.dumps(value, protocol=5)
        entry = Entry(None, name, state=_State.KEPT, size_bytes=len(data))
        with self._changed:
            self._settle()
            if self._closed or not self._reserve(entry):
                return None
        if self._write(entry, data):
            return entry
        return None

    def take(self, entry: Entry) -> tuple[Any, SourceInfo | None]:
        """The value of a file, and its source; unregisters one reader.

        Raises ValueError if the cache was closed and the value is only there, and errors of the
        store.
        """
        with self._changed:
            while entry.state is _State.COPIED and not self._closed:
                self._changed.wait(_WAIT_SECONDS)
            if entry.state is _State.WAITING and entry.readers == 1:
                entry.state = _State.REFUSED  # its only reader reads it from the store
        try:
            if entry.state is _State.KEPT and not self._closed:
                try:
                    return self._read(entry)
                except OSError as error:
                    if entry.store is None:
                        raise
                    self._warn(f"{entry.path} cannot be read: {error}")
            if entry.store is None:
                raise ValueError(f"{entry.key}: the cache pool was closed, and its values were deleted")
            return entry.store[entry.key]
        finally:
            with self._changed:
                self._settle()
                self._release(entry)

    def leave(self, entry: Entry) -> None:
        """Unregister a reader that did not read. May be called by the garbage collector, at any time."""
        self._left.append(entry)
        if os.getpid() == self._process and self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()

    def used(self) -> tuple[int, int]:
        """(bytes, number) of the copies, including those being written."""
        with self._changed:
            self._settle()
            return self._used_bytes, self._used_files

    def close(self) -> None:
        """Stop copying and delete everything. Remaining readers read from the stores."""
        if os.getpid() != self._process:
            return
        self._closed = True
        # The garbage collector may call this inside a section under the lock; then threads notice by polling.
        if self._lock.acquire(timeout=_WAIT_SECONDS):
            self._changed.notify_all()
            self._lock.release()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_END_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _enqueue(self, entry: Entry) -> None:
        self._queue.append(entry)
        if len(self._threads) < self._most_threads:
            # A daemon: files that are not copied at the end of the program are not needed.
            thread = threading.Thread(target=self._copy_all, name="energon-grain-cache", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._changed.notify_all()

    def _copy_all(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._changed.wait(_WAIT_SECONDS)
                if self._closed:
                    return
                entry = self._queue.popleft()
                if not _is_wanted(entry):
                    continue
                entry.state = _State.COPIED
            state = self._copy(entry)
            with self._changed:
                entry.state = state
                if state is _State.WAITING:
                    self._without_space.append(entry)
                    self._admit()
                elif state is _State.KEPT and not entry.readers:
                    self._delete(entry)
                self._changed.notify_all()
            del entry

    def _copy(self, entry: Entry) -> _State:
        try:
            data = self._data_of(entry)
        except Exception as error:
            _LOGGER.debug("%s is not cached: %s: %s", entry.key, type(error).__name__, error)
            return _State.REFUSED
        entry.size_bytes = len(data)
        if entry.size_bytes > self._max_bytes:
            return _State.REFUSED
        with self._changed:
            if not self._reserve(entry):
                return _State.WAITING
        return _State.KEPT if self._write(entry, data) else _State.REFUSED

    def _write(self, entry: Entry, data: bytes) -> bool:
        assert entry.path is not None
        try:
            entry.path.write_bytes(data)
        except OSError as error:
            self._warn(f"{entry.path} cannot be written: {error}")
            with self._changed:
                self._delete(entry)
            return False
        return True

    def _data_of(self, entry: Entry) -> bytes:
        store = entry.store
        assert store is not None
        if self._method == "pickle":
            value, entry.source = store[entry.key]
            return pickle.dumps(value, protocol=5)
        data, entry.source = store.stored(entry.key)
        if not isinstance(data, bytes | bytearray | memoryview):
            message = f"{store.get_path()}: {entry.key} is stored as a {type(data).__name__}, not as bytes"
            self._warn(f"{message}; FileStoreCachePool(method='pickle') can cache it")
            raise TypeError(message)
        return bytes(data)

    def _read(self, entry: Entry) -> tuple[Any, SourceInfo | None]:
        assert entry.path is not None
        data = entry.path.read_bytes()
        if self._method == "raw" and entry.store is not None:
            return entry.store.decoded(entry.key, data), entry.source
        return pickle.loads(data), entry.source  # written by this process

    def _settle(self) -> None:
        while self._left:
            self._release(self._left.popleft())

    def _release(self, entry: Entry) -> None:
        entry.readers -= 1
        if entry.readers:
            return
        if entry.store is not None:
            del self._entries[entry.store, entry.key]
        if entry.state is _State.KEPT:
            self._delete(entry)

    def _delete(self, entry: Entry) -> None:
        assert entry.path is not None
        entry.path.unlink(missing_ok=True)
        entry.state = _State.REFUSED
        self._used_bytes -= entry.size_bytes
        self._used_files -= 1
        self._admit()

    def _reserve(self, entry: Entry) -> bool:
        """Reserve space and a path for a file."""
        if self._used_bytes + entry.size_bytes > self._max_bytes or self._used_files >= self._max_files:
            return False
        self._used_bytes += entry.size_bytes
        self._used_files += 1
        self._names += 1
        entry.path = self.folder / str(self._names)
        return True

    def _admit(self) -> None:
        """Queue files that wait for space, as many as fit."""
        free_bytes, files = self._max_bytes - self._used_bytes, self._max_files - self._used_files
        while self._without_space and not self._closed:
            entry = self._without_space[0]
            if _is_wanted(entry) and (entry.size_bytes > free_bytes or not files):
                return
            self._without_space.popleft()
            if _is_wanted(entry):
                free_bytes, files = free_bytes - entry.size_bytes, files - 1
                self._enqueue(entry)

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            _LOGGER.warning("%s. Such files are read from their stores; this warning is shown once", message)


def _is_wanted(entry: Entry) -> bool:
    return entry.readers > 0 and entry.state is _State.WAITING


T = TypeVar("T")


@public
class FileStoreCachePool(CachePool):
    """Copies files to a local disk before they are needed: for slow stores.

    Each file is read from its store once, even if several lazy values refer to it. Its copy is deleted after the last
    of them was read or discarded. A value that is requested before its file was copied is read from the store. While
    the cache is full, files wait for space. Pass the pool to a loader: `get_savable_loader(dataset, cache_pool=…)`.

    The pool belongs to the process that created it. In worker processes its lazy values only name their files; copying
    starts when the values arrive in the main process, where packing and batching happen.

    Args:
        parent_cache_dir: A folder on a fast disk, in which the pool creates its own folder, deleted by `close` or at
            the end of the program; default: the system's folder for temporary files.
        num_workers: Number of copying threads.
        max_cache_size_gbytes: Maximum total size of the copies, in GiB.
        max_cache_count: Maximum number of copies.
        method: "raw" copies the stored bytes and decodes them on reading; "pickle" copies decoded values.

    Raises:
        ConfigError: A number is not positive, or the method is unknown.
    """

    def __init__(
        self,
        *,
        parent_cache_dir: str | os.PathLike[str] | None = None,
        num_workers: int = 8,
        max_cache_size_gbytes: float = 1024,
        max_cache_count: int = 10_000_000,
        method: Literal["raw", "pickle"] = "raw",
    ) -> None:
        if method not in ("raw", "pickle"):
            raise ConfigError(f"FileStoreCachePool(method={method!r}): expected 'raw' or 'pickle'")
        if min(num_workers, max_cache_size_gbytes, max_cache_count) <= 0:
            raise ConfigError(
                f"FileStoreCachePool(num_workers={num_workers}, max_cache_size_gbytes={max_cache_size_gbytes}, "
                f"max_cache_count={max_cache_count}): expected positive numbers"
            )
        self.method = method
        self.max_cache_size = int(max_cache_size_gbytes * (1 << 30))
        self.max_cache_count = max_cache_count
        if parent_cache_dir is not None:
            os.makedirs(parent_cache_dir, exist_ok=True)
        self.cache_dir = Path(tempfile.mkdtemp(prefix="cache_", dir=parent_cache_dir)).resolve()
        self._process = os.getpid()
        self._cache: DiskCache | None = DiskCache(
            self.cache_dir,
            threads=num_workers,
            max_bytes=self.max_cache_size,
            max_files=max_cache_count,
            method=method,
        )
        self._end = weakref.finalize(self, self._cache.close)
        self._name = uuid.uuid4().hex
        _POOLS[self._name] = self

    @property
    def current_cache_size(self) -> int:
        """Total size of the copies in bytes."""
        return 0 if self._own is None else self._own.used()[0]

    @property
    def current_cache_count(self) -> int:
        """Number of copies on the local disk."""
        return 0 if self._own is None else self._own.used()[1]

    @property
    def _own(self) -> DiskCache | None:
        """The cache, in the process that created it."""
        return self._cache if self._process == os.getpid() else None

    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        """The value of a key, read from its store now."""
        return ds.get(fname, sample)

    def get_lazy(self, ds: FileStore[T], fname: str) -> FileCacheLazy[T]:
        """The value of a key, read later. Copying of its file starts now.

        Raises:
            ValueError: The pool was closed.
        """
        return FileCacheLazy(ds, fname, self)

    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """Move a value to a file, from which the first `get` reads it; it stays in memory while there is no space.

        Args:
            data: The value; pickled.
            name: Its name in messages.
        """
        if self._own is None:
            return _WorkerLazy(data, name, self)
        entry = self._own.put(data, name)
        return HeldLazy(data, name, self) if entry is None else _FileLazy(entry, name, self)

    def close(self) -> None:
        """Stop copying and delete all copies. Remaining lazy values read from their stores."""
        if self._own is not None:
            self._end()

    def __str__(self) -> str:
        return (
            f"FileStoreCachePool(cache_dir={os.fspath(self.cache_dir)!r}, method={self.method!r}, "
            f"{self.current_cache_count} of {self.max_cache_count} files, {self.current_cache_size} of "
            f"{self.max_cache_size} bytes)"
        )

    def __reduce__(self) -> Any:
        return _pool, (self._name, self._process, self.cache_dir, self.method)


_POOLS: weakref.WeakValueDictionary[str, FileStoreCachePool] = weakref.WeakValueDictionary()


def _pool(name: str, process: int, cache_dir: Path, method: Literal["raw", "pickle"]) -> FileStoreCachePool:
    """The pool itself in its own process; a placeholder in other processes."""
    pool = _POOLS.get(name)
    if pool is None:
        pool = FileStoreCachePool.__new__(FileStoreCachePool)
        pool.cache_dir, pool.method = cache_dir, method
        pool.max_cache_size = pool.max_cache_count = 0
        pool._name, pool._process, pool._cache = name, process, None
        _POOLS[name] = pool
    return pool


class _Reader:
    """One reader of a file; ends by reading or by being collected."""

    __slots__ = ("__weakref__", "_entry", "_leave", "_pool")

    def __init__(self, pool: FileStoreCachePool, entry: Entry) -> None:
        assert pool._own is not None
        self._pool = pool
        self._entry = entry
        self._leave = weakref.finalize(self, pool._own.leave, entry)
        self._leave.atexit = False

    def take(self) -> tuple[Any, Any] | None:
        """The value and its source; None if another thread took it, or this is another process."""
        cache = self._pool._own
        return None if cache is None or self._leave.detach() is None else cache.take(self._entry)

    @property
    def path(self) -> Path | None:
        """Path of the copy; None if it is deleted, or was never made."""
        return self._entry.path if self._leave.alive else None


class FileCacheLazy(DirectLazy[T]):
    """A value whose file is being copied to the local disk. The first `get` reads it, and keeps it in memory.

    The value is read from the disk if its file was copied, otherwise from its store.
    """

    def __init__(
        self, ds: FileStore[T], fname: str, pool: FileStoreCachePool, read: tuple[T, SourceInfo] | None = None
    ) -> None:
        super().__init__(ds, fname, pool)
        self._read = read
        self._reader = None
        if read is None and pool._own is not None:
            self._reader = _Reader(pool, pool._own.want(ds, fname))

    def _fetched(self) -> tuple[T, SourceInfo]:
        found = (self._reader and self._reader.take()) or super()._fetched()
        self._reader = None
        return found

    def __reduce__(self) -> Any:
        return FileCacheLazy, (self.ds, self.fname, self.pool, self._read)


class _FileLazy(Lazy[T]):
    """A value in a file."""

    def __init__(self, entry: Entry, name: str, pool: FileStoreCachePool) -> None:
        super().__init__(None, name, pool)
        self._reader = _Reader(pool, entry)
        self._value: list[T] = []

    @property
    def cache_path(self) -> Path | None:
        """Path of the file, until it is read."""
        return self._reader.path

    def get(self, sample: Any = None) -> T:
        if not self._value:
            taken = self._reader.take()
            if taken is None:
                raise ValueError(f"{self.fname}: the value is in a file of another process, or was already taken")
            self._value = [taken[0]]
        return self._value[0]

    def __reduce__(self) -> Any:
        return _to_pool, (self.pool, self.get(), self.fname)


class _WorkerLazy(HeldLazy[T]):
    """A value in a worker process; it is written to a file when it arrives in the process of the pool."""

    def __reduce__(self) -> Any:
        return _to_pool, (self.pool, self.get(), self.fname)


def _to_pool(pool: CachePool, value: T, name: str) -> Lazy[T]:
    return pool.to_cache(value, name)
