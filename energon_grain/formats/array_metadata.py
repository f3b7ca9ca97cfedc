"""What the metadata file of a zarr (v2, v3) or N5 array says: its shape, its type, and which file holds what.

Read without TensorStore: opening an array there starts threads, and a process that did so cannot be forked any more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec

from energon_grain.errors import DatasetNotFoundError, FormatError, ReadError
from energon_grain.forms import Form
from energon_grain.storage.location import is_url, join
from energon_grain.storage.read_whole import read_whole

T = TypeVar("T")
_Length = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayMetadata:
    """An array in a folder.

    Attributes:
        driver: What TensorStore calls the format: `zarr`, `zarr3` or `n5`.
        shape: Rows first; empty for a single number.
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

    @property
    def rows(self) -> int:
        """How many there are; a single number has none."""
        return self.shape[0] if self.shape else 0

    def file_of(self, row: int) -> str:
        """The file, relative to the array's folder, that holds the beginning of a row; empty where that is unknown."""
        if not self.file_shape or not self.file_shape[0]:
            return ""
        numbers = [row // self.file_shape[0], *(0 for _ in self.shape[1:])]
        return self.prefix + self.separator.join(map(str, numbers))


def read_array_metadata(location: str) -> ArrayMetadata:
    """Read what an array is.

    Raises:
        DatasetNotFoundError: There is no array.
        FormatError: Its metadata file is damaged.
        ReadError: A metadata file is there, but cannot be read.
    """
    found = find_array_metadata(location)
    if found is None:
        what = "a group; name one of the arrays in it" if is_array_group(location) else _what_is(location)
        raise DatasetNotFoundError(f"{location}: here must be a zarr (v2, v3) or N5 array, but there is {what}")
    return found


def find_array_metadata(location: str) -> ArrayMetadata | None:
    """Read what an array is; None where there is none. Raises as `read_array_metadata`, DatasetNotFoundError apart."""
    for name, parse in _PARSERS.items():
        data = _content(location, name)
        metadata = None if data is None else parse(join(location, name), data)
        if metadata is not None:
            return metadata
    return None


def is_array_group(location: str) -> bool:
    """Whether a folder is a group of arrays. Raises FormatError and ReadError as `read_array_metadata`."""
    if _content(location, ".zgroup") is not None:
        return True
    zarr3 = _content(location, "zarr.json")
    if zarr3 is not None:
        return _decoded(join(location, "zarr.json"), zarr3, _ZARR3).node_type == "group"
    n5 = _content(location, "attributes.json")
    return n5 is not None and _decoded(join(location, "attributes.json"), n5, _N5_GROUP_OR_ARRAY).version is not None


def consolidated_names(location: str) -> set[str] | None:
    """Names of what lies in a zarr group, as its own metadata says; None where it says nothing, and of other groups.

    Raises FormatError and ReadError as `read_array_metadata`.
    """
    zarr2, zarr3 = _content(location, ".zmetadata"), _content(location, "zarr.json")
    found: Mapping[str, Any] | None = None
    if zarr3 is not None:
        consolidated = _decoded(join(location, "zarr.json"), zarr3, _ZARR3).consolidated_metadata
        found = None if consolidated is None else consolidated.metadata
    elif zarr2 is not None:
        found = _decoded(join(location, ".zmetadata"), zarr2, _CONSOLIDATED).metadata
    return None if found is None else {path.partition("/")[0] for path in found}


def _what_is(location: str) -> str:
    if is_url(location) or os.path.isdir(location):
        return f"a folder without {', '.join(_PARSERS)}"
    return "a file" if os.path.exists(location) else "nothing"


def _content(location: str, name: str) -> bytes | None:
    """A file in a folder, None where there is none."""
    try:
        return read_whole(join(location, name))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except ReadError:
        raise
    except OSError as error:
        raise ReadError(f"cannot read {join(location, name)}: {error.strerror}") from error


class _Zarr2(msgspec.Struct):
    shape: tuple[_Length, ...]
    chunks: tuple[_Length, ...]
    dtype: Any
    dimension_separator: str = "."


class _Consolidated(msgspec.Struct):
    metadata: dict[str, Any] = {}


class _Zarr3(msgspec.Struct):
    node_type: str
    shape: tuple[_Length, ...] = ()
    data_type: Any = None
    chunk_grid: Any = None
    chunk_key_encoding: Any = None
    consolidated_metadata: _Consolidated | None = None


class _N5(msgspec.Struct):
    dimensions: tuple[_Length, ...] | None = None
    block_size: tuple[_Length, ...] | None = msgspec.field(name="blockSize", default=None)
    data_type: Any = msgspec.field(name="dataType", default=None)
    version: Any = msgspec.field(name="n5", default=None)


class _ChunkGrid(msgspec.Struct):
    chunk_shape: tuple[_Length, ...]


class _Regular(msgspec.Struct, tag_field="name", tag="regular"):
    configuration: _ChunkGrid


class _Separator(msgspec.Struct):
    separator: str | None = None


class _KeyEncoding(msgspec.Struct):
    name: str
    configuration: _Separator = msgspec.field(default_factory=_Separator)


_ZARR2, _CONSOLIDATED, _ZARR3 = Form(_Zarr2), Form(_Consolidated), Form(_Zarr3)
_REGULAR, _KEY_ENCODING = Form(_Regular), Form(_KeyEncoding)
_N5_GROUP_OR_ARRAY = Form(_N5)


def _zarr2(file: str, data: bytes) -> ArrayMetadata:
    found = _decoded(file, data, _ZARR2)
    return ArrayMetadata(
        driver="zarr",
        shape=found.shape,
        type_name=_name_of_type(found.dtype),
        file_shape=found.chunks,
        separator=found.dimension_separator,
    )


def _zarr3(file: str, data: bytes) -> ArrayMetadata | None:
    found = _decoded(file, data, _ZARR3)
    if found.node_type != "array":
        return None
    grid, encoding = _converted(found.chunk_grid, _REGULAR), _converted(found.chunk_key_encoding, _KEY_ENCODING)
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


def _n5(file: str, data: bytes) -> ArrayMetadata | None:
    found = _decoded(file, data, _N5_GROUP_OR_ARRAY)
    if found.dimensions is None:
        return None
    return ArrayMetadata(
        driver="n5",
        shape=found.dimensions,
        type_name=_name_of_type(found.data_type),
        file_shape=found.block_size,
    )


_PARSERS: dict[str, Callable[[str, bytes], ArrayMetadata | None]] = {
    "zarr.json": _zarr3,
    ".zarray": _zarr2,
    "attributes.json": _n5,
}
"""Of the files that say what an array is; None: it says that there is a group."""


def _decoded(file: str, data: bytes, form: Form[T]) -> T:
    try:
        return form.from_json(data)
    except msgspec.MsgspecError as error:
        raise FormatError(f"{file}: {error}; it is not the metadata of an array, write the array anew") from error


def _converted(value: Any, form: Form[T]) -> T | None:
    try:
        return form.from_value(value)
    except msgspec.ValidationError:
        return None


def _name_of_type(written: Any) -> str:
    """What the format says, as text; what is no name (several fields, types with parameters) names no type of ours."""
    return written if isinstance(written, str) else repr(written)
