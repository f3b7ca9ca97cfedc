# SPDX-License-Identifier: Apache-2.0
"""`.tar.idx` files, as Energon writes beside each shard, and checks that shards are the files that were indexed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energon_grain.errors import IndexFileError, RangeError, StaleIndexError, TarError
from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.columnar_header import info_stamp
from energon_grain.formats.data_folder import DataFolder
from energon_grain.kinds.tar.header import (
    BLOCK,
    NAME,
    SIZE,
    checksum_holds,
    first_bad_checksum,
    full_name,
    parse_number,
    text,
)
from energon_grain.kinds.tar.walk import HeaderHops, TarBytes
from energon_grain.storage.remote import read_whole


def tar_index_path(tar: str | os.PathLike[str]) -> Path:
    """Return the path of the index of a tar: `x.tar` → `x.tar.idx`, `a.tgz` → `a.tar.idx`."""
    return Path(tar).with_suffix(".tar.idx")


def read_tar_index(path: str | os.PathLike[str]) -> npt.NDArray[np.int64]:
    """Read the `.tar.idx` at a path or URL: (n+1,) ascending offsets.

    Raises OSError, and IndexFileError if its size is not a multiple of 8, or the offsets are not ascending multiples of
    512.
    """
    data = read_whole(os.fspath(path))
    if not data or len(data) % 8:
        raise IndexFileError(f"{path}: expected one or more 8-byte offsets, found {len(data)} bytes. {_REPAIR_ADVICE}")
    starts = np.frombuffer(data, "<i8").astype(np.int64)
    defect = _defect(starts)
    if defect is not None:
        row, rule = defect
        raise IndexFileError(f"{path} @ {8 * row}: offset {row} is {int(starts[row])}; {rule}. {_REPAIR_ADVICE}")
    return starts


def _defect(starts: npt.NDArray[np.int64]) -> tuple[int, str] | None:
    """Return the first wrong row and the rule that it violates."""
    bad = np.flatnonzero((starts < 0) | (starts % BLOCK != 0))
    if len(bad):
        return int(bad[0]), f"offsets must be multiples of {BLOCK}"
    bad = np.flatnonzero(np.diff(starts) <= 0)
    if len(bad):
        return int(bad[0]) + 1, "offsets must ascend"
    return None


_REPAIR_ADVICE = "The index is damaged; write it again with `energon-grain prepare PATH --tar-index-only`."


_CHECKED_SAMPLES = 16
_LARGEST_BYTES = 0o77777777777
"""The largest number of eleven octal digits."""


def check_shards(folder: DataFolder, index: ColumnarIndex, shards: Sequence[int] | None = None) -> None:
    """Check that tar shards, by number (None: all), have the size, beginning and end recorded in the index.

    Reads the data after the last sample of each, usually 1 to 10 KiB, and the header of its first part. A shard of the
    same size with other samples is detected by the name or the size of that part. In a local shard that was written or
    copied after the dataset was prepared, 16 samples are checked. Raises StaleIndexError and ReadError.
    """
    numbers = range(len(index.shards)) if shards is None else shards
    paths = [folder.shard(index.shards[number]) for number in numbers]
    advice = f"the shard changed after it was indexed: run `{folder.indexed_by}`"
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
                f"{path}: was indexed with {expected} bytes ending at {end}, but has {end + len(tail)} bytes; {advice}"
            )
        if tail[:BLOCK].strip(b"\0"):
            raise StaleIndexError(
                f"{path}: was indexed with {expected} bytes ending at {end}, but has data at its end marker @ {end}; "
                f"{advice}"
            )


def _check_beginnings(
    folder: DataFolder, index: ColumnarIndex, numbers: Sequence[int], paths: list[str], advice: str
) -> None:
    places, chosen = list[int](), list[int]()
    for place, number in enumerate(numbers):
        begin, end = index.shard_first[number : number + 2].tolist()
        if begin < end:
            count = _CHECKED_SAMPLES if not folder.is_remote and _is_newer(paths[place], folder) else 1
            found = [begin] if count == 1 else np.unique(np.linspace(begin, end - 1, count).astype(np.int64)).tolist()
            places += [place] * len(found)
            chosen += found
    samples = np.array(chosen, np.int64)
    index.check(samples)
    rows = index.part_start[samples]
    starts: list[int] = (np.asarray(index.part_offset[rows], np.int64) - BLOCK).tolist()
    firsts: list[int] = index.sample_start[samples + index.shard_of(samples)].tolist()
    headers = folder.store.peek([paths[place] for place in places], starts, BLOCK)
    keys = index.keys(samples)
    for place, key, row, first, start, header in zip(places, keys, rows.tolist(), firsts, starts, headers, strict=True):
        name = f"{key}.{index.part_names[int(index.part_name[row])]}".encode("utf-8", "surrogateescape")
        size = int(index.part_size[row])
        if not _is_header_of(header, name, size) and not (
            first < start and _is_extended_to(paths[place], first, start, name, size)
        ):
            raise StaleIndexError(
                f"{paths[place]}: was indexed with {name.decode('utf-8', 'backslashreplace')} of {size} bytes @ "
                f"{int(index.part_offset[row])}, but its header differs; {advice}"
            )


def _is_newer(path: str, folder: DataFolder) -> bool:
    """Whether a file was written after the dataset was prepared."""
    with contextlib.suppress(OSError):
        return os.stat(path).st_mtime_ns > info_stamp(folder.local)[1]
    return False


def _is_header_of(header: bytes, name: bytes, size: int) -> bool:
    """Whether a header alone matches a member. A name or size that does not fit into it is not compared."""
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


def _is_extended_to(path: str, first: int, start: int, name: bytes, size: int) -> bool:
    """Whether the header at `start` with the extension headers from `first` is that of a member, as in a scan.

    Extension headers can override any name and size. Raises OSError and ReadError.
    """
    with contextlib.suppress(TarError, ValueError), TarBytes(path) as tar:
        walked = HeaderHops(tar, window=False).run(first, 1)
        batch, last = walked.batch, len(walked.batch) - 1
        if walked.error is None and int(batch.offset[last]) == start and first_bad_checksum(batch.headers) is None:
            found = batch.names.get(last) or full_name(batch.headers[last].tobytes())
            return found == name and int(batch.size[last]) == size
    return False
