# SPDX-License-Identifier: Apache-2.0
"""Write into a dataset: mark its folder as being written, and publish the results.

The commit journal publishes results; for a store, they are uploaded in an order that is safe for readers. The mark
describes the write and the shards that are complete:

    .nv-meta/.writing/plan.json                settings that must be the same to continue
    .nv-meta/.writing/part-00000-of-00001.open the records of finished shards, a `ScanLog`, while one writes
    .nv-meta/.writing/part-00000-of-00001.log  the same, after that writer has finished

The folder exists from the first moment to the last. Each of several writers has its own log, so writers do not need to
communicate. `prepare_dataset` uses the records instead of scanning these shards, refuses while a part is open or
missing, and removes the folder after publication.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from energon_grain.atomic_files import atomic_write_bytes, remove_temporaries, sync_folder
from energon_grain.errors import ConfigError, IndexFileError, RefusedError
from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.columnar_header import (
    COLUMNAR_FOLDER,
    COLUMNS_JSON,
    HEADER_NAME,
    columnar_folder,
    read_header,
)
from energon_grain.formats.columns import COLUMNS_FOLDER
from energon_grain.formats.commit_journal import PREPARE_FOLDER, commit_staged
from energon_grain.formats.data_folder import DataFolder, look_again, open_folder
from energon_grain.formats.nv_meta import INFO_JSON, META_FOLDER, is_prepared
from energon_grain.forms import Form
from energon_grain.prepare.scan import ScanLog
from energon_grain.storage.location import is_url, join, located
from energon_grain.storage.remote import address_of, shared_client
from energon_grain.storage.settings import storage_settings

_COLUMNAR = f"{META_FOLDER}/{COLUMNAR_FOLDER}"
_LAST = (f"{_COLUMNAR}/{HEADER_NAME}", f"{_COLUMNAR}/{COLUMNS_JSON}", f"{META_FOLDER}/{INFO_JSON}")
_PARALLEL_BYTES = 16 << 20
"""Larger files are uploaded in sequence, because each is held in memory."""


def open_to_prepare(root: str | os.PathLike[str]) -> DataFolder:
    """Locate a dataset that will be written to. Raises ConfigError if that is impossible."""
    location = located(root)
    refuse_read_only(location)
    return open_folder(location)


def refuse_read_only(location: str) -> None:
    """Raise ConfigError for a read-only URL."""
    kind = address_of(location, storage_settings()).kind if is_url(location) else None
    if kind == "http":
        raise ConfigError(f"{location}: web servers are read-only: prepare the folder on the server's disk.")
    if kind == "hub":
        raise ConfigError(
            f"{location}: the Hub is read-only: download the dataset (`hf download --repo-type dataset`), run this on "
            f"the folder, and upload its .nv-meta (`hf upload`)"
        )


@contextlib.contextmanager
def preparation_lock(folder: Path, *, of: str | None = None, doing: str = "preparing") -> Generator[None]:
    """Hold the lock of a `.nv-meta` folder, of the log of a writer below it, or of another folder of a dataset.

    The lock is on the folder itself and ends with the process, so it leaves no file, and a killed `prepare` blocks no
    other. On file systems without locks, nothing is locked. Raises RefusedError.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusedError(
                f"{of or folder.parent}: another process is {doing} this dataset. Wait for it to finish, or stop it."
            ) from None
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)


def put_in_place(
    dataset: DataFolder, staging: Path, *, put: Sequence[str], remove: Sequence[str] = (), like: str
) -> None:
    """Move files and folders of the staging folder into the dataset, and remove obsolete ones.

    Args:
        staging: A folder that mirrors the dataset. Removed afterwards, except for a store.
        put: Paths relative to it, in order.
        remove: Paths relative to the dataset; those that do not exist are ignored.
        like: The file of the dataset whose permissions the new files get on a file system.

    Raises ReadError: the store cannot be written, or refuses access; names the object.
    """
    if dataset.is_remote:
        _commit_to_store(dataset, staging, put=put, remove=remove)
        look_again(dataset)
    else:
        _finish_staging(dataset.local, staging, like)
        commit_staged(dataset.local, staging, put=put, remove=remove)


def _finish_staging(root: Path, staging: Path, like: str) -> None:
    """Give the staged files the permissions of the data, and flush their folder entries to disk.

    `.nv-meta` gets the mode of the dataset's folder, and every file that of `like`; both stay writable for
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
    """Upload files and folders of the staging folder to the store, and remove obsolete ones.

    A store has neither a rename nor an atomic write of several objects. Therefore, files that nothing refers to yet are
    uploaded first: the columns, in a folder with a new name, and the indices beside the shards. The small files follow,
    then the header that names the columns, and last `.info.json`, which makes a folder a dataset. A dataset that is
    prepared for the first time thus appears whole. One that is prepared again is inconsistent while a few small objects
    are uploaded; if this process is killed at that time, the same command completes it.

    The previous columns are kept until the next `prepare`, for readers that are opening them.
    """
    client = shared_client(storage_settings())
    kept = _kept(dataset, put)

    def upload(name: str) -> None:
        client.write(join(dataset.location, name), (staging / name).read_bytes())

    for names, parallel in _uploads(staging, list(_files_of(staging, put))):
        if parallel:
            client.map(upload, names)
        else:
            for name in names:
                upload(name)
    folder = join(dataset.location, _COLUMNAR)
    old = [name for name in client.list(folder) if "/" in name and name.split("/")[0] not in kept]
    urls = [join(folder, name) for name in old] + [join(dataset.location, name) for name in remove]
    client.map(client.delete, urls)


def _kept(dataset: DataFolder, put: Sequence[str]) -> set[str]:
    """Names in the columnar folder to keep: new and current ones."""
    kept = {Path(path).name for path in put if Path(path).parent.as_posix() == _COLUMNAR} | {COLUMNS_FOLDER}
    with contextlib.suppress(IndexFileError):
        header = read_header(columnar_folder(dataset.local), dataset.local)
        kept |= set() if header is None else {header.generation}
    return kept


def _files_of(staging: Path, put: Sequence[str]) -> Iterator[str]:
    for path in put:
        inside = sorted((staging / path).rglob("*")) if (staging / path).is_dir() else [staging / path]
        yield from (file.relative_to(staging).as_posix() for file in inside if file.is_file())


def _uploads(staging: Path, names: Sequence[str]) -> Iterator[tuple[list[str], bool]]:
    """The upload order: groups of files, and whether a group is uploaded in parallel."""
    last = [name for name in _LAST if name in names]
    unreferenced = [name for name in names if _is_unreferenced(name)]
    large = [name for name in unreferenced if (staging / name).stat().st_size > _PARALLEL_BYTES]
    yield large, False
    yield _without(unreferenced, large), True
    yield _without(names, (*unreferenced, *last)), True
    yield last, False


def _without(names: Sequence[str], others: Sequence[str]) -> list[str]:
    left_out = frozenset(others)
    return [name for name in names if name not in left_out]


def _is_unreferenced(name: str) -> bool:
    """Whether it is a column, an index of a shard or the database: readers find these only through other files."""
    return name not in _LAST and (name.startswith(f"{_COLUMNAR}/") or name.endswith((".idx", ".sqlite")))


WRITING_FOLDER = f"{META_FOLDER}/.writing"
REQUEST = f"{PREPARE_FOLDER}/request"
"""The request of an unfinished `prepare`."""
OF_A_WRITER = "of a writer"
"""Marks in it that shards were written into the folder."""
WRITTEN_FOLDER = f"{META_FOLDER}/.written"
"""Name that the `.prepare` folder of such a run gets at its end, atomically, before it is removed."""
_PLAN_JSON = "plan.json"
_PLAN: Form[dict[str, Any]] = Form(dict[str, Any])
_LOG = re.compile(r"part-(\d+)-of-(\d+)\.(open|log)")


def read_plan(root: Path) -> dict[str, Any] | None:
    """The plan of an unfinished write into a folder; None without one, or if it was killed at its very beginning.

    Raises ConfigError if the file is damaged.
    """
    path = root / WRITING_FOLDER / _PLAN_JSON
    try:
        return _PLAN.from_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: not the plan of a write ({error}); remove {root}, or this file") from error


def begin_writing(root: Path, plan: Mapping[str, Any], *, append: bool = False, any_function: bool = False) -> None:
    """Mark a folder as being written, unless it is already marked.

    Args:
        root: New, empty, or with an unfinished write of the same plan.
        plan: Settings that must be the same to continue a write; JSON-native.
        append: The folder is a dataset to add shards to.
        any_function: The `fn` of the plan may differ.

    Raises RefusedError: the folder holds other files.
    """
    work, found = root / WRITING_FOLDER, read_plan(root)
    if found is not None:
        if _differs(root, plan, found, any_function=any_function):
            atomic_write_bytes(work / _PLAN_JSON, msgspec.json.encode(plan))
        return
    if not (_is_folder_or_new(root) and (append or work.is_dir() or _is_free(root))):
        ways = "; append=True adds shards to it" if is_prepared(root) else ""
        raise RefusedError(
            f"{root}: is not empty. Write into a new or empty folder, or continue an unfinished write with the same "
            f"settings{ways}"
        )
    work.mkdir(parents=True, exist_ok=True)
    remove_temporaries(work, f".{_PLAN_JSON}.*.tmp")
    atomic_write_bytes(work / _PLAN_JSON, msgspec.json.encode(plan))


def _differs(root: Path, plan: Mapping[str, Any], found: Mapping[str, Any], *, any_function: bool) -> bool:
    """Whether a write has another plan than an unfinished one. Raises RefusedError if it must not."""
    differs = [name for name in dict.fromkeys([*plan, *found]) if found.get(name) != plan.get(name)]
    if differs and not (differs == ["fn"] and any_function):
        ways = "; resume=True keeps what the old function wrote" if differs == ["fn"] else ""
        raise RefusedError(
            f"{root}: holds an unfinished write with other settings or other data ({', '.join(differs)} differ); "
            f"finish that write, or remove its files and {root / WRITING_FOLDER}{ways}"
        )
    return bool(differs)


def _is_folder_or_new(root: Path) -> bool:
    return root.is_dir() or not root.exists()


def _is_free(root: Path) -> bool:
    """Whether a folder is empty, except for remains of a write that was killed at its beginning or end."""
    # At its beginning, a write leaves an empty `.nv-meta`, or one with an empty folder.
    there = list(root.iterdir()) if root.is_dir() else []
    meta = root / META_FOLDER
    return all(path == meta and not any(path.iterdir()) for path in there) or _is_almost_finished(root)


def _is_almost_finished(root: Path) -> bool:
    """Whether a write was killed after its index was published and its plan removed."""
    request = root / REQUEST
    return (root / WRITTEN_FOLDER).is_dir() or (
        request.is_file() and OF_A_WRITER in request.read_text(encoding="utf-8")
    )


class PartLog:
    """The log of one of several writers, locked against other processes.

    Raises RefusedError if another process is writing this part.
    """

    def __init__(self, root: Path, part: int, parts: int, index: ColumnarIndex | None = None) -> None:
        self._open = root / WRITING_FOLDER / f"part-{part:05d}-of-{parts:05d}.open"
        if self.closed.exists():
            self.closed.rename(self._open)
        self._open.touch()
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(preparation_lock(self._open, doing="writing"))
        self.log = self._stack.enter_context(contextlib.closing(ScanLog(self._open, index)))

    @property
    def closed(self) -> Path:
        """Path of the log after its writer has finished."""
        return self._open.with_suffix(".log")

    def __enter__(self) -> PartLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(done=kind is None)

    def close(self, *, done: bool) -> None:
        """Release it; `done` marks this part as complete."""
        if done:
            self._open.rename(self.closed)
        self._stack.close()


def has_part(root: Path, part: int, parts: int) -> bool:
    """Whether one of several writers has written into a folder before."""
    name = f"part-{part:05d}-of-{parts:05d}"
    return any((root / WRITING_FOLDER / f"{name}.{ending}").exists() for ending in ("open", "log"))


def check_written(root: Path) -> None:
    """Raise RefusedError if a write into this folder is incomplete."""
    work = root / WRITING_FOLDER
    unfinished = _unfinished(work)
    if unfinished is not None:
        raise RefusedError(
            f"{root}: a write into this folder is not finished ({unfinished}): run its program or command again, which "
            f"continues it; or remove {work} to prepare only the complete shards"
        )


def _unfinished(work: Path) -> str | None:
    """Describe the parts of a write that are open or missing; None if all are complete."""
    found = {(int(match[1]), int(match[2])): match[3] for _, match in _logs(work)}
    missing = sorted({part for _, parts in found for part in range(parts)} - {part for part, _ in found})
    if missing:
        return f"its parts {', '.join(map(str, missing))} were never started"
    is_begun = (work / _PLAN_JSON).exists() and not found
    return "interrupted, or still running" if is_begun or "open" in found.values() else None


def import_records(root: Path, log: ScanLog) -> None:
    """Copy the records of finished shards from the writers' logs."""
    for path, _ in _logs(root / WRITING_FOLDER):
        with contextlib.closing(ScanLog(path)) as written:
            for record in written.records():
                log.add(record)


def end_writing(root: Path) -> None:
    """Remove the mark of a write atomically; the remains are removed with those of the `prepare`."""
    work, left = root / WRITING_FOLDER, root / PREPARE_FOLDER / "written"
    if work.is_dir():
        left.parent.mkdir(exist_ok=True)
        shutil.rmtree(left, ignore_errors=True)
        work.rename(left)


def _logs(work: Path) -> Iterator[tuple[Path, re.Match[str]]]:
    for path in sorted(work.glob("part-*")):
        if match := _LOG.fullmatch(path.name):
            yield path, match
