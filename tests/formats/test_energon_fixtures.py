"""Datasets that Megatron-Energon itself prepared are read exactly as it reads them, and written alike."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_grain.formats.class_ref import ClassRef
from energon_grain.formats.columnar import ColumnarIndex, open_columnar
from energon_grain.formats.dataset_config import read_dataset_config
from energon_grain.formats.nv_meta import DatasetKind, dataset_kind, encode_info, read_info, read_uuid
from energon_grain.formats.splits import encode_split_config, read_split_config, select_shards
from energon_grain.formats.sqlite_index import write_sqlite_index
from energon_grain.formats.tar.index import read_tar_index, tar_index_path
from energon_grain.formats.tar.scan import scan_tar

FIXTURES = Path(__file__).parents[1] / "fixtures" / "energon"
NAMES = ("captioning", "excludes", "long_names")


@pytest.fixture(params=NAMES)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    copy = tmp_path / request.param
    shutil.copytree(FIXTURES / request.param, copy)
    return copy


def samples_of(index: ColumnarIndex, split_part: str) -> list[dict[str, Any]]:
    """Read a split part from the formats alone, in the form of `samples.json`."""
    selected = select_shards(read_split_config(index.root), split_part, read_info(index.root))
    excluded = set(selected.excluded_samples)
    found: list[dict[str, Any]] = []
    restore_index = 0
    for shard in selected.shards:
        data = (index.root / shard).read_bytes()
        number = index.shards.index(shard)
        for sample in range(index.shard_first[number], index.shard_first[number + 1]):
            rows = range(index.part_start[sample], index.part_start[sample + 1])
            payloads = {
                index.part_names[index.part_name[row]]: data[
                    index.part_offset[row] : index.part_offset[row] + index.part_size[row]
                ]
                for row in rows
            }
            if (shard, index.key(sample)) not in excluded:
                found.append(
                    {
                        "key": index.key(sample),
                        "shard": shard,
                        "restore_index": restore_index,
                        "parts": {name: hashlib.sha256(data).hexdigest() for name, data in payloads.items()},
                    }
                )
            restore_index += 1
    return found


def test_samples_are_what_energon_reads(root: Path) -> None:
    expected = json.loads((root / "samples.json").read_text(encoding="utf-8"))
    index = open_columnar(root)
    for split_part, samples in expected.items():
        assert samples_of(index, split_part) == samples


def test_tar_indices_are_the_same_bytes(root: Path) -> None:
    for shard in read_info(root).shard_counts:
        path = tar_index_path(root / shard)
        before = path.read_bytes()
        scan = scan_tar(root / shard, hidden="keep")
        np.testing.assert_array_equal(read_tar_index(path), scan.sample_start)
        assert scan.sample_start.astype("<i8").tobytes() == before


def test_info_and_splits_are_written_alike(root: Path) -> None:
    meta = root / ".nv-meta"
    assert dataset_kind(root) is DatasetKind.WEBDATASET
    info = read_info(root)
    assert info.energon_version == "7.4.1"
    assert encode_info(info) == (meta / ".info.json").read_text()
    if root.name != "excludes":  # that one was edited by hand
        assert encode_split_config(read_split_config(root)) == (meta / "split.yaml").read_text()
    uuid = read_uuid(root)
    assert uuid is not None
    assert len(uuid) == 36


def test_sqlite_has_the_same_schema_and_rows(root: Path, tmp_path: Path) -> None:
    info = read_info(root)
    scans = [scan_tar(root / shard, hidden="keep") for shard in info.shard_counts]
    ours = tmp_path / "ours.sqlite"
    write_sqlite_index(ours, enumerate(scans))
    theirs = root / ".nv-meta" / "index.sqlite"
    assert _tables(ours) == _tables(theirs)


def _tables(path: Path) -> dict[str, Any]:
    database = sqlite3.connect(path)
    try:
        found: dict[str, Any] = {
            table: sorted(database.execute(f"SELECT * FROM {table}")) for table in ("samples", "sample_parts")
        }
        schema = database.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE tbl_name IN ('samples', 'sample_parts')"
        )
        found["schema"] = sorted(
            (kind, name, "".join((sql or "").replace("IF NOT EXISTS", "").split())) for kind, name, sql in schema
        )
        return found
    finally:
        database.close()


def test_dataset_configurations() -> None:
    config = read_dataset_config(FIXTURES / "captioning")
    assert config.sample_type == ClassRef(module="megatron.energon", name="CaptioningSample")
    assert config.field_map == {"image": "jpg", "caption": "txt"}
    assert read_dataset_config(FIXTURES / "excludes").kind == "crude"
