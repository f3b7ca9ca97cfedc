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

from energon_grain.errors import DatasetNotFoundError, EnergonGrainError, StaleIndexError, TarError, WorkerError
from energon_grain.formats.shard_scan import ShardScan, scan_tar
from energon_grain.prepare.stored_scan import ShardIdentity, decode_scan, encode_scan, load_scan, store_scan

MAX_PART_NAMES = 50


class ScanTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Scan shard `name` of the dataset at `root`; the result goes into `folder`."""

    root: str
    name: str
    folder: str

    @property
    def tar_path(self) -> Path:
        """The tar file."""
        return Path(self.root) / self.name

    @property
    def scan_path(self) -> Path:
        """The file of the result; its name is a digest, so that no shard name can be too long or lead elsewhere."""
        digest = hashlib.blake2b(self.name.encode("utf-8", "surrogateescape"), digest_size=16)
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
        TarError: The tar is damaged, or holds no sample.
        StaleIndexError: The file changed while it was read.
    """
    stored = find_stored(task)
    if stored is not None:
        return stored
    identity, scan = _read_shard(task.root, task.name)
    store_scan(task.scan_path, encode_scan(identity, scan))
    return _outcome(identity, scan, reused=False)


def scan_remotely(root: str, name: str) -> bytes | Exception:
    """Scan a shard and return the encoded scan; writes nothing, here or elsewhere.

    What is wrong with the shard is returned. So whatever is raised is a fault of the worker, and worth another try.

    Args:
        root: The dataset, as an absolute path or a URL.
        name: The shard, relative to it.
    """
    try:
        return encode_scan(*_read_shard(root, name))
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
    identity = ShardIdentity.of(Path(task.root), task.name)
    stored = load_scan(task.scan_path, identity)
    return None if stored is None else _outcome(identity, stored, reused=True)


def keep_scan(task: ScanTask, content: bytes) -> ScanOutcome:
    """Store what `scan_remotely` returned.

    Raises:
        WorkerError: These are not the bytes of a scan of this shard.
    """
    identity, scan = decode_scan(content) or (None, None)
    if identity is None or scan is None or identity.name != task.name:
        raise WorkerError(
            f"{task.tar_path}: what the worker sent is no scan of this shard. Are the versions of energon-grain there "
            f"and here the same?"
        )
    store_scan(task.scan_path, content)
    return _outcome(identity, scan, reused=False)


def _read_shard(root: str, name: str) -> tuple[ShardIdentity, ShardScan]:
    folder = Path(root)
    identity, tar_path = ShardIdentity.of(folder, name), folder / name
    scan = scan_tar(tar_path)
    if len(scan) == 0:
        raise TarError(
            f"{tar_path}: holds no sample (a regular file with an extension, such as 000.jpg). "
            f"Remove it, or leave it out with --exclude."
        )
    if ShardIdentity.of(folder, name) != identity:
        raise StaleIndexError(f"{tar_path}: changed while it was scanned. Prepare again when nothing writes to it.")
    return identity, scan


def _outcome(identity: ShardIdentity, scan: ShardScan, *, reused: bool) -> ScanOutcome:
    names = tuple(printable(name) for name in scan.part_names[:MAX_PART_NAMES])
    return ScanOutcome(shard=identity, samples=len(scan), part_names=names, reused=reused)


def printable(name: str) -> str:
    """Show bytes that are not UTF-8 as escapes, so that the name can be printed and sent as JSON."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
