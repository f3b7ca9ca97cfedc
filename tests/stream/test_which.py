"""Telling the samples of a step without reading data."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from metadatasets import write_v2
from stream_hosts import MakeDataset, Tolerant, config, global_batch, open_hosts, open_stream

from energon_grain import SkipSample, StateError, Stream, TaskEncoder, get_val_dataset, merge_cursors
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
def test_which_is_right_or_refuses_after_a_dropped_batch(text_dataset: MakeDataset, repeat: bool) -> None:
    stream = open_stream(text_dataset(53), task_encoder=SkipsBatches(), repeat=repeat, last_batch="drop")
    other = open_stream(text_dataset(53), task_encoder=SkipsBatches(), repeat=repeat, last_batch="drop")
    refused = told = 0
    batches: list[list[str]] = []
    for step, batch in enumerate(stream):
        other.restore(stream.cursor(with_manifest=True))
        batches.append(list(batch.__key__))
        for asked in (step, 0, step // 2):
            for host in (stream, other):
                try:
                    records = host.which(asked)
                except StateError:
                    refused += 1
                else:
                    told += 1
                    assert [record.key for record in records] == batches[asked]
        if step == 30:
            break
    assert refused
    assert told


def test_which_does_not_forget_the_drops_of_earlier_passes(text_dataset: MakeDataset) -> None:
    path = text_dataset(53, broken=range(9))
    stream = open_stream(path, repeat=False, task_encoder=Tolerant())
    first = list(stream)
    assert len(first) == 11
    with pytest.raises(StateError, match="dropped"):
        stream.which(3)
    iter(stream)
    merged = merge_cursors([stream.cursor()])
    other = open_stream(path, repeat=False, task_encoder=Tolerant())
    other.restore(merged)
    for told in (stream, other):
        with pytest.raises(StateError, match="dropped"):
            told.which(3)
        records = told.which(len(first))
        assert records[0].epoch == 1


def test_which_on_one_of_several_hosts_keeps_what_a_merge_knows(text_dataset: MakeDataset) -> None:
    path = text_dataset(53, broken={0})
    streams = [open_stream(path, repeat=False, worker_config=config(host, 2), batch_size=2) for host in range(2)]
    for stream in streams:
        list(stream)
        iter(stream)
    [one] = [open_stream(path, repeat=False)]
    one.restore(merge_cursors([stream.cursor() for stream in streams]))
    with pytest.raises(StateError, match="dropped"):
        one.which(0)


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
