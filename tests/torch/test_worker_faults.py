"""Workers of a `DataLoader` that die, hang, fail or are let go of."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import psutil
import pytest
from patience import PATIENCE_S
from torch_encoders import Everything, Slow

from energon_grain import SavableDataset
from energon_grain.testing import check_pool
from energon_grain_torch import ConfigError, TaskEncoder, WorkerError, get_loader
from energon_grain_torch.loader import process_pool

pytestmark = pytest.mark.slow

Train = Callable[..., SavableDataset]


def workers() -> list[Any]:
    """Of all loaders, in the order of their start."""
    children = multiprocessing.active_children()
    return sorted((child for child in children if not wait([child.sentinel], 0)), key=lambda child: child.pid)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """Failures do not spread."""
    yield
    for worker in workers():
        worker.kill()


@pytest.mark.parametrize("how", ["fork", "forkserver"])
def test_the_kit_of_pools(how: str) -> None:
    check_pool(lambda spec, stage: process_pool(spec, stage.sources, 2, 1 << 30, how))


def require_it_goes_on(loader: Any, train: Train) -> None:
    """The loader delivers what follows its state."""
    with get_loader(train()) as other:
        other.restore_state_rank(loader.save_state_rank())
        for _ in range(8):
            assert next(loader).__key__ == next(other).__key__


def test_a_worker_killed_while_its_batch_is_waited_for(
    train: Train, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The other worker takes its chunks over; a forked one is replaced when the next run starts."""
    flag = tmp_path / "slow"
    loader = get_loader(train(num_workers=2, task_encoder=Slow(flag)), multiprocessing_context="fork")
    for _ in range(3):
        next(loader)
    before = workers()
    flag.write_text(str(before[1].pid))
    killer = threading.Timer(0.5, before[1].kill)
    killer.start()
    while "worker process" not in caplog.text:
        next(loader)
    assert f"worker process 1 (pid {before[1].pid}) was killed by signal 9" in caplog.text
    assert "out of memory" in caplog.text
    flag.unlink()
    require_it_goes_on(loader, train)
    assert len(workers()) == 1
    loader.restore_state_rank(loader.save_state_rank())
    next(loader)
    assert len(workers()) == 2
    loader.close()
    assert workers() == []


@pytest.mark.parametrize("reaped_by_others", [False, True])
def test_a_worker_killed_between_two_batches(
    train: Train, reaped_by_others: bool, caplog: pytest.LogCaptureFixture
) -> None:
    loader = get_loader(train(num_workers=2), multiprocessing_context="fork")
    for _ in range(3):
        next(loader)
    first = workers()[0]
    first.kill()
    if reaped_by_others:
        try:
            os.waitpid(first.pid, 0)
            how = "ended while"
        except ChildProcessError:  # the loader's own watch was faster, or PyTorch's
            how = "(was killed by signal 9|ended while)"
    else:
        first.join(PATIENCE_S)
        how = "was killed by signal 9"
    while "worker process" not in caplog.text:
        next(loader)
    assert re.search(rf"worker process 0 \(pid {first.pid}\) {how}", caplog.text)
    require_it_goes_on(loader, train)
    loader.close()


def test_a_worker_killed_before_it_made_anything(train: Train, tmp_path: Path) -> None:
    flag = tmp_path / "slow"
    flag.touch()
    loader = get_loader(train(num_workers=1, task_encoder=Slow(flag)), multiprocessing_context="fork")

    def kill() -> None:
        while not workers():
            time.sleep(0.02)
        time.sleep(0.5)
        workers()[0].kill()

    threading.Thread(target=kill).start()
    with pytest.raises(WorkerError, match=r"worker process 0 \(pid \d+\) was killed by signal 9"):
        next(loader)
    flag.unlink()
    require_it_goes_on(loader, train)
    loader.close()


def test_state_and_restore_after_a_death(train: Train) -> None:
    with get_loader(train(num_workers=1)) as loader:
        next(loader)
        state = loader.save_state_rank()
        expected = next(loader).__key__
        workers()[0].kill()
        loader.restore_state_rank(state)
        # Restoring is no way to hear of it, and no way to trip over it.
        try:
            found = next(loader).__key__
        except WorkerError:
            found = next(loader).__key__
        assert found == expected


def consume(loader: Any, failed: list[BaseException]) -> None:
    try:
        while True:
            next(loader)
    except BaseException as error:
        failed.append(error)


def test_closing_does_not_wait_for_a_slow_hook(train: Train, tmp_path: Path) -> None:
    flag = tmp_path / "slow"
    flag.touch()
    loader = get_loader(train(num_workers=2, task_encoder=Slow(flag)), multiprocessing_context="fork")
    failed: list[BaseException] = []
    thread = threading.Thread(target=consume, args=(loader, failed))
    thread.start()
    while len(workers()) < 2:
        time.sleep(0.02)
    time.sleep(0.3)
    loader.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert workers() == []
    with pytest.raises(ValueError, match="closed"):
        raise failed[0]


def test_closing_while_another_thread_begins(train: Train) -> None:
    for milliseconds in range(0, 60, 4):
        loader = get_loader(train(num_workers=2), multiprocessing_context="fork")
        failed: list[BaseException] = []
        thread = threading.Thread(target=consume, args=(loader, failed))
        thread.start()
        time.sleep(milliseconds / 1000)
        loader.close()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        with pytest.raises(ValueError, match="closed"):
            raise failed[0]
        assert workers() == []


def test_closed_loaders_say_so(train: Train) -> None:
    loader = get_loader(train(num_workers=2))
    next(loader)
    loader.close()
    assert workers() == []
    with pytest.raises(ValueError, match="closed"):
        next(loader)
    loader.close()
    get_loader(train(num_workers=1)).close()  # never started


def test_nothing_piles_up(train: Train) -> None:
    process = psutil.Process()
    names = set(os.listdir("/dev/shm"))
    with get_loader(train(num_workers=2, task_encoder=Everything())) as loader:
        batches = [next(loader)]
        state = loader.save_state_rank()

        def turn() -> int:
            loader.restore_state_rank(state)
            batches.extend(islice(loader, 3))
            return process.num_fds()

        before = max(turn() for _ in range(8))  # so many batches lie where workers wrote them, further ones do not
        assert max(turn() for _ in range(20)) <= before + 8  # results under way
        running = {worker.pid for worker in workers()}
        assert len(running) == 2
    gc.collect()
    assert process.num_fds() < before
    assert workers() == []
    assert {name for name in set(os.listdir("/dev/shm")) - names if "energon" in name or "torch" in name} == set()


class HoldsALock(TaskEncoder):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def encode_sample(self, sample: Any) -> Any:
        with self.lock:
            return sample


def test_hooks_that_cannot_be_sent(train: Train) -> None:
    loader = get_loader(train(num_workers=1, task_encoder=HoldsALock()), multiprocessing_context="spawn")
    with pytest.raises(WorkerError, match=r"cannot be sent to worker processes: .*lock.*context='fork'"):
        next(loader)
    loader.close()
    # Those that are forked have it.
    with get_loader(train(num_workers=1, task_encoder=HoldsALock()), multiprocessing_context="fork") as loader:
        require_it_goes_on(loader, train)


class Unpicklable(TaskEncoder):
    def encode_sample(self, sample: Any) -> Any:
        return {"key": sample.__key__, "lock": threading.Lock()}

    def batch(self, samples: list[Any]) -> Any:
        return samples


def test_results_that_cannot_be_sent(train: Train) -> None:
    loader = get_loader(train(num_workers=1, task_encoder=Unpicklable()))
    with pytest.raises(WorkerError, match=r"the return value of hooks cannot be sent .*lock.*worker_type='thread'"):
        next(loader)
    loader.close()
    with get_loader(train(num_workers=1, worker_type="thread", task_encoder=Unpicklable())) as loader:
        assert len(next(loader)) == 4


def test_no_such_way_to_start_workers(train: Train) -> None:
    loader = get_loader(train(num_workers=1), multiprocessing_context="threads")
    with pytest.raises(ConfigError, match="multiprocessing_context='threads'"):
        next(loader)
    loader.close()


ENTERED, GO, COLLECTED = threading.Event(), threading.Event(), threading.Event()


def collect() -> None:
    """What the main process does to take a result in, in a thread of the loader's."""
    ENTERED.set()
    assert GO.wait(PATIENCE_S)
    gc.collect()
    COLLECTED.set()


class Collects:
    def __reduce__(self) -> Any:
        return collect, ()


class Collecting(TaskEncoder):
    def batch(self, samples: list[Any]) -> Any:
        return Collects()


class Trainer:
    loader: Any = None
    me: Any = None


def test_the_collector_finds_the_loader_in_a_thread_of_its_own(train: Train) -> None:
    trainer = Trainer()
    trainer.me = trainer
    trainer.loader = get_loader(train(num_workers=1, task_encoder=Collecting()), multiprocessing_context="fork")
    trainer.loader.start_prefetch()
    assert ENTERED.wait(PATIENCE_S)
    gc.disable()  # only that thread shall find it
    try:
        del trainer
        GO.set()
        assert COLLECTED.wait(PATIENCE_S)
        until = time.monotonic() + PATIENCE_S
        while workers():
            assert time.monotonic() < until
            time.sleep(0.02)
    finally:
        gc.enable()


class Fails(TaskEncoder):
    def encode_sample(self, sample: Any) -> Any:
        raise RuntimeError("this sample fails")


def again(error: Exception, sample: Any, sources: Any = None) -> None:
    raise error


def test_an_error_out_of_next_keeps_nobody(train: Train) -> None:
    """The dropped sample's error knows the callers of `next`, and with them the loader."""
    loader = get_loader(train(num_workers=1, task_encoder=Fails(), handler=again), multiprocessing_context="fork")
    with pytest.raises(RuntimeError, match="this sample fails"):
        next(loader)
    del loader
    gc.collect()
    until = time.monotonic() + PATIENCE_S
    while workers():
        assert time.monotonic() < until
        time.sleep(0.02)
