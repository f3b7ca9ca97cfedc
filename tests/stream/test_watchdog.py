"""What hangs is noticed, and told."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stream_hosts import MakeDataset, config

from energon_grain import TaskEncoder, get_loader, get_train_dataset
from energon_grain.errors import ConfigError
from energon_grain.watch.watchdog import Watchdog
from energon_grain.watch.watchdog_dataset import WatchdogDataset

HANGS_S, PATIENCE_S = 2.5, 1.0


class HangsOnce(TaskEncoder):
    """On the sample with this number."""

    def __init__(self, number: str) -> None:
        self.number = number

    def encode_sample(self, sample: Any) -> Any:
        if sample.__key__ == self.number:
            self.number = ""
            hang_for_a_while()
        return sample


def hang_for_a_while() -> None:
    time.sleep(HANGS_S)


def open_loader(path: Path, number: str, workers: int = 0, **options: Any) -> Any:
    dataset = get_train_dataset(
        path,
        batch_size=1,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=HangsOnce(number),
        worker_config=config(num_workers=workers),
    )
    return get_loader(dataset, **options)


def watchdogs() -> int:
    return sum(thread.name == "energon-grain-watchdog" for thread in threading.enumerate())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_does_not_come_is_told_with_all_stacks(
    text_dataset: MakeDataset, workers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        open_loader(text_dataset(20), "000013", workers, watchdog_timeout_seconds=PATIENCE_S) as loader,
        pytest.warns(RuntimeWarning, match=r"waited for its next batch for more than 1 s"),
    ):
        batches = [next(loader) for _ in range(100)]
    assert len(batches) == 100
    stacks = capfd.readouterr().err
    assert "Thread MainThread:" in stacks
    assert "hang_for_a_while" in stacks
    assert watchdogs() == 0


def test_a_program_that_takes_its_time_is_left_alone(text_dataset: MakeDataset, capfd: Any) -> None:
    with open_loader(text_dataset(20), "", watchdog_timeout_seconds=PATIENCE_S) as loader:
        for _ in range(2):
            next(loader)
            time.sleep(1.5 * PATIENCE_S)
    assert "Thread" not in capfd.readouterr().err


def test_the_first_batch_may_take_longer(text_dataset: MakeDataset, capfd: pytest.CaptureFixture[str]) -> None:
    path = text_dataset(20)
    with open_loader(path, "") as loader:
        first = next(loader).__key__[0]
    options = {"watchdog_timeout_seconds": PATIENCE_S, "watchdog_initial_timeout_seconds": 60.0}
    with open_loader(path, first, **options) as loader:
        keys = [next(loader).__key__[0] for _ in range(30)]
        assert keys[0] == first
    assert "Thread" not in capfd.readouterr().err


def test_nothing_is_left_of_a_loader_that_nobody_has(text_dataset: MakeDataset) -> None:
    loader = open_loader(text_dataset(20), "", watchdog_timeout_seconds=60)
    next(loader)
    assert watchdogs() == 1
    del loader
    gc.collect()
    end = time.monotonic() + 10
    while watchdogs() and time.monotonic() < end:
        time.sleep(0.01)
    assert watchdogs() == 0


def test_the_stream_is_that_of_the_dataset_below(text_dataset: MakeDataset) -> None:
    path = text_dataset(20)
    with open_loader(path, "") as loader, open_loader(path, "", watchdog_timeout_seconds=60) as watched:
        for _ in range(7):
            next(loader)
        watched.restore_state_rank(loader.save_state_rank())
        assert [next(watched).__key__ for _ in range(30)] == [next(loader).__key__ for _ in range(30)]
        assert watched.save_state_rank() == loader.save_state_rank()
    with pytest.raises(ConfigError, match="timeout_seconds=0: expected a time above 0, in seconds"):
        open_loader(path, "", watchdog_timeout_seconds=0)
    below = get_train_dataset(path, batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None)
    assert len(WatchdogDataset(below, timeout_seconds=None)) == 20


PROGRAM = """
import sys, time
from energon_grain import TaskEncoder, get_loader, get_train_dataset

class Hangs(TaskEncoder):
    def encode_sample(self, sample):
        time.sleep(600)

dataset = get_train_dataset(
    sys.argv[1], batch_size=1, shuffle_buffer_size=None, max_samples_per_sequence=None, task_encoder=Hangs()
)
print("begins", flush=True)
next(get_loader(dataset, watchdog_timeout_seconds=0.5, fail_on_timeout=True))
"""


def test_the_process_ends_where_that_was_asked_for(text_dataset: MakeDataset) -> None:
    program = [sys.executable, "-c", PROGRAM, str(text_dataset(20))]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, "begins\n")
    assert "TimeoutError: the program has waited for its next batch for more than 0.5 s; " in done.stderr
    assert "time.sleep(600)" in done.stderr or "encode_sample" in done.stderr


def test_anything_can_be_watched(capfd: pytest.CaptureFixture[str]) -> None:
    told = threading.Event()

    def entries() -> Iterator[int]:
        yield 0
        assert told.wait(30)
        yield 1

    with Watchdog(PATIENCE_S, callback=told.set, enabled=False) as watchdog:
        assert list(watchdog.watch_iter(entries())) == [0, 1]
        told.clear()
        watchdog.enable()
        for _ in range(30):
            time.sleep(0.05)
            watchdog.reset()
        watchdog.disable()
        watchdog.reset()
        time.sleep(1.5 * PATIENCE_S)
        assert not told.is_set()
    assert "Thread MainThread:" in capfd.readouterr().err
    assert watchdogs() == 0
