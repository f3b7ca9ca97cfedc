"""Cache pools: values named now and read later, files on a local disk, threads, forks and ends, stores upon stores."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forking import may_fork
from metadatasets import write_v2
from patience import PATIENCE_S
from slow_stores import SlowStore, until
from stream_hosts import config

from energon_grain import (
    ConfigError,
    Cooker,
    DecodeFileStore,
    DecodingError,
    DefaultTaskEncoder,
    DirectLazy,
    EPath,
    FileCacheLazy,
    FileStore,
    FileStoreCachePool,
    KeyNotFoundError,
    Lazy,
    MockLazy,
    NoCachePool,
    PrimaryFileStore,
    Sample,
    SampleDecoder,
    SourceInfo,
    SystemFileStore,
    WebdatasetFileStore,
    basic_sample_keys,
    cooker,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import make_crude_dataset, write_tars


class CountingStore(SystemFileStore):
    """Notes what is read."""

    reads: tuple[str, ...] = ()

    def read(self, keys: Sequence[str]) -> list[tuple[bytes, SourceInfo]]:
        self.reads += tuple(keys)
        return super().read(keys)


@pytest.fixture
def counting(tmp_path: Path) -> CountingStore:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    return CountingStore(tmp_path)


def test_a_pool_reads_directly(counting: CountingStore) -> None:
    sample: dict[str, tuple[SourceInfo, ...]] = {"__sources__": ()}
    assert NoCachePool().get(counting, "a.txt", sample) == b"a"
    assert [source.index for source in sample["__sources__"]] == ["a.txt"]


def test_a_lazy_value_stays_what_it_is(counting: CountingStore) -> None:
    """W-19: the original's second `get` returns the value with its source."""
    lazy = NoCachePool().get_lazy(counting, "a.txt")
    assert counting.reads == ()
    sample: dict[str, tuple[SourceInfo, ...]] = {"__sources__": ()}
    assert [lazy.get(), lazy.get(sample), lazy.get(), lazy.get(sample)] == [b"a"] * 4
    assert counting.reads == ("a.txt",)
    assert [source.index for source in sample["__sources__"]] == ["a.txt", "a.txt"]


def test_a_missing_key_is_told_when_it_is_read(counting: CountingStore) -> None:
    lazy = NoCachePool().get_lazy(counting, "c.txt")
    for _ in range(2):
        with pytest.raises(KeyNotFoundError):
            lazy.get()


def test_lazy_values_are_equal_by_store_and_key(counting: CountingStore) -> None:
    pool = NoCachePool()
    a, again = pool.get_lazy(counting, "a.txt"), NoCachePool().get_lazy(counting, "a.txt")
    b = pool.get_lazy(counting, "b.txt")
    assert a == again
    assert a != b
    assert a != "a.txt"
    assert len({a, again, b}) == 2
    assert (a.ds, a.fname, a.pool) == (counting, "a.txt", pool)
    assert "a.txt" in repr(a)


def test_values_put_away(counting: CountingStore) -> None:
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


def test_values_put_away_in_files(make_pool: Any) -> None:
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


def test_many_threads(store: SlowStore, make_pool: Any) -> None:
    """Whoever reads when, every value is right and nothing stays behind."""
    store.may_read.set()
    pool = make_pool(num_workers=3, max_cache_count=3)
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
        thread.join(PATIENCE_S)
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
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert (done.stdout, done.stderr) == ("a\n", "")
    assert list((tmp_path / "cache").iterdir()) == []


@may_fork
def test_a_forked_child_reads_directly(store: SlowStore, make_pool: Any) -> None:
    pool = make_pool()
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
def test_a_loader_with_a_pool(tmp_path: Path, make_pool: Any, workers: dict[str, Any]) -> None:
    samples = [{"__key__": f"{i:03d}", "json": {"photo": f"{i % 5}.txt"}} for i in range(40)]
    write_tars(tmp_path / "main", samples, shards=2)
    prepare_dataset(tmp_path / "main", split_ratio={"train": 1}, crude=True, num_workers=0, sqlite=False)
    (tmp_path / "photos").mkdir()
    for number in range(5):
        (tmp_path / "photos" / f"{number}.txt").write_text(f"photo {number}")
    dataset = get_train_dataset(
        write_v2(tmp_path, train={"path": "main", "aux": {"photos": "filesystem://photos"}}),
        batch_size=2,
        packing_buffer_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        lanes=2,
        worker_config=config(**workers),
        task_encoder=Packs(),
    )
    pool = make_pool()
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


def test_values_are_decoded_by_the_endings_of_keys(tmp_path: Path) -> None:
    files = {"a.txt": b"text", "a.left.json": b"[1, 2]", "raw.bin": b"\0", "broken.json": b"{"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    np.save(tmp_path / "array.npy", np.arange(3))
    store = DecodeFileStore(SystemFileStore(tmp_path), decoder=SampleDecoder())
    assert (store.get("a.txt"), store.get("a.left.json"), store.get("raw.bin")) == ("text", [1, 2], b"\0")
    assert store.get("array.npy").tolist() == [0, 1, 2]
    assert [value for value, _ in store.read(["a.txt", "a.left.json"])] == ["text", [1, 2]]
    assert store["a.txt"][1].file_names == ("a.txt",)
    assert "a.txt" in store
    assert "b.txt" not in store
    assert store.get_path() == str(tmp_path)
    with pytest.raises(DecodingError, match=rf"{tmp_path}: broken\.json: part 'json'"):
        store.get("broken.json")
    with pytest.raises(KeyNotFoundError, match=r"b\.txt"):
        store.get("b.txt")
    copy = pickle.loads(pickle.dumps(store))
    assert copy == store
    assert hash(copy) == hash(store)
    assert copy.get("a.left.json") == [1, 2]


def test_parts_of_the_current_sample(tmp_path: Path) -> None:
    root = make_crude_dataset(tmp_path / "set", n=6, shards=2)
    inner = DecodeFileStore(WebdatasetFileStore(root), decoder=SampleDecoder())
    store = PrimaryFileStore(inner, "000004")
    sample = {"__sources__": ()}
    assert store.get(".json", sample)["number"] == 4
    assert store.get("000001.json", sample)["number"] == 1
    assert [source.file_names for source in sample["__sources__"]] == [("000004.json",), ("000001.json",)]
    assert store[".txt"] == inner["000004.txt"]
    assert ".json" in store
    assert ".jpg" not in store
    assert 3 not in store
    assert store.get_path() == str(root)
    with pytest.raises(KeyNotFoundError, match=r"no file '000004\.jpg'"):
        store.get(".jpg")
    assert pickle.loads(pickle.dumps(store)) == store
    store.close()
    assert store.get(".json")["number"] == 4


def test_what_is_stored_and_what_is_made_of_it(tmp_path: Path) -> None:
    root = make_crude_dataset(tmp_path / "set", n=3, shards=1)
    inner = WebdatasetFileStore(root)
    decoding = DecodeFileStore(inner, decoder=SampleDecoder())
    part = PrimaryFileStore(decoding, "000002")
    data, source = part.stored(".json")
    assert (data, source) == decoding.stored("000002.json") == inner.stored("000002.json") == inner["000002.json"]
    assert part.decoded(".json", data) == decoding.decoded("000002.json", data) == part.get(".json")
    assert inner.decoded("000002.json", data) == data
    with pytest.raises(DecodingError, match=rf"{root}: 000002\.json"):
        part.decoded(".json", b"{")


class OneByOne(FileStore[bytes]):
    """A store as Energon has it: two methods."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        info = SourceInfo(dataset_path=EPath("/somewhere"), index=key, shard_name="x", file_names=(key,))
        return self.files[key], info

    def get_path(self) -> str:
        return "/somewhere"


class Shouting(SampleDecoder):
    def decode(self, fname: str, raw: bytes) -> str:
        return f"{fname}: {raw.decode().upper()}"


def test_a_store_of_ones_own_needs_two_methods(tmp_path: Path) -> None:
    store = OneByOne({"a.txt": b"one", "b.txt": b"two"})
    sample = {"__sources__": None}
    assert store.get("a.txt", sample) == b"one"
    assert [source.index for source in sample["__sources__"] or ()] == ["a.txt"]
    assert [value for value, _ in store.read(["b.txt", "a.txt"])] == [b"two", b"one"]
    assert "a.txt" in store
    assert "c.txt" not in store
    shouted = DecodeFileStore(store, decoder=Shouting())
    assert shouted.get("a.txt") == "a.txt: ONE"
    assert "c.txt" not in shouted
    part = PrimaryFileStore(DecodeFileStore(store, decoder=SampleDecoder()), "b")
    assert (part.get(".txt"), ".jpg" in part) == ("two", False)
    pool = FileStoreCachePool(parent_cache_dir=tmp_path)
    assert pool.get_lazy(shouted, "b.txt").get() == "b.txt: TWO"
    pool.close()


def test_a_store_says_how_values_are_read() -> None:
    class Silent(FileStore[bytes]):
        def get_path(self) -> str:
            return "/somewhere"

    with pytest.raises(TypeError, match="Silent implements neither `read` nor `__getitem__`"):
        Silent()
