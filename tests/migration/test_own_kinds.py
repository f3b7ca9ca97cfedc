"""Data that only energon-grain reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from arrays import write_array
from metadatasets import write_v2
from records import write_records

from energon_grain.migration import Finding, migration_findings
from energon_grain.prepare import prepare_dataset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_records(tmp_path / "records" / "x.array_record", [b"x"])
    prepare_dataset(tmp_path / "records", records="raw", split_ratio={"train": 1}, crude=True)
    write_array(tmp_path / "x.zarr", np.arange(3))
    return tmp_path


def note(path: Path, what: str) -> Finding:
    return Finding(
        severity="note", where=str(path), what=f"It holds {what}.", energon="cannot read them", here="reads them"
    )


def test_by_themselves(folder: Path) -> None:
    assert migration_findings(folder / "records") == [note(folder / "records", "ArrayRecord files")]
    assert migration_findings(folder / "x.zarr") == [note(folder / "x.zarr", "arrays")]


def test_in_a_metadataset(folder: Path) -> None:
    blend = [{"weight": 1, "path": "x.zarr"}, {"weight": 1, "path": "records", "aux": {"other": "records"}}]
    found = migration_findings(write_v2(folder, train={"blend": blend}))
    assert note(folder / "records", "ArrayRecord files") in found
    assert note(folder / "x.zarr", "arrays") in found
    assert not [finding for finding in found if finding.severity == "error"]
