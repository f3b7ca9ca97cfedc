# SPDX-License-Identifier: Apache-2.0
"""Permuting the positions of a child inside windows: the effect of a shuffle buffer, without a buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from energon_grain.samplers.hashing import fold_array
from energon_grain.samplers.permutation import Permutation, permute, unpermute
from energon_grain.samplers.routing import Routes


class Passes(Protocol):
    """The passes of a finite stream among all its positions."""

    def start(self, epoch: int) -> int:
        """First position of a pass."""
        ...

    def length(self, epoch: int) -> int:
        """Positions of a pass."""
        ...

    def epoch_at(self, position: int) -> int:
        """Pass of a position."""
        ...

    @property
    def period(self) -> int:
        """Number of passes after which their lengths repeat."""
        ...

    def lengths(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """Positions of each of `count` passes, starting with pass `first`."""
        ...


@dataclass(frozen=True, slots=True)
class WindowShuffle:
    """One child, whose positions are permuted in windows of `window` consecutive ones.

    Windows begin with the stream, or with each of its passes. The last window of a pass is shorter, so a pass has the
    same samples as without the shuffle. The child's lanes are mixed.

    Attributes:
        window: positions of a window, at least 1.
        key: 64-bit key, `fold(seed, node key, ...)`.
        passes: passes of the child; None: it is endless.
    """

    preserves_runs: ClassVar[bool] = False
    window: int
    key: int
    passes: Passes | None

    def route(self, position: npt.NDArray[np.int64]) -> Routes:
        """Return child 0 and its position at each position (at least 0, any order)."""
        return np.zeros(position.size, dtype=np.int32), self._mixed(position, permute)

    def position_of(self, child: npt.NDArray[np.int32], below: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `InvertibleRouter`."""
        return self._mixed(below, unpermute)

    def _mixed(self, position: npt.NDArray[np.int64], by: Permutation) -> npt.NDArray[np.int64]:
        if not position.size:
            return position
        if self.passes is None:
            size = np.full(position.size, self.window, dtype=np.int64)
            first = position // self.window * self.window
        else:
            first, size = self._in_passes(position, self.passes)
        return first + by(position - first, size, fold_array(self.key, first.view(np.uint64)))

    def next_cut(self, position: int) -> int:
        """The end of the window of the position before; see `CutRouter`."""
        if self.passes is None or not position:
            return -(-position // self.window) * self.window
        start, size = self._in_passes(np.array([position - 1]), self.passes)
        return int(start[0] + size[0])

    def _in_passes(
        self, position: npt.NDArray[np.int64], passes: Passes
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """First position and size of each position's window."""
        # Positions of a chunk are close together: a few passes, unless passes are very short.
        low, high = passes.epoch_at(int(position.min())), passes.epoch_at(int(position.max()))
        if high - low > position.size + 1:
            numbers = sorted({passes.epoch_at(place) for place in position.tolist()})
        else:
            numbers = list(range(low, high + 1))
        starts = np.array([passes.start(number) for number in numbers], dtype=np.int64)
        lengths = np.array([passes.length(number) for number in numbers], dtype=np.int64)
        which = np.searchsorted(starts, position, side="right") - 1
        start, length = starts[which], lengths[which]
        first = (position - start) // self.window * self.window
        return start + first, np.minimum(self.window, length - first)
