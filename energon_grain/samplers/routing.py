# SPDX-License-Identifier: Apache-2.0
"""Routers: nodes above the leaves map their positions to positions of children. Also trees of routers.

This module has the simplest ones, concatenations and limited passes, which are arithmetic on positions.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError
from energon_grain.samplers.fold import Carry, SavedCarries

Routes = tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]
"""Targets of positions: number of the child, int32 (k,), and position in the child's own stream, int64 (k,)."""


class Router(Protocol):
    """An index map from the positions of a node to those of its children: pure, for whole chunks, in any order."""

    preserves_runs: ClassVar[bool]
    """Whether each lane's positions of a child are one contiguous run. Otherwise lanes stay interleaved."""

    def route(self, position: npt.NDArray[np.int64]) -> Routes:
        """Return the child and the child position at each position (at least 0, any order)."""
        ...


@runtime_checkable
class InvertibleRouter(Router, Protocol):
    """A router that finds the position of a child's position."""

    def position_of(self, child: npt.NDArray[np.int32], below: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Undo `route`: the position of each child position (at least 0, any order), int64 (k,); -1: it has none."""
        ...


@runtime_checkable
class FoldingRouter(Router, Protocol):
    """A router that is a fold over windows of its positions: its result at a position depends on earlier ones."""

    def anchor(self, position: int) -> Carry:
        """See `Fold.anchor`."""
        ...

    def remember(self, carry: Carry, position: int, saved: SavedCarries) -> None:
        """Continue from the carry of a state at `position`. Raises ValueError if it does not belong to it."""
        ...

    def counts(self, carry: Carry) -> Sequence[int]:
        """Positions of each child before a carry."""
        ...


@runtime_checkable
class CutRouter(Router, Protocol):
    """A router that can begin again with other weights or more children, or above one that does.

    Whatever begins there, the targets of all earlier positions stay what they are. `Blend` can even begin at another
    round of each lane (`Blend.counts_at`); a router that mixes lanes needs one position for all.
    """

    def next_cut(self, position: int) -> int:
        """The first position, at or after this one, at which it can begin again. Child 0's for a shuffle."""
        ...


_SOON = 4096
"""Number of positions that are inspected to locate the children."""


class RouteTree:
    """A tree of routers, from positions of the root to leaves.

    Leaves are numbered from left to right. Time depends on the number of routers, and hardly on the number of leaves. A
    `Blend` below an `EpochizedBlend` would still draw every position once, but without keeping lanes together:
    multiply repetitions down the tree and flatten it instead.

    Attributes:
        leaves: number of leaves.
        runs: for each leaf, whether a router above it preserves runs: then `LeafOrder.runs` must be set.
        folds: whether a router of the tree is a fold.
    """

    __slots__ = ("_children", "_numbers", "_router", "folds", "leaves", "runs")

    def __init__(self, router: Router, children: Sequence[RouteTree | None]) -> None:
        """Combine a router with its children, in order. None is a leaf."""
        self._router = router
        self._numbers: npt.NDArray[np.int32] | None = None
        self._children: list[tuple[int, RouteTree | None]] = []  # with the number of the first leaf
        runs: list[bool] = []
        for child in children:
            self._children.append((len(runs), child))
            runs += [router.preserves_runs or below for below in (child.runs if child else (False,))]
        self.runs = tuple(runs)
        self.leaves = len(runs)
        self.folds = isinstance(router, FoldingRouter) or any(child is not None and child.folds for child in children)

    @property
    def router(self) -> Router:
        """The router of the root."""
        return self._router

    @property
    def children(self) -> list[RouteTree | None]:
        """The children of the root; None is a leaf."""
        return [tree for _, tree in self._children]

    def route(self, position: npt.NDArray[np.int64]) -> Routes:
        """Return the leaf and the position in its stream at each position (at least 0, any order)."""
        child, below = self._router.route(position)
        first = np.array([leaf for leaf, _ in self._children], dtype=np.int32)
        leaf = first[child]
        for number, (start, tree) in enumerate(self._children):
            here = np.flatnonzero(child == number) if tree else ()
            if tree and len(here):
                leaves, below[here] = tree.route(below[here])
                leaf[here] = start + leaves
        return leaf if self._numbers is None else self._numbers[leaf], below

    def numbered(self, numbers: npt.NDArray[np.intp]) -> RouteTree:
        """Return the same tree with other numbers of its leaves, from left to right; several may have the same."""
        other = copy.copy(self)
        other._numbers = numbers.astype(np.int32)
        return other

    def over(self, router: Router, children: Sequence[RouteTree | None]) -> RouteTree:
        """Return a tree with another router and children, and the same numbers of leaves."""
        tree = RouteTree(router, children)
        tree._numbers = self._numbers
        return tree

    def position_of(self, leaf: npt.NDArray[np.int32], below: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Undo `route`: the position of each position in a leaf's stream, int64 (k,); -1: it has none.

        Raises ConfigError if a router of the tree is not an `InvertibleRouter`.
        """
        if self._numbers is None:
            return self._position_of(leaf, below)
        position = np.full(below.size, -1, dtype=np.int64)
        for place, number in enumerate(self._numbers.tolist()):
            here = np.flatnonzero((leaf == number) & (position < 0))
            position[here] = self._position_of(np.full(len(here), place, np.int32), below[here])
        return position

    def _position_of(self, leaf: npt.NDArray[np.int32], below: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if not isinstance(self._router, InvertibleRouter):
            raise ConfigError(f"{type(self._router).__name__} has no `position_of`, so positions cannot be found")
        child = np.searchsorted([first for first, _ in self._children], leaf, side="right") - 1
        below = below.copy()
        for number, (start, tree) in enumerate(self._children):
            here = np.flatnonzero(child == number) if tree else ()
            if tree and len(here):
                below[here] = tree.position_of(leaf[here] - np.int32(start), below[here])
        known = np.flatnonzero(below >= 0)
        position = np.full(below.size, -1, dtype=np.int64)
        position[known] = self._router.position_of(child[known].astype(np.int32), below[known])
        return position

    def carries(self, position: int) -> list[Carry]:
        """For each fold of the tree, in a fixed order, a carry from which this and later positions can be routed."""
        if not self.folds:
            return []
        found = [self._router.anchor(position)] if isinstance(self._router, FoldingRouter) else []
        for first, (_, tree) in zip(self._firsts(position, found), self._children, strict=True):
            found += tree.carries(first) if tree else []
        return found

    def _firsts(self, position: int, own: Sequence[Carry]) -> Sequence[int]:
        """Lower limit on the position of each child, at a position and with the router's own carry, if it is a fold."""
        if isinstance(self._router, FoldingRouter):
            return self._router.counts(own[0])
        # Lanes may be a little behind each other. A carry that is earlier than necessary only costs time.
        child, below = self._router.route(np.arange(position, position + _SOON))
        firsts = np.full(len(self._children), np.iinfo(np.int64).max)
        np.minimum.at(firsts, child, below)
        return [max(0, first - _SOON) if first < 1 << 62 else 0 for first in firsts.tolist()]

    def remember(self, saved: SavedCarries, position: int) -> None:
        """Restore the result of `carries` at a position, from the same tree in any process.

        Raises ValueError if there are too few, or they belong to another tree or position.
        """
        if not self.folds:
            return
        own = [saved.next(1)] if isinstance(self._router, FoldingRouter) else []
        for first, (_, tree) in zip(self._firsts(position, own), self._children, strict=True):
            if tree:
                tree.remember(saved, first)
        if isinstance(self._router, FoldingRouter):
            self._router.remember(own[0], position, saved)


@dataclass(frozen=True, slots=True)
class Concat:
    """Children one after the other. After the last one, the first continues with its next pass.

    Position p is place `p mod N` of pass `p div N`, where N is the sum of the lengths. Place q of child k is its
    position `pass * length_k + q`. With lengths 3 and 2: children 0 0 0 1 1 0 0 0 1 1, child positions 0 1 2 0 1 3 4 5
    2 3. Lanes stay interleaved, though shifted by an offset.

    Attributes:
        lengths: positions of each child in a pass, at least 1.
    """

    preserves_runs: ClassVar[bool] = False
    lengths: Sequence[int]

    def route(self, position: npt.NDArray[np.int64]) -> Routes:
        """Return the child and the child position at each position (at least 0, any order)."""
        ends = np.cumsum(self.lengths, dtype=np.int64)
        turn = position // ends[-1]
        place = position - turn * ends[-1]
        child = np.searchsorted(ends, place, side="right")
        lengths = np.array(self.lengths, dtype=np.int64)
        below = place - (ends - lengths)[child] + turn * lengths[child]
        return child.astype(np.int32), below

    def position_of(self, child: npt.NDArray[np.int32], below: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `InvertibleRouter`."""
        ends, lengths = np.cumsum(self.lengths, dtype=np.int64), np.array(self.lengths, dtype=np.int64)[child]
        return below + below // lengths * (ends[-1] - lengths) + (ends[child] - lengths)


@dataclass(frozen=True, slots=True)
class Limit:
    """The first `limit` positions of each pass of `length` over one child. The rest of each pass is skipped.

    Position p is the child's position `(p div limit) * length + p mod limit`. With limit 2 and length 5: 0 1 5 6 10 11.
    Lanes stay interleaved, though shifted by an offset.

    Attributes:
        limit: positions in a limited pass, 1 to `length`.
        length: positions of the child in a pass.
    """

    preserves_runs: ClassVar[bool] = False
    limit: int
    length: int

    def route(self, position: npt.NDArray[np.int64]) -> Routes:
        """Return child 0 and its position at each position (at least 0, any order)."""
        return np.zeros(position.size, dtype=np.int32), position + position // self.limit * (self.length - self.limit)

    def position_of(self, child: npt.NDArray[np.int32], below: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `InvertibleRouter`. A position that is cut off has none."""
        turn = below // self.length
        return np.where(below - turn * self.length < self.limit, below - turn * (self.length - self.limit), -1)
