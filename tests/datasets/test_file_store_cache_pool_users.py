"""A cache pool among threads, forked children, scripts that end, and loaders."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
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
    Cooker,
    DefaultTaskEncoder,
    FileCacheLazy,
    FileStoreCachePool,
    Lazy,
    Sample,
    basic_sample_keys,
    cooker,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars


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
