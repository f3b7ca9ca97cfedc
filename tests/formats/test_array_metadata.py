"""What metadata files of arrays say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from energon_grain.errors import DatasetNotFoundError, FormatError
from energon_grain.formats.array_metadata import (
    ArrayMetadata,
    consolidated_names,
    is_array_group,
    read_array_metadata,
)

ZARR3: dict[str, Any] = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [10, 4],
    "data_type": "float32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3, 2]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
}


def read(folder: Path, name: str, content: Any) -> ArrayMetadata:
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return read_array_metadata(str(folder))


@pytest.mark.parametrize(
    ("encoding", "file"),
    [
        ({"name": "default", "configuration": {"separator": "."}}, "c.1.0"),
        ({"name": "default"}, "c/1/0"),
        ({"name": "v2"}, "1.0"),
        ({"name": "v2", "configuration": {"separator": "/"}}, "1/0"),
        ({"name": "another"}, ""),
        ("default", ""),
        (None, ""),
    ],
)
def test_files_of_zarr3(tmp_path: Path, encoding: Any, file: str) -> None:
    found = read(tmp_path, "zarr.json", {**ZARR3, "chunk_key_encoding": encoding})
    assert (found.driver, found.shape, found.type_name) == ("zarr3", (10, 4), "float32")
    assert found.file_of(5) == file


def test_other_grids(tmp_path: Path) -> None:
    found = read(tmp_path, "zarr.json", {**ZARR3, "chunk_grid": {"name": "rectilinear", "configuration": {}}})
    assert found.file_shape is None
    assert found.file_of(3) == ""
    for shape in ([], [0, 2]):
        grid = {"name": "regular", "configuration": {"chunk_shape": shape}}
        assert read(tmp_path, "zarr.json", {**ZARR3, "chunk_grid": grid}).file_of(3) == ""


@pytest.mark.parametrize("number", ["NaN", "-Infinity"])
def test_attributes_that_are_no_json(tmp_path: Path, number: str) -> None:
    """zarr-python writes them as Python's `json` does."""
    (tmp_path / "zarr.json").write_text(
        f'{{"node_type": "group", "attributes": {{"missing": {number}}}, "consolidated_metadata": '
        f'{{"metadata": {{"a": {{"attributes": {{"missing": {number}}}}}}}}}}}'
    )
    assert is_array_group(str(tmp_path))
    assert consolidated_names(str(tmp_path)) == {"a"}
    (tmp_path / "zarr.json").unlink()
    (tmp_path / ".zmetadata").write_text(f'{{"metadata": {{"a/.zarray": {{}}, "a/.zattrs": {{"missing": {number}}}}}}}')
    assert consolidated_names(str(tmp_path)) == {"a"}


def test_groups_are_told(tmp_path: Path) -> None:
    for name, content in {
        "zarr.json": {"zarr_format": 3, "node_type": "group"},
        ".zgroup": {"zarr_format": 2},
        "attributes.json": {"n5": "2.0.0"},
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        with pytest.raises(DatasetNotFoundError, match="group"):
            read(folder, name, content)


def test_what_is_no_array_is_told(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"but there is a folder without zarr\.json, \.zarray"):
        read_array_metadata(str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(DatasetNotFoundError, match="but there is a file"):
        read_array_metadata(str(tmp_path / "file"))
    shapes = (f'"shape": [{length}], "chunks": [1], "dtype": "<f4"' for length in ("-1.5", "-3", 2**63, "NaN"))
    for content in ("{", *(f"{{{shape}}}" for shape in shapes), '{"shape": [1]}', "[]"):
        with pytest.raises(FormatError, match=r"\.zarray: .*write the array anew"):
            read(tmp_path, ".zarray", content)
