"""Commands on arrays."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from arrays import numbered, write_group
from cli_runs import run
from metadatasets import write_v2

from energon_grain.errors import ConfigError, DatasetNotFoundError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_group(tmp_path / "x.zarr", "zarr3", label=np.arange(20), image=numbered(20, 3, 2))


def test_info(path: Path) -> None:
    done = run("info", path)
    assert done.exit_code == 0, done.output
    assert "20 samples, 640 B of rows" in done.output
    assert "  image  float32[3, 2]  24 B  in chunks of 7 rows" in done.output
    told = json.loads(run("info", path, "--json").output)
    assert told["arrays"]["label"] == {"type": "int64", "row_shape": [], "row_bytes": 8, "chunk_rows": 7}
    assert isinstance(run("info", path, "--split-config", "s.yaml").exception, ConfigError)


def test_info_of_a_metadataset(path: Path) -> None:
    done = run("info", write_v2(path.parent, train={"path": path.name}))
    assert done.exit_code == 0, done.output
    assert "x.zarr" in done.output
    assert "20" in done.output


def test_which(path: Path) -> None:
    done = run("which", path, "--step", "0", "--batch-size", "2", "--validation")
    assert done.exit_code == 0, done.output
    assert "  bytes, uncompressed  " in done.output
    assert "x.zarr/0" in done.output
    assert "x.zarr/1" in done.output


def test_bench(path: Path) -> None:
    done = run("bench", path, "--seconds", "0.1", "--batch-size", "2")
    assert done.exit_code == 0, done.output


def test_there_is_nothing_to_prepare(path: Path) -> None:
    error = run("prepare", path, "--split-ratio", "1,0,0").exception
    assert isinstance(error, ConfigError)
    assert "nothing to prepare" in str(error)
    error = run("lint", path).exception
    assert isinstance(error, DatasetNotFoundError)
    assert "is an array, which is read as it is" in str(error)
