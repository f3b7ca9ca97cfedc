"""What becomes of samples and batches that fail, what is counted and logged of them, and what ends the run at once."""

from __future__ import annotations

import logging
import time
import traceback
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from stream_hosts import Agreement, MakeDataset, Tolerant, config, open_stream, train_on

from energon_grain import (
    ConfigError,
    DecodingError,
    FatalSampleError,
    MapDataset,
    SkipSample,
    Stream,
    TaskEncoder,
    UntrustedCodeError,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    reraise_exception,
    stateless,
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


NEVER = r"failed 5 times and never succeeded, each time in the same way, the last time on "


def run(path: Any, encoder: TaskEncoder, **options: Any) -> Stream:
    lanes = 1 if isinstance(encoder, Counts) else 24
    return open_stream(
        path, task_encoder=encoder, **{"worker_config": WorkerConfig(0, 1, 0), "lanes": lanes, **options}
    )


class Wrong(TaskEncoder):
    """With a mistake in one of its hooks."""

    def __init__(self, hook: str) -> None:
        self.hook = hook

    def fail(self, hook: str) -> None:
        if hook == self.hook:
            raise AttributeError(f"mistake in {hook}")

    def encode_sample(self, sample: Any) -> Any:
        self.fail("encode_sample")
        return sample

    def select_samples_to_pack(self, samples: Any) -> Any:
        self.fail("select_samples_to_pack")
        return [[sample] for sample in samples]

    @stateless
    def pack_selected_samples(self, samples: Any) -> Any:
        self.fail("pack_selected_samples")
        return samples[0]

    def batch(self, samples: Any) -> Any:
        self.fail("batch")
        return super().batch(samples)

    def encode_batch(self, batch: Any) -> Any:
        self.fail("encode_batch")
        return batch


@pytest.mark.parametrize(
    ("hook", "workers", "kind"),
    [
        *((hook, workers, "thread") for hook in ("encode_sample", "batch", "encode_batch") for workers in (0, 2)),
        ("batch", 1, "process"),
    ],
)
def test_a_mistake_in_a_hook_ends_the_run_with_one_traceback(
    text_dataset: MakeDataset, caplog: pytest.LogCaptureFixture, hook: str, workers: int, kind: Any
) -> None:
    with (
        run(text_dataset(97), Wrong(hook), worker_config=WorkerConfig(0, 1, workers, worker_type=kind)) as stream,
        caplog.at_level(logging.WARNING, "energon_grain"),
    ):
        for attempt in range(2):
            with pytest.raises(
                FatalSampleError, match=rf"{hook} {NEVER}.*: AttributeError: mistake in {hook};"
            ) as caught:
                next(stream)
            shown = "".join(traceback.format_exception(caught.value))
            assert shown.count("in fail\n") == 0  # that is in the log
            assert stream.stats()["dropped_total"] == 5
            assert len(caplog.records) == 1 + attempt  # the tenth failure is told
    said = caplog.messages[0]
    assert said.count("Traceback (most recent call last)") == 1
    assert f'self.fail("{hook}")' in said
    assert len(said.splitlines()) < 30


def test_the_sample_is_the_same_wherever_hooks_run(text_dataset: MakeDataset) -> None:
    said: set[str] = set()
    for workers, kind in ((0, "thread"), (3, "thread"), (1, "process")):
        config = WorkerConfig(0, 1, workers, worker_type=kind)  # type: ignore[arg-type]
        stream = run(text_dataset(97), Wrong("encode_sample"), worker_config=config)
        with stream, pytest.raises(FatalSampleError) as caught:
            next(stream)
        said.add(str(caught.value))
    assert len(said) == 1


@pytest.mark.parametrize("hook", ["select_samples_to_pack", "pack_selected_samples"])
def test_hooks_of_packs_too(text_dataset: MakeDataset, hook: str) -> None:
    stream = run(text_dataset(97), Wrong(hook), packing_buffer_size=2)
    with pytest.raises(FatalSampleError, match=rf"{hook} {NEVER}an item (.*): AttributeError"):
        next(stream)


def test_a_loader_ends_too(text_dataset: MakeDataset) -> None:
    dataset = train_on(text_dataset(24), batch_size=4, task_encoder=Wrong("batch"))
    with pytest.raises(FatalSampleError, match=f"batch {NEVER}a batch \\(a group of 4 samples starting with '"):
        next(get_loader(dataset))


def test_data_that_never_decodes_ends_the_run(text_dataset: MakeDataset, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(FatalSampleError, match=rf"decode {NEVER}.*shard"):
        next(run(text_dataset(40, broken=range(40)), TaskEncoder()))
    (said,) = caplog.messages
    assert "was dropped: DecodingError: " in said
    assert len(said.splitlines()) == 1


class Counts(TaskEncoder):
    """Whose first hook fails where `fails` says so of the number of its call; with one lane, that of the sample."""

    def __init__(self, fails: Any) -> None:
        self.fails = fails
        self.calls = 0

    def encode_sample(self, sample: Any) -> Any:
        self.calls += 1
        if self.fails(self.calls):
            raise ValueError(f"number {self.calls}")
        return sample


def test_chosen_handlers_and_tolerances_mean_what_they_did(text_dataset: MakeDataset) -> None:
    class Seven(Counts):
        __default_failure_tolerance__ = 7

    class Endless(Counts):
        __default_failure_tolerance__ = 0

    path = text_dataset(97)
    with pytest.raises(FatalSampleError, match="encode_sample failed 100 times in a row"):
        next(run(path, Counts(lambda call: True), worker_config=config()))
    with pytest.raises(FatalSampleError, match="encode_sample failed 7 times in a row"):
        next(run(path, Seven(lambda call: True)))
    stream = run(path, Endless(lambda call: call <= 500))
    next(stream)
    assert stream.stats()["dropped_total"] == 500

    def broken(sample: Any) -> Any:
        raise ValueError("no")

    dataset = get_train_dataset(path, batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None)
    with pytest.raises(FatalSampleError, match="map failed 12 times in a row"):
        next(Stream.of(MapDataset(dataset, broken, failure_tolerance=12)))


def test_what_worked_once_may_fail_a_hundred_times(text_dataset: MakeDataset) -> None:
    path = text_dataset(97)
    for encoder in (Counts(lambda call: call > 1), Packs(lambda call: call > 1)):
        with pytest.raises(FatalSampleError, match="encode_sample failed 100 times in a row"):
            next(run(path, encoder, packing_buffer_size=3 if isinstance(encoder, Packs) else None))


class Packs(Counts):
    def select_samples_to_pack(self, samples: Any) -> Any:
        return [samples]

    @stateless
    def pack_selected_samples(self, samples: Any) -> Any:
        return samples[0]


def test_different_failures_are_no_single_mistake(text_dataset: MakeDataset) -> None:
    class Both(Counts):
        def encode_sample(self, sample: Any) -> Any:
            self.calls += 1
            if self.calls == 3:
                raise KeyError("another one")
            raise ValueError("no")

    with pytest.raises(FatalSampleError, match="encode_sample failed 100 times in a row"):
        next(run(text_dataset(97), Both(None)))


def test_skips_are_no_failures(text_dataset: MakeDataset) -> None:
    class Skips(Counts):
        def encode_sample(self, sample: Any) -> Any:
            self.calls += 1
            if self.calls <= 20:
                raise SkipSample
            return sample

    stream = run(text_dataset(97), Skips(None))
    next(stream)
    assert stream.stats()["dropped_total"] == 20


def test_a_restored_run_is_not_at_its_first_samples(text_dataset: MakeDataset) -> None:
    path = text_dataset(97)
    stream = run(path, Counts(lambda call: False))
    next(stream)
    state = stream.cursor()
    resumed = run(path, Counts(lambda call: call <= 20))
    resumed.restore(state)
    next(resumed)
    assert resumed.stats()["dropped_total"] == 20


def test_failures_are_logged_once_a_kind_and_then_their_number(
    text_dataset: MakeDataset, caplog: pytest.LogCaptureFixture
) -> None:
    stream = run(text_dataset(97), Counts(lambda call: call % 2 == 0))
    while stream.stats()["dropped_total"] < 150:
        next(stream)
    assert len(caplog.records) == 3
    first, tenth, hundredth = caplog.messages
    assert "was dropped: ValueError: number 2 (from " in first
    assert (
        "was dropped, like 9 others before by the same kind of failure in encode_sample: ValueError: number 20" in tenth
    )
    assert "was dropped, like 99 others before" in hundredth
    assert "Traceback" not in tenth + hundredth
