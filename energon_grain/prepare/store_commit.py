"""Putting the staged outputs of a `prepare` into an object store.

A store has neither a rename nor a way to put several objects at once. So what nothing refers to yet goes first: the
columns, in a folder with a new name, and the indices beside the shards. Then come the small files, the header that
names the columns, and last `.info.json`, which makes a folder a dataset. A dataset that is prepared for the first time
thus appears whole. One that is prepared again is between its states for the time that a few small objects take; if this
process is killed just then, the same command completes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from energon_grain.errors import IndexFileError
from energon_grain.formats.columnar_header import COLUMNAR_FOLDER, HEADER_NAME, columnar_folder, read_header
from energon_grain.formats.data_folder import DataFolder
from energon_grain.formats.nv_meta import INFO_JSON, META_FOLDER
from energon_grain.storage.location import join
from energon_grain.storage.object_client import shared_client
from energon_grain.storage.storage_settings import storage_settings

_COLUMNAR = f"{META_FOLDER}/{COLUMNAR_FOLDER}"
_LAST = (f"{_COLUMNAR}/{HEADER_NAME}", f"{META_FOLDER}/{INFO_JSON}")
_SIDE_BY_SIDE_BYTES = 16 << 20
"""Larger files are put one after the other: each is in memory meanwhile."""


def commit_to_store(dataset: DataFolder, staging: Path, *, put: Sequence[str], remove: Sequence[str] = ()) -> None:
    """Put files and folders of the staging folder into the store, and remove what is obsolete.

    The columns that were current until now stay until the next `prepare`, for readers that are just opening them.

    Args:
        dataset: Where it lies.
        staging: A folder that mirrors the dataset.
        put: Paths relative to it.
        remove: Paths relative to the dataset; those that do not exist are passed over.

    Raises:
        ReadError: The store cannot be written, or not for us; names the object.
    """
    client = shared_client(storage_settings())
    current = _current_generation(dataset)
    files = [name for path in put for name in _files(staging, path)]

    def upload(name: str) -> None:
        client.write(join(dataset.location, name), (staging / name).read_bytes())

    sized = {name: (staging / name).stat().st_size for name in files if name not in _LAST}
    unseen = [name for name in sized if _is_unseen(name)]
    for name in unseen:
        if sized[name] > _SIDE_BY_SIDE_BYTES:
            upload(name)
    client.map(upload, [name for name in unseen if sized[name] <= _SIDE_BY_SIDE_BYTES])
    client.map(upload, [name for name in sized if not _is_unseen(name)])
    for name in _LAST:
        if name in files:
            upload(name)

    folder = join(dataset.location, _COLUMNAR)
    kept = {current, *(Path(path).name for path in put if Path(path).parent.as_posix() == _COLUMNAR)}
    old = [name for name in client.list(folder) if "/" in name and name.split("/")[0] not in kept]
    urls = [join(folder, name) for name in old] + [join(dataset.location, name) for name in remove]
    client.map(client.delete, urls)


def _is_unseen(name: str) -> bool:
    """Whether readers do not look at a file before the others are there: columns, indices of shards, the database."""
    return name.startswith(f"{_COLUMNAR}/") or name.endswith((".idx", ".sqlite"))


def _files(staging: Path, path: str) -> list[str]:
    if (staging / path).is_file():
        return [path]
    return [file.relative_to(staging).as_posix() for file in sorted((staging / path).rglob("*")) if file.is_file()]


def _current_generation(dataset: DataFolder) -> str | None:
    with contextlib.suppress(IndexFileError):
        header = read_header(columnar_folder(dataset.local), dataset.local)
        return None if header is None else header.generation
    return None
