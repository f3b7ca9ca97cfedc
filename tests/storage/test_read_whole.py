"""Files by their location, on this machine, in a bucket and in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from object_server import Bucket, Fault

from energon_grain import StorageSettings, use_storage
from energon_grain.errors import ConfigError, ReadError
from energon_grain.storage.object_bytes import read_beginning, read_whole
from energon_grain.storage.object_client import shared_client
from energon_grain.storage.settings import storage_settings

Put = Callable[[bytes], str]


@pytest.fixture(params=["path", "s3", "memory"])
def put(request: pytest.FixtureRequest, tmp_path: Path, bucket: Bucket) -> Put:
    """Puts a file at a location, and gives that."""

    def make(content: bytes) -> str:
        if request.param == "path":
            (tmp_path / "file").write_bytes(content)
            return str(tmp_path / "file")
        if request.param == "s3":
            bucket.put("a/file", content)
            return f"{bucket.url}/a/file"
        shared_client(storage_settings()).write(f"memory://{bucket.name}/file", content)
        return f"memory://{bucket.name}/file"

    return make


@pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 40])
def test_whole_and_beginnings(put: Put, content: bytes) -> None:
    location = put(content)
    assert read_whole(location) == content
    for size in (1, len(content) or 1, len(content) + 1, len(content) + 1000):
        assert read_beginning(location, size) == content[:size]


def test_what_is_not_there(put: Put, tmp_path: Path) -> None:
    location = put(b"") + "s"
    with pytest.raises(FileNotFoundError, match=location):
        read_whole(location)
    assert read_beginning(location, 10) == b""
    assert read_beginning(str(tmp_path), 10) == b""


def test_failures_name_the_object(bucket: Bucket) -> None:
    bucket.put("x", b"text")
    use_storage(StorageSettings(attempts=1))
    for reading in (read_whole, lambda url: read_beginning(url, 3)):
        bucket.server.inject(Fault("status", times=None))
        with pytest.raises(ReadError, match=f"reading {bucket.url}/x"):
            reading(f"{bucket.url}/x")
    with pytest.raises(ConfigError, match="ftp://host/x: object stores are s3://"):
        read_whole("ftp://host/x")
    with pytest.raises(ConfigError, match="ftp://host/x"):
        read_beginning("ftp://host/x", 3)
