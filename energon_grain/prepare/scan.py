"""Scanning the shards of a dataset: the work on one shard, all shards on an executor, and what they came to.

An executor runs `scan_and_store` where it is of this machine; what comes back is a handful of numbers, for the arrays
go through a file in a folder that both see. A worker of somebody else's, here or on another machine, may see neither
that folder nor write anywhere: it runs `scan_remotely`, which needs the shard only and returns the scan as bytes, and
they are stored here. What is finished is kept either way, whatever happens to workers, executor or this process.

A stored scan is 8 bytes of magic; as little-endian uint32, the length of the header, and the CRC-32 of all that follows
(begun with that length), because these files are not flushed to disk one by one; the header as JSON, padded with spaces
to a multiple of 8 bytes; the arrays, each padded likewise. The header says which file was scanned (name, size, time of
modification, or version of an object), so that the scan of another file is never taken for this one's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import os
import socket
import struct
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.errors import (
    ConfigError,
    DatasetNotFoundError,
    EnergonGrainError,
    FormatError,
    StaleIndexError,
    TarError,
    WorkerError,
)
from energon_grain.formats.array_record import RecordEncoding, count_records, scan_records
from energon_grain.formats.nv_meta import DatasetInfo
from energon_grain.formats.tar.scan import ShardScan, scan_tar
from energon_grain.forms import Form
from energon_grain.prepare.executors import own_executor
from energon_grain.storage.atomic import naming_when_full
from energon_grain.storage.location import is_url, join
from energon_grain.storage.object_bytes import is_unchanged
from energon_grain.storage.object_client import shared_client
from energon_grain.storage.storage_settings import StorageSettings, storage_settings, use_storage

MAX_PART_NAMES = 50
TASKS_AHEAD = 1024
"""Shards handed over at a time: enough for a thousand cores, and a bound for the results that may wait here."""
_ATTEMPTS = 2
_GIVE_UP_AFTER = 5
_KEPT = "Shards that were finished are kept: run the same command again, and it starts with them."
_LISTED_FAILURES = 5
_MAGIC = b"EGSCAN1\n"
_PREFIX = struct.Struct("<II")
_COLUMNS: dict[str, type[Any]] = {
    "sample_start": np.int64,
    "part_start": np.int64,
    "part_name": np.int32,
    "part_offset": np.int64,
    "part_size": np.int64,
    "key_start": np.int64,
    "key_bytes": np.uint8,
}


class ShardIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What must be unchanged for a stored scan to hold.

    Attributes:
        name: Of the shard, relative to the dataset.
        size_bytes: Of the file or object.
        mtime_ns: When a file was modified.
        generation: Version of an object.
    """

    name: str
    size_bytes: int
    mtime_ns: int = 0
    generation: bytes = b""

    @classmethod
    def of(cls, root: str | os.PathLike[str], name: str) -> ShardIdentity:
        """Look at the file as it is now."""
        status = os.stat(os.path.join(root, name))
        return cls(name=name, size_bytes=status.st_size, mtime_ns=status.st_mtime_ns)

    def holds(self, root: str) -> bool:
        """Look whether the shard below a path or URL is the same now. Raises OSError where that cannot be told."""
        if not is_url(root):
            return ShardIdentity.of(root, self.name) == self
        return is_unchanged(join(root, self.name), self.generation)


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    shard: ShardIdentity
    part_names: tuple[str, ...]
    lengths: tuple[int, ...]


_HEADER = Form(_Header)


def encode_scan(identity: ShardIdentity, scan: ShardScan) -> bytes:
    """Write a scan as the bytes of such a file: 24 bytes a sample, 20 a part, and the keys."""
    columns = [np.ascontiguousarray(getattr(scan, name), dtype) for name, dtype in _COLUMNS.items()]
    header = msgspec.json.encode(
        _Header(
            shard=identity,
            part_names=tuple(_to_json(name) for name in scan.part_names),
            lengths=tuple(len(column) for column in columns),
        )
    )
    header += b" " * (-len(header) % 8)
    pieces = [header]
    for column in columns:
        pieces += [column.tobytes(), bytes(-column.nbytes % 8)]
    crc32 = len(header)
    for piece in pieces:
        crc32 = zlib.crc32(piece, crc32)
    return b"".join([_MAGIC, _PREFIX.pack(len(header), crc32), *pieces])


def decode_scan(content: bytes) -> tuple[ShardIdentity, ShardScan] | None:
    """Read what `encode_scan` wrote, and which file it is of; None where it is damaged. The arrays share memory."""
    header_start = len(_MAGIC) + _PREFIX.size
    if not content.startswith(_MAGIC) or len(content) < header_start:
        return None
    header_bytes, crc32 = _PREFIX.unpack_from(content, len(_MAGIC))
    if zlib.crc32(memoryview(content)[header_start:], header_bytes) != crc32:
        return None
    offset = header_start + header_bytes
    try:
        header = _HEADER.from_json(content[header_start:offset])
    except msgspec.DecodeError:
        return None  # of another version of this library
    columns: dict[str, npt.NDArray[Any]] = {}
    for (name, dtype), length in zip(_COLUMNS.items(), header.lengths, strict=True):
        columns[name] = np.frombuffer(content, dtype, length, offset)
        offset += -(-columns[name].nbytes // 8) * 8
    part_names = tuple(_from_json(name) for name in header.part_names)
    shard = header.shard
    scan = ShardScan(size_bytes=shard.size_bytes, part_names=part_names, generation=shard.generation, **columns)
    return shard, scan


def store_scan(path: Path, content: bytes) -> None:
    """Put an encoded scan at `path`, by a rename, without waiting for the disk."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with naming_when_full(path):
            temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_scan(path: Path, identity: ShardIdentity) -> ShardScan | None:
    """Read the scan at `path`; None where there is none, it is damaged, or the shard is not the same any more."""
    found, scan = read_scan(path) or (None, None)
    return scan if found == identity else None


def read_scan(path: Path) -> tuple[ShardIdentity, ShardScan] | None:
    """Read the scan at `path`, and which file it is of; None where there is none, or it is damaged."""
    try:
        return decode_scan(path.read_bytes())
    except FileNotFoundError:
        return None


def _to_json(name: str) -> str:
    """Tar names may hold bytes that are not UTF-8. Python keeps them as lone surrogates, which JSON may not have."""
    return name.encode("utf-8", "surrogateescape").decode("latin-1")


def _from_json(name: str) -> str:
    return name.encode("latin-1").decode("utf-8", "surrogateescape")


class ScanTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Scan shard `name` of the dataset at `root`, a path or URL; the result goes into `folder`.

    An ArrayRecord file has an encoding of its `records`, and a number in the dataset for the `first` of them.
    """

    root: str
    name: str
    folder: str
    records: RecordEncoding | None = None
    first: int = 0

    @property
    def location(self) -> str:
        """Path or URL of the tar or ArrayRecord file."""
        return join(self.root, self.name)

    @property
    def scan_path(self) -> Path:
        """The file of the result; its name is a digest, so that no shard name can be too long or lead elsewhere."""
        told = self.name if self.records is None else f"{self.name}\0{self.records}\0{self.first}"
        digest = hashlib.blake2b(told.encode("utf-8", "surrogateescape"), digest_size=16)
        return Path(self.folder) / f"{digest.hexdigest()}.scan"


class ScanOutcome(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a scanned shard without opening its arrays."""

    shard: ShardIdentity
    samples: int
    part_names: tuple[str, ...]
    """Distinct part names, at most 50: in some datasets every sample has its own."""
    reused: bool
    """Whether an earlier, interrupted `prepare` had scanned it already."""


Result = tuple[ScanTask, ScanOutcome | Exception]


def scan_and_store(task: ScanTask) -> ScanOutcome | Exception:
    """Scan a shard and store the scan; what is wrong with the shard is returned."""
    try:
        identity, scan = _read_shard(task.root, task.name, task.records, task.first)
        store_scan(task.scan_path, encode_scan(identity, scan))
        return _outcome(identity, scan, reused=False)
    except (EnergonGrainError, OSError) as error:
        return error


def scan_remotely(
    root: str,
    name: str,
    records: RecordEncoding | None = None,
    first: int = 0,
    storage: StorageSettings | None = None,
) -> bytes | Exception:
    """Scan a shard and return the encoded scan; writes nothing, here or elsewhere.

    What is wrong with the shard is returned. So whatever is raised is a fault of the worker, and worth another try.

    Args:
        root: The dataset, as an absolute path or a URL.
        name: The shard, relative to it.
        records: See `ScanTask`.
        first: See `ScanTask`.
        storage: How object stores are reached; None leaves what the worker has.
    """
    if storage is not None and storage != storage_settings():
        use_storage(storage)
    try:
        return encode_scan(*_read_shard(root, name, records, first))
    except FileNotFoundError as error:
        return DatasetNotFoundError(
            f"{error.filename}: there is no such file on {socket.gethostname()}. Every machine that scans must see the "
            f"dataset under the same path: put it on a file system that all share."
        )
    except (EnergonGrainError, OSError) as error:
        return error


def find_stored(task: ScanTask) -> ScanOutcome | OSError | None:
    """Look for the scan that an interrupted run stored; None where there is none of the file as it is now.

    The error is that of looking at the shard.
    """
    try:
        expected = None if is_url(task.root) else ShardIdentity.of(task.root, task.name)
        identity, scan = read_scan(task.scan_path) or (None, None)
        if identity is None or scan is None or identity.name != task.name:
            return None
        # An object is looked at only where there is a scan of it: that takes a request.
        same = identity.holds(task.root) if expected is None else identity == expected
    except OSError as error:
        return error
    return _outcome(identity, scan, reused=True) if same else None


def keep_scan(task: ScanTask, content: bytes) -> ScanOutcome:
    """Store what `scan_remotely` returned.

    Raises:
        WorkerError: These are not the bytes of a scan of this shard.
    """
    identity, scan = decode_scan(content) or (None, None)
    if identity is None or scan is None or identity.name != task.name:
        raise WorkerError(
            f"{task.location}: what the worker sent is no scan of this shard. Are the versions of energon-grain "
            f"there and here the same?"
        )
    store_scan(task.scan_path, content)
    return _outcome(identity, scan, reused=False)


def _read_shard(root: str, name: str, records: RecordEncoding | None, first: int) -> tuple[ShardIdentity, ShardScan]:
    path = join(root, name)
    identity = None if is_url(root) else ShardIdentity.of(root, name)
    scan = scan_tar(path) if records is None else scan_records(path, records, first=first)
    if len(scan) == 0:
        rule = "a regular file with an extension, such as 000.jpg" if records is None else "a record"
        raise (TarError if records is None else FormatError)(
            f"{path}: holds no sample ({rule}). Remove it, or leave it out with --exclude."
        )
    if identity is None:  # an object that changes while it is scanned has been refused
        return ShardIdentity(name=name, size_bytes=scan.size_bytes, generation=scan.generation), scan
    if not identity.holds(root):
        raise StaleIndexError(f"{path}: changed while it was scanned. Prepare again when nothing writes to it.")
    return identity, scan


def _outcome(identity: ShardIdentity, scan: ShardScan, *, reused: bool) -> ScanOutcome:
    names = tuple(printable(name) for name in scan.part_names[:MAX_PART_NAMES])
    return ScanOutcome(shard=identity, samples=len(scan), part_names=names, reused=reused)


def printable(name: str) -> str:
    """Show bytes that are not UTF-8 as escapes, so that the name can be printed and sent as JSON."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


@contextlib.contextmanager
def scanning(
    tasks: Sequence[ScanTask], *, num_workers: int | None = None, executor: Executor | None = None
) -> Generator[Iterator[Result]]:
    """Scan every shard while the block iterates over the results, which come in any order; a failed one is its error.

    A stored scan is not made again. What is wrong with a shard is its outcome. Anything else that comes out of the
    executor for a shard, such as the death of a worker, is tried once more, and its outcome, a `WorkerError`, then;
    after the fifth such shard nothing more is tried. Leaving early cancels what has not begun, and keeps what is done.

    Args:
        tasks: One for each shard.
        num_workers: See `own_executor`. With an `executor`: shards handed over at a time, at least 1; None is 1,024.
        executor: Runs `scan_remotely` in place of an executor of our own; it is not shut down.

    Raises:
        ConfigError: `num_workers` is negative, or 0 for an executor.
        WorkerError: The executor is broken or shut down, or five shards failed that way.
    """
    if executor is not None:
        ahead = TASKS_AHEAD if num_workers is None else num_workers
        if ahead < 1:
            raise ConfigError(
                f"num_workers is {ahead}: with an executor it is how many shards are handed over at a time. "
                f"Give 1 or more."
            )
        with contextlib.closing(_results(_Scans(executor, _foreign_call), tasks, ahead)) as results:
            yield results
        return
    size_bytes = None if any(is_url(task.root) for task in tasks) else sum(map(_size_bytes, tasks))
    with (
        own_executor(num_workers, jobs=len(tasks), size_bytes=size_bytes) as own,
        contextlib.closing(_results(_Scans(own, _own_call), tasks, TASKS_AHEAD)) as results,
    ):
        yield results


def _results(scans: _Scans, tasks: Sequence[ScanTask], ahead: int) -> Generator[Result]:
    try:
        for task, stored in zip(tasks, _each(tasks[0].root)(find_stored, tasks), strict=True):
            if stored is not None:
                yield task, stored
                continue
            while scans.running >= ahead or scans.any_done:
                yield from scans.wait()
            scans.submit(task)
        while scans.running:
            yield from scans.wait()
    finally:
        scans.end()


_Call = tuple[Any, ...]
"""A function and its arguments."""


def _own_call(task: ScanTask) -> _Call:
    return scan_and_store, task


def _foreign_call(task: ScanTask) -> _Call:
    if is_url(task.root):
        return scan_remotely, task.root, task.name, task.records, task.first, storage_settings()
    return scan_remotely, os.path.join(os.getcwd(), task.root), task.name, task.records, task.first, None


class _Scans:
    """The tasks that an executor has, and how often each was tried before."""

    def __init__(self, executor: Executor, call: Callable[[ScanTask], _Call]) -> None:
        self._executor, self._call = executor, call
        self._running: dict[Future[ScanOutcome | bytes | Exception], tuple[ScanTask, int]] = {}
        self._done: SimpleQueue[Future[ScanOutcome | bytes | Exception]] = SimpleQueue()
        self._failed = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def any_done(self) -> bool:
        return not self._done.empty()

    def submit(self, task: ScanTask, attempt: int = 1) -> None:
        try:
            future = self._executor.submit(*self._call(task))
        except Exception as error:  # a RuntimeError of one that was shut down, a ConnectionError of a cluster's
            raise _broken(error) from error
        self._running[future] = task, attempt
        future.add_done_callback(self._done.put)

    def wait(self) -> Iterator[Result]:
        """Wait for a task to end; give it, unless it is tried again."""
        future = self._done.get()
        task, attempt = self._running.pop(future)
        try:
            returned = future.result()
        except (BrokenExecutor, CancelledError) as error:
            raise _broken(error) from error
        except Exception as error:
            if attempt < _ATTEMPTS:
                self.submit(task, attempt + 1)
                return
            failure = f"{task.location}: its scan failed {_ATTEMPTS} times, last with {_describe(error)}. {_KEPT}"
            self._failed += 1
            if self._failed == _GIVE_UP_AFTER:
                raise WorkerError(f"The executor fails, on {self._failed} shards by now. {failure}") from error
            yield task, WorkerError(failure)
        else:
            yield task, keep_scan(task, returned) if isinstance(returned, bytes) else returned

    def end(self) -> None:
        """Cancel what has not begun, and store what is done and was not waited for."""
        for future, (task, _) in self._running.items():
            if future.cancel() or not future.done() or future.exception() is not None:
                continue
            returned = future.result()
            if isinstance(returned, bytes):
                with contextlib.suppress(OSError, WorkerError):
                    keep_scan(task, returned)


def _broken(error: BaseException) -> WorkerError:
    return WorkerError(f"The executor is broken or was shut down ({_describe(error)}). {_KEPT}")


def _describe(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _size_bytes(task: ScanTask) -> int:
    try:
        return os.stat(task.location).st_size
    except OSError:
        return 0  # the scan will say what is wrong


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareProgress:
    """How far a `prepare` is.

    Attributes:
        stage: `scan` while shards are read, `index` while the files of the index are written, `commit` at the end.
        shards_done: Shards scanned so far, those of an interrupted run included.
        shards_total: Shards of the dataset.
        samples: Samples found so far.
        bytes_done: Size of the shards scanned so far.
        bytes_total: Size of all shards; 0 while shards in an object store are scanned.
    """

    stage: Literal["scan", "index", "commit"]
    shards_done: int
    shards_total: int
    samples: int
    bytes_done: int
    bytes_total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ScannedDataset:
    """Where the scans of all shards lie, in the order of the shards."""

    root: str
    """Path or URL."""
    tasks: tuple[ScanTask, ...]
    outcomes: tuple[ScanOutcome, ...]

    @property
    def identities(self) -> dict[ScanTask, ShardIdentity]:
        """What each task found the shard to be."""
        return {task: outcome.shard for task, outcome in zip(self.tasks, self.outcomes, strict=True)}

    @property
    def shard_counts(self) -> dict[str, int]:
        """Samples of each shard."""
        return {outcome.shard.name: outcome.samples for outcome in self.outcomes}

    @property
    def size_bytes(self) -> int:
        """Size of all shards."""
        return sum(outcome.shard.size_bytes for outcome in self.outcomes)

    @property
    def part_names(self) -> tuple[str, ...]:
        """Distinct part names."""
        return tuple(dict.fromkeys(part for outcome in self.outcomes for part in outcome.part_names))

    @property
    def shards_reused(self) -> int:
        """Shards that an interrupted run had scanned already."""
        return sum(outcome.reused for outcome in self.outcomes)

    def progress(self, stage: Literal["index", "commit"]) -> PrepareProgress:
        """Describe a later stage."""
        return PrepareProgress(
            stage=stage,
            shards_done=len(self.tasks),
            shards_total=len(self.tasks),
            samples=sum(outcome.samples for outcome in self.outcomes),
            bytes_done=self.size_bytes,
            bytes_total=self.size_bytes,
        )

    def check_unchanged(self) -> None:
        """Raise StaleIndexError if a shard is not the file any more that was scanned."""
        for task, holds in zip(self.tasks, _each(self.root)(self._holds, self.outcomes), strict=True):
            if not holds:
                raise StaleIndexError(
                    f"{task.location}: changed since it was scanned. Prepare again when nothing writes to it."
                )

    def _holds(self, outcome: ScanOutcome) -> bool:
        try:
            return outcome.shard.holds(self.root)
        except FileNotFoundError:
            return False

    def check_counts(self, info: DatasetInfo) -> None:
        """Raise StaleIndexError if the shards do not have as many samples as `.info.json` says."""
        for name, samples in self.shard_counts.items():
            if samples != info.shard_counts[name]:
                raise StaleIndexError(
                    f"{join(self.root, name)}: has {samples} samples, .info.json says {info.shard_counts[name]}. New "
                    f"indices alone cannot mend that: run `energon-grain prepare {self.root} --force-overwrite`."
                )


def scan_dataset(
    root: str,
    shards: Sequence[str],
    folder: Path,
    *,
    records: RecordEncoding | None = None,
    num_workers: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[PrepareProgress], None] | None = None,
) -> ScannedDataset:
    """Scan every shard of `shards` and leave the scans in `folder`; those that lie there already are not made again.

    Args:
        root: Path or URL of the dataset.
        shards: Names of the shards, in order.
        folder: Where scans are kept.
        records: How the records of ArrayRecord files are encoded; None for tars.
        num_workers: See `scanning`.
        executor: See `scanning`.
        progress: Called after every shard.

    Raises:
        FormatError: Shards are damaged; the message lists up to five. The scans of the others are kept.
        StaleIndexError: A shard changed while it was read.
    """
    tasks = tuple(
        ScanTask(root=root, name=name, folder=str(folder), records=records, first=first)
        for name, first in zip(shards, _first_records(root, shards, records), strict=True)
    )
    now = PrepareProgress(
        stage="scan",
        shards_done=0,
        shards_total=len(shards),
        samples=0,
        bytes_done=0,
        # A store tells the size of an object when it is read.
        bytes_total=0 if is_url(root) else sum(os.stat(join(root, name)).st_size for name in shards),
    )
    outcomes: dict[str, ScanOutcome] = {}
    failures: list[Exception] = []
    with scanning(tasks, num_workers=num_workers, executor=executor) as results:
        _tell(progress, now)
        for task, outcome in results:
            if isinstance(outcome, Exception):
                failures.append(outcome)
                continue
            outcomes[task.name] = outcome
            now = dataclasses.replace(
                now,
                shards_done=len(outcomes),
                samples=now.samples + outcome.samples,
                bytes_done=now.bytes_done + outcome.shard.size_bytes,
            )
            _tell(progress, now)
    if failures:
        raise _merge(failures, len(tasks))
    return ScannedDataset(root=root, tasks=tasks, outcomes=tuple(outcomes[task.name] for task in tasks))


def _first_records(root: str, shards: Sequence[str], records: RecordEncoding | None) -> list[int]:
    """The number in the dataset of the first record of each shard, where a key may be made of it; else 0."""
    if records in (None, "msgpack"):
        return [0] * len(shards)
    return [0, *itertools.accumulate(_each(root)(count_records, [join(root, name) for name in shards]))][:-1]


def _each(root: str) -> Callable[..., Iterable[Any]]:
    """`map`, side by side where it takes requests."""
    return shared_client(storage_settings()).map if is_url(root) else map


def _tell(progress: Callable[[PrepareProgress], None] | None, now: PrepareProgress) -> None:
    if progress is not None:
        progress(now)


def _merge(failures: Sequence[Exception], shard_count: int) -> Exception:
    if len(failures) == 1:
        return failures[0]
    listed = "".join(f"\n  {failure}" for failure in failures[:_LISTED_FAILURES])
    more = f"\n  … and {len(failures) - _LISTED_FAILURES} more" if len(failures) > _LISTED_FAILURES else ""
    return type(failures[0])(f"{len(failures)} of {shard_count} shards cannot be indexed:{listed}{more}")
