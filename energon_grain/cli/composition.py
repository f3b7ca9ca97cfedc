"""What a stream is made of along its positions: how many of each leaf, counted on the order itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from energon_grain.stream.index_map import IndexMap

MAX_DRAWN = 4_000_000
"""Positions that are counted at most, about a second's work; of longer stretches some are counted."""
_RUNS = 16


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Composition:
    """Counts of leaves in consecutive windows of positions.

    Attributes:
        edges: int64 (windows + 1,), the first position of each window, and where the last one ends.
        counts: int64 (windows, leaves), of the positions that were counted.
    """

    edges: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    @property
    def counted(self) -> int:
        """How many positions were counted; all of them, up to `MAX_DRAWN`."""
        return int(self.counts.sum())

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """(windows, leaves), each window's counts as parts of 1."""
        return self.counts / self.counts.sum(axis=1, keepdims=True)


def composition(
    order: IndexMap, *, leaves: int, positions: int, windows: int, max_drawn: int = MAX_DRAWN
) -> Composition:
    """Count the leaves at the first positions of a stream; a finite one goes on with its next pass.

    Args:
        order: The order of the stream.
        leaves: Number of leaves.
        positions: How many positions to look at.
        windows: In how many windows of (nearly) equal length; at most one a position.
        max_drawn: Where there are more positions, each window counts 16 evenly spread runs of them, so that about this
            many are counted.
    """
    windows = max(1, min(windows, positions))
    edges = np.array([positions * number // windows for number in range(windows + 1)], dtype=np.int64)
    counts = np.zeros((windows, leaves), np.int64)
    for number in range(windows):
        looked_at = _positions(int(edges[number]), int(edges[number + 1]), max(max_drawn // windows, _RUNS))
        leaf = np.zeros(looked_at.size, np.int32) if order.routes is None else order.routes.route(looked_at)[0]
        counts[number] = np.bincount(leaf, minlength=leaves)
    return Composition(edges=edges, counts=counts)


def _positions(start: int, stop: int, most: int) -> npt.NDArray[np.int64]:
    """All positions of a window, or runs of them that are `most` together."""
    if stop - start <= most:
        return np.arange(start, stop)
    length = most // _RUNS
    firsts = [start + (stop - start - length) * run // (_RUNS - 1) for run in range(_RUNS)]
    return np.concatenate([np.arange(first, first + length) for first in firsts])
