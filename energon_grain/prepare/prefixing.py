# SPDX-License-Identifier: Apache-2.0
"""Making keys distinct: the path of its tar is put before each member's name, as Energon's `--fix-duplicates` does."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from energon_grain.errors import DuplicateKeyError
from energon_grain.formats.commit_journal import PREPARE_FOLDER
from energon_grain.prepare.containers import Container
from energon_grain.prepare.scan import ScannedDataset
from energon_grain.storage.atomic import remove_temporaries
from energon_grain.storage.location import join

_PREFIXING = f"{PREPARE_FOLDER}/prefixing"
_PREFIXING_THREADS = 8  # most of them wait for the disk


def finish_prefixes(root: Path, container: Container, shards: Sequence[str]) -> None:
    """Rename the members of the tars that a killed run had not reached. Call it while the dataset is locked."""
    if (root / _PREFIXING).exists():
        for folder in {(root / shard).parent for shard in shards}:
            remove_temporaries(folder, ".*.tar.*.tmp")
        _prefix(root, container, shards)


def prefix_members(root: Path, container: Container, scanned: ScannedDataset) -> None:
    """Put the path of its tar before each member's name, in all of them. Call it while the dataset is locked.

    `b/7.jpg` in the shard `parts/3.tar` becomes `parts/3.tar/b/7.jpg`, so that its key is `parts/3.tar/b/7`; members
    that are no parts of samples keep their names. Energon changes headers in place: a kill in the middle of a sample
    tears it apart, and names that become too long for their header are ruled out. Here each tar is written again beside
    the old one and renamed, so it has all of its old names or all of its new ones, and readers that have it open keep
    the old one.

    The mark `.nv-meta/.prepare/prefixing` is there from before the first rename until the dataset is prepared: where a
    run was killed after some of the tars, the keys may be distinct already, but the other tars are to be renamed all
    the same.

    Raises DuplicateKeyError, with nothing changed, where one tar has a key twice, which this cannot fix.
    """
    for shard, scan in zip(scanned.shards, scanned.scans(), strict=True):
        if len(set(scan.keys())) < len(scan):
            raise DuplicateKeyError(
                f"{join(scanned.root, shard.name)}: has a key twice, in members that are not adjacent, so that the "
                f"name of the tar would not distinguish its samples. Rename them; no tar was changed."
            )
    (root / _PREFIXING).touch()
    _prefix(root, container, [shard.name for shard in scanned.shards])


def _prefix(root: Path, container: Container, shards: Sequence[str]) -> None:
    with ThreadPoolExecutor(_PREFIXING_THREADS, thread_name_prefix="prepare") as pool:
        list(pool.map(lambda shard: container.prefix_keys(root / shard, f"{shard}/"), shards))
