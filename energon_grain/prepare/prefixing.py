# SPDX-License-Identifier: Apache-2.0
"""Make keys unique: prepend the path of its tar to each member's name, as Energon's `--fix-duplicates` does."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from energon_grain.atomic_files import remove_temporaries
from energon_grain.errors import DuplicateKeyError
from energon_grain.formats.commit_journal import PREPARE_FOLDER
from energon_grain.prepare.containers import Container
from energon_grain.prepare.scan import ScannedDataset
from energon_grain.storage.location import join

_PREFIXING = f"{PREPARE_FOLDER}/prefixing"
_PREFIXING_THREADS = 8  # most of them wait for the disk


def finish_prefixes(root: Path, container: Container, shards: Sequence[str]) -> None:
    """Rename the members of the tars that a killed run did not reach. The dataset must be locked."""
    if (root / _PREFIXING).exists():
        for folder in {(root / shard).parent for shard in shards}:
            remove_temporaries(folder, ".*.tar.*.tmp")
        _prefix(root, container, shards)


def prefix_members(root: Path, container: Container, scanned: ScannedDataset) -> None:
    """Prepend the path of its tar to each member's name, in all tars. The dataset must be locked.

    `b/7.jpg` in the shard `parts/3.tar` becomes `parts/3.tar/b/7.jpg`, so its key is `parts/3.tar/b/7`. Members that
    are not parts of samples keep their names. Energon changes headers in place: a kill in the middle of a sample splits
    it in two, and names that are too long for their header are refused. This function writes each tar again beside the
    old one and renames it. A tar therefore has all of its old names or all of its new ones, and readers that have it
    open keep the old one.

    The mark `.nv-meta/.prepare/prefixing` exists from before the first rename until the dataset is prepared. If a run
    is killed after some of the tars, the keys may be unique already, but the other tars must still be renamed.

    Raises DuplicateKeyError, with nothing changed, if one tar has a key twice, which this cannot fix.
    """
    for shard, scan in zip(scanned.shards, scanned.scans(), strict=True):
        if len(set(scan.keys())) < len(scan):
            raise DuplicateKeyError(
                f"{join(scanned.root, shard.name)}: has a key twice, in members that are not adjacent, so prepending "
                f"the name of the tar does not make its keys unique. Rename the members; no tar was changed."
            )
    (root / _PREFIXING).touch()
    _prefix(root, container, [shard.name for shard in scanned.shards])


def _prefix(root: Path, container: Container, shards: Sequence[str]) -> None:
    with ThreadPoolExecutor(_PREFIXING_THREADS, thread_name_prefix="prepare") as pool:
        list(pool.map(lambda shard: container.prefix_keys(root / shard, f"{shard}/"), shards))
