"""Slow samples: workers go on behind them, within the budget, and neither order nor state depends on their time."""

from __future__ import annotations

import threading
import time
import zlib
from typing import Any

import numpy as np
import pytest
from patience import PATIENCE_S
from stream_hosts import MakeDataset, config, train_on

from energon_grain import SkipSample, Stream, TaskEncoder
from energon_grain.stream.chunks import Chunk, ChunkPace, Encoded
from energon_grain.stream.index_map import Draws
from energon_grain.stream.workers import OrderedWorkers
from energon_grain.watch import stream as stream_module
from energon_grain.watch.auto_workers import Window, climb
from energon_grain.watch.statistics import Statistics


def some_draws(count: int) -> Draws:
    zeros = np.zeros(count, np.int64)
    return Draws(leaf=zeros.astype(np.int32), child=zeros, index=zeros, epoch=zeros)


class Chunks:
    """Chunks of one sample; the first is done when `others` were done, or after a while."""

    def __init__(self, others: int, wait_s: float, size_bytes: int = 1000) -> None:
        self.others, self.wait_s, self.size_bytes = others, wait_s, size_bytes
        self.enough = threading.Event()
        self.done = 0
        self.lock = threading.Lock()

    def __iter__(self) -> Any:
        for number in range(400):
            yield Chunk(number=number, draws=some_draws(1), size_bytes=self.size_bytes)

    def run(self, chunk: Chunk) -> Encoded:
        if chunk.number == 1:  # after the first, which shows how much memory a chunk takes
            self.enough.wait(self.wait_s)
        with self.lock:
            self.done += 1
            if self.done > self.others:
                self.enough.set()
        return Encoded(outcomes=[chunk.number], restore_keys=[()], drops=0, size_bytes=self.size_bytes)


def test_while_a_chunk_takes_long_many_behind_it_are_done_in_order() -> None:
    chunks, pace = Chunks(others=300, wait_s=PATIENCE_S), ChunkPace(first=1)
    workers = OrderedWorkers(chunks.run, 2, iter(chunks), 1 << 30, 5, pace)
    try:
        found = [number for encoded in workers for number in encoded.outcomes]
    finally:
        workers.close()
    assert chunks.enough.is_set(), "the chunks behind the slow one waited for it"
    assert found == list(range(400))
    assert pace.depth > 300


def test_no_more_is_done_behind_a_slow_chunk_than_the_budget_holds() -> None:
    chunks = Chunks(others=60, wait_s=0.5)
    workers = OrderedWorkers(chunks.run, 2, iter(chunks), 20 * chunks.size_bytes, 5)
    try:
        for _ in range(2):
            next(workers)
        assert 10 < chunks.done <= 24  # a few more once the slow one is taken
        assert not chunks.enough.is_set()
    finally:
        workers.close()


def test_chunks_of_slow_hooks_hold_a_batch_and_those_of_fast_ones_many() -> None:
    def samples(hook_s: float, slow_s: float = 0.0) -> tuple[int, int]:
        pace = ChunkPace(first=8)
        pace.threads = 4
        for number in range(200):
            count = min(pace.samples, pace.in_order)
            seconds = hook_s * count + (slow_s if number % 4 == 0 else 0.0)
            chunk = Chunk(number=0, draws=some_draws(count), size_bytes=1)
            encoded = Encoded(outcomes=[], restore_keys=[], drops=0, size_bytes=1, hooks_s=seconds)
            pace.learn(chunk, encoded, seconds)
        return pace.samples, pace.in_order

    assert samples(0.0039) == (25, 10)
    assert samples(0.00099) == (101, 40)
    assert samples(1e-6) == (8192, 8192)
    assert min(samples(0.001, slow_s=0.5)) >= 8, "a batch stays in one chunk although some samples are slow"


class Uneven(TaskEncoder):
    """Hooks that take from nothing to 20 ms, and drop some samples."""

    thread_safe = True

    def encode_sample(self, sample: Any) -> Any:
        number = zlib.crc32(sample.__key__.encode())
        time.sleep(0.02 if number % 11 == 0 else (number % 3) / 1000)
        if number % 7 == 0:
            raise SkipSample
        return {"__key__": sample.__key__, "number": np.float64(self.rng.random())}


class Packed(Uneven):
    """The same, packed."""

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 3] for at in range(0, len(samples), 3)]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return {"__key__": " ".join(sample["__key__"] for sample in samples), "number": samples[0]["number"]}


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize(("workers", "worker_type"), [(3, "thread"), (16, "thread"), (2, "process")])
def test_the_stream_and_its_states_do_not_depend_on_workers(
    text_dataset: MakeDataset, workers: int, worker_type: Any, packs: bool
) -> None:
    path = text_dataset(60)

    def stream(workers: int, worker_type: Any = "thread") -> Stream:
        options: dict[str, Any] = {"packing_buffer_size": 9, "task_encoder": Packed()} if packs else {}
        options = {"task_encoder": Uneven(), "batch_size": 4, "lanes": 12, **options}
        return Stream.of(train_on(path, worker_config=config(num_workers=workers, worker_type=worker_type), **options))

    def seen(stream: Stream, batches: int) -> list[tuple[list[str], list[float]]]:
        return [(batch["__key__"], batch["number"].tolist()) for batch in (next(stream) for _ in range(batches))]

    with stream(0) as plain:
        expected = seen(plain, 24)
    with stream(workers, worker_type) as first:
        assert seen(first, 9) == expected[:9]
        state = first.cursor()
        assert seen(first, 15) == expected[9:]
        first.restore(state)
        assert seen(first, 15) == expected[9:]


class FirstIsLast(TaskEncoder):
    """The first sample is done when `others` are."""

    thread_safe = True
    others = 5000

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.done, self.first = 0, True
        self.enough = threading.Event()

    def encode_sample(self, sample: Any) -> Any:
        with self.lock:
            first, self.first = self.first, False
            self.done += 1
            if self.done > self.others:
                self.enough.set()
        if first:
            self.enough.wait(PATIENCE_S)
        time.sleep(0.0002)
        return sample


class PackedFirstIsLast(FirstIsLast):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [[sample] for sample in samples]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return samples[0]


@pytest.mark.parametrize("packs", [False, True])
def test_a_slow_sample_delays_neither_samples_behind_it_nor_other_lanes(text_dataset: MakeDataset, packs: bool) -> None:
    encoder = PackedFirstIsLast() if packs else FirstIsLast()
    options: dict[str, Any] = {"packing_buffer_size": 8} if packs else {}
    dataset = train_on(
        text_dataset(50), worker_config=config(num_workers=4), task_encoder=encoder, batch_size=8, lanes=12, **options
    )
    # The first chunk shows how much memory chunks take: until it is done, there is no other.
    encoder.first = False
    with Stream.of(dataset) as stream:
        next(stream)
        encoder.done, encoder.first = 0, True
        for _ in range(100):
            next(stream)
    assert encoder.enough.is_set()


@pytest.mark.parametrize(("cores", "threads"), [(0.3, 16), (1.9, 2)])
def test_threads_that_wait_may_be_more_than_cores(cores: float, threads: int) -> None:
    """The rate grows up to 16 threads, as those of a service with 16 places."""
    search = climb(2, 2, 64)
    setting = next(search)
    for _ in range(200):
        setting = search.send(Window(100.0 * min(16, max(1, setting.threads)), cores=cores))
        if setting.chosen:
            break
    assert setting.chosen
    assert setting.threads == threads


class Sleeping(TaskEncoder):
    def encode_sample(self, sample: Any) -> Any:
        time.sleep(0.004)
        return sample


class SleepingSideBySide(Sleeping):
    thread_safe = True


@pytest.mark.parametrize(
    ("encoder", "cpu_s", "logged"), [(Sleeping, None, 1), (SleepingSideBySide, None, 0), (Sleeping, 3.0, 0)]
)
def test_hooks_that_wait_in_turn_are_logged_once_with_the_gain(
    text_dataset: MakeDataset,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    encoder: type[TaskEncoder],
    cpu_s: float | None,
    logged: int,
) -> None:
    monkeypatch.setattr(stream_module, "_KNOWN_SECONDS", 0.1)
    if cpu_s is not None:
        monkeypatch.setattr(Statistics, "one_at_a_time", lambda _: ("encode_sample", 10.0, cpu_s, 1.0))
    dataset = train_on(
        text_dataset(60), worker_config=config(num_workers=4), task_encoder=encoder(), batch_size=4, lanes=12
    )
    with stream_module.Stream.of(dataset) as stream:
        for _ in range(60):
            next(stream)
            stream.stats()
    told = [record.getMessage() for record in caplog.records if "side by side" in record.getMessage()]
    assert len(told) == logged
    assert all("encode_sample waits for " in text and "thread_safe = True" in text for text in told)
    if told:
        gain = float(told[0].split("about ")[1].split()[0])
        assert 2 < gain <= 4
