"""What nodes above the leaves have in common: they route positions to positions of children. And trees of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Routes = tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]
"""Where positions lead: number of the child, int32 (k,), and position in the child's own stream, int64 (k,)."""


class Router(Protocol):
    """An index map from the positions of a node to those of its children: pure, of whole chunks, in any order."""

    @property
    def hands_down_runs(self) -> bool:
        """Whether each lane's positions of a child are one contiguous run; else lanes stay interleaved."""
        ...

    def route(self, position: npt.NDArray[np.int64]) -> Routes:
        """Give the child and the child position at each position (at least 0, any order)."""
        ...


class RouteTree:
    """Routers on top of each other: from positions of the root to leaves.

    Leaves are numbered from left to right. The number of routers costs time, the number of leaves hardly does. A
    `Blend` below an `EpochizedBlend` would still draw every position once, but without keeping lanes together:
    multiply repetitions down the tree and make it flat instead.

    Attributes:
        leaves: number of leaves.
        runs: for each leaf, whether a router above it hands down runs: then `LeafOrder.runs` must be set.
    """

    __slots__ = ("_children", "_router", "leaves", "runs")

    def __init__(self, router: Router, children: Sequence[RouteTree | None]) -> None:
        """Put a router over its children, in order; None is a leaf."""
        self._router = router
        self._children: list[tuple[int, RouteTree | None]] = []  # with the number of the first leaf
        runs: list[bool] = []
        for child in children:
            self._children.append((len(runs), child))
            runs += [router.hands_down_runs or below for below in (child.runs if child else (False,))]
        self.runs = tuple(runs)
        self.leaves = len(runs)

    def route(self, position: npt.NDArray[np.int64]) -> Routes:
        """Give the leaf and the position in its stream at each position (at least 0, any order)."""
        child, below = self._router.route(position)
        first = np.array([leaf for leaf, _ in self._children], dtype=np.int32)
        leaf = first[child]
        for number, (start, tree) in enumerate(self._children):
            here = np.flatnonzero(child == number) if tree else ()
            if tree and len(here):
                leaves, below[here] = tree.route(below[here])
                leaf[here] = start + leaves
        return leaf, below
