"""Batches that workers make: the same, however they were dropped, restored or cut; and memory that is let go of."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from patience import PATIENCE_S
from stream_hosts import MakeDataset, config, open_stream, train_on

from energon_grain import SkipSample, Stream, TaskEncoder, get_train_dataset, get_val_dataset
from energon_grain.stream.chunks import Chunk, ChunkPace, Encoded, MadeBatch
from energon_grain.stream.memory import paused_collection
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stage import Flow, PureStage
from energon_grain.stream.worker_process import SampleUnpickler, WorkerStage


class Worker:
    """A worker that lives in this process; results are sent all the same."""

    workers = 1

    def __init__(self, spec: StreamSpec, stage: PureStage) -> None:
        self.stage, self.sources = WorkerStage(spec), stage.sources
        self.made = 0

    def start(self, chunks: Iterator[Chunk], pace: ChunkPace) -> Any:
        return Results(self, chunks, pace)

    def close(self) -> None:
        pass


class Results:
    def __init__(self, worker: Worker, chunks: Iterator[Chunk], pace: ChunkPace) -> None:
        self.worker, self.chunks, self.pace = worker, chunks, pace

    def __iter__(self) -> Iterator[Encoded]:
        return self

    def __next__(self) -> Encoded:
        chunk = next(self.chunks)
        first, *others = self.worker.stage.answer(chunk)
        result: Any = SampleUnpickler(first, others, self.worker.sources).load()
        if isinstance(result, BaseException):
            raise result
        self.pace.learn(chunk, result, 0.001)
        self.worker.made += sum(type(outcome) is MadeBatch for outcome in result.outcomes)
        return result

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


class Noisy(TaskEncoder):
    """Draws random numbers in every hook, and drops samples and batches."""

    def __init__(self, drops: float, batch_drops: float) -> None:
        self.drops, self.batch_drops = drops, batch_drops

    def encode_sample(self, sample: Any) -> Any:
        if self.rng.random() < self.drops:
            raise SkipSample
        return {"key": sample.__key__, "array": self.rng.standard_normal(2)}

    def batch(self, samples: list[Any]) -> Any:
        batch = super().batch(samples)
        batch["noise"] = self.rng.random()
        return batch

    def encode_batch(self, batch: Any) -> Any:
        if self.rng.random() < self.batch_drops:
            raise SkipSample
        batch["more"] = self.rng.random()
        return batch


def text(value: Any) -> str:
    return repr({key: np.asarray(part).tolist() if key != "key" else part for key, part in value.items()})


@settings(max_examples=60, deadline=None)
@given(
    hosts=st.sampled_from([1, 2, 3]),
    size=st.integers(1, 9),
    drops=st.sampled_from([0.0, 0.0, 0.01, 0.3]),
    batch_drops=st.sampled_from([0.0, 0.0, 0.2]),
    repeat=st.booleans(),
    last=st.sampled_from(["drop", "pad", None]),
    restored_size=st.integers(1, 9),
    steps=st.lists(st.integers(0, 12), min_size=1, max_size=3),
)
def test_workers_may_make_batches(
    text_dataset: MakeDataset,
    hosts: int,
    size: int,
    drops: float,
    batch_drops: float,
    repeat: bool,
    last: Any,
    restored_size: int,
    steps: list[int],
) -> None:
    path = text_dataset(101)
    batch_drops = batch_drops if hosts == 1 else 0.0

    def stream(batch_size: int, *, pool: bool) -> Stream:
        dataset = get_train_dataset(
            path,
            worker_config=config(hosts - 1, hosts, 1 if pool else 0),
            batch_size=batch_size,
            shuffle_buffer_size=10,
            max_samples_per_sequence=5,
            repeat=repeat,
            last_batch=None if repeat else last,
            task_encoder=Noisy(drops, batch_drops),
        )
        return Stream.of(dataset, make_pool=Worker if pool else None)

    sizes = [size, *([restored_size] * (len(steps) - 1))]
    cursor: Any = None
    for batch_size, count in zip(sizes, steps, strict=True):
        with stream(batch_size, pool=True) as made, stream(batch_size, pool=False) as plain:
            if cursor is not None:
                made.restore(cursor)
                plain.restore(cursor)
            for _ in range(count):
                batch, expected = next(made, None), next(plain, None)
                assert (batch is None) == (expected is None)
                assert made.cursor() == plain.cursor()
                if batch is None:
                    iter(made), iter(plain)
                    continue
                assert text(batch) == text(expected)
            for what in ("batches", "samples", "dropped"):
                assert made.stats()[what] == plain.stats()[what]
            cursor = made.cursor()


@pytest.mark.parametrize("drops", [0.0, 1.0])
def test_workers_do_make_them(text_dataset: MakeDataset, drops: float) -> None:
    path = text_dataset(64)

    class Drop(TaskEncoder):
        def encode_sample(self, sample: Any) -> Any:
            if drops and sample.__key__.endswith("9"):
                raise SkipSample
            return sample

    dataset = get_val_dataset(
        path, split_part="train", batch_size=8, task_encoder=Drop(), worker_config=config(0, 1, 1)
    )
    with Stream.of(dataset, make_pool=Worker) as stream:
        batches = list(stream)
        worker: Any = stream._pool
    assert sum(len(batch.__key__) for batch in batches) == 64 - 6 * int(drops)
    # Behind the first drop they would hold other samples, and workers are told so.
    assert worker.made == 8 if not drops else worker.made < 8


def test_a_batch_that_cannot_be_sent_is_made_in_the_main_process(text_dataset: MakeDataset) -> None:
    class Local(TaskEncoder):
        def encode_batch(self, batch: Any) -> Any:
            return {"lambda": lambda: 0, "keys": batch.__key__}

    dataset = train_on(text_dataset(20), worker_config=config(0, 1, 1), batch_size=4, task_encoder=Local())
    with Stream.of(dataset, make_pool=Worker) as stream:
        assert len(next(stream)["keys"]) == 4
        assert stream._pool is not None


def test_an_error_of_a_batch_hook_is_the_main_processs(text_dataset: MakeDataset) -> None:
    class Broken(TaskEncoder):
        __default_failure_tolerance__ = 3

        def encode_batch(self, batch: Any) -> Any:
            raise RuntimeError("no")

    dataset = train_on(text_dataset(20), worker_config=config(0, 1, 1), batch_size=4, task_encoder=Broken())
    with (
        Stream.of(dataset, make_pool=Worker) as stream,
        pytest.raises(Exception, match="encode_batch") as info,
    ):
        next(stream)
    assert type(info.value).__name__ == "FatalSampleError"


class SkipsSome(TaskEncoder):
    """Drops a third of the samples, on purpose or by failing."""

    __default_failure_tolerance__ = 0

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def encode_sample(self, sample: Any) -> Any:
        if int(sample.__key__) % 3 == 0:
            raise self.error("not this one")
        return sample


@pytest.mark.parametrize("error", [SkipSample, ValueError])
@pytest.mark.parametrize("broken", [(), range(1, 97, 9)])
def test_dropped_samples_do_not_keep_their_chunks(text_dataset: MakeDataset, error: Any, broken: Any) -> None:
    stream = open_stream(text_dataset(97, broken=broken), task_encoder=SkipsSome(error))
    next(stream)
    gc.collect()
    gc.disable()
    try:
        before = sum(type(entry) is Flow for entry in gc.get_objects())
        for _ in range(100):
            next(stream)
        assert sum(type(entry) is Flow for entry in gc.get_objects()) <= before
    finally:
        gc.enable()


def test_the_collector_gets_its_turn_however_many_threads_pause_it() -> None:
    gc.enable()
    seen: list[bool] = []
    stop = time.monotonic() + PATIENCE_S

    def overlap() -> None:
        while time.monotonic() < stop and not seen:
            with paused_collection():
                time.sleep(0.05)

    threads = [threading.Thread(target=overlap) for _ in range(4)]
    for number, thread in enumerate(threads):
        thread.start()
        time.sleep(0.0125 * (number > 0))
    while time.monotonic() < stop and not seen:
        if gc.isenabled():
            seen.append(True)
        time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert seen
