"""Generators, filters, and maps over what lanes make."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
from small_graphs import mixed, ordered, require_exact_states, roll, take, with_roll
from stream_hosts import MakeDataset, Tolerant

from energon_grain import (
    BlendDataset,
    FatalSampleError,
    FilterDataset,
    MapDataset,
    SkipSample,
    Stream,
    stateless,
)


def as_often(sample: int) -> Iterator[tuple[int, int, int]]:
    """Each sample as often as its number says, modulo 4."""
    for part in range(sample % 4):
        yield sample, part, roll()


def test_a_generator_gives_any_number(text_dataset: MakeDataset) -> None:
    items = list(MapDataset(ordered(text_dataset(7)), as_often))
    assert [item[:2] for item in items] == [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (5, 0), (6, 0), (6, 1)]
    assert len({item[2] for item in items}) == len(items)


def several(value: Any) -> Iterator[Any]:
    yield value
    yield value


class Several:
    def __call__(self, value: Any) -> Iterator[Any]:
        yield from several(value)


@functools.wraps(several)
def wrapped(value: Any) -> Any:
    return several(value)


@pytest.mark.parametrize("function", [several, Several(), functools.partial(several), wrapped, stateless(several)])
def test_what_counts_as_a_generator(text_dataset: MakeDataset, function: Any) -> None:
    assert list(MapDataset(ordered(text_dataset(3)), function)) == [0, 0, 1, 1, 2, 2]


def test_generators_of_generators(text_dataset: MakeDataset) -> None:
    def twice(value: Any) -> Iterator[Any]:
        yield value, "a"
        yield value, "b"

    items = list(MapDataset(MapDataset(ordered(text_dataset(4)), as_often), twice))
    assert [(value[:2], which) for value, which in items[:4]] == [
        ((1, 0), "a"),
        ((1, 0), "b"),
        ((2, 0), "a"),
        ((2, 0), "b"),
    ]
    assert len(items) == 12


@pytest.mark.parametrize("error", [ValueError, SkipSample])
def test_what_a_failing_generator_gave_before_stays(text_dataset: MakeDataset, error: type[Exception]) -> None:
    def breaking(sample: int) -> Iterator[int]:
        yield sample
        if sample % 2:
            raise error("no more")
        yield -sample

    stream = Stream.of(MapDataset(ordered(text_dataset(4)), breaking))
    assert list(stream) == [0, 0, 1, 2, -2, 3]


def test_failing_generators_have_a_budget(text_dataset: MakeDataset) -> None:
    def broken(sample: int) -> Iterator[int]:
        raise ValueError("broken")
        yield sample

    with pytest.raises(FatalSampleError, match="map failed 5 times in a row"):
        list(MapDataset(ordered(text_dataset(24)), broken, failure_tolerance=5))


class Fails(Tolerant):
    def encode_sample(self, sample: Any) -> Any:
        if sample[1] == 1:
            raise ValueError("not the second")
        return sample


def test_states_around_failures(text_dataset: MakeDataset) -> None:
    def breaking(sample: int) -> Iterator[Any]:
        for part in range(3):
            if part == 2 and sample % 2:
                raise SkipSample
            yield sample, part

    path, fails = text_dataset(13), Fails()
    items = require_exact_states(
        lambda: MapDataset(
            MapDataset(mixed(path, lanes=2), breaking, task_encoder=fails), fails.encode_sample, task_encoder=fails
        ),
        30,
        every=2,
    )
    assert sorted(item for item in items[: items.index(None)]) == sorted(
        [(sample, 0) for sample in range(13)] + [(sample, 2) for sample in range(0, 13, 2)]
    )


def odd(sample: int) -> bool:
    return sample % 2 == 1


def test_a_filter_drops_and_counts(text_dataset: MakeDataset) -> None:
    for dataset in (
        ordered(text_dataset(11)),
        MapDataset(ordered(text_dataset(11)), lambda sample: iter([sample]).__next__()),
    ):
        stream = Stream.of(FilterDataset(dataset, odd))
        assert list(stream) == [1, 3, 5, 7, 9]
        assert stream.stats()["samples"] == 5


def test_shares_above_a_filter_are_exact_in_what_is_left(text_dataset: MakeDataset) -> None:
    blend = BlendDataset(
        (FilterDataset(mixed(text_dataset(53)), lambda sample: sample % 5 == 0), 3),
        (MapDataset(mixed(text_dataset(53)), lambda sample: -1 - sample), 1),
    )
    items = take(Stream.of(blend), 400)
    assert sum(item >= 0 for item in items) == 300
    for until in range(400):
        assert abs(sum(item >= 0 for item in items[:until]) - 0.75 * until) <= 6


def test_maps_over_lanes_draw_different_numbers(text_dataset: MakeDataset) -> None:
    twice = MapDataset(MapDataset(MapDataset(ordered(text_dataset(9)), as_often), with_roll), with_roll)
    items = list(twice)
    assert len({random for item in items for random in (item[0][1], item[1], item[0][0][2])}) == 3 * len(items)
