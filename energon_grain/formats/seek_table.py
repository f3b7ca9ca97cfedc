# SPDX-License-Identifier: Apache-2.0
"""`.nv-meta/seek_table.bin`: seek indices for the videos of a dataset that lack their own, in one file.

    8 bytes    `EGSEEK01`
    16 bytes   BLAKE2b of the following bytes, up to the end of the rows
    32 bytes   content id of the columnar index, in hex, which identifies the tars
    8 bytes    n, the number of rows
    n × 56     rows of seven int64, sorted: number of the shard, offset and size of the part in it; the byte of the part
               before which its index belongs; offset of the index in this file, its size, and its sum, BLAKE2b of
               8 bytes
    …          the indices, concatenated

All numbers are little-endian. The file is memory-mapped: opening reads the rows, and an index is read with its video.
Without the file, or if it belongs to other tars, videos are decoded without it.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energon_grain.atomic_files import atomic_write
from energon_grain.errors import IndexFileError
from energon_grain.formats.mapped_files import map_file
from energon_grain.formats.nv_meta import META_FOLDER

SEEK_TABLE = "seek_table.bin"
_MAGIC = b"EGSEEK01"
_HEAD_BYTES = 64
_ROW = np.dtype("<i8")
_FIELDS = 7
_REPAIR_ADVICE = "remove it, or write it again by `energon_grain.prepare.index_videos`"
_logger = logging.getLogger("energon_grain")


class SeekTable:
    """Seek indices of videos, by shard, offset and size. Thread-safe.

    Args:
        rows: (n, 7), sorted.
    """

    def __init__(self, path: Path, rows: npt.NDArray[np.int64], data: mmap.mmap) -> None:
        self._path, self._rows, self._data = path, rows, data
        self._of = {tuple(place): row for row, place in enumerate(rows[:, :3].tolist())}

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, shard: int, offset: int, size: int) -> tuple[int, bytes]:
        """The byte of a part before which its index belongs, and the index; (0, b"") without one.

        Raises IndexFileError if the file is damaged there.
        """
        row = self._of.get((shard, offset, size))
        if row is None:
            return 0, b""
        place, start, long, checksum = self._rows[row, 3:].tolist()
        data = self._data[start : start + long]
        if len(data) != long or _sum(data) != checksum:
            raise IndexFileError(f"{self._path} @ {start}: the index of a video is damaged; {_REPAIR_ADVICE}")
        return place, data


def _sum(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


def write_seek_table(root: Path, content_id: str, found: Iterable[tuple[int, int, int, int, bytes]]) -> None:
    """Write the table of a dataset atomically; without videos that need an index, there is no file.

    Args:
        content_id: Content id of its columnar index.
        found: (number of the shard, offset and size of the part, place of the index in the part, index) of videos.
    """
    rows: list[tuple[int, ...]] = []
    pieces: list[bytes] = []
    entries = sorted(found)
    path = root / META_FOLDER / SEEK_TABLE
    if not entries:
        path.unlink(missing_ok=True)
        return
    at = _HEAD_BYTES + len(entries) * _FIELDS * _ROW.itemsize
    for shard, offset, size, place, data in entries:
        rows.append((shard, offset, size, place, at, len(data), _sum(data)))
        pieces.append(data)
        at += len(data)
    table = np.array(rows, _ROW).reshape(-1, _FIELDS).tobytes()
    described = content_id[:32].encode().ljust(32) + len(rows).to_bytes(8, "little") + table
    with atomic_write(path) as file:
        file.write(_MAGIC + hashlib.blake2b(described, digest_size=16).digest() + described)
        file.writelines(pieces)


def open_seek_table(root: Path, content_id: str) -> SeekTable | None:
    """The table of a dataset; None if there is none, or it belongs to other tars, which is logged.

    Raises IndexFileError if the file is damaged.
    """
    path = root / META_FOLDER / SEEK_TABLE
    try:
        with open(path, "rb") as file:
            data = map_file(file.fileno())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise IndexFileError(f"{path}: cannot be read: {error}; {_REPAIR_ADVICE}") from error
    count = int.from_bytes(data[56:64], "little")
    stop = _HEAD_BYTES + count * _FIELDS * _ROW.itemsize
    if data[:8] != _MAGIC or stop > len(data):
        raise IndexFileError(f"{path}: is not a table of video indices, or is truncated; {_REPAIR_ADVICE}")
    if hashlib.blake2b(data[24:stop], digest_size=16).digest() != data[8:24]:
        raise IndexFileError(f"{path}: is damaged; {_REPAIR_ADVICE}")
    if data[24:56] != content_id[:32].encode().ljust(32):
        _logger.warning("%s: belongs to other tars, so it is not used; %s", path, _REPAIR_ADVICE)
        return None
    return SeekTable(path, np.frombuffer(data, _ROW, count * _FIELDS, _HEAD_BYTES).reshape(-1, _FIELDS), data)
