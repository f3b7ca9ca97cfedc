"""`.info.json`, `index.uuid`, and what lies at a path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given, strategies as st

from energon_grain.errors import DatasetNotFoundError, IndexFileError
from energon_grain.formats.nv_meta import (
    DatasetInfo,
    DatasetKind,
    dataset_kind,
    read_info,
    read_uuid,
    write_info,
    write_uuid,
)


@pytest.fixture
def meta(tmp_path: Path) -> Path:
    folder = tmp_path / ".nv-meta"
    folder.mkdir()
    return folder


@given(counts=st.dictionaries(st.text(min_size=1), st.integers(0, 1 << 40), max_size=5))
def test_round_trip_keeps_order(tmp_path_factory: pytest.TempPathFactory, counts: dict[str, int]) -> None:
    root = tmp_path_factory.mktemp("info")
    (root / ".nv-meta").mkdir()
    write_info(root, DatasetInfo(shard_counts=counts, energon_version="7.4.0"))
    info = read_info(root)
    assert list(info.shard_counts.items()) == list(counts.items())
    assert info.energon_version == "7.4.0"


def test_written_text_is_energons(tmp_path: Path, meta: Path) -> None:
    write_info(tmp_path, DatasetInfo(shard_counts={"parts/b.tar": 3, "a.tar": 2}, energon_version="7.4.0"))
    text = '{\n  "energon_version": "7.4.0",\n  "shard_counts": {\n    "parts/b.tar": 3,\n    "a.tar": 2\n  }\n}'
    assert (meta / ".info.json").read_text() == text
    write_info(tmp_path, DatasetInfo(shard_counts={"a.tar": 2}))
    assert json.loads((meta / ".info.json").read_text()) == {"shard_counts": {"a.tar": 2}}
    assert not (meta / ".info.yaml").exists()


def test_yaml_of_older_releases_is_read_and_kept_in_step(tmp_path: Path, meta: Path) -> None:
    (meta / ".info.yaml").write_text("shard_counts:\n  b.tar: 7\n  a.tar: 2\n")
    info = read_info(tmp_path)
    assert list(info.shard_counts.items()) == [("b.tar", 7), ("a.tar", 2)]
    assert info.energon_version is None
    write_info(tmp_path, DatasetInfo(shard_counts={"a.tar": 5}))
    assert yaml.safe_load((meta / ".info.yaml").read_text()) == {"shard_counts": {"a.tar": 5}}
    assert read_info(tmp_path).shard_counts == {"a.tar": 5}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", ".info.json"),
        ("[]", "object"),
        ('{"energon_version": "7"}', "shard_counts"),
        ('{"shard_counts": {"a.tar": "5"}}', "$.shard_counts"),
        ('{"shard_counts": {"a.tar": -5}}', "-5"),
        ('{"shard_counts": {}, "extra": 1}', "extra"),
    ],
)
def test_damaged_info_is_refused(tmp_path: Path, meta: Path, content: str, said: str) -> None:
    (meta / ".info.json").write_text(content)
    with pytest.raises(IndexFileError) as caught:
        read_info(tmp_path)
    assert said in str(caught.value)
    assert "energon-grain prepare" in str(caught.value)


def test_unprepared_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="energon-grain prepare"):
        read_info(tmp_path)
    with pytest.raises(DatasetNotFoundError, match="no such file or folder"):
        read_info(tmp_path / "missing")
    (tmp_path / "file").touch()
    with pytest.raises(DatasetNotFoundError, match="is a file"):
        read_info(tmp_path / "file")


def test_uuid(tmp_path: Path, meta: Path) -> None:
    assert read_uuid(tmp_path) is None
    written = write_uuid(tmp_path)
    assert len((meta / "index.uuid").read_bytes()) == 36
    assert read_uuid(tmp_path) == written
    assert write_uuid(tmp_path) != written
    assert write_uuid(tmp_path, written) == written == read_uuid(tmp_path)


def test_kinds(tmp_path: Path, meta: Path) -> None:
    for name in ("x.jsonl", "m.yaml", "m.yml", "x.tar"):
        (tmp_path / name).touch()
    assert dataset_kind(tmp_path / "x.jsonl") is DatasetKind.JSONL
    assert dataset_kind(tmp_path / "m.yaml") is DatasetKind.METADATASET
    assert dataset_kind(tmp_path / "m.yml") is DatasetKind.INVALID
    assert dataset_kind(tmp_path / "x.tar") is DatasetKind.INVALID
    assert dataset_kind(tmp_path / "missing") is DatasetKind.INVALID
    assert dataset_kind(tmp_path) is DatasetKind.INVALID
    (meta / "index.sqlite").touch()
    assert dataset_kind(tmp_path) is DatasetKind.FILESYSTEM
    (meta / ".info.yaml").touch()
    assert dataset_kind(tmp_path) is DatasetKind.WEBDATASET
    (meta / "records.json").touch()
    assert dataset_kind(tmp_path) is DatasetKind.ARRAY_RECORD
