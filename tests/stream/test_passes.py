"""Passes: their ends, and what comes behind them; repeating, limiting and cutting into epochs what lanes make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from small_graphs import flat, mixed, on_hosts, ordered, pairs, roll, take
from stream_hosts import MakeDataset, config, open_hosts, open_stream, train_on

from energon_grain import (
    BatchDataset,
    BlendDataset,
    ConfigError,
    EmptyDatasetError,
    EpochizeDataset,
    FilterDataset,
    LimitDataset,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    SavableDataset,
    Stream,
    TaskEncoder,
    get_train_dataset,
    get_val_dataset,
)


def test_break_goes_on_and_the_next_pass_follows(text_dataset: MakeDataset) -> None:
    path = text_dataset(24)
    [stream] = open_hosts(path, 1, 5, repeat=False)
    seen: list[str] = []
    for batch in stream:
        seen += batch.__key__
        if len(seen) == 10:
            break
    for batch in stream:
        seen += batch.__key__
    assert sorted(seen) == [f"{i:06d}" for i in range(24)]
    with pytest.raises(StopIteration):
        next(stream)
    second = [key for batch in stream for key in batch.__key__]
    assert sorted(second) == sorted(seen)
    assert second != seen


def test_a_state_at_the_end_of_a_pass_begins_the_next(text_dataset: MakeDataset) -> None:
    path = text_dataset(24)
    [stream] = open_hosts(path, 1, 5, repeat=False)
    assert len(list(stream)) == 5
    cursor = stream.cursor()
    expected = [batch.__key__ for batch in stream]
    [other] = open_hosts(path, 1, 5, repeat=False)
    other.restore(cursor)
    with pytest.raises(StopIteration):
        next(other)
    assert [batch.__key__ for batch in other] == expected


def test_validation_repeats_the_same_pass(text_dataset: MakeDataset) -> None:
    dataset = get_val_dataset(text_dataset(24), split_part="train", batch_size=7, worker_config=config())
    stream = Stream.of(dataset)
    first = [batch.__key__ for batch in stream]
    assert first == [batch.__key__ for batch in stream]
    assert sum(map(list, first), []) == [f"{i:06d}" for i in range(24)]
    assert [len(batch) for batch in first] == [7, 7, 7, 3]
    limited = get_val_dataset(text_dataset(24), split_part="train", batch_size=7, limit=2, worker_config=config())
    assert len(limited) == 2
    assert [batch.__key__ for batch in limited] == first[:2]


def test_virtual_epochs_cut_the_endless_stream(text_dataset: MakeDataset) -> None:
    path = text_dataset(24)
    [endless] = open_hosts(path, 1, 5)
    [cut] = open_hosts(path, 1, 5, virtual_epoch_length=3)
    assert len(cut) == 3
    for _ in range(4):
        batches = [batch.__key__ for batch in cut]
        assert batches == [next(endless).__key__ for _ in range(3)]


@pytest.mark.parametrize("hosts", [1, 2, 3, 4])
@pytest.mark.parametrize("broken", [frozenset(), frozenset({0, 1, 20})])
def test_pad_fills_the_last_batch_and_says_so(text_dataset: MakeDataset, hosts: int, broken: frozenset[int]) -> None:
    n, batch_size = 53, 3
    streams = open_hosts(text_dataset(n, broken=broken), hosts, batch_size, repeat=False, last_batch="pad")
    steps = -(-n // (hosts * batch_size))
    assert [len(stream) for stream in streams] == [steps] * hosts
    valid: list[str] = []
    for stream in streams:
        batches = list(stream)
        assert len(batches) == steps
        for batch in batches:
            assert len(batch.__key__) == batch_size
            mask = batch.__valid__ if batch.__valid__ is not None else [True] * batch_size
            valid += [key for key, real in zip(batch.__key__, mask, strict=True) if real]
    assert sorted(valid) == [f"{i:06d}" for i in range(n) if i not in broken]


def test_drop_leaves_the_last_batch_out(text_dataset: MakeDataset) -> None:
    streams = open_hosts(text_dataset(53), 2, 5, repeat=False, batch_drop_last=True)
    batches = [[batch.__key__ for batch in stream] for stream in streams]
    assert [len(b) for b in batches] == [5, 5]
    assert len({key for host in batches for batch in host for key in batch}) == 50


def test_keep_delivers_every_good_sample_once(text_dataset: MakeDataset) -> None:
    broken = {0, 1, 2, 30}
    [stream] = open_hosts(text_dataset(53, broken=broken), 1, 5, repeat=False)
    batches = [batch.__key__ for batch in stream]
    assert [len(batch) for batch in batches] == [5] * 9 + [4]
    assert sorted(sum(batches, [])) == [f"{i:06d}" for i in range(53) if i not in broken]
    stats = stream.stats()
    assert stats["dropped_total"] == 4
    assert list(stats["dropped"].values()) == [{"decode: DecodingError": 4}]


def test_keep_on_several_hosts_is_refused(text_dataset: MakeDataset) -> None:
    with pytest.raises(ConfigError, match="last_batch='keep' with 2 hosts"):
        open_hosts(text_dataset(24), 2, 5, repeat=False, last_batch="keep")


def test_a_dataset_without_a_complete_batch_is_refused(text_dataset: MakeDataset) -> None:
    with pytest.raises(EmptyDatasetError, match="no complete batch of 100"):
        open_hosts(text_dataset(24), 1, 100, repeat=False, batch_drop_last=True)


def test_single_samples_without_a_batch_size(text_dataset: MakeDataset) -> None:
    dataset = train_on(text_dataset(24), worker_config=config(), batch_size=None, repeat=False)
    samples = list(dataset)
    assert sorted(sample.__key__ for sample in samples) == [f"{i:06d}" for i in range(24)]
    assert len(dataset) == 24


def test_a_closed_stream_says_so(text_dataset: MakeDataset) -> None:
    [stream] = open_hosts(text_dataset(24), 1, 5)
    next(stream)
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        next(stream)


@pytest.mark.parametrize(("last_batch", "samples"), [("keep", 53), ("pad", 53), ("drop", 52)])
def test_samples_are_counted_as_they_are_delivered(text_dataset: MakeDataset, last_batch: Any, samples: int) -> None:
    stream = open_stream(text_dataset(53), repeat=False, last_batch=last_batch)
    list(stream)
    assert stream.stats()["samples"] == samples


class Rolls(TaskEncoder):
    """Whose batches are random numbers."""

    def encode_batch(self, batch: Any) -> float:
        return float(self.rng.random())


def test_batch_hooks_draw_other_numbers_in_each_pass(text_dataset: MakeDataset) -> None:
    stream = open_stream(text_dataset(24), repeat=False, task_encoder=Rolls())
    first, second = list(stream), list(stream)
    assert not set(first) & set(second)
    again = Stream.of(
        get_val_dataset(
            text_dataset(24), split_part="train", batch_size=4, task_encoder=Rolls(), worker_config=config()
        )
    )
    assert list(again) == list(again)


@pytest.mark.parametrize("hosts", [1, 2])
def test_drop_needs_no_mask_where_samples_were_dropped(text_dataset: MakeDataset, hosts: int) -> None:
    path = text_dataset(53, broken={0, 1, 20})
    for host in range(hosts):
        stream = open_stream(path, worker_config=config(host, hosts), repeat=False, last_batch="drop", batch_size=2)
        batches = list(stream)
        assert len(batches) == 53 // (2 * hosts)
        assert all(batch.__valid__ is None and len(batch.__key__) == 2 for batch in batches)


def test_keep_on_several_hosts_is_refused_wherever_hosts_come_from(text_dataset: MakeDataset) -> None:
    dataset = train_on(text_dataset(53), batch_size=4, repeat=False, worker_config=config())
    with pytest.raises(ConfigError, match="last_batch='keep' with 2 hosts"):
        Stream.of(dataset, worker_config=config(0, 2))


def test_virtual_epochs_of_a_finite_dataset_begin_it_again(text_dataset: MakeDataset) -> None:
    part = get_train_dataset(
        text_dataset(24), batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=None, repeat=False
    )
    stream = Stream.of(EpochizeDataset(part, length=4))
    epochs = [[key for batch in stream for key in batch.__key__] for _ in range(3)]
    assert [len(epoch) for epoch in epochs] == [16, 16, 16]
    assert sorted(epochs[0] + epochs[1] + epochs[2]) == sorted(2 * sorted(set(epochs[0] + epochs[1])))


@pytest.mark.parametrize("order", [None, -1, 1, 2])
@pytest.mark.parametrize("lanes", [1, 24])
@pytest.mark.parametrize("hosts", [1, 2, 5, 30])
def test_tiny_endless_datasets(text_dataset: MakeDataset, order: int | None, lanes: int, hosts: int) -> None:
    found = []
    for count in (1, hosts):
        streams = [
            open_stream(
                text_dataset(2),
                worker_config=config(host, count),
                lanes=lanes,
                batch_size=30 // count,
                shuffle_over_epochs_multiplier=order,
            )
            for host in range(count)
        ]
        found.append([sorted(key for stream in streams for key in next(stream).__key__) for _ in range(4)])
    assert found[0] == found[1]


@pytest.mark.parametrize("hosts", [1, 2, 3, 8])
@pytest.mark.parametrize("batch_size", [1, 7, 40])
def test_pad_with_few_samples(text_dataset: MakeDataset, hosts: int, batch_size: int) -> None:
    valid: list[str] = []
    for host in range(hosts):
        stream = open_stream(
            text_dataset(7, broken={2}),
            worker_config=config(host, hosts),
            repeat=False,
            last_batch="pad",
            batch_size=batch_size,
        )
        batches = list(stream)
        assert len(batches) == -(-7 // (hosts * batch_size))
        for batch in batches:
            valid += np.array(batch.__key__)[batch.__valid__].tolist()
    assert sorted(valid) == [f"{i:06d}" for i in range(7) if i != 2]


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
    with pytest.raises(ConfigError, match="use a whole number"):
        Stream.of(RepeatDataset(packs(ordered(text_dataset(5))), repeats=1.5))
    with pytest.raises(ConfigError, match="an endless dataset cannot be repeated"):
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


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_pass_that_batches_divide_loses_none(text_dataset: MakeDataset, hosts: int) -> None:
    streams = [
        open_stream(
            text_dataset(48), batch_size=6 // hosts, repeat=False, last_batch="drop", worker_config=config(host, hosts)
        )
        for host in range(hosts)
    ]
    keys = [key for stream in streams for batch in stream for key in batch.__key__]
    assert sorted(keys) == [f"{number:06d}" for number in range(48)]
