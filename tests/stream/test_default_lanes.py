"""How many lanes there are where nobody says: 48, but fewer where a finite pass packs or groups few samples."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st
from small_graphs import mixed, rolled, shuffled, threes
from stream_fleets import Fleet
from stream_hosts import MakeDataset, config

from energon_grain import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    FilterDataset,
    GroupBatchDataset,
    IterMapDataset,
    LimitDataset,
    PackingDataset,
    RepeatDataset,
    SavableDataset,
    ShuffleBufferDataset,
    StateError,
    Stream,
    TaskEncoder,
    get_dataset_from_config,
    get_val_dataset,
)


class Tens(TaskEncoder):
    """Ten samples fill a pack."""

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 10] for at in range(0, len(samples), 10)]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        samples[0].text = str(len(samples))
        return samples[0]


class Fifths(TaskEncoder):
    """Five groups."""

    def batch_group_criterion(self, sample: Any) -> tuple[int, None]:
        return int(sample.__key__) % 5, None


def lanes_of(dataset: SavableDataset) -> int:
    lanes: int = Stream.of(dataset).cursor()["lanes"]
    return lanes


def packing(path: Any, size: int, *, worker_config: Any = None, **options: Any) -> SavableDataset:
    given: dict[str, Any] = {"lanes": None, "worker_config": worker_config or config(), **options}
    return PackingDataset(mixed(path, **given), size, threes, rolled)


@pytest.mark.parametrize("samples", [300, 50])
def test_small_validation_sets_are_packed_like_one_buffer(text_dataset: MakeDataset, samples: int) -> None:
    dataset = get_val_dataset(
        text_dataset(samples),
        split_part="train",
        batch_size=None,
        packing_buffer_size=100,
        task_encoder=Tens(),
        worker_config=config(),
    )
    assert [int(pack.text) for pack in dataset] == [10] * (samples // 10)


def test_small_validation_sets_are_grouped_like_one_lane(text_dataset: MakeDataset) -> None:
    path = text_dataset(300)

    def sizes(**options: Any) -> list[int]:
        dataset = get_val_dataset(
            path, split_part="train", batch_size=8, task_encoder=Fifths(), worker_config=config(), **options
        )
        return [len(batch.text) for batch in dataset]

    assert sizes() == sizes(lanes=1) == [8] * 35 + [4] * 5
    assert len(sizes(lanes=48)) > 200


@pytest.mark.parametrize(
    ("hosts", "buffers", "lanes"),
    [
        (1, 19, 1),
        (1, 39, 1),
        (1, 40, 2),
        (1, 200, 8),
        (2, 200, 8),
        (4, 200, 8),
        (8, 200, 8),
        (3, 200, 6),
        (16, 200, 16),
        (5, 200, 10),
        (7, 100, 7),
        (1, 666, 24),
        (1, 1000, 48),
        (1, 2000, 48),
        (5, 2000, 80),
    ],
)
def test_each_lane_fills_twenty_buffers(text_dataset: MakeDataset, hosts: int, buffers: int, lanes: int) -> None:
    share = config(0, hosts, any_host=lambda flag: flag)
    assert lanes_of(packing(text_dataset(2000), 2000 // buffers, worker_config=share)) == lanes


def test_the_fewest_buffers_decide(text_dataset: MakeDataset) -> None:
    small, large = text_dataset(100), text_dataset(2000)
    assert lanes_of(packing(large, 2)) == 48
    assert lanes_of(packing(small, 2)) == 2
    assert lanes_of(ConcatDataset(packing(small, 2), packing(large, 2))) == 2
    assert lanes_of(PackingDataset(packing(large, 2), 10, threes, tuple)) == 8
    # Nobody knows how many groups there are: eight, say, and eight samples each if the criterion says how many.
    assert lanes_of(GroupBatchDataset(mixed(large, lanes=None), 2, lambda sample: (0, None), tuple)) == 6
    assert lanes_of(GroupBatchDataset(mixed(large, lanes=None), None, lambda sample: (0, 2), tuple)) == 1


def test_other_streams_have_48_lanes(text_dataset: MakeDataset) -> None:
    path = text_dataset(100)
    samples = shuffled(path, lanes=None)
    for dataset in (
        samples,
        BatchDataset(samples, 4, tuple),
        FilterDataset(BatchDataset(BatchDataset(samples, 4, tuple), 2, tuple), bool),
        ShuffleBufferDataset(samples, 10),
        PackingDataset(RepeatDataset(samples), 10, threes, tuple),
        RepeatDataset(PackingDataset(samples, 10, threes, tuple)),
        BlendDataset((packing(path, 10), 1), (packing(path, 20), 2)),
        LimitDataset(GroupBatchDataset(RepeatDataset(samples), 4, lambda sample: (0, None), tuple), 5),
    ):
        assert lanes_of(dataset) == 48
    assert lanes_of(packing(path, 10, lanes=48)) == 48


def the_rest(fleet: Fleet) -> list[Any]:
    """Items of all hosts up to the end of the pass."""
    found: list[Any] = []
    while (batches := fleet.step()) is not None:
        found += [item for batch in batches for item in fleet.items_of(batch)]
    return sorted(found, key=repr)


def keys_of(item: Any) -> list[str]:
    """Of the samples in an item."""
    key, *_, members = item
    return [each for member, _ in members for each in keys_of(member)] if isinstance(members, tuple) else [key]


@hypothesis_settings(max_examples=25, deadline=None, derandomize=True)
@given(
    samples=st.sampled_from([7, 60, 300]),
    above=st.one_of(
        st.tuples(st.just("pack"), st.just("pairs"), st.just("all"), st.none(), st.integers(1, 9)),
        st.tuples(st.just("group"), st.integers(1, 3), st.just(False)),
    ),
    broken=st.booleans(),
    hosts=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    steps=st.integers(0, 8),
)
def test_passes_are_whole_and_go_on_elsewhere(
    text_dataset: MakeDataset, samples: int, above: Any, broken: bool, hosts: tuple[int, int], steps: int
) -> None:
    """On as many hosts as divide the lanes, and where they do not, the refusal says on which."""
    graph = ("top", None, 12, None, None, (*above, ("leaf", samples, broken, "full", 0)))
    with (
        closing(Fleet(graph, text_dataset)) as single,
        closing(Fleet(graph, text_dataset, hosts[0])) as first,
        closing(Fleet(graph, text_dataset, hosts[1])) as second,
    ):
        lanes = [fleet.streams[0].spec.lanes for fleet in (single, first, second)]
        items = the_rest(single)
        keys = sorted(key for item in items for key in keys_of(item))
        gone = {2, samples // 2} if broken else set()
        assert keys == [f"{number:06d}" for number in range(samples) if number not in gone]
        delivered: list[Any] = []
        for _ in range(steps):
            if (batches := first.step()) is None:
                break
            delivered += [item for batch in batches for item in first.items_of(batch)]
        saved = first.save()
        rest = the_rest(first)
        whole = sorted(delivered + rest, key=repr)
        assert sorted(key for item in whole for key in keys_of(item)) == keys
        assert (lanes[1] == lanes[0]) or lanes[0] % hosts[0]
        if lanes[1] == lanes[0]:
            assert whole == items
        if lanes[2] == lanes[1]:
            second.restore(saved)
            assert the_rest(second) == rest
        else:
            where = rf".*one of \[1, .*{lanes[1]}\] hosts" if lanes[1] % hosts[1] and lanes[1] > 1 else ""
            with pytest.raises(
                StateError, match=f"saved with lanes={lanes[1]}, but this run has lanes={lanes[2]}{where}"
            ):
                second.restore(saved)


class Pairs(TaskEncoder):
    """Two samples fill a pack."""

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 2] for at in range(0, len(samples), 2)]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        samples[0].__key__ = ",".join(str(int(sample.__key__)) for sample in samples)
        return samples[0]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("batch_size", [2, None])
@pytest.mark.parametrize("steps", [3, 13])
def test_a_validation_of_some_steps_is_the_same_each_time(
    text_dataset: MakeDataset, packed: bool, batch_size: int | None, steps: int
) -> None:
    validation = get_val_dataset(
        text_dataset(12),
        split_part="train",
        batch_size=batch_size,
        packing_buffer_size=6 if packed else None,
        task_encoder=Pairs() if packed else TaskEncoder(),
        worker_config=config(),
    )
    limited = LimitDataset(RepeatDataset(validation), steps, reset_after_epoch=True)
    with closing(Stream.of(limited)) as stream, closing(Stream.of(limited)) as other:
        assert len(limited) == steps
        first = [batch.__key__ for batch in stream]
        assert len(first) == steps
        in_order = [",".join(str(i) for i in range(at, at + 1 + packed)) for at in range(0, 12, 1 + packed)]
        keys = [key if packed else str(int(key)) for batch in first for key in (batch if batch_size else [batch])]
        assert keys == [in_order[i % len(in_order)] for i in range(steps * (batch_size or 1))]
        assert [batch.__key__ for batch in stream] == first
        iter(stream)
        next(stream)
        other.restore(stream.cursor())
        assert [batch.__key__ for batch in other] == first[1:]
        assert [batch.__key__ for batch in other] == first


@pytest.mark.parametrize("node", [FilterDataset, IterMapDataset])
def test_a_validation_of_some_steps_is_whole_where_most_samples_are_dropped(
    text_dataset: MakeDataset, node: Callable[..., SavableDataset]
) -> None:
    def is_third(sample: Any) -> bool:
        return int(sample.__key__) == 3

    leaf = get_dataset_from_config(text_dataset(12), training=False, worker_config=config())
    kept = node(leaf, is_third if node is FilterDataset else partial(filter, is_third))
    limited = LimitDataset(RepeatDataset(BatchDataset(kept, 2, list)), 4, reset_after_epoch=True)
    assert len(list(limited)) == 4
