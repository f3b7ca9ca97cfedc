"""Energon's join index: `<metadataset>.cache/join_index_<sha256>.bin`, where the samples of each joined row lie.

    b"JIDX0001"                                          8 bytes
    C                                                    int64, number of joined datasets
    C x (shard_idx, byte_offset, byte_size) a row        int64 each; (-1, -1, -1): this dataset lacks the key

`shard_idx` counts the shards that the split part lists, those included that it excludes; offset and size are those of
the whole sample in its tar. All numbers in the order of the machine. Energon writes a join without rows as an empty
file, which is read as no rows here.

Energon makes the name of uuids, excludes and modes of the datasets, and leaves the split part out, so that its train
and val joins share one file. The names that `join_name` makes tell them apart.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energon_grain.errors import IndexFileError
from energon_grain.forms import encode_json
from energon_grain.storage.atomic import atomic_write
from energon_grain.storage.location import is_url
from energon_grain.storage.mirror import mirror_of

Int64Array = npt.NDArray[np.int64]

MAGIC = b"JIDX0001"
_HEADER_BYTES = 16
_FIELDS = 3
_MOST_ORDERS = 5_040
"""Orders of excludes that `energon_join_names` tries at most: 7!, at about 2 µs each."""


def cache_folder(metadataset: str | os.PathLike[str]) -> Path:
    """Return the folder with the join indices of a metadataset file; of one in an object store, its mirror."""
    location = f"{os.fspath(metadataset)}.cache"
    return mirror_of(location).folder if is_url(location) else Path(location)


def index_file_name(digest: str) -> str:
    """Return the name of the index file of a join."""
    return f"join_index_{digest}.bin"


def join_name(members: Sequence[tuple[str, str, Sequence[str], Sequence[str], str]]) -> str:
    """Return the 64 hex digits that name a join: equal exactly where the rows must be.

    Args:
        members: (content id, name of the split part, its shards, excludes of these, nonmatch) of each dataset, in
            order. Shards count in order, excludes in any.
    """
    described = [
        [content_id, split_part, list(shards), sorted(excludes), nonmatch]
        for content_id, split_part, shards, excludes, nonmatch in members
    ]
    return hashlib.sha256(encode_json(["energon-grain join 1", described])).hexdigest()


def energon_join_names(members: Sequence[tuple[str, Sequence[str], str]]) -> Iterator[str]:
    """Give the names that Energon may have given to a join, the digits only.

    There are several where a dataset has two excludes or more: Energon takes them in the order of a set of strings,
    which differs from process to process.

    Args:
        members: (uuid, excludes with a `/` in them, nonmatch) of each dataset, in order.
    """
    excludes = [list(dict.fromkeys(each)) for _, each, _ in members]
    if math.prod(math.factorial(len(each)) for each in excludes) > _MOST_ORDERS:
        return
    for orders in itertools.product(*(list(itertools.permutations(each)) for each in excludes)):
        digest = hashlib.sha256()
        for (uuid, _, nonmatch), order in zip(members, orders, strict=True):
            digest.update(f"\0uuid={uuid}\0excludes=".encode())
            for exclude in order:
                digest.update(exclude.encode("utf-8", "surrogateescape") + b"\0")
            digest.update(f"\0nonmatch={nonmatch}\0".encode())
        yield digest.hexdigest()


def write_join_index(path: str | os.PathLike[str], columns: int, blocks: Iterable[Int64Array]) -> int:
    """Write a join index atomically and return its number of rows.

    Args:
        path: The file.
        columns: Number of joined datasets.
        blocks: (n, columns, 3) rows, in order, written as they come.
    """
    rows = 0
    with atomic_write(path) as file:
        file.write(MAGIC + columns.to_bytes(8, sys.byteorder))
        for block in blocks:
            file.write(np.ascontiguousarray(block, np.int64).data.cast("B") if len(block) else b"")
            rows += len(block)
    return rows


def read_join_index(path: str | os.PathLike[str]) -> Int64Array:
    """Map a join index, read-only: (rows, datasets, 3); (0, 0, 3) for an empty file.

    Raises:
        FileNotFoundError: There is no such file.
        IndexFileError: It is damaged, or not a join index.
    """
    path = Path(path)
    size = path.stat().st_size
    if size == 0:
        return np.zeros((0, 0, _FIELDS), np.int64)
    with open(path, "rb") as file:
        header = file.read(_HEADER_BYTES)
    columns = int.from_bytes(header[8:], sys.byteorder)
    row_bytes = 8 * _FIELDS * columns
    if header[:8] != MAGIC or not 0 < columns <= size or (size - _HEADER_BYTES) % row_bytes:
        raise IndexFileError(
            f"{path}: is no join index: after {MAGIC!r} and the number of datasets come whole rows, but it begins with "
            f"{header!r} and has {size} bytes; remove it and prepare the metadataset again"
        )
    rows = (size - _HEADER_BYTES) // row_bytes
    if not rows:
        return np.zeros((0, columns, _FIELDS), np.int64)
    return np.asarray(np.memmap(path, np.int64, "r", offset=_HEADER_BYTES, shape=(rows, columns, _FIELDS)))
