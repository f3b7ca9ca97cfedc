"""Edges of the stream: early ends, hooks that refuse, states that meet other settings, memory that is let go."""

from __future__ import annotations

import dataclasses
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_grain import (
    ConfigError,
    FatalSampleError,
    SkipSample,
    StateError,
    Stream,
    TaskEncoder,
    UntrustedCodeError,
    WorkerConfig,
    get_train_dataset,
    get_val_dataset,
    merge_cursors,
)
from energon_grain.datasets.mixtures import BlendDataset
from energon_grain.datasets.nodes import EpochizeDataset
from energon_grain.datasets.run_settings import RunSettings
from energon_grain.stream.collection import paused_collection
from energon_grain.stream.flow import Flow

MakeDataset = Callable[..., Path]


def quiet(error: Exception, sample: Any, sources: Any = None) -> None:
    """An error handler that lets samples go without a word."""


def config(rank: int = 0, world_size: int = 1, num_workers: int = 0, **options: Any) -> WorkerConfig:
    return WorkerConfig(rank, world_size, num_workers, global_error_handler=quiet, **options)


def open_stream(path: Path, *, worker_config: WorkerConfig | None = None, **options: Any) -> Stream:
    arguments: dict[str, Any] = {
        "batch_size": 4,
        "shuffle_buffer_size": None,
        "max_samples_per_sequence": None,
        "lanes": 24,
        **options,
    }
    return Stream.of(get_train_dataset(path, worker_config=worker_config or config(), **arguments))


def keys(batch: Any) -> list[str]:
    return list(batch.__key__)


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


class SkipsBatches(TaskEncoder):
    """Drops every third batch."""

    def encode_batch(self, batch: Any) -> Any:
        if int(batch.__key__[0]) % 3 == 0:
            raise SkipSample
        return batch


@pytest.mark.parametrize("repeat", [True, False])
def test_which_is_right_or_refuses_after_a_dropped_batch(text_dataset: MakeDataset, repeat: bool) -> None:
    stream = open_stream(text_dataset(53), task_encoder=SkipsBatches(), repeat=repeat, last_batch="drop")
    other = open_stream(text_dataset(53), task_encoder=SkipsBatches(), repeat=repeat, last_batch="drop")
    refused = told = 0
    batches: list[list[str]] = []
    for step, batch in enumerate(stream):
        other.restore(stream.cursor(with_manifest=True))
        batches.append(keys(batch))
        for asked in (step, 0, step // 2):
            for host in (stream, other):
                try:
                    records = host.which(asked)
                except StateError:
                    refused += 1
                else:
                    told += 1
                    assert [record.key for record in records] == batches[asked]
        if step == 30:
            break
    assert refused
    assert told


def test_which_does_not_forget_the_drops_of_earlier_passes(text_dataset: MakeDataset) -> None:
    path = text_dataset(53, broken=range(9))
    stream = open_stream(path, repeat=False, task_encoder=Tolerant())
    first = list(stream)
    assert len(first) == 11
    with pytest.raises(StateError, match="dropped"):
        stream.which(3)
    iter(stream)
    merged = merge_cursors([stream.cursor()])
    other = open_stream(path, repeat=False, task_encoder=Tolerant())
    other.restore(merged)
    for told in (stream, other):
        with pytest.raises(StateError, match="dropped"):
            told.which(3)
        records = told.which(len(first))
        assert records[0].epoch == 1


def test_which_on_one_of_several_hosts_keeps_what_a_merge_knows(text_dataset: MakeDataset) -> None:
    path = text_dataset(53, broken={0})
    streams = [open_stream(path, repeat=False, worker_config=config(host, 2), batch_size=2) for host in range(2)]
    for stream in streams:
        list(stream)
        iter(stream)
    [one] = [open_stream(path, repeat=False)]
    one.restore(merge_cursors([stream.cursor() for stream in streams]))
    with pytest.raises(StateError, match="dropped"):
        one.which(0)


def test_which_follows_several_changes_of_the_batch_size(text_dataset: MakeDataset) -> None:
    for repeat in (True, False):
        stream = open_stream(text_dataset(53), repeat=repeat)
        told: list[list[str]] = []
        for size in (4, 7, 7, 3, 60, 1, 4):
            other = open_stream(text_dataset(53), repeat=repeat, batch_size=size)
            other.restore(stream.cursor())
            stream = other
            while len(told) % 5 != 4:
                told.append(keys(next(stream, None) or next(iter(stream))))
            told.append(keys(next(stream, None) or next(iter(stream))))
        assert [[record.key for record in stream.which(step)] for step in range(len(told))] == told


def test_which_does_not_guess_passes_that_had_another_limit(text_dataset: MakeDataset) -> None:
    def validation(limit: int | None) -> Stream:
        return Stream.of(
            get_val_dataset(text_dataset(53), split_part="train", batch_size=4, limit=limit, worker_config=config())
        )

    stream = validation(3)
    seen = [keys(batch) for _ in range(2) for batch in stream]
    next(iter(stream))
    longer = validation(5)
    longer.restore(stream.cursor())
    assert [record.key for record in longer.which(7)] == seen[1]
    for step in range(6):
        try:
            records = longer.which(step)
        except StateError:
            continue
        assert [record.key for record in records] == seen[step]


class Tolerant(TaskEncoder):
    __default_failure_tolerance__ = 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_drops_are_counted_once_and_with_the_batch_that_they_made_room_in(
    text_dataset: MakeDataset, num_workers: int
) -> None:
    path = text_dataset(97, broken=range(0, 97, 5))

    def counted(workers: int, restores: bool) -> list[dict[str, Any]]:
        with open_stream(path, worker_config=config(num_workers=workers), task_encoder=Tolerant()) as stream:
            stats = []
            for _ in range(20):
                next(stream)
                if restores:
                    time.sleep(0.01)  # whatever may be read ahead is
                    stream.restore(stream.cursor())
                stats.append(stream.stats())
        return stats

    expected = counted(0, restores=False)
    assert expected[-1]["dropped_total"] > 3
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


@pytest.mark.parametrize(("last_batch", "samples"), [("keep", 53), ("pad", 53), ("drop", 52)])
def test_samples_are_counted_as_they_are_delivered(text_dataset: MakeDataset, last_batch: Any, samples: int) -> None:
    stream = open_stream(text_dataset(53), repeat=False, last_batch=last_batch)
    list(stream)
    assert stream.stats()["samples"] == samples


class Rolls(TaskEncoder):
    """Whose batches are random numbers."""

    def encode_batch(self, batch: Any) -> float:
        return float(self.rng.random())


def test_batch_hooks_draw_other_numbers_in_each_pass(text_dataset: MakeDataset) -> None:
    stream = open_stream(text_dataset(24), repeat=False, task_encoder=Rolls())
    first, second = list(stream), list(stream)
    assert not set(first) & set(second)
    again = Stream.of(
        get_val_dataset(
            text_dataset(24), split_part="train", batch_size=4, task_encoder=Rolls(), worker_config=config()
        )
    )
    assert list(again) == list(again)


def test_swapping_the_parts_of_a_blend_changes_the_fingerprint(text_dataset: MakeDataset) -> None:
    part: Any = get_train_dataset(
        text_dataset(24), batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None, repeat=False
    )
    one, other = (dataclasses.replace(part.dataset, name=name) for name in ("one", "other"))

    def fingerprint(*children: Any) -> str:
        blend = BlendDataset(*children)
        return Stream.of(RunSettings(worker_config=config(), dataset=blend)).cursor()["fingerprint"]

    assert fingerprint(one, other) != fingerprint(other, one)


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
    stop = time.monotonic() + 3

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


@pytest.mark.parametrize("hosts", [1, 2])
def test_drop_needs_no_mask_where_samples_were_dropped(text_dataset: MakeDataset, hosts: int) -> None:
    path = text_dataset(53, broken={0, 1, 20})
    for host in range(hosts):
        stream = open_stream(path, worker_config=config(host, hosts), repeat=False, last_batch="drop", batch_size=2)
        batches = list(stream)
        assert len(batches) == 53 // (2 * hosts)
        assert all(batch.__valid__ is None and len(batch.__key__) == 2 for batch in batches)


def test_keep_on_several_hosts_is_refused_wherever_hosts_come_from(text_dataset: MakeDataset) -> None:
    dataset = get_train_dataset(
        text_dataset(53),
        batch_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=False,
        worker_config=config(),
    )
    with pytest.raises(ConfigError, match="last_batch='keep' with 2 hosts"):
        Stream.of(dataset, worker_config=config(0, 2))


def test_a_blend_needs_a_weight_for_each_part(text_dataset: MakeDataset) -> None:
    part: Any = get_train_dataset(
        text_dataset(24), batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None, repeat=False
    )
    with pytest.raises(ConfigError, match="2 datasets and 1 weights"):
        BlendDataset(part.dataset, part.dataset, schedule=[(0, [1])])


def test_virtual_epochs_of_a_finite_dataset_begin_it_again(text_dataset: MakeDataset) -> None:
    part = get_train_dataset(
        text_dataset(24), batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=None, repeat=False
    )
    stream = Stream.of(EpochizeDataset(part, length=4))
    epochs = [[key for batch in stream for key in batch.__key__] for _ in range(3)]
    assert [len(epoch) for epoch in epochs] == [16, 16, 16]
    assert sorted(epochs[0] + epochs[1] + epochs[2]) == sorted(2 * sorted(set(epochs[0] + epochs[1])))


def test_every_state_has_the_same_keys(text_dataset: MakeDataset) -> None:
    stream = open_stream(text_dataset(53, broken={1, 2, 3}))
    fresh = stream.cursor()
    for _ in range(20):
        next(stream)
    assert fresh["drops"] == ""
    assert stream.cursor()["drops"]
    assert fresh.keys() == stream.cursor().keys() == merge_cursors([stream.cursor()]).keys()
    old = {name: value for name, value in fresh.items() if name != "drops"}
    stream.restore(old)
    stream.restore(merge_cursors([old]))
    assert stream.cursor() == fresh
    with pytest.raises(StateError, match="'drops' is 5"):
        stream.restore({**fresh, "drops": 5})


@pytest.mark.parametrize("order", [None, -1, 1, 2])
@pytest.mark.parametrize("lanes", [1, 24])
@pytest.mark.parametrize("hosts", [1, 2, 5, 30])
def test_tiny_endless_datasets(text_dataset: MakeDataset, order: int | None, lanes: int, hosts: int) -> None:
    found = []
    for count in (1, hosts):
        streams = [
            open_stream(
                text_dataset(2),
                worker_config=config(host, count),
                lanes=lanes,
                batch_size=30 // count,
                shuffle_over_epochs_multiplier=order,
            )
            for host in range(count)
        ]
        found.append([sorted(key for stream in streams for key in keys(next(stream))) for _ in range(4)])
    assert found[0] == found[1]


@pytest.mark.parametrize("hosts", [1, 2, 3, 8])
@pytest.mark.parametrize("batch_size", [1, 7, 40])
def test_pad_with_few_samples(text_dataset: MakeDataset, hosts: int, batch_size: int) -> None:
    valid: list[str] = []
    for host in range(hosts):
        stream = open_stream(
            text_dataset(7, broken={2}),
            worker_config=config(host, hosts),
            repeat=False,
            last_batch="pad",
            batch_size=batch_size,
        )
        batches = list(stream)
        assert len(batches) == -(-7 // (hosts * batch_size))
        for batch in batches:
            valid += np.array(keys(batch))[batch.__valid__].tolist()
    assert sorted(valid) == [f"{i:06d}" for i in range(7) if i != 2]
