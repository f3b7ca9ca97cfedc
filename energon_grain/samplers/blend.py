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

Source of the split: Bresenham's line, as in error diffusion; lanes by Hermite's identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from energon_grain.samplers.columns import Array
from energon_grain.samplers.hashing import fold, fold_array
from energon_grain.samplers.routing import Routes
from energon_grain.samplers.share_tree import RUN, ShareTree, lane_phases, permute_run
from energon_grain.samplers.weights import LaneSchedule, integer_weights

_SEGMENT, _RUN = fold("segment"), fold("run")


class Blend:
    """An endless stream of positions of several children, in shares by weight, lane by lane: `j * L + l`.

    Args:
        schedule: `[(start, weights), ...]`: a weight for each child, which may be 0, but not in all segments. Decimal
            text has its exact value. `start` is a position of this blend (the first is 0), or the first round of the
            segment in each lane, int64 (L,). A segment that starts before an earlier one in a lane replaces it there.
            A later segment may have more children than earlier ones.
        lanes: L.
        key: 64-bit key, `fold(seed, node key, ...)`.

    Attributes:
        lanes: L.
        weights: integer weights of each segment.
        starts: first position of each segment; of one that begins at a round of each lane, the least.

    Raises:
        ConfigError: a weight would round to zero.
    """

    __slots__ = ("_firsts", "_latest", "_segments", "lanes", "starts", "weights")

    preserves_runs: ClassVar[bool] = False

    def __init__(self, schedule: LaneSchedule, *, lanes: int, key: int) -> None:
        self.lanes = lanes
        self.weights = tuple(integer_weights(weights) for _, weights in schedule)
        firsts = np.stack([lane_rounds(start, lanes) for start, _ in schedule])
        # A segment that an amendment overtook has no rounds in the lanes where it had not begun.
        self._firsts = np.minimum.accumulate(firsts[::-1])[::-1]
        self._latest = self._firsts.max(axis=1)
        self.starts = tuple(int((first * lanes + np.arange(lanes)).min()) for first in self._firsts)
        self._segments: list[_Segment] = []
        for number, (first, integers) in enumerate(zip(self._firsts, self.weights, strict=True)):
            counts = np.zeros((len(integers), lanes), dtype=np.uint64)
            if self._segments:
                before = self.counts_at(first)
                counts[: len(before)] = before
            self._segments.append(
                _Segment(ShareTree(len(integers)), integers, first, counts, _segment_key(key, number))
            )

    def route(self, position: npt.NDArray[np.int64]) -> Routes:
        """Return the child and the child position at each position (at least 0, any order)."""
        rounds = position // self.lanes
        lane = position - rounds * self.lanes
        if len(self._segments) == 1 or (rounds.size and rounds.min() >= self._latest[-1]):
            return self._segments[-1].route(lane, rounds)
        child = np.empty(position.size, dtype=np.int32)
        below = np.empty(position.size, dtype=np.int64)
        segment = self._segment_of(rounds, lane)
        for number in np.unique(segment):
            here = np.flatnonzero(segment == number)
            child[here], below[here] = self._segments[number].route(lane[here], rounds[here])
        return child, below

    def counts_at(self, rounds: npt.NDArray[np.int64]) -> Array:
        """Give how often each lane has each child before round `rounds[l]` of lane l, uint64 (children, L)."""
        lanes = np.arange(self.lanes)
        segment = self._segment_of(rounds, lanes)
        counts = np.zeros((len(self._segments[-1].before), self.lanes), dtype=np.uint64)
        for number in np.unique(segment):
            one, here = self._segments[number], segment == number
            own = one.before + one.counts(np.where(here, rounds - self._firsts[number], 0))
            counts[: len(own), here] = own[:, here]
        return counts

    def next_cut(self, position: int) -> int:
        """The position itself; see `CutRouter`."""
        return position

    def _segment_of(self, rounds: npt.NDArray[np.int64], lane: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Number of the segment of each round: the last one made so far that begins at or before it in its lane."""
        last = len(self._segments) - 1
        # Those that have begun in all lanes by then, and then one by one the few that have begun in this lane.
        segment = np.searchsorted(self._latest[: last + 1], rounds, side="right") - 1
        segment = np.maximum(segment, 0)
        while (later := (segment < last) & (self._firsts[np.minimum(segment + 1, last), lane] <= rounds)).any():
            segment += later
        return segment


def lane_rounds(start: int | npt.NDArray[np.int64], lanes: int) -> npt.NDArray[np.int64]:
    """The first round of each lane at or after a position, int64 (lanes,); rounds of lanes as they are."""
    if isinstance(start, np.ndarray):
        return start
    return (start - np.arange(lanes) + lanes - 1) // lanes


class _Segment:
    """Rounds with one set of weights."""

    __slots__ = ("_first", "_key", "_left", "_phase", "_total", "_tree", "before", "lanes")

    def __init__(
        self, tree: ShareTree, weights: Sequence[int], first: npt.NDArray[np.int64], counts: Array, key: int
    ) -> None:
        self.lanes = first.size
        self._tree, self._key = tree, key
        self._first = first  # first round of the segment in each lane, (L,)
        self.before = counts  # rounds of each child and lane before the segment, (K, L)
        before = np.concatenate([[0], np.cumsum(weights)]).astype(np.uint64)
        self._left = before[tree.middle] - before[tree.low]
        self._total = np.maximum(before[tree.high] - before[tree.low], np.uint64(1))
        phases = lane_phases(key, len(tree), self.lanes)
        self._phase = phases * self._total[:, None] // np.uint64(self.lanes)  # (nodes, L)

    def route(self, lane: npt.NDArray[np.int64], rounds: npt.NDArray[np.int64]) -> Routes:
        """Return child and child position of rounds of lanes."""
        if not lane.size:
            return np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
        rounds = rounds - self._first[lane]
        run = rounds // RUN
        lowest, highest = int(run.min()), int(run.max())
        if (
            highest - lowest + 1
        ) * self.lanes <= 2 * lane.size + 8 * self.lanes:  # nearly all runs in between are requested
            which = (run - lowest) * self.lanes + lane
            each = np.arange(lowest * self.lanes, (highest + 1) * self.lanes)
        else:
            each, which = np.unique(run * self.lanes + lane, return_inverse=True)
        label, rank = self._runs(each % self.lanes, (each // self.lanes).view(np.uint64))
        slot = rounds - run * RUN
        child = label[slot, which]
        rank = rank[slot, which] + self.before[child, lane]
        return child.astype(np.int32), rank.view(np.int64) * self.lanes + lane

    def counts(self, rounds: npt.NDArray[np.int64]) -> Array:
        """Return how often each lane has each child among its first `rounds` (L,) rounds, uint64 (K, L)."""
        lanes = np.arange(self.lanes)
        whole = rounds // RUN
        at = np.zeros((len(self._tree), self.lanes), dtype=np.uint64)
        at[0] = (whole * RUN).view(np.uint64)
        counts = np.zeros_like(self.before)
        for node in range(len(self._tree)):
            if self._tree.left[node] == node:
                counts[self._tree.low[node]] = at[node]
                continue
            to_left, _ = self._share(np.full(self.lanes, node), lanes, at[node])
            at[self._tree.left[node]], at[self._tree.right[node]] = to_left, at[node] - to_left
        label, _ = self._runs(lanes, whole.view(np.uint64))
        for slot in range(RUN):
            cut = np.flatnonzero(rounds - whole * RUN > slot)
            counts[label[slot, cut], cut] += np.uint64(1)
        return counts

    def _runs(self, lane: npt.NDArray[np.int64], run: Array) -> tuple[npt.NDArray[np.int64], Array]:
        """Return label and rank of the rounds of runs of lanes, (4, runs) each."""
        lanes = np.tile(lane, RUN)
        rounds = (run * np.uint64(RUN) + np.arange(RUN, dtype=np.uint64)[:, None]).reshape(-1)
        node = np.zeros(lanes.size, dtype=np.int64)
        for _ in range(self._tree.depth):
            to_left, is_left = self._share(node, lanes, rounds)
            rounds = np.where(is_left, to_left, rounds - to_left)
            node = np.where(is_left, self._tree.left[node], self._tree.right[node])
        shape = (RUN, lane.size)
        key = fold_array(self._key, _RUN, lane.view(np.uint64), run)
        return permute_run(self._tree.low[node].reshape(shape), rounds.reshape(shape), key)

    def _share(
        self, node: npt.NDArray[np.int64], lane: npt.NDArray[np.int64], rounds: Array
    ) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Return how many of a lane's first rounds at a node go left, and whether the round after them does."""
        left, total = self._left[node], self._total[node]
        whole = None
        if int(rounds.max()) >> 32:  # left * rounds could overflow: remove whole periods of `total` rounds
            whole = rounds // total
            rounds = rounds - whole * total
        sum_ = left * rounds + self._phase[node, lane]
        to_left = sum_ // total
        is_left = sum_ - to_left * total >= total - left
        return (to_left if whole is None else to_left + whole * left), is_left


def _segment_key(key: int, number: int) -> int:
    result = fold_array(key, _SEGMENT, number)
    assert isinstance(result, int)
    return result


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
        starts: first position of each segment.
    """

    __slots__ = ("_blend", "_width", "lanes", "starts", "weights")

    preserves_runs: ClassVar[bool] = False

    def __init__(self, blend: Blend, *, width: int) -> None:
        self._blend = blend
        self._width = width
        self.lanes = blend.lanes * width
        self.weights = blend.weights
        self.starts = tuple(start * width for start in blend.starts)

    def route(self, position: npt.NDArray[np.int64]) -> Routes:
        """Return the child and the child position at each position (at least 0, any order)."""
        child, step = self._blend.route(position // self._width)
        return child, step * self._width + position % self._width

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
