"""Conversions of datasets in object stores, and records there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from object_server import Bucket

from energon_grain import Stream, WorkerConfig, get_train_dataset
from energon_grain.conversion import convert_dataset
from energon_grain.errors import ConfigError
from energon_grain.prepare import prepare_dataset
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
    convert_dataset(make_text_dataset(tmp_path / "tars", n=30, shards=3), tmp_path / "records")
    url = bucket.upload(tmp_path / "records")
    with pytest.raises(ConfigError, match=r"s3://.*: ArrayRecord files are read from file systems only"):
        Stream.of(
            get_train_dataset(
                url,
                worker_config=WorkerConfig(rank=0, world_size=1),
                batch_size=4,
                shuffle_buffer_size=None,
                max_samples_per_sequence=None,
            )
        )
    with pytest.raises(ConfigError, match="read from file systems only"):
        convert_dataset(url, tmp_path / "again")
    assert not (tmp_path / "again").exists()
    with pytest.raises(ConfigError, match="ArrayRecord files are prepared on a disk"):
        prepare_dataset(url, records="msgpack", force_overwrite=True)
