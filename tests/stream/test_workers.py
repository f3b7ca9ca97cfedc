"""Workers and random numbers: neither depends on who does the work; threads that work ahead; and workers that die."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
from patience import PATIENCE_S
from stream_hosts import MakeDataset, config, train_on

from energon_grain import SkipSample, Stream, TaskEncoder, get_train_dataset
from energon_grain.storage.given_up import GivenUp, Over
from energon_grain.stream.prefetch import Background
from energon_grain.stream.workers import ThreadPool, worker_death


@pytest.mark.parametrize("worker_type", ["thread", "process"])
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(text_dataset: MakeDataset, workers: int, worker_type: str) -> None:
    path = text_dataset(97, broken={5, 50})

    def batches(number: int) -> list[Any]:
        dataset = get_train_dataset(
            path,
            worker_config=config(num_workers=number, worker_type=worker_type),
            batch_size=5,
            shuffle_buffer_size=100,
            max_samples_per_sequence=10,
        )
        with Stream.of(dataset) as stream:
            stream._workers = number
            return [(next(stream), stream.cursor()) for _ in range(60)]

    for (batch, cursor), (expected, expected_cursor) in zip(batches(workers), batches(0), strict=True):
        assert batch.__key__ == expected.__key__
        assert batch.text == expected.text
        assert batch.__restore_key__ == expected.__restore_key__
        assert [tuple(s) for s in batch.__sources__] == [tuple(s) for s in expected.__sources__]
        assert cursor == expected_cursor


class Noisy(TaskEncoder):
    """Encodes with random numbers, and skips some samples."""

    def encode_sample(self, sample: Any) -> Any:
        number = float(self.rng.random())
        if number < 0.2:
            raise SkipSample
        return {"key": sample.__key__, "number": np.float64(number), "array": self.rng.standard_normal(2)}


def test_random_numbers_and_skips_depend_on_the_draw_alone(text_dataset: MakeDataset) -> None:
    path = text_dataset(53)

    def rows(hosts: int, workers: int, worker_type: Any = "thread") -> list[list[tuple[str, float]]]:
        streams = []
        for host in range(hosts):
            dataset = train_on(
                path,
                worker_config=config(host, hosts, workers, worker_type=worker_type),
                batch_size=12 // hosts,
                task_encoder=Noisy(),
            )
            streams.append(Stream.of(dataset))
        out = []
        for _ in range(15):
            batches = [next(stream) for stream in streams]
            out.append(sorted((k, float(x)) for b in batches for k, x in zip(b["key"], b["number"], strict=True)))
        for stream in streams:
            stream.close()
        return out

    reference = rows(1, 0)
    assert rows(3, 0) == reference
    assert rows(4, 2) == reference
    assert rows(2, 1, "process") == reference
    assert len({number for batch in reference for _, number in batch}) == 15 * 12


def test_a_thread_that_begins_to_read_ahead_while_another_does_begins_nothing(text_dataset: MakeDataset) -> None:
    starting, both = threading.Event(), threading.Event()

    def begin() -> None:
        starting.wait(PATIENCE_S)
        threading.Timer(0.05, both.set).start()  # by when this thread waits for the other one
        stream.start_prefetch()

    other = threading.Thread(target=begin)

    class Waits(TaskEncoder):
        def encode_sample(self, sample: Any) -> Any:
            other.join(0.2)  # what it does, it does before the first batch comes
            return sample

    def pool(spec: Any, stage: Any) -> ThreadPool:
        starting.set()
        both.wait(PATIENCE_S)
        return ThreadPool(stage, 1, 1 << 20)

    options: dict[str, Any] = {"batch_size": 2, "task_encoder": Waits(), "worker_config": config(num_workers=1)}
    other.start()
    with Stream.of(train_on(text_dataset(20), **options), make_pool=pool) as stream:
        found = [next(stream).__key__ for _ in range(4)]
        other.join()
    with Stream.of(train_on(text_dataset(20), **options), num_workers=0) as plain:
        assert found == [next(plain).__key__ for _ in range(4)]


@pytest.mark.parametrize(
    ("code", "import_script", "how", "memory", "guard"),
    [
        (-9, True, "was killed by signal 9", True, False),
        (None, False, "ended", True, False),
        (1, True, "ended with exit code 1", False, True),
        (1, False, "ended with exit code 1", False, False),
        (3, True, "ended with exit code 3", False, False),
    ],
)
def test_the_advice_fits_how_it_died(
    code: int | None, import_script: bool, how: str, memory: bool, guard: bool
) -> None:
    said = str(worker_death([(0, 17, code)], import_script=import_script))
    assert said.startswith(f"worker process 0 (pid 17) {how} while it was needed")
    assert ("ran out of memory" in said, "__main__" in said) == (memory, guard)


SHORT_S = 0.05


class Numbers:
    """0, 1, 2, … `stop` - 1, and then an error if there is one; tells how many were made."""

    def __init__(self, stop: int, error: Exception | None = None) -> None:
        self.stop, self.error = stop, error
        self.made = 0
        self.changed = threading.Condition()

    def __iter__(self) -> Iterator[int]:
        for number in range(self.stop):
            with self.changed:
                self.made += 1
                self.changed.notify_all()
            yield number
        if self.error is not None:
            raise self.error

    def made_in_time(self, number: int, seconds: float) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.made >= number, seconds)


@pytest.mark.parametrize(("capacity", "budget_bytes", "waiting"), [(3, 1 << 30, 3), (8, 250, 2), (8, 10, 1)])
def test_order_and_bounds(capacity: int, budget_bytes: int, waiting: int) -> None:
    numbers = Numbers(9)
    ahead = Background(numbers, capacity, budget_bytes, lambda _: 100, Over())
    for taken in range(3):
        in_hand = waiting + 1 + taken
        assert numbers.made_in_time(in_hand, PATIENCE_S)
        assert not numbers.made_in_time(in_hand + 1, SHORT_S)
        assert next(ahead) == taken
    assert list(ahead) == [3, 4, 5, 6, 7, 8]
    with pytest.raises(StopIteration):
        next(ahead)
    ahead.close()


def test_what_it_ends_with_comes_behind_what_was_made() -> None:
    ahead = Background(Numbers(2, ArithmeticError("no third")), 8, 1 << 30, lambda _: 1, Over())
    assert [next(ahead), next(ahead)] == [0, 1]
    with pytest.raises(ArithmeticError, match="no third"):
        next(ahead)
    ahead.close()


@pytest.mark.parametrize("full", [True, False])
def test_stopping_wakes_both_sides(full: bool) -> None:
    over, given_up, held = Over(), threading.Event(), threading.Event()

    def entries() -> Iterator[int]:
        yield from count() if full else ()
        held.wait(PATIENCE_S)

    ahead = Background(entries(), 1, 1 << 30, lambda _: 1, over)

    def take() -> None:
        with pytest.raises(GivenUp):
            while True:
                next(ahead)
        given_up.set()

    taker = threading.Thread(target=take)
    taker.start()
    over.set()
    ahead.stop()
    assert given_up.wait(PATIENCE_S)
    held.set()
    ahead.close()
    taker.join()
