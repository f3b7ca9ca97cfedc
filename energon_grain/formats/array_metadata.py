"""What the metadata file of a zarr (v2, v3) or N5 array says: its shape, its type, and which file holds what.

Read without TensorStore: opening an array there starts threads, and a process that did so cannot be forked any more.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from energon_grain.errors import ConfigError, DatasetNotFoundError, EmptyDatasetError, FormatError
from energon_grain.formats.json_text import decode_json

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayMetadata:
    """An array in a folder.

    Attributes:
        driver: What TensorStore calls the format: `zarr`, `zarr3` or `n5`.
        shape: Rows first; at least one.
        type_name: The type of its elements, as the format calls it; not all are numbers.
        file_shape: Shape of what lies in one file, a chunk or shard; None: the files are cut in a way that is not
            known here.
        prefix: Begins the names of the files.
        separator: Between the numbers in these names.
    """

    driver: str
    shape: tuple[int, ...]
    type_name: str
    file_shape: tuple[int, ...] | None
    prefix: str = ""
    separator: str = "/"

    def file_of(self, row: int) -> str:
        """The file, relative to the array's folder, that holds the beginning of a row; empty where that is unknown."""
        if self.file_shape is None:
            return ""
        numbers = [row // self.file_shape[0], *(0 for _ in self.shape[1:])]
        return self.prefix + self.separator.join(map(str, numbers))


def read_array_metadata(path: str | os.PathLike[str]) -> ArrayMetadata:
    """Read what an array is.

    Raises:
        DatasetNotFoundError: There is no array.
        FormatError: Its metadata file is damaged.
        ConfigError: It has no rows to count (a single number).
        EmptyDatasetError: It has zero rows.
    """
    path = Path(path)
    found = find_array_metadata(path)
    if found is None:
        what = "a group; name one of the arrays in it" if is_array_group(path) else _what_is(path)
        raise DatasetNotFoundError(f"{path}: here must be a zarr (v2, v3) or N5 array, but there is {what}")
    return found


def find_array_metadata(path: Path) -> ArrayMetadata | None:
    """Read what an array is; None where there is none. Raises as `read_array_metadata`, DatasetNotFoundError apart."""
    for name, read in _READERS.items():
        file = path / name
        metadata = read(file) if file.is_file() else None
        if metadata is None:
            continue
        if not metadata.shape:
            raise ConfigError(f"{path}: is a single number without a first axis, so it has no rows")
        if not metadata.shape[0]:
            raise EmptyDatasetError(f"{path}: the array has shape {list(metadata.shape)}, so it has no rows")
        return metadata
    return None


def is_array_group(path: Path) -> bool:
    """Whether a folder is a group of arrays. Raises FormatError when its metadata file is damaged."""
    if (path / ".zgroup").is_file():
        return True
    zarr3, n5 = path / "zarr.json", path / "attributes.json"
    if zarr3.is_file():
        return _decoded(zarr3, _Zarr3).node_type == "group"
    return n5.is_file() and _decoded(n5, _N5).version is not None


def _what_is(path: Path) -> str:
    if path.is_dir():
        return f"a folder without {', '.join(_READERS)}"
    return "a file" if path.exists() else "nothing"


class _Zarr2(msgspec.Struct):
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: Any
    dimension_separator: str = "."


class _Zarr3(msgspec.Struct):
    node_type: str
    shape: tuple[int, ...] = ()
    data_type: Any = None
    chunk_grid: Any = None
    chunk_key_encoding: Any = None


class _N5(msgspec.Struct):
    dimensions: tuple[int, ...] | None = None
    block_size: tuple[int, ...] | None = msgspec.field(name="blockSize", default=None)
    data_type: Any = msgspec.field(name="dataType", default=None)
    version: Any = msgspec.field(name="n5", default=None)


class _ChunkGrid(msgspec.Struct):
    chunk_shape: tuple[int, ...]


class _Regular(msgspec.Struct, tag_field="name", tag="regular"):
    configuration: _ChunkGrid


class _Separator(msgspec.Struct):
    separator: str | None = None


class _KeyEncoding(msgspec.Struct):
    name: str
    configuration: _Separator = msgspec.field(default_factory=_Separator)


def _zarr2(file: Path) -> ArrayMetadata:
    found = _decoded(file, _Zarr2)
    return ArrayMetadata(
        driver="zarr",
        shape=found.shape,
        type_name=_name_of_type(found.dtype),
        file_shape=found.chunks,
        separator=found.dimension_separator,
    )


def _zarr3(file: Path) -> ArrayMetadata | None:
    found = _decoded(file, _Zarr3)
    if found.node_type != "array":
        return None
    grid, encoding = _converted(found.chunk_grid, _Regular), _converted(found.chunk_key_encoding, _KeyEncoding)
    known = grid is not None and encoding is not None and encoding.name in ("default", "v2")
    as_v2 = encoding is not None and encoding.name == "v2"
    separator = (encoding and encoding.configuration.separator) or ("." if as_v2 else "/")
    return ArrayMetadata(
        driver="zarr3",
        shape=found.shape,
        type_name=_name_of_type(found.data_type),
        file_shape=grid.configuration.chunk_shape if grid is not None and known else None,
        prefix="" if as_v2 else f"c{separator}",
        separator=separator,
    )


def _n5(file: Path) -> ArrayMetadata | None:
    found = _decoded(file, _N5)
    if found.dimensions is None:
        return None
    return ArrayMetadata(
        driver="n5",
        shape=found.dimensions,
        type_name=_name_of_type(found.data_type),
        file_shape=found.block_size,
    )


_READERS: dict[str, Callable[[Path], ArrayMetadata | None]] = {
    "zarr.json": _zarr3,
    ".zarray": _zarr2,
    "attributes.json": _n5,
}
"""Of the files that say what an array is; None: it says that there is a group."""


def _decoded(file: Path, form: type[T]) -> T:
    try:
        return decode_json(file.read_bytes(), form)
    except msgspec.MsgspecError as error:
        raise FormatError(f"{file}: {error}; it is not the metadata of an array, write the array anew") from error


def _converted(value: Any, form: type[T]) -> T | None:
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError:
        return None


def _name_of_type(written: Any) -> str:
    """What the format says, as text; what is no name (several fields, types with parameters) names no type of ours."""
    return written if isinstance(written, str) else repr(written)
