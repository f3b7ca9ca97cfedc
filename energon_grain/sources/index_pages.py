"""How much of a memory-mapped index stays resident.

Touching a row of a mapped column makes 64 KiB around it resident, so random reads over a large dataset soon hold the
whole index: 52 MB for a million samples, 52 GB for a billion. The kernel may take such pages back at any time, yet they
count as memory of the process wherever memory is watched. So pages are given back once reads have touched many.

Measured with a million samples in full shuffle: without this 52 MB stay resident, with it 2 MB; giving back and mapping
again costs 1 to 3 ms a read, 0.9 µs a sample in reads of 4,096. Indices of at most 16 MB, about 300,000 samples, are
left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.formats.column_file import release_pages

LEFT_ALONE_BYTES = 16 << 20
RESIDENT_BYTES = 8 << 20
_FAULT_BYTES = 64 << 10
_ROW_BYTES = 8


class IndexPages:
    """Keeps account of what reads have touched, in windows of as many samples as one page fault covers.

    Args:
        columns: Of the index.
        samples: How many it has.
        rows: Of the longest column.
        left_alone_bytes: Indices up to this size stay resident.
        resident_bytes: Pages are given back after a read that leaves more than about this many bytes touched.
    """

    def __init__(
        self,
        columns: Sequence[npt.NDArray[Any]],
        *,
        samples: int,
        rows: int,
        left_alone_bytes: int = LEFT_ALONE_BYTES,
        resident_bytes: int = RESIDENT_BYTES,
    ) -> None:
        self._columns = columns
        total_bytes = sum(column.nbytes for column in self._columns)
        window = max(1, _FAULT_BYTES // _ROW_BYTES * samples // max(rows, 1))
        self._shift = window.bit_length() - 1
        self._touched = np.zeros((samples >> self._shift) + 1, np.bool_)
        self._limit: int | None = None
        if total_bytes > left_alone_bytes:
            self._limit = resident_bytes * len(self._touched) // total_bytes

    def touch(self, samples: npt.NDArray[np.int64]) -> None:
        """Note that the index was read at these samples, and give pages back if that makes too many."""
        if self._limit is None:
            return
        self._touched[samples >> self._shift] = True
        if np.count_nonzero(self._touched) > self._limit:
            self.release()

    def release(self) -> None:
        """Give all pages back."""
        # Other threads may be reading: to them a page that went costs a page fault, nothing else.
        self._touched[:] = False
        for column in self._columns:
            release_pages(column)
