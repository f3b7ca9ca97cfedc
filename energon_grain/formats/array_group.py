"""Arrays that lie together: an array, or those of a zarr group (v2, v3) or N5 group."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from energon_grain.errors import DatasetNotFoundError, FormatError, ReadError
from energon_grain.formats.array_metadata import (
    ArrayMetadata,
    consolidated_names,
    find_array_metadata,
    is_array_group,
)
from energon_grain.storage.location import is_url, join, name_of
from energon_grain.storage.object_client import shared_client
from energon_grain.storage.storage_settings import storage_settings


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedArray:
    """An array of a group.

    Attributes:
        name: Of its folder in the group; of an array by itself, its folder's name without the ending.
        location: Its folder.
        metadata: What it is.
    """

    name: str
    location: str
    metadata: ArrayMetadata


def is_array_folder(location: str) -> bool:
    """Whether a folder holds an array or a group, by its metadata file. A damaged file says yes.

    Raises:
        ReadError: An object store cannot be reached.
    """
    try:
        return is_array_group(location) or find_array_metadata(location) is not None
    except FormatError:
        return True
    except ReadError:
        if is_url(location):
            raise
        return True


def read_array_group(location: str) -> tuple[NamedArray, ...]:
    """Read what the arrays are that lie directly in a group, by ascending names; an array is a group of one.

    Groups in the group are passed over, and so are folders whose names begin with `.` or `__`, which zarr reserves.

    Raises:
        DatasetNotFoundError: There is neither an array nor a group, or no array is in it.
        FormatError: A metadata file is damaged.
        ReadError: A metadata file or the store cannot be read.
    """
    alone = find_array_metadata(location)
    if alone is not None:
        return (NamedArray(name=Path(name_of(location)).stem, location=location, metadata=alone),)
    if not is_array_group(location):
        raise DatasetNotFoundError(f"{location}: here must be a zarr (v2, v3) or N5 array or group, but there is none")
    arrays: list[NamedArray] = []
    groups: list[str] = []
    for name in sorted(_folders(location)):
        if name.startswith((".", "__")):
            continue
        inner = join(location, name)
        metadata = find_array_metadata(inner)
        if metadata is not None:
            arrays.append(NamedArray(name=name, location=inner, metadata=metadata))
        elif is_array_group(inner):
            groups.append(name)
    if not arrays:
        advice = f"; groups in it are not followed, name one of them: {', '.join(groups)}" if groups else ""
        raise DatasetNotFoundError(f"{location}: is a group without an array{advice}")
    return tuple(arrays)


def _folders(location: str) -> set[str]:
    """The folders in a group.

    Object stores list all that lies in a folder, every chunk; so there the group's own metadata are asked first.
    """
    if not is_url(location):
        return {entry.name for entry in os.scandir(location) if entry.is_dir()}
    named = consolidated_names(location)
    if named is None:
        named = {name.partition("/")[0] for name in shared_client(storage_settings()).list(location) if "/" in name}
    return named
