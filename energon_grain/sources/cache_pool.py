# SPDX-License-Identifier: Apache-2.0
"""Values that are named now and read later: a cooker passes them to packing instead of an image."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from energon_grain.samples.sample import SourceInfo, add_source_info
from energon_grain.sources.file_store import FileStore

T = TypeVar("T")


class Lazy(ABC, Generic[T]):
    """A value that is read when `get` is called.

    Two lazy values are equal if they refer to the same key of the same store, so they can be dictionary keys.

    Attributes:
        ds: The store; None for a value passed to `CachePool.to_cache`.
        fname: The key, or the name of the value.
        pool: The pool that created it; None for a `MockLazy`.
    """

    def __init__(self, ds: FileStore[T] | None, fname: str, pool: CachePool | None) -> None:
        self.ds = ds
        self.fname = fname
        self.pool = pool

    @abstractmethod
    def get(self, sample: Any = None) -> T:
        """Read the value. Repeated calls return the same value.

        Args:
            sample: The sample whose `__sources__` list it.

        Raises:
            KeyNotFoundError: The store has nothing under the key.
            ReadError: Bytes could not be read after retries.
        """

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Lazy) and self.ds is not None and (self.ds, self.fname) == (other.ds, other.fname)

    def __hash__(self) -> int:
        return hash((self.ds, self.fname))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.ds!r}, {self.fname!r})"


class CachePool(ABC):
    """The pool from which `need_cache` cookers get values, now or later. Picklable."""

    @abstractmethod
    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        """Read the value of a key now. See `FileStore.get`."""

    @abstractmethod
    def get_lazy(self, ds: FileStore[T], fname: str) -> Lazy[T]:
        """A lazy value of a key. A missing key is an error only when the value is read."""

    @abstractmethod
    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """Store a value for later.

        Args:
            data: The value.
            name: Its name in messages.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the pool's resources."""


class NoCachePool(CachePool):
    """Reads directly from the stores, on demand, and keeps nothing on disk."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NoCachePool)

    def __hash__(self) -> int:
        return hash(NoCachePool)

    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        """Read the value of a key now."""
        return ds.get(fname, sample)

    def get_lazy(self, ds: FileStore[T], fname: str) -> DirectLazy[T]:
        """Return a lazy value of a key. The value is read on first access."""
        return DirectLazy(ds, fname, self)

    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """Keep the value in memory, and return it as a lazy value."""
        return HeldLazy(data, name, self)

    def close(self) -> None:
        """Nothing to release."""


class DirectLazy(Lazy[T]):
    """Reads from its store on first access, and keeps the value."""

    def __init__(self, ds: FileStore[T], fname: str, pool: CachePool) -> None:
        super().__init__(ds, fname, pool)
        self._read: tuple[T, SourceInfo] | None = None

    def get(self, sample: Any = None) -> T:
        """The value. The first call reads it."""
        read = self._read
        if read is None:
            read = self._read = self._fetched()
        value, source = read
        if sample is not None:
            add_source_info(sample, source)
        return value

    def _fetched(self) -> tuple[T, SourceInfo]:
        assert self.ds is not None
        return self.ds[self.fname]


class HeldLazy(Lazy[T]):
    """A value already in memory."""

    def __init__(self, value: T, name: str, pool: CachePool) -> None:
        super().__init__(None, name, pool)
        self._value = value

    def get(self, sample: Any = None) -> T:
        return self._value


class MockLazy(Lazy[T]):
    """A lazy value of a function, for tests of code that takes lazy values. Each `get` calls the function.

    Two are equal if their names and functions are.

    Args:
        fname: A name.
        get_fn: Called with the name.
    """

    def __init__(self, fname: str, get_fn: Callable[[str], T]) -> None:
        super().__init__(None, fname, None)
        self.get_fn = get_fn

    def get(self, sample: Any = None) -> T:
        """The result of the function. No source is added to the sample."""
        return self.get_fn(self.fname)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MockLazy) and (self.fname, self.get_fn) == (other.fname, other.get_fn)

    def __hash__(self) -> int:
        return hash((self.fname, self.get_fn))

    def __repr__(self) -> str:
        return f"MockLazy(fname={self.fname!r}, get_fn={self.get_fn!r})"


class _Active(threading.local):
    pool: CachePool | None = None


_active = _Active()


class using_cache:  # noqa: N801 (a context manager; a generator would cost a microsecond per step)
    """Set the pool of the hooks that run inside; None: no pool."""

    __slots__ = ("_outer", "_pool")

    def __init__(self, pool: CachePool | None) -> None:
        self._pool = pool

    def __enter__(self) -> None:
        self._outer, _active.pool = _active.pool, self._pool

    def __exit__(self, *exception: object) -> None:
        _active.pool = self._outer


def active_cache() -> CachePool:
    """The pool of the hook that runs in this thread: the loader's, or one that keeps nothing."""
    return _active.pool or NoCachePool()
