"""`.tar.idx`: where the samples of a tar start, as Energon writes it next to each shard.

No header; n+1 unsigned 64-bit little-endian numbers: the offset of the first header of each sample, and last the offset
of the end-of-archive marker. So the size is 8·(n+1) bytes.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energon_grain.errors import IndexFileError
from energon_grain.formats.tar_header import BLOCK
from energon_grain.storage.atomic import atomic_write_bytes
from energon_grain.storage.read_whole import read_whole


def tar_index_path(tar: str | os.PathLike[str]) -> Path:
    """Give the path of the index of a tar: `x.tar` → `x.tar.idx`, `a.tgz` → `a.tar.idx`."""
    return Path(tar).with_suffix(".tar.idx")


def read_tar_index(path: str | os.PathLike[str]) -> npt.NDArray[np.int64]:
    """Read a `.tar.idx`: (n+1,) ascending offsets.

    Args:
        path: The index file, a path or a URL.

    Raises:
        OSError: The file is not there or may not be read.
        IndexFileError: It holds no whole number of offsets, or they are not ascending multiples of 512.
    """
    data = read_whole(os.fspath(path))
    if not data or len(data) % 8:
        raise IndexFileError(
            f"{path}: {len(data)} bytes are no whole number of 8-byte offsets, of which there must be at least one. "
            f"{_WAY_OUT}"
        )
    starts = np.frombuffer(data, "<i8").astype(np.int64)
    defect = _defect(starts)
    if defect is not None:
        row, rule = defect
        raise IndexFileError(f"{path} @ {8 * row}: offset {row} is {int(starts[row])}; {rule}. {_WAY_OUT}")
    return starts


def write_tar_index(path: str | os.PathLike[str], sample_start: npt.NDArray[np.int64]) -> None:
    """Write a `.tar.idx`, whole or not at all.

    Args:
        path: The index file, see `tar_index_path`.
        sample_start: (n+1,) as in `ShardScan`.

    Raises:
        IndexFileError: The offsets are not ascending multiples of 512, or there is none.
        OSError: The file cannot be written.
    """
    defect = _defect(sample_start) if len(sample_start) else (0, "there must be at least one offset")
    if defect is not None:
        raise IndexFileError(f"{path}: refused to write an index with a wrong offset {defect[0]}: {defect[1]}")
    atomic_write_bytes(path, sample_start.astype("<i8").tobytes())


def _defect(starts: npt.NDArray[np.int64]) -> tuple[int, str] | None:
    """Give the first wrong row and the rule that it breaks."""
    bad = np.flatnonzero((starts < 0) | (starts % BLOCK != 0))
    if len(bad):
        return int(bad[0]), f"offsets are multiples of {BLOCK}"
    bad = np.flatnonzero(np.diff(starts) <= 0)
    if len(bad):
        return int(bad[0]) + 1, "offsets must ascend"
    return None


_WAY_OUT = "The index is damaged; write it again with `energon-grain prepare PATH --tar-index-only`."
