# SPDX-License-Identifier: Apache-2.0
"""Finds arrays (zarr v2 and v3, N5) by their metadata files, which TensorStore reads when it opens an array.

This does not load TensorStore, so any folder can be checked cheaply.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from energon_grain.errors import DatasetNotFoundError, FormatError, ReadError
from energon_grain.forms import Form
from energon_grain.storage.location import is_url, join, name_of
from energon_grain.storage.remote import read_whole, shared_client
from energon_grain.storage.settings import storage_settings

METADATA_FILES = ("zarr.json", ".zarray", "attributes.json")
_JSON = Form(dict[str, Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayFolder:
    """A folder with an array. `name` is its name in the group, `driver` TensorStore's name of the format."""

    name: str
    location: str
    driver: str
    metadata: bytes


def find_array(location: str, name: str = "") -> ArrayFolder | bool:
    """The array in a folder; True for a group of arrays, False if there is neither.

    Raises FormatError and ReadError.
    """

    def array(driver: str, metadata: bytes) -> ArrayFolder:
        return ArrayFolder(name=name, location=location, driver=driver, metadata=metadata)

    if (data := _content(location, "zarr.json")) is not None:
        kind = _parsed(location, "zarr.json", data).get("node_type")
        if kind in ("array", "group"):
            return array("zarr3", data) if kind == "array" else True
    if (data := _content(location, ".zarray")) is not None:
        return array("zarr", data)
    if (data := _content(location, "attributes.json")) is not None:
        parsed = _parsed(location, "attributes.json", data)
        if parsed.get("dimensions") is not None or "n5" in parsed:
            return array("n5", data) if parsed.get("dimensions") is not None else True
    return _content(location, ".zgroup") is not None


def is_array_folder(location: str) -> bool:
    """Whether a folder is an array or a group, by its metadata file. True for damaged metadata. Raises ReadError."""
    try:
        return bool(find_array(location))
    except FormatError:
        return True
    except ReadError:
        if is_url(location):
            raise
        return True


def the_array(location: str) -> ArrayFolder:
    """The array in a folder. Raises DatasetNotFoundError, FormatError and ReadError."""
    found = find_array(location, name=Path(name_of(location)).stem)
    if isinstance(found, ArrayFolder):
        return found
    what = "a group; name one of its arrays" if found else _what_is(location)
    raise DatasetNotFoundError(f"{location}: expected a zarr (v2, v3) or N5 array, found {what}")


def arrays_of(location: str) -> tuple[ArrayFolder, ...]:
    """The arrays directly in a group, by ascending name; a single array is a group of one.

    Nested groups are skipped, and so are folders whose names begin with `.` or `__`, which zarr reserves.
    Raises DatasetNotFoundError, FormatError and ReadError.
    """
    alone = find_array(location, name=Path(name_of(location)).stem)
    if isinstance(alone, ArrayFolder):
        return (alone,)
    if not alone:
        raise DatasetNotFoundError(f"{location}: expected a zarr (v2, v3) or N5 array or group, found neither")
    arrays: list[ArrayFolder] = []
    groups: list[str] = []
    for name in sorted(_folders(location)):
        if name.startswith((".", "__")):
            continue
        found = find_array(join(location, name), name)
        if isinstance(found, ArrayFolder):
            arrays.append(found)
        elif found:
            groups.append(name)
    if not arrays:
        advice = f"; its groups are not searched, name one of them: {', '.join(groups)}" if groups else ""
        raise DatasetNotFoundError(f"{location}: is a group without an array{advice}")
    return tuple(arrays)


def files_of(location: str) -> dict[str, str]:
    """Path or URL of each file of an array or group, by its name below the folder, sorted; without hidden folders.

    Raises ReadError.
    """
    if is_url(location):
        names = shared_client(storage_settings()).list(location)
    else:
        names = [path.relative_to(location).as_posix() for path in Path(location).rglob("*") if path.is_file()]
    return {name: join(location, name) for name in sorted(names) if not name.startswith(".") or "/" not in name}


def _folders(location: str) -> set[str]:
    """The folders in a group.

    Object stores list every chunk below a folder, so in a store the group's (consolidated) metadata are tried first.
    """
    if not is_url(location):
        return {entry.name for entry in os.scandir(location) if entry.is_dir()}
    for file in ("zarr.json", ".zmetadata"):
        data = _content(location, file)
        parsed = None if data is None else _parsed(location, file, data)
        consolidated = parsed.get("consolidated_metadata") if parsed is not None and file == "zarr.json" else parsed
        if isinstance(consolidated, dict) and isinstance(consolidated.get("metadata"), dict):
            return {path.partition("/")[0] for path in consolidated["metadata"]}
    return {name.partition("/")[0] for name in shared_client(storage_settings()).list(location) if "/" in name}


def _what_is(location: str) -> str:
    if is_url(location) or os.path.isdir(location):
        return f"a folder without {', '.join(METADATA_FILES)}"
    return "a file" if os.path.exists(location) else "nothing"


def _content(location: str, name: str) -> bytes | None:
    """Content of a file in a folder, None if it is missing."""
    try:
        return read_whole(join(location, name))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except ReadError:
        raise
    except OSError as error:
        raise ReadError(f"cannot read {join(location, name)}: {error.strerror}") from error


def _parsed(location: str, name: str, data: bytes) -> dict[str, Any]:
    try:
        return _JSON.from_json(data)
    except msgspec.MsgspecError as error:
        where = join(location, name)
        raise FormatError(f"{where}: {error}; the file is not valid array metadata; write the array again") from error
