"""Write every output of a `prepare` into the staging folder, flushed to disk, ready to be moved into place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from energon_grain.errors import StaleIndexError
from energon_grain.formats.array_record_encoding import RecordEncoding, encode_records_file
from energon_grain.formats.columnar_build import write_columnar
from energon_grain.formats.columnar_header import HEADER_NAME, columnar_folder
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
from energon_grain.formats.tar.index import encode_tar_index, tar_index_path
from energon_grain.formats.tar.scan import ShardScan
from energon_grain.prepare.scan_task import ScanTask
from energon_grain.prepare.stored_scan import ShardIdentity, load_scan
from energon_grain.storage.atomic import (
    atomic_write_bytes,
    atomic_write_text,
    naming_when_full,
    sync_files,
    sync_folder,
)

if TYPE_CHECKING:
    from energon_grain.prepare.dataset_definition import DatasetDefinition


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
    with ThreadPoolExecutor(1, thread_name_prefix="prepare") as pool:
        # SQLite takes longest, and waits for its library, not for Python, while it sorts its indices.
        database = pool.submit(_stage_sqlite, staging, shards, scans, sqlite_build_path) if sqlite else None
        put: list[str] = []
        loaded = _load_and_stage(staging, scans, put) if tar_indices else _load(scans)
        header = write_columnar(columnar, shards, loaded, unique_keys=True)
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
    """Give the staged files the permissions of the data, and make them survive a power cut.

    `.nv-meta` gets the mode of the dataset's folder and every file that of the first shard; both stay writable for
    their owner.
    """
    folder_mode = root.stat().st_mode | 0o700
    file_mode = (root / first_shard).stat().st_mode & 0o666 | 0o600
    with contextlib.suppress(PermissionError):
        (root / META_FOLDER).chmod(folder_mode & 0o7777)
    indices: list[str] = []
    folders: list[Path] = []
    for folder, _, files in os.walk(staging):
        for file in files:
            os.chmod(os.path.join(folder, file), file_mode)
        indices += [os.path.join(folder, file) for file in files if file.endswith(".tar.idx")]
        if Path(folder) != staging:
            os.chmod(folder, folder_mode & 0o777)
        folders.append(Path(folder))
    sync_files(indices)  # the others were flushed when they were written
    for folder in folders:
        sync_folder(folder)


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


def _load_and_stage(staging: Path, scans: Mapping[ScanTask, ShardIdentity], put: list[str]) -> Iterator[ShardScan]:
    """The same as `_load`; and each `.tar.idx` is written on the way, and its path added to `put`.

    Not flushed: `finish_staging` does that for all of them.
    """
    for task, scan in zip(scans, _load(scans), strict=True):
        path = tar_index_path(staging / task.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with naming_when_full(path):
            path.write_bytes(encode_tar_index(path, scan.sample_start))
        put.append(_relative(staging, path))
        yield scan


def _relative(staging: Path, path: Path) -> str:
    return path.relative_to(staging).as_posix()
