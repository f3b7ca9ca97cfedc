"""What file stores of all kinds have in common: values by key, errors for what is not there, and copies."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from records import msgpack_record, write_shards

from energon_grain import EPath, FileStore, SourceInfo, SystemFileStore, WebdatasetFileStore
from energon_grain.errors import KeyNotFoundError
from energon_grain.prepare import prepare_dataset
from energon_grain.sources.array_record import ArrayRecordFileStore
from energon_grain.sources.jsonl import JsonlFileStore
from energon_grain.testing import write_tars

Made = tuple[FileStore[Any], dict[str, tuple[bytes, str]], tuple[str, ...], str]
"""A store; value and shard by key; keys that are not there; and what the error says of them."""


def tars(root: Path) -> Made:
    write_tars(root, [{"__key__": f"a/{i}", "txt": b"%d" % i, "left.jpg": b"x%d" % i} for i in range(4)], shards=2)
    prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0, sqlite=False)
    found = {f"a/{i}.txt": (b"%d" % i, f"shard_00{i // 2}.tar") for i in range(4)}
    found["a/1.left.jpg"] = b"x1", "shard_000.tar"
    return WebdatasetFileStore(root), found, ("a/1.jpg", "a/9.txt", "a/1", "", ".txt"), "there is no file"


def records(root: Path) -> Made:
    samples = [
        {"__key__": "a/b", "jpg": b"1", "left.jpg": b"2"},
        {"__key__": "v1.5", "jpg": b"3"},
        {"__key__": "v1", "5.jpg": b"4"},
        {"__key__": "z", "txt": b"5"},
    ]
    write_shards(root, [msgpack_record(sample) for sample in samples], 2)
    prepare_dataset(root, records="msgpack", split_ratio={"train": 1}, crude=True)
    shards = "shard_000.array_record", "shard_001.array_record"
    found = {"a/b.left.jpg": (b"2", shards[0]), "a/b.jpg": (b"1", shards[0]), "z.txt": (b"5", shards[1])}
    found["v1.5.jpg"] = b"4", shards[1]  # the shorter key first
    missing = ("z.jpg", "z", "none.txt", "a/b.", ".jpg", "", "v1.jpg")
    return ArrayRecordFileStore(root), found, missing, r"there is no part .*; .*There are parts jpg, left\.jpg"


def lines(root: Path) -> Made:
    (root / "x.jsonl").write_bytes(b'{"a": 0}\n\n{"a": 1}\n{"a": 2}\n')
    found = {f"{i}.json": (b'{"a": %d}\n' % i + (b"\n" if i == 0 else b""), "x.jsonl") for i in range(3)}
    missing = ("3.json", "-1.json", "01.json", "1", "1.txt", "a.json", ".json", "\u00b2.json")
    return JsonlFileStore(root / "x.jsonl"), found, missing, r"from '0\.json' to '2\.json'"


def files(root: Path) -> Made:
    (root / "a").mkdir()
    (root / "a" / "b.txt").write_bytes(b"b")
    (root / "c").write_bytes(b"")
    found = {"a/b.txt": (b"b", str(root)), "c": (b"", str(root))}
    return SystemFileStore(root), found, ("b.txt", "", "a"), "no file|is not a file"


@pytest.fixture(params=[tars, records, lines, files])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    make: Callable[[Path], Made] = request.param
    return make(tmp_path)


def test_values_by_key(made: Made) -> None:
    store, found, _, _ = made
    keys = [*found, *reversed(found)]
    where = EPath(store.get_path())
    assert store.read(keys) == [
        (found[key][0], SourceInfo(dataset_path=where, index=key, shard_name=found[key][1], file_names=(key,)))
        for key in keys
    ]
    assert all(key in store and store[key][0] == store.get(key) == found[key][0] for key in found)
    assert store.read([]) == []
    assert store.get_path() in repr(store)


def test_what_is_not_there(made: Made) -> None:
    store, found, missing, says = made
    for key in missing:
        assert key not in store
        with pytest.raises(KeyNotFoundError, match=says):
            store.read([next(iter(found)), key])
    assert 7 not in store


def test_copies_and_closing(made: Made) -> None:
    store, found, _, _ = made
    copy = pickle.loads(pickle.dumps(store))
    assert (copy, hash(copy)) == (store, hash(store))
    if isinstance(store, (WebdatasetFileStore, ArrayRecordFileStore)):
        assert copy is store  # this process has it open
        other = type(store)(store.get_path())
        assert (other is store, other, hash(other)) == (False, store, hash(store))
        copy = other
    store.close()
    for key, (value, _) in found.items():
        assert copy.get(key) == store.get(key) == value
