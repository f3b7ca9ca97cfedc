"""Which arrays lie in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from arrays import DRIVERS, numbered, write_array, write_group

from energon_grain.errors import DatasetNotFoundError
from energon_grain.formats.array_folder import arrays_of, is_array_folder, look_at
from energon_grain.formats.nv_meta import DatasetKind, dataset_kind


@pytest.mark.parametrize("driver", DRIVERS)
def test_arrays_of_a_group(tmp_path: Path, driver: str) -> None:
    path = write_group(tmp_path / "g", driver, b=numbered(9, 2), a=numbered(9), __c=numbered(3))
    (path / "plain folder").mkdir()
    (path / ".hidden").mkdir()
    write_group(path / "nested", driver, d=numbered(4))
    found = arrays_of(str(path))
    assert [(array.name, array.location, array.driver) for array in found] == [
        ("a", str(path / "a"), driver),
        ("b", str(path / "b"), driver),
    ]
    assert dataset_kind(path) is DatasetKind.ARRAY


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_array_is_a_group_of_one(tmp_path: Path, driver: str) -> None:
    path = write_array(tmp_path / "some.embeddings.zarr", numbered(9, 2), driver)
    (found,) = arrays_of(str(path))
    assert (found.name, found.location, found.driver) == ("some.embeddings", str(path), driver)
    assert dataset_kind(path) is DatasetKind.ARRAY


def test_what_has_no_arrays(tmp_path: Path) -> None:
    path = write_group(tmp_path / "g")
    with pytest.raises(DatasetNotFoundError, match=r"is a group without an array$"):
        arrays_of(str(path))
    write_group(path / "train", a=numbered(3))
    write_group(path / "val", a=numbered(3))
    with pytest.raises(DatasetNotFoundError, match="name one of them: train, val"):
        arrays_of(str(path))
    with pytest.raises(DatasetNotFoundError, match="array or group, but there is none"):
        arrays_of(str(tmp_path))


def test_other_folders(tmp_path: Path) -> None:
    assert not is_array_folder(str(tmp_path))
    assert not is_array_folder(str(tmp_path / "nothing"))
    (tmp_path / "attributes.json").write_text('{"colour": "red"}')
    assert dataset_kind(tmp_path) is DatasetKind.INVALID
    (tmp_path / "zarr.json").write_text("damaged")
    assert dataset_kind(tmp_path) is DatasetKind.ARRAY  # so that reading it says what is wrong


@pytest.mark.parametrize("number", ["NaN", "-Infinity"])
def test_attributes_that_are_no_json(tmp_path: Path, number: str) -> None:
    """zarr-python writes them as Python's `json` does."""
    (tmp_path / "zarr.json").write_text(f'{{"node_type": "group", "attributes": {{"missing": {number}}}}}')
    assert look_at(str(tmp_path)) is True
