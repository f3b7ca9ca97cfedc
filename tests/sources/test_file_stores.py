"""File stores of all kinds: values by key and nothing else, errors for what is not there, and copies."""

from __future__ import annotations

import os
import pickle
import tarfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from object_server import Bucket, Fault
from patience import PATIENCE_S
from records import msgpack_record, write_shards

from energon_grain import (
    CrudeSample,
    EPath,
    FileStore,
    ObjectFileStore,
    SourceInfo,
    StorageSettings,
    SystemFileStore,
    WebdatasetFileStore,
    use_storage,
)
from energon_grain.errors import ConfigError, DatasetNotFoundError, KeyNotFoundError, ReadError, StaleIndexError
from energon_grain.formats.data_folder import DataFolder
from energon_grain.formats.local_files import LocalFiles
from energon_grain.kinds.array_record.source import ArrayRecordFileStore
from energon_grain.kinds.jsonl.source import JsonlFileStore
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import check_store, write_tars

Made = tuple[FileStore[Any], dict[str, tuple[bytes, str]], tuple[str, ...], str]
"""A store; value and shard by key; keys that are not there; and what the error says of them."""


def tars(root: Path) -> Made:
    write_tars(root, [{"__key__": f"a/{i}", "txt": b"%d" % i, "left.jpg": b"x%d" % i} for i in range(4)], shards=2)
    prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0, sqlite=False)
    found = {f"a/{i}.txt": (b"%d" % i, f"shard_00{i // 2}.tar") for i in range(4)}
    found["a/1.left.jpg"] = b"x1", "shard_000.tar"
    return WebdatasetFileStore(root), found, ("a/1.jpg", "a/9.txt", "a/1", "", ".txt"), "no file"


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
    return ArrayRecordFileStore(root), found, missing, r"no part .*; .*one of jpg, left\.jpg"


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
    store, found, missing, _ = made
    kind: Any = type(store)
    check_store(lambda: kind(store.get_path()), {key: value for key, (value, _) in found.items()}, missing)
    assert [source.shard_name for _, source in store.read([*found])] == [shard for _, shard in found.values()]
    assert store.get_path() in repr(store)


def test_what_is_not_there(made: Made) -> None:
    store, found, missing, says = made
    for key in missing:
        with pytest.raises(KeyNotFoundError, match=says):
            store.read([next(iter(found)), key])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    base = tmp_path / "files"
    (base / "sub").mkdir(parents=True)
    (base / "a.txt").write_bytes(b"a")
    (base / "sub" / "large.bin").write_bytes(bytes(range(256)) * 1000)
    (base / "empty").write_bytes(b"")
    (base / "link.txt").symlink_to("sub/large.bin")
    (base / "out.txt").symlink_to(tmp_path / "secret.txt")
    (base / "out").symlink_to(tmp_path)
    (base / "circle").symlink_to("circle")
    (tmp_path / "secret.txt").write_bytes(b"secret")
    (tmp_path / "files2").mkdir()
    (tmp_path / "files2" / "near.txt").write_bytes(b"near")
    return base


def test_files_by_their_paths(folder: Path) -> None:
    store = SystemFileStore(folder)
    for key in ("a.txt", "sub/large.bin", "empty", "link.txt", "sub/../a.txt", "./a.txt"):
        assert key in store
        content = (folder / key).read_bytes()
        source = SourceInfo(dataset_path=EPath(folder), index=key, shard_name=str(folder), file_names=(key,))
        assert store[key] == (content, source)
    assert [value for value, _ in store.read(["a.txt", "empty", "a.txt"])] == [b"a", b"", b"a"]
    assert store.get_path() == str(folder)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("../secret.txt", "leads out of this folder"),
        ("sub/../../secret.txt", "leads out of this folder"),
        ("../files2/near.txt", "leads out of this folder"),
        ("out.txt", "leads out of this folder"),
        ("out/secret.txt", "leads out of this folder"),
        ("/etc/hostname", "leads out of this folder"),
        ("b.txt", "no file 'b.txt'"),
        ("a.txt/b", "no file"),
        ("circle", "no file"),
        ("x" * 5000, "no file"),
        ("sub", "is not a file"),
        (".", "is not a file"),
        ("", "is not a file name"),
        ("a\0.txt", "is not a file name"),
    ],
)
def test_other_keys_are_key_errors(folder: Path, key: str, says: str) -> None:
    store = SystemFileStore(folder)
    assert key not in store
    with pytest.raises(KeyNotFoundError) as caught:
        store.get(key)
    assert str(caught.value).startswith(f"{folder}: ")
    assert says in str(caught.value)


def test_absolute_paths_are_refused_even_below_the_folder(folder: Path) -> None:
    with pytest.raises(KeyNotFoundError, match="leads out"):
        SystemFileStore(folder).get(str(folder / "a.txt"))


def test_the_folder_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(folder)
    assert SystemFileStore(tmp_path / "alias").get("sub/large.bin") == (folder / "sub" / "large.bin").read_bytes()


def test_few_files_stay_open(folder: Path) -> None:
    store = SystemFileStore(folder)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        (folder / f"{number}.txt").write_text(str(number))
        assert store.get(f"{number}.txt") == str(number).encode()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_a_read_error(folder: Path) -> None:
    (folder / "a.txt").chmod(0)
    with pytest.raises(ReadError, match=r"a\.txt: Permission denied"):
        SystemFileStore(folder).get("a.txt")


def test_there_must_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="no such folder"):
        SystemFileStore(tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"s3://bucket/files: .*ObjectFileStore"):
        SystemFileStore("s3://bucket/files")
    assert SystemFileStore(f"file://{tmp_path}").get_path() == str(tmp_path)


OBJECTS = {
    "files/a.txt": b"a",
    "files/empty": b"",
    "files/sub/large.bin": bytes(range(256)) * 40_000,
    "files/with space, ä, 100%25, ?#.txt": b"strange",
    "files2/near.txt": b"near",
    "secret.txt": b"secret",
}


@pytest.fixture
def url(bucket: Bucket) -> str:
    for key, content in OBJECTS.items():
        bucket.put(key, content, public=True)
    bucket.server.reset()
    return f"{bucket.url}/files"


def test_objects_by_their_names(bucket: Bucket, url: str) -> None:
    store = ObjectFileStore(f"{url}/")
    assert store.get_path() == url
    for key in OBJECTS:
        folder, _, name = key.partition("/")
        if folder == "files":
            assert name in store
            source = SourceInfo(dataset_path=EPath(url), index=name, shard_name=url, file_names=(name,))
            assert store[name] == (OBJECTS[key], source)
    assert [store.get(key) for key in ("sub/../a.txt", "./a.txt")] == [b"a", b"a"]


def test_several_come_side_by_side_and_each_once(bucket: Bucket, url: str) -> None:
    for number in range(40):
        bucket.put(f"files/{number}", str(number).encode())
    use_storage(StorageSettings(requests_in_flight=8))
    store = ObjectFileStore(url)
    bucket.server.reset()
    bucket.server.delay(0.02)
    keys = [str(number % 40) for number in range(60)]
    assert [int(value) for value, _ in store.read(keys)] == [int(key) for key in keys]
    requests = bucket.server.requests("files/")
    assert len(requests) == 40
    assert 4 < max(request.concurrent for request in requests) <= 8


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("../secret.txt", "leads out of this folder"),
        ("sub/../../secret.txt", "leads out of this folder"),
        ("../files2/near.txt", "leads out of this folder"),
        ("/files/a.txt", "leads out of this folder"),
        ("..", "leads out of this folder"),
        ("b.txt", "no object 'b.txt'"),
        ("a.txt/b", "no object"),
        ("sub", "no object"),
        ("%2e%2e/secret.txt", "no object"),
        ("sub/", "is not a valid object name"),
        (".", "is not a valid object name"),
        ("", "is not a valid object name"),
        ("a\0.txt", "is not a valid object name"),
        ("\ud800", "is not a valid object name"),
        ("x" * 5000, "is not a valid object name"),
    ],
)
def test_other_keys_are_key_errors_in_stores(bucket: Bucket, url: str, key: str, says: str) -> None:
    for base in (url, url.replace("s3:/", bucket.server.endpoint)):
        store = ObjectFileStore(base)
        assert key not in store
        with pytest.raises(KeyNotFoundError) as caught:
            store.read(["a.txt", key])
        assert str(caught.value).startswith(f"{base}: ")
        assert says in str(caught.value)


def test_on_the_web_names_mean_themselves(bucket: Bucket, url: str) -> None:
    store = ObjectFileStore(url.replace("s3:/", bucket.server.endpoint))
    assert store.get("a.txt") == b"a"
    assert store.get("with space, ä, 100%25, ?#.txt") == b"strange"


def test_copies_are_reached_alike(bucket: Bucket, url: str) -> None:
    use_storage(StorageSettings(attempts=2))
    store = ObjectFileStore(url)
    use_storage(None)
    copy = pickle.loads(pickle.dumps(store))
    assert copy == store
    assert copy._client is store._client
    assert ObjectFileStore(url) == store
    assert store != ObjectFileStore(bucket.url)
    with get_context("spawn").Pool(1) as pool:
        assert pool.apply(store.get, ("a.txt",)) == b"a"


def test_failures(bucket: Bucket, url: str) -> None:
    use_storage(StorageSettings(attempts=3, first_pause_s=0.001))
    store = ObjectFileStore(url)
    bucket.server.inject(Fault("status", times=1), Fault("close", sent=0.5, times=1))
    assert store.get("sub/large.bin") == OBJECTS["files/sub/large.bin"]
    bucket.server.inject(Fault("status", times=None))
    with pytest.raises(ReadError, match=f"{url}/a.txt failed: .*3 attempts"):
        store.get("a.txt")
    with pytest.raises(ReadError):
        assert "a.txt" in store


def test_what_is_no_store() -> None:
    with pytest.raises(ConfigError, match="SystemFileStore"):
        ObjectFileStore("/data/files")
    with pytest.raises(ConfigError, match="object stores are s3://"):
        ObjectFileStore("ftp://host/files")


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
        ("dotted0.txt", "and no sample 'dotted0'"),  # names are not normalised
        ("../plain0.txt", "and no sample"),
        ("/etc/passwd", "full name"),
        ("plain9.txt", "and no sample"),
        ("", "full name"),
        (".txt", "full name"),
        ("sub/.txt", "and no sample"),
        ("__meta__/x.txt", "full name"),
    ],
)
def test_a_missing_key_is_a_key_error(dataset: Path, key: str, says: str) -> None:
    store = WebdatasetFileStore(dataset)
    assert key not in store
    with pytest.raises(KeyError) as caught:
        store.read(["plain1.txt", key])
    assert type(caught.value) is KeyNotFoundError
    assert str(caught.value).startswith(f"{dataset}: no file {key!r}")
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
    with pytest.raises(StaleIndexError, match=r"shard_001\.tar: was indexed with \d+ bytes .* but has \d+ bytes"):
        store.get("3.txt")


def test_a_folder_that_is_not_prepared(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="energon-grain prepare"):
        WebdatasetFileStore(tmp_path)
