"""All lanes of a host at work: workers, hosts, failures, feeds, and every state of small graphs continued exactly.

Random graphs, on several hosts, are those of `test_graph_machine.py`; the graphs here say which kind it is that fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from object_server import Bucket
from small_graphs import (
    flat,
    in_order,
    mixed,
    number,
    ordered,
    pairs,
    require_exact_states,
    roll,
    rolled,
    shuffled,
    take,
    threes,
    with_roll,
)
from stream_hosts import MakeDataset, Tolerant, config, quiet

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
    LimitDataset,
    MapDataset,
    MixBatchDataset,
    PackingDataset,
    RepeatDataset,
    SavableDataset,
    ShuffleBufferDataset,
    SkipSample,
    StateError,
    StorageSettings,
    Stream,
    TaskEncoder,
    TextSample,
    WorkerConfig,
    get_train_dataset,
    stateless,
    use_storage,
)
from energon_grain.testing import make_text_dataset


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


def leaf(path: Path, lanes: int = 2) -> SavableDataset:
    return mixed(path, lanes=lanes)


def endless(path: Path, lanes: int = 2) -> SavableDataset:
    return RepeatDataset(leaf(path, lanes))


def packs(dataset: SavableDataset, size: int = 6) -> SavableDataset:
    return PackingDataset(dataset, size, pairs, rolled)


def packed(select: Any, packer: Any, encoder: Any) -> Callable[..., SavableDataset]:
    return lambda path, _: PackingDataset(leaf(path), 7, select, packer, sample_encoder=encoder)


def as_many(sample: int) -> Iterator[tuple[int, int, int]]:
    for part in range(sample % 4):
        yield sample, part, roll()


def generated(dataset: SavableDataset) -> SavableDataset:
    return MapDataset(dataset, as_many)


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


def rest_of_three(sample: int) -> tuple[int, None]:
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
    "groups": lambda below: GroupBatchDataset(below, 4, rest_of_three, rolled),
    "whole groups": lambda below: GroupBatchDataset(below, 2, rest_of_three, rolled, drop_last=True),
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


def repeated(sample: int) -> Iterator[int]:
    for _ in range(sample % 3):
        yield sample


@pytest.mark.parametrize("lanes", [1, 3, 8])
@pytest.mark.parametrize("n", [2, 7, 24, 53])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_lanes_share_the_positions_of_a_pass(text_dataset: MakeDataset, lanes: int, n: int, size: int) -> None:
    """In stripes of a batch's size where batches are formed above, else one by one."""
    leaf = MapDataset(in_order(text_dataset(n), lanes=lanes), repeated if size == 1 else number)
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
    leaf = MapDataset(RepeatDataset(ordered(text_dataset(7), lanes=3)), repeated)
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
    with Stream.of(BatchDataset(MapDataset(leaf, repeated), 2, tuple), num_workers=num_workers) as stream:
        take(stream, 3)
        assert len(read) < 20_000


class Packing(TaskEncoder):
    """Drops some texts, and packs the others by length."""

    def encode_sample(self, sample: TextSample) -> TextSample:
        if int(sample.__key__) % 7 == 0:
            raise SkipSample
        return sample

    def select_samples_to_pack(self, samples: list[TextSample]) -> list[list[TextSample]]:
        return [samples[i : i + 3] for i in range(0, len(samples), 3)]

    def pack_selected_samples(self, samples: list[TextSample]) -> list[str]:
        return [sample.__key__ for sample in samples]

    def batch(self, samples: list[list[str]]) -> list[list[str]]:
        return samples


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_text_dataset(tmp_path / "texts", n=600, shards=3, text_bytes=3000)
    return tmp_path / "texts"


def opened(path: Any, *, workers: int = 2, **more: Any) -> Stream:
    config = WorkerConfig(0, 1, workers, global_error_handler=quiet)
    options = {"batch_size": 2, "packing_buffer_size": 9, "shuffle_buffer_size": 20, "max_samples_per_sequence": 6}
    return Stream.of(get_train_dataset(path, worker_config=config, task_encoder=Packing(), **(options | more)))


@pytest.mark.parametrize("more", [{}, {"repeat": False}, {"lanes": 4}])
def test_packs_of_a_bucket_are_those_of_a_folder(bucket: Bucket, folder: Path, more: dict[str, Any]) -> None:
    url = bucket.upload(folder, "texts")
    if more:
        use_storage(StorageSettings(ahead_bytes=600_000))
    with opened(folder, **more) as here, opened(url, **more) as there:
        for _ in range(2):
            count = 150 if "repeat" not in more else 1000
            expected = [(batch, here.cursor()) for _, batch in zip(range(count), here, strict=False)]
            assert [(batch, there.cursor()) for _, batch in zip(range(count), there, strict=False)] == expected
        assert len(expected) > 50


def test_lanes_fetch_each_block_once_in_few_requests(bucket: Bucket, folder: Path) -> None:
    url = bucket.upload(folder, "texts")
    with opened(url, repeat=False) as there:
        bucket.server.reset()
        list(there)
    requests = [request for request in bucket.server.requests(".tar") if request.sent_bytes > 20_000]
    size = sum(shard.stat().st_size for shard in folder.glob("*.tar"))
    assert sum(request.sent_bytes for request in requests) <= size
    assert len(requests) <= 12, "blocks of 256 KiB would be as many"


def test_a_restored_stream_fetches_ahead_from_where_it_is(bucket: Bucket, folder: Path) -> None:
    url = bucket.upload(folder, "texts")
    with opened(folder) as here, opened(url) as there:
        for _ in range(40):
            next(here)
        there.restore(here.cursor())
        assert [next(there) for _ in range(60)] == [next(here) for _ in range(60)]
