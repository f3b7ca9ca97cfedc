"""How many bytes of a bucket a short run asks for, without a page cache and with one that is too small."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from object_server import Bucket, ObjectServer
from patience import PATIENCE_S

from energon_grain import ReadError, StorageSettings, Stream, WorkerConfig, get_train_dataset, use_storage
from energon_grain.stores.held_bytes import HeldRanges
from energon_grain.testing import make_blob_dataset

SAMPLES, SAMPLE_BYTES, STEPS, BATCH = 1200, 76_500, 100, 8
NEEDED_BYTES = STEPS * BATCH * SAMPLE_BYTES
STEP_BYTES = 12 << 20
SMALL = 20_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_blob_dataset(tmp_path_factory.mktemp("data") / "blobs", n=SAMPLES, shards=4, sample_bytes=SAMPLE_BYTES)


@pytest.fixture(scope="module")
def bucket(object_server: ObjectServer, folder: Path) -> Iterator[Bucket]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in object_server.environment.items():
            patch.setenv(name, value)
        made = object_server.make_bucket("few-bytes")
        made.upload(folder, "blobs")
        yield made


def run(url: str, settings: StorageSettings, steps: int = STEPS) -> str:
    """The digest of some batches."""
    use_storage(settings)
    dataset = get_train_dataset(
        url,
        worker_config=WorkerConfig(0, 1, 0),
        batch_size=BATCH,
        shuffle_buffer_size=100,
        max_samples_per_sequence=20,
    )
    found = hashlib.sha256()
    with Stream.of(dataset) as stream:
        for _ in range(steps):
            batch = next(stream)
            found.update(repr(batch["__key__"]).encode())
            for data in batch["bin"]:
                found.update(data)
    return found.hexdigest()


def sent_bytes(bucket: Bucket) -> int:
    return sum(request.sent_bytes for request in bucket.server.requests(".tar"))


def test_a_short_run_asks_for_little_that_it_does_not_use(bucket: Bucket, folder: Path, tmp_path: Path) -> None:
    here = run(str(folder), StorageSettings())
    found: dict[int, int] = {}
    for cache_bytes in (0, SMALL):
        bucket.server.reset()
        there = run(
            f"{bucket.url}/blobs", StorageSettings(cache_dir=str(tmp_path / str(cache_bytes)), cache_bytes=cache_bytes)
        )
        assert there == here
        found[cache_bytes] = sent_bytes(bucket)
    assert found[0] <= 1.2 * NEEDED_BYTES  # 1.14: one step more than needed
    assert found[SMALL] <= 1.1 * found[0]


@pytest.mark.parametrize("cache_bytes", [0, SMALL, 1 << 30])
def test_passes_over_what_fits_into_memory_or_cache_fetch_it_once(
    bucket: Bucket, folder: Path, tmp_path: Path, cache_bytes: int
) -> None:
    bucket.server.reset()
    steps = 2 * SAMPLES // BATCH
    settings = StorageSettings(cache_dir=str(tmp_path / "objects"), cache_bytes=cache_bytes)
    assert run(f"{bucket.url}/blobs", settings, steps) == run(str(folder), StorageSettings(), steps)
    assert sent_bytes(bucket) <= 1.3 * sum(shard.stat().st_size for shard in folder.glob("*.tar"))


def test_a_small_cache_asks_for_no_more_than_none(bucket: Bucket, tmp_path: Path) -> None:
    """Passes over more than fits into the memory for prefetched bytes."""
    found: dict[int, tuple[int, int]] = {}
    for cache_bytes in (0, SMALL // 4, SMALL):
        bucket.server.reset()
        folder = str(tmp_path / str(cache_bytes))
        settings = StorageSettings(cache_dir=folder, cache_bytes=cache_bytes, ahead_bytes=48 << 20)
        run(f"{bucket.url}/blobs", settings, 3 * SAMPLES // BATCH)
        found[cache_bytes] = sent_bytes(bucket), len(bucket.server.requests(".tar"))
    for cache_bytes in (SMALL // 4, SMALL):  # 0.86 and 0.55 of the bytes, 0.89 and 0.67 of the requests
        assert found[cache_bytes][0] <= found[0][0]
        assert found[cache_bytes][1] <= found[0][1]


def test_six_processes_on_a_small_cache_ask_for_no_more_than_without(
    bucket: Bucket, folder: Path, tmp_path: Path
) -> None:
    here = run(str(folder), StorageSettings(), 15)
    asked: list[int] = []
    with ProcessPoolExecutor(6, mp_context=get_context("spawn")) as pool:
        for cache_bytes in (0, SMALL):
            settings = StorageSettings(cache_dir=str(tmp_path / "objects"), cache_bytes=cache_bytes)
            bucket.server.reset()
            runs = [pool.submit(run, f"{bucket.url}/blobs", settings, 15) for _ in range(6)]
            assert [each.result(4 * PATIENCE_S) for each in runs] == [here] * 6
            asked.append(sent_bytes(bucket))
    assert asked[1] <= asked[0] + 6 * STEP_BYTES
    pages = [file.stat().st_blocks * 512 for file in (tmp_path / "objects" / "pages").rglob("*") if file.is_file()]
    assert sum(pages) <= 1.05 * SMALL


def test_of_two_threads_one_fetches_and_the_other_waits() -> None:
    held = HeldRanges(1000)
    held.add("a", 40, [bytes(10)])
    with held.fetching("a", [(0, 60)]) as (mine, others):
        assert (mine, others) == ([(0, 40), (50, 60)], set())
        with held.fetching("a", [(30, 80)]) as (theirs, awaited):
            assert theirs == [(60, 80)]
        assert [event.is_set() for event in awaited] == [False]
        with held.fetching("b", [(0, 5)]) as (elsewhere, no_others):
            assert (elsewhere, no_others) == ([(0, 5)], set())
        held.add("a", 0, [bytes(60)])
    assert [event.is_set() for event in awaited] == [True]
    with held.fetching("a", [(0, 80)], merge_gap_bytes=5) as (rest, none):
        assert (rest, none) == ([(60, 80)], set())


def test_a_failed_fetch_lets_others_fetch() -> None:
    held = HeldRanges(1000)

    def fail() -> None:
        with held.fetching("a", [(0, 60)]):
            raise ReadError("unplugged")

    with pytest.raises(ReadError, match="unplugged"):
        fail()
    with held.fetching("a", [(0, 20), (25, 60)], merge_gap_bytes=5) as (mine, others):
        assert (mine, others) == ([(0, 60)], set())


def test_what_is_planned_again_is_held_longer() -> None:
    held = HeldRanges(100)
    for start in (0, 40):
        held.add("a", start, [bytes(40)])
    assert held.missing("a", 10, 20) == []  # planned again
    held.add("a", 80, [bytes(40)])
    assert held.missing("a", 0, 120) == [(40, 80)]


@pytest.mark.parametrize("seed", range(20))
def test_held_bytes_are_those_added(seed: int) -> None:
    draw = random.Random(seed)
    data = draw.randbytes(400)
    held, known = HeldRanges(1 << 20), [False] * len(data)
    for _ in range(60):
        start, stop = sorted(draw.choices(range(len(data) + 1), k=2))
        if draw.random() < 0.2:
            cut = draw.randint(start, stop)
            held.add("a", start, [data[start:cut], data[cut:stop]])
            known[start:stop] = [True] * (stop - start)
        assert held.read("a", start, stop) == (data[start:stop] if all(known[start:stop]) else None)
        gaps = {byte for begin, end in held.missing("a", start, stop) for byte in range(begin, end)}
        assert gaps == {byte for byte in range(start, stop) if not known[byte]}
        assert held.size_bytes == sum(known)
