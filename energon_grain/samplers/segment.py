# SPDX-License-Identifier: Apache-2.0
"""A part of a blend with one set of weights: see `samplers.blend`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from energon_grain.errors import StateError
from energon_grain.samplers.columns import Array
from energon_grain.samplers.hashing import fold, fold_array
from energon_grain.samplers.routing import Routes
from energon_grain.samplers.share_tree import RUN, lane_phases, permute_run, round_of, share_tree
from energon_grain.samplers.weights import MAX_TOTAL, Anchor

_SEGMENT, _RUN = fold("segment"), fold("run")
_BITS = 8  # of a phase that is carried on
TAIL = RUN - 1
"""Rounds by which a smooth segment may begin later than it was asked for."""


class Segment:
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
                _BITS + 1
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
        phases = ((rest * lanes + lost) << np.uint64(_BITS)) // (total * lanes)
        return self.before + at[self._tree.leaves], phases

    @property
    def phases(self) -> Array | None:
        """Of a smooth segment, the argument `phases`."""
        return (self._phase << np.uint64(_BITS)) // self._total[:, None] if self._smooth else None

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

    def has_weight(self, child: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Whether children have any rounds."""
        return self._left[self._tree.leaves[child]] > 0

    def has_begun(
        self, child: npt.NDArray[np.int32], lane: npt.NDArray[np.int64], rank: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Whether rounds of children in lanes are at or after the beginning of the segment."""
        known = child < len(self.before)
        return known & (self.before[np.where(known, child, 0), lane] <= rank.view(np.uint64))

    def round_of(
        self, child: npt.NDArray[np.int32], lane: npt.NDArray[np.int64], rank: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Undo `route`: the rounds of lanes at which children with a weight have their rounds `rank`."""
        if not child.size:
            return np.empty(0, dtype=np.int64)
        own = rank.view(np.uint64) - self.before[child, lane]
        at = own
        for node, is_left in reversed(self._tree.path(child)):
            at = round_of(at, self._left[node], self._total[node], self._phase[node, lane], is_left)
        run = at // np.uint64(RUN)
        label, ranks = self._runs(lane, run)
        slot = ((label == child) & (ranks == own)).argmax(axis=0)
        return self._first[lane] + run.view(np.int64) * RUN + slot

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


class Tail:
    """The last rounds of each lane before an anchor, for lanes that have not reached it."""

    def __init__(self, anchor: Anchor) -> None:
        self._anchor, self._lanes = anchor, len(anchor.rounds)

    def route(self, position: npt.NDArray[np.int64]) -> Routes:
        """As `Blend.route`. Raises StateError for positions further before the anchor."""
        rounds, lane = np.divmod(position, self._lanes)
        slot, tail = self._slots(rounds, lane), self._anchor.tail
        child = tail[slot, lane]
        rank = self._anchor.counts[child, lane]
        for later in range(TAIL):
            rank = rank - ((later >= slot) & (tail[later, lane] == child))
        return child.astype(np.int32), rank * self._lanes + lane

    def counts_at(self, rounds: npt.NDArray[np.int64]) -> Array:
        """As `Blend.counts_at`, at most at the anchor. Raises as `route`."""
        lane = np.arange(self._lanes)
        slot, counts = self._slots(rounds, lane), self._anchor.counts.copy()
        for later in range(TAIL):
            here = np.flatnonzero(later >= slot)
            counts[self._anchor.tail[later, here], here] -= 1
        return counts.view(np.uint64)

    def position_of(self, child: npt.NDArray[np.int32], below: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """As `Blend.position_of`. Raises as `route`."""
        rank, lane = np.divmod(below, self._lanes)
        slot = np.full(below.size, -1 - TAIL, dtype=np.int64)
        left = self._anchor.counts[child, lane] - rank  # rounds of this child from here to the anchor
        for number in range(TAIL - 1, -1, -1):
            left = left - (self._anchor.tail[number, lane] == child)
            slot = np.where((left == 0) & (slot < -TAIL), number - TAIL, slot)
        rounds = self._anchor.rounds[lane] + slot
        self._slots(rounds, lane)
        return rounds * self._lanes + lane

    def _slots(self, rounds: npt.NDArray[np.int64], lane: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        slot = rounds - self._anchor.rounds[lane] + TAIL
        if (slot < 0).any():
            raise StateError(
                "the state has only the last changes of the mixture, and this step, or a sample that a lane holds, is "
                "from before them. States of save_state_rank and save_state_global and checkpoints have all changes"
            )
        return slot


def segment_key(key: int, number: int) -> int:
    """64-bit key of a segment of a blend."""
    result = fold_array(key, _SEGMENT, number)
    assert isinstance(result, int)
    return result
