"""Whether tar shards still are the files that were indexed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import numpy as np

from energon_grain.errors import RangeError, StaleIndexError
from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.data_folder import DataFolder
from energon_grain.formats.tar_header import BLOCK, NAME, SIZE, checksum_holds, full_name, parse_number, text

_LOOKED_AT = 16
_LARGEST_BYTES = 0o77777777777
"""What eleven octal digits can say."""


def check_shards(folder: DataFolder, index: ColumnarIndex, shards: Sequence[int] | None = None) -> None:
    """Check that tar shards have the size of the index, and begin and end with what it says.

    Reads what lies behind the last sample of each, 1 to 10 KiB as a rule, and the header of its first part. So a shard
    of the same size with other samples is told from the one that was indexed by the name or the size of that part. Of a
    shard on this machine that was written after the dataset was prepared, or copied, 16 samples are looked at so.

    Args:
        folder: Where the dataset lies.
        index: Of the dataset.
        shards: Numbers of the shards to look at; all of them if None.

    Raises:
        StaleIndexError: A shard has changed.
        ReadError: A shard is gone or cannot be reached.
    """
    numbers = range(len(index.shards)) if shards is None else shards
    paths = [folder.shard(index.shards[number]) for number in numbers]
    advice = (
        f"the shard was changed after it was indexed: run `energon-grain prepare {folder.location} --tar-index-only`"
    )
    _check_ends(folder, index, numbers, paths, advice)
    _check_beginnings(folder, index, numbers, paths, advice)


def _check_ends(
    folder: DataFolder, index: ColumnarIndex, numbers: Sequence[int], paths: list[str], advice: str
) -> None:
    ends = [index.shard_end(number) for number in numbers]
    try:
        tails = folder.store.tails(paths, ends)
    except RangeError as error:
        raise StaleIndexError(f"{error}; {advice}") from error
    for number, path, end, tail in zip(numbers, paths, ends, tails, strict=True):
        expected = int(index.shard_bytes[number])
        if end + len(tail) != expected:
            raise StaleIndexError(
                f"{path} was indexed with {expected} bytes ending at {end}, but it has {end + len(tail)} bytes; "
                f"{advice}"
            )
        if tail[:BLOCK].strip(b"\0"):
            raise StaleIndexError(
                f"{path} was indexed with {expected} bytes ending at {end}, but there is data at its end marker @ "
                f"{end}; {advice}"
            )


def _check_beginnings(
    folder: DataFolder, index: ColumnarIndex, numbers: Sequence[int], paths: list[str], advice: str
) -> None:
    places, chosen = list[int](), list[int]()
    for place, number in enumerate(numbers):
        begin, end = index.shard_first[number : number + 2].tolist()
        if begin < end:
            count = _LOOKED_AT if not folder.is_remote and _is_newer(paths[place], folder) else 1
            found = [begin] if count == 1 else np.unique(np.linspace(begin, end - 1, count).astype(np.int64)).tolist()
            places += [place] * len(found)
            chosen += found
    samples = np.array(chosen, np.int64)
    index.check(samples)
    rows = index.part_start[samples]
    starts: list[int] = (np.asarray(index.part_offset[rows], np.int64) - BLOCK).tolist()
    headers = folder.store.peek([paths[place] for place in places], starts, BLOCK)
    keys = index.keys(samples)
    for place, key, row, header in zip(places, keys, rows.tolist(), headers, strict=True):
        name = f"{key}.{index.part_names[int(index.part_name[row])]}".encode("utf-8", "surrogateescape")
        size = int(index.part_size[row])
        if not _is_header_of(header, name, size):
            raise StaleIndexError(
                f"{paths[place]} was indexed with {name.decode('utf-8', 'backslashreplace')} of {size} bytes @ "
                f"{int(index.part_offset[row])}, but this is not what its header says; {advice}"
            )


def _is_newer(path: str, folder: DataFolder) -> bool:
    """Whether a file was written to after the dataset was prepared."""
    from energon_grain.formats.columnar_build import info_stamp

    with contextlib.suppress(OSError):
        return os.stat(path).st_mtime_ns > info_stamp(folder.local)[1]
    return False


def _is_header_of(header: bytes, name: bytes, size: int) -> bool:
    """Whether a header may be that of a member. What no header can hold stands before it, and is not looked at."""
    try:
        if not checksum_holds(header) or (size <= _LARGEST_BYTES and parse_number(header[SIZE]) != size):
            return False
    except ValueError:
        return False
    try:
        found = full_name(header)
    except ValueError:
        found = text(header[NAME])
    return found == name or len(name) > NAME.stop or not name.isascii()
