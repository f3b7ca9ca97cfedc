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

from energon_grain.errors import StateError
from energon_grain.samplers.columns import Array
from energon_grain.samplers.hashing import fold, fold_array
from energon_grain.samplers.routing import Routes
from energon_grain.samplers.share_tree import RUN, lane_phases, permute_run, share_tree
from energon_grain.samplers.weights import MAX_TOTAL, Anchor, LaneSchedule, LaneStart, Smooth, Weight, integer_weights

_SEGMENT, _RUN = fold("segment"), fold("run")
_FINE = 8  # bits of a carried phase


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

    __slots__ = ("_firsts", "_key", "_latest", "_number", "_segments", "lanes", "weights")

    preserves_runs: ClassVar[bool] = False

    def __init__(self, schedule: LaneSchedule, *, lanes: int, key: int) -> None:
        self.lanes, self._key, self._number = lanes, key, 0
        self.weights: tuple[tuple[int, ...], ...] = tuple(integer_weights(weights) for _, weights in schedule)
        self._firsts = np.zeros((len(schedule), lanes), np.int64)  # first round of each segment in each lane
        self._latest = np.zeros(len(schedule), np.int64)  # the greatest of them
        self._segments: list[_Segment] = []
        for (start, _), weights in zip(schedule, self.weights, strict=True):
            self._append(start, weights)

    def amended(self, start: LaneStart, weights: Sequence[Weight]) -> Blend:
        """Return this blend with another segment. Both share the segments before it. Raises as the constructor."""
        blend = copy.copy(self)
        blend.weights = (*self.weights, integer_weights(weights))
        blend._firsts = np.concatenate([self._firsts, np.zeros((1, self.lanes), np.int64)])
        blend._latest = np.append(self._latest, 0)
        blend._segments = [*self._segments]
        blend._append(start, blend.weights[-1])
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
        key = _segment_key(self._key, self._number + number)
        self._segments.append(_Segment(weights, first, counts, key, phases))

    @property
    def starts(self) -> tuple[int, ...]:
        """First position of each segment; of one that begins at a round of each lane, the least."""
        return tuple((self._firsts * self.lanes + np.arange(self.lanes)).min(axis=1).tolist())

    def anchor(self, number: int) -> Anchor:
        """Return a start for a segment by which a blend goes on without the segments before it."""
        return self._segments[number].anchor(self._number + number)

    def route(self, position: npt.NDArray[np.int64]) -> Routes:
        """Return the child and the child position at each position (at least 0, any order).

        Raises StateError for positions before an `Anchor`.
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

    def _segment_of(self, rounds: npt.NDArray[np.int64], lane: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Number of the segment of each round: the last one made so far that begins at or before it in its lane."""
        last = len(self._segments) - 1
        # Those that have begun in all lanes by then, and then one by one the few that have begun in this lane.
        segment = np.searchsorted(self._latest[: last + 1], rounds, side="right") - 1
        segment = np.maximum(segment, 0)
        if self._number and (rounds < self._firsts[0, lane]).any():
            raise StateError(
                "the state has only the last changes of the mixture, and this step, or a sample that a lane holds, is "
                "from before them: restore a state of save_state_rank, save_state_global or a checkpoint, which have "
                "all of them"
            )
        while (later := (segment < last) & (self._firsts[np.minimum(segment + 1, last), lane] <= rounds)).any():
            segment += later
        return segment


def lane_rounds(start: LaneStart, lanes: int) -> npt.NDArray[np.int64]:
    """The first round of each lane at or after a position, int64 (lanes,); rounds of lanes as they are."""
    if isinstance(start, int):
        return (start - np.arange(lanes) + lanes - 1) // lanes
    return start if isinstance(start, np.ndarray) else start.rounds


class _Segment:
    """Rounds with one set of weights.

    Args:
        phases: 8 bits for each node and lane that a smooth segment carries on, (nodes, L); None: phases of its own.
    """

    __slots__ = ("_first", "_key", "_left", "_phase", "_smooth", "_total", "_tree", "before", "lanes")

    def __init__(
        self, weights: Sequence[int], first: npt.NDArray[np.int64], counts: Array, key: int, phases: Array | None
    ) -> None:
        self.lanes = first.size
        self._tree, self._key, self._smooth = share_tree(len(weights)), key, phases is not None
        tree = self._tree
        self._first = first  # first round of the segment in each lane, (L,)
        self.before = counts  # rounds of each child and lane before the segment, (K, L)
        # Phases of a node with few rounds are carried on without loss if its total is large.
        scale = 1 if phases is None else MAX_TOTAL // sum(weights)
        before = np.concatenate([[0], np.cumsum(weights)]).astype(np.uint64) * np.uint64(scale)
        self._left = before[tree.middle] - before[tree.low]
        self._total = np.maximum(before[tree.high] - before[tree.low], np.uint64(1 if phases is None else 1 << 16))
        if phases is None:
            self._phase = lane_phases(key, len(tree), self.lanes) * self._total[:, None] // np.uint64(self.lanes)
        else:
            self._phase = (phases.astype(np.uint64) * np.uint64(2) + np.uint64(1)) * self._total[:, None] >> np.uint64(
                _FINE + 1
            )

    def goes_on(self, rounds: npt.NDArray[np.int64], counts: Array) -> bool:
        """Whether a smooth segment may follow here: this one has begun, and has as many children."""
        return len(counts) == len(self.before) and bool((self._first - rounds < RUN).all())

    def ends_run(self, rounds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the first round of each lane at or after `rounds` that begins a run of this segment, (L,)."""
        return self._first + np.maximum(-(-(rounds - self._first) // RUN), 0) * RUN

    def carried(self, rounds: npt.NDArray[np.int64]) -> tuple[Array, Array]:
        """Return what a smooth segment begins with at rounds that begin runs: counts (K, L), phases (nodes, L)."""
        at = self._descended((rounds - self._first).view(np.uint64))
        _, rest = self._share(np.arange(len(at))[:, None], np.arange(self.lanes), at)
        total, lanes = self._total[:, None], np.uint64(self.lanes)
        lost = np.uint64(0)  # of a phase, when it was rounded down, in L-ths
        if not self._smooth:
            lost = lane_phases(self._key, len(at), self.lanes) * total % lanes
        phases = ((rest * lanes + lost) << np.uint64(_FINE)) // (total * lanes)
        return self.before + at[self._tree.leaves], phases

    def anchor(self, number: int) -> Anchor:
        """Return the beginning of this segment."""
        phases = (self._phase << np.uint64(_FINE)) // self._total[:, None] if self._smooth else None
        return Anchor(number=number, rounds=self._first, counts=self.before.view(np.int64), phases=phases)

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
        whole = rounds // RUN
        counts = self._descended((whole * RUN).view(np.uint64))[self._tree.leaves]
        over = rounds - whole * RUN
        if over.any():
            label, _ = self._runs(np.arange(self.lanes), whole.view(np.uint64))
            for slot in range(RUN):
                cut = np.flatnonzero(over > slot)
                counts[label[slot, cut], cut] += np.uint64(1)
        return counts

    def _descended(self, rounds: Array) -> Array:
        """Return the rounds of each node before a lane's first `rounds` (L,) rounds, whole runs, uint64 (nodes, L)."""
        tree, lanes = self._tree, np.arange(self.lanes)
        at = np.zeros((len(tree), self.lanes), dtype=np.uint64)
        at[0] = rounds
        for nodes in tree.levels:
            to_left, _ = self._share(nodes[:, None], lanes, at[nodes])
            at[tree.left[nodes]], at[tree.right[nodes]] = to_left, at[nodes] - to_left
        return at

    def _runs(self, lane: npt.NDArray[np.int64], run: Array) -> tuple[npt.NDArray[np.int64], Array]:
        """Return label and rank of the rounds of runs of lanes, (4, runs) each."""
        lanes = np.tile(lane, RUN)
        rounds = (run * np.uint64(RUN) + np.arange(RUN, dtype=np.uint64)[:, None]).reshape(-1)
        node = np.zeros(lanes.size, dtype=np.int64)
        for _ in range(self._tree.depth):
            to_left, rest = self._share(node, lanes, rounds)
            is_left = rest >= self._total[node] - self._left[node]
            rounds = np.where(is_left, to_left, rounds - to_left)
            node = np.where(is_left, self._tree.left[node], self._tree.right[node])
        shape = (RUN, lane.size)
        key = fold_array(self._key, _RUN, lane.view(np.uint64), run)
        return permute_run(self._tree.low[node].reshape(shape), rounds.reshape(shape), key)

    def _share(self, node: npt.NDArray[np.int64], lane: npt.NDArray[np.int64], rounds: Array) -> tuple[Array, Array]:
        """Return how many of a lane's first rounds at a node go left, and the remainder of that division."""
        left, total = self._left[node], self._total[node]
        whole = None
        if int(rounds.max()) >> 32:  # left * rounds could overflow: remove whole periods of `total` rounds
            whole = rounds // total
            rounds = rounds - whole * total
        sum_ = left * rounds + self._phase[node, lane]
        to_left = sum_ // total
        return (to_left if whole is None else to_left + whole * left), sum_ - to_left * total


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

    def anchor(self, number: int) -> Anchor:
        """See `Blend.anchor`, for L div width lanes."""
        return self._blend.anchor(number)

    def route(self, position: npt.NDArray[np.int64]) -> Routes:
        """Return the child and the child position at each position (at least 0, any order)."""
        child, step = self._blend.route(position // self._width)
        return child, step * self._width + position % self._width

    def counts_at(self, rounds: npt.NDArray[np.int64]) -> Array:
        """Give how often each lane has each child before round `rounds[l]` of lane l, uint64 (children, L).

        Lanes that share a choice count up to the latest of their rounds.
        """
        return np.repeat(self._blend.counts_at(self.shared_rounds(rounds, self._width)), self._width, axis=1)

    @staticmethod
    def shared_rounds(rounds: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int64]:
        """The latest round of each run of `width` lanes, int64 (L div width,)."""
        return rounds.reshape(-1, width).max(axis=1)
