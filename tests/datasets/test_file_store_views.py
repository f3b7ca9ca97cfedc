"""Stores on top of stores: decoded values, and parts of the current sample."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from energon_grain import EPath, FileStore, FileStoreCachePool, SourceInfo
from energon_grain.datasets.file_store_views import DecodeFileStore, PrimaryFileStore
from energon_grain.errors import DecodingError, KeyNotFoundError
from energon_grain.sources.file_store import SystemFileStore
from energon_grain.sources.webdataset import WebdatasetFileStore
from energon_grain.testing import make_crude_dataset
from energon_grain.testing.tars import encode_part
from energon_grain.transforms.decode import SampleDecoder


def test_values_are_decoded_by_the_endings_of_keys(tmp_path: Path) -> None:
    for name, value in {"a.txt": "text", "a.left.json": [1, 2], "raw.bin": b"\0", "array.npy": np.arange(3)}.items():
        (tmp_path / name).write_bytes(encode_part(value))
    (tmp_path / "broken.json").write_bytes(b"{")
    store = DecodeFileStore(SystemFileStore(tmp_path), decoder=SampleDecoder())
    assert (store.get("a.txt"), store.get("a.left.json"), store.get("raw.bin")) == ("text", [1, 2], b"\0")
    assert store.get("array.npy").tolist() == [0, 1, 2]
    assert [value for value, _ in store.read(["a.txt", "a.left.json"])] == ["text", [1, 2]]
    assert store["a.txt"][1].file_names == ("a.txt",)
    assert "a.txt" in store
    assert "b.txt" not in store
    assert store.get_path() == str(tmp_path)
    with pytest.raises(DecodingError, match=rf"{tmp_path}: broken\.json: part 'json'"):
        store.get("broken.json")
    with pytest.raises(KeyNotFoundError, match=r"b\.txt"):
        store.get("b.txt")
    copy = pickle.loads(pickle.dumps(store))
    assert copy == store
    assert hash(copy) == hash(store)
    assert copy.get("a.left.json") == [1, 2]


def test_parts_of_the_current_sample(tmp_path: Path) -> None:
    root = make_crude_dataset(tmp_path / "set", n=6, shards=2)
    inner = DecodeFileStore(WebdatasetFileStore(root), decoder=SampleDecoder())
    store = PrimaryFileStore(inner, "000004")
    sample = {"__sources__": ()}
    assert store.get(".json", sample)["number"] == 4
    assert store.get("000001.json", sample)["number"] == 1
    assert [source.file_names for source in sample["__sources__"]] == [("000004.json",), ("000001.json",)]
    assert store[".txt"] == inner["000004.txt"]
    assert ".json" in store
    assert ".jpg" not in store
    assert 3 not in store
    assert store.get_path() == str(root)
    with pytest.raises(KeyNotFoundError, match=r"no file '000004\.jpg'"):
        store.get(".jpg")
    assert pickle.loads(pickle.dumps(store)) == store
    store.close()
    assert store.get(".json")["number"] == 4


def test_what_is_stored_and_what_is_made_of_it(tmp_path: Path) -> None:
    root = make_crude_dataset(tmp_path / "set", n=3, shards=1)
    inner = WebdatasetFileStore(root)
    decoding = DecodeFileStore(inner, decoder=SampleDecoder())
    part = PrimaryFileStore(decoding, "000002")
    data, source = part.stored(".json")
    assert (data, source) == decoding.stored("000002.json") == inner.stored("000002.json") == inner["000002.json"]
    assert part.decoded(".json", data) == decoding.decoded("000002.json", data) == part.get(".json")
    assert inner.decoded("000002.json", data) == data
    with pytest.raises(DecodingError, match=rf"{root}: 000002\.json"):
        part.decoded(".json", b"{")


class OneByOne(FileStore[bytes]):
    """A store as Energon has it: two methods."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        info = SourceInfo(dataset_path=EPath("/somewhere"), index=key, shard_name="x", file_names=(key,))
        return self.files[key], info

    def get_path(self) -> str:
        return "/somewhere"


class Shouting(SampleDecoder):
    def decode(self, fname: str, raw: bytes) -> str:
        return f"{fname}: {raw.decode().upper()}"


def test_a_store_of_ones_own_needs_two_methods(tmp_path: Path) -> None:
    store = OneByOne({"a.txt": b"one", "b.txt": b"two"})
    sample = {"__sources__": None}
    assert store.get("a.txt", sample) == b"one"
    assert [source.index for source in sample["__sources__"] or ()] == ["a.txt"]
    assert [value for value, _ in store.read(["b.txt", "a.txt"])] == [b"two", b"one"]
    assert "a.txt" in store
    assert "c.txt" not in store
    shouted = DecodeFileStore(store, decoder=Shouting())
    assert shouted.get("a.txt") == "a.txt: ONE"
    assert "c.txt" not in shouted
    part = PrimaryFileStore(DecodeFileStore(store, decoder=SampleDecoder()), "b")
    assert (part.get(".txt"), ".jpg" in part) == ("two", False)
    pool = FileStoreCachePool(parent_cache_dir=tmp_path)
    assert pool.get_lazy(shouted, "b.txt").get() == "b.txt: TWO"
    pool.close()


def test_a_store_says_how_values_are_read() -> None:
    class Silent(FileStore[bytes]):
        def get_path(self) -> str:
            return "/somewhere"

    with pytest.raises(TypeError, match="Silent has neither `read` nor `__getitem__`"):
        Silent()
