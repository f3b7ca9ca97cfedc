# SPDX-License-Identifier: Apache-2.0
"""The binary tree over the children of a blend, and the permuted runs of labels in its lanes.

A blend of K children splits its rounds into two shares at each node of a balanced tree with 2 K - 1 nodes. A leaf is
its own left child and assigns everything to the left, so a descent of `depth` steps needs no exceptions.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import numpy.typing as npt

from energon_grain.samplers.columns import Array, Column, divide_product, scaled
from energon_grain.samplers.hashing import fold, fold_array
from energon_grain.samplers.permutation import permute

RUN = 4
"""Rounds of a lane whose labels are permuted among themselves."""

_PHASE = fold("phase")


class ShareTree:
    """The shape of the tree. Node 0 is the root, and parents precede their children.

    Attributes:
        depth: steps from the root to every leaf.
        low: first child below each node, int64 (nodes,).
        middle: first child of the right part; for a leaf `high`, int64 (nodes,).
        high: end of the children below each node, int64 (nodes,).
        left: node of the left part; for a leaf itself, int64 (nodes,).
        right: node of the right part; for a leaf itself, int64 (nodes,).
        leaves: node of each child, int64 (children,).
        levels: nodes that are no leaves, level by level.
    """

    __slots__ = ("depth", "high", "leaves", "left", "levels", "low", "middle", "right")

    def __init__(self, children: int) -> None:
        """Build the tree over `children` children."""
        rows: list[list[int]] = [[0, children]]
        links: list[tuple[int, int]] = []
        for node in itertools.count():
            if node == len(rows):
                break
            low, high = rows[node]
            if high - low == 1:
                links.append((node, node))
                continue
            middle = (low + high) // 2
            links.append((len(rows), len(rows) + 1))
            rows += [[low, middle], [middle, high]]
        self.low, self.high = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
        self.left, self.right = (np.array(column, dtype=np.int64) for column in zip(*links, strict=True))
        self.middle = np.where(self.left == self.right, self.high, self.high[self.left])
        self.depth = (children - 1).bit_length()
        self.leaves = np.flatnonzero(self.left == self.right)
        self.leaves = self.leaves[np.argsort(self.low[self.leaves])]
        inner, self.levels = np.zeros(min(children - 1, 1), np.int64), list[npt.NDArray[np.int64]]()
        while inner.size:
            self.levels.append(inner)
            below = np.concatenate([self.left[inner], self.right[inner]])
            inner = below[self.left[below] != below]

    def __len__(self) -> int:
        return self.low.size

    def path(self, child: npt.NDArray[np.int32]) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]]:
        """Return the nodes on the way from the root to each child, and whether the way goes left there."""
        node, steps = np.zeros(child.size, dtype=np.int64), list[tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]]()
        for _ in range(self.depth):
            is_left = child < self.middle[node]
            steps.append((node, is_left))
            node = np.where(is_left, self.left[node], self.right[node])
        return steps


def round_of(rank: Array, left: Array, total: Array, phase: Array, is_left: npt.NDArray[np.bool_]) -> Array:
    """Return the round of a node whose first r rounds have `(left * r + phase) div total` on the left.

    It is the round that gives one side its round number `rank`; the inverse of Bresenham's line. `phase` is below
    `total`, and the side is not empty.
    """
    side = np.maximum(np.where(is_left, left, total - left), np.uint64(1))
    return divide_product(total, rank, side, np.where(is_left, total - np.uint64(1) - phase, phase))[0]


share_tree = functools.lru_cache(256)(ShareTree)


def lane_phases(key: int, nodes: int, lanes: int) -> Array:
    """Return a keyed permutation of the lanes for each node, uint64 (nodes, lanes).

    Lane l starts a node's split of rounds at the phase pi(l) / lanes of a period. With evenly spread phases, the lanes'
    shares add up exactly (Hermite's identity: the sum of floor(x + i / L) over i in [0, L) is floor(L x)).
    """
    node = np.repeat(np.arange(nodes, dtype=np.uint64), lanes)
    lane = np.tile(np.arange(lanes), nodes)
    return permute(lane, lanes, fold_array(key, _PHASE, node)).view(np.uint64).reshape(nodes, lanes)


def _orders() -> npt.NDArray[np.intp]:
    table = np.tile(np.arange(RUN), (RUN + 1, math.factorial(RUN), 1))
    for size in range(RUN + 1):
        for number, order in enumerate(itertools.permutations(range(size))):
            table[size, number, :size] = order
    return table


_ORDERS = _orders()  # (size of a run, number of an order, slot): the round that the slot gets
_ORDER_COUNT = np.array([math.factorial(size) for size in range(RUN + 1)], dtype=np.uint64)


def permute_run(
    label: npt.NDArray[np.int64], rank: Array, key: Column, size: npt.NDArray[np.int64] | None = None
) -> tuple[npt.NDArray[np.int64], Array]:
    """Permute the labels inside runs of 4 rounds; a label's ranks stay in ascending order.

    With labels `a a b a` and ranks `5 6 2 7` the result may be labels `a b a a` and ranks `5 2 6 7`.

    Args:
        label: child of each round, (4, runs).
        rank: number of the child's earlier rounds in that lane, uint64 (4, runs).
        key: hash of each run.
        size: rounds of each run, 1 to 4, if not all have 4; those beyond must have labels that occur once.

    Returns:
        label and rank after the permutation, in the shapes of the arguments.
    """
    which = np.arange(label.shape[1])
    number = scaled(key, int(_ORDER_COUNT[RUN]) if size is None else _ORDER_COUNT[size]).view(np.int64)
    order = _ORDERS[RUN if size is None else size, number]
    label = np.stack([label[order[:, slot], which] for slot in range(RUN)])
    rank = np.stack([rank[order[:, slot], which] for slot in range(RUN)])
    ascending = rank.copy()
    # The ranks of a label in a run are consecutive. For each pair in the wrong order, move one down by 1, the other up.
    for one, other in itertools.combinations(range(RUN), 2):
        wrong = (label[one] == label[other]) & (rank[one] > rank[other])
        ascending[one] -= wrong
        ascending[other] += wrong
    return label, ascending
