# SPDX-License-Identifier: Apache-2.0
"""Scan the shards of a dataset: the work on one shard, all shards on an executor, and the results.

A worker, in this process or on another machine, runs `scan_shard`. It needs only the shard, writes nothing, and returns
the scan as bytes. This process appends them to one file, the log, so finished scans survive a crash of workers,
executor or this process.

A record of the log is 8 bytes of magic; as little-endian uint32, the CRC-32 of all following bytes, because the log is
not flushed to disk; as uint64, the lengths of two msgpack documents; the identity of the scanned file (name, size, time
of modification, or version of an object), so that the scan of another file is never used for it; the columns. The last
record of a shard counts. An unfinished record of a killed process at the end is cut off.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import socket
import struct
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from energon_grain.atomic_files import naming_when_full
from energon_grain.errors import (
    ConfigError,
    DatasetNotFoundError,
    EnergonGrainError,
    StaleIndexError,
    WorkerError,
)
from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.nv_meta import DatasetInfo
from energon_grain.formats.records import RecordEncoding
from energon_grain.formats.scan import MediaRows, ShardScan
from energon_grain.forms import Form
from energon_grain.media.headers import MediaFilterConfig
from energon_grain.prepare.containers import Container, container_of
from energon_grain.prepare.executors import outcomes, own_executor
from energon_grain.prepare.listing import printable
from energon_grain.prepare.media_headers import LISTED_FAILURES, media_in_files, media_in_shard
from energon_grain.storage.digests import ShardDigest
from energon_grain.storage.location import is_url, join
from energon_grain.storage.remote import is_unchanged, shared_client
from energon_grain.storage.settings import StorageSettings, storage_settings, use_storage

MAX_PART_NAMES = 50
_TASKS_AHEAD = 1024
"""Maximum number of submitted shards: enough for a thousand cores, and a limit for results waiting in this process."""
_LISTED_FAILURES = 5
_IN_THREADS_BYTES = 4 << 30
"""Size of tars up to which threads are used: a core scans 1 to 3 GB/s, and starting a process takes 0.7 s of one."""
_MAGIC = b"EGSCAN2\n"
_HEAD = struct.Struct("<8sIQQ")
_COLUMNS: dict[str, type[Any]] = {
    "sample_start": np.int64,
    "part_start": np.int64,
    "part_name": np.int32,
    "part_offset": np.int64,
    "part_size": np.int64,
    "key_start": np.int64,
    "key_bytes": np.uint8,
}


class ShardTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A shard to scan, relative to the dataset; or files of a plain folder.

    An ArrayRecord file has the encoding of its `records`, and the index in the dataset of its `first` record. With
    `media`, media headers are read as well: among the parts of a tar, or in `files`, whose first one is `name`.
    """

    name: str
    records: RecordEncoding | None = None
    first: int = 0
    media: MediaFilterConfig | None = None
    files: tuple[str, ...] = ()


class ScannedShard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scanned shard without its columns: its identity, which must be unchanged for the scan to be valid, and totals.

    Attributes:
        task: The task.
        size_bytes: Size of the file or object.
        mtime_ns: Modification time of a file.
        generation: Version of an object.
        samples: Number of samples.
        part_names: Distinct part names, at most 50 (in some datasets every sample has its own), printable.
        media: Number of parts with media metadata.
        media_parts: Names of such parts, at most 50.
        media_failures: Number of parts that should be media but have damaged headers.
        media_failed: Messages about the first few of these, printable.
        digest: Digest of the file, if the scan made one.
    """

    task: ShardTask
    size_bytes: int
    mtime_ns: int = 0
    generation: bytes = b""
    samples: int
    part_names: tuple[str, ...]
    media: int = 0
    media_parts: tuple[str, ...] = ()
    media_failures: int = 0
    media_failed: tuple[str, ...] = ()
    digest: ShardDigest | None = None

    @property
    def name(self) -> str:
        return self.task.name

    def holds(self, root: str) -> bool:
        """Whether the shard below a path or URL is unchanged. Raises OSError if that cannot be determined."""
        if is_url(root):  # checking plain files one by one would take as long as reading their headers
            return not self.task.files and is_unchanged(join(root, self.name), self.generation)
        return stat_task(root, self.task) == (self.size_bytes, self.mtime_ns)


def stat_task(root: str, task: ShardTask) -> tuple[int, int]:
    """Size and modification time of a shard; for several files, the total size and the latest time."""
    found = [os.stat(join(root, name)) for name in task.files or (task.name,)]
    return sum(status.st_size for status in found), max(status.st_mtime_ns for status in found)


def scanned(
    task: ShardTask, scan: ShardScan, stat: tuple[int, int] | None, failures: int = 0, failed: Sequence[str] = ()
) -> ScannedShard:
    """Describe a shard by its scan.

    Args:
        task: The task.
        scan: The result.
        looked: See `stat_task`; None for an object.
        failures: Number of damaged media.
        failed: Messages about the first few of these.
    """
    size_bytes, mtime_ns = stat or (scan.size_bytes, 0)
    return ScannedShard(
        task=task,
        size_bytes=size_bytes,
        mtime_ns=mtime_ns,
        generation=scan.generation,
        samples=len(scan),
        part_names=tuple(printable(name) for name in scan.part_names[:MAX_PART_NAMES]),
        media=0 if scan.media is None else len(scan.media),
        media_parts=() if scan.media is None else _parts_of(scan, scan.media),
        media_failures=failures,
        media_failed=tuple(printable(each) for each in failed),
        digest=scan.digest,
    )


class _Columns(msgspec.Struct, frozen=True, kw_only=True):
    part_names: tuple[bytes, ...]
    columns: tuple[bytes, ...]
    media: tuple[bytes, bytes, bytes] | None = None


_SHARD, _ARRAYS = Form(ScannedShard), Form(_Columns)
_UTF8 = ("utf-8", "surrogateescape")


def encode_scan(shard: ScannedShard, scan: ShardScan) -> bytes:
    """Encode a scan as a record of the log: 24 bytes per sample, 20 per part, and the keys."""
    columns = tuple(np.asarray(getattr(scan, name), dtype).tobytes() for name, dtype in _COLUMNS.items())
    names = tuple(name.encode(*_UTF8) for name in scan.part_names)
    media = None
    if (rows := scan.media) is not None:
        media = rows.part.tobytes(), rows.is_av.tobytes(), rows.texts
    body = msgspec.msgpack.encode(_Columns(part_names=names, columns=columns, media=media))
    return as_record(msgspec.msgpack.encode(shard), body)


def describe_scan(record: bytes) -> ScannedShard:
    """Decode the head of a record from `encode_scan`, without its columns. Raises ValueError for other records."""
    try:
        return _SHARD.from_msgpack(bytes(split_record(record, check=False)[0]))
    except msgspec.MsgspecError as error:
        raise ValueError(f"written by another version of this library: {error}") from error


def decode_scan(record: bytes) -> ShardScan:
    """Decode a record from `encode_scan`; the arrays share its memory. Raises ValueError if it is damaged."""
    _, body = split_record(record)
    shard, found = describe_scan(record), _ARRAYS.from_msgpack(body)
    named = zip(_COLUMNS.items(), found.columns, strict=True)
    columns: dict[str, Any] = {name: np.frombuffer(data, dtype) for (name, dtype), data in named}
    media = None
    if found.media is not None:
        part, is_av, texts = found.media
        media = MediaRows(part=np.frombuffer(part, np.int64), is_av=np.frombuffer(is_av, np.bool_), texts=texts)
    return ShardScan(
        media=media,
        size_bytes=shard.size_bytes,
        generation=shard.generation,
        part_names=tuple(name.decode(*_UTF8) for name in found.part_names),
        **columns,
    )


def as_record(head: bytes, body: bytes) -> bytes:
    """Encode two documents as a log record."""
    return b"".join([_HEAD.pack(_MAGIC, zlib.crc32(body, zlib.crc32(head)), len(head), len(body)), head, body])


def split_record(record: bytes, *, check: bool = True) -> tuple[memoryview, memoryview]:
    """Both documents. Raises ValueError if these bytes are not a record, or its checksum differs."""
    if len(record) >= _HEAD.size:
        magic, crc32, head_bytes, body_bytes = _HEAD.unpack_from(record)
        if magic == _MAGIC and len(record) == _HEAD.size + head_bytes + body_bytes:
            view = memoryview(record)[_HEAD.size :]
            if check and zlib.crc32(view) != crc32:
                raise ValueError("checksum mismatch")
            return view[:head_bytes], view[head_bytes:]
    raise ValueError("not a log record")


class RecordLog(ABC):
    """Records in a file that survive a crash; an unfinished record is cut off. For one process at a time."""

    def __init__(self, path: Path) -> None:
        self._path, self._end = path, 0
        self.refused_bytes = 0  # size of a record that did not fit on the disk
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (closed by `close`)
        with contextlib.suppress(ValueError):  # an unfinished record of a killed process
            while record := self._read(self._end):
                split_record(record)
                self._note(record, self._end)
                self._end += len(record)
        os.truncate(path, self._end)

    @abstractmethod
    def _note(self, record: bytes, at: int) -> None:
        """Register the record at an offset. Raises ValueError if it does not belong to this log."""

    def close(self) -> None:
        self._file.close()

    def add(self, record: bytes) -> None:
        """Append a record, without waiting for the disk.

        Raises ValueError if it is not a record, and OSError if the disk is full; then nothing was appended.
        """
        try:
            with naming_when_full(self._path):
                rest = memoryview(record)
                while rest:
                    rest = rest[os.write(self._file.fileno(), rest) :]
            self._note(record, self._end)
        except (OSError, ValueError):
            self.refused_bytes = len(record)
            os.truncate(self._path, self._end)
            raise
        self._end += len(record)

    def _read(self, start: int, size_bytes: int | None = None) -> bytes:
        """The record at an offset; fewer bytes if it is incomplete."""
        with open(self._path, "rb") as file:
            if size_bytes is None:
                file.seek(start)
                head = file.read(_HEAD.size)
                size_bytes = _HEAD.size + sum(_HEAD.unpack(head)[2:]) if len(head) == _HEAD.size else 0
                size_bytes = min(size_bytes, os.fstat(file.fileno()).st_size - start)
            file.seek(start)
            return file.read(size_bytes)


class ScanLog(RecordLog):
    """The scans of the shards of a dataset.

    A shard with the same size as in the dataset's `index` counts as scanned, unless media headers are requested.
    """

    def __init__(self, path: Path, index: ColumnarIndex | None = None) -> None:
        self._index = index
        self._numbers = {} if index is None else {name: number for number, name in enumerate(index.shards)}
        self._found: dict[ShardTask, tuple[ScannedShard, int, int]] = {}  # with offset and size of its record
        super().__init__(path)

    def _note(self, record: bytes, at: int) -> None:
        shard = describe_scan(record)
        self._found[shard.task] = shard, at, len(record)

    @property
    def shards(self) -> list[ScannedShard]:
        return [shard for shard, _, _ in self._found.values()]

    @property
    def scan_bytes(self) -> list[int]:
        """Size of the scan of each shard in the log."""
        return [size_bytes for _, _, size_bytes in self._found.values()]

    def records(self) -> Iterator[bytes]:
        return (self._read(start, size_bytes) for _, start, size_bytes in self._found.values())

    def find(self, task: ShardTask, root: str) -> ScannedShard | None:
        """The scanned shard, if its scan is in the log and the shard is unchanged.

        An object is checked only if the log has a scan of it, because that takes a request.
        """
        with contextlib.suppress(OSError):  # the scan will report the error
            if task in self._found:
                shard = self._found[task][0]
                return shard if shard.holds(root) else None
            if self._index is not None and task.media is None and task.name in self._numbers:
                return self._in_index(self._index, task, root)
        return None

    def _in_index(self, index: ColumnarIndex, task: ShardTask, root: str) -> ScannedShard | None:
        number = self._numbers[task.name]
        size_bytes, mtime_ns = stat_task(root, task)
        if size_bytes != int(index.shard_bytes[number]):
            return None
        first, last = index.shard_first[number : number + 2]
        names = np.unique(index.part_name[int(index.part_start[first]) : int(index.part_start[last])])
        return ScannedShard(
            task=task,
            size_bytes=size_bytes,
            mtime_ns=mtime_ns,
            samples=int(last - first),
            part_names=tuple(printable(index.part_names[name]) for name in names[:MAX_PART_NAMES]),
        )

    def scan(self, task: ShardTask) -> ShardScan:
        """Read a scan from the log. Raises StaleIndexError if the log was changed."""
        if task not in self._found and self._index is not None:
            return self._index.scan(self._numbers[task.name])
        try:
            return decode_scan(self._read(*self._found[task][1:]))
        except (OSError, ValueError) as error:
            raise StaleIndexError(
                f"{self._path}: the scan of {task.name} was changed or removed ({error}). Run prepare again."
            ) from error


def scan_shard(
    root: str,
    task: ShardTask,
    storage: StorageSettings | None = None,
    container: Container | None = None,
    whole_digest: bool | None = None,
) -> bytes | Exception:
    """Scan a shard and return its record; writes nothing on any machine.

    Errors of the shard are returned. A raised exception is therefore a fault of the worker and worth a retry.
    `root` is an absolute path or a URL; `storage` is the configuration for object stores, None keeps the worker's own.
    `container` is the one of `task.records`; with it, a worker need not load all kinds to find it. For `whole_digest`,
    see `Container.scan_hashed`; None: no digest.
    """
    if storage is not None and storage != storage_settings():
        use_storage(storage)
    path = join(root, task.name)
    try:
        found = None if is_url(root) else stat_task(root, task)
        scan, failures, failed = _scan_media(root, task, container or container_of(task.records), whole_digest)
        shard = scanned(task, scan, found, failures, failed)
        if found is not None and not shard.holds(root):  # an object that changes during the scan is already refused
            raise StaleIndexError(f"{path}: changed during the scan. Run prepare again when no process writes to it.")
        return encode_scan(shard, scan)
    except FileNotFoundError:
        return DatasetNotFoundError(
            f"{path}: the file does not exist on {socket.gethostname()}, or was removed during the scan. Every machine "
            f"that scans must see the dataset under the same path: put it on a shared file system."
        )
    except (EnergonGrainError, OSError) as error:
        return error


def _scan_media(
    root: str, task: ShardTask, container: Container, whole_digest: bool | None
) -> tuple[ShardScan, int, list[str]]:
    """Scan a shard or plain files, and media headers if requested. Returns also the number and text of failures."""
    if task.files:
        assert task.media is not None
        return media_in_files(root, task.files, task.media)
    path = join(root, task.name)
    scan = _scan(path, task, container, whole_digest)
    if task.media is None:
        return scan, 0, []
    media, failures, failed = media_in_shard(container, path, scan, task.media)
    return dataclasses.replace(scan, media=media), failures, [f"{task.name}: {each}" for each in failed]


def _scan(path: str, task: ShardTask, container: Container, whole_digest: bool | None) -> ShardScan:
    if whole_digest is None:
        scan = container.scan(path, task.records, first=task.first)
    else:
        scan = container.scan_hashed(path, task.records, first=task.first, whole=whole_digest)
    if len(scan) == 0:
        error, rule = container.no_sample
        raise error(f"{path}: holds no sample ({rule}). Remove the file, or exclude it with --exclude.")
    return scan


def _parts_of(scan: ShardScan, media: MediaRows) -> tuple[str, ...]:
    """Names of the parts that hold media, in order of first appearance; without names that are not UTF-8."""
    names = (scan.part_names[number] for number in np.unique(scan.part_name[media.part]).tolist())
    return tuple(itertools.islice((name for name in names if name == printable(name)), MAX_PART_NAMES))


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareProgress:
    """Progress of a `prepare` or a conversion.

    Attributes:
        stage: `scan` while shards are read, `write` while `write_dataset` writes them, `convert` during a conversion,
            `index` while the files of the index are written, `commit` at the end.
        shards_done: Shards scanned or written so far, including those of an interrupted run.
        shards_total: Shards of the dataset; 0 while the number is unknown.
        samples: Samples found so far.
        bytes_done: Size of the shards scanned or converted so far.
        bytes_total: Size of all shards; 0 while shards in an object store are scanned, or shards are written.
    """

    stage: Literal["scan", "write", "convert", "index", "commit"]
    shards_done: int
    shards_total: int
    samples: int
    bytes_done: int
    bytes_total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaReport:
    """Result of reading media headers.

    Attributes:
        found: Number of files with metadata.
        failures: Number of files that should be media but have damaged headers, and so no metadata.
        failed: Messages about the first few of these.
    """

    found: int
    failures: int
    failed: tuple[str, ...]

    def with_failures(self, others: Sequence[str]) -> MediaReport:
        """The same, plus files without metadata for another reason."""
        failed = (*self.failed, *others)[:LISTED_FAILURES]
        return MediaReport(found=self.found, failures=self.failures + len(others), failed=failed)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScannedDataset:
    """All shards of a dataset, in order, and the log with their scans."""

    root: str
    """Path or URL."""
    shards: tuple[ScannedShard, ...]
    log: ScanLog
    shards_reused: int
    """Number of shards that an interrupted run had already scanned."""

    @property
    def shard_counts(self) -> dict[str, int]:
        return {shard.name: shard.samples for shard in self.shards}

    @property
    def size_bytes(self) -> int:
        return sum(shard.size_bytes for shard in self.shards)

    @property
    def part_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part for shard in self.shards for part in shard.part_names))

    @property
    def media_parts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part for shard in self.shards for part in shard.media_parts))

    @property
    def media(self) -> MediaReport:
        failed = itertools.chain.from_iterable(shard.media_failed for shard in self.shards)
        return MediaReport(
            found=sum(shard.media for shard in self.shards),
            failures=sum(shard.media_failures for shard in self.shards),
            failed=tuple(itertools.islice(failed, LISTED_FAILURES)),
        )

    def scans(self) -> Iterator[ShardScan]:
        return (self.log.scan(shard.task) for shard in self.shards)

    def progress(self, stage: Literal["index", "commit"]) -> PrepareProgress:
        shards, size_bytes, samples = len(self.shards), self.size_bytes, sum(self.shard_counts.values())
        return PrepareProgress(
            stage=stage,
            shards_done=shards,
            shards_total=shards,
            samples=samples,
            bytes_done=size_bytes,
            bytes_total=size_bytes,
        )

    def check_unchanged(self) -> None:
        """Raise StaleIndexError if a shard has changed since its scan."""
        for shard, holds in zip(self.shards, _each(self.root)(self._holds, self.shards), strict=True):
            if not holds:
                raise StaleIndexError(
                    f"{join(self.root, shard.name)}: changed since its scan. Run prepare again when no process writes "
                    f"to it."
                )

    def _holds(self, shard: ScannedShard) -> bool:
        try:
            return shard.holds(self.root)
        except FileNotFoundError:
            return False

    def check_counts(self, info: DatasetInfo) -> None:
        """Raise StaleIndexError if the shards do not have the numbers of samples in `.info.json`."""
        for name, samples in self.shard_counts.items():
            if samples != info.shard_counts.get(name, samples):
                raise StaleIndexError(
                    f"{join(self.root, name)}: has {samples} samples, but .info.json lists {info.shard_counts[name]}. "
                    f"Run `energon-grain prepare {self.root} --force-overwrite`; new indices alone do not fix this."
                )


def shard_tasks(
    root: str,
    shards: Sequence[str],
    *,
    records: RecordEncoding | None = None,
    media: MediaFilterConfig | None = None,
) -> list[ShardTask]:
    """The scan tasks of a dataset: its shards in order, with media headers of tars if requested."""
    firsts = [0] * len(shards)  # keys may be made from it: the index in the dataset of each first record
    if records not in (None, "msgpack"):
        counts = _each(root)(container_of(records).count, [join(root, name) for name in shards])
        firsts = [0, *itertools.accumulate(counts)][:-1]
    return [
        ShardTask(name=name, records=records, first=first, media=media)
        for name, first in zip(shards, firsts, strict=True)
    ]


def scan_dataset(
    root: str,
    tasks: Sequence[ShardTask],
    log: ScanLog,
    *,
    num_workers: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[PrepareProgress], None] = lambda _: None,
    whole_digest: bool | None = None,
) -> ScannedDataset:
    """Scan every shard into the log, except those already in it.

    An error in a shard does not stop the others. A shard whose call raises, for example because its worker died, is
    tried once more. If that fails too, the shard fails with a `WorkerError`. After the fifth such shard, the run stops.
    Leaving early cancels calls that have not started, and keeps finished scans.

    Args:
        root: Path or URL of the dataset.
        tasks: The shards, in order.
        log: Stores the scans.
        num_workers: See `own_executor`. With an `executor`: maximum number of submitted shards, at least 1; None is
            1,024.
        executor: Runs `scan_shard` instead of our own executor; it is not shut down.
        progress: Called after every shard.
        whole_digest: See `scan_shard`.

    Raises:
        FormatError: Shards are damaged; the message lists up to five. The scans of the others are kept.
        StaleIndexError: A shard changed while it was read.
        ConfigError: `num_workers` is negative, or 0 for an executor.
        WorkerError: The executor is broken or shut down, or five shards failed.
    """
    ahead = _TASKS_AHEAD if executor is None else _ahead(num_workers)
    # For an object, the read itself returns the size.
    size_bytes = 0 if is_url(root) else sum(stat_task(root, task)[0] for task in tasks)
    now = PrepareProgress(
        stage="scan", shards_done=0, shards_total=len(tasks), samples=0, bytes_done=0, bytes_total=size_bytes
    )
    progress(now)
    known, left = _known(root, tasks, log)
    found: dict[ShardTask, ScannedShard] = {}
    failures: list[Exception] = []
    with contextlib.ExitStack() as stack:
        if executor is None:
            executor = stack.enter_context(_own_executor(root, left, num_workers, size_bytes))
        scans = stack.enter_context(contextlib.closing(_scans(root, left, log, executor, ahead, whole_digest)))
        for result in itertools.chain(known, scans):
            if isinstance(result, Exception):
                failures.append(result)
                continue
            found[result.task] = result
            now = dataclasses.replace(
                now,
                shards_done=len(found),
                samples=now.samples + result.samples,
                bytes_done=now.bytes_done + result.size_bytes,
            )
            progress(now)
    if failures:
        raise _merge(failures, len(tasks))
    return ScannedDataset(root=root, shards=tuple(found[task] for task in tasks), log=log, shards_reused=len(known))


def _ahead(num_workers: int | None) -> int:
    """Maximum number of submitted shards."""
    if num_workers is not None and num_workers < 1:
        raise ConfigError(
            f"num_workers is {num_workers}: with an executor it is the maximum number of submitted shards. "
            f"Pass 1 or more."
        )
    return _TASKS_AHEAD if num_workers is None else num_workers


def _known(root: str, tasks: Sequence[ShardTask], log: ScanLog) -> tuple[list[ScannedShard], list[ShardTask]]:
    """The shards whose scans are in the log, and the tasks left to scan."""
    known = [shard for shard in _each(root)(lambda task: log.find(task, root), tasks) if shard is not None]
    scanned = {shard.task for shard in known}
    return known, [task for task in tasks if task not in scanned]


def _own_executor(
    root: str, tasks: Sequence[ShardTask], num_workers: int | None, size_bytes: int
) -> contextlib.AbstractContextManager[Executor]:
    by_headers = all(task.records is None and task.media is None for task in tasks)
    return own_executor(
        num_workers,
        jobs=len(tasks),
        size_bytes=None if is_url(root) else size_bytes,
        in_threads_bytes=_IN_THREADS_BYTES if by_headers else 0,
    )


def _scans(
    root: str,
    tasks: Sequence[ShardTask],
    log: ScanLog,
    executor: Executor,
    ahead: int,
    whole_digest: bool | None,
) -> Generator[ScannedShard | Exception]:
    """Scan shards on an executor and log them, in any order; for a failed shard, yield its error."""
    where = root if is_url(root) else os.path.join(os.getcwd(), root)
    storage = storage_settings() if is_url(root) else None
    results = outcomes(
        lambda task: executor.submit(scan_shard, where, task, storage, container_of(task.records), whole_digest),
        deque(tasks),
        ahead=ahead,
        named=lambda task: f"{join(where, task.name)}: its scan",
        salvage=lambda _, returned: log.add(returned) if isinstance(returned, bytes) else None,
    )
    with contextlib.closing(results):
        for task, returned in results:
            yield logged(log, where, task, returned)


def logged(log: ScanLog, root: str, task: ShardTask, returned: bytes | Exception) -> ScannedShard | Exception:
    """Log the result of a shard from an executor; for a failed shard, return its error."""
    if isinstance(returned, Exception):
        return returned
    try:
        shard = describe_scan(returned)
        if shard.task != task:
            raise ValueError("the scan of another shard")
        log.add(returned)
        return shard
    except ValueError as error:
        raise WorkerError(
            f"{join(root, task.name)}: the worker did not return a scan of this shard ({error}). Check that the worker "
            f"has the same version of energon-grain as this program."
        ) from error


def _each(root: str) -> Callable[..., Iterable[Any]]:
    """`map`, in parallel if it sends requests."""
    return shared_client(storage_settings()).map if is_url(root) else map


def _merge(failures: Sequence[Exception], shard_count: int) -> Exception:
    if len(failures) == 1:
        return failures[0]
    listed = "".join(f"\n  {failure}" for failure in failures[:_LISTED_FAILURES])
    more = f"\n  … and {len(failures) - _LISTED_FAILURES} more" if len(failures) > _LISTED_FAILURES else ""
    return type(failures[0])(f"{len(failures)} of {shard_count} shards cannot be indexed:{listed}{more}")
