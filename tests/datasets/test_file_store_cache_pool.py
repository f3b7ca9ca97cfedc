"""Files on their way onto a local disk."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_graphs import config

from energon_grain import (
    ConfigError,
    Cooker,
    DecodeFileStore,
    DefaultTaskEncoder,
    FileStoreCachePool,
    KeyNotFoundError,
    Lazy,
    PrimaryFileStore,
    Sample,
    SampleDecoder,
    SystemFileStore,
    basic_sample_keys,
    cooker,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_grain.datasets.file_store_cache_pool import FileCacheLazy
from energon_grain.prepare import prepare_dataset
from energon_grain.samples.source_info import SourceInfo
from energon_grain.testing import write_tars


class SlowStore(SystemFileStore):
    """Notes what is read, and reads nothing before it may."""

    def __init__(self, base_dir: Path) -> None:
        super().__init__(base_dir)
        self.reads: list[str] = []
        self.may_read = threading.Event()

    def read(self, keys: Sequence[str]) -> list[tuple[bytes, SourceInfo]]:
        self.reads += keys
        assert self.may_read.wait(20)
        return super().read(keys)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SlowStore]:
    folder = tmp_path / "store"
    folder.mkdir()
    for number in range(8):
        (folder / f"{number}.txt").write_text(f"file {number}")
    (folder / "large.txt").write_text("x" * 1000)
    store = SlowStore(folder)
    yield store
    store.may_read.set()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., FileStoreCachePool]]:
    pools: list[FileStoreCachePool] = []

    def pool(**options: Any) -> FileStoreCachePool:
        pools.append(FileStoreCachePool(parent_cache_dir=tmp_path / "cache", **options))
        return pools[-1]

    yield pool
    for each in pools:
        each.close()


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_each_file_is_read_once_and_kept_until_its_last_reader(store: SlowStore, make: Any) -> None:
    pool = make()
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


def test_what_nobody_read_is_let_go_of(store: SlowStore, make: Any) -> None:
    pool = make()
    store.may_read.set()
    lazies = [pool.get_lazy(store, "0.txt"), pool.get_lazy(store, "0.txt"), pool.get_lazy(store, "1.txt")]
    until(lambda: len(list(pool.cache_dir.iterdir())) == 2)
    del lazies[1:]
    gc.collect()
    assert pool.current_cache_count == 1
    lazies.clear()
    gc.collect()
    assert pool.current_cache_count == 0
    until(lambda: not any(pool.cache_dir.iterdir()))


def test_before_its_turn_a_file_is_read_from_the_store(store: SlowStore, make: Any) -> None:
    pool = make(num_workers=1)
    first, second, third = (pool.get_lazy(store, f"{number}.txt") for number in range(3))
    until(lambda: store.reads == ["0.txt"])  # the only thread is busy
    threading.Timer(0.05, store.may_read.set).start()
    assert second.get() == b"file 1"
    assert first.get() == b"file 0"
    assert third.get() == b"file 2"
    assert Counter(store.reads)["1.txt"] == 1
    assert pool.current_cache_count == 0


def test_who_asks_while_a_file_is_copied_waits_for_it(store: SlowStore, make: Any) -> None:
    pool = make()
    lazy = pool.get_lazy(store, "0.txt")
    until(lambda: store.reads)
    threading.Timer(0.05, store.may_read.set).start()
    assert lazy.get() == b"file 0"
    assert store.reads == ["0.txt"]


@pytest.mark.parametrize("options", [{"max_cache_count": 2}, {"max_cache_size_gbytes": 13 / (1 << 30)}])
def test_without_space_files_wait(store: SlowStore, make: Any, options: dict[str, Any]) -> None:
    store.may_read.set()
    pool = make(num_workers=1, **options)
    lazies = [pool.get_lazy(store, f"{number}.txt") for number in range(4)]
    until(lambda: len(store.reads) == 4)
    assert pool.current_cache_count == 2
    assert lazies[3].get() == b"file 3"  # although there is no space for it
    assert lazies[0].get() == b"file 0"
    until(lambda: store.reads.count("2.txt") == 2)
    until(lambda: pool.current_cache_count == 2)
    assert [lazies[1].get(), lazies[2].get()] == [b"file 1", b"file 2"]
    assert pool.current_cache_count == 0


def test_what_is_larger_than_the_cache_is_not_kept(store: SlowStore, make: Any) -> None:
    store.may_read.set()
    pool = make(max_cache_size_gbytes=100 / (1 << 30))
    large, small = pool.get_lazy(store, "large.txt"), pool.get_lazy(store, "0.txt")
    until(lambda: pool.current_cache_count == 1)
    assert len(large.get()) == 1000
    assert small.get() == b"file 0"


def test_errors_come_when_the_value_is_asked_for(store: SlowStore, make: Any) -> None:
    store.may_read.set()
    pool = make()
    lazy = pool.get_lazy(store, "none.txt")
    until(lambda: store.reads)
    for _ in range(2):
        with pytest.raises(KeyNotFoundError, match=r"none\.txt"):
            lazy.get()


def test_a_disk_that_fails_is_told_once(store: SlowStore, make: Any, caplog: pytest.LogCaptureFixture) -> None:
    store.may_read.set()
    pool = make()
    pool.cache_dir.rmdir()
    lazies = [pool.get_lazy(store, f"{number}.txt") for number in range(3)]
    until(lambda: len(store.reads) == 3)
    assert [lazy.get() for lazy in lazies] == [b"file 0", b"file 1", b"file 2"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert pool.to_cache([1], "one").get() == [1]


def test_a_copy_that_somebody_deleted(store: SlowStore, make: Any) -> None:
    store.may_read.set()
    pool = make()
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
def test_values_are_decoded(store: SlowStore, make: Any, method: str) -> None:
    """`raw` keeps what the store has, also below a view that names parts of a sample."""
    store.may_read.set()
    pool = make(method=method)
    decoding = DecodeFileStore(store, decoder=Upper())
    whole, part = pool.get_lazy(decoding, "3.txt"), pool.get_lazy(PrimaryFileStore(decoding, "3"), ".txt")
    until(lambda: len(list(pool.cache_dir.iterdir())) == 2)
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


def test_values_that_are_no_bytes(store: SlowStore, make: Any, caplog: pytest.LogCaptureFixture) -> None:
    numbers = Numbers(store.get_path())
    lazy = make().get_lazy(numbers, "0.txt")
    until(lambda: "stored as a int, not as bytes; FileStoreCachePool(method='pickle') can cache it" in caplog.text)
    pool = make(method="pickle")
    lazy = pool.get_lazy(numbers, "0.txt")
    assert lazy.get() == 7
    lazy = pool.get_lazy(numbers, "0.txt")
    until(lambda: any(pool.cache_dir.iterdir()))
    assert lazy.get() == 7


def test_values_put_away(make: Any) -> None:
    pool = make(max_cache_count=2)
    lazies = [pool.to_cache({"n": number}, f"value {number}") for number in range(3)]
    assert pool.current_cache_count == 2  # the third stays in memory
    sample: dict[str, Any] = {"__sources__": ()}
    assert [lazy.get(sample) for lazy in lazies] == [{"n": number} for number in range(3)]
    assert lazies[0].get() is lazies[0].get()
    assert sample == {"__sources__": ()}
    assert pool.current_cache_count == 0
    unread = pool.to_cache(1, "one")
    assert pool.current_cache_count == 1
    del unread
    assert pool.current_cache_count == 0
    lost = pool.to_cache(1, "lost one")
    pool.close()
    with pytest.raises(ValueError, match="lost one: the cache pool was closed"):
        lost.get()


def test_a_closed_pool_leaves_nothing_behind(store: SlowStore, tmp_path: Path) -> None:
    pool = FileStoreCachePool(parent_cache_dir=tmp_path / "cache", num_workers=2)
    lazies = [pool.get_lazy(store, f"{number}.txt") for number in range(8)]
    store.may_read.set()
    pool.close()
    assert list((tmp_path / "cache").iterdir()) == []
    assert [lazy.get() for lazy in lazies] == [f"file {number}".encode() for number in range(8)]
    with pytest.raises(ValueError, match="the cache pool was closed"):
        pool.get_lazy(store, "0.txt")
    pool.close()


def test_many_threads(store: SlowStore, make: Any) -> None:
    """Whoever reads when, every value is right and nothing stays behind."""
    store.may_read.set()
    pool = make(num_workers=3, max_cache_count=3)
    wrong: list[Any] = []

    def reader(seed: int) -> None:
        rng = np.random.default_rng(seed)
        held: list[tuple[int, FileCacheLazy[bytes]]] = []
        for _ in range(300):
            number = int(rng.integers(8))
            held.append((number, pool.get_lazy(store, f"{number}.txt")))
            if len(held) > 5:
                number, lazy = held.pop(int(rng.integers(len(held))))
                if rng.random() < 0.7 and lazy.get() != f"file {number}".encode():
                    wrong.append(number)

    threads = [threading.Thread(target=reader, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    gc.collect()
    assert not wrong
    until(lambda: pool.current_cache_count == 0)
    until(lambda: not any(pool.cache_dir.iterdir()))


def test_a_script_that_ends_cleans_up(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from energon_grain import FileStoreCachePool, SystemFileStore\n"
        "pool = FileStoreCachePool(parent_cache_dir=sys.argv[1])\n"
        "store = SystemFileStore(sys.argv[2])\n"
        "lazies = [pool.get_lazy(store, 'a.txt') for _ in range(1000)]\n"
        "away = pool.to_cache('x', 'x')\n"
        "print(lazies[0].get().decode())\n"
    )
    (tmp_path / "a.txt").write_text("a")
    command = [sys.executable, "-c", program, str(tmp_path / "cache"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert (done.stdout, done.stderr) == ("a\n", "")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_forked_child_reads_directly(store: SlowStore, make: Any) -> None:
    pool = make()
    store.may_read.set()
    lazy, put = pool.get_lazy(store, "0.txt"), pool.to_cache("away", "away")
    until(lambda: pool.current_cache_count == 2)
    child = os.fork()
    if not child:
        status = 1
        try:
            later = pool.get_lazy(store, "1.txt")
            fine = (lazy.get(), later.get(), pool.to_cache(3, "three").get()) == (b"file 0", b"file 1", 3)
            del lazy, later, put
            gc.collect()
            pool.close()
            status = 0 if fine else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert pool.current_cache_count == 2
    assert (lazy.get(), put.get()) == (b"file 0", "away")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "zip"}, r"method='zip'\): 'raw' or 'pickle' is meant"),
        ({"num_workers": 0}, "num_workers=0, .*: positive numbers are meant"),
        ({"max_cache_size_gbytes": -1}, "max_cache_size_gbytes=-1"),
        ({"max_cache_count": 0}, "max_cache_count=0"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FileStoreCachePool(**options)


@dataclass
class Photo(Sample):
    pixels: Lazy[str]
    note: Lazy[int]


@stateless
@cooker(need_cache=True)
def cook(sample: Any, cache: Any, photos: Any) -> Photo:
    lazy = cache.get_lazy(photos, sample["json"]["photo"])
    return Photo(**basic_sample_keys(sample), pixels=lazy, note=lazy.pool.to_cache(len(sample["__key__"]), "length"))


class Packs(DefaultTaskEncoder):
    """Reads once it is known what is used."""

    cookers = (Cooker(cook),)

    def select_samples_to_pack(self, samples: list[Photo]) -> list[list[Photo]]:
        return [samples[:2], samples[2:3]]

    def pack_selected_samples(self, samples: list[Photo]) -> Any:
        put = self.cache.to_cache([sample.__key__ for sample in samples], "keys")
        return {
            "keys": put,
            "pixels": [sample.pixels.get() for sample in samples],
            "pool": type(self.cache).__name__,
            "notes": [sample.note.get() for sample in samples],
        }

    def encode_batch(self, batch: Any) -> Any:
        return {**batch, "keys": [lazy.get() for lazy in batch["keys"]]}


@pytest.mark.parametrize(
    "workers", [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "worker_type": "process"}]
)
def test_a_loader_with_a_pool(tmp_path: Path, make: Any, workers: dict[str, Any]) -> None:
    samples = [{"__key__": f"{i:03d}", "json": {"photo": f"{i % 5}.txt"}} for i in range(40)]
    write_tars(tmp_path / "main", samples, shards=2)
    prepare_dataset(tmp_path / "main", split_ratio={"train": 1}, crude=True, num_workers=0, sqlite=False)
    (tmp_path / "photos").mkdir()
    for number in range(5):
        (tmp_path / "photos" / f"{number}.txt").write_text(f"photo {number}")
    (tmp_path / "meta.yaml").write_text(
        "__class__: MetadatasetV2\nsplits: {train: {path: main, aux: {photos: 'filesystem://photos'}}}\n"
    )
    dataset = get_train_dataset(
        tmp_path / "meta.yaml",
        batch_size=2,
        packing_buffer_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        lanes=2,
        worker_config=config(**workers),
        task_encoder=Packs(),
    )
    pool = make()
    with get_savable_loader(dataset) as plain, get_savable_loader(dataset, cache_pool=pool) as cached:
        batches: list[Any] = []
        states: list[Any] = []
        for _ in range(12):
            states.append(cached.save_state_rank())
            batches.append(next(cached))
        assert batches == [{**next(plain), "pool": ["FileStoreCachePool"] * 2} for _ in range(12)]
        cached.restore_state_rank(states[6])  # with samples held
        assert [next(cached) for _ in range(6)] == batches[6:]
    batches.clear()
    gc.collect()
    until(lambda: pool.current_cache_count == 0)
