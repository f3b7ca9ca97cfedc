"""The unit of parallel work in `prepare`: scan one shard.

What comes back from a process of our own is a handful of numbers: the arrays go through a file in a folder that both
see. A worker that was started by somebody else, on this machine or another, may see neither that folder nor write
anywhere; so what an executor runs needs the shard only, and returns the scan as one bytes object.
"""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

import msgspec

from energon_grain.errors import (
    DatasetNotFoundError,
    EnergonGrainError,
    FormatError,
    StaleIndexError,
    TarError,
    WorkerError,
)
from energon_grain.formats.array_record_encoding import RecordEncoding
from energon_grain.formats.array_record_scan import scan_records
from energon_grain.formats.tar.scan import ShardScan, scan_tar
from energon_grain.prepare.stored_scan import ShardIdentity, decode_scan, encode_scan, read_scan, store_scan
from energon_grain.storage.location import is_url, join
from energon_grain.storage.storage_settings import StorageSettings, storage_settings, use_storage

MAX_PART_NAMES = 50


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


def scan_shard(task: ScanTask) -> ScanOutcome:
    """Scan a shard, unless a stored scan of the very same file exists, and store the scan.

    Raises:
        FormatError: The tar is damaged, or holds no sample; a record is not encoded as the task says.
        ReadError: The ArrayRecord file is damaged.
        StaleIndexError: The file changed while it was read.
    """
    stored = find_stored(task)
    if stored is not None:
        return stored
    identity, scan = _read_shard(task.root, task.name, task.records, task.first)
    store_scan(task.scan_path, encode_scan(identity, scan))
    return _outcome(identity, scan, reused=False)


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


def find_stored(task: ScanTask) -> ScanOutcome | None:
    """Look for the scan that an interrupted run stored; None where there is none of the file as it is now.

    Raises:
        OSError: The shard cannot be looked at.
    """
    expected = None if is_url(task.root) else ShardIdentity.of(task.root, task.name)
    identity, scan = read_scan(task.scan_path) or (None, None)
    if identity is None or scan is None or identity.name != task.name:
        return None
    # An object is looked at only where there is a scan of it: that takes a request.
    same = identity.holds(task.root) if expected is None else identity == expected
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
