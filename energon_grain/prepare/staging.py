"""What `prepare` writes: outputs in a staging folder, flushed to disk; objects in a store; new names in tars."""

from __future__ import annotations

import contextlib
import os
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from energon_grain.errors import DuplicateKeyError, IndexFileError
from energon_grain.formats.columnar_build import write_columnar
from energon_grain.formats.columnar_header import COLUMNAR_FOLDER, HEADER_NAME, columnar_folder, read_header
from energon_grain.formats.commit_journal import PREPARE_FOLDER
from energon_grain.formats.data_folder import DataFolder
from energon_grain.formats.nv_meta import INDEX_SQLITE, INDEX_UUID, INFO_JSON, META_FOLDER, write_uuid
from energon_grain.formats.tar.index import tar_index_path
from energon_grain.formats.tar.names import split_member_name
from energon_grain.formats.tar.scan import ShardScan
from energon_grain.prepare.scan import ScannedDataset
from energon_grain.storage.atomic import atomic_write, remove_temporaries, sync_folder
from energon_grain.storage.location import join
from energon_grain.storage.object_client import shared_client
from energon_grain.storage.settings import storage_settings

_THREADS = 8  # most of them wait for the disk
_MARK = f"{PREPARE_FOLDER}/prefixing"
_COLUMNAR = f"{META_FOLDER}/{COLUMNAR_FOLDER}"
_LAST = (f"{_COLUMNAR}/{HEADER_NAME}", f"{META_FOLDER}/{INFO_JSON}")
_SIDE_BY_SIDE_BYTES = 16 << 20
"""Larger files are put one after the other: each is in memory meanwhile."""


def stage_indices(
    staging: Path,
    scanned: ScannedDataset,
    *,
    tar_indices: bool,
    sqlite: bool,
    sqlite_build_path: Path | None = None,
) -> tuple[list[str], str]:
    """Write the columnar index and, if wanted, `.tar.idx`, `index.sqlite` and `index.uuid`.

    A `.tar.idx` is not flushed to disk by itself, which would take longer than all else of a small shard. One that a
    power cut tears has another length or does not ascend; readers say so, and `--tar-index-only` writes it anew.

    Args:
        staging: The folder that mirrors the dataset.
        scanned: The shards, in the order of `.info.json`.
        tar_indices: Whether to write a `.tar.idx` beside each shard.
        sqlite: Whether to write `index.sqlite`, which Energon's joins and auxiliary data need.
        sqlite_build_path: Where; the staging folder then has a link to it.

    Returns:
        The paths to move, relative to the root, and the name of the generation of the columnar index.

    Raises:
        DuplicateKeyError: Two samples of the dataset have the same key.
    """
    columnar, names, put = columnar_folder(staging), [shard.name for shard in scanned.shards], list[str]()

    def scans() -> Iterator[ShardScan]:
        folders: set[str] = set()
        for name, scan in zip(names, scanned.scans(), strict=True):
            if tar_indices:
                put.append(tar_index_path(name).as_posix())
                path = os.path.join(staging, put[-1])
                if (folder := os.path.dirname(path)) not in folders:
                    os.makedirs(folder, exist_ok=True)
                    folders.add(folder)
                with open(path, "wb") as file:
                    file.write(scan.sample_start.astype("<i8").tobytes())
            yield scan

    def stage_sqlite() -> None:
        from energon_grain.formats.sqlite_index import write_sqlite_index

        path = staging / META_FOLDER / INDEX_SQLITE
        write_sqlite_index(sqlite_build_path or path, enumerate(scanned.scans()), shard_name=names.__getitem__)
        if sqlite_build_path is not None:
            path.symlink_to(sqlite_build_path.absolute())
        write_uuid(staging)

    with ThreadPoolExecutor(1, thread_name_prefix="prepare") as pool:
        # SQLite takes longest, and waits for its library, not for Python, while it sorts its indices.
        database = pool.submit(stage_sqlite) if sqlite else None
        header = write_columnar(columnar, names, scans(), unique_keys=True)
        if database is not None:
            database.result()
            put += [f"{META_FOLDER}/{INDEX_SQLITE}", f"{META_FOLDER}/{INDEX_UUID}"]
    put += [f"{_COLUMNAR}/{header.generation}", f"{_COLUMNAR}/{HEADER_NAME}"]
    return put, header.generation


def finish_staging(root: Path, staging: Path, first_shard: str) -> None:
    """Give the staged files the permissions of the data, and make their folder entries survive a power cut.

    `.nv-meta` gets the mode of the dataset's folder and every file that of the first shard; both stay writable for
    their owner.
    """
    folder_mode = root.stat().st_mode | 0o700
    file_mode = (root / first_shard).stat().st_mode & 0o666 | 0o600
    with contextlib.suppress(PermissionError):
        (root / META_FOLDER).chmod(folder_mode & 0o7777)
    for folder, _, files in os.walk(staging):
        for file in files:
            os.chmod(os.path.join(folder, file), file_mode)
        if Path(folder) != staging:
            os.chmod(folder, folder_mode & 0o777)
        sync_folder(Path(folder))


def finish_prefixes(root: Path, shards: Sequence[str]) -> None:
    """Rename the members of the tars that a killed run had not come to. To be called while the dataset is locked."""
    if (root / _MARK).exists():
        for folder in {(root / shard).parent for shard in shards}:
            remove_temporaries(folder, ".*.tar.*.tmp")
        _prefix(root, shards)


def prefix_members(root: Path, scanned: ScannedDataset) -> None:
    """Put the path of its tar before each member's name, in all of them. To be called while the dataset is locked.

    `b/7.jpg` in the shard `parts/3.tar` becomes `parts/3.tar/b/7.jpg`, as `energon prepare --fix-duplicates` has it, so
    that its key is `parts/3.tar/b/7`; members that are no parts of samples keep their names. Energon changes headers in
    place, which a kill in the middle of a sample tears apart, and which names that become too long for their header
    rule out. Here each tar is written anew beside the old one and renamed, so that it has all of its old names or all
    of its new ones, and readers that have it open go on with the old one.

    The mark `.nv-meta/.prepare/prefixing` is there from before the first rename until the dataset is prepared: where a
    run was killed after some of the tars, the keys may be distinct already, but the other tars are to be renamed all
    the same.

    Raises:
        DuplicateKeyError: One tar has a key twice, which that would not mend. Nothing was changed.
    """
    for shard, scan in zip(scanned.shards, scanned.scans(), strict=True):
        if len(set(scan.keys())) < len(scan):
            raise DuplicateKeyError(
                f"{join(scanned.root, shard.name)}: has a key twice, in members that are not adjacent, so that the "
                f"name of the tar would not tell its samples apart. Rename them; no tar was changed."
            )
    (root / _MARK).touch()
    _prefix(root, [shard.name for shard in scanned.shards])


def _prefix(root: Path, shards: Sequence[str]) -> None:
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="prepare") as pool:
        list(pool.map(lambda shard: _prefix_one(root / shard, f"{shard}/"), shards))


def _prefix_one(path: Path, prefix: str) -> None:
    with open(path, "rb") as data, tarfile.open(fileobj=data, mode="r:") as old:
        members = old.getmembers()
        parts = [member for member in members if member.isreg() and split_member_name(member.name)]
        if all(member.name.startswith(prefix) for member in parts):
            return  # done by a run that was killed
        for member in parts:
            member.name = prefix + member.name
        with atomic_write(path) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as new:
            for member in members:
                data.seek(member.offset_data)
                new.addfile(member, data if member.isreg() else None)


def commit_to_store(dataset: DataFolder, staging: Path, *, put: Sequence[str], remove: Sequence[str] = ()) -> None:
    """Put files and folders of the staging folder into the store, and remove what is obsolete.

    A store has neither a rename nor a way to put several objects at once. So what nothing refers to yet goes first: the
    columns, in a folder with a new name, and the indices beside the shards. Then come the small files, the header that
    names the columns, and last `.info.json`, which makes a folder a dataset. A dataset that is prepared for the first
    time thus appears whole. One that is prepared again is between its states for the time that a few small objects
    take; if this process is killed just then, the same command completes it.

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
    kept = {Path(path).name for path in put if Path(path).parent.as_posix() == _COLUMNAR}
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
