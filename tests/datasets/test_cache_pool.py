"""Values named now and read later."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest

from energon_grain.datasets.cache_pool import DirectLazy, Lazy, MockLazy, NoCachePool, active_cache, using_cache
from energon_grain.errors import KeyNotFoundError
from energon_grain.samples.source_info import SourceInfo
from energon_grain.sources.file_store import SystemFileStore
from energon_grain.sources.webdataset import WebdatasetFileStore
from energon_grain.testing import make_crude_dataset


class CountingStore(SystemFileStore):
    """Notes what is read."""

    reads: tuple[str, ...] = ()

    def read(self, keys: Sequence[str]) -> list[tuple[bytes, SourceInfo]]:
        self.reads += tuple(keys)
        return super().read(keys)


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    return CountingStore(tmp_path)


def test_a_pool_reads_directly(store: CountingStore) -> None:
    sample: dict[str, tuple[SourceInfo, ...]] = {"__sources__": ()}
    assert NoCachePool().get(store, "a.txt", sample) == b"a"
    assert [source.index for source in sample["__sources__"]] == ["a.txt"]


def test_a_lazy_value_stays_what_it_is(store: CountingStore) -> None:
    """W-19: the original's second `get` returns the value with its source."""
    lazy = NoCachePool().get_lazy(store, "a.txt")
    assert store.reads == ()
    sample: dict[str, tuple[SourceInfo, ...]] = {"__sources__": ()}
    assert [lazy.get(), lazy.get(sample), lazy.get(), lazy.get(sample)] == [b"a"] * 4
    assert store.reads == ("a.txt",)
    assert [source.index for source in sample["__sources__"]] == ["a.txt", "a.txt"]


def test_a_missing_key_is_told_when_it_is_read(store: CountingStore) -> None:
    lazy = NoCachePool().get_lazy(store, "c.txt")
    for _ in range(2):
        with pytest.raises(KeyNotFoundError):
            lazy.get()


def test_lazy_values_are_equal_by_store_and_key(store: CountingStore) -> None:
    pool = NoCachePool()
    a, again, b = pool.get_lazy(store, "a.txt"), NoCachePool().get_lazy(store, "a.txt"), pool.get_lazy(store, "b.txt")
    assert a == again
    assert a != b
    assert a != "a.txt"
    assert len({a, again, b}) == 2
    assert (a.ds, a.fname, a.pool) == (store, "a.txt", pool)
    assert "a.txt" in repr(a)


def test_values_put_away(store: CountingStore) -> None:
    pool = NoCachePool()
    value = [1, 2]
    lazy = pool.to_cache(value, "numbers")
    sample: dict[str, tuple[SourceInfo, ...]] = {"__sources__": ()}
    assert isinstance(lazy, Lazy)
    assert lazy.get(sample) is lazy.get() is value
    assert sample == {"__sources__": ()}
    assert lazy == lazy
    assert lazy != pool.to_cache(value, "numbers")
    assert pickle.loads(pickle.dumps(lazy)).get() == value
    pool.close()


def test_copies_share_one_store(tmp_path: Path) -> None:
    store = WebdatasetFileStore(make_crude_dataset(tmp_path / "set", n=3, shards=1))
    lazies = [NoCachePool().get_lazy(store, f"{number:06d}.txt") for number in range(3)]
    copies = [pickle.loads(pickle.dumps(lazy)) for lazy in lazies]
    assert copies == lazies
    assert all(type(copy) is DirectLazy and copy.ds is store for copy in copies)
    assert [copy.get() for copy in copies] == [lazy.get() for lazy in lazies]


def test_a_lazy_value_of_a_function() -> None:
    names: list[str] = []

    def length(name: str) -> int:
        names.append(name)
        return len(name)

    lazy = MockLazy("abc", length)
    sample: dict[str, tuple[SourceInfo, ...]] = {"__sources__": ()}
    assert [lazy.get(), lazy.get(sample)] == [3, 3]
    assert names == ["abc", "abc"]
    assert sample == {"__sources__": ()}
    assert lazy == MockLazy("abc", length)
    assert len({lazy, MockLazy("abc", length), MockLazy("ab", length), MockLazy("abc", len)}) == 3
    assert (lazy.ds, lazy.fname, lazy.pool) == (None, "abc", None)
    assert "fname='abc'" in repr(lazy)


def test_hooks_see_the_pool_that_is_used() -> None:
    pool = NoCachePool()
    assert active_cache() == pool
    with using_cache(pool):
        assert active_cache() is pool
        with using_cache(None):
            assert active_cache() is not pool
        assert active_cache() is pool
