"""Functions of streams, applied to each lane in runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_graphs import ordered, require_exact_states, roll, take
from stream_hosts import MakeDataset

from energon_grain import (
    FatalSampleError,
    FilterDataset,
    IterMapDataset,
    ReadError,
    RepeatDataset,
    SavableDataset,
    SkipSample,
    Stream,
)
from energon_grain.testing import make_text_dataset


def sums(samples: Iterator[int]) -> Iterator[tuple[int, int, int]]:
    total = 0
    for sample in samples:
        total += sample
        yield sample, total, roll()


def pairs(samples: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
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
    halves = IterMapDataset(ordered(text_dataset(24)), pairs, len_map_fn=lambda length: length // 2)
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
    with pytest.raises(ReadError, match="put it back"):
        next(other)
    away.rename(shard)
    assert next(other) == next(stream)
