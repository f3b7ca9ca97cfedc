"""Columns on disk: written, opened, filled, replaced; damaged, and of other samples."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from energon_grain import open_columns
from energon_grain.errors import IndexFileError, KeyNotFoundError
from energon_grain.formats.columnar import open_columnar
from energon_grain.formats.columnar_header import columnar_folder
from energon_grain.formats.columns import ColumnFolder, ColumnStage
from energon_grain.formats.commit_journal import new_staging_folder
from energon_grain.formats.data_folder import open_folder
from energon_grain.testing import make_text_dataset

N = 3000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(make_text_dataset(tmp_path / "data", n=N, shards=3))


def put(
    root: Path, content_id: str | None = None, *, fill: bool = False, version: int = 1, **columns: np.ndarray
) -> None:
    staging = new_staging_folder(root)
    stage = ColumnStage(ColumnFolder.of(open_folder(root)), columnar_folder(staging))
    for name, values in columns.items():
        writer = stage.new(name.replace("__", "."), values.dtype, function="tests:measure", version=version)
        for piece in np.array_split(values, 3):
            writer.append(piece)
    put, remove = stage.finish(content_id or open_columnar(root).content_id, fill=fill)
    ColumnFolder.of(open_folder(root)).put_in_place(columnar_folder(staging), put=put, remove=remove)
    shutil.rmtree(root / ".nv-meta/.prepare")


def file_of(root: Path, name: str) -> Path:
    return columnar_folder(root) / "columns" / ColumnFolder.of(open_folder(root)).read()[name].file


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int32", "uint8"])
def test_numbers_come_back_as_they_are(root: Path, dtype: str) -> None:
    values = np.arange(N).astype(dtype)
    put(root, tokens=values, odd__name=values[::-1].copy())
    columns = open_columns(root)
    assert columns["tokens"].dtype == dtype
    assert np.array_equal(columns["tokens"], values)
    assert np.array_equal(columns["odd.name"], values[::-1])
    assert np.array_equal(np.concatenate([*columns.blocks("tokens")]), values)
    assert not columns["tokens"].flags.writeable
    assert (columns.stored["tokens"].function, columns.stored["tokens"].version) == ("tests:measure", 1)
    assert [*columns] == ["bytes", "bytes.txt", "bytes.json", "tokens", "odd.name"]
    assert "tokens" in columns
    assert "gone" not in columns


def test_sizes_of_parts_need_no_file(root: Path) -> None:
    index, columns = open_columnar(root), open_columns(root)
    sizes = index.part_size.reshape(N, 2)
    assert np.array_equal(columns["bytes"], sizes.sum(axis=1))
    assert [columns[f"bytes.{part}"].tolist() for part in index.part_names] == sizes.T.tolist()
    with pytest.raises(KeyNotFoundError, match="there is no part"):
        columns["bytes.jpg"]


def test_a_column_is_replaced_at_once(root: Path) -> None:
    put(root, tokens=np.zeros(N), score=np.ones(N))
    held = open_columns(root)["tokens"]
    put(root, tokens=np.full(N, 2.0))
    assert not held.any()  # who has it open goes on with the old one
    columns = open_columns(root)
    assert (columns["tokens"][0], columns["score"][0]) == (2.0, 1.0)
    assert len([*(columnar_folder(root) / "columns").iterdir()]) == 2


def test_what_is_missing_is_filled_from_the_same_function(root: Path) -> None:
    first, second = np.arange(N, dtype=np.float64), np.full(N, np.nan)
    first[7], second[:5] = np.nan, -1
    put(root, tokens=first)
    put(root, fill=True, tokens=second)
    expected = np.where(np.isnan(second), first, second)
    assert np.array_equal(open_columns(root)["tokens"], expected, equal_nan=True)
    put(root, fill=True, version=2, tokens=second)
    assert np.array_equal(open_columns(root)["tokens"], second, equal_nan=True)


@pytest.mark.parametrize("damage", [lambda path: _flip(path), Path.unlink])
def test_what_is_damaged_fills_nothing(
    root: Path, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    """Making a column again is the way out, and gives nobody's numbers a new checksum."""
    values = np.where(np.arange(N) % 2, np.nan, 1.0)
    put(root, tokens=np.arange(N, dtype=np.float64))
    damage(file_of(root, "tokens"))
    put(root, fill=True, tokens=values)
    assert np.array_equal(open_columns(root)["tokens"], values, equal_nan=True)
    assert "nothing is taken over from a column that is made again" in caplog.text


def test_columns_of_other_samples_are_not_given_out(root: Path) -> None:
    put(root, "0" * 32, tokens=np.zeros(N))
    columns = open_columns(root)
    assert columns.stale == ("tokens",)
    assert "tokens" not in columns
    with pytest.raises(
        KeyNotFoundError,
        match=r"not here any more; make it again: .* --column tokens=tests:measure`",
    ):
        columns["tokens"]


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_flip, "its checksum differs"),
        (lambda path: path.write_bytes(path.read_bytes()[:-8]), "cannot be opened"),
        (Path.unlink, "cannot be opened"),
    ],
)
def test_damage_is_named(root: Path, damage: Callable[[Path], object], said: str) -> None:
    put(root, tokens=np.arange(N), score=np.ones(N))
    path = file_of(root, "tokens")
    damage(path)
    columns = open_columns(root)
    with pytest.raises(IndexFileError, match=said) as caught:
        columns["tokens"]
    assert path.name in str(caught.value)
    assert "make the column 'tokens' again: `energon-grain measure" in str(caught.value)
    assert columns["score"].all()


def test_the_file_that_names_them_is_checked(root: Path) -> None:
    put(root, tokens=np.arange(N))
    path = columnar_folder(root) / "columns.json"
    text = path.read_text()
    for damaged, said in [
        (text.replace("tests:measure", "tests:another"), "its checksum differs"),
        (text[:-20], "columns.json: "),
        (json.dumps({**json.loads(text), "version": 9}), "has version 9"),
        (text.replace('"file":"', '"file":"../'), "columns.json: "),
    ]:
        path.write_text(damaged)
        with pytest.raises(IndexFileError, match=said):
            open_columns(root)
