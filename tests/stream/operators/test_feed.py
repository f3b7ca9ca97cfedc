"""Feeds: which positions each lane gets, and that reading ahead changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from small_graphs import in_order, mixed, number, ordered, shuffled, take
from stream_hosts import MakeDataset

from energon_grain import BatchDataset, BlendDataset, FilterDataset, MapDataset, RepeatDataset, SavableDataset, Stream


def as_often(sample: int) -> Iterator[int]:
    for _ in range(sample % 3):
        yield sample


@pytest.mark.parametrize("lanes", [1, 3, 8])
@pytest.mark.parametrize("n", [2, 7, 24, 53])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_lanes_share_the_positions_of_a_pass(text_dataset: MakeDataset, lanes: int, n: int, size: int) -> None:
    """In stripes of a batch's size where batches are formed above, else one by one."""
    leaf = MapDataset(in_order(text_dataset(n), lanes=lanes), as_often if size == 1 else number)
    graph: SavableDataset = leaf if size == 1 else BatchDataset(BatchDataset(leaf, size, tuple), 2, tuple)
    program = Stream.of(graph).spec.program
    assert program is not None
    [feed] = program.feeds
    assert feed.finite
    assert feed.items() == n
    for pass_number in (0, 2):
        positions: list[int] = []
        for lane in range(lanes):
            rounds = feed.rounds(lane, pass_number)
            own = feed.in_stream(lane, pass_number, np.arange(rounds)).tolist()
            assert own == sorted(own)
            assert all((position - pass_number * n) // size % lanes == lane for position in own)
            positions += own
        assert sorted(positions) == list(range(pass_number * n, pass_number * n + n))


def test_endless_lanes_take_turns(text_dataset: MakeDataset) -> None:
    program = Stream.of(MapDataset(RepeatDataset(in_order(text_dataset(7), lanes=3)), lambda s: s)).spec.program
    assert program is None
    leaf = MapDataset(RepeatDataset(ordered(text_dataset(7), lanes=3)), as_often)
    program = Stream.of(leaf).spec.program
    assert program is not None
    [feed] = program.feeds
    assert not feed.finite
    assert feed.in_stream(2, 5, np.arange(4)).tolist() == [2, 5, 8, 11]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_lanes_that_advance_unevenly(text_dataset: MakeDataset, num_workers: int) -> None:
    """One lane drops nearly all of its samples, and one child of a blend makes many of each."""

    def uneven(value: int) -> Iterator[tuple[int, int]]:
        for part in range(0 if value % 4 else 1 + 9 * (value % 8 == 0)):
            yield value, part

    def make() -> SavableDataset:
        leaf = mixed(text_dataset(53), lanes=4)
        mostly = FilterDataset(ordered(text_dataset(97), lanes=4), lambda sample: sample < 5)
        return BatchDataset(BlendDataset((MapDataset(leaf, uneven), 5), (mostly, 1)), 7, tuple)

    expected = take(Stream.of(make()), 60)
    with Stream.of(make(), num_workers=num_workers) as stream:
        assert take(stream, 60) == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_is_read_ahead_is_bounded(text_dataset: MakeDataset, num_workers: int) -> None:
    read: list[Any] = []

    def look(sample: Any) -> int:
        read.append(sample.__key__)
        return number(sample)

    leaf = RepeatDataset(MapDataset(shuffled(text_dataset(53), lanes=4), look))
    with Stream.of(BatchDataset(MapDataset(leaf, as_often), 2, tuple), num_workers=num_workers) as stream:
        take(stream, 3)
        assert len(read) < 20_000
