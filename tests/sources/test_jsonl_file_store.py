from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from energon_grain.errors import KeyNotFoundError
from energon_grain.samples.source_info import SourceInfo
from energon_grain.sources.jsonl import JsonlFileStore
from energon_grain.storage.epath import EPath


@pytest.fixture
def store(tmp_path: Path) -> JsonlFileStore:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 0}\n\n{"a": 1}\n{"a": 2}\n')
    return JsonlFileStore(path)


def test_by_number(store: JsonlFileStore) -> None:
    assert [value.strip() for value, _ in store.read(["2.json", "0.json", "2.json"])] == [
        b'{"a": 2}',
        b'{"a": 0}',
        b'{"a": 2}',
    ]
    path = store.get_path()
    info = SourceInfo(dataset_path=EPath(path), index="1.json", shard_name="x.jsonl", file_names=("1.json",))
    assert store["1.json"] == (b'{"a": 1}\n', info)
    assert pickle.loads(pickle.dumps(store)) == store


@pytest.mark.parametrize("key", ["3.json", "-1.json", "01.json", "1", "1.txt", "a.json", ".json", "²" + ".json"])
def test_keys_that_are_not_there(store: JsonlFileStore, key: str) -> None:
    assert key not in store
    with pytest.raises(KeyNotFoundError, match=r"from '0\.json' to '2\.json'"):
        store.get(key)


def test_keys_that_are_there(store: JsonlFileStore) -> None:
    assert "0.json" in store
    assert 0 not in store
