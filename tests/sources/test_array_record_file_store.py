"""Parts of records by name."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from records import msgpack_record, write_shards

from energon_grain.errors import KeyNotFoundError
from energon_grain.prepare import prepare_dataset
from energon_grain.sources.array_record import ArrayRecordFileStore
from energon_grain.storage.epath import EPath

SAMPLES = [
    {"__key__": "a/b", "jpg": b"1", "left.jpg": b"2"},
    {"__key__": "v1.5", "jpg": b"3"},
    {"__key__": "v1", "5.jpg": b"4"},
    {"__key__": "z", "txt": b"5"},
]


@pytest.fixture
def store(tmp_path: Path) -> ArrayRecordFileStore:
    write_shards(tmp_path, [msgpack_record(sample) for sample in SAMPLES], 2)
    prepare_dataset(tmp_path, records="msgpack", split_ratio={"train": 1}, crude=True)
    return ArrayRecordFileStore(tmp_path)


def test_parts_by_name(store: ArrayRecordFileStore, tmp_path: Path) -> None:
    keys = ["z.txt", "a/b.left.jpg", "a/b.jpg", "z.txt"]
    found = store.read(keys)
    assert [value for value, _ in found] == [b"5", b"2", b"1", b"5"]
    assert found[1][1].shard_name == "shard_000.array_record"
    assert (found[1][1].dataset_path, found[1][1].file_names) == (EPath(tmp_path), ("a/b.left.jpg",))
    assert store.read([]) == []
    assert store.get_path() == str(tmp_path)


def test_dots_in_keys(store: ArrayRecordFileStore) -> None:
    assert store.get("v1.5.jpg") == b"4"  # the shorter key first
    assert "v1.jpg" not in store


def test_what_is_not_there(store: ArrayRecordFileStore) -> None:
    for key in ("z.jpg", "z", "none.txt", "a/b.", ".jpg", ""):
        assert key not in store
        with pytest.raises(KeyNotFoundError, match=r"there is no part .*; .*There are parts jpg, left\.jpg"):
            store.read([key])
    assert 7 not in store


def test_copies(store: ArrayRecordFileStore) -> None:
    copy = pickle.loads(pickle.dumps(store))
    assert copy is store  # this process has it open
    other = ArrayRecordFileStore(store.get_path())
    assert (other, hash(other), other.get("z.txt")) == (store, hash(store), b"5")
    store.close()
    assert store.get("z.txt") == b"5"
