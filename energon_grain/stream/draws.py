"""Which sample each position stands for."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from energon_grain.sources.source import Source


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Draws:
    """One draw a position.

    Attributes:
        leaf: (n,) number of the leaf.
        child: (n,) position in the leaf's own stream.
        index: (n,) sample in the leaf.
        epoch: (n,) pass over the leaf.
    """

    leaf: npt.NDArray[np.int32]
    child: npt.NDArray[np.int64]
    index: npt.NDArray[np.int64]
    epoch: npt.NDArray[np.int64]

    def by_leaf(self) -> list[tuple[int, npt.NDArray[np.intp], Draws]]:
        """Each leaf that is drawn, the places of its draws in ascending order, and these draws."""
        return self.by(self.leaf)

    def by(self, numbers: npt.NDArray[np.int32]) -> list[tuple[int, npt.NDArray[np.intp], Draws]]:
        """The same for each of other numbers, one a draw."""
        order = np.argsort(numbers, kind="stable")
        found, draws = numbers[order], self[order]
        cuts = [0, *(np.flatnonzero(np.diff(found)) + 1).tolist(), len(order)]
        parts = [slice(begin, end) for begin, end in pairwise(cuts) if begin < end]
        return [(int(found[part.start]), order[part], draws[part]) for part in parts]

    def __len__(self) -> int:
        return len(self.leaf)

    def __getitem__(self, places: slice | npt.NDArray[np.intp]) -> Draws:
        return Draws(
            leaf=self.leaf[places], child=self.child[places], index=self.index[places], epoch=self.epoch[places]
        )


def draw_sizes(draws: Draws, sources: list[Source]) -> npt.NDArray[np.int64]:
    """(n,) bytes that reading each draw takes."""
    if len(sources) == 1:
        return sources[0].sizes(draws.index)
    sizes = np.empty(len(draws), np.int64)
    for leaf, places, own in draws.by_leaf():
        sizes[places] = sources[leaf].sizes(own.index)
    return sizes
