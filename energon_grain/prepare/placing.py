"""Putting what was made for a dataset in place: by the commit journal, or into a store in an order readers can bear."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator, Sequence
from pathlib import Path

from energon_grain.errors import ConfigError, IndexFileError, RefusedError
from energon_grain.formats.columnar_header import (
    COLUMNAR_FOLDER,
    COLUMNS_JSON,
    HEADER_NAME,
    columnar_folder,
    read_header,
)
from energon_grain.formats.columns import COLUMNS_FOLDER
from energon_grain.formats.commit_journal import commit_staged
from energon_grain.formats.data_folder import DataFolder, look_again, open_folder
from energon_grain.formats.nv_meta import INFO_JSON, META_FOLDER
from energon_grain.storage.addresses import address_of
from energon_grain.storage.atomic import sync_folder
from energon_grain.storage.location import is_url, join, located
from energon_grain.storage.object_client import shared_client
from energon_grain.storage.settings import storage_settings

_COLUMNAR = f"{META_FOLDER}/{COLUMNAR_FOLDER}"
_LAST = (f"{_COLUMNAR}/{HEADER_NAME}", f"{_COLUMNAR}/{COLUMNS_JSON}", f"{META_FOLDER}/{INFO_JSON}")
_SIDE_BY_SIDE_BYTES = 16 << 20
"""Larger files are put one after the other: each is in memory meanwhile."""


def open_to_prepare(root: str | os.PathLike[str]) -> DataFolder:
    """Say where a dataset lies that is to be written beside. Raises ConfigError where that cannot be."""
    location = located(root)
    refuse_read_only(location)
    return open_folder(location)


def refuse_read_only(location: str) -> None:
    """Raise ConfigError for a URL beside which nothing can be written."""
    kind = address_of(location, storage_settings()).kind if is_url(location) else None
    if kind == "http":
        raise ConfigError(f"{location}: what lies on a web server can only be read: prepare the folder on its disk.")
    if kind == "hub":
        raise ConfigError(
            f"{location}: the Hub is only read: fetch the dataset (`hf download --repo-type dataset`), run this on the "
            f"folder, and upload its .nv-meta (`hf upload`)"
        )


@contextlib.contextmanager
def preparation_lock(folder: Path, *, of: str | None = None, doing: str = "preparing") -> Generator[None]:
    """Hold the lock of a `.nv-meta` folder, of the log of a writer below it, or of another one, of a dataset elsewhere.

    The lock is on the folder itself and goes with the process, so it leaves no file and a killed `prepare` blocks no
    other. File systems without locks are passed over. Raises RefusedError.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusedError(
                f"{of or folder.parent}: another process is {doing} this dataset. Wait for it, or end it."
            ) from None
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)


def put_in_place(
    dataset: DataFolder, staging: Path, *, put: Sequence[str], remove: Sequence[str] = (), like: str
) -> None:
    """Move files and folders of the staging folder into the dataset, and remove what is obsolete.

    Args:
        dataset: Where it lies.
        staging: A folder that mirrors it. It is gone afterwards, but for what is in a store.
        put: Paths relative to it, in their order.
        remove: Paths relative to the dataset; those that do not exist are passed over.
        like: The file of the dataset whose permissions those on a file system get.

    Raises:
        ReadError: A store cannot be written, or not for us; names the object.
    """
    if dataset.is_remote:
        _commit_to_store(dataset, staging, put=put, remove=remove)
        look_again(dataset)
    else:
        _finish_staging(dataset.local, staging, like)
        commit_staged(dataset.local, staging, put=put, remove=remove)


def _finish_staging(root: Path, staging: Path, like: str) -> None:
    """Give the staged files the permissions of the data, and make their folder entries survive a power cut.

    `.nv-meta` gets the mode of the dataset's folder and every file that of `like`; both stay writable for
    their owner.
    """
    folder_mode = root.stat().st_mode | 0o700
    file_mode = (root / like).stat().st_mode & 0o666 | 0o600
    with contextlib.suppress(PermissionError):
        (root / META_FOLDER).chmod(folder_mode & 0o7777)
    for folder, _, files in os.walk(staging):
        for file in files:
            os.chmod(os.path.join(folder, file), file_mode)
        if Path(folder) != staging:
            os.chmod(folder, folder_mode & 0o777)
        sync_folder(Path(folder))


def _commit_to_store(dataset: DataFolder, staging: Path, *, put: Sequence[str], remove: Sequence[str] = ()) -> None:
    """Put files and folders of the staging folder into the store, and remove what is obsolete.

    A store has neither a rename nor a way to put several objects at once. So what nothing refers to yet goes first: the
    columns, in a folder with a new name, and the indices beside the shards. Then come the small files, the header that
    names the columns, and last `.info.json`, which makes a folder a dataset. A dataset that is prepared for the first
    time thus appears whole. One that is prepared again is between its states for the time that a few small objects
    take; if this process is killed just then, the same command completes it.

    The columns that were current until now stay until the next `prepare`, for readers that are just opening them.
    """
    client = shared_client(storage_settings())
    kept = {Path(path).name for path in put if Path(path).parent.as_posix() == _COLUMNAR} | {COLUMNS_FOLDER}
    with contextlib.suppress(IndexFileError):
        header = read_header(columnar_folder(dataset.local), dataset.local)
        kept |= set() if header is None else {header.generation}

    def upload(name: str) -> None:
        client.write(join(dataset.location, name), (staging / name).read_bytes())

    unseen, seen = list[str](), list[str]()  # columns, indices of shards, the database: without the others, nothing
    for path in put:
        inside = sorted((staging / path).rglob("*")) if (staging / path).is_dir() else [staging / path]
        for name in (file.relative_to(staging).as_posix() for file in inside if file.is_file()):
            is_unseen = name.startswith(f"{_COLUMNAR}/") or name.endswith((".idx", ".sqlite"))
            (unseen if is_unseen and name not in _LAST else seen).append(name)
    large = [name for name in unseen if (staging / name).stat().st_size > _SIDE_BY_SIDE_BYTES]
    for name in large:
        upload(name)
    client.map(upload, [name for name in unseen if name not in large])
    client.map(upload, [name for name in seen if name not in _LAST])
    for name in _LAST:
        if name in seen:
            upload(name)

    folder = join(dataset.location, _COLUMNAR)
    old = [name for name in client.list(folder) if "/" in name and name.split("/")[0] not in kept]
    urls = [join(folder, name) for name in old] + [join(dataset.location, name) for name in remove]
    client.map(client.delete, urls)
