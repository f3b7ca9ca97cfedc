# SPDX-License-Identifier: Apache-2.0
"""The positions of a sample in an index map, in each pass over its leaf."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from energon_grain.amendments.exclusions import ExcludingMap
from energon_grain.errors import ConfigError, StateError
from energon_grain.history.prefixes import leaf_ends
from energon_grain.history.uses import Use
from energon_grain.planning.planned_packing import PlannedPacks
from energon_grain.samplers.leaf_order import LeafOrder
from energon_grain.stream.index_map import IndexMap

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Placed:
    """The places of a sample in the order.

    Attributes:
        item: (n,) position of its item, over all passes of the stream.
        position: (n,) position of the sample: the same, unless packs are planned; then in the order below the packs.
        child: (n,) position in the leaf's own stream.
        epoch: (n,) pass over the leaf.
        pack: (n,) place in the item; -1: the item is the sample.
    """

    item: Int64Array
    position: Int64Array
    child: Int64Array
    epoch: Int64Array
    pack: Int64Array

    def __len__(self) -> int:
        return len(self.item)

    def __getitem__(self, at: Int64Array) -> Placed:
        columns = {name: getattr(self, name)[at] for name in ("item", "position", "child", "epoch", "pack")}
        return Placed(**columns)

    def use(self, at: int, index: int) -> Use:
        """One of the places as a use, of which the step is not known yet."""
        pack = int(self.pack[at])
        return Use(
            key="",
            dataset="",
            leaf="",
            index=index,
            epoch=int(self.epoch[at]),
            position=int(self.position[at]),
            past=False,
            exact=False,
            pack=None if pack < 0 else pack,
        )


class SampleOrder:
    """Where an index map has the samples of one leaf.

    Args:
        order: The index map.
        leaf: Number of the leaf in it.
        leaf_order: Order of the leaf.
    """

    def __init__(self, order: IndexMap, leaf: int, leaf_order: LeafOrder) -> None:
        self._packs = order.planned if isinstance(order.planned, PlannedPacks) else None
        if order.planned is not None and self._packs is None:
            raise StateError(f"when: {type(order.planned).__name__} has no inverse")
        self._dropping = order if isinstance(order, ExcludingMap) else None
        self._order, self._leaf = order if self._packs is None else self._packs.child, leaf
        self.lap = leaf_order.passes if leaf_order.shuffle and not leaf_order.replacement else 1
        """Passes over the leaf that are shuffled as one."""

    def epochs_until(self, position: int) -> int:
        """The passes over the leaf, a whole number of laps, that items before a position can have begun."""
        if self._packs is not None:
            whole, _, rest = self._packs.taken(position)
            position = max(whole, int(rest.max(initial=-1)) + 1)
        end = leaf_ends(self._order.routes, position)[self._leaf]
        if end <= 0:
            return 0
        last = np.arange(max(0, end - self._order.table.lanes), end)
        return (int(self._order.table.draw(self._leaf, last)[1].max()) // self.lap + 1) * self.lap

    def items_of(self, index: int, epochs: Int64Array) -> Placed:
        """All places of a sample in some passes over its leaf, except where it is excluded.

        Raises StateError if the order has no inverse.
        """
        placed = self._in_order(index, epochs)
        if self._dropping is None:
            return placed
        return placed[np.flatnonzero(~self._dropping.drops(self._leaf, index, placed.item))]

    def _in_order(self, index: int, epochs: Int64Array) -> Placed:
        leaf = np.full(len(epochs), self._leaf, np.int32)
        try:
            child = self._order.table.position_of(leaf, np.full(len(epochs), index, np.int64), epochs)
            routes = self._order.routes
            position = child if routes is None else routes.position_of(leaf, child)
        except ConfigError as error:
            raise StateError(f"when: the order of this stream cannot be inverted: {error}") from error
        used = position >= 0
        position, child, epochs = position[used], child[used], epochs[used]
        if self._packs is None:
            pack = np.full(len(position), -1, np.int64)
            return Placed(item=position, position=position, child=child, epoch=epochs, pack=pack)
        packs = [(at, *found) for at, where in enumerate(position.tolist()) for found in self._packs.find(where)]
        at, item, pack = np.array(packs, np.int64).reshape(-1, 3).T
        return Placed(item=item, position=position[at], child=child[at], epoch=epochs[at], pack=pack)


def repeats_pass(order: IndexMap) -> bool:
    """Whether a stream has passes, and each has the positions of the first one."""
    return order.passes is not None and order.same_pass


def in_passes(order: IndexMap, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The pass of each position of a stream, (n,), and the number in it; pass 0 if the stream is endless."""
    if order.passes is None or order.same_pass:
        return np.zeros(len(positions), np.int64), positions
    passes = np.array(list(map(order.passes.epoch_at, positions.tolist())), np.int64)
    known, which = np.unique(passes, return_inverse=True)
    return passes, positions - np.array(list(map(order.start, known.tolist())), np.int64)[which]
