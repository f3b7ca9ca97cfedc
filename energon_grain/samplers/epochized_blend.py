# SPDX-License-Identifier: Apache-2.0
"""Blend children in epochs, each child a given number of times: the child and the child position at each position.

Child k has n_k samples and repetitions r_k, the exact fraction of the decimal text. Epoch e contains exactly the
positions floor(e * n_k * r_k) up to floor((e + 1) * n_k * r_k) of child k. So epochs are consecutive, and over many
epochs every sample of a child is used equally often. The lengths of epochs may differ by one per child.

Inside an epoch of N positions, place p belongs to round `p div L` of lane `p mod L`. At a node of the share tree with A
of its N_node positions to the left, of which lane l has those from C_l to C_{l+1}, lane l gets

    floor(A * C_{l+1} / N_node) - floor(A * C_l / N_node)   positions to the left.

So the totals are exact although lanes differ by one, and the positions of each child in a lane are one contiguous run.
Inside a lane, rounds are split, and runs of 4 rounds permuted, as in `blend`, with the lane's own shares. The last run
of a lane in an epoch may be shorter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError
from energon_grain.samplers.columns import Array, divide_product
from energon_grain.samplers.hashing import fold, fold_array
from energon_grain.samplers.routing import Routes
from energon_grain.samplers.share_tree import RUN, ShareTree, lane_phases, permute_run, round_of
from energon_grain.samplers.weights import Weight, epoch_lengths, exact, period

_PHASES, _RUN = fold("epochized phases"), fold("epochized run")


class EpochizedBlend:
    """A stream of epochs with exact counts of each child. Each lane uses contiguous runs of a child's positions.

    Args:
        lengths: samples of each child, at least 1.
        repetitions: how often each child is used per epoch, above 0. Decimal text has its exact value.
        lanes: L.
        key: 64-bit key, `fold(seed, node key, ...)`.

    Attributes:
        lanes: L.
        rates: average positions of each child per epoch: n_k * r_k.

    Raises:
        ConfigError: an epoch could be empty, or has more than 2**62 positions.
    """

    __slots__ = ("_key", "_pi", "_tree", "lanes", "rates")

    preserves_runs: ClassVar[bool] = True

    def __init__(self, lengths: Sequence[int], repetitions: Sequence[Weight], *, lanes: int, key: int) -> None:
        self.rates = tuple(n * exact(r, "repetitions") for n, r in zip(lengths, repetitions, strict=True))
        if not any(rate >= 1 for rate in self.rates):
            raise ConfigError(
                f"repetitions {list(repetitions)} of {list(lengths)} samples: an epoch could be empty; "
                "at least one child must have a sample in each epoch"
            )
        if sum(self.rates) > 1 << 62:
            raise ConfigError(f"repetitions of {list(lengths)} samples: an epoch would have more than 2**62 of them")
        self.lanes = lanes
        self._key = key
        self._tree = ShareTree(len(lengths))
        key_of_phases = fold_array(key, _PHASES)
        assert isinstance(key_of_phases, int)
        self._pi = lane_phases(key_of_phases, len(self._tree), lanes)

    def counts(self, epoch: int) -> tuple[int, ...]:
        """Return how many positions of each child an epoch holds."""
        return tuple(b - a for a, b in zip(self.firsts(epoch), self.firsts(epoch + 1), strict=True))

    def length(self, epoch: int) -> int:
        """Return how many positions an epoch holds."""
        return self.start(epoch + 1) - self.start(epoch)

    @property
    def period(self) -> int:
        """Return the number of epochs after which their lengths repeat."""
        return period(self.rates)

    def lengths(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """Return how many positions each of `count` epochs has, starting with epoch `first`."""
        return epoch_lengths(self.rates, first, count)

    def start(self, epoch: int) -> int:
        """Return the first position of an epoch."""
        return sum(self.firsts(epoch))

    def epoch_at(self, position: int) -> int:
        """Return the epoch that holds a position."""
        rate = sum(self.rates)
        low, high = math.floor(position / rate), math.ceil((position + len(self.rates) + 1) / rate)
        while high - low > 1:  # start(low) <= position < start(high)
            middle = (low + high) // 2
            low, high = (middle, high) if self.start(middle) <= position else (low, middle)
        return low

    def next_cut(self, position: int) -> int:
        """The start of the next epoch, or of this one at its start; see `CutRouter`."""
        return self.start(self.epoch_at(position - 1) + 1) if position else 0

    def route(self, position: npt.NDArray[np.int64]) -> Routes:
        """Return the child and the child position at each position (at least 0, any order)."""
        if not position.size:
            return np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
        lowest, highest = int(position.min()), int(position.max())
        first, last = self.epoch_at(lowest), self.epoch_at(highest)
        if last - first > position.size + 1:  # scattered over more epochs than positions: no table of all epochs
            child, below = np.empty(position.size, dtype=np.int32), np.empty(position.size, dtype=np.int64)
            late = position > (lowest + highest) // 2
            for half in (late, ~late):
                child[half], below[half] = self.route(position[half])
            return child, below
        return _Epochs(self, first, last).route(position)

    def position_of(self, child: npt.NDArray[np.int32], below: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `InvertibleRouter`."""
        position = np.empty(below.size, dtype=np.int64)
        if not below.size:
            return position
        epoch = self._epoch_of(child, below)
        first, last = int(epoch.min()), int(epoch.max())
        if last - first <= below.size + 1:
            return _Epochs(self, first, last).position_of(child, below, epoch - first)
        late = epoch > (first + last) // 2
        for half in (late, ~late):
            position[half] = self.position_of(child[half], below[half])
        return position

    def _epoch_of(self, child: npt.NDArray[np.int32], below: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the epoch that holds each child position."""
        epoch = np.empty(below.size, dtype=np.int64)
        for number in np.unique(child).tolist():
            here = np.flatnonzero(child == number)
            rate, places = self.rates[number], below[here] + 1
            fits = max(int(places.max()) * rate.denominator, rate.numerator) < 1 << 62
            places = places if fits else places.astype(object)
            epoch[here] = -(-places * rate.denominator // rate.numerator) - 1
        return epoch

    def firsts(self, epoch: int) -> list[int]:
        """Return the first position of each child in an epoch."""
        return [epoch * rate.numerator // rate.denominator for rate in self.rates]


class _Epochs:
    """The numbers of the epochs of a chunk."""

    def __init__(self, blend: EpochizedBlend, first: int, last: int) -> None:
        self._blend, self._tree = blend, blend._tree
        self._first = first
        rows = [blend.firsts(epoch) for epoch in range(first, last + 2)]
        self._firsts = np.array(rows, dtype=np.uint64)  # (E + 1, K)
        self._start = np.array([sum(row) for row in rows], dtype=np.int64)  # (E + 1,)
        counts = self._firsts[1:] - self._firsts[:-1]
        before = np.concatenate(
            [np.zeros((len(rows) - 1, 1), dtype=np.uint64), counts.cumsum(axis=1, dtype=np.uint64)], axis=1
        )
        self._all = before[:, self._tree.high] - before[:, self._tree.low]  # (E, nodes)
        self._left = before[:, self._tree.middle] - before[:, self._tree.low]
        self._longest = int(self._all[:, 0].max())

    def route(self, position: npt.NDArray[np.int64]) -> Routes:
        lanes = self._blend.lanes
        epoch = np.searchsorted(self._start, position, side="right") - 1
        place = position - self._start[epoch]
        rounds = place // lanes
        lane = place - rounds * lanes
        run = rounds // RUN
        runs = self._longest // lanes // RUN + 1
        each, which = np.unique((epoch * lanes + lane) * runs + run, return_inverse=True)
        label, below = self._runs(each // runs // lanes, each // runs % lanes, each % runs)
        slot = rounds - run * RUN
        return label[slot, which].astype(np.int32), below[slot, which].view(np.int64)

    def position_of(
        self, child: npt.NDArray[np.int32], below: npt.NDArray[np.int64], epoch: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Undo `route`, for child positions in numbered epochs."""
        at = below.view(np.uint64) - self._firsts[epoch, child]
        steps = [
            (self._left[epoch, node], self._all[epoch, node], node, is_left) for node, is_left in self._tree.path(child)
        ]
        lane = self._lane_of(at, epoch, steps)
        begin, end = self._bound(epoch, lane), self._bound(epoch, lane + 1)
        splits: list[tuple[Array, Array, Array, npt.NDArray[np.bool_]]] = []
        for left, total, node, is_left in steps:
            left_begin, left_end = divide_product(left, begin, total)[0], divide_product(left, end, total)[0]
            length = end - begin
            phase = length * self._blend._pi[node, lane] // np.uint64(self._blend.lanes)
            splits.append((left_end - left_begin, length, phase, is_left))
            begin = np.where(is_left, left_begin, begin - left_begin)
            end = np.where(is_left, left_end, end - left_end)
        at = at - begin
        for split in reversed(splits):
            at = round_of(at, *split)
        run = (at // np.uint64(RUN)).view(np.int64)
        label, places = self._runs(epoch, lane, run)
        slot = ((label == child) & (places == below.view(np.uint64))).argmax(axis=0)
        return self._start[epoch] + (run * RUN + slot) * self._blend.lanes + lane

    def _lane_of(
        self,
        at: Array,
        epoch: npt.NDArray[np.int64],
        steps: list[tuple[Array, Array, npt.NDArray[np.int64], npt.NDArray[np.bool_]]],
    ) -> npt.NDArray[np.int64]:
        """Return the lanes of places among a child's places in an epoch: runs of them, lane after lane."""
        low, high = np.zeros_like(epoch), np.full_like(epoch, self._blend.lanes)
        for _ in range(self._blend.lanes.bit_length()):
            lane = (low + high) // 2
            before = self._bound(epoch, lane)
            for left, total, _, is_left in steps:
                to_left = divide_product(left, before, total)[0]
                before = np.where(is_left, to_left, before - to_left)
            low, high = np.where(before <= at, lane, low), np.where(before <= at, high, lane)
        return low

    def _bound(self, epoch: npt.NDArray[np.int64], lane: npt.NDArray[np.int64]) -> Array:
        """Return how many positions of an epoch the lanes before a lane have."""
        total, lanes, number = self._all[epoch, 0], np.uint64(self._blend.lanes), lane.view(np.uint64)
        return number * (total // lanes) + np.minimum(number, total % lanes)

    def _runs(
        self, epoch: npt.NDArray[np.int64], lane: npt.NDArray[np.int64], run: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], Array]:
        """Return child and child position of the rounds of runs of lanes, (4, runs) each."""
        number = lane.view(np.uint64)
        begin, end = self._bound(epoch, lane), self._bound(epoch, lane + 1)
        size = np.minimum((end - begin).view(np.int64) - run * RUN, RUN)
        slots = np.arange(RUN)[:, None]
        rounds = np.minimum(run * RUN + slots, (end - begin).view(np.int64) - 1).view(np.uint64)
        node, at = self._descend(np.tile(epoch, RUN), np.tile(lane, RUN), rounds.reshape(-1), begin, end)
        beyond = slots >= size  # rounds that the last run of a lane does not have: labels that occur once
        label = np.where(beyond, len(self._tree) + slots, self._tree.low[node].reshape(beyond.shape))
        key = fold_array(self._blend._key, _RUN, (epoch + self._first).view(np.uint64), number, run.view(np.uint64))
        label, at = permute_run(label, at.reshape(beyond.shape), key, size)
        child = np.where(beyond, 0, label)
        return child, self._firsts[epoch, child] + at

    def _descend(
        self, epoch: npt.NDArray[np.int64], lane: npt.NDArray[np.int64], rounds: Array, begin: Array, end: Array
    ) -> tuple[npt.NDArray[np.int64], Array]:
        """Return the leaf of the share tree for rounds of lanes, and the place among the child's in this epoch."""
        node = np.zeros(epoch.size, dtype=np.int64)
        begin, end = np.tile(begin, RUN), np.tile(end, RUN)
        for _ in range(self._tree.depth):
            left, total = self._left[epoch, node], self._all[epoch, node]
            left_begin, left_end = divide_product(left, begin, total)[0], divide_product(left, end, total)[0]
            to_left, length = left_end - left_begin, end - begin
            phase = length * self._blend._pi[node, lane] // np.uint64(self._blend.lanes)
            before, rest = divide_product(to_left, rounds, length, phase)
            is_left = rest >= length - to_left  # then one more round means one more to the left
            rounds = np.where(is_left, before, rounds - before)
            begin = np.where(is_left, left_begin, begin - left_begin)
            end = np.where(is_left, left_end, end - left_end)
            node = np.where(is_left, self._tree.left[node], self._tree.right[node])
        return node, begin + rounds
