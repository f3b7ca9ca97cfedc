# SPDX-License-Identifier: Apache-2.0
"""The files of a dataset, or of all datasets of a metadataset, and their digests."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from energon_grain.errors import public
from energon_grain.history.digests import DataFiles, datasets_of
from energon_grain.kinds.joins.leaf import JoinedLeafDataset
from energon_grain.metadataset.documents import load_metadataset, read_document
from energon_grain.metadataset.flat import leaves_of
from energon_grain.prepare.samples import columns_of
from energon_grain.sources.kinds import METADATASET, kind_at
from energon_grain.storage.location import located


@dataclass(frozen=True, kw_only=True, slots=True)
class DigestReport:
    """The result of `digest_dataset`.

    Attributes:
        datasets: Path or URL of each dataset.
        files: Number of files read.
        size_bytes: Their size.
    """

    datasets: tuple[str, ...]
    files: int
    size_bytes: int


@public
def digest_dataset(path: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None) -> DigestReport:
    """Read all files of a dataset, and store their digests beside it, for receipts.

    The result is the same as that of `prepare_dataset(digest=True)`. Files in an object store are streamed. For
    read-only data, the digests are in the cache folder of this machine.

    Args:
        path: Any trainable data, or a metadataset: then the datasets of all its splits.
        progress: Called with the number of bytes read so far, and of all bytes (0: unknown, in an object store).

    Raises:
        DatasetNotFoundError: There is no dataset.
        ReadError, OSError: A file cannot be read, or the digests cannot be written.
    """
    datasets = files_at(path)
    total, done = sum(each.size_bytes for each in datasets), 0

    def count(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        if progress is not None:
            progress(done, total)

    size_bytes = sum(each.store(count) for each in datasets)
    files = sum(len(each.files) for each in datasets)
    return DigestReport(datasets=tuple(each.named for each in datasets), files=files, size_bytes=size_bytes)


def files_at(path: str | os.PathLike[str]) -> list[DataFiles]:
    """The files of a dataset, or of all datasets of a metadataset. Raises as opening does."""
    location = located(path)
    if kind_at(location) is not METADATASET:
        return datasets_of([columns_of(location).source])
    trees = [load_metadataset(location, split_part=split) for split in read_document(location).splits]
    leaves = chain.from_iterable(map(leaves_of, trees))
    return datasets_of(
        leaf.rows() if isinstance(leaf, JoinedLeafDataset) else columns_of(leaf.path).source for leaf in leaves
    )
