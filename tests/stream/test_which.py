"""Telling the samples of a step without reading data, and jumping over steps."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from metadatasets import write_v2
from small_graphs import in_order, mixed, number, on_hosts, rolled, take, threes
from stream_graph_hooks import keys_of, together
from stream_hosts import MakeDataset, Tolerant, config, global_batch, open_hosts, open_stream

from energon_grain import (
    BatchDataset,
    BlendDataset,
    EpochizeDataset,
    IterMapDataset,
    LimitDataset,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    SavableDataset,
    ShuffleBufferDataset,
    SkipSample,
    StateError,
    Stream,
    TaskEncoder,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    merge_cursors,
)
from energon_grain.testing import make_text_dataset


def test_which_tells_what_will_come_and_what_came(text_dataset: MakeDataset) -> None:
    path = text_dataset(53)
    for options in ({}, {"repeat": False, "last_batch": "pad"}, {"repeat": False, "last_batch": "drop"}):
        streams = open_hosts(path, 2, 3, **options)
        told = [[record.key for record in streams[0].which(step)] for step in range(20)]
        for step in range(20):
            batches = []
            for stream in streams:
                batch = next(stream, None)
                batches.append(batch if batch is not None else next(iter(stream)))
            keys = []
            for batch in batches:
                mask = batch.__valid__ if batch.__valid__ is not None else [True] * 3
                keys += [key for key, real in zip(batch.__key__, mask, strict=True) if real]
            assert sorted(keys) == sorted(told[step]), (options, step)
        assert [[record.key for record in streams[0].which(step)] for step in range(20)] == told
        record = streams[0].which(4)[1]
        assert (path / record.shard).read_bytes()[record.start :].startswith(record.key.encode())
        assert record.host == 1


def test_which_follows_a_change_of_the_batch_size(text_dataset: MakeDataset) -> None:
    path = text_dataset(53)
    streams = open_hosts(path, 2, 3)
    before = [global_batch(streams) for _ in range(4)]
    cursor = merge_cursors([stream.cursor() for stream in streams])
    [one] = open_hosts(path, 1, 5)
    one.restore(cursor)
    after = [global_batch([one]) for _ in range(3)]
    told = [sorted(record.key for record in one.which(step)) for step in range(7)]
    assert told == before + after


class SkipsBatches(TaskEncoder):
    """Drops every third batch."""

    def encode_batch(self, batch: Any) -> Any:
        if int(batch.__key__[0]) % 3 == 0:
            raise SkipSample
        return batch


@pytest.mark.parametrize("repeat", [True, False])
def test_which_is_right_after_a_dropped_batch(text_dataset: MakeDataset, repeat: bool) -> None:
    stream = open_stream(text_dataset(53), task_encoder=SkipsBatches(), repeat=repeat, last_batch="drop")
    other = open_stream(text_dataset(53), task_encoder=SkipsBatches(), repeat=repeat, last_batch="drop")
    batches: list[list[str]] = []
    for step, batch in zip(range(12), stream, strict=False):
        other.restore(stream.cursor(with_manifest=True))
        batches.append(list(batch.__key__))
        for asked in (step, 0, step // 2):
            for host in (stream, other):
                assert [record.key for record in host.which(asked)] == batches[asked]
    assert stream.which(0).read


class SkipsTheLast(TaskEncoder):
    """Drops the last batch of 20 samples in order."""

    def encode_batch(self, batch: Any) -> Any:
        if "000019" in batch.__key__:
            raise SkipSample
        return batch


def test_which_is_right_where_the_last_batches_of_passes_were_dropped(text_dataset: MakeDataset) -> None:
    options = {"task_encoder": SkipsTheLast(), "repeat": False, "shuffle_over_epochs_multiplier": None}
    stream, other = (open_stream(text_dataset(20), **options) for _ in range(2))
    batches: list[list[str]] = []
    for _ in range(3):
        batches += [list(batch.__key__) for batch in stream]
        other.restore(stream.cursor())
        assert other.cursor() == stream.cursor()
        for told in (stream, other):
            assert [[record.key for record in told.which(step)] for step in range(len(batches))] == batches


def test_which_reads_again_what_was_dropped_in_earlier_passes(text_dataset: MakeDataset) -> None:
    path = text_dataset(53, broken=range(9))
    stream = open_stream(path, repeat=False, task_encoder=Tolerant())
    first = [list(batch.__key__) for batch in stream]
    assert len(first) == 11
    assert [record.key for record in stream.which(3)] == first[3]
    iter(stream)
    other = open_stream(path, repeat=False, task_encoder=Tolerant())
    other.restore(merge_cursors([stream.cursor()]))
    for told in (stream, other):
        records = told.which(3)
        assert ([record.key for record in records], records.read) == (first[3], True)
        assert told.which(len(first))[0].epoch == 1


def test_which_on_one_of_several_hosts_keeps_what_a_merge_knows(text_dataset: MakeDataset) -> None:
    path = text_dataset(53, broken={0})
    streams = [open_stream(path, repeat=False, worker_config=config(host, 2), batch_size=2) for host in range(2)]
    delivered = [sorted(sum((list(batch.__key__) for batch in both), [])) for both in zip(*streams, strict=True)]
    for stream in streams:
        iter(stream)
    one = open_stream(path, repeat=False, last_batch="pad")
    one.restore(merge_cursors([stream.cursor() for stream in streams]))
    assert sorted(record.key for record in one.which(0)) == delivered[0]


def test_which_follows_several_changes_of_the_batch_size(text_dataset: MakeDataset) -> None:
    for repeat in (True, False):
        stream = open_stream(text_dataset(53), repeat=repeat)
        told: list[list[str]] = []
        for size in (4, 7, 7, 3, 60, 1, 4):
            other = open_stream(text_dataset(53), repeat=repeat, batch_size=size)
            other.restore(stream.cursor())
            stream = other
            while len(told) % 5 != 4:
                told.append(list((next(stream, None) or next(iter(stream))).__key__))
            told.append(list((next(stream, None) or next(iter(stream))).__key__))
        assert [[record.key for record in stream.which(step)] for step in range(len(told))] == told


def test_which_does_not_guess_passes_that_had_another_limit(text_dataset: MakeDataset) -> None:
    def validation(limit: int | None) -> Stream:
        return Stream.of(
            get_val_dataset(text_dataset(53), split_part="train", batch_size=4, limit=limit, worker_config=config())
        )

    stream = validation(3)
    seen = [list(batch.__key__) for _ in range(2) for batch in stream]
    next(iter(stream))
    longer = validation(5)
    longer.restore(stream.cursor())
    assert [record.key for record in longer.which(7)] == seen[1]
    for step in range(6):
        try:
            records = longer.which(step)
        except StateError:
            continue
        assert [record.key for record in records] == seen[step]


FRACTIONS = {"blend_epochized": [{"path": "a", "repetitions": 0.37}, {"path": "b", "repetitions": 1.5}]}


@pytest.mark.parametrize("options", [{"last_batch": "drop"}, {"last_batch": "pad"}])
def test_passes_of_different_lengths_are_told_apart_however_far(tmp_path: Path, options: dict[str, Any]) -> None:
    """From the beginning, and from a state so far on that nobody could count the passes before it one by one."""
    make_text_dataset(tmp_path / "a", n=41, shards=1, seed=1)
    make_text_dataset(tmp_path / "b", n=33, shards=1)
    path = write_v2(tmp_path, train=FRACTIONS)
    stream = open_stream(path, worker_config=config(), batch_size=5, task_encoder=Tolerant(), repeat=False, **options)
    delivered: list[list[str]] = []
    for _ in range(100):  # 41 * 0.37 = 15.17 and 33 * 1.5 = 49.5 samples: then lengths begin anew
        for batch in stream:
            mask = [True] * 5 if batch.__valid__ is None else batch.__valid__
            delivered.append([key for key, real in zip(batch.__key__, mask, strict=True) if real])
    for step in (0, 7, 301, len(delivered) - 1):
        assert [record.key for record in stream.which(step)] == delivered[step]
    cursor = stream.cursor()
    cursor |= {"pass": cursor["pass"] + 100 * (10**8 - 1), "step": len(delivered) * 10**8}
    del cursor["check"]
    stream.restore(cursor)
    assert stream.cursor()["history"] == cursor["history"], "steps before it are still told"
    told = [[record.key for record in stream.which(len(delivered) * 10**8 + step)] for step in range(30)]
    coming = itertools.islice((batch for _ in range(30) for batch in stream), 30)
    for keys, batch in zip(told, coming, strict=True):
        mask = [True] * 5 if batch.__valid__ is None else batch.__valid__
        assert [key for key, real in zip(batch.__key__, mask, strict=True) if real] == keys


def test_steps_beyond_all_positions_are_refused(text_dataset: MakeDataset) -> None:
    path = text_dataset(53)
    for options in ({}, {"repeat": False}):
        streams = open_hosts(path, 1, 32, **options)
        with pytest.raises(StateError, match=r"which\(10{18}\): .* below 2\*\*62"):
            streams[0].which(10**18)
        assert len(streams[0].which(10**16)) in range(1, 33)


def test_passes_that_repeat_after_millions_are_counted_by_their_period(tmp_path: Path) -> None:
    make_text_dataset(tmp_path / "a", n=41, shards=1)
    path = write_v2(tmp_path, train={"blend_epochized": [{"path": "a", "repetitions": 0.3718281}]})
    stream = open_stream(path, worker_config=config(), batch_size=5, repeat=False, last_batch="pad")
    ends, steps = 10**7, 0
    for first in range(0, ends, 10**6):
        steps += int((-(-stream.spec.order.lengths(first, 10**6) // 5)).sum())
    near, far = stream.which(6), stream.which(6 + 10**5 * steps)
    assert [record.item for record in near] == [record.item for record in far]
    assert far[0].epoch >= 10**5 * 3718281
    with pytest.raises(StateError, match=r"which\(10{18}\): .* below 2\*\*62"):
        stream.which(10**18)


def samples(path: Path, **options: Any) -> Any:
    given = {"worker_config": config(), "shuffle_buffer_size": None, "max_samples_per_sequence": None, **options}
    return get_train_dataset(path, batch_size=None, **given)


def packed(path: Path, hosts: int = 1) -> list[Stream]:
    def one(host: int) -> Stream:
        settings = config(host, hosts, any_host=lambda flag: flag)
        leaf = samples(path, lanes=12, worker_config=settings)
        pack = PackingDataset(leaf, 7, lambda samples: [samples[:3], samples[3:]], together, task_encoder=Tolerant())
        return Stream.of(BatchDataset(pack, 12 // hosts, together))

    return [one(host) for host in range(hosts)]


def told(stream: Stream, step: int) -> list[str]:
    return sorted(record.key for record in stream.which(step))


@pytest.mark.parametrize("hosts", [1, 3])
def test_which_makes_packs_again_from_the_nearest_known_place(text_dataset: MakeDataset, hosts: int) -> None:
    path = text_dataset(53)
    streams = packed(path, hosts)
    foretold = [told(streams[-1], step) for step in range(3)]
    delivered = [sorted(key for stream in streams for key in keys_of(next(stream))) for _ in range(9)]
    assert delivered[:3] == foretold
    assert [told(streams[0], step) for step in range(9)] == delivered
    records = streams[0].which(4)
    assert records.read
    assert {record.host for record in records} == {*range(hosts)}
    assert [record.item for record in records] == sorted(record.item for record in records)
    assert {record.item for record in records} == {*range(48, 60)}
    merged = merge_cursors([stream.cursor() for stream in streams])
    for other in (*packed(path, hosts), *packed(path)):
        other.restore(merged)
        assert [told(other, step) for step in (0, 7, 8)] == [delivered[step] for step in (0, 7, 8)]


def test_which_begins_at_saved_states_and_says_what_is_too_far(text_dataset: MakeDataset) -> None:
    (stream,) = packed(text_dataset(53))
    delivered: list[list[str]] = []
    for step in range(200):
        delivered.append(keys_of(next(stream)))
        stream.cursor(with_manifest=True)
        if step % 40 == 39:
            assert told(stream, step - 5) == sorted(delivered[step - 5])
    with pytest.raises(StateError, match=r"nearest known place is step 200, and \d+ items, more than 1048576"):
        stream.which(10**18)


def test_which_reads_nothing_where_lanes_look_at_nothing(text_dataset: MakeDataset) -> None:
    """Batches in lanes, blended, repeated and cut; then with a broken sample, which only reading tells."""

    def opened(broken: tuple[int, ...]) -> Stream:
        def leaf(n: int) -> BatchDataset:
            path = text_dataset(n, broken=broken)
            whole = samples(path, repeat=False, lanes=8, task_encoder=Tolerant())
            return BatchDataset(whole, 3, together)

        blend = BlendDataset((RepeatDataset(leaf(40)), 2), (LimitDataset(leaf(30), 9), 1))
        return Stream.of(BatchDataset(ShuffleBufferDataset(MapDataset(blend, lambda piece: piece), 16), 4, together))

    for broken, read in (((), False), ((2,), True)):
        stream = opened(broken)
        batches = [sorted(keys_of(next(stream))) for _ in range(60)]
        assert [told(stream, step) for step in (0, 17, 59)] == [batches[step] for step in (0, 17, 59)]
        assert stream.which(17).read is read
        other = opened(broken)
        other.restore(stream.cursor())
        assert told(other, 17) == batches[17]
        ahead = other.which(66)
        if not read:
            assert not ahead.read
            assert sorted(record.key for record in ahead) == [sorted(keys_of(next(other))) for _ in range(7)][-1]
    with pytest.raises(StateError, match="have to be walked through from there"):
        opened(()).which(10**18)


def test_which_knows_no_samples_of_functions_of_streams(text_dataset: MakeDataset) -> None:
    leaf = samples(text_dataset(53))
    stream = Stream.of(BatchDataset(IterMapDataset(leaf, iter), 4, together))
    with pytest.raises(StateError, match="IterMapDataset"):
        stream.which(0)


def test_which_refuses_what_was_before_other_data(text_dataset: MakeDataset) -> None:
    (before,) = packed(text_dataset(53))
    for _ in range(3):
        next(before)
    (stream,) = packed(text_dataset(48))
    stream.restore(before.cursor(), allow_changes=True)
    with pytest.raises(StateError, match="allow_changes, at step 3"):
        stream.which(1)
    foretold = told(stream, 4)
    next(stream)
    assert foretold == sorted(keys_of(next(stream)))


def as_often(sample: int) -> Iterator[tuple[int, int]]:
    for part in range(sample % 3):
        yield sample, part


GRAPHS = {
    "positions": lambda leaf: BatchDataset(leaf, 2, rolled),
    "endless positions": lambda leaf: BatchDataset(RepeatDataset(leaf), 2, rolled),
    "packs": lambda leaf: BatchDataset(PackingDataset(leaf, 4, threes, rolled), 2, rolled),
    "endless generated": lambda leaf: BatchDataset(MapDataset(RepeatDataset(leaf), as_often), 2, rolled),
    "epochs of packs": lambda leaf: EpochizeDataset(
        BatchDataset(PackingDataset(leaf, 4, threes, rolled), 1, rolled), 7
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("skips", [[(0, 3)], [(2, 1), (5, 2)], [(1, 1), (2, 1), (3, 2)]])
def test_skipping_is_stepping_over(text_dataset: MakeDataset, name: str, skips: list[tuple[int, int]]) -> None:
    def make() -> Stream:
        return Stream.of(GRAPHS[name](mixed(text_dataset(37))))

    expected, stream, found = take(make(), 12), make(), {}
    wanted = dict(skips)
    step = 0
    while step < 7:
        if step in wanted:
            steps = wanted.pop(step)
            stream.skip(steps)
            step += steps
            continue
        found[step] = next(stream)
        step += 1
    assert found == {at: expected[at] for at in found}
    cursor = stream.cursor()
    assert cursor["step"] == 7
    assert cursor["skipped"] == [list(skip) for skip in skips]
    other = make()
    other.restore(json.loads(json.dumps(cursor)))
    assert other.cursor() == cursor
    assert take(other, 5) == expected[7:]
    assert other.cursor()["skipped"] == cursor["skipped"]


@pytest.mark.parametrize("name", ["positions", "packs"])
def test_no_more_than_the_pass_has(text_dataset: MakeDataset, name: str) -> None:
    def make() -> Stream:
        return Stream.of(GRAPHS[name](mixed(text_dataset(13))))

    steps = len(list(make()))
    stream = make()
    stream.skip(steps)
    with pytest.raises(StopIteration):
        next(stream)
    assert next(iter(stream)) == take(make(), steps + 2)[-1]
    stream = make()
    with pytest.raises(StateError, match=rf"skip\({steps + 1}\)"):
        stream.skip(steps + 1)


def test_a_pass_of_positions_knows_beforehand(text_dataset: MakeDataset) -> None:
    stream = Stream.of(GRAPHS["positions"](mixed(text_dataset(13))))
    first = next(stream)
    with pytest.raises(StateError, match=r"skip\(7\): this pass has 6 steps left"):
        stream.skip(7)
    assert stream.cursor()["step"] == 1
    assert stream.cursor()["skipped"] == []
    assert next(stream) != first
    limited = Stream.of(LimitDataset(GRAPHS["positions"](mixed(text_dataset(13))), 3))
    with pytest.raises(StateError, match="3 steps left"):
        limited.skip(4)


@pytest.mark.parametrize(("steps", "error"), [(-1, ValueError), (1.5, TypeError), ("3", TypeError), (None, TypeError)])
def test_a_number_of_steps_is_meant(text_dataset: MakeDataset, steps: Any, error: type[Exception]) -> None:
    for name in ("positions", "packs"):
        stream = Stream.of(GRAPHS[name](mixed(text_dataset(37))))
        with pytest.raises(error):
            stream.skip(steps)
        assert stream.cursor()["step"] == 0


def test_no_step_is_no_skip(text_dataset: MakeDataset) -> None:
    stream = Stream.of(GRAPHS["positions"](mixed(text_dataset(13))))
    stream.skip(0)
    assert stream.cursor()["skipped"] == []


def test_positions_are_not_read(text_dataset: MakeDataset) -> None:
    seen: list[int] = []

    def look(sample: Any) -> int:
        seen.append(number(sample))
        return number(sample)

    stream = Stream.of(BatchDataset(MapDataset(RepeatDataset(in_order(text_dataset(53))), look), 2, tuple))
    stream.skip(10_000_000)
    assert next(stream) == (20_000_000 % 53, 20_000_001 % 53)
    assert len(seen) < 1000


def test_which_is_right_behind_a_skip(text_dataset: MakeDataset) -> None:
    path = text_dataset(53)

    def make() -> Stream:
        return Stream.of(BatchDataset(RepeatDataset(mixed(path)), 3, tuple))

    stream = make()
    take(stream, 2)
    stream.skip(5)
    batch = next(stream)
    assert tuple(int(record.key) for record in stream.which(7)) == batch
    assert tuple(int(record.key) for record in stream.which(4)) == take(make(), 5)[4]


def test_all_hosts_skip_together(text_dataset: MakeDataset) -> None:
    path = text_dataset(53)

    def make(worker_config: Any) -> SavableDataset:
        return PackingDataset(RepeatDataset(mixed(path, worker_config=worker_config)), 4, threes, rolled)

    [single] = on_hosts(make, 1, 24)
    streams = [Stream.of(make(config(host, 2))) for host in range(2)]
    for stream in streams:
        next(stream)
        stream.skip(3)
    assert [next(stream) for stream in streams] == single[8:10]
    merged = merge_cursors([stream.cursor() for stream in streams])
    assert merged["skipped"] == [[1, 3]]
    four = [Stream.of(make(config(host, 4))) for host in range(4)]
    for stream in four:
        stream.restore(merged)
    assert sorted(next(stream) for stream in four) == sorted(single[10:14])


@pytest.mark.parametrize("get", [get_loader, get_savable_loader])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_through_a_loader(text_dataset: MakeDataset, get: Any, num_workers: int) -> None:
    dataset = GRAPHS["packs"](mixed(text_dataset(53), worker_config=config(num_workers=num_workers)))
    expected = take(Stream.of(dataset, num_workers=0), 6)
    loader = get(dataset)
    assert next(loader) == expected[0]
    loader.skip(3)
    assert [next(loader), next(loader)] == expected[4:]
    loader.close()
