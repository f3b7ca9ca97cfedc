"""Conversions of datasets in object stores, and records there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from object_server import Bucket

from energon_grain.conversion import convert_dataset
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
