"""Repeating, limiting and cutting into epochs what lanes make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from small_graphs import flat, mixed, on_hosts, ordered, pairs, roll, take
from stream_hosts import MakeDataset, config, train_on

from energon_grain import (
    BatchDataset,
    BlendDataset,
    ConfigError,
    EpochizeDataset,
    FilterDataset,
    LimitDataset,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    SavableDataset,
    Stream,
)


def as_often(sample: int) -> Iterator[Any]:
    for part in range(sample % 3):
        yield sample, part, roll()


def packs(dataset: SavableDataset, packer: Any = tuple) -> SavableDataset:
    return PackingDataset(dataset, 6, pairs, packer)


def passes_of(dataset: SavableDataset, passes: int) -> list[list[Any]]:
    stream = Stream.of(dataset)
    return [list(stream) for _ in range(passes)]


def test_packs_are_repeated(text_dataset: MakeDataset) -> None:
    twice = RepeatDataset(packs(mixed(text_dataset(13))), repeats=2)
    for found in passes_of(twice, 2):
        assert Counter(flat(found)) == dict.fromkeys(range(13), 2)
    # Each pass over the data has an order of its own.
    [both] = passes_of(RepeatDataset(packs(mixed(text_dataset(13), lanes=1)), repeats=2), 1)
    assert both[:7] != both[7:]
    # Repeated for ever, packs go over the ends of passes.
    endless = take(Stream.of(RepeatDataset(packs(ordered(text_dataset(5))))), 5)
    assert endless == [(0, 1), (2, 3), (4, 0), (1, 2), (3, 4)]


def test_repetitions_of_unknown_length_are_whole(text_dataset: MakeDataset) -> None:
    with pytest.raises(ConfigError, match="give a whole number"):
        Stream.of(RepeatDataset(packs(ordered(text_dataset(5))), repeats=1.5))
    with pytest.raises(ConfigError, match="what is endless cannot be repeated a number of times"):
        Stream.of(RepeatDataset(packs(RepeatDataset(ordered(text_dataset(5)))), repeats=2))


def test_fractions_go_on_where_the_last_pass_ended(text_dataset: MakeDataset) -> None:
    """W-03: in the original 0.7 repetitions of 55 samples give 38, 17, 38, 17 … of them."""
    found = passes_of(packs(RepeatDataset(mixed(text_dataset(55)), repeats=0.7)), 10)
    assert {sum(1 for _ in flat(each)) for each in found} <= {38, 39}
    assert Counter(flat(found)) == dict.fromkeys(range(55), 7)


def test_a_limit_begins_each_pass_at_its_start(text_dataset: MakeDataset) -> None:
    assert passes_of(LimitDataset(packs(ordered(text_dataset(13))), 3), 2) == 2 * [[(0, 1), (2, 3), (4, 5)]]
    assert passes_of(packs(LimitDataset(ordered(text_dataset(13)), 3)), 2) == 2 * [[(0, 1), (2,)]]
    assert passes_of(packs(LimitDataset(packs(ordered(text_dataset(13))), 3)), 1) == [[((0, 1), (2, 3)), ((4, 5),)]]
    assert passes_of(LimitDataset(packs(ordered(text_dataset(3))), 9), 2) == 2 * [[(0, 1), (2,)]]


def test_a_limit_over_a_filter_counts_what_is_left(text_dataset: MakeDataset) -> None:
    odd = FilterDataset(ordered(text_dataset(24), lanes=4), lambda sample: sample % 2 == 1)
    # Two of lane 1 and one of lane 3, in which the odd ones are; lanes 0 and 2 have none.
    assert sorted(flat(packs(LimitDataset(odd, 6)))) == [1, 3, 5]


@pytest.mark.parametrize("lanes", [1, 3])
def test_epochs_of_packs_go_on(text_dataset: MakeDataset, lanes: int) -> None:
    """W-13: in the original the epochs behind the end of a finite dataset are empty."""
    endless = take(Stream.of(RepeatDataset(packs(ordered(text_dataset(13), lanes=lanes)))), 24)
    found = passes_of(EpochizeDataset(packs(ordered(text_dataset(13), lanes=lanes)), 6), 4)
    assert sum(found, []) == endless
    assert [len(each) for each in found] == [6, 6, 6, 6]


def test_epochs_in_passes_over_the_data(text_dataset: MakeDataset) -> None:
    def epochs(num_epochs: Any, n: int) -> list[int]:
        dataset = EpochizeDataset(BatchDataset(mixed(text_dataset(24)), 4, tuple), num_epochs=num_epochs)
        return [len(each) for each in passes_of(dataset, n)]

    assert epochs(1, 2) == [6, 6]
    assert epochs(0.5, 3) == [3, 3, 3]
    assert epochs(2.5, 2) == [15, 15]
    assert len(EpochizeDataset(BatchDataset(mixed(text_dataset(24)), 4, tuple), num_epochs=0.5)) == 3


def test_epochs_inside_the_graph(text_dataset: MakeDataset) -> None:
    """They count items over all lanes, and go on where they were cut."""
    found = passes_of(packs(EpochizeDataset(ordered(text_dataset(13), lanes=4), 8)), 3)
    assert [sorted(flat(each)) for each in found] == [
        list(range(8)),
        [0, 1, 2, *range(8, 13)],
        list(range(3, 11)),
    ]
    generated = EpochizeDataset(MapDataset(mixed(text_dataset(13)), as_often), 8)
    for each in passes_of(packs(generated), 4):
        assert sum(map(len, each)) == 8
    half = EpochizeDataset(packs(mixed(text_dataset(24))), num_epochs=0.5)
    for each in passes_of(packs(half), 2):
        assert sum(map(len, each)) == 12  # items are estimated: a packer cannot make more than one of each sample


@pytest.mark.parametrize("batch_size", [None, 2])
def test_mixtures_are_cut_into_epochs(text_dataset: MakeDataset, batch_size: int | None) -> None:
    """As the original's documentation shows it: epochs after mixing."""

    def part(n: int) -> SavableDataset:
        return train_on(text_dataset(n), batch_size=batch_size, worker_config=config())

    mixture = BlendDataset((part(24), 3), (part(31), 1))
    assert [len(each) for each in passes_of(EpochizeDataset(mixture, length=10), 3)] == [10, 10, 10]
    assert len(EpochizeDataset(mixture, num_epochs=1)) == len(list(EpochizeDataset(mixture, num_epochs=1)))


def test_cuts_of_cuts(text_dataset: MakeDataset) -> None:
    packed = packs(ordered(text_dataset(24)))
    assert [len(each) for each in passes_of(LimitDataset(LimitDataset(packed, 5), 3), 2)] == [3, 3]
    assert [len(each) for each in passes_of(LimitDataset(LimitDataset(packed, 3), 5), 2)] == [3, 3]
    with pytest.raises(ConfigError, match="cut one stream"):
        Stream.of(EpochizeDataset(EpochizeDataset(packed, 5), 3))


def test_limits_count_items_of_all_hosts_inside_the_graph(text_dataset: MakeDataset) -> None:
    path = text_dataset(53)

    def make(worker_config: Any) -> SavableDataset:
        limited = LimitDataset(packs(mixed(path, lanes=4, worker_config=worker_config)), 8)
        return BatchDataset(MapDataset(limited, lambda item: item), 1, lambda items: {"pack": items[0]})

    [single] = on_hosts(make, 1, 9)
    several = on_hosts(make, 2, 5)
    assert single[8] is None
    assert all(host[4] is None for host in several)
    assert [step["pack"] for at in range(4) for step in (several[0][at], several[1][at])] == [
        step["pack"] for step in single[:8]
    ]
