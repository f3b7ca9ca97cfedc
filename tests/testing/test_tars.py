"""Writing samples as tars."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from energon_grain import ConfigError
from energon_grain.formats.tar.scan import scan_tar
from energon_grain.testing import write_tars


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def test_values_become_files(tmp_path: Path) -> None:
    sample: dict[str, Any] = {
        "__key__": "a/b",
        "bin": b"\0\1",
        "txt": "größe",
        "cls": 7,
        "json": {"a": [1, "é"]},
        "npy": np.arange(3),
    }
    (path,) = write_tars(tmp_path, [sample])
    found = members(path)
    assert found["a/b.bin"] == b"\0\1"
    assert found["a/b.txt"].decode() == "größe"
    assert found["a/b.cls"] == b"7"
    assert found["a/b.json"].decode() == '{"a": [1, "é"]}'
    np.testing.assert_array_equal(np.load(io.BytesIO(found["a/b.npy"])), np.arange(3))


@given(count=st.integers(0, 20), shards=st.integers(1, 6))
def test_shards_are_even_runs(tmp_path_factory: pytest.TempPathFactory, count: int, shards: int) -> None:
    root = tmp_path_factory.mktemp("tars")
    paths = write_tars(root, ({"__key__": f"{i:02}", "cls": i} for i in range(count)), shards=shards)
    keys = [scan_tar(path).keys() for path in paths]
    assert [key for shard in keys for key in shard] == [f"{i:02}" for i in range(count)]
    assert len(paths) == shards
    assert max(map(len, keys)) - min(map(len, keys)) <= 1


def test_samples_per_shard_and_names(tmp_path: Path) -> None:
    samples = ({"__key__": str(i), "cls": i} for i in range(7))
    paths = write_tars(tmp_path, samples, samples_per_shard=3, name="parts/{}/x.tar")
    assert [str(path.relative_to(tmp_path)) for path in paths] == ["parts/0/x.tar", "parts/1/x.tar", "parts/2/x.tar"]
    assert [len(scan_tar(path)) for path in paths] == [3, 3, 1]


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_formats(tmp_path: Path, tar_format: int) -> None:
    key = "deep/" * 15 + "x" * 90 if tar_format != tarfile.USTAR_FORMAT else "x"
    (path,) = write_tars(tmp_path, [{"__key__": key, "txt": "1"}], tar_format=tar_format)
    assert scan_tar(path).keys() == [key]


def test_impossible_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not both"):
        write_tars(tmp_path, [], shards=1, samples_per_shard=1)
    with pytest.raises(ConfigError, match="at least 1"):
        write_tars(tmp_path, [], shards=0)
    with pytest.raises(ConfigError, match="no `__key__`"):
        write_tars(tmp_path, [{"txt": "1"}])
