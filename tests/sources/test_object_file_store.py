"""ObjectFileStore: whole objects below a folder of a store, and nothing outside of it."""

from __future__ import annotations

import pickle
from multiprocessing import get_context

import pytest
from object_server import Bucket, Fault

from energon_grain import EPath, ObjectFileStore, SourceInfo, StorageSettings, use_storage
from energon_grain.errors import ConfigError, KeyNotFoundError, ReadError

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
    assert [value for value, _ in store.read(["a.txt", "empty", "a.txt"])] == [b"a", b"", b"a"]
    assert store.read([]) == []


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
        ("b.txt", "there is no object 'b.txt'"),
        ("a.txt/b", "there is no object"),
        ("sub", "there is no object"),
        ("%2e%2e/secret.txt", "there is no object"),
        ("sub/", "is no name of an object"),
        (".", "is no name of an object"),
        ("", "is no name of an object"),
        ("a\0.txt", "is no name of an object"),
        ("\ud800", "is no name of an object"),
        ("x" * 5000, "is no name of an object"),
    ],
)
def test_other_keys_are_key_errors(bucket: Bucket, url: str, key: str, says: str) -> None:
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
