"""What `prepare` writes: outputs in a staging folder, flushed to disk; objects in a store; new names in tars."""

from __future__ import annotations

import contextlib
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from energon_grain.errors import DuplicateKeyError, IndexFileError, StaleIndexError
from energon_grain.formats.array_record import RecordEncoding, encode_records_file
from energon_grain.formats.columnar_build import write_columnar
from energon_grain.formats.columnar_header import COLUMNAR_FOLDER, HEADER_NAME, columnar_folder, read_header
from energon_grain.formats.commit_journal import PREPARE_FOLDER
from energon_grain.formats.data_folder import DataFolder
from energon_grain.formats.nv_meta import (
    INDEX_SQLITE,
    INDEX_UUID,
    INFO_JSON,
    INFO_YAML,
    META_FOLDER,
    RECORDS_JSON,
    DatasetInfo,
    write_info,
    write_uuid,
)
from energon_grain.formats.splits import SplitConfig, write_split_config
from energon_grain.formats.tar.index import tar_index_path, write_tar_index
from energon_grain.formats.tar.names import split_member_name
from energon_grain.formats.tar.scan import ShardScan
from energon_grain.prepare.scan import ScanTask, ShardIdentity, load_scan
from energon_grain.storage.atomic import (
    atomic_write,
    atomic_write_bytes,
    atomic_write_text,
    remove_temporaries,
    sync_folder,
)
from energon_grain.storage.location import join
from energon_grain.storage.object_client import shared_client
from energon_grain.storage.storage_settings import storage_settings

if TYPE_CHECKING:
    from energon_grain.prepare.dataset_definition import DatasetDefinition

_THREADS = 8  # most of them wait for the disk
_MARK = f"{PREPARE_FOLDER}/prefixing"
_COLUMNAR = f"{META_FOLDER}/{COLUMNAR_FOLDER}"
_LAST = (f"{_COLUMNAR}/{HEADER_NAME}", f"{META_FOLDER}/{INFO_JSON}")
_SIDE_BY_SIDE_BYTES = 16 << 20
"""Larger files are put one after the other: each is in memory meanwhile."""


def stage_indices(
    staging: Path,
    scans: Mapping[ScanTask, ShardIdentity],
    *,
    tar_indices: bool,
    sqlite: bool,
    sqlite_build_path: Path | None = None,
) -> tuple[list[str], str]:
    """Write the columnar index and, if wanted, `.tar.idx`, `index.sqlite` and `index.uuid`.

    Args:
        staging: The folder that mirrors the dataset.
        scans: What was scanned, in the order of `.info.json`.
        tar_indices: Whether to write a `.tar.idx` beside each shard.
        sqlite: Whether to write `index.sqlite`, which Energon's joins and auxiliary data need.
        sqlite_build_path: Where; the staging folder then has a link to it.

    Returns:
        The paths to move, relative to the root, and the name of the generation of the columnar index.

    Raises:
        DuplicateKeyError: Two samples of the dataset have the same key.
    """
    (staging / META_FOLDER).mkdir(exist_ok=True)
    columnar, shards = columnar_folder(staging), [task.name for task in scans]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="prepare") as pool:
        # SQLite takes longest, and waits for its library, not for Python, while it sorts its indices.
        database = pool.submit(_stage_sqlite, staging, shards, scans, sqlite_build_path) if sqlite else None
        described = scans if tar_indices else {}
        indices = [pool.submit(_stage_tar_index, staging, task, identity) for task, identity in described.items()]
        header = write_columnar(columnar, shards, _load(scans), unique_keys=True)
        put = [future.result() for future in indices]
        put += [] if database is None else database.result()
    put += [_relative(staging, columnar / header.generation), _relative(staging, columnar / HEADER_NAME)]
    return put, header.generation


def stage_info(root: Path, staging: Path, info: DatasetInfo) -> list[str]:
    """Write `.info.json`, and `.info.yaml` where the dataset has one, and return their paths."""
    (staging / META_FOLDER).mkdir(exist_ok=True)
    put = [f"{META_FOLDER}/{INFO_JSON}"]
    if (root / META_FOLDER / INFO_YAML).exists():
        (staging / META_FOLDER / INFO_YAML).touch()
        put.append(f"{META_FOLDER}/{INFO_YAML}")
    write_info(staging, info)
    return put


def stage_records_file(staging: Path, encoding: RecordEncoding) -> list[str]:
    """Write `records.json` and return its path."""
    atomic_write_bytes(staging / META_FOLDER / RECORDS_JSON, encode_records_file(encoding))
    return [f"{META_FOLDER}/{RECORDS_JSON}"]


def stage_splits(staging: Path, name: str, split_parts: Mapping[str, Sequence[str]]) -> list[str]:
    """Write the split file and return its path."""
    config = SplitConfig(split_parts={name: tuple(shards) for name, shards in split_parts.items()})
    write_split_config(staging / META_FOLDER / name, config)
    return [f"{META_FOLDER}/{name}"]


def stage_definition(staging: Path, name: str, definition: DatasetDefinition) -> list[str]:
    """Write the dataset's YAML file and return its path."""
    text = yaml.safe_dump(definition.content, sort_keys=False, allow_unicode=True, width=120)
    atomic_write_text(staging / META_FOLDER / name, text)
    return [f"{META_FOLDER}/{name}"]


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


def _load(scans: Mapping[ScanTask, ShardIdentity]) -> Iterator[ShardScan]:
    for task, identity in scans.items():
        yield _load_one(task, identity)


def _load_one(task: ScanTask, identity: ShardIdentity) -> ShardScan:
    scan = load_scan(task.scan_path, identity)
    if scan is None:
        raise StaleIndexError(f"{task.scan_path}: the scan of {task.name} was changed or removed. Prepare again.")
    return scan


def _stage_sqlite(
    staging: Path, shards: Sequence[str], scans: Mapping[ScanTask, ShardIdentity], build_path: Path | None
) -> list[str]:
    from energon_grain.formats.sqlite_index import write_sqlite_index

    path = staging / META_FOLDER / INDEX_SQLITE
    write_sqlite_index(build_path or path, enumerate(_load(scans)), shard_name=shards.__getitem__)
    if build_path is not None:
        path.symlink_to(build_path.absolute())
    write_uuid(staging)
    return [f"{META_FOLDER}/{INDEX_SQLITE}", f"{META_FOLDER}/{INDEX_UUID}"]


def _stage_tar_index(staging: Path, task: ScanTask, identity: ShardIdentity) -> str:
    path = tar_index_path(staging / task.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tar_index(path, _load_one(task, identity).sample_start)
    return _relative(staging, path)


def _relative(staging: Path, path: Path) -> str:
    return path.relative_to(staging).as_posix()


def finish_prefixes(root: Path, shards: Sequence[str]) -> None:
    """Rename the members of the tars that a killed run had not come to. To be called while the dataset is locked."""
    if (root / _MARK).exists():
        for folder in {(root / shard).parent for shard in shards}:
            remove_temporaries(folder, ".*.tar.*.tmp")
        _prefix(root, shards)


def prefix_members(root: Path, scans: Mapping[ScanTask, ShardIdentity]) -> None:
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
    for task, identity in scans.items():
        scan = load_scan(task.scan_path, identity)
        if scan is not None and len(set(scan.keys())) < len(scan):
            raise DuplicateKeyError(
                f"{task.location}: has a key twice, in members that are not adjacent, so that the name of the tar "
                f"would not tell its samples apart. Rename them; no tar was changed."
            )
    (root / _MARK).touch()
    _prefix(root, [task.name for task in scans])


def _prefix(root: Path, shards: Sequence[str]) -> None:
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="prepare") as pool:
        for done in [pool.submit(_prefix_one, root / shard, f"{shard}/") for shard in shards]:
            done.result()


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
