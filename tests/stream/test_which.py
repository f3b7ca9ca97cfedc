"""Telling the samples of a step without reading data."""

from __future__ import annotations

from stream_hosts import MakeDataset, global_batch, open_hosts

from energon_grain import merge_cursors


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
