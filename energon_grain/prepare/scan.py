# SPDX-License-Identifier: Apache-2.0
"""Scanning the shards of a dataset: the work on one shard, all shards on an executor, and what they came to.

A worker, in this process or on another machine, runs `scan_shard`: it needs the shard only, writes nothing, and returns
the scan as bytes. They are appended here to one file, the log, so what is finished is kept whatever happens to workers,
executor or this process.

A record of the log is 8 bytes of magic; as little-endian uint32, the CRC-32 of all that follows, because the log is not
flushed to disk; as uint64, the lengths of two msgpack documents; which file was scanned (name, size, time of
modification, or version of an object), so that the scan of another file is never taken for this one's; the columns. The
last record of a shard counts, and what a killed process left unfinished at the end is cut off.
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
from energon_grain.storage.atomic import naming_when_full
from energon_grain.storage.location import is_url, join
from energon_grain.storage.remote import is_unchanged, shared_client
from energon_grain.storage.settings import StorageSettings, storage_settings, use_storage

MAX_PART_NAMES = 50
_TASKS_AHEAD = 1024
"""Shards handed over at a time: enough for a thousand cores, and a bound for the results that may wait here."""
_LISTED_FAILURES = 5
_IN_THREADS_BYTES = 4 << 30
"""Tars that threads are quick enough for: a core scans 1 to 3 GB/s, and starting a process takes 0.7 s of one."""
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
    """Which shard to scan, relative to the dataset; or which files of a plain folder.

    An ArrayRecord file has an encoding of its `records`, and a number in the dataset for the `first` of them. With
    `media` it is looked for these, too: among the parts of a tar, or in `files`, of which `name` is the first.
    """

    name: str
    records: RecordEncoding | None = None
    first: int = 0
    media: MediaFilterConfig | None = None
    files: tuple[str, ...] = ()


class ScannedShard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a scanned shard without its columns: what must be unchanged for the scan to hold, and its sums.

    Attributes:
        task: What was to be scanned.
        size_bytes: Of the file or object.
        mtime_ns: When a file was modified.
        generation: Version of an object.
        samples: How many there are.
        part_names: Distinct part names, at most 50 (in some datasets every sample has its own), fit to be printed.
        media: How many parts are media of which something is known.
        media_parts: Names of such parts, at most 50.
        media_failures: How many parts should be media, but have damaged headers.
        media_failed: What is wrong with the first few of these, fit to be printed.
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

    @property
    def name(self) -> str:
        return self.task.name

    def holds(self, root: str) -> bool:
        """Look whether the shard below a path or URL is the same now. Raises OSError where that cannot be known."""
        if is_url(root):  # whose files, one by one, would take as long to ask for as to look at
            return not self.task.files and is_unchanged(join(root, self.name), self.generation)
        return looks(root, self.task) == (self.size_bytes, self.mtime_ns)


def looks(root: str, task: ShardTask) -> tuple[int, int]:
    """Size and time of modification of a shard; of several files that of all together, and of the last one."""
    found = [os.stat(join(root, name)) for name in task.files or (task.name,)]
    return sum(status.st_size for status in found), max(status.st_mtime_ns for status in found)


def scanned(
    task: ShardTask, scan: ShardScan, looked: tuple[int, int] | None, failures: int = 0, failed: Sequence[str] = ()
) -> ScannedShard:
    """What is known of a shard by its scan.

    Args:
        task: What was scanned.
        scan: What was found.
        looked: See `looks`; None: it is an object.
        failures: How many media are damaged.
        failed: What is wrong with the first few of these.
    """
    size_bytes, mtime_ns = looked or (scan.size_bytes, 0)
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
    )


class _Columns(msgspec.Struct, frozen=True, kw_only=True):
    part_names: tuple[bytes, ...]
    columns: tuple[bytes, ...]
    media: tuple[bytes, bytes, bytes] | None = None


_SHARD, _ARRAYS = Form(ScannedShard), Form(_Columns)
_UTF8 = ("utf-8", "surrogateescape")


def encode_scan(shard: ScannedShard, scan: ShardScan) -> bytes:
    """Write a scan as a record of the log: 24 bytes a sample, 20 a part, and the keys."""
    columns = tuple(np.asarray(getattr(scan, name), dtype).tobytes() for name, dtype in _COLUMNS.items())
    names = tuple(name.encode(*_UTF8) for name in scan.part_names)
    media = None
    if (rows := scan.media) is not None:
        media = rows.part.tobytes(), rows.is_av.tobytes(), rows.texts
    body = msgspec.msgpack.encode(_Columns(part_names=names, columns=columns, media=media))
    return as_record(msgspec.msgpack.encode(shard), body)


def describe_scan(record: bytes) -> ScannedShard:
    """Say what `encode_scan` wrote, without looking at its columns. Raises ValueError where it is no such record."""
    try:
        return _SHARD.from_msgpack(bytes(take_apart(record, check=False)[0]))
    except msgspec.MsgspecError as error:
        raise ValueError(f"of another version of this library: {error}") from error


def decode_scan(record: bytes) -> ShardScan:
    """Read what `encode_scan` wrote; the arrays share its memory. Raises ValueError where it is damaged."""
    _, body = take_apart(record)
    shard, found = describe_scan(record), _ARRAYS.from_msgpack(body)
    columns = zip(_COLUMNS.items(), found.columns, strict=True)
    media = None
    if found.media is not None:
        part, is_av, texts = found.media
        media = MediaRows(part=np.frombuffer(part, np.int64), is_av=np.frombuffer(is_av, np.bool_), texts=texts)
    return ShardScan(
        media=media,
        size_bytes=shard.size_bytes,
        generation=shard.generation,
        part_names=tuple(name.decode(*_UTF8) for name in found.part_names),
        **{name: np.frombuffer(data, dtype) for (name, dtype), data in columns},
    )


def as_record(head: bytes, body: bytes) -> bytes:
    """A record of a log, of two documents."""
    return b"".join([_HEAD.pack(_MAGIC, zlib.crc32(body, zlib.crc32(head)), len(head), len(body)), head, body])


def take_apart(record: bytes, *, check: bool = True) -> tuple[memoryview, memoryview]:
    """Both documents. Raises ValueError where these are no record's bytes, or its checksum differs."""
    if len(record) >= _HEAD.size:
        magic, crc32, head_bytes, body_bytes = _HEAD.unpack_from(record)
        if magic == _MAGIC and len(record) == _HEAD.size + head_bytes + body_bytes:
            view = memoryview(record)[_HEAD.size :]
            if check and zlib.crc32(view) != crc32:
                raise ValueError("its checksum differs")
            return view[:head_bytes], view[head_bytes:]
    raise ValueError("no record of a log")


class RecordLog(ABC):
    """Records in a file, found again after a kill; what was left unfinished is cut off. For one process at a time."""

    def __init__(self, path: Path) -> None:
        self._path, self._end = path, 0
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (closed by `close`)
        with contextlib.suppress(ValueError):  # where a process was killed while it was writing
            while record := self._read(self._end):
                take_apart(record)
                self._note(record, self._end)
                self._end += len(record)
        os.truncate(path, self._end)

    @abstractmethod
    def _note(self, record: bytes, at: int) -> None:
        """Take in a record that lies at an offset. Raises ValueError where it is none of this log's."""

    def close(self) -> None:
        self._file.close()

    def add(self, record: bytes) -> None:
        """Append a record, without waiting for the disk.

        Raises ValueError where it is none, and OSError: the disk is full, and nothing was appended.
        """
        try:
            with naming_when_full(self._path):
                rest = memoryview(record)
                while rest:
                    rest = rest[os.write(self._file.fileno(), rest) :]
            self._note(record, self._end)
        except (OSError, ValueError):
            os.truncate(self._path, self._end)
            raise
        self._end += len(record)

    def _read(self, start: int, size_bytes: int | None = None) -> bytes:
        """The record at an offset; fewer bytes where it is not whole."""
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

    A shard that has the size that the `index` of the dataset says counts as scanned, unless it is looked for media.
    """

    def __init__(self, path: Path, index: ColumnarIndex | None = None) -> None:
        self._index = index
        self._numbers = {} if index is None else {name: number for number, name in enumerate(index.shards)}
        self._found: dict[ShardTask, tuple[ScannedShard, int, int]] = {}  # with the place of its record
        super().__init__(path)

    def _note(self, record: bytes, at: int) -> None:
        shard = describe_scan(record)
        self._found[shard.task] = shard, at, len(record)

    @property
    def shards(self) -> list[ScannedShard]:
        return [shard for shard, _, _ in self._found.values()]

    @property
    def scan_bytes(self) -> list[int]:
        """Of each shard, what its scan takes in the log."""
        return [size_bytes for _, _, size_bytes in self._found.values()]

    def records(self) -> Iterator[bytes]:
        return (self._read(start, size_bytes) for _, start, size_bytes in self._found.values())

    def find(self, task: ShardTask, root: str) -> ScannedShard | None:
        """What is known of a shard, if its scan is here and the shard is still the same.

        An object is looked at only where there is a scan of it: that takes a request.
        """
        with contextlib.suppress(OSError):  # the scan will say what is wrong with it
            if task in self._found:
                shard = self._found[task][0]
                return shard if shard.holds(root) else None
            if self._index is not None and task.media is None and task.name in self._numbers:
                return self._in_index(self._index, task, root)
        return None

    def _in_index(self, index: ColumnarIndex, task: ShardTask, root: str) -> ScannedShard | None:
        number = self._numbers[task.name]
        size_bytes, mtime_ns = looks(root, task)
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
        """Read a scan that is here. Raises StaleIndexError where the log was changed."""
        if task not in self._found and self._index is not None:
            return self._index.scan(self._numbers[task.name])
        try:
            return decode_scan(self._read(*self._found[task][1:]))
        except (OSError, ValueError) as error:
            raise StaleIndexError(
                f"{self._path}: the scan of {task.name} was changed or removed ({error}). Prepare again."
            ) from error


def scan_shard(
    root: str, task: ShardTask, storage: StorageSettings | None = None, container: Container | None = None
) -> bytes | Exception:
    """Scan a shard and return its record; writes nothing, here or elsewhere.

    What is wrong with the shard is returned. So whatever is raised is a fault of the worker, and worth another try.
    `root` is an absolute path or a URL; `storage` says how object stores are reached, None leaves what the worker has.
    `container` is the one of `task.records`; a worker that is given it need not load all kinds to find it.
    """
    if storage is not None and storage != storage_settings():
        use_storage(storage)
    path = join(root, task.name)
    try:
        found = None if is_url(root) else looks(root, task)
        scan, failures, failed = _scan_media(root, task, container or container_of(task.records))
        shard = scanned(task, scan, found, failures, failed)
        if found is not None and not shard.holds(root):  # an object that changes while it is scanned has been refused
            raise StaleIndexError(f"{path}: changed while it was scanned. Prepare again when nothing writes to it.")
        return encode_scan(shard, scan)
    except FileNotFoundError:
        return DatasetNotFoundError(
            f"{path}: there is no such file on {socket.gethostname()} (any more). Every machine that scans must see "
            f"the dataset under the same path: put it on a file system that all share."
        )
    except (EnergonGrainError, OSError) as error:
        return error


def _scan_media(root: str, task: ShardTask, container: Container) -> tuple[ShardScan, int, list[str]]:
    """Scan a shard, or plain files, and look for media where they are wanted: how many are damaged, and the first."""
    if task.files:
        assert task.media is not None
        return media_in_files(root, task.files, task.media)
    path = join(root, task.name)
    scan = _scan(path, task, container)
    if task.media is None:
        return scan, 0, []
    media, failures, failed = media_in_shard(container, path, scan, task.media)
    return dataclasses.replace(scan, media=media), failures, [f"{task.name}: {each}" for each in failed]


def _scan(path: str, task: ShardTask, container: Container) -> ShardScan:
    scan = container.scan(path, task.records, first=task.first)
    if len(scan) == 0:
        error, rule = container.no_sample
        raise error(f"{path}: holds no sample ({rule}). Remove it, or leave it out with --exclude.")
    return scan


def _parts_of(scan: ShardScan, media: MediaRows) -> tuple[str, ...]:
    """Names of the parts that media are in, in order of first appearance; those that are not UTF-8 name no column."""
    names = (scan.part_names[number] for number in np.unique(scan.part_name[media.part]).tolist())
    return tuple(itertools.islice((name for name in names if name == printable(name)), MAX_PART_NAMES))


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareProgress:
    """How far a `prepare` or a conversion is.

    Attributes:
        stage: `scan` while shards are read, `write` while `write_dataset` writes them, `convert` while a conversion
            does, `index` while the files of the index are written, `commit` at the end.
        shards_done: Shards scanned, or written, so far, those of an interrupted run included.
        shards_total: Shards of the dataset; 0 while nobody knows how many will be written.
        samples: Samples found so far.
        bytes_done: Size of the shards scanned, or converted, so far.
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
    """What came of looking for media.

    Attributes:
        found: How many files are media of which something is known now.
        failures: How many should be, but have damaged headers: of these nothing is known.
        failed: What is wrong with the first few of them.
    """

    found: int
    failures: int
    failed: tuple[str, ...]

    def with_failures(self, others: Sequence[str]) -> MediaReport:
        """The same with files of which nothing is known for another reason."""
        failed = (*self.failed, *others)[:LISTED_FAILURES]
        return MediaReport(found=self.found, failures=self.failures + len(others), failed=failed)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScannedDataset:
    """All shards of a dataset, in their order, and where their scans lie."""

    root: str
    """Path or URL."""
    shards: tuple[ScannedShard, ...]
    log: ScanLog
    shards_reused: int
    """Shards that an interrupted run had scanned already."""

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
        """Raise StaleIndexError if a shard is not the file any more that was scanned."""
        for shard, holds in zip(self.shards, _each(self.root)(self._holds, self.shards), strict=True):
            if not holds:
                raise StaleIndexError(
                    f"{join(self.root, shard.name)}: changed since it was scanned. Prepare again when nothing writes "
                    f"to it."
                )

    def _holds(self, shard: ScannedShard) -> bool:
        try:
            return shard.holds(self.root)
        except FileNotFoundError:
            return False

    def check_counts(self, info: DatasetInfo) -> None:
        """Raise StaleIndexError if the shards do not have as many samples as `.info.json` says."""
        for name, samples in self.shard_counts.items():
            if samples != info.shard_counts.get(name, samples):
                raise StaleIndexError(
                    f"{join(self.root, name)}: has {samples} samples, .info.json says {info.shard_counts[name]}. New "
                    f"indices alone cannot repair that: run `energon-grain prepare {self.root} --force-overwrite`."
                )


def shard_tasks(
    root: str,
    shards: Sequence[str],
    *,
    records: RecordEncoding | None = None,
    media: MediaFilterConfig | None = None,
) -> list[ShardTask]:
    """What is to be scanned of a dataset: its shards in their order, and in tars the media, if they are wanted."""
    firsts = [0] * len(shards)  # where a key may be made of it: the number in the dataset of each first record
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
) -> ScannedDataset:
    """Scan every shard into the log; those that are there already are not scanned again.

    What is wrong with a shard does not stop the others. Anything else that comes out of the executor for a shard, such
    as the death of a worker, is tried once more, and then wrong with that shard, as a `WorkerError`; after the fifth
    such shard nothing more is tried. Leaving early cancels what has not begun, and keeps what is done.

    Args:
        root: Path or URL of the dataset.
        tasks: The shards, in order.
        log: Where scans are kept.
        num_workers: See `own_executor`. With an `executor`: shards handed over at a time, at least 1; None is 1,024.
        executor: Runs `scan_shard` in place of an executor of our own; it is not shut down.
        progress: Called after every shard.

    Raises:
        FormatError: Shards are damaged; the message lists up to five. The scans of the others are kept.
        StaleIndexError: A shard changed while it was read.
        ConfigError: `num_workers` is negative, or 0 for an executor.
        WorkerError: The executor is broken or shut down, or five shards failed that way.
    """
    ahead = _TASKS_AHEAD if executor is None else _ahead(num_workers)
    # A store gives the size of an object when it is read.
    size_bytes = 0 if is_url(root) else sum(looks(root, task)[0] for task in tasks)
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
        scans = stack.enter_context(contextlib.closing(_scans(root, left, log, executor, ahead)))
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
    """How many shards are handed over to an executor at a time."""
    if num_workers is not None and num_workers < 1:
        raise ConfigError(
            f"num_workers is {num_workers}: with an executor it is how many shards are handed over at a time. "
            f"Give 1 or more."
        )
    return _TASKS_AHEAD if num_workers is None else num_workers


def _known(root: str, tasks: Sequence[ShardTask], log: ScanLog) -> tuple[list[ScannedShard], list[ShardTask]]:
    """The shards whose scans are in the log, and what is left to scan."""
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
    root: str, tasks: Sequence[ShardTask], log: ScanLog, executor: Executor, ahead: int
) -> Generator[ScannedShard | Exception]:
    """Scan shards on an executor and log them, in any order; where that failed, the error."""
    where = root if is_url(root) else os.path.join(os.getcwd(), root)
    storage = storage_settings() if is_url(root) else None
    results = outcomes(
        lambda task: executor.submit(scan_shard, where, task, storage, container_of(task.records)),
        deque(tasks),
        ahead=ahead,
        named=lambda task: f"{join(where, task.name)}: its scan",
        salvage=lambda _, returned: log.add(returned) if isinstance(returned, bytes) else None,
    )
    with contextlib.closing(results):
        for task, returned in results:
            yield logged(log, where, task, returned)


def logged(log: ScanLog, root: str, task: ShardTask, returned: bytes | Exception) -> ScannedShard | Exception:
    """Note what an executor gave for a shard; where it failed, its error."""
    if isinstance(returned, Exception):
        return returned
    try:
        shard = describe_scan(returned)
        if shard.task != task:
            raise ValueError("of another shard")
        log.add(returned)
        return shard
    except ValueError as error:
        raise WorkerError(
            f"{join(root, task.name)}: what the worker sent is no scan of this shard ({error}). Are the versions of "
            f"energon-grain there and here the same?"
        ) from error


def _each(root: str) -> Callable[..., Iterable[Any]]:
    """`map`, side by side where it takes requests."""
    return shared_client(storage_settings()).map if is_url(root) else map


def _merge(failures: Sequence[Exception], shard_count: int) -> Exception:
    if len(failures) == 1:
        return failures[0]
    listed = "".join(f"\n  {failure}" for failure in failures[:_LISTED_FAILURES])
    more = f"\n  … and {len(failures) - _LISTED_FAILURES} more" if len(failures) > _LISTED_FAILURES else ""
    return type(failures[0])(f"{len(failures)} of {shard_count} shards cannot be indexed:{listed}{more}")
