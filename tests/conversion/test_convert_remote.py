"""Conversions of datasets in object stores, and records there."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from arrays import numbered, write_group
from metadatasets import write_v2
from object_server import Bucket

from energon_grain.conversion import convert_dataset
from energon_grain.errors import ConfigError, DatasetNotFoundError
from energon_grain.sources.prepared import open_prepared
from energon_grain.testing import make_text_dataset


def test_tars_in_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    tars = make_text_dataset(tmp_path / "tars", n=30, shards=3)
    report = convert_dataset(bucket.upload(tars), tmp_path / "records", num_workers=2)
    assert (report.samples, report.verified, report.notes) == (30, True, ())
    assert report.source.startswith("s3://")
    there, here = open_prepared(tmp_path / "records"), open_prepared(tars)
    every = np.arange(30)
    assert there.read(every).columns == here.read(every).columns
    assert there.content_id == here.content_id


def test_records_in_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    tars = make_text_dataset(tmp_path / "tars", n=30, shards=3)
    convert_dataset(tars, tmp_path / "records", compression="zstd")
    report = convert_dataset(bucket.upload(tmp_path / "records"), tmp_path / "again")
    assert (report.samples, report.container, report.verified, report.notes) == (30, "tar", True, ())
    assert open_prepared(tmp_path / "again").content_id == open_prepared(tars).content_id
    for shard in tars.glob("*.tar"):
        assert (tmp_path / "again" / shard.name).exists()


def test_lines_and_arrays_in_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "lines.jsonl").write_text('{"a": 1}\n\n{"a": 2}\n')
    write_group(tmp_path / "sets" / "rows", a=numbered(3))
    url = bucket.upload(tmp_path / "sets")
    for root in (url, str(tmp_path / "sets")):
        new = tmp_path / root.rpartition("/")[2]
        convert_dataset(f"{root}/lines.jsonl", new / "new lines")
        assert open_prepared(new / "new lines").read(np.arange(2)).columns == {"json": [b'{"a": 1}', b'{"a": 2}']}
        convert_dataset(f"{root}/rows", new / "new rows", to="array-record", shard_samples=2)
        batch = open_prepared(new / "new rows").read(np.arange(3))
        assert batch.keys == ["0", "1", "2"]
        assert [np.load(io.BytesIO(data)).tolist() for data in batch.columns["a.npy"]] == numbered(3).tolist()


def test_what_cannot_be_converted_is_named(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    write_v2(tmp_path / "sets", "mix.yaml", train={"path": "tars"})
    url = bucket.upload(tmp_path / "sets")
    for root in (url, str(tmp_path / "sets")):
        with pytest.raises(ConfigError, match=f"^{root}/mix.yaml: .*a metadataset: convert its datasets one by one"):
            convert_dataset(f"{root}/mix.yaml", tmp_path / "new")
    with pytest.raises(DatasetNotFoundError, match=f"^{url}/nothing: nothing lies below that URL$"):
        convert_dataset(f"{url}/nothing", tmp_path / "new")
