"""Appended and mapped `.npy` files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from energon_grain.errors import IndexFileError
from energon_grain.formats.columnar_header import READ_INSTEAD_OF_MAP_BYTES, ColumnWriter, read_column


@given(pieces=st.lists(st.integers(0, 50)), dtype=st.sampled_from(["int64", "int32", "uint8"]))
def test_round_trip_and_numpy_reads_it(tmp_path_factory: pytest.TempPathFactory, pieces: list[int], dtype: str) -> None:
    path = tmp_path_factory.mktemp("column") / "c.npy"
    arrays = [np.arange(length).astype(dtype) for length in pieces]
    whole = np.concatenate(arrays) if arrays else np.empty(0, dtype)
    writer = ColumnWriter(path, dtype)
    for array in arrays:
        writer.append(array)
    writer.close()
    assert writer.rows == len(whole)
    assert writer.checksum == hashlib.blake2b(whole.tobytes(), digest_size=16).hexdigest()
    for found in (np.load(path), read_column(path, dtype, len(whole))):
        assert found.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(found, whole)


def test_large_columns_are_mapped_read_only(tmp_path: Path) -> None:
    rows = READ_INSTEAD_OF_MAP_BYTES
    writer = ColumnWriter(tmp_path / "c.npy", "int64")
    writer.append(np.arange(rows))
    writer.close()
    column = read_column(tmp_path / "c.npy", "int64", rows, block_sums=writer.block_sums)
    np.testing.assert_array_equal(column, np.load(tmp_path / "c.npy"))
    np.testing.assert_array_equal(column, np.arange(rows))
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 1


def test_appending_casts_and_accepts_strides(tmp_path: Path) -> None:
    writer = ColumnWriter(tmp_path / "c.npy", "int64")
    writer.append(np.arange(10, dtype=np.int32)[::3])
    writer.close()
    writer.close()
    assert np.load(tmp_path / "c.npy").tolist() == [0, 3, 6, 9]


@pytest.mark.parametrize("damage", ["truncated", "longer", "other type", "header"])
def test_damage_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "c.npy"
    writer = ColumnWriter(path, "int64")
    writer.append(np.arange(4))
    writer.close()
    data = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(data[:-1])
    elif damage == "longer":
        path.write_bytes(data + b"\0")
    elif damage == "header":
        path.write_bytes(data.replace(b"<i8", b"<u8"))
    dtype, rows = ("int32", 8) if damage == "other type" else ("int64", 4)
    with pytest.raises(IndexFileError, match=r"c\.npy"):
        read_column(path, dtype, rows)
