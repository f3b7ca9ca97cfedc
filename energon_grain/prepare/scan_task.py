"""The unit of parallel work in `prepare`: scan one shard and leave the result in a file.

The function and its argument are plain and picklable, so that any `concurrent.futures.Executor` can run them. What
comes back is a handful of numbers: the arrays go through the file.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from energon_grain.errors import StaleIndexError, TarError
from energon_grain.formats.shard_scan import ShardScan, scan_tar
from energon_grain.prepare.stored_scan import ShardIdentity, load_scan, store_scan

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


def scan_shard(task: ScanTask) -> ScanOutcome:
    """Scan a shard, unless a stored scan of the very same file exists.

    Raises:
        TarError: The tar is damaged, or holds no sample.
        StaleIndexError: The file changed while it was read.
    """
    identity = ShardIdentity.of(Path(task.root), task.name)
    stored = load_scan(task.scan_path, identity)
    if stored is not None:
        return _outcome(identity, stored, reused=True)
    scan = scan_tar(task.tar_path)
    if len(scan) == 0:
        raise TarError(
            f"{task.tar_path}: holds no sample (a regular file with an extension, such as 000.jpg). "
            f"Remove it, or leave it out with --exclude."
        )
    if ShardIdentity.of(Path(task.root), task.name) != identity:
        raise StaleIndexError(
            f"{task.tar_path}: changed while it was scanned. Prepare again when nothing writes to it."
        )
    store_scan(task.scan_path, identity, scan)
    return _outcome(identity, scan, reused=False)


def _outcome(identity: ShardIdentity, scan: ShardScan, *, reused: bool) -> ScanOutcome:
    names = tuple(printable(name) for name in scan.part_names[:MAX_PART_NAMES])
    return ScanOutcome(shard=identity, samples=len(scan), part_names=names, reused=reused)


def printable(name: str) -> str:
    """Show bytes that are not UTF-8 as escapes, so that the name can be printed and sent as JSON."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
