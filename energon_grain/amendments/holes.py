# SPDX-License-Identifier: Apache-2.0
"""A leaf whose lanes pass over excluded samples: from positions without holes to positions of the leaf.

Lane l of a leaf draws the samples of its rounds 0, 1, 2, …. If samples are excluded from a round of each lane on, their
rounds are *holes*, and the lane goes on with the next round that is none. With hole i of a lane at round h_i (i = 0, 1,
2, … ascending), its j-th draw is at round

    j + #{i : h_i - i <= j}

because h_i - i of the rounds before hole i are draws. The holes of a lap are where the inverse of the leaf's order puts
the excluded samples. The order of all other samples stays, nothing repeats, and draws before the exclusion are where
they were.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from energon_grain.errors import AmendmentError
from energon_grain.samplers.leaf_order import LeafOrder, LeafTable
from energon_grain.samplers.routing import Routes

Int64Array = npt.NDArray[np.int64]
_HOLES_AT_ONCE = 1 << 12
"""Holes found at once: as many laps as that takes, at least one."""
_KEPT = 4
NEVER = -1
"""In place of a position: the sample is not drawn."""


@dataclass(frozen=True, slots=True, eq=False)
class _Stretch:
    """Consecutive laps.

    Attributes:
        number: Of the stretch.
        before: (L,) holes of each lane before it.
        starts: (L,) draws of each lane before it.
        ends: The same at its end.
        low: The least of `starts`.
        span: Larger than all draws of a lane here.
        slots: Draws before each hole, plus `span` times its lane, ascending.
        rounds: (holes,) round of each hole.
        first: (L + 1,) first hole of each lane.
    """

    number: int
    before: Int64Array
    starts: Int64Array
    ends: Int64Array
    low: int
    span: int
    slots: Int64Array
    rounds: Int64Array
    first: Int64Array

    def holes(self, draws: Int64Array, lane: Int64Array) -> Int64Array:
        """Holes of a lane until its draw number `draws`, (n,)."""
        at = lane * self.span + np.clip(draws - self.low + 1, 0, self.span - 1)
        return np.searchsorted(self.slots, at, side="right") - self.first[lane] + self.before[lane]


def can_close(order: LeafOrder, lanes: int, samples: Int64Array) -> bool:
    """Whether lanes of a leaf can pass over excluded samples.

    They cannot with replacement, where a sample has no own place; and where each lane reads a contiguous run.

    Raises AmendmentError if the leaf is not shuffled, and all samples that some lane gets are excluded.
    """
    if order.replacement or order.runs:
        return False
    if order.shuffle:
        return True
    classes = math.gcd(order.n, lanes)  # lane l of L draws the samples i with i mod gcd(n, L) = l mod gcd(n, L)
    if (np.bincount(samples % classes, minlength=classes) == order.n // classes).any():
        raise AmendmentError(
            f"exclude: the dataset keeps its order, so one of the {lanes} lanes gets only samples that would be "
            f"excluded, every {classes}-th one; shuffle the dataset, or leave one of these samples"
        )
    return True


class Holes:
    """A router with one child, a leaf: its positions are those of the leaf without excluded samples. Thread-safe.

    Takes about 0.3 us per excluded sample and lap of the leaf, once, and 10 ns per position.

    Args:
        order: Order of the leaf, for which `can_close` holds.
        lanes: L.
        excluded: Samples of the leaf, int64 (k,), each in one entry only; and the first draw of each lane, int64 (L,),
            at which they are left out. Later entries begin at the same draws or later.
        begins: Rounds of the leaf at which they are left out, if they are known, (entries, L).
    """

    preserves_runs: ClassVar[bool] = False

    def __init__(
        self,
        order: LeafOrder,
        lanes: int,
        excluded: Sequence[tuple[Int64Array, Int64Array]],
        *,
        begins: Int64Array | None = None,
    ) -> None:
        self._arguments = order, lanes, tuple(excluded)
        self.lanes, self._table = lanes, LeafTable([order], lanes)
        self._passes = order.passes if order.shuffle else 1
        self._samples = np.concatenate([samples for samples, _ in excluded])
        self._entry = np.repeat(np.arange(len(excluded)), [len(samples) for samples, _ in excluded])
        self._ascending = np.argsort(self._samples)
        laps = max(1, _HOLES_AT_ONCE // max(1, self._passes * len(self._samples)))
        self._laps, self._length = laps, laps * order.n * self._passes
        self._begins = np.zeros((len(excluded), lanes), np.int64) if begins is None else begins  # rounds of the leaf
        for number, (_, begin) in enumerate(excluded if begins is None else ()):
            before = Holes(order, lanes, excluded[:number], begins=self._begins[:number]) if number else None
            self._begins[number] = begin if before is None else before.rounds(begin, np.arange(lanes))
        self._lock = threading.Lock()
        self._before = [np.zeros(lanes, np.int64)]  # of each stretch
        self._latest = [0]  # the largest of `starts`
        self._kept: dict[int, _Stretch] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Holes, self._arguments

    def route(self, position: Int64Array) -> Routes:
        """Return child 0 and its position at each position (at least 0, any order)."""
        draws = position // self.lanes
        lane = position - draws * self.lanes
        child = np.zeros(position.size, np.int32)
        if not position.size:
            return child, position
        low, high = int(draws.min()), int(draws.max())
        stretch = self._at(low)
        if int(stretch.ends.min()) > high:
            return child, self._inside(stretch, position, draws, lane, (low, high))
        return child, self.rounds(draws, lane) * self.lanes + lane

    def _inside(
        self, stretch: _Stretch, position: Int64Array, draws: Int64Array, lane: Int64Array, ends: tuple[int, int]
    ) -> Int64Array:
        """Positions of the leaf, where all draws are in one stretch: most lanes have no hole between two draws."""
        lanes = np.arange(self.lanes)
        first, last = (stretch.holes(np.full(self.lanes, draw), lanes) for draw in ends)
        child = position + (first * self.lanes)[lane]
        more = first != last
        if more.any():
            here = np.flatnonzero(more[lane])
            child[here] = position[here] + stretch.holes(draws[here], lane[here]) * self.lanes
        return child

    def rounds(self, draws: Int64Array, lane: Int64Array) -> Int64Array:
        """The round of the leaf at which a lane has a draw, (n,) each."""
        stretch = self._at(int(draws.min()))
        holes, high = stretch.holes(draws, lane), int(draws.max())
        while int(stretch.ends.min()) <= high:
            stretch = self._stretch(stretch.number + 1)
            here = np.flatnonzero(draws >= stretch.starts[lane])
            holes[here] = stretch.holes(draws[here], lane[here])
        return draws + holes

    def position_of(self, child: npt.NDArray[np.int32], below: Int64Array) -> Int64Array:
        """Undo `route`: the position of each position of the leaf, (n,); `NEVER` where it is a hole."""
        del child  # there is one
        rounds = below // self.lanes
        lane = below - rounds * self.lanes
        found = np.full(below.size, NEVER, np.int64)
        drawn = np.flatnonzero(~self._is_hole(below, rounds, lane))
        stretches = below[drawn] // self._length
        for number in np.unique(stretches).tolist():
            here = drawn[stretches == number]
            draws = self._draws(self._stretch(number), rounds[here], lane[here])
            found[here] = draws * self.lanes + lane[here]
        return found

    def before(self, rounds: Int64Array) -> Int64Array:
        """The holes of each lane l before round `rounds[l]`, (L,): their positions in the leaf."""
        parts = [np.zeros(0, np.int64)]
        for number in range(-(-int(rounds.max()) * self.lanes // self._length)):
            stretch = self._stretch(number)
            lane = np.repeat(np.arange(self.lanes), np.diff(stretch.first))
            here = stretch.rounds < rounds[lane]
            parts.append(stretch.rounds[here] * self.lanes + lane[here])
        return np.concatenate(parts)

    def _is_hole(self, below: Int64Array, rounds: Int64Array, lane: Int64Array) -> npt.NDArray[np.bool_]:
        """Whether positions of the leaf are passed over. Takes no time for the laps before them."""
        index, _ = self._table.draw(0, below)
        place = np.searchsorted(self._samples, index, sorter=self._ascending)
        which = self._ascending[np.minimum(place, len(self._samples) - 1)]
        return (self._samples[which] == index) & (rounds >= self._begins[self._entry[which], lane])

    def used(self, entry: int) -> int:
        """How many samples of an entry were drawn in the lap that was in progress where it begins."""
        begin = self._begins[entry]
        lap = int((begin * self.lanes + np.arange(self.lanes)).min()) // (self._length // self._laps)
        epochs = np.arange(lap * self._passes, (lap + 1) * self._passes)
        samples = np.tile(self._samples[self._entry == entry], len(epochs))
        child = self._table.position_of(0, samples, np.repeat(epochs, len(samples) // len(epochs)))
        return len(np.unique(samples[child // self.lanes < begin[child % self.lanes]]))

    def _draws(self, stretch: _Stretch, rounds: Int64Array, lane: Int64Array) -> Int64Array:
        """Draws of a lane before rounds of a stretch that are no holes."""
        span = int(stretch.rounds.max(initial=0)) + 2
        keys = np.repeat(np.arange(self.lanes), np.diff(stretch.first)) * span + stretch.rounds
        place = np.searchsorted(keys, lane * span + np.minimum(rounds, span - 1))
        return rounds - stretch.before[lane] - (place - stretch.first[lane])

    def _at(self, draw: int) -> _Stretch:
        """The last stretch that every lane has begun at a draw."""
        while self._latest[-1] <= draw:
            self._stretch(len(self._latest) - 1)
        return self._stretch(int(np.searchsorted(self._latest, draw, side="right")) - 1)

    def _stretch(self, number: int) -> _Stretch:
        """A stretch. Those before it are counted first, once."""
        with self._lock:
            while (counted := len(self._before) - 1) < number:
                self._made(counted)
            found = self._kept.get(number)
            return self._made(number) if found is None else found

    def _made(self, number: int) -> _Stretch:
        before, lanes = self._before[number], np.arange(self.lanes)
        first_lap = number * self._laps
        epochs = np.arange(first_lap * self._passes, (first_lap + self._laps) * self._passes)
        child = self._table.position_of(0, np.tile(self._samples, len(epochs)), np.repeat(epochs, len(self._samples)))
        entry = np.tile(self._entry, len(epochs))
        rounds = child // self.lanes
        lane = child - rounds * self.lanes
        real = np.flatnonzero(rounds >= self._begins[entry, lane])
        real = real[np.lexsort((rounds[real], lane[real]))]
        rounds, lane = rounds[real], lane[real]
        first = np.searchsorted(lane, np.arange(self.lanes + 1))
        holes = before + np.diff(first)
        starts = (number * self._length - lanes + self.lanes - 1) // self.lanes - before
        ends = ((number + 1) * self._length - lanes + self.lanes - 1) // self.lanes - holes
        low = int(starts.min())
        span = int(ends.max()) - low + 2
        slots = rounds - before[lane] - (np.arange(len(lane)) - first[lane])
        made = _Stretch(number, before, starts, ends, low, span, lane * span + slots - low + 1, rounds, first)
        if number + 1 == len(self._before):
            self._latest.append(int(ends.max()))
            self._before.append(holes)
        self._kept[number] = made
        if len(self._kept) > _KEPT:
            self._kept.pop(next(iter(self._kept)))
        return made
