"""Packing in lanes: what the selection sees, what packs are made of, what a pass ends with, what is dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_graphs import (
    flat,
    in_order,
    mixed,
    number,
    ordered,
    require_exact_states,
    roll,
    rolled,
    shuffled,
    take,
    threes,
)
from stream_hosts import MakeDataset, config, train_on

from energon_grain import (
    ConfigError,
    EmptyDatasetError,
    FatalSampleError,
    FilterDataset,
    HostsError,
    MapDataset,
    PackingDataset,
    Packs,
    RepeatDataset,
    SavableDataset,
    SkipSample,
    Stream,
    TaskEncoder,
    greedy_knapsack,
)

Numbers = list[int]


def test_the_buffer_is_topped_up_while_groups_drain(text_dataset: MakeDataset) -> None:
    """Never more than `buffer_size` samples are held, and every selection sees all that may be held."""
    seen: list[Numbers] = []

    def select(samples: Numbers) -> list[Numbers]:
        seen.append(list(samples))
        return [samples[:2], samples[2:3], samples[3:]]

    packs = list(PackingDataset(ordered(text_dataset(13)), 5, select, tuple))
    # While [0 1], [2], [3 4] are packed one after the other, 5 6, 7 and 8 9 take their places.
    assert seen == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12]]
    assert packs == [(0, 1), (2,), (3, 4), (5, 6), (7,), (8, 9), (10, 11), (12,)]


def test_nothing_is_read_before_it_has_a_place(text_dataset: MakeDataset) -> None:
    """How far a lane has read follows from its buffer size: the state tells, whatever was read ahead."""
    stream = Stream.of(PackingDataset(ordered(text_dataset(24)), 6, threes, tuple))
    read: list[int] = []
    for _ in range(4):
        next(stream)
        [state] = stream._progress.lanes or ()
        (_, rounds), _, _, buffer, groups = state
        held = len(buffer) + sum(map(len, groups))
        read.append(rounds)
        assert held <= 6
    assert read == [9, 12, 15, 18]


def test_a_packer_may_change_its_list_and_its_order(text_dataset: MakeDataset) -> None:
    def select(samples: Numbers) -> Iterator[Numbers]:
        groups: list[Numbers] = []
        samples.reverse()
        while samples:
            groups.append([samples.pop(), *(samples.pop() for _ in samples[:1])][::-1])
        return iter(groups)

    packs = list(PackingDataset(ordered(text_dataset(10)), 4, select, tuple))  # type: ignore[arg-type]
    assert packs == [(1, 0), (3, 2), (5, 4), (7, 6), (9, 8)]


def test_equal_samples_are_told_apart(text_dataset: MakeDataset) -> None:
    """Small integers are one object each: which of them is meant does not matter, how many there are does."""
    thirds = MapDataset(in_order(text_dataset(10)), lambda sample: number(sample) // 3)
    packs = require_exact_states(lambda: PackingDataset(thirds, 4, threes, tuple), 8)
    assert packs[:5] == [(0, 0, 0), (1,), (1, 1, 2), (2,), (2, 3)]


def test_an_encoder_sees_chosen_samples_only(text_dataset: MakeDataset) -> None:
    seen: Numbers = []

    def encode(sample: int) -> int:
        seen.append(sample)
        return sample

    def select(samples: Numbers) -> list[Numbers]:
        return [samples[:2]]

    assert list(PackingDataset(ordered(text_dataset(9)), 3, select, tuple, sample_encoder=encode)) == [
        (0, 1),
        (3, 4),
        (6, 7),
    ]
    assert seen == [0, 1, 3, 4, 6, 7]


def generate(samples: list[Any]) -> Iterator[Any]:
    for part, sample in enumerate(samples):
        if part != 1:
            yield tuple(samples), sample, roll()


def test_a_generator_makes_several_packs_of_a_group(text_dataset: MakeDataset) -> None:
    packs = take(Stream.of(PackingDataset(ordered(text_dataset(7)), 6, threes, generate)), 6)
    assert [entry and entry[:2] for entry in packs] == [
        ((0, 1, 2), 0),
        ((0, 1, 2), 2),
        ((3, 4, 5), 3),
        ((3, 4, 5), 5),
        ((6,), 6),
        None,
    ]


def test_lanes_have_buffers_of_their_own(text_dataset: MakeDataset) -> None:
    def select(samples: Numbers) -> list[Numbers]:
        assert len({sample % 4 for sample in samples}) == 1
        return [samples]

    packs = list(PackingDataset(ordered(text_dataset(24), lanes=4), 3, select, tuple))
    assert packs[:4] == [(0, 4, 8), (1, 5, 9), (2, 6, 10), (3, 7, 11)]
    assert sorted(flat(packs)) == list(range(24))


def test_hosts_must_divide_the_lanes(text_dataset: MakeDataset) -> None:
    packing = PackingDataset(RepeatDataset(ordered(text_dataset(24), lanes=6)), 3, threes, tuple)
    with pytest.raises(HostsError, match=r"4 hosts do not divide the 6 lanes.*one of \[1, 2, 3, 6\] hosts"):
        Stream.of(packing, worker_config=config(1, 4))


def test_finite_packs_on_several_hosts_need_an_agreement(text_dataset: MakeDataset) -> None:
    packing = PackingDataset(ordered(text_dataset(24), lanes=6), 3, threes, tuple)
    with pytest.raises(ConfigError, match="must agree on the end"):
        Stream.of(packing, worker_config=config(0, 2))


def knapsack(samples: Numbers) -> Packs[int]:
    return greedy_knapsack(samples, length=lambda sample: 1 + sample % 7, capacity=10, keep_rest=True)


def test_what_a_packer_keeps_stays_a_candidate(text_dataset: MakeDataset) -> None:
    seen: list[Numbers] = []

    def select(samples: Numbers) -> Packs[int]:
        seen.append(list(samples))
        return Packs([samples[:2]], samples[2:])

    packs = list(PackingDataset(ordered(text_dataset(9)), 5, select, tuple))
    # The rest comes first, and the last of it is a pack by itself.
    assert seen[:3] == [[0, 1, 2, 3, 4], [2, 3, 4, 5, 6], [4, 5, 6, 7, 8]]
    assert packs == [(0, 1), (2, 3), (4, 5), (6, 7), (8,)]


def test_a_rest_alone_is_a_pack(text_dataset: MakeDataset) -> None:
    """Nothing could join it: the buffer is full, or the pass is over."""
    packs = PackingDataset(ordered(text_dataset(7)), 3, lambda samples: Packs([], samples), tuple)
    assert list(packs) == [(0, 1, 2), (3, 4, 5), (6,)]


def test_packers_that_keep_a_rest_lose_nothing(text_dataset: MakeDataset) -> None:
    def make() -> SavableDataset:
        return PackingDataset(mixed(path, lanes=2), 12, knapsack, rolled)

    path = text_dataset(97)
    items = require_exact_states(make, 60, every=3)
    packs = [members for members, _ in items[: items.index(None)]]
    assert sorted(flat(packs)) == list(range(97))
    assert all(sum(1 + sample % 7 for sample in members) <= 10 for members in packs)
    fill = sum(1 + sample % 7 for sample in range(97)) / (10 * len(packs))
    assert fill > 0.9  # the last packs of both lanes are short


class Texts(TaskEncoder):
    """Packs texts in the order in which they come."""

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 2] for at in range(0, len(samples), 2)]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        first = samples[0]
        first.text = " ".join(sample.text for sample in samples)
        first.__restore_key__ = ()
        return first

    def batch(self, samples: list[Any]) -> list[str]:
        return [sample.text for sample in samples]


@pytest.mark.parametrize("last_batch", ["keep", "drop"])
def test_packs_in_batches(text_dataset: MakeDataset, last_batch: Any) -> None:
    dataset = train_on(
        text_dataset(24),
        batch_size=5,
        packing_buffer_size=4,
        lanes=3,
        repeat=False,
        last_batch=last_batch,
        task_encoder=Texts(),
        worker_config=config(),
    )
    batches = list(dataset)
    assert [len(batch) for batch in batches] == [5, 5, 2][: 3 if last_batch == "keep" else 2]


def test_a_filter_below_fills_the_buffer_all_the_same(text_dataset: MakeDataset) -> None:
    seen: list[Sequence[int]] = []

    def select(samples: Numbers) -> list[Numbers]:
        seen.append(samples)
        return [samples]

    odd = FilterDataset(ordered(text_dataset(24)), lambda sample: sample % 2 == 1)
    assert list(PackingDataset(odd, 4, select, tuple)) == [(1, 3, 5, 7), (9, 11, 13, 15), (17, 19, 21, 23)]
    assert list(map(len, seen)) == [4, 4, 4]


def singly(samples: list[Any]) -> list[list[Any]]:
    return [[sample] for sample in samples]


@pytest.mark.parametrize(("lanes", "groups"), [(1, 5), (2, 3), (4, 5), (6, 4), (48, 3), (48, 48)])
def test_lanes_take_turns_in_what_a_packer_puts_first(text_dataset: MakeDataset, lanes: int, groups: int) -> None:
    """At any time, about as many lanes are at one group of their buffers as at any other."""
    samples = lanes * groups * 4
    stream = Stream.of(
        PackingDataset(ordered(text_dataset(samples), lanes=lanes), groups, singly, lambda pack: pack[0])
    )
    packs = list(stream)
    assert sorted(packs) == list(range(samples))
    rounds = [packs[at : at + lanes] for at in range(0, samples, lanes)]
    for round_number, packs_of_round in enumerate(rounds):
        assert [pack % lanes for pack in packs_of_round] == list(range(lanes))
        assert {pack // lanes // groups for pack in packs_of_round} == {
            round_number // groups
        }  # of one buffer, in turn
        places = [sum(pack // lanes % groups == place for pack in packs_of_round) for place in range(groups)]
        assert set(places) <= {lanes // groups, -(-lanes // groups)}
    if lanes == 1:
        assert packs == list(range(samples))


def test_packs_of_a_packer_that_sorts_come_mixed(text_dataset: MakeDataset) -> None:
    """Neighbours in the stream are no more alike than others; they came in waves of 48 alike ones."""
    path = text_dataset(960)

    def by_size(sizes: Numbers) -> list[Numbers]:
        return threes(sorted(sizes))

    def make() -> SavableDataset:
        sizes = MapDataset(RepeatDataset(shuffled(path, lanes=48)), lambda sample: number(sample) % 101)
        return PackingDataset(sizes, 30, by_size, sum)

    packs = np.array(take(Stream.of(make()), 4800), float)
    near = [np.corrcoef(packs[:-distance], packs[distance:])[0, 1] for distance in range(1, 48)]
    assert max(map(abs, near)) < 0.2
    assert packs.reshape(-1, 48).mean(1).std() < packs.std() / np.sqrt(48)


def test_a_state_of_lanes_that_began_alike_is_continued(text_dataset: MakeDataset) -> None:
    """As runs did before lanes took turns: what waits is packed as it waits, and no sample is lost or doubled."""
    dataset = PackingDataset(ordered(text_dataset(96), lanes=4), 7, threes, tuple)
    spec = Stream.of(dataset).spec
    alike = replace(spec.program.root, phases=(0,) * 4)  # type: ignore[union-attr, type-var]
    before = Stream(replace(spec, program=replace(spec.program, root=alike)), config())  # type: ignore[type-var]
    packs = take(before, 10)
    assert packs[:4] == [(0, 4, 8), (1, 5, 9), (2, 6, 10), (3, 7, 11)]
    stream = Stream.of(dataset)
    stream.restore(before.cursor(with_manifest=True))
    assert sorted(flat([packs, list(stream)])) == list(range(96))


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
    with pytest.raises(ConfigError, match=r"select_samples_to_pack .*in its argument"):
        list(PackingDataset(ordered(text_dataset(12)), 4, select, tuple))


def test_copies_are_not_the_samples(text_dataset: MakeDataset) -> None:
    def select(samples: list[list[int]]) -> list[list[list[int]]]:
        return [[list(sample) for sample in samples]]

    lists = MapDataset(in_order(text_dataset(12)), lambda sample: [number(sample)])
    with pytest.raises(ConfigError, match=r"select_samples_to_pack .*in its argument"):
        list(PackingDataset(lists, 4, select, tuple))


def test_samples_of_a_rest_are_checked_too(text_dataset: MakeDataset) -> None:
    for rest in ([99], [0]):
        packing = PackingDataset(ordered(text_dataset(7)), 3, lambda samples, rest=rest: Packs([samples], rest), tuple)
        with pytest.raises(ConfigError, match=r"select_samples_to_pack .*in its argument"):
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
