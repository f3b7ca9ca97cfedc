"""Arrays that belong together: an array, or a zarr group (v2, v3) or N5 group of equally long ones."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from energon_grain.errors import ConfigError, DatasetNotFoundError, EnergonGrainError
from energon_grain.formats.array_metadata import ArrayMetadata, find_array_metadata, is_array_group


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedArray:
    """An array of a group.

    Attributes:
        name: Of its folder in the group; of an array by itself, its folder's name without the ending.
        path: Its folder.
        metadata: What it is.
    """

    name: str
    path: str
    metadata: ArrayMetadata


def is_array_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a folder holds an array or a group, by its metadata file. Never raises: a damaged file says yes."""
    path = Path(path)
    try:
        return is_array_group(path) or find_array_metadata(path) is not None
    except EnergonGrainError:
        return True


def read_array_group(path: str | os.PathLike[str]) -> tuple[NamedArray, ...]:
    """Read what the arrays are that lie directly in a group, by ascending names; an array is a group of one.

    Groups in the group are passed over, and so are folders whose names begin with `.` or `__`, which zarr reserves.

    Raises:
        DatasetNotFoundError: There is neither an array nor a group, or no array is in it.
        FormatError: A metadata file is damaged.
        ConfigError: The arrays differ in length, or one of them is a single number.
        EmptyDatasetError: An array has zero rows.
    """
    path = Path(path)
    alone = find_array_metadata(path)
    if alone is not None:
        return (NamedArray(name=path.stem, path=str(path), metadata=alone),)
    if not is_array_group(path):
        raise DatasetNotFoundError(f"{path}: here must be a zarr (v2, v3) or N5 array or group, but there is none")
    arrays: list[NamedArray] = []
    groups: list[str] = []
    for name in sorted(entry.name for entry in os.scandir(path) if entry.is_dir()):
        if name.startswith((".", "__")):
            continue
        metadata = find_array_metadata(path / name)
        if metadata is not None:
            arrays.append(NamedArray(name=name, path=str(path / name), metadata=metadata))
        elif is_array_group(path / name):
            groups.append(name)
    if not arrays:
        advice = f"; groups in it are not followed, name one of them: {', '.join(groups)}" if groups else ""
        raise DatasetNotFoundError(f"{path}: is a group without an array{advice}")
    lengths = {array.name: array.metadata.shape[0] for array in arrays}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ConfigError(
            f"{path}: the arrays of a group must have the same number of rows, but {found}; name one of the arrays, or "
            "keep those of another length in a group of their own"
        )
    return tuple(arrays)
