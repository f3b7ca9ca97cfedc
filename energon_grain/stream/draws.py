"""Which sample each position stands for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


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

    def by_leaf(self) -> list[tuple[int, npt.NDArray[np.intp]]]:
        """Each leaf that is drawn, and the places of its draws in ascending order."""
        order = np.argsort(self.leaf, kind="stable")
        leaves = self.leaf[order]
        bounds = np.flatnonzero(np.diff(leaves)) + 1
        return [(int(self.leaf[places[0]]), places) for places in np.split(order, bounds) if len(places)]

    def __len__(self) -> int:
        return len(self.leaf)

    def __getitem__(self, places: slice | npt.NDArray[np.intp]) -> Draws:
        return Draws(
            leaf=self.leaf[places], child=self.child[places], index=self.index[places], epoch=self.epoch[places]
        )
