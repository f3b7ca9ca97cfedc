"""Join indices of metadatasets in object stores: made on this machine, kept beside the metadataset."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable
from pathlib import Path

from energon_grain.errors import IndexFileError, MissingObjectError, RangeError
from energon_grain.formats.join_index import (
    HEADER_NAME,
    JoinHeader,
    decode_join_header,
    join_file_sizes,
    stored_headers,
)
from energon_grain.storage.kvstore_spec import has_lists
from energon_grain.storage.location import is_url
from energon_grain.storage.mirror import Mirror, mirror_of
from energon_grain.storage.object_client import ObjectClient, ObjectRange, shared_client
from energon_grain.storage.storage_settings import storage_settings

_TAIL_BYTES = 64 << 10


def fetch_join(metadataset: str, folder: Path) -> None:
    """Copy the index of a join from beside a metadataset in an object store, where it is there and not yet here.

    Args:
        metadataset: Path or URL; of a path, nothing is done.
        folder: Of the index, in the mirror of the metadataset's cache folder. Its name tells what was joined, so that
            it never changes.

    Raises:
        ReadError: The store cannot be reached.
        IndexFileError: The index is damaged.
    """
    if not is_url(metadataset) or folder.is_dir():
        return
    mirror = mirror_of(f"{metadataset}.cache")
    client = shared_client(storage_settings())
    header = ObjectRange(f"{mirror.url}/{folder.name}/{HEADER_NAME}")
    found = client.read(header)
    if found is None or found.data is None:
        return
    try:
        sizes = join_file_sizes(found.data, header.url)
        with mirror.locked():
            mirror.copy_folder(folder.name, sizes)
    except (MissingObjectError, RangeError) as error:
        raise IndexFileError(f"{header.url}: {error}") from error


def can_hold_joins(metadataset: str) -> bool:
    """Whether indices can be put beside a metadataset and listed there: not on a web server."""
    return not is_url(metadataset) or has_lists(metadataset, storage_settings())


def stored_joins(metadataset: str) -> dict[str, JoinHeader]:
    """Read the headers of all joins beside a metadataset in an object store, by name. Damaged ones are passed over.

    Args:
        metadataset: Path or URL; of a path, and of one on a web server, which has no lists, there are none.

    Raises:
        ReadError: The store cannot be reached.
    """
    if not is_url(metadataset) or not can_hold_joins(metadataset):
        return {}
    client = shared_client(storage_settings())
    cache = mirror_of(f"{metadataset}.cache").url

    def read(name: str) -> JoinHeader | None:
        url = f"{cache}/{name}"
        found = client.read(ObjectRange(url))
        with contextlib.suppress(IndexFileError):
            return None if found is None or found.data is None else decode_join_header(found.data, url)

    names = stored_headers(client.list(cache))
    headers = client.map(read, list(names.values()))
    return {name: header for name, header in zip(names, headers, strict=True) if header is not None}


def store_joins(metadataset: str, joins: Collection[str], names: Iterable[str], *, only: bool) -> list[str]:
    """Put join indices beside a metadataset in an object store, headers last.

    What is there already stays, but for our own files that are damaged.

    Args:
        metadataset: URL.
        joins: Their names.
        names: Files and folders in the mirror of its cache folder.
        only: Remove other joins of ours, which no join needs any more.

    Returns:
        Names of joins that were removed.

    Raises:
        ReadError: The store cannot be written.
    """
    mirror = mirror_of(f"{metadataset}.cache")
    client = shared_client(storage_settings())
    there = client.list(mirror.url)
    files = [file for name in names for file in _files(mirror.folder / name)]
    wanted = [file.relative_to(mirror.folder).as_posix() for file in files]
    kept = [name for name in wanted if name in there]
    whole = dict(zip(kept, client.map(lambda name: _is_whole(client, mirror, name), kept), strict=True))
    new = [name for name in wanted if not whole.get(name)]
    client.map(
        lambda name: client.write(f"{mirror.url}/{name}", (mirror.folder / name).read_bytes()),
        sorted(name for name in new if not name.endswith(HEADER_NAME)),
    )
    for name in new:
        if name.endswith(HEADER_NAME):
            client.write(f"{mirror.url}/{name}", (mirror.folder / name).read_bytes())
    stale = [name for name in stored_headers(there) if only and name not in joins]
    old = [name for name in there if any(part in name for part in stale)]
    client.map(lambda name: client.delete(f"{mirror.url}/{name}"), old)
    return stale


def _is_whole(client: ObjectClient, mirror: Mirror, name: str) -> bool:
    """Whether a file in the store is as long and ends as it does here; Energon's form is left alone."""
    if "/" not in name:
        return True
    with open(mirror.folder / name, "rb") as file:
        start = max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES)
        file.seek(start)
        here = file.read()
    try:
        found = client.read(ObjectRange(f"{mirror.url}/{name}", start))
    except RangeError:
        return False
    return found is not None and found.data == here


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
