"""All lanes of a host at work: workers, hosts, failures on the way, and what is not where it should be."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from small_graphs import number, pairs, roll, rolled, shuffled, take
from stream_hosts import MakeDataset, config

from energon_grain import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    EmptyDatasetError,
    EpochizeDataset,
    FilterDataset,
    FingerprintError,
    GroupBatchDataset,
    IterMapDataset,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    SavableDataset,
    StateError,
    Stream,
    merge_cursors,
    stateless,
)


@stateless(restore_seeds=True)
def seeded(sample: Any) -> tuple[int, float]:
    return number(sample), random.random()


def as_often(value: Any) -> Iterator[Any]:
    for part in range(value[0] % 3):
        yield value[0], part, roll()


@stateless(restore_seeds=True)
def in_a_row(values: Iterator[Any]) -> Iterator[Any]:
    seen = 0
    for value in values:
        seen += value[0]
        yield seen, value, random.random()


def by_rest(value: Any) -> tuple[int, None]:
    return value[0] % 3, None


GRAPHS: dict[str, Callable[[SavableDataset], SavableDataset]] = {
    "generated": lambda leaf: MapDataset(leaf, as_often),
    "packs": lambda leaf: PackingDataset(leaf, 5, pairs, rolled, sample_encoder=lambda value: (*value, roll())),
    "groups": lambda leaf: GroupBatchDataset(leaf, 3, by_rest, rolled),
    "batches": lambda leaf: BatchDataset(BatchDataset(leaf, 3, rolled), 2, rolled),
    "streams": lambda leaf: IterMapDataset(leaf, in_a_row, inputs_per_call=4),
    "packs of streams": lambda leaf: PackingDataset(
        IterMapDataset(leaf, in_a_row, inputs_per_call=4), 4, pairs, rolled
    ),
    "blend": lambda leaf: BlendDataset((MapDataset(leaf, as_often), 2), (FilterDataset(leaf, lambda v: v[0] % 2), 1)),
    "concat": lambda leaf: ConcatDataset(MapDataset(leaf, as_often), leaf),
    "epochs": lambda leaf: PackingDataset(EpochizeDataset(MapDataset(leaf, as_often), 9), 4, pairs, rolled),
    "repeated": lambda leaf: RepeatDataset(MapDataset(leaf, as_often)),
}


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("name", GRAPHS)
def test_workers_change_nothing(text_dataset: MakeDataset, name: str, num_workers: int) -> None:
    def make() -> SavableDataset:
        return BatchDataset(GRAPHS[name](MapDataset(shuffled(text_dataset(31)), seeded)), 3, tuple)

    expected = take(Stream.of(make()), 24)
    with Stream.of(make(), num_workers=num_workers) as stream:
        assert take(stream, 10) == expected[:10]
        cursor = stream.cursor()
        assert take(stream, 4) == expected[10:14]
        stream.restore(cursor)
        assert take(stream, 14) == expected[10:]


@pytest.mark.parametrize("name", ["generated", "packs", "groups", "streams", "blend"])
def test_a_step_that_fails_can_be_tried_again(text_dataset: MakeDataset, name: str) -> None:
    """An error of the network, say: the next call goes on from the same place."""
    calls = failures = 0

    def moody(value: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 9 == 0 and failures < 20:
            raise ValueError("bad mood")
        return value

    def end(error: Exception, sample: Any, sources: Any = None) -> None:
        raise RuntimeError("ended by the handler") from error

    def make() -> SavableDataset:
        leaf = RepeatDataset(shuffled(text_dataset(31), worker_config=config(global_error_handler=end)))
        return MapDataset(GRAPHS[name](MapDataset(leaf, seeded)), moody)

    failures = 20
    expected = take(Stream.of(make()), 30)
    calls = failures = 0
    stream, found = Stream.of(make()), []
    while len(found) < 30:
        try:
            found.append(next(stream))
        except RuntimeError:
            failures += 1
    assert found == expected
    assert failures


@pytest.mark.parametrize("name", GRAPHS)
def test_states_go_from_hosts_to_hosts(text_dataset: MakeDataset, name: str) -> None:
    def hosts_of(hosts: int) -> list[Stream]:
        streams: list[Stream] = []
        for host in range(hosts):
            worker_config = config(host, hosts, any_host=lambda flag: flag)
            leaf = MapDataset(RepeatDataset(shuffled(text_dataset(31), worker_config=worker_config)), seeded)
            if name in ("concat", "epochs", "repeated"):  # of finite ones
                leaf = MapDataset(shuffled(text_dataset(31), worker_config=worker_config), seeded)
            streams.append(Stream.of(BatchDataset(RepeatDataset(GRAPHS[name](leaf)), 8 // hosts, tuple)))
        return streams

    expected = [sorted(next(stream), key=repr) for stream in hosts_of(1) for _ in range(10)]
    streams = hosts_of(1)
    for step, hosts in enumerate([4, 2, 1, 2, 4]):
        others = hosts_of(hosts)
        merged = merge_cursors([stream.cursor() for stream in streams])
        for other in others:
            other.restore(merged)
        streams = others
        for at in (2 * step, 2 * step + 1):
            assert sorted((item for stream in streams for item in next(stream)), key=repr) == expected[at]


def test_a_pass_without_any_item(text_dataset: MakeDataset) -> None:
    leaf = MapDataset(MapDataset(shuffled(text_dataset(31)), seeded), as_often)
    nothing = FilterDataset(leaf, lambda value: False)
    for dataset in (nothing, BatchDataset(nothing, 3, tuple), BatchDataset(nothing, 3, tuple, drop_last=True)):
        stream = Stream.of(dataset)
        with pytest.raises(EmptyDatasetError, match="without a single item"):
            next(stream)
        assert stream.stats()["dropped_total"] >= 20


def test_states_of_another_graph_are_refused(text_dataset: MakeDataset) -> None:
    leaf = MapDataset(RepeatDataset(shuffled(text_dataset(31))), seeded)
    first, other = (Stream.of(GRAPHS[name](leaf)) for name in ("packs", "groups"))
    take(first, 3)
    cursor = first.cursor(with_manifest=True)
    with pytest.raises(StateError, match=r"mixture.*"):
        other.restore(cursor)
    with pytest.raises(StateError, match=r"ends too early|too long|belongs to another graph"):
        other.restore(cursor, allow_changes=True)
    del cursor["check"]
    for held in ("", cursor["held"][:20]):
        with pytest.raises(StateError, match="'held'"):
            first.restore({**cursor, "held": held})


def generate(values: list[Any]) -> Iterator[Any]:
    yield tuple(values)


CHANGED: list[Callable[[SavableDataset], SavableDataset]] = [
    lambda leaf: PackingDataset(leaf, 5, pairs, rolled),
    lambda leaf: PackingDataset(leaf, 6, pairs, rolled),
    lambda leaf: PackingDataset(leaf, 5, pairs, generate),
    lambda leaf: GroupBatchDataset(leaf, 3, by_rest, rolled),
    lambda leaf: GroupBatchDataset(leaf, 3, by_rest, rolled, drop_last=True),
    lambda leaf: BatchDataset(BatchDataset(leaf, 5, rolled), 2, tuple),
    lambda leaf: BatchDataset(BatchDataset(leaf, 5, rolled, drop_last=True), 2, tuple),
    lambda leaf: BatchDataset(BatchDataset(leaf, 5, generate), 2, tuple),
    lambda leaf: IterMapDataset(leaf, in_a_row, inputs_per_call=4),
    lambda leaf: IterMapDataset(leaf, in_a_row, inputs_per_call=5),
    lambda leaf: FilterDataset(leaf, lambda value: value[0] % 2 == 0),
    lambda leaf: leaf,
    GRAPHS["generated"],
    lambda leaf: MapDataset(MapDataset(leaf, as_often), as_often),
    lambda leaf: FilterDataset(MapDataset(leaf, as_often), lambda value: value[0] % 2 == 0),
]


def test_what_changes_the_items_changes_the_fingerprint(text_dataset: MakeDataset) -> None:
    leaf = MapDataset(shuffled(text_dataset(31)), seeded)
    cursors = [Stream.of(changed(leaf)).cursor(with_manifest=True) for changed in CHANGED]
    assert len({cursor["fingerprint"] for cursor in cursors}) == len(CHANGED)
    plain = Stream.of(CHANGED[0](leaf))
    for cursor in cursors[1:]:
        with pytest.raises(FingerprintError, match="mixture"):
            plain.restore(cursor)


def test_equal_graphs_have_equal_fingerprints(text_dataset: MakeDataset) -> None:
    leaf = MapDataset(shuffled(text_dataset(31)), seeded)
    fingerprints = [[Stream.of(make(leaf)).cursor()["fingerprint"] for make in GRAPHS.values()] for _ in range(2)]
    assert fingerprints[0] == fingerprints[1]
    assert len(set(fingerprints[0])) == len(GRAPHS)
