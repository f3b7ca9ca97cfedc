"""Reading ahead, from a store and above a loader: what it changes, how far it goes, and how it stops."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import weakref
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

from energon_grain import (
    Balance,
    FatalSampleError,
    ReadError,
    StorageSettings,
    Stream,
    TaskEncoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    use_storage,
)
from energon_grain.stores.look_ahead import LookAhead, _well_cut
from energon_grain.stream.chunks import MAX_PLAN, Chunk, Encoded
from energon_grain.stream.index_map import Draws, IndexMap
from energon_grain.stream.memory import look_ahead
from energon_grain.stream.workers import OrderedWorkers
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


def test_short_steps_share_draws(bucket: Bucket, open_stream: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing a few positions costs almost as much as drawing many."""
    fetched = counted(monkeypatch, LookAhead, "fetch")
    drawn = counted(monkeypatch, IndexMap, "draw")
    with open_stream(bucket.url, ahead_bytes=500_000, cache_bytes=0) as stream:
        take(stream, SAMPLES // BATCH)
    assert len(fetched) > 40
    assert len(drawn) < len(fetched) / 3
    assert sum(len(positions) for positions, *_ in drawn) < 2 * MAX_PLAN


def test_a_budget_does_not_shorten_steps_that_are_cached(
    bucket: Bucket, open_stream: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_ahead, "step_bytes", 100_000)
    steps: list[int] = []
    for _ in range(2):
        fetched = counted(monkeypatch, LookAhead, "fetch")
        with open_stream(bucket.url, ahead_bytes=12_000_000, cache_bytes=1 << 30) as stream:
            take(stream, SAMPLES // BATCH)
        steps.append(len(fetched))
    assert steps[0] > 20  # pages have more than a step needs
    assert steps[1] < steps[0] / 2


def counted(monkeypatch: pytest.MonkeyPatch, kind: Any, name: str) -> list[Any]:
    """The arguments of all calls of a method from now on."""
    calls: list[Any] = []
    method = getattr(kind, name)

    def call(self: Any, *arguments: Any) -> Any:
        calls.append(arguments)
        return method(self, *arguments)

    monkeypatch.setattr(kind, name, call)
    return calls


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


Train = Callable[..., Any]
RunScript = Callable[..., Any]

CHUNK_BYTES = 1000


def chunks(count: int) -> Any:
    zeros = np.zeros(1, np.int64)
    for number in range(count):
        draws = Draws(leaf=zeros.astype(np.int32), child=zeros, index=zeros, epoch=zeros)
        yield Chunk(number=number, draws=draws, size_bytes=CHUNK_BYTES)


class Meter:
    """Encodes chunks to `expansion` times their size, and knows what is held."""

    def __init__(self, expansion: int) -> None:
        self.expansion = expansion
        self.lock = threading.Lock()
        self.held = 0
        self.most = 0

    def run(self, chunk: Chunk) -> Encoded:
        size = chunk.size_bytes * self.expansion
        with self.lock:
            self.held += size
            self.most = max(self.most, self.held)
        return Encoded(outcomes=[chunk.number], restore_keys=[()], drops=0, size_bytes=size)

    def taken(self, encoded: Encoded) -> None:
        with self.lock:
            self.held -= encoded.size_bytes


@pytest.mark.parametrize("expansion", [1, 20])
@pytest.mark.parametrize("budget_chunks", [1, 2, 3])
def test_no_more_is_held_than_allowed(expansion: int, budget_chunks: int) -> None:
    meter = Meter(expansion)
    chunk_bytes = CHUNK_BYTES * expansion
    workers = OrderedWorkers(meter.run, 3, chunks(60), budget_chunks * chunk_bytes, 7)
    try:
        seen = []
        for encoded in workers:
            time.sleep(0.002)  # all that may be read ahead is
            seen += encoded.outcomes
            meter.taken(encoded)
        assert seen == list(range(60))
        assert meter.most <= (budget_chunks + 1) * chunk_bytes
    finally:
        workers.close()


def test_what_was_taken_is_let_go() -> None:
    class Outcome:
        pass

    def run(chunk: Chunk) -> Encoded:
        return Encoded(outcomes=[Outcome()], restore_keys=[()], drops=0, size_bytes=1)

    workers = OrderedWorkers(run, 2, chunks(20), 1 << 30, 5)
    try:
        alive = [weakref.ref(outcome) for encoded in workers for outcome in encoded.outcomes]
        assert len(alive) == 20
        until = time.monotonic() + PATIENCE_S  # a thread may not have come to where it lets go of its last
        while any(outcome() is not None for outcome in alive):
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        workers.close()


def test_one_chunk_is_under_way_whatever_its_size(train: Train) -> None:
    dataset = train(num_workers=2)
    dataset.worker_config.prefetch_bytes = 1
    reference = get_loader(train())
    with get_loader(dataset) as loader:
        for _ in range(30):
            assert next(loader).__key__ == next(reference).__key__


class Blocked(TaskEncoder):
    """Waits in a hook until the test lets go."""

    thread_safe = True

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go = threading.Event()

    def encode_sample(self, sample: Any) -> Any:
        self.entered.set()
        self.go.wait(PATIENCE_S)
        return sample


def test_closing_wakes_a_consumer(train: Train) -> None:
    encoder = Blocked()
    loader = get_loader(train(num_workers=1, task_encoder=encoder, batch_size=16))
    failed: list[BaseException] = []

    def consume() -> None:
        try:
            next(loader)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=consume)
    thread.start()
    assert encoder.entered.wait(PATIENCE_S)
    closing = threading.Thread(target=loader.close)
    closing.start()
    thread.join(PATIENCE_S)  # although the hook still runs
    assert not thread.is_alive()
    encoder.go.set()
    closing.join()
    assert [type(error) for error in failed] == [ValueError]
    assert "closed" in str(failed[0])


class Flaky(TaskEncoder):
    """The program's fault at a sample, until it is mended."""

    thread_safe = True

    def __init__(self) -> None:
        self.mended = False

    def encode_sample(self, sample: Any) -> Any:
        if sample.__key__ == "000020" and not self.mended:
            raise ImportError("no such package")
        return sample


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_loader_goes_on_after_an_error(train: Train, num_workers: int) -> None:
    reference = get_loader(train())
    expected = [list(next(reference).__key__) for _ in range(30)]
    encoder = Flaky()
    with get_loader(train(num_workers=num_workers, task_encoder=encoder)) as loader:
        seen: list[list[str]] = []
        for _ in range(2):
            with pytest.raises(FatalSampleError, match="no such package"):
                while True:
                    seen.append(list(next(loader).__key__))
        assert loader.get_state()["step"] == len(seen)
        encoder.mended = True
        while len(seen) < 30:
            seen.append(list(next(loader).__key__))
    assert seen == expected


INTERRUPTED = """
import os, signal, sys, threading, time
from energon_grain import Stream, TaskEncoder, WorkerConfig, get_train_dataset

class Encoder(TaskEncoder):
    slow = False
    def encode_sample(self, sample):
        if sample.__key__ == "000011" and self.slow:
            time.sleep(0.5)
        return sample

encoder = Encoder()

def stream(workers):
    return Stream.of(get_train_dataset(
        sys.argv[1], batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=None, task_encoder=encoder,
        worker_config=WorkerConfig(0, 1, workers, worker_type=sys.argv[2]),
    ))

plain = stream(0)
expected = [next(plain).__key__ for _ in range(40)]
encoder.slow = True
loader, found, interrupted = stream(int(sys.argv[3])), [], 0
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background of a shell ignores it
timer = threading.Timer(0.3, lambda: os.killpg(0, signal.SIGINT))
timer.start()
while len(found) < 40:
    try:
        found.append(next(loader).__key__)
    except KeyboardInterrupt:
        interrupted += 1
        encoder.slow = False
timer.join()
assert found == expected
print("interrupted", interrupted)
"""


@pytest.mark.parametrize(("worker_type", "workers"), [("thread", 0), ("thread", 2), ("process", 2)])
def test_an_interrupt_neither_hangs_nor_loses_a_batch(
    text_dataset: Any, run_script: RunScript, worker_type: str, workers: int
) -> None:
    done = run_script(INTERRUPTED, text_dataset(53), worker_type, workers, new_group=True)
    assert done.returncode in (0, -signal.SIGINT), done.stderr
    assert done.stderr == ""
    assert done.stdout == "interrupted 1\n"
