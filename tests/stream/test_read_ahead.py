"""Reading ahead from an object store: it changes the number of requests and when they are made, nothing else."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metadatasets import write_v2
from object_server import Bucket, Fault, ObjectServer
from patience import PATIENCE_S
from stream_hosts import quiet

from energon_grain import Balance, ReadError, StorageSettings, Stream, WorkerConfig, get_train_dataset, use_storage
from energon_grain.stream.index_map import Draws
from energon_grain.stream.prefetch import _well_cut
from energon_grain.testing import make_blob_dataset

Open = Callable[..., Stream]
SAMPLES, SAMPLE_BYTES = 600, 20_000
BATCH = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 samples of 20 KB, and a metadataset that names them by a relative path."""
    root = tmp_path_factory.mktemp("data")
    make_blob_dataset(root / "blobs", n=SAMPLES, shards=4, sample_bytes=SAMPLE_BYTES)
    split = (root / "blobs" / ".nv-meta" / "split.yaml").read_text()
    (root / "blobs" / ".nv-meta" / "split.yaml").write_text(split.replace("val:", "other:"))
    write_v2(root, "all.yaml", train={"path": "blobs"})
    return root


@pytest.fixture(scope="module")
def bucket(object_server: ObjectServer, folder: Path) -> Iterator[Bucket]:
    """One for all tests, with the data."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in object_server.environment.items():
            patch.setenv(name, value)
        made = object_server.make_bucket("read-ahead")
        made.upload(folder)
        yield made


@pytest.fixture
def open_stream(bucket: Bucket, tmp_path: Path) -> Iterator[Open]:
    def make(
        location: Any, *, workers: int = 0, kind: Any = "thread", hosts: int = 1, balance: Any = None, **storage: Any
    ) -> Stream:
        quick = {"first_pause_s": 0.01, "longest_pause_s": 0.05, "cache_dir": str(tmp_path)}
        use_storage(StorageSettings(**{**quick, **storage}))
        config = WorkerConfig(0, hosts, workers, worker_type=kind, global_error_handler=quiet)
        dataset = get_train_dataset(
            f"{location}/all.yaml",
            worker_config=config,
            batch_size=BATCH,
            shuffle_buffer_size=50,
            max_samples_per_sequence=50,
            lanes=8,
            balance=balance,
        )
        return Stream.of(dataset)

    bucket.server.reset()
    yield make
    bucket.server.reset()


def take(stream: Stream, count: int = 80) -> list[Any]:
    return [(batch["__key__"], batch["bin"]) for batch in (next(stream) for _ in range(count))]


def sent_bytes(bucket: Bucket) -> int:
    return sum(request.sent_bytes for request in bucket.server.requests(".tar"))


@pytest.mark.parametrize(
    ("ahead_bytes", "cache_bytes", "workers"),
    [
        (0, 0, 0),
        (500_000, 0, 2),
        (500_000, 2_000_000, 0),
        (3_000_000, 1 << 30, 2),
        (1 << 30, 0, 0),
        (1 << 30, 1 << 30, 0),
    ],
)
def test_it_changes_nothing(
    bucket: Bucket, folder: Path, open_stream: Open, workers: int, cache_bytes: int, ahead_bytes: int
) -> None:
    url = bucket.url
    with (
        open_stream(folder) as here,
        open_stream(url, workers=workers, cache_bytes=cache_bytes, ahead_bytes=ahead_bytes) as there,
    ):
        assert take(there) == take(here)
        assert there.cursor() == here.cursor()
        there.restore(here.cursor())
        assert take(there, 3) == take(here, 3)


def test_it_changes_nothing_of_equal_work(bucket: Bucket, folder: Path, open_stream: Open) -> None:
    """What is fetched ends anywhere in a step, of which all hosts' samples were looked at."""
    options: dict[str, Any] = {"hosts": 3, "balance": Balance("bytes.bin", micro_batches=4)}
    with (
        open_stream(folder, **options) as here,
        open_stream(bucket.url, cache_bytes=0, ahead_bytes=500_000, **options) as there,
    ):
        assert take(there) == take(here)


@pytest.mark.parametrize("cache_bytes", [0, 1 << 30])
def test_processes_read_what_was_fetched_for_them(
    bucket: Bucket, folder: Path, open_stream: Open, cache_bytes: int
) -> None:
    url = bucket.url
    with open_stream(folder) as here, open_stream(url, workers=2, kind="process", cache_bytes=cache_bytes) as there:
        assert take(there) == take(here)
    if cache_bytes:
        assert len(bucket.server.requests(".tar")) < 80


@pytest.mark.parametrize(("cache_bytes", "most"), [(0, 1.3), (1 << 30, 1.02)])
def test_a_pass_takes_few_requests_and_fetches_nothing_twice(
    bucket: Bucket, folder: Path, open_stream: Open, cache_bytes: int, most: float
) -> None:
    url = bucket.url
    size = sum(shard.stat().st_size for shard in (folder / "blobs").glob("*.tar"))

    with open_stream(url, cache_bytes=cache_bytes, ahead_bytes=12_000_000) as stream:
        take(stream, SAMPLES // BATCH)
    assert len(bucket.server.requests(".tar")) < 80
    assert sent_bytes(bucket) < most * size


def test_no_more_than_allowed_is_fetched_ahead(bucket: Bucket, folder: Path, open_stream: Open) -> None:
    url = bucket.url
    with open_stream(url, ahead_bytes=6_000_000, cache_bytes=0) as stream:
        take(stream, 1)
        until_s = time.monotonic() + PATIENCE_S
        while sent_bytes(bucket) <= 1_000_000:
            assert time.monotonic() < until_s
            time.sleep(0.05)
        time.sleep(1)
        assert sent_bytes(bucket) < 6_000_000


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cache_bytes", [0, 1 << 30])
def test_what_cannot_be_fetched_is_an_error(
    bucket: Bucket, folder: Path, open_stream: Open, workers: int, cache_bytes: int
) -> None:
    url = bucket.url
    with open_stream(url, workers=workers, cache_bytes=cache_bytes, attempts=2, ahead_bytes=4_000_000) as stream:
        take(stream, 2)
        bucket.server.inject(Fault("status", times=None, match=".tar"))
        with pytest.raises(ReadError, match=rf"{url}/blobs/shard_00.\.tar bytes .*\(2 attempts"):
            take(stream)


def test_failures_that_pass_change_nothing(bucket: Bucket, folder: Path, open_stream: Open) -> None:
    url = bucket.url
    with open_stream(folder) as here, open_stream(url, workers=2, ahead_bytes=4_000_000) as there:
        bucket.server.inject(Fault("close", sent=0.5, times=4, match=".tar"), Fault("status", times=4, match=".tar"))
        assert take(there) == take(here)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_closed_at_once_while_the_store_does_not_answer(
    bucket: Bucket, folder: Path, open_stream: Open, workers: int
) -> None:
    url = bucket.url
    stream = open_stream(url, workers=workers, timeout_s=2 * PATIENCE_S, attempts=1, ahead_bytes=4_000_000)
    take(stream, 1)
    bucket.server.inject(Fault("stall", times=None, match=".tar bytes"))
    reader = threading.Thread(target=_drain, args=(stream,))
    reader.start()
    time.sleep(0.5)
    began_s = time.monotonic()
    stream.close()
    assert time.monotonic() - began_s < PATIENCE_S
    bucket.server.reset()
    reader.join()


def _drain(stream: Stream) -> None:
    with contextlib.suppress(Exception):
        take(stream)


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(10, 60), st.integers(0, 200))
def test_steps_end_where_windows_end(seed: int, windows: int, run: int, more: int) -> None:
    """Windows of 8 runs each, of which a few draws of the next one are seen."""
    rng = np.random.default_rng(seed)
    starts = rng.permutation(200)[: 8 * (windows + 1)] * 1000
    order = [
        rng.permutation(np.concatenate([start + np.arange(run) for start in starts[8 * window : 8 * window + 8]]))
        for window in range(windows + 1)
    ]
    whole = windows * 8 * run
    index = np.concatenate(order)[: whole + min(more, 2 * run)]
    zeros = np.zeros(len(index), np.int64)
    cut = _well_cut(Draws(leaf=zeros.astype(np.int32), child=zeros, index=index, epoch=zeros))
    if len(index) < 256:
        assert cut == len(index)
    else:
        assert len(index) // 2 <= cut <= len(index)
        assert cut % (8 * run) == 0 or len(index) == whole


def test_what_is_read_by_itself_is_not_cut() -> None:
    index = np.random.default_rng(0).permutation(100_000)[:1000] * 2
    zeros = np.zeros(len(index), np.int64)
    assert _well_cut(Draws(leaf=zeros.astype(np.int32), child=zeros, index=index, epoch=zeros)) == 1000
