# SPDX-License-Identifier: Apache-2.0
"""Releases pages of a memory-mapped index that reads have touched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.storage.memory_maps import release_pages

ALWAYS_RESIDENT_BYTES = 16 << 20
RESIDENT_BYTES = 8 << 20
_PAGE_FAULT_BYTES = 64 << 10
_ROW_BYTES = 8


class IndexPages:
    """Tracks the pages that reads touch, in windows of the samples that one page fault covers.

    Args:
        rows: Length of the longest column.
        left_alone_bytes: Indices up to this size stay resident.
        resident_bytes: Pages are released after a read that leaves more than about this many bytes touched.
    """

    def __init__(
        self,
        columns: Sequence[npt.NDArray[Any]],
        *,
        samples: int,
        rows: int,
        always_resident_bytes: int = ALWAYS_RESIDENT_BYTES,
        resident_bytes: int = RESIDENT_BYTES,
    ) -> None:
        self._columns = columns
        total_bytes = sum(column.nbytes for column in self._columns)
        window = max(1, _PAGE_FAULT_BYTES // _ROW_BYTES * samples // max(rows, 1))
        self._shift = window.bit_length() - 1
        self._touched = np.zeros((samples >> self._shift) + 1, np.bool_)
        self._limit: int | None = None
        if total_bytes > always_resident_bytes:
            self._limit = resident_bytes * len(self._touched) // total_bytes

    def touch(self, samples: npt.NDArray[np.int64]) -> None:
        """Record that the index was read at these samples, and release pages above the limit."""
        if self._limit is None:
            return
        self._touched[samples >> self._shift] = True
        if np.count_nonzero(self._touched) > self._limit:
            self.release()

    def release(self) -> None:
        """Release all pages."""
        # Safe while other threads read: a released page costs them a page fault.
        self._touched[:] = False
        for column in self._columns:
            release_pages(column)
