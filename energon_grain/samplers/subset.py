"""Which raw samples of a split part belong to a leaf: a range of them, minus excluded ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, EmptyDatasetError


class Selection:
    """The samples [start, stop) of `total` raw ones, without excluded ones, renumbered 0, 1, 2, ... in raw order.

    The range counts raw samples, excluded ones too (as in Energon); `len` is the true number that is left. With
    `total=10, start=2, stop=8, excluded=[3, 9]` the raw samples are 2, 4, 5, 6, 7 and the length is 5.

    Attributes:
        total: number of raw samples in the split part.
        start: first raw sample of the range.
        stop: end of the range, exclusive.
        excluded: raw ranks inside the range that are left out, ascending, int64 (e,).
    """

    __slots__ = ("_kept_before", "excluded", "start", "stop", "total")

    def __init__(
        self,
        total: int,
        *,
        start: int = 0,
        stop: int | None = None,
        excluded: npt.NDArray[np.int64] | Sequence[int] = (),
    ) -> None:
        """Select a range.

        Args:
            total: number of raw samples.
            start: first raw sample of the range.
            stop: end of the range, exclusive; None is `total`.
            excluded: raw ranks in [0, total) to leave out, in any order, repeats allowed.

        Raises:
            ConfigError: the range or an excluded rank does not fit the raw samples.
            EmptyDatasetError: nothing is left.
        """
        stop = total if stop is None else stop
        if not 0 <= start <= stop <= total:
            raise ConfigError(f"subset [{start}, {stop}) of {total} samples: 0 <= start <= stop <= {total} must hold")
        ranks = np.asarray(excluded, dtype=np.int64)
        if ranks.size:
            ranks = np.unique(ranks)
            if not (ranks[0] >= 0 and ranks[-1] < total):
                bad = int(ranks[0] if ranks[0] < 0 else ranks[-1])
                raise ConfigError(f"excluded sample {bad} does not exist: there are {total} samples, numbered from 0")
            ranks = ranks[np.searchsorted(ranks, start) : np.searchsorted(ranks, stop)]
        if ranks.size >= stop - start:
            raise EmptyDatasetError(
                f"subset [{start}, {stop}) of {total} samples without {ranks.size} excluded ones is empty; "
                "widen the range or exclude less"
            )
        self.total = total
        self.start = start
        self.stop = stop
        self.excluded = ranks
        # Before excluded sample i of the range lie excluded[i] - start - i kept ones.
        self._kept_before = ranks - start - np.arange(ranks.size, dtype=np.int64)

    def __len__(self) -> int:
        return self.stop - self.start - int(self.excluded.size)

    def __repr__(self) -> str:
        return f"Selection({self.total}, start={self.start}, stop={self.stop}, excluded={self.excluded.size} samples)"

    def to_raw(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Give the raw ranks of samples of the selection.

        Args:
            indices: numbers in [0, len(self)), any shape; not checked.

        Returns:
            A new int64 array of the same shape, in [start, stop).
        """
        raw = indices + np.int64(self.start)
        if self.excluded.size:
            raw += np.searchsorted(self._kept_before, indices, side="right")
        return raw

    def from_raw(self, raw: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Undo `to_raw`; -1 where a raw rank is outside the range or excluded."""
        before = np.searchsorted(self.excluded, raw, side="left")
        out = raw - np.int64(self.start) - before
        outside = (raw < self.start) | (raw >= self.stop)
        if self.excluded.size:
            outside |= self.excluded[np.minimum(before, self.excluded.size - 1)] == raw
        return np.where(outside, np.int64(-1), out)
