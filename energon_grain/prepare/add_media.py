# SPDX-License-Identifier: Apache-2.0
"""Add media metadata to existing data: a prepared dataset of tars, or a plain folder of files."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from energon_grain.atomic_files import naming_when_full, remove_temporaries
from energon_grain.errors import ConfigError, DatasetNotFoundError, public
from energon_grain.formats.commit_journal import PREPARE_FOLDER, new_staging_folder
from energon_grain.formats.data_folder import DataFolder, copy_database, naming
from energon_grain.formats.nv_meta import INDEX_SQLITE, META_FOLDER, is_prepared
from energon_grain.formats.sqlite_index import keep_media_tables, write_media_tables
from energon_grain.media.headers import MediaFilterConfig
from energon_grain.prepare.listing import list_files, printable
from energon_grain.prepare.preparation import PrepareReport, prepare_dataset
from energon_grain.prepare.scan import MediaReport, PrepareProgress, ScanLog, ShardTask, scan_dataset
from energon_grain.prepare.writing import open_to_prepare, preparation_lock, put_in_place
from energon_grain.sources.kinds import kind_by_marker

_FILES_AT_ONCE = 512
"""Number of files of a plain folder per task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderReport:
    """Result of reading the media headers of a plain folder.

    Attributes:
        root: The folder; a URL as text.
        files: Number of files read.
        size_bytes: Total size of these files.
        media: Media found, and failures.
        elapsed_s: Wall-clock time.
    """

    root: Path | str
    files: int
    size_bytes: int
    media: MediaReport
    elapsed_s: float


@public
def prepare_media(
    root: str | os.PathLike[str],
    media_filter: MediaFilterConfig,
    *,
    num_workers: int | None = None,
    sqlite_build_path: Path | None = None,
    progress: Callable[[PrepareProgress], None] | None = None,
    executor: Executor | None = None,
) -> PrepareReport | FolderReport:
    """Collect metadata from media headers, for a prepared dataset of tars or a plain folder of files.

    The metadata goes into `.nv-meta/index.sqlite`, in Energon's format, for `get_media_metadata` of file stores. For a
    dataset it also goes into columns (`open_columns`). Metadata of files that this call skips is kept, so you can run
    it once for images and once for videos. All results are published at once. After a crash, the same call resumes.
    Finally, videos in tars on local disks get missing seek indices (`index_videos`).

    Args:
        root: The folder, or its URL.
        media_filter: Selects the files to read.
        num_workers: As in `prepare_dataset`, like the other arguments.
        progress: As in `prepare_dataset`; in a folder, about 500 files count as a shard.

    Raises:
        DatasetNotFoundError: The folder does not exist, or no file in it passes the filter.
        ConfigError: The folder is neither a dataset of tars nor a plain folder.
        StaleIndexError: The number of samples in the tars has changed since they were prepared.
        EnergonGrainError: As in `prepare_dataset`.
    """
    dataset = open_to_prepare(root)
    if is_prepared(dataset.local):
        return prepare_dataset(
            dataset.location,
            tar_index_only=True,
            media_filter=media_filter,
            num_workers=num_workers,
            sqlite_build_path=sqlite_build_path,
            progress=progress,
            executor=executor,
        )
    return _prepare_folder(dataset, media_filter, num_workers, progress or (lambda _: None), executor)


def _prepare_folder(
    dataset: DataFolder,
    media_filter: MediaFilterConfig,
    num_workers: int | None,
    notify: Callable[[PrepareProgress], None],
    executor: Executor | None,
) -> FolderReport:
    start, root = time.perf_counter(), dataset.local
    kind = None if dataset.is_remote else kind_by_marker(dataset.location)
    if kind is not None and kind.open is not None:
        raise ConfigError(f"{dataset.location}: is {kind.described}; expected a plain folder of media files.")
    taken = sorted(name for name in list_files(dataset.location, what="media") if media_filter.may_take(name))
    names, tasks = _tasks(dataset, taken, media_filter)
    (root / PREPARE_FOLDER).mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(naming(dataset))
        stack.enter_context(naming_when_full(root / META_FOLDER))
        stack.enter_context(preparation_lock(root / META_FOLDER))
        remove_temporaries(root / PREPARE_FOLDER, "staged-*")
        log = stack.enter_context(contextlib.closing(ScanLog(root / PREPARE_FOLDER / "scan.log")))
        scanned = scan_dataset(
            dataset.location, tasks, log, num_workers=num_workers, executor=executor, progress=notify
        )
        staging, put = new_staging_folder(root), [f"{META_FOLDER}/{INDEX_SQLITE}"]
        (staging / META_FOLDER).mkdir()
        notify(scanned.progress("index"))
        write_media_tables(staging / put[0], scanned.scans(), media_filter)
        if (old := copy_database(dataset.location)) is not None:
            keep_media_tables(staging / put[0], old, media_filter)
        notify(scanned.progress("commit"))
        put_in_place(dataset, staging, put=put, like=names[0])
        remove_temporaries(root / PREPARE_FOLDER, "[!r]*")
        (root / PREPARE_FOLDER).rmdir()
    return FolderReport(
        root=dataset.location if dataset.is_remote else root,
        files=len(names),
        size_bytes=scanned.size_bytes,
        media=scanned.media.with_failures(
            [f"{printable(name)} has a name that is not UTF-8" for name in taken if name != printable(name)]
        ),
        elapsed_s=time.perf_counter() - start,
    )


def _tasks(
    dataset: DataFolder, taken: Sequence[str], media_filter: MediaFilterConfig
) -> tuple[list[str], list[ShardTask]]:
    """The files to read, and tasks of `_FILES_AT_ONCE` files. Files whose names are not UTF-8 are skipped."""
    names = [name for name in taken if name == printable(name)]
    if not names:
        raise DatasetNotFoundError(
            f"{dataset.location}: no file in the folder or its subfolders passes the media filter; check the folder "
            f"and the filter."
        )
    starts = range(0, len(names), _FILES_AT_ONCE)
    pieces = [tuple(names[at : at + _FILES_AT_ONCE]) for at in starts]
    return names, [ShardTask(name=files[0], media=media_filter, files=files) for files in pieces]
