"""Workers: neither numbers nor batches depend on who does the work, nor on how many `"auto"` makes of them."""

from __future__ import annotations

import ctypes
import gc
import logging
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from patience import PATIENCE_S
from stream_hosts import MakeDataset, config, open_stream, train_on

import energon_grain_torch
from energon_grain import (
    ConfigError,
    SkipSample,
    Stream,
    TaskEncoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
from energon_grain.processes import pool as worker_pool
from energon_grain.processes.pool import PROGRAM, worker_death
from energon_grain.processes.worker import SampleUnpickler, WorkerStage
from energon_grain.storage.cancellation import Cancellation, Cancelled
from energon_grain.stream.background import Background
from energon_grain.stream.chunks import Chunk, ChunkPace, Encoded, MadeBatch
from energon_grain.stream.index_map import Draws
from energon_grain.stream.memory import paused_collection
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stage import Flow, PureStage
from energon_grain.stream.workers import OrderedWorkers, ThreadPool
from energon_grain.watch import auto_workers, stream as stream_module
from energon_grain.watch.auto_workers import Window, climb


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
    ahead = Background(numbers, capacity, budget_bytes, lambda _: 100, Cancellation())
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
    ahead = Background(Numbers(2, ArithmeticError("no third")), 8, 1 << 30, lambda _: 1, Cancellation())
    assert [next(ahead), next(ahead)] == [0, 1]
    with pytest.raises(ArithmeticError, match="no third"):
        next(ahead)
    ahead.close()


@pytest.mark.parametrize("full", [True, False])
def test_stopping_wakes_both_sides(full: bool) -> None:
    over, given_up, held = Cancellation(), threading.Event(), threading.Event()

    def entries() -> Iterator[int]:
        yield from count() if full else ()
        held.wait(PATIENCE_S)

    ahead = Background(entries(), 1, 1 << 30, lambda _: 1, over)

    def take() -> None:
        with pytest.raises(Cancelled):
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


SECONDS = 30.0
"""In which it is to have found its number."""


def chosen(rate: Callable[[int], float], most: int, noise: float, seed: int, waited: float = 1.0) -> int:
    """What is chosen for a machine with these rates, when time is up."""
    chance = random.Random(seed)
    search = climb(most, min(auto_workers.FIRST_THREADS, most))
    threads, used, settled = next(search).threads, 0.0, 0
    while used < SECONDS:
        setting = search.send(Window(rate(threads) * chance.gauss(1, noise), waited))
        used += auto_workers.WINDOW_SECONDS + (0.4 if setting.threads != threads else 0)
        threads = setting.threads
        settled = threads if setting.chosen else settled
    return settled


MACHINES: dict[str, Callable[[int], float]] = {
    "threads decode side by side": lambda threads: 100.0 * max(1, threads),
    "threads wait for a store of eight": lambda threads: 100.0 * min(8, max(1, threads)),
    "one thread and no more": lambda threads: 100.0 - (20 if threads == 0 else threads),
    "the lock is handed over at a price": lambda threads: 100.0 if threads == 0 else 70 - threads,
    "nothing helps": lambda _: 100.0,
    "many are too many": lambda threads: 100.0 * max(1, threads) / (1 + (threads / 12) ** 2),
}


@pytest.mark.parametrize("most", [1, 2, 8, 64])
@pytest.mark.parametrize("machine", MACHINES)
def test_nearly_the_best_number_is_found_in_time(machine: str, most: int) -> None:
    rate = MACHINES[machine]
    best = max(rate(threads) for threads in range(most + 1))
    found = [rate(chosen(rate, most, 0.03, seed)) / best for seed in range(20)]
    assert sorted(found)[2] >= 0.95, found


def test_a_number_that_is_a_tenth_better_is_found_where_rates_waver() -> None:
    rates = {0: 100.0, 1: 90.0, 2: 85.0}
    found = [chosen(rates.__getitem__, 2, 0.1, seed) for seed in range(200)]
    assert found.count(0) > 180, "151 with two pairs for each comparison"


def test_a_loop_that_is_not_held_up_is_left_alone() -> None:
    assert chosen(lambda threads: 100.0 * max(1, threads), 64, 0.0, 0, waited=0.01) == auto_workers.FIRST_THREADS


def test_more_batches_wait_where_that_helps() -> None:
    def depth(gain: float) -> int:
        search = climb(2, 2)
        setting = next(search)
        while not setting.chosen:
            rate = (100.0 if setting.threads == 2 else 50.0) * min(gain, setting.depth)
            setting = search.send(Window(rate, waited=0.5, full=0.2))
        return setting.depth

    assert [depth(gain) for gain in (1, 2, 4, 100)] == [1, 2, 4, 16]


def test_it_looks_again_when_the_rate_falls() -> None:
    search = climb(8, 2)
    setting = next(search)
    while not setting.chosen:
        setting = search.send(Window(100.0))
    tried = {search.send(Window(100.0 if count < 3 else 50.0)).threads for count in range(8)}
    assert len(tried) > 1


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Another number of threads every few steps; gives the numbers that were used."""
    seen: set[int] = set()

    def wander(most: int, first: int, most_waiting: int) -> Any:
        threads = first
        while True:
            seen.add(threads)
            yield auto_workers.Setting(threads)
            threads = (threads + 2) % (most + 3)

    monkeypatch.setattr(auto_workers, "climb", wander)
    monkeypatch.setattr(auto_workers, "WINDOW_SECONDS", 0.0)
    monkeypatch.setattr(auto_workers, "WINDOW_STEPS", 3)
    monkeypatch.setattr(auto_workers, "_WARM_SECONDS", 0.0)
    return seen


class Slow(TaskEncoder):
    thread_safe = True

    def encode_sample(self, sample: Any) -> Any:
        time.sleep(0.0005 * (int(sample.__key__) % 3))
        return sample


@pytest.mark.parametrize("options", [{}, {"repeat": False}, {"packing_buffer_size": 5}])
def test_the_stream_does_not_depend_on_it(text_dataset: Any, restless: set[int], options: dict[str, Any]) -> None:
    class Packing(Slow):
        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            return [samples[::2], samples[1::2]]

        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return samples[0]

    def loader(num_workers: Any) -> Any:
        given: dict[str, Any] = {"batch_size": 4, "shuffle_buffer_size": 20, "max_samples_per_sequence": 4, **options}
        return get_loader(
            get_train_dataset(
                text_dataset(53, broken={7}),
                worker_config=WorkerConfig(0, 1, num_workers, global_error_handler=lambda *_: None),
                task_encoder=Packing(),
                **given,
            )
        )

    told: set[int] = set()

    def keys(loader: Any, count: int) -> list[list[str]]:
        found: list[list[str]] = []
        while len(found) < count:
            for batch, _ in zip(loader, range(count - len(found)), strict=False):
                found.append(list(batch.__key__))
                told.add(loader.stats().setup.workers)
        return found

    threads = threading.active_count()
    with loader("auto") as auto, loader(0) as plain:
        found = keys(auto, 600)  # a change takes effect behind the chunks that are under way
        assert len(told) >= 3  # what bounds is judged by the workers that there are
        assert found == keys(plain, 600)
        assert auto.save_state_rank() == plain.save_state_rank()
    assert len(restless) >= 3
    until = time.monotonic() + PATIENCE_S
    while threading.active_count() > threads:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_closing_does_not_wait_for_a_thread_that_was_ended_by_force() -> None:
    """As notebooks and timeouts of tests do it: what they raise comes when the thread gets something to do."""
    workers = OrderedWorkers(lambda chunk: chunk, 1, iter(()), 1 << 30, 5)
    thread = workers._threads[0]
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    closing = threading.Thread(target=workers.close, daemon=True)
    closing.start()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert not thread.is_alive()


def test_it_says_what_it_chose(text_dataset: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(auto_workers, "WINDOW_SECONDS", 0.0)
    monkeypatch.setattr(auto_workers, "_WARM_SECONDS", 0.0)
    caplog.set_level(logging.INFO, "energon_grain")
    config = WorkerConfig.default_worker_config("auto")
    assert config.config()["num_workers"] == "auto"
    dataset = get_train_dataset(
        text_dataset(53), worker_config=config, batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=None
    )
    until = time.monotonic() + PATIENCE_S
    with get_loader(dataset) as loader:
        for _ in loader:
            if "samples a second; the loop waits for" in caplog.text:
                break
            assert time.monotonic() < until
    assert "num_workers='auto': " in caplog.text


def test_where_the_lock_is_held_it_says_what_would_help(
    text_dataset: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(auto_workers, "usable_cores", lambda: 8)
    for hooks in (False, True):
        auto = auto_workers.AutoWorkers(2, hooks=hooks)
        for _ in range(2):
            auto._log(Window(100.0, waited=0.9, cores=1.0))
    assert caplog.text.count("worker_type='process', num_workers=8") == 1
    assert "thread_safe = True" in caplog.text


def test_only_threads_are_chosen() -> None:
    with pytest.raises(ConfigError, match=r"only the number of threads can be .*; pass worker_type='thread', or a"):
        WorkerConfig(0, 1, "auto", worker_type="process")
    with pytest.raises(ConfigError, match="expected 0 or more, or 'auto'"):
        WorkerConfig(0, 1, -1)
    with pytest.raises(ConfigError, match=r"an integer.*, or 'auto'"):
        WorkerConfig(0, 1, "many")  # type: ignore[arg-type]
    assert energon_grain_torch.WorkerConfig(0, 1, "auto").worker_type == "thread"


def test_threads_come_and_go_while_chunks_are_taken() -> None:
    zeros = np.zeros(1, np.int64)
    draws = Draws(leaf=zeros.astype(np.int32), child=zeros, index=zeros, epoch=zeros)

    def chunks() -> Any:
        for number in range(300):
            threads = (2, 0, 3, 1)[number // 3 % 4]  # also between two chunks that are handed out together
            workers.resize(threads, 2 * threads + 1)
            yield Chunk(number=number, draws=draws, size_bytes=1)

    def run(chunk: Chunk) -> Encoded:
        return Encoded(outcomes=[chunk.number], restore_keys=[()], drops=0, size_bytes=1)

    workers = OrderedWorkers(run, 2, chunks(), 1 << 30, 5)
    found: list[int] = []
    done = threading.Event()

    def take() -> None:
        for encoded in workers:
            found.extend(encoded.outcomes)
        done.set()

    threading.Thread(target=take, daemon=True).start()
    assert done.wait(PATIENCE_S)
    workers.close()
    assert found == list(range(300))


def test_a_change_may_be_interrupted_by_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a signal handler that closes the loader, in the thread that makes the change."""
    before, start = set(threading.enumerate()), threading.Thread.start
    workers = OrderedWorkers(lambda _: None, 1, iter(()), 1 << 30, 5)

    def start_and_close(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.startswith("energon-grain-worker"):
            workers.close()

    monkeypatch.setattr(threading.Thread, "start", start_and_close)
    changing = threading.Thread(target=workers.resize, args=(4, 9), daemon=True)
    changing.start()
    changing.join(PATIENCE_S)
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_who_takes_an_entry_makes_it_where_none_may_wait() -> None:
    makers: list[str] = []

    def entries() -> Any:
        for number in range(30):
            makers.append(threading.current_thread().name)
            yield number

    over = Cancellation()
    ahead = Background(entries(), 2, 1 << 30, lambda _: 1, over)
    found = []
    for capacity in (2, 0, 3, 0):
        ahead.resize(capacity)
        found += [next(ahead) for _ in range(6)]
    assert found == list(range(24))
    assert {"energon-grain-batches", threading.current_thread().name} == set(makers)
    assert list(ahead) == list(range(24, 30))
    with pytest.raises(StopIteration):
        next(ahead)
    over.set()
    ahead.stop()
    ahead.close()


class Worker:
    """A worker that lives in this process; results are sent all the same."""

    workers = 1
    shares = "memory"

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


class NoisyBatches(TaskEncoder):
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
            task_encoder=NoisyBatches(drops, batch_drops),
        )
        return Stream.of(dataset, make_pool=Worker if pool else None)

    sizes = [size, *([restored_size] * (len(steps) - 1))]
    cursor: Any = None
    for batch_size, many in zip(sizes, steps, strict=True):
        with stream(batch_size, pool=True) as made, stream(batch_size, pool=False) as plain:
            if cursor is not None:
                made.restore(cursor)
                plain.restore(cursor)
            for _ in range(many):
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


def test_more_threads_than_cores_work_where_they_are_asked_for(
    text_dataset: MakeDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "usable_cores", lambda: 1)
    inside: set[int] = set()
    most: list[int] = []

    class Counts(TaskEncoder):
        thread_safe = True

        def encode_sample(self, sample: Any) -> Any:
            inside.add(threading.get_ident())
            most.append(len(inside))
            time.sleep(0.01)
            inside.discard(threading.get_ident())
            return sample

    options = {"task_encoder": Counts(), "worker_config": config(num_workers=5), "batch_size": 4}
    with open_stream(text_dataset(97), **options) as stream:
        for _ in range(40):
            next(stream)
        assert stream.workers == 5
    assert max(most) == 5


def test_more_processes_than_cores_work_where_they_are_asked_for(
    text_dataset: MakeDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "usable_cores", lambda: 1)
    with open_stream(text_dataset(97), worker_config=config(num_workers=2, worker_type="process")) as stream:
        for _ in range(20):
            next(stream)
        assert {each.name for each in stream.stats().by_worker} >= {"process-0", "process-1"}


@pytest.mark.parametrize(("computes", "lines"), [(True, 1), (False, 0)])
def test_more_workers_than_cores_are_logged_once_where_hooks_compute(
    text_dataset: MakeDataset,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    computes: bool,
    lines: int,
) -> None:
    class Works(TaskEncoder):
        thread_safe = True

        def encode_sample(self, sample: Any) -> Any:
            until = time.thread_time() + 0.005
            while computes and time.thread_time() < until:
                pass
            time.sleep(0 if computes else 0.005)
            return sample

    monkeypatch.setattr(stream_module, "usable_cores", lambda: 1)
    monkeypatch.setattr(stream_module, "_KNOWN_SECONDS", 0.05)
    monkeypatch.setattr(stream_module, "_COMPUTES", 0.05)  # other programs may use the cores
    with (
        caplog.at_level(logging.INFO, logger="energon_grain"),
        open_stream(text_dataset(97), task_encoder=Works(), worker_config=config(num_workers=2)) as stream,
    ):
        for _ in range(60):
            next(stream)
        assert not stream._more_than_cores
    assert caplog.text.count("num_workers=2 is more than the 1 cores") == lines


def test_a_worker_whose_parent_has_ended_ends_before_it_imports() -> None:
    parent = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=subprocess.PIPE, check=True)
    command = [sys.executable, "-c", PROGRAM, "0", parent.stdout.decode()]
    assert subprocess.run(command, check=False, timeout=PATIENCE_S, stderr=subprocess.PIPE).returncode == 1


def test_processes_that_are_busy_do_not_hold_up_the_end(text_dataset: MakeDataset) -> None:
    assert worker_pool._PATIENCE_SECONDS + worker_pool._EXIT_SECONDS < 1

    class Stuck(TaskEncoder):
        def encode_sample(self, sample: Any) -> Any:
            time.sleep(3600)

    stream = open_stream(
        text_dataset(97), task_encoder=Stuck(), worker_config=config(num_workers=2, worker_type="process")
    )
    stream.start_prefetch()
    pool: Any = stream._pool
    processes = [*pool._processes.values()]
    began = time.perf_counter()
    stream.close()
    assert time.perf_counter() - began < PATIENCE_S
    assert all(process._process.ended(0) for process in processes)
