"""Generators, filters, functions of streams and the shuffle buffer over what lanes make."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_graphs import mixed, number, ordered, pairs, require_exact_states, roll, take, with_roll
from stream_hosts import MakeDataset, Tolerant, train_on

from energon_grain import (
    BlendDataset,
    ConcatDataset,
    FatalSampleError,
    FilterDataset,
    IterMapDataset,
    MapDataset,
    PackingDataset,
    ReadError,
    RepeatDataset,
    SavableDataset,
    ShuffleBufferDataset,
    SkipSample,
    Stream,
    stateless,
)
from energon_grain.testing import make_text_dataset


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


def sums(samples: Iterator[int]) -> Iterator[tuple[int, int, int]]:
    total = 0
    for sample in samples:
        total += sample
        yield sample, total, roll()


def in_pairs(samples: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    for first in samples:
        for second in samples:
            yield first, second
            break


def test_the_function_sees_runs_of_a_lane(text_dataset: MakeDataset) -> None:
    def lists(samples: Iterator[int]) -> Iterable[list[int]]:
        return [list(samples)]

    runs = IterMapDataset(ordered(text_dataset(11)), lists, inputs_per_call=4)
    assert list(runs) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    runs = IterMapDataset(ordered(text_dataset(10), lanes=2), lists, inputs_per_call=4)
    assert list(runs) == [[0, 2, 4, 6], [1, 3, 5, 7], [8], [9]]


def test_the_function_is_called_for_inputs_only(text_dataset: MakeDataset) -> None:
    """A run that would be empty is none, at the end of a lane and in lanes that have nothing at all."""

    def total(samples: Iterator[int]) -> Iterable[int]:
        return [sum(samples)]

    assert list(IterMapDataset(ordered(text_dataset(9)), total, inputs_per_call=3)) == [3, 12, 21]
    assert list(IterMapDataset(ordered(text_dataset(3), lanes=8), total, inputs_per_call=3)) == [0, 1, 2]

    def from_the_first_on(samples: Iterator[int]) -> Iterator[int]:
        yield next(samples)
        yield from samples

    assert list(IterMapDataset(ordered(text_dataset(9)), from_the_first_on, inputs_per_call=3)) == list(range(9))


def test_what_a_run_does_not_take_is_the_next_ones(text_dataset: MakeDataset) -> None:
    def only_one(samples: Iterator[int]) -> Iterator[int]:
        yield next(samples)

    assert list(IterMapDataset(ordered(text_dataset(7)), only_one, inputs_per_call=4)) == list(range(7))


@pytest.mark.parametrize("error", [SkipSample, ValueError])
def test_a_function_that_fails_goes_on_with_the_next_run(text_dataset: MakeDataset, error: type[Exception]) -> None:
    def breaking(samples: Iterator[int]) -> Iterator[int]:
        for sample in samples:
            if sample == 4:
                raise error("not 4")
            yield sample

    def make() -> SavableDataset:
        return IterMapDataset(ordered(text_dataset(9)), breaking, inputs_per_call=3)

    stream = Stream.of(make())
    assert list(stream) == [0, 1, 2, 3, 5, 6, 7, 8]
    assert stream.stats()["dropped_total"] == 1
    require_exact_states(make, 14)


def test_functions_that_always_fail_have_a_budget(text_dataset: MakeDataset) -> None:
    def broken(samples: Iterator[int]) -> Iterator[int]:
        yield 1 // next(samples) * 0 + 1 // 0

    with pytest.raises(FatalSampleError, match="iter_map failed 100 times in a row"):
        next(iter(IterMapDataset(RepeatDataset(ordered(text_dataset(9))), broken, inputs_per_call=3)))


def test_lengths_are_what_the_program_says(text_dataset: MakeDataset) -> None:
    halves = IterMapDataset(ordered(text_dataset(24)), in_pairs, len_map_fn=lambda length: length // 2)
    assert len(halves) == len(list(halves)) == 12
    assert len(IterMapDataset(ordered(text_dataset(24)), sums)) == 24


def test_drops_are_counted_once_across_a_restore(text_dataset: MakeDataset) -> None:
    def make() -> Stream:
        odd = FilterDataset(RepeatDataset(ordered(text_dataset(9))), lambda sample: sample % 2 == 1)
        return Stream.of(IterMapDataset(odd, sums, inputs_per_call=10))

    whole, first, second = make(), make(), make()
    take(whole, 30)
    take(first, 15)
    second.restore(first.cursor())
    take(second, 15)
    dropped = [stream.stats()["dropped_total"] for stream in (whole, first, second)]
    assert dropped[0] == dropped[1] + dropped[2]


def test_a_disk_that_fails_while_a_state_is_restored_is_not_called_a_failure_of_the_function(tmp_path: Path) -> None:
    path = make_text_dataset(tmp_path / "data", n=9, shards=1)
    shard, away = path / "shard_000.tar", tmp_path / "away.tar"
    stream, other = (Stream.of(IterMapDataset(ordered(path), sums)) for _ in range(2))
    take(stream, 3)
    other.restore(stream.cursor())
    shard.rename(away)
    with pytest.raises(ReadError, match="restore it"):
        next(other)
    away.rename(shard)
    assert next(other) == next(stream)
