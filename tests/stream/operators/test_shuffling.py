"""The shuffle buffer: as arithmetic where positions are enough, in windows of a lane elsewhere."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from small_graphs import number, ordered, pairs, take
from stream_hosts import MakeDataset, train_on

from energon_grain import (
    ConcatDataset,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    SavableDataset,
    ShuffleBufferDataset,
    Stream,
)


def packs(dataset: SavableDataset, packer: Any = tuple) -> SavableDataset:
    return PackingDataset(dataset, 4, pairs, packer)


@pytest.mark.parametrize("size", [2, 7, 24, 100])
@pytest.mark.parametrize("lanes", [1, 4])
def test_windows_of_positions_are_mixed(text_dataset: MakeDataset, size: int, lanes: int) -> None:
    stream = Stream.of(ShuffleBufferDataset(ordered(text_dataset(53), lanes=lanes), size))
    assert stream.spec.program is None
    found = list(stream)
    for first in range(0, 53, size):
        assert sorted(found[first : first + size]) == list(range(first, min(first + size, 53)))
    assert found != list(range(53))


def test_each_pass_has_each_sample_once_in_an_order_of_its_own(text_dataset: MakeDataset) -> None:
    train = train_on(text_dataset(53), batch_size=None, shuffle_over_epochs_multiplier=None, repeat=False, lanes=4)
    stream = Stream.of(ShuffleBufferDataset(MapDataset(train, number), 10))
    found = [list(stream) for _ in range(3)]
    assert all(sorted(each) == list(range(53)) for each in found)
    assert found[0] != found[1] != found[2]


def test_an_endless_dataset_is_mixed_over_the_ends_of_passes(text_dataset: MakeDataset) -> None:
    found = take(Stream.of(ShuffleBufferDataset(RepeatDataset(ordered(text_dataset(7))), 10)), 70)
    assert Counter(found) == dict.fromkeys(range(7), 10)
    for first in range(0, 70, 10):
        assert Counter(found[first : first + 10]) == Counter(at % 7 for at in range(first, first + 10))


def test_concatenations_are_mixed_across_their_parts(text_dataset: MakeDataset) -> None:
    concat = ConcatDataset(ordered(text_dataset(7)), MapDataset(ordered(text_dataset(7)), lambda sample: 100 + sample))
    found = list(ShuffleBufferDataset(concat, 14))
    assert sorted(found) == [*range(7), *range(100, 107)]
    assert max(found[:7]) >= 100


def test_a_size_of_one_changes_nothing(text_dataset: MakeDataset) -> None:
    assert list(ShuffleBufferDataset(ordered(text_dataset(24)), 1)) == list(range(24))
    assert list(ShuffleBufferDataset(packs(ordered(text_dataset(4))), 1)) == [(0, 1), (2, 3)]


def test_two_shuffles_are_not_one(text_dataset: MakeDataset) -> None:
    """Equal keys would make the second undo the first wherever a permutation is its own inverse."""
    for dataset in (ordered(text_dataset(53)), packs(ordered(text_dataset(53)))):
        once = list(ShuffleBufferDataset(dataset, 2))
        twice = list(ShuffleBufferDataset(ShuffleBufferDataset(dataset, 2), 2))
        assert twice != list(dataset)
        assert twice != once


def test_packs_are_mixed_in_windows_of_each_lane(text_dataset: MakeDataset) -> None:
    path = text_dataset(53)
    plain = list(packs(ordered(path, lanes=2)))
    found = list(ShuffleBufferDataset(packs(ordered(path, lanes=2)), 8))
    assert sorted(found) == sorted(plain)
    assert found != plain
    for lane in (0, 1):
        before, behind = plain[lane::2], found[lane::2]
        for first in range(0, len(before) - 4, 4):
            assert sorted(before[first : first + 4]) == sorted(behind[first : first + 4])
