"""Grouping in lanes: full buckets, what is left at the end, criteria that refuse or contradict themselves."""

from __future__ import annotations

from typing import Any

import pytest
from small_graphs import flat, mixed, ordered, require_exact_states, rolled
from stream_hosts import MakeDataset, config, train_on

from energon_grain import (
    FatalSampleError,
    GroupBatchDataset,
    SkipSample,
    Stream,
    TaskEncoder,
    current_draw,
)


def by_rest(sample: int) -> tuple[int, None]:
    return sample % 3, None


def batch(samples: list[Any]) -> tuple[Any, ...]:
    return tuple(samples)


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
    [(2, 2, "both is given"), (None, None, "neither is given")],
)
def test_exactly_one_batch_size(text_dataset: MakeDataset, fixed: Any, size: Any, message: str) -> None:
    groups = GroupBatchDataset(ordered(text_dataset(8)), fixed, lambda sample: (0, size), batch)
    with pytest.raises(FatalSampleError, match=f"ConfigError.*exactly one of them must be None, {message}"):
        list(groups)


def test_a_key_has_one_size(text_dataset: MakeDataset) -> None:
    groups = GroupBatchDataset(ordered(text_dataset(8)), None, lambda sample: ("all", 4 + sample), batch)
    with pytest.raises(FatalSampleError, match="the batch size 5 for 'all', after 4 before"):
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
