"""Every state of a small graph is continued exactly, with a graph for each kind of node and what it may stand on.

Random graphs, on several hosts, are those of `test_graph_machine.py`; these say which kind it is that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_graphs import flat, mixed, pairs, require_exact_states, roll, rolled, threes, with_roll
from stream_hosts import MakeDataset, Tolerant

from energon_grain import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    EpochizeDataset,
    FilterDataset,
    GroupBatchDataset,
    IterMapDataset,
    LimitDataset,
    MapDataset,
    MixBatchDataset,
    PackingDataset,
    RepeatDataset,
    SavableDataset,
    ShuffleBufferDataset,
    SkipSample,
)


def leaf(path: Path, lanes: int = 2) -> SavableDataset:
    return mixed(path, lanes=lanes)


def endless(path: Path, lanes: int = 2) -> SavableDataset:
    return RepeatDataset(leaf(path, lanes))


def packs(dataset: SavableDataset, size: int = 6) -> SavableDataset:
    return PackingDataset(dataset, size, pairs, rolled)


def packed(select: Any, packer: Any, encoder: Any) -> Callable[..., SavableDataset]:
    return lambda path, _: PackingDataset(leaf(path), 7, select, packer, sample_encoder=encoder)


def as_often(sample: int) -> Iterator[tuple[int, int, int]]:
    for part in range(sample % 4):
        yield sample, part, roll()


def generated(dataset: SavableDataset) -> SavableDataset:
    return MapDataset(dataset, as_often)


def halves(values: list[Any]) -> Iterator[Any]:
    for part in (values[::2], values[1::2]):
        if part:
            yield tuple(part), roll()


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


def by_rest(sample: int) -> tuple[int, None]:
    return sample % 3, None


def odd(sample: int) -> bool:
    return sample % 2 == 1


def batches_of(batcher: Any) -> Callable[[SavableDataset], SavableDataset]:
    return lambda below: BatchDataset(BatchDataset(below, 3, batcher), 2, rolled)


class Fails(Tolerant):
    """Whose postencode refuses some samples."""

    def postencode_sample(self, sample: Any) -> Any:
        if sample % 5 == 1:
            raise SkipSample
        return sample, int(self.rng.integers(1 << 30))


def some(samples: list[Any]) -> list[list[Any]]:
    return [samples[1:3], [], samples[4:5]]


def blended(path: Path, other: Path, **options: Any) -> SavableDataset:
    return BlendDataset((packs(leaf(path)), 2), (generated(leaf(other)), 1), **options)


OVER_ONE: dict[str, Callable[[SavableDataset], SavableDataset]] = {
    "batches": batches_of(tuple),
    "batches that draw": batches_of(rolled),
    "several batches of one": batches_of(halves),
    "groups": lambda below: GroupBatchDataset(below, 4, by_rest, rolled),
    "whole groups": lambda below: GroupBatchDataset(below, 2, by_rest, rolled, drop_last=True),
    "a stream": lambda below: IterMapDataset(below, sums, inputs_per_call=4),
    "a stream, all at once": lambda below: IterMapDataset(below, sums, inputs_per_call=100),
    "a stream of pairs": lambda below: IterMapDataset(below, in_pairs, inputs_per_call=4),
    "a filter": lambda below: FilterDataset(below, odd),
    "batches of a filter": lambda below: BatchDataset(FilterDataset(below, odd), 3, tuple),
    "a filter of what is generated": lambda below: FilterDataset(
        MapDataset(generated(below), with_roll), lambda value: value[1] % 3 > 0
    ),
    "shuffled": lambda below: ShuffleBufferDataset(below, 9),
    "shuffled packs": lambda below: ShuffleBufferDataset(packs(below, 4), 9),
    "packs of streams of packs": lambda below: PackingDataset(
        IterMapDataset(MapDataset(packs(FilterDataset(below, odd)), str), iter, inputs_per_call=3),
        3,
        lambda items: [items],
        tuple,
    ),
}
OVER_SOME: dict[str, Callable[[Path, Path], SavableDataset]] = {
    "packs": packed(threes, tuple, None),
    "packs of what is encoded": packed(threes, rolled, with_roll),
    "packs of some": packed(some, rolled, Fails().postencode_sample),
    "several packs of one": packed(threes, halves, with_roll),
    "several packs of some": packed(some, halves, Fails().postencode_sample),
    "a blend": blended,
    "a blend per step": lambda path, other: blended(path, other, per_step=2),
    "a blend of blends": lambda path, other: BlendDataset(blended(path, other), FilterDataset(leaf(path), odd)),
    "packs of a blend": lambda path, other: packs(blended(path, other)),
    "a concatenation": lambda path, other: ConcatDataset(packs(leaf(path)), leaf(other)),
    "one of filters": lambda path, other: ConcatDataset(FilterDataset(leaf(path), odd), generated(leaf(other))),
    "packs of one": lambda path, other: packs(ConcatDataset(generated(leaf(path)), leaf(other))),
    "mixed batches": lambda path, other: MixBatchDataset(
        *((BatchDataset(leaf(path, 4), size, rolled), 1) for size in (2, 3)), batch_size=3, batch_mix_fn=rolled
    ),
    "packs, twice": lambda path, _: RepeatDataset(packs(leaf(path)), repeats=2),
    "packs for ever": lambda path, _: RepeatDataset(MapDataset(packs(leaf(path)), with_roll)),
    "packs of fractions": lambda path, _: packs(RepeatDataset(leaf(path), repeats=0.7)),
    "a limit of packs": lambda path, _: LimitDataset(MapDataset(packs(leaf(path)), with_roll), 5),
    "packs of a limit": lambda path, _: packs(LimitDataset(MapDataset(generated(leaf(path)), with_roll), 5)),
    "packs of epochs": lambda path, _: packs(EpochizeDataset(generated(leaf(path)), 5)),
    "packs of epochs of packs": lambda path, _: packs(EpochizeDataset(packs(leaf(path)), 5)),
    "packs of a limit of a blend": lambda path, _: packs(LimitDataset(BlendDataset(packs(leaf(path)), leaf(path)), 7)),
    "epochs, twice": lambda path, _: RepeatDataset(EpochizeDataset(packs(leaf(path)), 3), repeats=2),
    "epochs of batches": lambda path, _: EpochizeDataset(BatchDataset(packs(leaf(path)), 2, tuple), 3),
    "epochs of a part of a pass": lambda path, _: EpochizeDataset(packs(leaf(path)), num_epochs=0.4),
}


@pytest.mark.parametrize("name", OVER_ONE)
@pytest.mark.parametrize("below", [leaf, endless])
def test_over_one_dataset(text_dataset: MakeDataset, name: str, below: Any) -> None:
    path = text_dataset(13)
    items = require_exact_states(lambda: OVER_ONE[name](below(path)), 24, every=2)
    assert (None in items) is (below is leaf)


@pytest.mark.parametrize("name", OVER_SOME)
def test_over_packs_and_mixtures(text_dataset: MakeDataset, name: str) -> None:
    path, other = text_dataset(13), text_dataset(7)
    require_exact_states(lambda: OVER_SOME[name](path, other), 24, every=2)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_lanes_that_end_at_different_items(text_dataset: MakeDataset, lanes: int, batch_size: int) -> None:
    path = text_dataset(23)
    items = require_exact_states(lambda: BatchDataset(FilterDataset(leaf(path, lanes), odd), batch_size, tuple), 14)
    assert sorted(flat(items[: items.index(None)])) == list(range(1, 23, 2))
