"""Memory that is let go of while a stream runs."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import pytest
from patience import PATIENCE_S
from stream_hosts import MakeDataset, open_stream

from energon_grain import SkipSample, TaskEncoder
from energon_grain.stream.memory import paused_collection
from energon_grain.stream.stage import Flow


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
