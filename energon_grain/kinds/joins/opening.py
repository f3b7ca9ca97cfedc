# SPDX-License-Identifier: Apache-2.0
"""Opens the index of a join: prepared locally or beside a metadataset in a store, or built on the fly.

Indices for metadatasets in object stores are built on this machine and stored beside the metadataset.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from energon_grain.atomic_files import is_writable
from energon_grain.errors import DatasetNotFoundError, IndexFileError, MissingObjectError, RangeError, StaleIndexError
from energon_grain.kinds.joins import members as joining
from energon_grain.kinds.joins.build import build_join, energon_name_of, name_of, primary_of
from energon_grain.kinds.joins.index import (
    HEADER_NAME,
    JoinedMember,
    JoinHeader,
    JoinIndex,
    cache_folder,
    decode_join_header,
    join_file_sizes,
    join_folder,
    joins_in,
    open_join_index,
    stored_headers,
)
from energon_grain.storage.location import is_url
from energon_grain.storage.remote import Mirror, ObjectClient, ObjectRange, has_lists, mirror_of, shared_client
from energon_grain.storage.settings import storage_settings

if TYPE_CHECKING:
    from energon_grain.kinds.joins.leaf import JoinedLeafDataset

_TAIL_BYTES = 64 << 10
JOINED_ON_USE = 1_000_000
"""Joins with up to this many samples of the primary are built on first use, in about a second."""


def open_join(join: JoinedLeafDataset, *, joined_on_use: int = JOINED_ON_USE) -> JoinIndex:
    """Open the index of a join.

    An index written by `energon-grain prepare` is memory-mapped. Otherwise a small join, or one that Energon prepared
    (its index would take longer to check), is built now, and stored beside the metadataset if that is writable.

    Args:
        join: The join.
        joined_on_use: Maximum number of samples of the primary for building now.

    Raises:
        DatasetNotFoundError: A dataset or array is missing, or the join is large and was not prepared.
        StaleIndexError: A dataset, array or split file changed after the join was prepared.
        IndexFileError: The index is damaged.
        ConfigError: A dataset lacks a key, or an array a row, and `nonmatch` does not allow that.
        DuplicateKeyError: A dataset has a key twice.
        EmptyDatasetError: The join has no rows.
    """
    samples = join.inputs()
    primary = primary_of(samples)
    cache, by_energon = None, False
    repair_advice = "write it into a metadataset file, and run `energon-grain prepare` on that"
    if join.metadataset is not None:
        cache = cache_folder(join.metadataset)
        repair_advice = f"run `energon-grain prepare {join.metadataset}`"
        if (found := _prepared(join, join.metadataset, cache, samples, repair_advice)) is not None:
            return found
        energon_name = energon_name_of(samples)
        by_energon = energon_name is not None and (cache / energon_name).exists()
    if len(primary) > joined_on_use and not by_energon:
        raise DatasetNotFoundError(
            f"{join.place}: joining {len(primary)} samples of {samples[0].written} needs preparation; only joins of up "
            f"to {joined_on_use} samples are built on first use; {repair_advice}"
        )
    return build_join(samples, cache if cache is not None and is_writable(cache) else None)


def _prepared(
    join: JoinedLeafDataset, metadataset: str, cache: Path, samples: Sequence[joining.JoinMember], repair_advice: str
) -> JoinIndex | None:
    """The prepared index; None without one. Raises as `open_join`."""
    try:
        return _fetched(metadataset, join_folder(cache, name_of(samples)))
    except (FileNotFoundError, NotADirectoryError):
        pass
    except IndexFileError as error:
        message = str(error).replace(str(cache), f"{metadataset}.cache")  # names the store, not its mirror
        raise IndexFileError(f"{message}: {repair_advice}") from error
    _refuse_stale({**joins_in(cache), **stored_joins(metadataset)}.values(), samples, join, repair_advice)
    return None


def _fetched(metadataset: str, folder: Path) -> JoinIndex:
    """Open the index of a join. A damaged copy of one in an object store is fetched again."""
    url = f"{metadataset}.cache/{folder.name}" if is_url(metadataset) else None
    fetch_join(metadataset, folder)
    try:
        return open_join_index(folder, url=url)
    except IndexFileError:
        if url is None:
            raise
        shutil.rmtree(folder, ignore_errors=True)
    fetch_join(metadataset, folder)
    return open_join_index(folder, url=url)


def _refuse_stale(
    prepared: Iterable[JoinHeader], samples: Sequence[joining.JoinMember], join: JoinedLeafDataset, repair_advice: str
) -> None:
    """Raise if the same datasets were joined in an earlier state of theirs or of their split files."""
    now = [each.describe() for each in samples]
    for header in prepared:
        identities = [
            [(each.path, each.split_part, each.nonmatch, each.array) for each in m] for m in (header.members, now)
        ]
        if identities[0] != identities[1]:
            continue
        changes = [change for old, new in zip(header.members, now, strict=True) if (change := _change(old, new))]
        raise StaleIndexError(
            f"{join.place}: this join was prepared, but then {' and '.join(changes)}; {repair_advice}"
        )


def _change(old: JoinedMember, new: JoinedMember) -> str:
    if old.content_id != new.content_id and new.array is not None:
        return f"{new.path} or the keys of its rows changed ({old.samples} rows before, {new.samples} now)"
    if old.content_id != new.content_id:
        return f"{new.path} was prepared again with other samples ({old.samples} before, {new.samples} now)"
    if old.shards != new.shards or old.excludes != new.excludes:
        return f"the split part {new.split_part!r} of {new.path} changed"
    return ""


def fetch_join(metadataset: str, folder: Path) -> None:
    """Copy the index of a join from beside a metadataset in an object store, if it exists and is not yet local.

    Args:
        metadataset: Path or URL; nothing is done for a path.
        folder: Folder of the index, in the mirror of the metadataset's cache folder. Its name identifies the joined
            data, so it never changes.

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
    """Whether indices can be stored and listed beside a metadataset: not on a web server."""
    return not is_url(metadataset) or has_lists(metadataset, storage_settings())


def stored_joins(metadataset: str) -> dict[str, JoinHeader]:
    """Read the headers of all joins beside a metadataset in an object store, by name. Skips damaged ones.

    Args:
        metadataset: Path or URL. Empty for a path, and for a web server, which has no listings.

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
    """Upload join indices beside a metadataset in an object store, headers last.

    Existing files are kept, except damaged files of ours.

    Args:
        metadataset: URL.
        joins: Names of the joins.
        names: Files and folders in the mirror of its cache folder.
        only: Remove our indices of other joins, which are no longer needed.

    Returns:
        Names of removed joins.

    Raises:
        ReadError: The store cannot be written.
    """
    mirror = mirror_of(f"{metadataset}.cache")
    client = shared_client(storage_settings())
    existing = client.list(mirror.url)
    files = [file for name in names for file in _files(mirror.folder / name)]
    _send(client, mirror, [file.relative_to(mirror.folder).as_posix() for file in files], existing)
    stale = [name for name in stored_headers(existing) if only and name not in joins]
    old = [name for name in existing if any(part in name for part in stale)]
    client.map(lambda name: client.delete(f"{mirror.url}/{name}"), old)
    return stale


def _send(client: ObjectClient, mirror: Mirror, names: Sequence[str], existing: Collection[str]) -> None:
    """Upload files that are missing or incomplete, headers last."""

    def write(name: str) -> None:
        client.write(f"{mirror.url}/{name}", (mirror.folder / name).read_bytes())

    kept = [name for name in names if name in existing]
    whole = dict(zip(kept, client.map(lambda name: _is_whole(client, mirror, name), kept), strict=True))
    new = [name for name in names if not whole.get(name)]
    headers = [name for name in new if name.endswith(HEADER_NAME)]
    client.map(write, sorted({*new}.difference(headers)))
    for header in headers:
        write(header)


def _is_whole(client: ObjectClient, mirror: Mirror, name: str) -> bool:
    """Whether a file in the store has the length and the end of the local one. Always true for Energon's format."""
    if "/" not in name:
        return True
    with open(mirror.folder / name, "rb") as file:
        start = max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES)
        file.seek(start)
        local = file.read()
    try:
        found = client.read(ObjectRange(f"{mirror.url}/{name}", start))
    except RangeError:
        return False
    return found is not None and found.data == local


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
