"""WebdatasetFileStore against `tarfile`: every member by its name, from shards that are opened once."""

from __future__ import annotations

import os
import tarfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from patience import PATIENCE_S

from energon_grain import CrudeSample, EPath, SourceInfo, WebdatasetFileStore
from energon_grain.errors import DatasetNotFoundError, KeyNotFoundError, StaleIndexError
from energon_grain.formats.data_folder import DataFolder
from energon_grain.prepare import prepare_dataset
from energon_grain.storage.local import LocalFiles
from energon_grain.testing import write_tars

KEYS = ["plain", "sub/000012", "v1.2/a", "Grüße/日本語", "./dotted", "with space", "deep/er/x"]


def prepared(root: Path, samples: list[dict[str, Any]], **options: Any) -> Path:
    write_tars(root, samples, **options)
    prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0, sqlite=False)
    return root


def members(root: Path) -> dict[str, tuple[str, bytes]]:
    """Shard and content of every member, by `tarfile`."""
    found: dict[str, tuple[str, bytes]] = {}
    for shard in sorted(root.rglob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                payload = tar.extractfile(member)
                assert payload is not None
                found[member.name] = (shard.relative_to(root).as_posix(), payload.read())
    return found


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples: list[dict[str, Any]] = [
        {
            "__key__": f"{key}{number}",
            "txt": f"text {key} {number}",
            "seg.png": os.urandom(20_000 * number),
            **({"json": {"n": number}} if number % 2 else {}),
            **({"": "no ending"} if number == 0 else {}),
        }
        for number in range(3)
        for key in KEYS
    ]
    return prepared(tmp_path_factory.mktemp("store") / "dataset", samples, shards=3)


def test_every_file_by_its_name(dataset: Path) -> None:
    store, expected = WebdatasetFileStore(dataset), members(dataset)
    assert "v1.2/a0.seg.png" in expected
    assert "plain0." in expected
    for key, (shard, content) in expected.items():
        assert key in store
        assert store[key] == (
            content,
            SourceInfo(dataset_path=EPath(dataset), index=key, shard_name=shard, file_names=(key,)),
        )
        assert store.get(key) == content
    assert store.get_path() == str(dataset)
    assert str(dataset) in repr(store)


@given(data=st.data())
def test_several_files_at_once(dataset: Path, data: st.DataObject) -> None:
    expected = members(dataset)
    keys = data.draw(st.lists(st.sampled_from(sorted(expected))))
    store = WebdatasetFileStore(dataset)
    assert [(value, source.index, source.shard_name) for value, source in store.read(keys)] == [
        (expected[key][1], key, expected[key][0]) for key in keys
    ]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("plain0.jpg", "the sample 'plain0' has plain0.txt, plain0.seg.png"),
        ("plain0", "is the full name of a file"),
        ("dotted0.txt", "nor any other of a sample 'dotted0'"),  # names are not normalised
        ("../plain0.txt", "nor any other"),
        ("/etc/passwd", "full name"),
        ("plain9.txt", "nor any other"),
        ("", "full name"),
        (".txt", "full name"),
        ("sub/.txt", "nor any other"),
        ("__meta__/x.txt", "full name"),
    ],
)
def test_a_missing_key_is_a_key_error(dataset: Path, key: str, says: str) -> None:
    store = WebdatasetFileStore(dataset)
    assert key not in store
    with pytest.raises(KeyError) as caught:
        store.read(["plain1.txt", key])
    assert type(caught.value) is KeyNotFoundError
    assert str(caught.value).startswith(f"{dataset}: there is no file {key!r}")
    assert says in str(caught.value)
    assert 5 not in store


def test_provenance_is_added_to_the_sample(dataset: Path) -> None:
    store = WebdatasetFileStore(dataset)
    sample = CrudeSample({"__key__": "x", "__sources__": None})
    store.get("plain1.txt", sample)
    store.get("plain1.json", sample)
    assert [source.index for source in sample["__sources__"]] == ["plain1.txt", "plain1.json"]


def test_shards_are_opened_once(dataset: Path) -> None:
    """L-09: the original opens the shard for every file that is read from it."""
    opened: list[str] = []

    class Counting(LocalFiles):
        def _file(self, path: str) -> Any:
            if path not in self._open:
                opened.append(os.path.basename(path))
            return super()._file(path)

    def folder(files: LocalFiles) -> DataFolder:
        return DataFolder(location=os.fspath(dataset), local=dataset, store=files)

    store = WebdatasetFileStore(folder(Counting(max_open_files=3)))
    assert opened == []
    for _ in range(5):
        for key in members(dataset):
            store[key]
    assert sorted(opened) == ["shard_000.tar", "shard_001.tar", "shard_002.tar"]
    few = Counting(max_open_files=1)
    store = WebdatasetFileStore(folder(few))
    for key in members(dataset):
        store[key]
        assert len(few._open) == 1
    store.close()
    assert len(few._open) == 0
    assert store.get("plain1.txt") == b"text plain 1"


def test_threads_may_read_at_once(dataset: Path) -> None:
    store, expected = WebdatasetFileStore(dataset), members(dataset)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(store.get, list(expected) * 20))
    assert results == [content for _, content in expected.values()] * 20


def test_a_copy_in_another_process_opens_its_own_files(dataset: Path) -> None:
    store = WebdatasetFileStore(dataset)
    store.get("plain1.txt")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(store.get, "sub/0000122.txt").result(timeout=PATIENCE_S) == b"text sub/000012 2"


def test_the_last_of_equal_names_counts(tmp_path: Path) -> None:
    root = tmp_path / "set"
    root.mkdir()
    with tarfile.open(root / "a.tar", "w") as tar:
        for content in (b"first", b"second"):
            path = tmp_path / "content"
            path.write_bytes(content)
            tar.add(path, "x.txt")
    prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0, sqlite=False)
    assert WebdatasetFileStore(root).get("x.txt") == b"second"


def test_changed_shards_are_refused(tmp_path: Path) -> None:
    root = prepared(tmp_path / "set", [{"__key__": f"{i}", "txt": "x"} for i in range(4)], shards=2)
    store = WebdatasetFileStore(root)
    with open(root / "shard_001.tar", "ab") as file:
        file.write(bytes(512))
    assert store.get("0.txt") == b"x"
    with pytest.raises(StaleIndexError, match=r"shard_001\.tar was indexed with \d+ bytes .* but it has \d+ bytes"):
        store.get("3.txt")


def test_a_folder_that_is_not_prepared(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="energon-grain prepare"):
        WebdatasetFileStore(tmp_path)
