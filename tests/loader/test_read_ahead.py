"""How far a loader reads ahead, and how it stops."""

from __future__ import annotations

import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from patience import PATIENCE_S

from energon_grain import FatalSampleError, TaskEncoder, get_loader
from energon_grain.stream.chunks import Chunk, Encoded
from energon_grain.stream.index_map import Draws
from energon_grain.stream.workers import OrderedWorkers

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


def test_closing_ends_threads_that_wait(train: Train) -> None:
    before = threading.active_count()
    loader = get_loader(train(num_workers=2))
    next(loader)
    time.sleep(0.2)  # everything is full: threads wait for the consumer
    loader.close()
    assert threading.active_count() == before
    with pytest.raises(ValueError, match="closed"):
        next(loader)
    loader.close()


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
