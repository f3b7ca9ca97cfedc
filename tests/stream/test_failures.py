"""What becomes of samples and batches that fail, and what is counted of them."""

from __future__ import annotations

import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from stream_hosts import Agreement, MakeDataset, Tolerant, config, open_stream, train_on

from energon_grain import (
    ConfigError,
    DecodingError,
    FatalSampleError,
    SkipSample,
    Stream,
    TaskEncoder,
    UntrustedCodeError,
    WorkerConfig,
    reraise_exception,
)


def test_too_many_failures_in_a_row_end_the_iteration(text_dataset: MakeDataset) -> None:
    class Impatient(TaskEncoder):
        __default_failure_tolerance__ = 3

        def encode_sample(self, sample: Any) -> Any:
            if int(sample.__key__) >= 10:
                raise ValueError("broken")
            return sample

    dataset = train_on(
        text_dataset(24),
        worker_config=config(),
        batch_size=2,
        shuffle_over_epochs_multiplier=None,
        task_encoder=Impatient(),
        lanes=1,
    )
    stream = Stream.of(dataset)
    for _ in range(5):
        next(stream)
    with pytest.raises(FatalSampleError, match="encode_sample failed 3 times in a row"):
        next(stream)


def test_an_error_handler_may_end_the_iteration(text_dataset: MakeDataset) -> None:
    raising = WorkerConfig(0, 1, 0, global_error_handler=reraise_exception)
    dataset = train_on(text_dataset(24, broken={3}), worker_config=raising, batch_size=24)
    with pytest.raises(DecodingError):
        next(Stream.of(dataset))


class Refuses(TaskEncoder):
    """Whose hook of this name raises."""

    def __init__(self, hook: str, error: Exception) -> None:
        self.hook = hook
        self.error = error

    def encode_sample(self, sample: Any) -> Any:
        if self.hook == "encode_sample":
            raise self.error
        return sample

    def encode_batch(self, batch: Any) -> Any:
        if self.hook == "encode_batch":
            raise self.error
        return batch


@pytest.mark.parametrize("error", [ConfigError("no such option"), UntrustedCodeError("pickle")])
@pytest.mark.parametrize("hook", ["encode_sample", "encode_batch"])
def test_a_wrong_configuration_is_never_a_dropped_sample(
    text_dataset: MakeDataset, hook: str, error: Exception
) -> None:
    stream = open_stream(text_dataset(24), task_encoder=Refuses(hook, error))
    with pytest.raises(FatalSampleError, match=type(error).__name__):
        next(stream)
    assert stream.stats()["dropped_total"] == 0


def test_a_batch_hook_that_always_fails_ends_the_iteration(text_dataset: MakeDataset) -> None:
    stream = open_stream(text_dataset(24), task_encoder=Refuses("encode_batch", ValueError("broken")))
    with pytest.raises(FatalSampleError, match="encode_batch failed 100 times in a row"):
        next(stream)


def test_a_batch_hook_that_skips_everything_ends_the_iteration(text_dataset: MakeDataset) -> None:
    stream = open_stream(text_dataset(24), task_encoder=Refuses("encode_batch", SkipSample()))
    with pytest.raises(FatalSampleError, match="1000 batches in a row"):
        next(stream)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_drops_are_counted_once_and_with_the_batch_that_they_made_room_in(
    text_dataset: MakeDataset, num_workers: int
) -> None:
    path = text_dataset(97, broken=range(0, 97, 5))

    def counted(workers: int, restores: bool) -> list[tuple[Any, ...]]:
        with open_stream(path, worker_config=config(num_workers=workers), task_encoder=Tolerant()) as stream:
            counts: list[tuple[Any, ...]] = []
            for _ in range(20):
                next(stream)
                if restores:
                    time.sleep(0.01)  # whatever may be read ahead is
                    stream.restore(stream.cursor())
                now = stream.stats()
                counts.append((now.samples, now.batches, now.dropped, now.dropped_total))
        return counts

    expected = counted(0, restores=False)
    assert expected[-1][-1] > 3
    assert counted(num_workers, restores=False) == expected
    assert counted(num_workers, restores=True) == expected


def test_what_a_failing_step_dropped_is_told_until_it_succeeds(text_dataset: MakeDataset) -> None:
    class Moody(TaskEncoder):
        __default_failure_tolerance__ = 5
        angry = True

        def encode_sample(self, sample: Any) -> Any:
            if self.angry:
                raise ValueError("no")
            return sample

    encoder = Moody()
    stream = open_stream(text_dataset(24), task_encoder=encoder)
    for _ in range(2):
        with pytest.raises(FatalSampleError):
            next(stream)
        assert stream.stats()["dropped_total"] == 5
    encoder.angry = False
    next(stream)
    assert stream.stats()["dropped_total"] == 0


class FailsOnce(Tolerant):
    """Of half of the samples and more it makes none; one call ends in an error that is told."""

    def __init__(self, call: int) -> None:
        self.left = call

    def encode_sample(self, sample: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise FatalSampleError("once")
        for _ in range(max(0, zlib.crc32(sample.__key__.encode()) % 6 - 3)):
            yield sample


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_host_that_goes_on_after_an_error_agrees_with_the_others(text_dataset: MakeDataset, num_workers: int) -> None:
    path = text_dataset(17)

    def host(agreement: Agreement, number: int, call: int) -> list[list[str]]:
        stream = open_stream(
            path,
            batch_size=1,
            lanes=12,
            repeat=False,
            last_batch="pad",
            worker_config=config(number, 2, num_workers, any_host=agreement.of(number)),
            task_encoder=FailsOnce(call),
        )
        found: list[list[str]] = []
        while True:
            try:
                found.append([key for key, real in _rows(next(stream)) if real])
            except FatalSampleError:
                continue
            except StopIteration:
                return found

    def both(call: int) -> list[list[list[str]]]:
        agreement = Agreement(2)
        with ThreadPoolExecutor(2) as pool:
            return [f.result(20) for f in [pool.submit(host, agreement, n, call * n) for n in range(2)]]

    expected = both(0)
    assert all(both(call) == expected for call in range(1, 12))


def _rows(batch: Any) -> list[tuple[str, bool]]:
    return list(zip(batch.__key__, batch.__valid__, strict=True))
