# SPDX-License-Identifier: Apache-2.0
"""Blend children by cost: weights are shares of sample costs (such as tokens), not of sample counts. Endless.

Each child's items are laid out on its own axis, with lengths equal to their costs; the position of an item is its
middle. Two children of weights a and b are merged by (middle / weight), in exact integers. In every prefix, each child
is off its share of the cost by at most half of the largest item, because a threshold t cuts the axes at a t and b t,
and an item is taken when the cut has passed its middle. More children are merged in pairs, down the Huffman tree of
their weights, where each child inherits its share of the error of its pair. (Merging all children at once by their
middles would fail: a hundred equal children request their first item at the same time, and a further child with half of
the cost falls behind by 50 items.) A keyed coin decides which side goes first at equal positions, so equal costs do not
form a pattern that hosts could fall in step with.

Errors nearly always add up to less than the largest item. If an item would put a child further from its share than the
largest item so far, another item replaces it: among the children that are not ahead, from the one that would be too far
behind first. Merging continues from there. In every prefix, no child is therefore further from its share than the
largest item. (A search for the worst weights of items with equal costs found up to 0.7 % more, and never more for other
items.) Relative to the largest item so far, the distance may be slightly larger before the first large item.

Example: child a of weight 1 has items of cost 3, child b of weight 2 has items of cost 1. The middles over the weights
are 1.5, 4.5, ... and 0.25, 0.75, ..., and the first items are `b b b a b b b b b b a`.

It is a fold (`samplers.fold`): windows of a few thousand items are merged at once, with a count and a sum per child as
carry. Child positions are assigned in ascending order, which mixes a child's lanes: any host reads from all blocks of a
shuffle in blocks.

Source: the deficits of fair queueing (Demers, Keshav, Shenker, SIGCOMM 1989), with shares of pairs as in `blend`.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError
from energon_grain.samplers.fold import Carry, Fold, SavedCarries
from energon_grain.samplers.hashing import fold, fold_array
from energon_grain.samplers.routing import Routes
from energon_grain.samplers.weights import Schedule, integer_weights

ChildCosts = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]
"""Costs of (n,) positions of a child; pure, 0 or more."""
Int64Array = npt.NDArray[np.int64]

_WINDOW = 8192
"""Approximate items per merge. With more than a hundred children: enough items per child to amortise calls."""
_OF_A_CHILD = 64
_FETCHED_AT_ONCE = 4096
"""Costs of a child that are fetched at once."""
_SEEN_FIRST = 1024
_IN_64_BITS = 1 << 61
_LARGEST_WINDOW = 1 << 60
"""Maximum cost of a window: its sums fit into 64 bits, because an item costs at most 2**52."""
_HEAD = 3
"""Numbers in a carry before those of children: position, largest cost so far, halvings of the next window."""
_HALVINGS = 5
_LAST = 1 << 62
"""Positions are below."""
_NOTHING = 1 << 20
"""Consecutive items without cost after which a child counts as having no cost at all."""


@dataclass(frozen=True, slots=True)
class _Node:
    """A pair of the tree; a leaf has a child in place of parts."""

    weight: int
    child: int = -1
    left: _Node | None = None
    right: _Node | None = None
    key: int = 0


class _CostBuffer:
    """The costs of one child from a position on, fetched in larger pieces."""

    def __init__(self, costs: ChildCosts) -> None:
        self._costs = costs
        self._first, self._held = 0, np.zeros(0, np.int64)

    def until(self, first: int, cost: int) -> Int64Array:
        """Return the costs of the positions from `first` on: the fewest that sum up to `cost`, at least one."""
        if not self._first <= first <= self._first + len(self._held):
            self._first, self._held = first, self._held[:0]
        self._held, self._first = self._held[first - self._first :], first
        while True:
            totals = np.cumsum(self._held)
            if len(totals) and totals.min() < 0:  # later sums overflow; the sums before already suffice
                totals = totals[: int(np.argmax(totals < 0))]
            if len(totals) and totals[-1] >= cost:
                return self._held[: max(1, int(np.searchsorted(totals, cost, side="left")) + 1)]
            if len(totals) > _NOTHING and not totals[-1]:
                raise ConfigError(
                    f"a blend by cost: {len(totals):,} consecutive samples of one dataset cost nothing, so it would "
                    f"never reach its share: leave such samples out with `where`, or use another unit"
                )
            begin = first + len(totals)
            more = self._costs(np.arange(begin, begin + max(_FETCHED_AT_ONCE, len(totals))))
            self._held = np.concatenate([self._held, more])


class CostBlend:
    """An endless stream of positions of several children, in shares of cost by weight.

    Args:
        schedule: See `Blend`. Each segment starts new shares, without compensation for earlier ones.
        costs: Costs of each child.
        key: 64-bit key, `fold(seed, node key, ...)`.

    Attributes:
        weights: Integer weights of each segment.
        starts: First position of each segment.
        means: (children,) mean cost of the first 1,024 items of each child.

    Raises:
        ConfigError: A child's first items cost nothing, or a weight would round to zero.
    """

    __slots__ = ("_ahead", "_costs", "_fold", "_key", "_trees", "_window", "means", "starts", "weights")

    preserves_runs: ClassVar[bool] = False

    def __init__(self, schedule: Schedule, costs: Sequence[ChildCosts], *, key: int) -> None:
        self.starts = tuple(start for start, _ in schedule)
        self.weights = tuple(integer_weights(weights) for _, weights in schedule)
        self._key = key
        self._costs = tuple(costs)
        self._ahead = [_CostBuffer(each) for each in costs]
        self._trees = [_tree(weights, fold_array(key, number)) for number, weights in enumerate(self.weights)]
        self.means = tuple(float(each(np.arange(_SEEN_FIRST)).mean()) for each in costs)
        for ahead in self._ahead:
            ahead.until(0, 1)  # raises if it has no cost at all
        items = max(_WINDOW, _OF_A_CHILD * len(costs))
        self._window = [self._cost_of(items, weights) for weights in self.weights]
        self._fold = Fold((0,) * (_HEAD + 2 * len(costs)), self._advance)

    def _cost_of(self, items: int, weights: Sequence[int]) -> int:
        """Return the approximate cost of `items` items, estimated from the first ones, limited to a window."""
        shares = [weight / mean if mean else 0.0 for weight, mean in zip(weights, self.means, strict=True)]
        return min(_LARGEST_WINDOW, max(1, round(items * sum(weights) / (sum(shares) or 1.0))))

    def route(self, position: Int64Array) -> Routes:
        """Return the child and the child position at each position (at least 0, any order)."""
        order = np.argsort(position, kind="stable")
        ascending = position[order]
        child, below = np.empty(len(position), np.int32), np.empty(len(position), np.int64)
        done = 0
        while done < len(ascending):
            start, stop, (labels, positions) = self._fold.plan_at(int(ascending[done]))
            until = int(np.searchsorted(ascending, stop))
            places, here = order[done:until], ascending[done:until] - start
            child[places], below[places] = labels[here], positions[here]
            done = until
        return child, below

    def position_of(self, child: npt.NDArray[np.int32], below: Int64Array) -> Int64Array:
        """See `InvertibleRouter`. Merges all windows between the nearest known carry and the positions."""
        found = np.full(len(below), -1, np.int64)
        for number in np.unique(child).tolist():
            places = np.flatnonzero(child == number)
            places = places[np.argsort(below[places], kind="stable")]
            self._find(number, below[places], places, found)
        return found

    def _find(self, child: int, below: Int64Array, places: npt.NDArray[np.intp], found: Int64Array) -> None:
        """Write the positions of ascending positions of a child into `found`, at `places`."""
        end = _LAST if self.weights[-1][child] else self.starts[-1]
        done = 0
        while done < len(below):
            first = int(below[done])
            window = self._fold.first_past(lambda carry: self.counts(carry)[child] > first, end)  # noqa: B023 (now)
            if window is None:
                return
            start, (labels, positions) = window
            own = np.flatnonzero(labels == child)
            until = done + int(np.searchsorted(below[done:], positions[own[-1]], side="right"))
            found[places[done:until]] = start + own[np.searchsorted(positions[own], below[done:until])]
            done = until

    def anchor(self, position: int) -> Carry:
        return self._fold.anchor(position)

    def remember(self, carry: Carry, position: int, saved: SavedCarries) -> None:
        """See `FoldingRouter.remember`."""
        saved.restore(self._fold, carry, position)

    def counts(self, carry: Carry) -> Sequence[int]:
        """Return the positions of each child before a carry. Raises ValueError if its number of children differs."""
        if len(carry) != _HEAD + 2 * len(self._costs):
            raise ValueError(f"{len(carry)} numbers for {len(self._costs)} datasets")
        counts = carry[_HEAD : _HEAD + len(self._costs)]
        if sum(counts) != carry[0]:
            raise ValueError(f"the counts of all datasets add up to {sum(counts)} at position {carry[0]}")
        return counts

    def _advance(self, carry: Carry) -> tuple[tuple[npt.NDArray[np.int32], Int64Array], Carry]:
        """Return the children and child positions of a window, and the carry after it."""
        children = len(self._costs)
        position, largest, halvings = carry[:_HEAD]
        counts, sums = list(self.counts(carry)), list(carry[_HEAD + children :])
        segment = int(np.searchsorted(self.starts, position, side="right")) - 1
        if position == self.starts[segment]:
            sums = [0] * children
        cost, labels, costs = self._window[segment] >> halvings or 1, np.zeros(0, np.int32), np.zeros(0, np.int64)
        while not len(labels):
            labels, costs = self._items(self._trees[segment], counts, sums, cost)
            cost *= 2
        if segment + 1 < len(self.starts):
            labels = labels[: self.starts[segment + 1] - position]
            costs = costs[: len(labels)]
        largest_so_far = np.maximum(np.maximum.accumulate(costs), largest)
        kept, instead = _within(self.weights[segment], sums, labels, costs, largest_so_far)
        halvings = max(0, halvings - 1)
        if kept < len(labels):
            before = int(np.count_nonzero(labels[:kept] == instead))
            cost_instead = self._ahead[instead].until(counts[instead] + before, 1)[:1]
            labels = np.concatenate([labels[:kept], np.array([instead], np.int32)])
            costs = np.concatenate([costs[:kept], cost_instead])
            halvings = _HALVINGS
        order, found, first = _by_child(labels, children)
        positions = np.empty(len(labels), np.int64)
        positions[order] = np.arange(len(labels)) + (np.array(counts, np.int64) - first)[labels[order]]
        taken = np.zeros(children, np.int64)
        present = np.flatnonzero(found)
        taken[present] = np.add.reduceat(costs[order], first[present])
        after = (
            *(position + len(labels), max(largest, int(costs.max())), halvings),
            *[count + int(more) for count, more in zip(counts, found, strict=True)],
            *[total + int(more) for total, more in zip(sums, taken, strict=True)],
        )
        return (labels, positions), after

    def _items(
        self, node: _Node, counts: Sequence[int], sums: Sequence[int], cost: int
    ) -> tuple[npt.NDArray[np.int32], Int64Array]:
        """Return children and costs of a node's next items: a prefix that costs about `cost`; empty for 0."""
        if node.left is None or node.right is None:
            if cost <= 0:
                return np.zeros(0, np.int32), np.zeros(0, np.int64)
            costs = self._ahead[node.child].until(counts[node.child], cost)
            return np.full(len(costs), node.child, np.int32), costs
        left, right = node.left, node.right
        before_left, before_right = _below(left, sums), _below(right, sums)
        until = before_left + before_right + cost
        labels_left, costs_left = self._items(left, counts, sums, -(-left.weight * until // node.weight) - before_left)
        labels_right, costs_right = self._items(
            right, counts, sums, -(-right.weight * until // node.weight) - before_right
        )
        # Twice the middles over the weights, on one common denominator, relative to the right side's position.
        ahead = 2 * (before_left * right.weight - before_right * left.weight)
        total_left, total_right = int(costs_left.sum()), int(costs_right.sum())
        largest = 4 * max(total_left * right.weight, total_right * left.weight) + 2 * abs(ahead) + 2
        kind = np.int64 if largest < _IN_64_BITS else object
        ends = np.cumsum(costs_left)
        starts = ends - costs_left
        coin = fold_array(node.key, starts.view(np.uint64) + np.uint64(before_left & (1 << 64) - 1)) & np.uint64(2)
        key_left = 2 * ((starts + ends).astype(kind) * right.weight + ahead) + (coin.astype(np.int64) - 1)
        ends = np.cumsum(costs_right)
        key_right = 2 * ((2 * ends - costs_right).astype(kind) * left.weight)
        # Behind the nearer end of the two sides, that side may have items that are not known yet.
        known = 2 * min(2 * total_left * right.weight + ahead, 2 * total_right * left.weight) - 1
        count_left = int(np.searchsorted(key_left, known, side="left"))
        count_right = int(np.searchsorted(key_right, known, side="left"))
        at = np.arange(count_right) + np.searchsorted(key_left[:count_left], key_right[:count_right])
        of_left = np.ones(count_left + count_right, np.bool_)
        of_left[at] = False
        labels, costs = np.empty(len(of_left), np.int32), np.empty(len(of_left), costs_left.dtype)
        labels[of_left], labels[at] = labels_left[:count_left], labels_right[:count_right]
        costs[of_left], costs[at] = costs_left[:count_left], costs_right[:count_right]
        return labels, costs


def _by_child(
    labels: npt.NDArray[np.int32], children: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return positions of the items child by child, the count of each child, and where each child starts."""
    short = labels.astype(np.int16) if children < 1 << 15 else labels  # numpy sorts int16 by radix
    found = np.bincount(labels, minlength=children)
    return np.argsort(short, kind="stable"), found, np.cumsum(found) - found


def _within(
    weights: Sequence[int],
    sums: Sequence[int],
    labels: npt.NDArray[np.int32],
    costs: Int64Array,
    largest: Int64Array,
) -> tuple[int, int]:
    """Return how many items fit before one puts a child too far from its share, and the child to use instead.

    A child is furthest behind directly before each of its items and at the end, and furthest ahead directly after them.
    """
    whole, total = sum(weights), sum(sums)
    ends = np.cumsum(costs)
    small = 4 * whole * (int(ends[-1]) + int(largest[-1])) < _IN_64_BITS
    kind: type = np.int64 if small else object
    ends, bounds = ends.astype(kind), largest.astype(kind) * whole
    weight = np.array(weights, kind)
    ahead = np.array([own * whole - part * total for own, part in zip(sums, weights, strict=True)], kind)
    order, found, first = _by_child(labels, len(weights))
    own = np.cumsum(costs[order]).astype(kind)
    own -= np.concatenate([np.zeros(1, kind), own])[first][labels[order]]
    of = labels[order]
    behind_item = ahead[of] + own * whole - weight[of] * ends[order]
    before_item = behind_item + (weight[of] - whole) * costs[order].astype(kind)
    wrong = np.flatnonzero((behind_item > bounds[order]) | (-before_item > np.maximum(bounds[order - 1], bounds[0])))
    gained = np.zeros(len(weights), kind)
    present = np.flatnonzero(found)
    gained[present] = own[first[present] + found[present] - 1]
    at_end = ahead + gained * whole - weight * ends[-1]
    late = np.flatnonzero(-at_end > bounds[-1])
    if not len(wrong) and not len(late):
        return len(labels), -1
    for at in range(len(labels)):
        # Rare, and few items: one by one.
        now = ahead - weight * costs[at]
        now[labels[at]] += whole * int(costs[at])
        if int(abs(now).max()) > bounds[at]:
            # Among the children that are not ahead, the one that would be too far behind first.
            left = np.where((weight > 0) & (ahead <= 0), (bounds[at] + ahead) / np.maximum(weight, 1), np.inf)
            instead = int(np.argmin(left))
            if instead != labels[at]:
                return at, instead
        ahead = now
    return len(labels), -1


def _below(node: _Node, sums: Sequence[int]) -> int:
    """Return the sum over the children below a node."""
    if node.left is None or node.right is None:
        return sums[node.child]
    return _below(node.left, sums) + _below(node.right, sums)


def _tree(weights: Sequence[int], key: int) -> _Node:
    """Return the Huffman tree of the children with a weight."""
    number = itertools.count()
    heap = [(weight, next(number), _Node(weight, child)) for child, weight in enumerate(weights) if weight]
    heapq.heapify(heap)
    while len(heap) > 1:
        weight, _, left = heapq.heappop(heap)
        other, _, right = heapq.heappop(heap)
        node = _Node(weight + other, -1, left, right, fold(key, next(number)))
        heapq.heappush(heap, (node.weight, next(number), node))
    return heap[0][2]
