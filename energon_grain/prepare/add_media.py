# SPDX-License-Identifier: Apache-2.0
"""Metadata of media for what is there already: a prepared dataset of tars, or a plain folder of files."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

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
from energon_grain.storage.atomic import naming_when_full, remove_temporaries

_FILES_AT_ONCE = 512
"""Files of a plain folder that are looked at together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderReport:
    """What was found when the media of a plain folder were looked at.

    Attributes:
        root: The folder; a URL as text.
        files: How many files were looked at.
        size_bytes: Of these files.
        media: What came of it.
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
    """Gather what the headers of media say, of a prepared dataset of tars or of a plain folder of files.

    It goes into `.nv-meta/index.sqlite`, as Energon has it, for `get_media_metadata` of file stores; that of a dataset
    into columns as well (`open_columns`). What is known of files that are not looked at stays; so this may be done once
    for pictures and once for videos. Everything is put in place at once, and a run that was killed is taken up by the
    same call. Last of all, videos of tars on disks that are looked at get the indices that they lack (`index_videos`).

    Args:
        root: The folder, or its URL.
        media_filter: Which files are looked at.
        num_workers: As in `prepare_dataset`, and so are the others.
        progress: See there; of a folder, some 500 files count as a shard.

    Raises:
        DatasetNotFoundError: There is no such folder, or no file in it is to be looked at.
        ConfigError: It is neither a dataset of tars nor a plain folder.
        StaleIndexError: The tars do not have as many samples as when they were prepared.
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
    tell: Callable[[PrepareProgress], None],
    executor: Executor | None,
) -> FolderReport:
    start, root = time.perf_counter(), dataset.local
    kind = None if dataset.is_remote else kind_by_marker(dataset.location)
    if kind is not None and kind.open is not None:
        raise ConfigError(f"{dataset.location}: is {kind.described}, which holds no files of media.")
    taken = sorted(name for name in list_files(dataset.location, what="media") if media_filter.may_take(name))
    names, tasks = _tasks(dataset, taken, media_filter)
    (root / PREPARE_FOLDER).mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(naming(dataset))
        stack.enter_context(naming_when_full(root / META_FOLDER))
        stack.enter_context(preparation_lock(root / META_FOLDER))
        remove_temporaries(root / PREPARE_FOLDER, "staged-*")
        log = stack.enter_context(contextlib.closing(ScanLog(root / PREPARE_FOLDER / "scan.log")))
        scanned = scan_dataset(dataset.location, tasks, log, num_workers=num_workers, executor=executor, progress=tell)
        staging, put = new_staging_folder(root), [f"{META_FOLDER}/{INDEX_SQLITE}"]
        (staging / META_FOLDER).mkdir()
        tell(scanned.progress("index"))
        write_media_tables(staging / put[0], scanned.scans(), media_filter)
        if (old := copy_database(dataset.location)) is not None:
            keep_media_tables(staging / put[0], old, media_filter)
        tell(scanned.progress("commit"))
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
    """The files that are looked at, and so many of them at a time; those whose name is not UTF-8 are left out."""
    names = [name for name in taken if name == printable(name)]
    if not names:
        raise DatasetNotFoundError(f"{dataset.location}: no file in it or in its subfolders is to be looked at.")
    starts = range(0, len(names), _FILES_AT_ONCE)
    pieces = [tuple(names[at : at + _FILES_AT_ONCE]) for at in starts]
    return names, [ShardTask(name=files[0], media=media_filter, files=files) for files in pieces]
