"""Whole files by their location, and objects as a scan reads them: the same bytes, few requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from object_server import Bucket, Fault

from energon_grain import StorageSettings, use_storage
from energon_grain.errors import ConfigError, ReadError, StaleIndexError
from energon_grain.storage.object_bytes import ObjectBytes, read_beginning, read_whole
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


SIZE = (20 << 20) + 777
CONTENT = np.random.default_rng(0).bytes(SIZE)
STEPS = st.tuples(st.sampled_from(["alone", "near", "fill"]), st.integers(0, SIZE), st.sampled_from([1, 512, 300_000]))


@pytest.fixture
def opened(bucket: Bucket) -> Callable[[], ObjectBytes]:
    bucket.put("x.tar", CONTENT)
    return lambda: ObjectBytes(f"{bucket.url}/x.tar")


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEPS, max_size=8))
def test_any_steps_give_the_bytes_of_the_object(
    opened: Callable[[], ObjectBytes], steps: list[tuple[str, int, int]]
) -> None:
    data = opened()
    assert data.size_bytes == SIZE
    for how, offset, size in steps:
        if how == "fill":
            buffer = bytearray(size)
            found = bytes(buffer[: data.fill(memoryview(buffer), offset)])
        else:
            found = data.alone(offset, size) if how == "alone" else data.near(offset, size)
        assert found == CONTENT[offset : offset + size]


def test_a_walk_through_small_members_fetches_each_byte_once(opened: Callable[[], ObjectBytes], bucket: Bucket) -> None:
    data = opened()
    bucket.server.reset()
    for offset in range(0, SIZE, 10_000):
        data.near(offset, 512)
    requests = bucket.server.requests("x.tar")
    assert sum(request.sent_bytes for request in requests) <= SIZE
    assert len(requests) <= 12
    assert max(request.concurrent for request in requests) > 1


def test_a_walk_through_large_members_passes_over_them(opened: Callable[[], ObjectBytes], bucket: Bucket) -> None:
    data = opened()
    bucket.server.reset()
    for offset in range(0, SIZE, 1 << 20):
        data.alone(offset, 512)
        data.alone(offset + 2048, 512)  # a small member behind a large one comes in the same request
    requests = bucket.server.requests("x.tar")
    assert len(requests) <= 20
    assert sum(request.sent_bytes for request in requests) <= 20 * (16 << 10)


def test_many_small_members_behind_a_large_one_take_few_requests(
    opened: Callable[[], ObjectBytes], bucket: Bucket
) -> None:
    data = opened()
    data.alone(8 << 20, 512)
    bucket.server.reset()
    for place in range(20):
        data.alone((8 << 20) + place * 10_000, 512)
    assert len(bucket.server.requests("x.tar")) <= 4


def test_an_object_that_changes_is_an_error(opened: Callable[[], ObjectBytes], bucket: Bucket) -> None:
    data = opened()
    bucket.put("x.tar", CONTENT[::-1])
    with pytest.raises(StaleIndexError, match=r"x\.tar: was replaced while it was read"):
        data.alone(8 << 20, 512)
    data = opened()
    bucket.put("x.tar", CONTENT[:1000])
    with pytest.raises(StaleIndexError, match="replaced by a shorter one"):
        data.near(8 << 20, 512)


def test_what_is_not_there_is_an_error(bucket: Bucket) -> None:
    with pytest.raises(ReadError, match=r"none\.tar: there is no such object"):
        ObjectBytes(f"{bucket.url}/none.tar")


def test_an_empty_object_has_no_bytes(bucket: Bucket) -> None:
    bucket.put("empty", b"")
    data = ObjectBytes(f"{bucket.url}/empty")
    assert (data.size_bytes, data.alone(0, 512), data.near(0, 512)) == (0, b"", b"")
