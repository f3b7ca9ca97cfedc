# SPDX-License-Identifier: Apache-2.0
"""From positions in a stream to draws: routing to leaves, the start of each pass, and the sample at each position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from energon_grain.samplers.fold import Carry, SavedCarries
from energon_grain.samplers.leaf_order import LeafTable
from energon_grain.samplers.routing import RouteTree
from energon_grain.samplers.weights import epoch_lengths, period
from energon_grain.samplers.window_shuffle import Passes
from energon_grain.sources.source import Source

_MANY = 64
_SMALL = 1 << 12
_KEPT = 1 << 20


PASS_BITS = 36
"""Planned items of pass e are numbered from e · 2**36, because the end of a pass is known only once it is planned."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Items:
    """Which draws belong to one item, if items of several samples are planned.

    Attributes:
        cuts: (n + 1,) first draw of each item.
        number: (n,) number of the item in its stream, which keys random numbers.
        maker: (n,) index of the stream's `ItemSpec` that makes the item; -1: the item is its only sample.
        starts: (draws,) first unit of a sample that belongs to the item.
        stops: (draws,) one past the last unit.
    """

    cuts: npt.NDArray[np.int64]
    number: npt.NDArray[np.int64]
    maker: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]

    def owner(self) -> npt.NDArray[np.int64]:
        """(draws,) index of the item of each draw."""
        return np.repeat(np.arange(len(self.number)), np.diff(self.cuts))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Draws:
    """Draws, one per position, or several if items are planned. Lengths and slices count items.

    Attributes:
        leaf: (n,) number of the leaf.
        child: (n,) position in the leaf's own stream.
        index: (n,) sample in the leaf.
        epoch: (n,) pass over the leaf.
        items: Grouping of draws into items; None: each draw is an item.
    """

    leaf: npt.NDArray[np.int32]
    child: npt.NDArray[np.int64]
    index: npt.NDArray[np.int64]
    epoch: npt.NDArray[np.int64]
    items: Items | None = None

    @property
    def members(self) -> Draws:
        """All draws, each as its own item."""
        return self if self.items is None else self._at(slice(None), None)

    def by_leaf(self) -> list[tuple[int, npt.NDArray[np.intp], Draws]]:
        """Each drawn leaf, the indices of its draws in ascending order, and these draws."""
        return self.by(self.leaf)

    def by(self, numbers: npt.NDArray[np.int32]) -> list[tuple[int, npt.NDArray[np.intp], Draws]]:
        """As `by_leaf`, for other numbers, one per draw. An index is that of the draw's item."""
        order = np.argsort(numbers, kind="stable")
        found, draws = numbers[order], self._at(order, None)
        cuts = [0, *(np.flatnonzero(np.diff(found)) + 1).tolist(), len(order)]
        parts = [slice(begin, end) for begin, end in pairwise(cuts) if begin < end]
        places = order if self.items is None else self.items.owner()[order]
        return [(int(found[part.start]), places[part], draws[part]) for part in parts]

    def __len__(self) -> int:
        return len(self.leaf) if self.items is None else len(self.items.number)

    def __getitem__(self, places: slice | npt.NDArray[np.intp]) -> Draws:
        if self.items is None:
            return self._at(places, None)
        items = self.items
        begin, sizes = items.cuts[:-1][places], np.diff(items.cuts)[places]
        cuts = np.append(0, np.cumsum(sizes))
        own = np.repeat(begin - cuts[:-1], sizes) + np.arange(cuts[-1])
        return self._at(
            own,
            Items(
                cuts=cuts,
                number=items.number[places],
                maker=items.maker[places],
                starts=items.starts[own],
                stops=items.stops[own],
            ),
        )

    def _at(self, places: slice | npt.NDArray[np.intp], items: Items | None) -> Draws:
        return Draws(
            leaf=self.leaf[places],
            child=self.child[places],
            index=self.index[places],
            epoch=self.epoch[places],
            items=items,
        )

    @classmethod
    def joined(cls, draws: Sequence[Draws]) -> Draws:
        if len(draws) == 1:
            return draws[0]
        parts = [each.items or each._each_alone() for each in draws] if any(each.items for each in draws) else []
        before = np.cumsum([0, *(len(each.leaf) for each in draws)])
        cuts = [part.cuts[:-1] + begin for part, begin in zip(parts, before, strict=False)]
        return cls(
            leaf=np.concatenate([part.leaf for part in draws]),
            child=np.concatenate([part.child for part in draws]),
            index=np.concatenate([part.index for part in draws]),
            epoch=np.concatenate([part.epoch for part in draws]),
            items=None
            if not parts
            else Items(
                cuts=np.concatenate([*cuts, before[-1:]]),
                number=np.concatenate([part.number for part in parts]),
                maker=np.concatenate([part.maker for part in parts]),
                starts=np.concatenate([part.starts for part in parts]),
                stops=np.concatenate([part.stops for part in parts]),
            ),
        )

    def _each_alone(self) -> Items:
        nothing = np.zeros(len(self.leaf), np.int64)
        cuts, maker = np.arange(len(self.leaf) + 1), np.full(len(self.leaf), -1, np.int32)
        return Items(cuts=cuts, number=nothing, maker=maker, starts=nothing, stops=nothing)


class Sources(list[Source]):
    """The sources of all leaves, in order.

    With many leaves, each is drawn only a few times at once, and calling each source for the sizes of its samples takes
    longer than drawing them. So the sizes of small sources are cached in one table of at most 8 MiB.
    """

    _known: npt.NDArray[np.int64] | None = None
    """(samples of small leaves,) bytes to read for each sample; -1: unknown."""
    _first: npt.NDArray[np.int64]
    """(leaves + 1,) start of each leaf in the table; large leaves have length 0."""

    def sizes(self, draws: Draws) -> npt.NDArray[np.int64]:
        """(n,) bytes to read for each item."""
        if draws.items is not None:
            totals = np.append(0, np.cumsum(self.sizes(draws.members)))
            return np.diff(totals[draws.items.cuts])
        if len(self) == 1:
            return self[0].sizes(draws.index)
        if len(self) >= _MANY:
            return self._of_many(draws)
        sizes = np.empty(len(draws), np.int64)
        self._ask(draws, np.arange(len(draws)), sizes)
        return sizes

    def _of_many(self, draws: Draws) -> npt.NDArray[np.int64]:
        if self._known is None:
            counts = np.array([len(source) for source in self], np.int64)
            counts[(counts > _SMALL) | (np.cumsum(np.minimum(counts, _SMALL)) > _KEPT)] = 0
            self._first = np.concatenate([[0], np.cumsum(counts)])
            self._known = np.full(int(self._first[-1]) + 1, -1, np.int64)
        known = self._known
        first = self._first[draws.leaf]
        kept = self._first[draws.leaf + 1] > first
        at = np.where(kept, first + draws.index, len(known) - 1)  # the last entry is always -1
        sizes = known[at]
        unknown = sizes < 0
        if unknown.any():
            for leaf in np.unique(draws.leaf[unknown & kept]).tolist():
                begin, end = self._first[leaf : leaf + 2].tolist()
                known[begin:end] = self[leaf].sizes(np.arange(end - begin))
            sizes = known[at]
            self._ask(draws, np.flatnonzero(~kept), sizes)
        return sizes

    def _ask(self, draws: Draws, places: npt.NDArray[np.intp], sizes: npt.NDArray[np.int64]) -> None:
        """Fill in the sizes of some draws, leaf by leaf."""
        for leaf, own_places, own in draws[places].by_leaf():
            sizes[places[own_places]] = self[leaf].sizes(own.index)


Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FractionalPasses:
    """Passes of a fractional number of samples. Each continues where the last one ended, and they add up exactly."""

    samples: int | Fraction

    def start(self, epoch: int) -> int:
        return math.floor(epoch * self.samples)

    def length(self, epoch: int) -> int:
        return self.start(epoch + 1) - self.start(epoch)

    def epoch_at(self, position: int) -> int:
        return -(-(position + 1) // self.samples) - 1

    @property
    def period(self) -> int:
        return period((self.samples,))

    def lengths(self, first: int, count: int) -> Int64Array:
        return epoch_lengths((self.samples,), first, count)


@dataclass(frozen=True, slots=True)
class EqualPasses(FractionalPasses):
    """Passes of equal length."""

    samples: int


class ItemMap(Protocol):
    """Planned items of several samples each, as a function of positions."""

    def draw(self, positions: Int64Array) -> Draws:
        """Draws of positions in the sequence of all passes."""
        ...

    def next_cut(self, position: int) -> tuple[int, int]:
        """The first item, at or after this one, that can be planned from other samples; and the first such sample."""
        ...

    @property
    def child(self) -> IndexMap:
        """The order of the samples."""
        ...

    def carries(self, position: int) -> list[Carry]: ...

    def remember(self, saved: SavedCarries, position: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IndexMap:
    """The order of a stream, as arithmetic.

    Attributes:
        routes: Maps positions to leaves and their own positions; None: a single leaf.
        table: Draws of all leaves.
        passes: Passes of a finite stream; None: endless.
        same_pass: Whether every pass repeats the first one.
        samples: Positions of the first pass; endless: of one pass over the repeated data.
        planned: Positions are those of planned items of several samples; None: of samples.
    """

    routes: RouteTree | None
    table: LeafTable
    passes: Passes | None
    same_pass: bool
    samples: int
    planned: ItemMap | None = None

    @property
    def planned_passes(self) -> bool:
        """Whether the length of a pass is known only once it is planned. Passes are then inspected one by one."""
        return self.planned is not None and not isinstance(self.passes, EqualPasses | None) and not self.same_pass

    def length(self, pass_number: int) -> int | None:
        """Positions of a pass; None: endless."""
        return None if self.passes is None else self.passes.length(self._counted(pass_number))

    @property
    def period(self) -> int:
        """For a finite stream: the number of passes after which their lengths repeat."""
        assert self.passes is not None
        return 1 if self.same_pass else self.passes.period

    def lengths(self, first: int, count: int) -> Int64Array:
        """Positions of each of `count` passes of a finite stream, starting with pass `first`."""
        assert self.passes is not None
        return np.full(count, self.passes.length(0)) if self.same_pass else self.passes.lengths(first, count)

    def start(self, pass_number: int) -> int:
        """First position of a pass in the sequence of all passes; 0 if the stream is endless or repeats one pass."""
        return 0 if self.passes is None else self.passes.start(self._counted(pass_number))

    def draw(self, positions: Int64Array, pass_number: int) -> Draws:
        """Draws of positions of one pass.

        Args:
            positions: (n,) in [0, length); if the stream is endless, any from 0.
            pass_number: Number of the pass; ignored if the stream is endless.
        """
        return self.draw_in_stream(positions + self.start(pass_number))

    def draw_in_stream(self, positions: Int64Array) -> Draws:
        """Draws of positions in the sequence of all passes."""
        if self.planned is not None:
            return self.planned.draw(positions)
        if self.routes is None:
            leaf, child = np.zeros(len(positions), np.int32), positions
        else:
            leaf, child = self.routes.route(positions)
        return self.draw_children(leaf, child)

    def draw_children(self, leaf: npt.NDArray[np.int32], child: Int64Array) -> Draws:
        """Draws of positions in the leaves' own streams."""
        index, epoch = self.table.draw(leaf, child)
        return Draws(leaf=leaf, child=child, index=index, epoch=epoch)

    def carries(self, position: int) -> list[Carry]:
        """The carries to continue all folds from, at a position in the sequence of all passes. See `samplers.fold`."""
        if self.planned is not None:
            return self.planned.carries(position)
        return [] if self.routes is None else self.routes.carries(position)

    @property
    def folds(self) -> bool:
        """Whether the order contains folds."""
        return self.planned is not None or (self.routes is not None and self.routes.folds)

    def remember(self, saved: SavedCarries, position: int) -> None:
        """Restore the result of `carries` at a position. Raises ValueError if it is of another order or position."""
        if self.planned is not None:
            self.planned.remember(saved, position)
        elif self.routes is not None:
            self.routes.remember(saved, position)

    def _counted(self, pass_number: int) -> int:
        return 0 if self.same_pass else pass_number
