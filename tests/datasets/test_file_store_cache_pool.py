"""Files on their way onto a local disk: when they are read, kept, and let go of."""

from __future__ import annotations

import gc
import pickle
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from slow_stores import SlowStore, until

from energon_grain import (
    ConfigError,
    DecodeFileStore,
    FileStoreCachePool,
    KeyNotFoundError,
    PrimaryFileStore,
    SampleDecoder,
    SourceInfo,
    SystemFileStore,
)


def test_each_file_is_read_once_and_kept_until_its_last_reader(store: SlowStore, make_pool: Any) -> None:
    pool = make_pool()
    store.may_read.set()
    lazies = [pool.get_lazy(store, "0.txt") for _ in range(3)]
    until(lambda: pool.current_cache_count == 1 and any(pool.cache_dir.iterdir()))
    assert pool.current_cache_size == 6
    sample: dict[str, Any] = {"__sources__": ()}
    assert [lazies[0].get(), lazies[0].get(sample), lazies[1].get()] == [b"file 0"] * 3
    assert [source.file_names for source in sample["__sources__"]] == [("0.txt",)]
    assert store.reads == ["0.txt"]
    assert pool.current_cache_count == 1
    assert lazies[2].get() == b"file 0"
    assert (pool.current_cache_count, pool.current_cache_size, list(pool.cache_dir.iterdir())) == (0, 0, [])
    assert store.reads == ["0.txt"]
    assert lazies[0] == lazies[1] != pool.get_lazy(store, "1.txt")
    assert str(pool.max_cache_size) in str(pool)


def test_what_nobody_read_is_let_go_of(store: SlowStore, make_pool: Any) -> None:
    pool = make_pool()
    store.may_read.set()
    lazies = [pool.get_lazy(store, "0.txt"), pool.get_lazy(store, "0.txt"), pool.get_lazy(store, "1.txt")]
    until(lambda: len(list(pool.cache_dir.iterdir())) == 2)
    del lazies[1:]
    gc.collect()
    until(lambda: pool.current_cache_count == 1)  # the file may be there before its copying is over
    lazies.clear()
    gc.collect()
    until(lambda: pool.current_cache_count == 0 and not any(pool.cache_dir.iterdir()))


def test_before_its_turn_a_file_is_read_from_the_store(store: SlowStore, make_pool: Any) -> None:
    pool = make_pool(num_workers=1)
    first, second, third = (pool.get_lazy(store, f"{number}.txt") for number in range(3))
    until(lambda: store.reads == ["0.txt"])  # the only thread is busy
    threading.Timer(0.05, store.may_read.set).start()
    assert second.get() == b"file 1"
    assert first.get() == b"file 0"
    assert third.get() == b"file 2"
    assert Counter(store.reads)["1.txt"] == 1
    assert pool.current_cache_count == 0


def test_who_asks_while_a_file_is_copied_waits_for_it(store: SlowStore, make_pool: Any) -> None:
    pool = make_pool()
    lazy = pool.get_lazy(store, "0.txt")
    until(lambda: store.reads)
    threading.Timer(0.05, store.may_read.set).start()
    assert lazy.get() == b"file 0"
    assert store.reads == ["0.txt"]


@pytest.mark.parametrize("options", [{"max_cache_count": 2}, {"max_cache_size_gbytes": 13 / (1 << 30)}])
def test_without_space_files_wait(store: SlowStore, make_pool: Any, options: dict[str, Any]) -> None:
    store.may_read.set()
    pool = make_pool(num_workers=1, **options)
    lazies = [pool.get_lazy(store, f"{number}.txt") for number in range(4)]
    until(lambda: len(store.reads) == 4)
    assert pool.current_cache_count == 2
    assert lazies[3].get() == b"file 3"  # although there is no space for it
    assert lazies[0].get() == b"file 0"
    until(lambda: store.reads.count("2.txt") == 2)
    until(lambda: pool.current_cache_count == 2)
    assert [lazies[1].get(), lazies[2].get()] == [b"file 1", b"file 2"]
    assert pool.current_cache_count == 0


def test_what_is_larger_than_the_cache_is_not_kept(store: SlowStore, make_pool: Any) -> None:
    store.may_read.set()
    pool = make_pool(max_cache_size_gbytes=100 / (1 << 30))
    large, small = pool.get_lazy(store, "large.txt"), pool.get_lazy(store, "0.txt")
    until(lambda: pool.current_cache_count == 1)
    assert len(large.get()) == 1000
    assert small.get() == b"file 0"


def test_errors_come_when_the_value_is_asked_for(store: SlowStore, make_pool: Any) -> None:
    store.may_read.set()
    pool = make_pool()
    lazy = pool.get_lazy(store, "none.txt")
    until(lambda: store.reads)
    for _ in range(2):
        with pytest.raises(KeyNotFoundError, match=r"none\.txt"):
            lazy.get()


def test_a_disk_that_fails_is_told_once(store: SlowStore, make_pool: Any, caplog: pytest.LogCaptureFixture) -> None:
    store.may_read.set()
    pool = make_pool()
    pool.cache_dir.rmdir()
    lazies = [pool.get_lazy(store, f"{number}.txt") for number in range(3)]
    until(lambda: len(store.reads) == 3)
    assert [lazy.get() for lazy in lazies] == [b"file 0", b"file 1", b"file 2"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert pool.to_cache([1], "one").get() == [1]


def test_a_copy_that_somebody_deleted(store: SlowStore, make_pool: Any) -> None:
    store.may_read.set()
    pool = make_pool()
    lazy = pool.get_lazy(store, "0.txt")
    until(lambda: any(pool.cache_dir.iterdir()))
    next(pool.cache_dir.iterdir()).unlink()
    assert lazy.get() == b"file 0"
    assert pool.current_cache_count == 0


class Upper(SampleDecoder):
    """A decoder that cannot be taken for the bytes."""

    def decode(self, fname: str, data: Any) -> Any:
        return f"{fname}: {bytes(data).decode().upper()}"


@pytest.mark.parametrize("method", ["raw", "pickle"])
def test_values_are_decoded(store: SlowStore, make_pool: Any, method: str) -> None:
    """`raw` keeps what the store has, also below a view that names parts of a sample."""
    store.may_read.set()
    pool = make_pool(method=method)
    decoding = DecodeFileStore(store, decoder=Upper())
    whole, part = pool.get_lazy(decoding, "3.txt"), pool.get_lazy(PrimaryFileStore(decoding, "3"), ".txt")
    until(lambda: sum(path.stat().st_size > 0 for path in pool.cache_dir.iterdir()) == 2)
    kept = [path.read_bytes() for path in pool.cache_dir.iterdir()]
    if method == "raw":
        assert kept == [b"file 3"] * 2
    else:
        assert [pickle.loads(data) for data in kept] == ["3.txt: FILE 3"] * 2
    reads = len(store.reads)
    assert whole.get() == part.get() == pool.get(decoding, "3.txt") == "3.txt: FILE 3"
    assert len(store.reads) == reads + 1


class Numbers(SystemFileStore):
    """Holds no bytes."""

    def read(self, keys: Sequence[str]) -> list[tuple[Any, SourceInfo]]:
        return [(7, source) for _, source in super().read(keys)]


def test_values_that_are_no_bytes(store: SlowStore, make_pool: Any, caplog: pytest.LogCaptureFixture) -> None:
    numbers = Numbers(store.get_path())
    lazy = make_pool().get_lazy(numbers, "0.txt")
    until(lambda: "stored as a int, not as bytes; FileStoreCachePool(method='pickle') can cache it" in caplog.text)
    pool = make_pool(method="pickle")
    lazy = pool.get_lazy(numbers, "0.txt")
    assert lazy.get() == 7
    lazy = pool.get_lazy(numbers, "0.txt")
    until(lambda: any(pool.cache_dir.iterdir()))
    assert lazy.get() == 7


def test_values_put_away(make_pool: Any) -> None:
    pool = make_pool(max_cache_count=2)
    lazies = [pool.to_cache({"n": number}, f"value {number}") for number in range(3)]
    assert pool.current_cache_count == 2  # the third stays in memory
    sample: dict[str, Any] = {"__sources__": ()}
    assert lazies[0].cache_path.is_file()
    assert [lazy.get(sample) for lazy in lazies] == [{"n": number} for number in range(3)]
    assert lazies[0].cache_path is None
    assert lazies[0].get() is lazies[0].get()
    assert sample == {"__sources__": ()}
    assert pool.current_cache_count == 0
    unread = pool.to_cache(1, "one")
    file = unread.cache_path
    assert file.parent == pool.cache_dir
    assert file.is_file()
    assert pool.current_cache_count == 1
    del unread
    assert pool.current_cache_count == 0
    assert not file.exists()
    lost = pool.to_cache(1, "lost one")
    pool.close()
    with pytest.raises(ValueError, match="lost one: the cache pool was closed"):
        lost.get()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "zip"}, r"method='zip'\): expected 'raw' or 'pickle'"),
        ({"num_workers": 0}, "num_workers=0, .*: expected positive numbers"),
        ({"max_cache_size_gbytes": -1}, "max_cache_size_gbytes=-1"),
        ({"max_cache_count": 0}, "max_cache_count=0"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FileStoreCachePool(**options)
