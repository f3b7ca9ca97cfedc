# SPDX-License-Identifier: Apache-2.0
"""Blend children by weights: the child and the child position at each position. Endless.

Positions are distributed over L lanes: p is round `p div L` of lane `p mod L`. Each lane splits its rounds among the
children on its own. At a node of the share tree with integer weights A to the left and T in total, lane l assigns

    floor((A * r + phi_l) / T)   of its first r rounds to the left,   phi_l = floor(T * pi(l) / L),

where pi is a keyed permutation of the lanes for each node. At the root, the lanes' shares add up to
floor(A * r * L / T): exact over all lanes, and within one round in each. This determines the label (child) of each
round, and its rank, the number of earlier rounds of that lane with that label. Within runs of 4 rounds of a lane, the
labels are then permuted by a key; ranks stay ascending. Round j of child k in lane l is the child's position
`j * L + l`: a child, too, sees its lanes advance together, each without gaps.

After any number of positions, the count of a child differs from its share by a few items (at most 18 were observed for
2 to 100 children at L = 48, for any length), and a child's lanes differ by a few rounds (at most 3 for 2 children, 7
for 100). The boundary between two passes over a leaf inside a blend is inexact by that much. A weight counts
*attempted* positions: samples that are dropped later, or packs of several samples, are not compensated.

With a *schedule*, the weights change at given positions of this blend. Each segment starts new runs at each lane's next
round, and each child continues at its position. A weight may be 0 inside a segment.

Each such start has new phases, so after many of them the counts of children have made a random walk. A *smooth* segment
begins at the end of each lane's run of 4, at most 3 rounds later, and continues the divisions. The next phase of a node
is floor(T' * (2 c + 1) / 512), where c = floor(256 * ((A * r + phi) mod T) / T), 8 bits, is the remainder of its last
division. So no error adds up (about 20 items after 500 changes).

Source of the split: Bresenham's line, as in error diffusion; lanes by Hermite's identity.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from energon_grain.samplers.columns import Array
from energon_grain.samplers.routing import Routes
from energon_grain.samplers.segment import TAIL, Segment, Tail, segment_key
from energon_grain.samplers.weights import Anchor, LaneSchedule, LaneStart, Smooth, Weight, integer_weights

_KEPT = 128  # segments whose tables, some 10 KB each, a running blend keeps at least


class Blend:
    """An endless stream of positions of several children, in shares by weight, lane by lane: `j * L + l`.

    Args:
        schedule: `[(start, weights), ...]`: a weight for each child, which may be 0, but not in all segments. Decimal
            text has its exact value. `start` is a position of this blend (the first is 0), or the first round of the
            segment in each lane, int64 (L,), also as `Smooth`; or an `Anchor`, as the first. A segment that starts
            before an earlier one in a lane replaces it there. A later segment may have more children than earlier ones.
        lanes: L.
        key: 64-bit key, `fold(seed, node key, ...)`.

    Attributes:
        lanes: L.
        weights: integer weights of each segment.

    Raises:
        ConfigError: a weight would round to zero.
    """

    __slots__ = ("_before", "_firsts", "_key", "_latest", "_number", "_schedule", "_segments", "lanes", "weights")

    preserves_runs: ClassVar[bool] = False

    def __init__(self, schedule: LaneSchedule, *, lanes: int, key: int) -> None:
        self.lanes, self._key = lanes, key
        self.weights = tuple(integer_weights(weights) for _, weights in schedule)
        self._schedule = [(start, weights) for (start, _), weights in zip(schedule, self.weights, strict=True)]
        self._before: Blend | Tail | None = None  # what is before an anchor, once it is asked for
        self._number = 0  # of segments before an anchor
        self._firsts = np.zeros((len(schedule), lanes), np.int64)  # first round of each segment in each lane
        self._latest = np.zeros(len(schedule), np.int64)  # the greatest of them
        self._segments: list[Segment] = []
        for start, weights in self._schedule:
            self._append(start, weights)

    def amended(self, start: LaneStart, weights: Sequence[Weight]) -> Blend:
        """Return this blend with another segment. Both share the segments before it. Raises as the constructor."""
        blend, integers = copy.copy(self), integer_weights(weights)
        gone = len(self._segments) - _KEPT if len(self._segments) >= 2 * _KEPT else 0
        schedule = self._schedule[gone:]
        if gone:  # made again if old positions are asked for
            schedule[0] = self.anchor(self._number + gone, self._schedule[:gone]), schedule[0][1]
            blend._number, blend._before = self._number + gone, None
        blend.weights = (*self.weights[gone:], integers)
        blend._schedule = [*schedule, (start, integers)]
        blend._firsts = np.concatenate([self._firsts[gone:], np.zeros((1, self.lanes), np.int64)])
        blend._latest = np.append(self._latest[gone:], 0)
        blend._segments = self._segments[gone:]
        blend._append(start, integers)
        return blend

    def _append(self, start: LaneStart, weights: tuple[int, ...]) -> None:
        number, phases = len(self._segments), None
        first = lane_rounds(start, self.lanes)
        counts = np.zeros((len(weights), self.lanes), dtype=np.uint64)
        last = self._segments[-1] if number else None
        if isinstance(start, Anchor):
            self._number, before, phases = start.number, start.counts.view(np.uint64), start.phases
        elif isinstance(start, Smooth) and last is not None and last.goes_on(first, counts):
            first = last.ends_run(first)
            before, phases = last.carried(first)
        else:
            before = counts[:0] if last is None else self.counts_at(first)
        counts[: len(before)] = before
        self._firsts[number], self._latest[number] = first, first.max()
        # A segment that this one overtakes has no rounds in the lanes where it had not begun.
        for earlier in range(number - 1, -1, -1):
            if (self._firsts[earlier] <= first).all():
                break
            self._firsts[earlier] = np.minimum(self._firsts[earlier], first)
            self._latest[earlier] = self._firsts[earlier].max()
        key = segment_key(self._key, self._number + number)
        self._segments.append(Segment(weights, first, counts, key, phases))

    @property
    def starts(self) -> tuple[int, ...]:
        """First position of each segment; of one that begins at a round of each lane, the least."""
        return tuple((self._firsts * self.lanes + np.arange(self.lanes)).min(axis=1).tolist())

    def anchor(self, number: int, earlier: LaneSchedule = ()) -> Anchor:
        """Return a start for segment `number` by which a blend goes on without `earlier`, the segments before it."""
        first, segment = self._firsts[number - self._number], self._segments[number - self._number]
        rounds = np.maximum(first + np.arange(-TAIL, 0)[:, None], 0)
        tail, _ = self.route((rounds * self.lanes + np.arange(self.lanes)).reshape(-1))
        return Anchor(
            number=number,
            rounds=first,
            counts=self.counts_at(first)[: len(segment.before)].view(np.int64),
            tail=tail.reshape(TAIL, -1).astype(np.int64),
            phases=segment.phases,
            earlier=earlier,
        )

    def _past(self) -> Blend | Tail:
        """The segments before an anchor, or the last rounds of them."""
        if self._before is None:
            start, _ = self._schedule[0]
            assert isinstance(start, Anchor)
            self._before = Blend(start.earlier, lanes=self.lanes, key=self._key) if start.earlier else Tail(start)
        return self._before

    def route(self, position: npt.NDArray[np.int64]) -> Routes:
        """Return the child and the child position at each position (at least 0, any order).

        Raises StateError for positions more than three rounds before an `Anchor` without `earlier`.
        """
        rounds = position // self.lanes
        lane = position - rounds * self.lanes
        if len(self._segments) + self._number == 1 or (rounds.size and rounds.min() >= self._latest[-1]):
            return self._segments[-1].route(lane, rounds)
        child = np.empty(position.size, dtype=np.int32)
        below = np.empty(position.size, dtype=np.int64)
        segment = self._segment_of(rounds, lane)
        for number in np.unique(segment):
            here = np.flatnonzero(segment == number)
            if number < 0:
                child[here], below[here] = self._past().route(position[here])
            else:
                child[here], below[here] = self._segments[number].route(lane[here], rounds[here])
        return child, below

    def position_of(self, child: npt.NDArray[np.int32], below: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `InvertibleRouter`. A child without weight from some segment on has no further positions."""
        rank = below // self.lanes
        lane = below - rank * self.lanes
        position = np.full(below.size, -1, dtype=np.int64)
        left = np.arange(below.size)
        for segment in reversed(self._segments):  # the last one that begins before a round holds it
            if left.size:
                begun = segment.has_begun(child[left], lane[left], rank[left])
                here = left[begun]
                here = here[segment.has_weight(child[here])]
                rounds = segment.round_of(child[here], lane[here], rank[here])
                position[here] = rounds * self.lanes + lane[here]
                left = left[~begun]
        if left.size and self._number:
            position[left] = self._past().position_of(child[left], below[left])
        return position

    def counts_at(self, rounds: npt.NDArray[np.int64]) -> Array:
        """Give how often each lane has each child before round `rounds[l]` of lane l, uint64 (children, L)."""
        lanes = np.arange(self.lanes)
        segment = self._segment_of(rounds, lanes)
        counts = np.zeros((len(self._segments[-1].before), self.lanes), dtype=np.uint64)
        for number in np.unique(segment):
            here = segment == number
            if number < 0:
                own = self._past().counts_at(np.where(here, rounds, self._firsts[0]))
            else:
                one = self._segments[number]
                own = one.before + one.counts(np.where(here, rounds - self._firsts[number], 0))
            counts[: len(own), here] = own[:, here]
        return counts

    def next_cut(self, position: int) -> int:
        """The position itself; see `CutRouter`."""
        return position

    def _segment_of(self, rounds: npt.NDArray[np.int64], lane: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Number of the segment of each round: the last one made so far that begins at or before it in its lane.

        -1: it is before an anchor.
        """
        last = len(self._segments) - 1
        # Those that have begun in all lanes by then, and then one by one the few that have begun in this lane.
        segment = np.searchsorted(self._latest[: last + 1], rounds, side="right") - 1
        segment = np.maximum(segment, 0)
        while (later := (segment < last) & (self._firsts[np.minimum(segment + 1, last), lane] <= rounds)).any():
            segment += later
        return np.where(rounds < self._firsts[0, lane], -1, segment) if self._number else segment


def lane_rounds(start: LaneStart, lanes: int) -> npt.NDArray[np.int64]:
    """The first round of each lane at or after a position, int64 (lanes,); rounds of lanes as they are."""
    if isinstance(start, int):
        return (start - np.arange(lanes) + lanes - 1) // lanes
    return start if isinstance(start, np.ndarray) else start.rounds


class StepBlend:
    """A blend that assigns `width` consecutive positions to one child.

    It is the blend of L div width lanes, each of which represents `width` lanes. So with any number of hosts that
    divides the width, each step has a single child, and every lane has its child's rounds 0, 1, 2, … without gaps.

    Args:
        blend: with L div width lanes; its schedule counts steps of `width` positions.
        width: positions that share a choice, at least 1.

    Attributes:
        lanes: L.
        weights: integer weights of each segment.
    """

    __slots__ = ("_blend", "_width", "lanes", "weights")

    preserves_runs: ClassVar[bool] = False

    def __init__(self, blend: Blend, *, width: int) -> None:
        self._blend = blend
        self._width = width
        self.lanes = blend.lanes * width
        self.weights = blend.weights

    @property
    def starts(self) -> tuple[int, ...]:
        """First position of each segment."""
        return tuple(start * self._width for start in self._blend.starts)

    def amended(self, start: npt.NDArray[np.int64] | Smooth, weights: Sequence[Weight]) -> StepBlend:
        """See `Blend.amended`. The start is a round of each of the L lanes."""
        rounds = self.shared_rounds(lane_rounds(start, self.lanes), self._width)
        inner = self._blend.amended(Smooth(rounds) if isinstance(start, Smooth) else rounds, weights)
        return StepBlend(inner, width=self._width)

    def anchor(self, number: int, earlier: LaneSchedule = ()) -> Anchor:
        """See `Blend.anchor`, for L div width lanes."""
        return self._blend.anchor(number, earlier)

    def route(self, position: npt.NDArray[np.int64]) -> Routes:
        """Return the child and the child position at each position (at least 0, any order)."""
        child, step = self._blend.route(position // self._width)
        return child, step * self._width + position % self._width

    def position_of(self, child: npt.NDArray[np.int32], below: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `InvertibleRouter`."""
        step = self._blend.position_of(child, below // self._width)
        return np.where(step < 0, -1, step * self._width + below % self._width)

    def counts_at(self, rounds: npt.NDArray[np.int64]) -> Array:
        """Give how often each lane has each child before round `rounds[l]` of lane l, uint64 (children, L).

        Lanes that share a choice count up to the latest of their rounds.
        """
        return np.repeat(self._blend.counts_at(self.shared_rounds(rounds, self._width)), self._width, axis=1)

    def next_cut(self, position: int) -> int:
        """The next multiple of the width; see `CutRouter`."""
        return -(-position // self._width) * self._width

    @staticmethod
    def shared_rounds(rounds: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int64]:
        """The latest round of each run of `width` lanes, int64 (L div width,)."""
        return rounds.reshape(-1, width).max(axis=1)
