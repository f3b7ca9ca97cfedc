"""Batches and groups formed in lanes: below each other and in blends, full and at the end, contradictory criteria."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from small_graphs import flat, mixed, on_hosts, ordered, require_exact_states, roll, rolled, take
from stream_hosts import MakeDataset, config, train_on

from energon_grain import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    FatalSampleError,
    GroupBatchDataset,
    MapDataset,
    SavableDataset,
    SkipSample,
    Stream,
    TaskEncoder,
    current_draw,
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


def by_rest(sample: int) -> tuple[int, None]:
    return sample % 3, None


def test_full_buckets_first_and_the_rest_in_the_order_of_their_beginning(text_dataset: MakeDataset) -> None:
    def criterion(sample: int) -> tuple[str, None]:
        return ("late" if sample > 5 else "even" if sample % 2 == 0 else "odd"), None

    groups = GroupBatchDataset(ordered(text_dataset(8)), 3, criterion, batch)
    assert list(groups) == [(0, 2, 4), (1, 3, 5), (6, 7)]
    groups = GroupBatchDataset(ordered(text_dataset(11)), 3, by_rest, batch)
    assert list(groups) == [(0, 3, 6), (1, 4, 7), (2, 5, 8), (9,), (10,)]
    groups = GroupBatchDataset(ordered(text_dataset(11)), 4, lambda sample: ((2 - sample) % 3, None), batch)
    # A bucket that was full begins anew, behind those that were begun in the meantime.
    assert list(groups) == [(0, 3, 6, 9), (1, 4, 7, 10), (2, 5, 8)]
    groups = GroupBatchDataset(ordered(text_dataset(10)), 3, lambda sample: (sample == 1, None), batch)
    assert list(groups) == [(0, 2, 3), (4, 5, 6), (7, 8, 9), (1,)]
    groups = GroupBatchDataset(ordered(text_dataset(11)), 3, lambda sample: (sample == 1, None), batch)
    assert list(groups) == [(0, 2, 3), (4, 5, 6), (7, 8, 9), (1,), (10,)]


def test_what_is_left_may_be_dropped(text_dataset: MakeDataset) -> None:
    groups = GroupBatchDataset(ordered(text_dataset(11)), 3, by_rest, batch, drop_last=True)
    stream = Stream.of(groups)
    assert list(stream) == [(0, 3, 6), (1, 4, 7), (2, 5, 8)]
    # The next pass begins with empty buckets.
    assert list(stream) == [(0, 3, 6), (1, 4, 7), (2, 5, 8)]


def test_each_key_with_a_size_of_its_own(text_dataset: MakeDataset) -> None:
    groups = GroupBatchDataset(ordered(text_dataset(12)), None, lambda sample: (sample % 3, 1 + sample % 3), batch)
    assert list(groups) == [(0,), (3,), (1, 4), (6,), (2, 5, 8), (9,), (7, 10), (11,)]


@pytest.mark.parametrize("said", [3, (3, 4, 5), None, ([0], None), (0, 0), (0, float("nan")), (0, "4")], ids=str)
def test_what_is_no_key_and_size_ends_at_the_first_sample(text_dataset: MakeDataset, said: Any) -> None:
    groups = GroupBatchDataset(ordered(text_dataset(8)), 2, lambda sample: said, batch)
    with pytest.raises(FatalSampleError, match=r"ConfigError.*returned .*: expected a pair"):
        list(groups)


@pytest.mark.parametrize(
    ("fixed", "size", "message"),
    [(2, 2, "both are set"), (None, None, "neither is set")],
)
def test_exactly_one_batch_size(text_dataset: MakeDataset, fixed: Any, size: Any, message: str) -> None:
    groups = GroupBatchDataset(ordered(text_dataset(8)), fixed, lambda sample: (0, size), batch)
    with pytest.raises(FatalSampleError, match=f"ConfigError.*exactly one of them must be None, but {message}"):
        list(groups)


def test_a_key_has_one_size(text_dataset: MakeDataset) -> None:
    groups = GroupBatchDataset(ordered(text_dataset(8)), None, lambda sample: ("all", 4 + sample), batch)
    with pytest.raises(FatalSampleError, match="the batch size 5 for 'all', but 4 before"):
        list(groups)


@pytest.mark.parametrize("error", [SkipSample, ValueError])
def test_a_criterion_that_refuses_drops_its_sample_alone(text_dataset: MakeDataset, error: type[Exception]) -> None:
    """W-14: in the original such a sample lands in the bucket of the sample before it."""

    def criterion(sample: int) -> tuple[int, None]:
        if sample in (1, 4, 5):
            raise error("not this one")
        return sample % 2, None

    stream = Stream.of(GroupBatchDataset(ordered(text_dataset(12)), 3, criterion, batch))
    assert list(stream) == [(0, 2, 6), (3, 7, 9), (8, 10), (11,)]
    [dropped] = stream.stats()["dropped"].values()
    assert dropped == {f"batch_group_criterion: {error.__name__}": 3}


def test_a_batcher_that_refuses_drops_its_group(text_dataset: MakeDataset) -> None:
    def refusing(samples: list[int]) -> Any:
        if 1 in samples:
            raise SkipSample
        return tuple(samples)

    stream = Stream.of(GroupBatchDataset(ordered(text_dataset(8)), 2, by_rest, refusing))
    assert list(stream) == [(0, 3), (2, 5), (6,), (7,)]
    assert stream.stats()["dropped_total"] == 1


def test_criteria_may_draw_numbers(text_dataset: MakeDataset) -> None:
    """The bucket is asked for again when held samples are read again: it must be the same one."""

    def by_chance(sample: Any) -> tuple[int, None]:
        return int(current_draw().rng.integers(4)), None

    path = text_dataset(31)
    items = require_exact_states(lambda: GroupBatchDataset(mixed(path, lanes=2), 3, by_chance, rolled), 30, every=2)
    assert sorted(flat(item[0] for item in items[: items.index(None)])) == list(range(31))


class ByLength(TaskEncoder):
    """Batches texts of similar length."""

    def batch_group_criterion(self, sample: Any) -> tuple[int, None]:
        return len(sample.text) // 10, None

    def encode_batch(self, batch: Any) -> Any:
        return [len(text) // 10 for text in batch.text], batch.__restore_key__


def test_the_task_encoders_criterion(text_dataset: MakeDataset) -> None:
    dataset = train_on(text_dataset(60), batch_size=4, lanes=2, task_encoder=ByLength(), worker_config=config())
    stream = Stream.of(dataset)
    for _ in range(20):
        lengths, _ = next(stream)
        assert len(lengths) == 4
        assert len(set(lengths)) == 1
