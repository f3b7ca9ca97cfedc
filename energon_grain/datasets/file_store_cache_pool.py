"""A cache pool that fetches files in the background onto a local disk."""

from __future__ import annotations

import os
import tempfile
import uuid
import weakref
from pathlib import Path
from typing import Any, Literal, TypeVar

from energon_grain.datasets.cache_pool import CachePool, HeldLazy, Lazy
from energon_grain.datasets.disk_cache import DiskCache, Entry
from energon_grain.errors import ConfigError
from energon_grain.samples.source_info import SourceInfo, add_source_info
from energon_grain.sources.file_store import FileStore

T = TypeVar("T")


class FileStoreCachePool(CachePool):
    """Copies files that will be needed onto a local disk, ahead of their use: for stores that are slow.

    Each file is read from its store once, however many lazy values mean it, and its copy is deleted when the last of
    them was read or is gone. A value that is asked for before its file was copied is read from the store. While the
    cache is full, files wait for space. Pass it to a loader: `get_savable_loader(dataset, cache_pool=…)`.

    The pool is of the process that made it. In worker processes its lazy values only name their files, which begin to
    be copied when the values arrive in that process, where packing and batching happen.

    Args:
        parent_cache_dir: A folder on a fast disk, for a folder of the pool's own, which is deleted by `close` or at the
            end of the program; default: the system's folder for temporary files.
        num_workers: Threads that copy.
        max_cache_size_gbytes: Most GiB of copies.
        max_cache_count: Most copies.
        method: "raw" copies what stores have and decodes it when it is read; "pickle" copies decoded values.

    Raises:
        ConfigError: A number is not positive, or there is no such method.
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
            raise ConfigError(f"FileStoreCachePool(method={method!r}): 'raw' or 'pickle' is meant")
        if min(num_workers, max_cache_size_gbytes, max_cache_count) <= 0:
            raise ConfigError(
                f"FileStoreCachePool(num_workers={num_workers}, max_cache_size_gbytes={max_cache_size_gbytes}, "
                f"max_cache_count={max_cache_count}): positive numbers are meant"
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
        """Bytes of the copies that are there."""
        return 0 if self._own is None else self._own.used()[0]

    @property
    def current_cache_count(self) -> int:
        """Number of the copies that are there."""
        return 0 if self._own is None else self._own.used()[1]

    @property
    def _own(self) -> DiskCache | None:
        """The cache, in the process that made it."""
        return self._cache if self._process == os.getpid() else None

    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        """The value of a key, now, from its store."""
        return ds.get(fname, sample)

    def get_lazy(self, ds: FileStore[T], fname: str) -> FileCacheLazy[T]:
        """The value of a key, later. Its file begins to be copied.

        Raises:
            ValueError: The pool was closed.
        """
        return FileCacheLazy(ds, fname, self)

    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """Put a value away into a file, from which the first `get` brings it back; into memory while there is no space.

        Args:
            data: The value; pickled.
            name: What to call it in messages.
        """
        if self._own is None:
            return _Arriving(data, name, self)
        entry = self._own.put(data, name)
        return HeldLazy(data, name, self) if entry is None else _PutAway(entry, name, self)

    def close(self) -> None:
        """Stop copying and delete all copies. Lazy values that are still there read from their stores."""
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
    """The pool itself, where it was made; elsewhere one that stands for it."""
    pool = _POOLS.get(name)
    if pool is None:
        pool = FileStoreCachePool.__new__(FileStoreCachePool)
        pool.cache_dir, pool.method = cache_dir, method
        pool.max_cache_size = pool.max_cache_count = 0
        pool._name, pool._process, pool._cache = name, process, None
        _POOLS[name] = pool
    return pool


class _Reader:
    """One reader of a file, who ends by reading or by being gone."""

    __slots__ = ("__weakref__", "_entry", "_leave", "_pool")

    def __init__(self, pool: FileStoreCachePool, entry: Entry) -> None:
        assert pool._own is not None
        self._pool = pool
        self._entry = entry
        self._leave = weakref.finalize(self, pool._own.leave, entry)
        self._leave.atexit = False

    def take(self) -> tuple[Any, Any] | None:
        """The value and its source; None: another thread took it, or this is not the process of the pool."""
        cache = self._pool._own
        return None if cache is None or self._leave.detach() is None else cache.take(self._entry)


class FileCacheLazy(Lazy[T]):
    """A value whose file is on its way onto the local disk. The first `get` brings it, and it is kept from then on."""

    def __init__(
        self, ds: FileStore[T], fname: str, pool: FileStoreCachePool, read: tuple[T, SourceInfo] | None = None
    ) -> None:
        super().__init__(ds, fname, pool)
        self._read = read
        self._reader = None
        if read is None and pool._own is not None:
            self._reader = _Reader(pool, pool._own.want(ds, fname))

    def get(self, sample: Any = None) -> T:
        """The value: from the disk if its file was copied, else from its store."""
        if self._read is None:
            assert self.ds is not None
            self._read = (self._reader and self._reader.take()) or self.ds[self.fname]
            self._reader = None
        value, source = self._read
        if sample is not None:
            add_source_info(sample, source)
        return value

    def __reduce__(self) -> Any:
        return FileCacheLazy, (self.ds, self.fname, self.pool, self._read)


class _PutAway(Lazy[T]):
    """A value in a file."""

    def __init__(self, entry: Entry, name: str, pool: FileStoreCachePool) -> None:
        super().__init__(None, name, pool)
        self._reader = _Reader(pool, entry)
        self._value: list[T] = []

    def get(self, sample: Any = None) -> T:
        if not self._value:
            taken = self._reader.take()
            if taken is None:
                raise ValueError(f"{self.fname}: the value is in a file of another process, or was just taken")
            self._value = [taken[0]]
        return self._value[0]

    def __reduce__(self) -> Any:
        return _put_away, (self.pool, self.get(), self.fname)


class _Arriving(HeldLazy[T]):
    """A value in a worker process, put away where it arrives."""

    def __reduce__(self) -> Any:
        return _put_away, (self.pool, self.get(), self.fname)


def _put_away(pool: CachePool, value: T, name: str) -> Lazy[T]:
    return pool.to_cache(value, name)
