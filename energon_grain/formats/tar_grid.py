"""Find the headers of small members many at a time: look for their magic on the grid of 512-byte blocks.

A payload may hold such a block too (a tar inside a tar), so a candidate counts only where the chain of sizes from a
known header leads to it. Anything but plain members (extension headers, hard links, sizes beyond 8 GiB, the end) stops
the run and is left to `tar_hops`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from energon_grain.formats.tar_batch import HeaderBatch, Walked
from energon_grain.formats.tar_bytes import TarBytes
from energon_grain.formats.tar_header import BLOCK, CONTIGUOUS, MAGIC, REGULAR, TYPE, read_sizes

_CHUNK_BYTES: Final = 4 << 20
_PIECE_BYTES: Final = 256 << 10
_MAGIC: Final = np.frombuffer(b"usta", "<u4")[0]
_DIRECTORY_LIKE: Final = tuple(b"23456")  # symlinks, devices, folders, fifos: no payload, whatever their size says


class HeaderGrid:
    """Finds runs of plain headers; keeps its buffers, so a batch is good only until the next run."""

    def __init__(self, tar: TarBytes) -> None:
        self._tar = tar
        self._piece = np.empty((_PIECE_BYTES // BLOCK, BLOCK), np.uint8)
        self._first_words = np.ndarray((len(self._piece),), "<u4", self._piece, MAGIC, (BLOCK,))
        self._headers = np.empty((_CHUNK_BYTES // BLOCK, BLOCK), np.uint8)

    def run(self, offset: int) -> tuple[Walked, bool]:
        """Find the plain headers in the 4 MiB from the header at `offset` on.

        Returns:
            What was found (nothing, if the block at `offset` is no plain header), and whether the run stopped at
            something that `tar_hops` must look at.
        """
        headers, places, blocks = self._candidates(offset)
        if not len(places) or places[0] != 0:
            return Walked(_empty(), offset), True
        sizes, following = _follow(headers, places)
        rows, end, stopped = _chain(places, following, blocks)
        if len(rows) and offset + end * BLOCK >= self._tar.size_bytes:  # a size too large, or no end marker
            rows, end, stopped = rows[:-1], int(places[rows[-1]]), True
        if len(rows) < len(places):
            headers, sizes, places = headers[rows], sizes[rows], places[rows]
        at = offset + places * BLOCK
        return Walked(HeaderBatch(headers=headers, offset=at, start=at, size=sizes), offset + end * BLOCK), stopped

    def _candidates(self, offset: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], int]:
        """Collect the blocks with the magic, in pieces that stay in the cache of the core.

        Returns:
            The (n, 512) candidates, their (n,) block numbers from `offset`, and the number of blocks looked at.
        """
        places: list[npt.NDArray[np.int64]] = []
        blocks, count = 0, 0
        while blocks < len(self._headers):
            read = self._tar.data.fill(self._piece.data.cast("B"), offset + blocks * BLOCK) // BLOCK
            found = np.flatnonzero(self._first_words[:read] == _MAGIC)
            np.take(self._piece, found, axis=0, out=self._headers[count : count + len(found)], mode="clip")
            count += len(found)
            places.append(found + blocks)
            blocks += read
            if read < len(self._piece):
                break
        return self._headers[:count], np.concatenate(places), blocks


def _follow(
    headers: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Give each candidate's size and the block after its payload, -1 where it is no plain member."""
    kinds = headers[:, TYPE]
    sizes = read_sizes(headers)
    following = places + 1 + (sizes + (BLOCK - 1)) // BLOCK
    unusual = np.flatnonzero(kinds != REGULAR)
    if len(unusual):
        kinds = kinds[unusual]
        bare = np.isin(kinds, _DIRECTORY_LIKE)
        following[unusual[bare]] = places[unusual[bare]] + 1
        following[unusual[~bare & (kinds != CONTIGUOUS)]] = -1
    following[sizes < 0] = -1
    return sizes, following


def _chain(
    places: npt.NDArray[np.int64], following: npt.NDArray[np.int64], blocks: int
) -> tuple[npt.NDArray[np.int64], int, bool]:
    """Keep the candidates that a chain from the first one reaches.

    Example:
        Candidates at blocks 0, 2, 3, 6 followed by blocks 2, 6, 9, 8 of 8 in the chunk: 0 leads to 2, 2 leads to 6, so
        the one at 3 lies inside a payload; rows 0, 1, 3 are kept and the next header is in block 8.

    Returns:
        The rows kept, the block where the chain goes on, and whether it stopped at something unusual.
    """
    breaks = np.flatnonzero(following[:-1] != places[1:])
    kept: list[npt.NDArray[np.int64]] = []
    row = 0
    while True:
        at = int(np.searchsorted(breaks, row))
        last = int(breaks[at]) if at < len(breaks) else len(places) - 1
        target = int(following[last])
        if target < 0:
            kept.append(np.arange(row, last))
            return np.concatenate(kept), int(places[last]), True
        kept.append(np.arange(row, last + 1))
        if target >= blocks:
            return np.concatenate(kept), target, False
        row = int(np.searchsorted(places, target))
        if row == len(places) or places[row] != target:
            return np.concatenate(kept), target, True


def _empty() -> HeaderBatch:
    none = np.zeros(0, np.int64)
    return HeaderBatch(headers=np.zeros((0, BLOCK), np.uint8), offset=none, start=none, size=none)
