"""Jumping over steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from small_graphs import in_order, mixed, number, on_hosts, rolled, take, threes
from stream_hosts import MakeDataset, config

from energon_grain import (
    BatchDataset,
    EpochizeDataset,
    LimitDataset,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    SavableDataset,
    StateError,
    Stream,
    get_loader,
    get_savable_loader,
    merge_cursors,
)


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
