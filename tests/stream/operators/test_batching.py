"""Batches formed in lanes: below a blend, below other batches, of finite and endless datasets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from small_graphs import flat, mixed, on_hosts, ordered, roll, take
from stream_hosts import MakeDataset, config, train_on

from energon_grain import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    FatalSampleError,
    MapDataset,
    SavableDataset,
    SkipSample,
    Stream,
)


def batch(samples: list[Any]) -> tuple[Any, ...]:
    return tuple(samples)


def batches_of(dataset: SavableDataset, size: int, batcher: Any = batch, **options: Any) -> SavableDataset:
    """Batches that are formed in lanes, whatever stands above."""
    return MapDataset(BatchDataset(BatchDataset(dataset, size, batcher, **options), 1, lambda items: items[0]), same)


def same(value: Any) -> Any:
    return value


def test_a_blend_of_batched_datasets_gives_whole_batches(text_dataset: MakeDataset) -> None:
    def part(n: int, batch_size: int) -> SavableDataset:
        return train_on(text_dataset(n), batch_size=batch_size, worker_config=config())

    steps = take(Stream.of(BlendDataset((part(24, 5), 0.6), (part(31, 3), 0.4))), 200)
    assert Counter(len(step.__key__) for step in steps) == {5: 120, 3: 80}
    assert [steps[at].__restore_key__[:2] for at in (0, -1)] == [("item", 0)] * 2


@pytest.mark.parametrize("lanes", [1, 3, 8])
@pytest.mark.parametrize("n", [7, 24, 53])
@pytest.mark.parametrize("size", [1, 4, 5])
def test_only_the_last_batch_of_a_pass_is_short(text_dataset: MakeDataset, lanes: int, n: int, size: int) -> None:
    items = list(batches_of(ordered(text_dataset(n), lanes=lanes), size))
    assert sorted(flat(items)) == list(range(n))
    assert sorted(map(len, items), reverse=True) == [size] * (n // size) + [n % size] * bool(n % size)
    assert list(flat(items[:1])) == list(range(min(n, size)))


@pytest.mark.parametrize("lanes", [1, 3])
def test_the_short_one_may_be_dropped(text_dataset: MakeDataset, lanes: int) -> None:
    items = list(batches_of(ordered(text_dataset(24), lanes=lanes), 5, drop_last=True))
    assert [len(item) for item in items] == [5] * 4


def test_batches_of_batches(text_dataset: MakeDataset) -> None:
    twos = BatchDataset(ordered(text_dataset(12), lanes=2), 2, batch)
    assert list(BatchDataset(twos, 3, batch)) == [((0, 1), (2, 3), (4, 5)), ((6, 7), (8, 9), (10, 11))]


def halves(samples: list[Any]) -> Iterator[Any]:
    for part in (samples[::2], samples[1::2]):
        if part:
            yield tuple(part), roll()


def test_a_generator_makes_several_batches(text_dataset: MakeDataset) -> None:
    items = list(BatchDataset(ordered(text_dataset(9)), 4, halves))
    assert [item[0] for item in items] == [(0, 2), (1, 3), (4, 6), (5, 7), (8,)]
    assert len({item[1] for item in items}) == 5


def test_batches_that_are_refused(text_dataset: MakeDataset) -> None:
    def refusing(samples: list[int]) -> Any:
        if 3 in samples:
            raise SkipSample
        if 6 in samples:
            raise ValueError("not 6")
        return tuple(samples)

    stream = Stream.of(BatchDataset(BatchDataset(ordered(text_dataset(12)), 2, refusing), 2, batch))
    assert list(stream) == [((0, 1), (4, 5)), ((8, 9), (10, 11))]
    assert stream.stats()["dropped_total"] == 2
    failing = BatchDataset(ordered(text_dataset(12)), 2, lambda samples: 1 // 0, failure_tolerance=3)
    with pytest.raises(FatalSampleError, match="batch failed 3 times in a row"):
        list(BatchDataset(failing, 2, batch))


def test_batches_one_after_the_other(text_dataset: MakeDataset) -> None:
    parts = [BatchDataset(ordered(text_dataset(n)), 4, batch) for n in (9, 7)]
    assert list(ConcatDataset(*parts)) == [(0, 1, 2, 3), (4, 5, 6, 7), (8,), (0, 1, 2, 3), (4, 5, 6)]


@pytest.mark.parametrize("hosts", [1, 2, 4])
@pytest.mark.parametrize("last_batch", ["pad", "drop"])
def test_finite_ones_end_together(text_dataset: MakeDataset, hosts: int, last_batch: Any) -> None:
    path = text_dataset(53)

    def make(worker_config: Any) -> SavableDataset:
        twos = BatchDataset(mixed(path, worker_config=worker_config), 2, batch)
        return BatchDataset(twos, 12 // hosts, lambda items: {"items": items}, last_batch=last_batch)

    found = on_hosts(make, hosts, 4)
    steps = {host.index(None) for host in found}
    assert steps == {3 if last_batch == "pad" else 2}
    seen: list[Any] = []
    for host in found:
        for step in host[: host.index(None)]:
            valid = step.get("__valid__", [True] * len(step["items"]))
            assert len(step["items"]) == 12 // hosts
            seen += [item for item, real in zip(step["items"], valid, strict=True) if real]
    assert len(seen) == len(set(seen)) == (27 if last_batch == "pad" else 24)
    if last_batch == "pad":
        assert sorted(flat(seen)) == list(range(53))


@pytest.mark.parametrize("lanes", [1, 3, 8])
@pytest.mark.parametrize("n", [13, 24])
def test_batches_of_batches_are_whole_too(text_dataset: MakeDataset, lanes: int, n: int) -> None:
    threes = BatchDataset(ordered(text_dataset(n), lanes=lanes), 3, batch)
    nested = BatchDataset(BatchDataset(threes, 2, batch), 2, batch)
    stream = Stream.of(nested)
    for _ in range(2):
        steps = list(stream)
        assert len(steps) == len(nested) == -(-n // 12)
        assert sorted(flat(steps)) == list(range(n))
        inner = [len(pair) for step in steps for pair in step]
        assert sum(size < 2 for size in inner) <= 1
