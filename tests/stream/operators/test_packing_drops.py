"""What packing drops, and which selections it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from small_graphs import in_order, number, ordered, threes
from stream_hosts import MakeDataset, config

from energon_grain import (
    ConfigError,
    EmptyDatasetError,
    FatalSampleError,
    MapDataset,
    PackingDataset,
    Packs,
    RepeatDataset,
    SkipSample,
    Stream,
)

Numbers = list[int]


def test_samples_that_are_left_out_are_dropped_and_counted(text_dataset: MakeDataset) -> None:
    def select(samples: Numbers) -> list[Numbers]:
        return [[], [sample for sample in samples if sample % 2], []]

    stream = Stream.of(PackingDataset(ordered(text_dataset(12)), 4, select, tuple))
    assert list(stream) == [(1, 3), (5, 7), (9, 11)]
    assert list(stream.stats()["dropped"].values()) == [{"select_samples_to_pack: SkipSample": 6}]


@pytest.mark.parametrize("nothing", [[], [[]], [[], []]])
def test_a_selection_of_nothing_drops_the_buffer(text_dataset: MakeDataset, nothing: Any) -> None:
    def select(samples: Numbers) -> list[Numbers]:
        return [samples] if 4 in samples else nothing

    stream = Stream.of(PackingDataset(ordered(text_dataset(12)), 4, select, tuple))
    assert list(stream) == [(4, 5, 6, 7)]
    assert stream.stats()["dropped_total"] == 8


def test_a_packer_that_selects_nothing_ends_clearly(text_dataset: MakeDataset) -> None:
    def select(samples: Numbers) -> list[Numbers]:
        return []

    finite = ordered(text_dataset(12))
    with pytest.raises(EmptyDatasetError, match="without a single item"):
        list(PackingDataset(finite, 4, select, tuple))
    with pytest.raises(FatalSampleError, match="1000 samples without one item"):
        next(iter(PackingDataset(RepeatDataset(finite), 4, select, tuple)))


@pytest.mark.parametrize(
    "select",
    [
        lambda samples: [[99]],
        lambda samples: [samples, samples[:1]],
        lambda samples: [[*samples, samples[0]]],
        lambda samples: samples,
        lambda samples: None,
    ],
)
def test_groups_are_made_of_the_samples_themselves(text_dataset: MakeDataset, select: Callable[[Numbers], Any]) -> None:
    with pytest.raises(ConfigError, match=r"select_samples_to_pack .*of its argument"):
        list(PackingDataset(ordered(text_dataset(12)), 4, select, tuple))


def test_copies_are_not_the_samples(text_dataset: MakeDataset) -> None:
    def select(samples: list[list[int]]) -> list[list[list[int]]]:
        return [[list(sample) for sample in samples]]

    lists = MapDataset(in_order(text_dataset(12)), lambda sample: [number(sample)])
    with pytest.raises(ConfigError, match=r"select_samples_to_pack .*of its argument"):
        list(PackingDataset(lists, 4, select, tuple))


def test_samples_of_a_rest_are_checked_too(text_dataset: MakeDataset) -> None:
    for rest in ([99], [0]):
        packing = PackingDataset(ordered(text_dataset(7)), 3, lambda samples, rest=rest: Packs([samples], rest), tuple)
        with pytest.raises(ConfigError, match=r"select_samples_to_pack .*of its argument"):
            list(packing)


def test_a_selection_that_fails_drops_its_buffer_and_is_one_failure(text_dataset: MakeDataset) -> None:
    told: list[tuple[type[Exception], Any]] = []

    def tell(error: Exception, sample: Any, sources: Any = None) -> None:
        told.append((type(error), sample))

    def select(samples: Numbers) -> list[Numbers]:
        if 5 in samples:
            raise ValueError("no packs of these")
        return [samples]

    packing = PackingDataset(ordered(text_dataset(12)), 4, select, tuple, pre_packer_failure_tolerance=2)
    stream = Stream.of(packing, worker_config=config(global_error_handler=tell))
    assert list(stream) == [(0, 1, 2, 3), (8, 9, 10, 11)]
    assert told == [(ValueError, 4)]
    assert stream.stats()["dropped_total"] == 4


def test_failing_packs_are_dropped(text_dataset: MakeDataset) -> None:
    def refusing(samples: Numbers) -> tuple[int, ...]:
        if 3 in samples:
            raise ValueError("not 3")
        if 6 in samples:
            raise SkipSample
        return tuple(samples)

    stream = Stream.of(PackingDataset(ordered(text_dataset(12)), 6, threes, refusing))
    assert list(stream) == [(0, 1, 2), (9, 10, 11)]
    [dropped] = stream.stats()["dropped"].values()
    assert dropped == {"pack_selected_samples: SkipSample": 1, "pack_selected_samples: ValueError": 1}
    endless = PackingDataset(
        RepeatDataset(ordered(text_dataset(12))), 6, threes, lambda samples: 1 // 0, final_packer_failure_tolerance=7
    )
    with pytest.raises(FatalSampleError, match="pack_selected_samples failed 7 times in a row"):
        next(iter(endless))


def test_a_failing_encoder_drops_its_sample_alone(text_dataset: MakeDataset) -> None:
    def encode(sample: int) -> int:
        if sample in (1, 3, 4, 5):
            raise SkipSample
        return 100 + sample

    stream = Stream.of(PackingDataset(ordered(text_dataset(9)), 6, threes, tuple, sample_encoder=encode))
    assert list(stream) == [(100, 102), (106, 107, 108)]
    assert stream.stats()["dropped_total"] == 4
