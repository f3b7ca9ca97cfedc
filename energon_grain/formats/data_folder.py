# SPDX-License-Identifier: Apache-2.0
"""Locates a dataset: its shards at a location, and the files that describe them in a local folder.

The files in `.nv-meta` are read completely or memory-mapped. For a dataset in an object store they are mirrored, and
updated whenever the dataset is opened: one listing, and one request per file to check whether it changed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import shutil
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from energon_grain.errors import DatasetNotFoundError, EnergonGrainError, MissingObjectError, ReadError
from energon_grain.formats.columnar_header import (
    COLUMN_TYPES,
    COLUMNAR_FOLDER,
    COLUMNS_JSON,
    HEADER_NAME,
    column_file_bytes,
    columnar_folder,
    read_header,
)
from energon_grain.formats.commit_journal import finish_interrupted_prepare
from energon_grain.formats.local_files import LocalFiles
from energon_grain.formats.nv_meta import (
    INDEX_SQLITE,
    INDEX_UUID,
    INFO_JSON,
    INFO_YAML,
    META_FOLDER,
    not_prepared,
)
from energon_grain.storage.byte_store import ByteStore
from energon_grain.storage.digests import DIGESTS_JSON, KnownDigests
from energon_grain.storage.location import is_url, join, located
from energon_grain.storage.remote import Mirror, ObjectClient, has_lists, mirror_of, remote_files, shared_client
from energon_grain.storage.settings import storage_settings

_logger = logging.getLogger("energon_grain")
BARE_FOLDER = "bare"
"""In `.nv-meta`: indices of unprepared tars."""
_HEADER = f"{META_FOLDER}/{COLUMNAR_FOLDER}/{HEADER_NAME}"
_COLUMNS = f"{META_FOLDER}/{COLUMNAR_FOLDER}/{COLUMNS_JSON}"
_DIGESTS = f"{META_FOLDER}/{COLUMNAR_FOLDER}/{DIGESTS_JSON}"
_KNOWN_NAMES = (INFO_JSON, INFO_YAML, INDEX_UUID, "dataset.yaml", "split.yaml", "records.json")
"""Requested by name if a store has no listings (`https://`)."""
_FRESH_SECONDS = 5.0
_ATTEMPTS = 3
_OLD_COLUMNS_SECONDS = 24 * 3600.0
_up_to_date: dict[str, tuple[ObjectClient, float]] = {}
"""Client and time of this process's last update of each mirror."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFolder:
    """The location of a dataset. Picklable: copies in other local processes use the same mirror without update.

    Attributes:
        location: Path or URL of the folder, for messages.
        local: The folder with `.nv-meta`: the same, or the mirror, or that of an index of bare tars.
        store: Reads the bytes of shards.
        bare: For unprepared tars: the text that names them, see `TarList`.
    """

    location: str
    local: Path
    store: ByteStore = field(compare=False)
    bare: str | None = None

    @property
    def is_remote(self) -> bool:
        """Whether shards are in an object store."""
        return is_url(self.location)

    @property
    def is_mirrored(self) -> bool:
        """Whether `.nv-meta` is a copy from an object store."""
        return self.is_remote and self.bare is None

    @property
    def indexed_by(self) -> str:
        """The command that writes the indices of its shards again."""
        if self.bare is not None:
            return f"energon-grain info {shlex.quote(self.bare)}"
        return f"energon-grain prepare {self.location} --tar-index-only"

    def shard(self, name: str) -> str:
        return join(self.location, name)

    def shards(self, names: Sequence[str]) -> list[str]:
        if self.is_remote:
            return [self.shard(name) for name in names]
        before = os.path.join(self.location, "")
        return [before + name for name in names]


def open_folder(path: str | os.PathLike[str] | DataFolder) -> DataFolder:
    """Locate a dataset, and update the mirror of a remote one. Opens nothing.

    Completes a `prepare` that was killed while it moved its files into place.

    Raises:
        StaleIndexError: There is an interrupted `prepare`, and this process cannot write to the dataset.
        ConfigError: The URL's store is not supported.
        ReadError: The store cannot be reached.
    """
    if isinstance(path, DataFolder):
        return path
    location = located(path)
    if not is_url(location):
        finish_interrupted_prepare(Path(location))
        return DataFolder(
            location=location,
            local=Path(location),
            store=LocalFiles(indexed_by=f"energon-grain prepare {location} --tar-index-only"),
        )
    settings = storage_settings()
    mirror = mirror_dataset(location)
    digests = _digests_of(mirror) if settings.verify else None
    return DataFolder(location=mirror.url, local=mirror.folder, store=remote_files(settings, digests))


def _digests_of(mirror: Mirror) -> KnownDigests | None:
    """The digests of the shards of a mirrored dataset; None, with a warning, if `prepare` stored none."""
    with mirror.locked():
        if mirror.refresh([_DIGESTS]):
            return KnownDigests(mirror.url, mirror.folder / _DIGESTS)
    _logger.warning(
        "%s: has no digests to verify its shards; run `energon-grain prepare --digest` on the original files, and "
        "upload %s",
        mirror.url,
        _DIGESTS,
    )
    return None


def mirror_dataset(url: str) -> Mirror:
    """Update the copy of `.nv-meta`, including the columnar index.

    Skipped if this process did so for the same URL a few seconds ago.

    Raises ConfigError if the URL's store is not supported, and ReadError if the store cannot be reached.
    """
    client = shared_client(storage_settings())
    mirror = mirror_of(url)
    by, when = _up_to_date.get(str(mirror.folder), (None, 0.0))
    if by is client and time.monotonic() - when < _FRESH_SECONDS and mirror.folder.is_dir() and mirror.is_whole():
        return mirror
    _bring_up_to_date(mirror)
    _up_to_date[str(mirror.folder)] = client, time.monotonic()
    return mirror


def look_again(folder: DataFolder) -> None:
    """Make the next opening of a dataset update its mirror, however soon that is."""
    _up_to_date.pop(str(folder.local), None)


def fetch_again(folder: DataFolder, path: Path, size_bytes: int) -> None:
    """Rewrite a damaged file of the mirror of a remote dataset in place, so that memory maps of it become correct.

    A file that is not in the store, because it was created locally, is left unchanged.

    Raises ReadError if the store cannot be reached.
    """
    mirror = mirror_of(folder.location)
    with contextlib.suppress(MissingObjectError), mirror.locked():
        mirror.fetch_again(path.relative_to(folder.local).as_posix(), size_bytes)


def copy_database(location: str) -> Path | None:
    """The local `index.sqlite` of a folder; for one in an object store, a copy. None without one.

    Raises ReadError if the store cannot be reached.
    """
    name = f"{META_FOLDER}/{INDEX_SQLITE}"
    if not is_url(location):
        path = Path(location, name)
        return path if path.is_file() else None
    try:
        size_bytes, generation = remote_files(storage_settings()).version(join(location, name))
    except MissingObjectError:
        return None
    mirror = mirror_of(location)
    copy = mirror.folder / f"{INDEX_SQLITE}-{generation.hex()[-32:]}"
    with mirror.locked():
        for old in mirror.folder.glob(f"{INDEX_SQLITE}-*"):
            if old != copy:
                old.unlink(missing_ok=True)
        mirror.copy_file(name, copy, size_bytes)
    return copy


def _bring_up_to_date(mirror: Mirror) -> None:
    with mirror.locked():
        for attempt in range(_ATTEMPTS):
            found = mirror.refresh(_small_files(mirror))
            _remove_missing(mirror, set(found))
            try:
                _copy_columns(mirror, found)
                return
            except MissingObjectError:
                # Prepared again on another machine, between reading its header and its columns.
                if attempt == _ATTEMPTS - 1:
                    raise


def _copy_columns(mirror: Mirror, found: dict[str, bool]) -> None:
    """Copy the columns that the header of the columnar index names."""
    if _HEADER in found:
        header = read_header(columnar_folder(mirror.folder), mirror.folder)
        assert header is not None  # just written
        sizes = {
            f"{name}.npy": column_file_bytes(dtype, column.rows, block_sums=column.block_sums)
            for name, dtype in COLUMN_TYPES.items()
            if (column := header.columns[name])
        }
        mirror.copy_folder(f"{META_FOLDER}/{COLUMNAR_FOLDER}/{header.generation}", sizes)
        _remove_old_columns(columnar_folder(mirror.folder), header.generation)
    elif any(found.get(f"{META_FOLDER}/{name}") for name in (INFO_JSON, INFO_YAML, INDEX_UUID)):
        # The index built locally belongs to an earlier preparation of the dataset.
        shutil.rmtree(columnar_folder(mirror.folder), ignore_errors=True)


@contextlib.contextmanager
def naming(folder: DataFolder) -> Generator[None]:
    """Make errors from inside name a remote dataset by its URL, not by its mirror.

    If there is no dataset, the error describes what is there instead.
    """
    try:
        yield
    except EnergonGrainError as error:
        if folder.is_mirrored and str(folder.local) in str(error):
            if isinstance(error, DatasetNotFoundError):
                raise DatasetNotFoundError(not_prepared(folder.location)) from error
            text = str(error).replace(str(folder.local), folder.location)
            raise type(error)(text) from error
        raise


@contextlib.contextmanager
def needing_shards(folder: DataFolder) -> Generator[None]:
    """Add advice to errors about missing shards."""
    try:
        yield
    except ReadError as error:
        if isinstance(error, FileNotFoundError) or isinstance(error.__cause__, FileNotFoundError):
            way_out = f"exclude it by `energon-grain prepare {folder.location} --force-overwrite`"
            raise type(error)(
                f"{error}; it existed when the dataset was indexed: restore it, or "
                f"{way_out if folder.bare is None else 'restart without it'}"
            ) from error.__cause__ or error
        raise


def _small_files(mirror: Mirror) -> list[str]:
    """The files of `.nv-meta` except databases, journals and columns."""
    settings = storage_settings()
    if not has_lists(mirror.url, settings):
        return [f"{META_FOLDER}/{name}" for name in _KNOWN_NAMES] + [_HEADER, _COLUMNS]
    listed = shared_client(settings).list(f"{mirror.url}/{META_FOLDER}")
    files = [name for name in listed if "/" not in name and not name.endswith(".sqlite")]
    files += [
        name for name in listed if name in (f"{COLUMNAR_FOLDER}/{HEADER_NAME}", f"{COLUMNAR_FOLDER}/{COLUMNS_JSON}")
    ]
    return [f"{META_FOLDER}/{name}" for name in files]


def _remove_missing(mirror: Mirror, names: set[str]) -> None:
    """Remove copies of removed files. The columnar index is removed only together with its origin."""
    meta = mirror.folder / META_FOLDER
    if not meta.is_dir():
        return
    for file in meta.iterdir():
        if file.is_file() and f"{META_FOLDER}/{file.name}" not in names:
            file.unlink(missing_ok=True)


def _remove_old_columns(folder: Path, current: str) -> None:
    """Remove columns that were copied more than a day ago and are no longer current."""
    for old in folder.glob("g*"):
        with contextlib.suppress(OSError):
            if old.name != current and time.time() - old.stat().st_mtime > _OLD_COLUMNS_SECONDS:
                shutil.rmtree(old, ignore_errors=True)
