# SPDX-License-Identifier: Apache-2.0
"""Checks the contract of samplers: pure functions of positions, with an exact inverse."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from energon_grain.samplers.leaf_order import LeafOrder, LeafTable
from energon_grain.samplers.routing import InvertibleRouter, Router, RouteTree

Int64Array = npt.NDArray[np.int64]


def check_sampler(
    sampler: Router | RouteTree | LeafOrder, *, start: int = 0, positions: int = 4096, lanes: int = 48, seed: int = 0
) -> None:
    """Check that an order is the same however it is asked, and that `position_of` is its inverse.

    Asks for `positions` consecutive positions at once, in pieces in random order, and for random ones. No two positions
    may have the same target. `position_of` must find each position, and for any other target near these either a
    position that leads to it, or none.

    Args:
        sampler: A router, a tree of routers, or the order of a leaf without replacement.
        start: First position to check.
        positions: Number of positions.
        lanes: Lanes of the leaf, if the sampler is a `LeafOrder`.
        seed: Of the random numbers.

    Raises:
        AssertionError: The contract is broken; the message shows a position.
    """
    random = np.random.default_rng(seed)
    order = _Order(sampler, lanes)
    asked = np.arange(start, start + positions)
    targets = order.forward(asked)
    for piece in np.array_split(random.permutation(positions), 7):
        _same(order.forward(asked[piece]), targets[:, piece], asked[piece], "asked in another order, the target")
    found, again = np.unique(targets, axis=1, return_counts=True)
    assert (again == 1).all(), f"target {found[:, again > 1][:, 0].tolist()} belongs to several positions"
    shuffled = random.permutation(positions)
    back = order.backward(targets[:, shuffled])
    _same(back[None], asked[None, shuffled], asked[shuffled], "position_of its target")
    one = order.backward(targets[:, :1])
    assert one.tolist() == [start], f"position_of the target of {start} alone is {one.tolist()}"
    near = targets[:, random.integers(0, positions, positions)]
    near = order.moved(near, random.integers(-50, 51, positions))
    back = order.backward(near)
    known = back >= 0
    _same(order.forward(back[known]), near[:, known], back[known], "the target")
    missing = near[:, ~known]
    lost = (missing[:, None] == targets[:, :, None]).all(axis=0).any(axis=1) if missing.size else np.zeros(1, np.bool_)
    assert not lost.any(), f"position {start + int(np.argmax(lost))} is not found"


class _Order:
    """Any sampler as a function from positions to (2, n) targets: child and child position, or sample and pass."""

    def __init__(self, sampler: Router | RouteTree | LeafOrder, lanes: int) -> None:
        self._sampler = sampler
        self._samples = sampler.n if isinstance(sampler, LeafOrder) else None
        self._table = None if not isinstance(sampler, LeafOrder) else LeafTable([sampler], lanes)

    def forward(self, positions: Int64Array) -> Int64Array:
        if self._table is not None:
            return np.stack(self._table.draw(0, positions))
        assert not isinstance(self._sampler, LeafOrder)
        return np.stack(self._sampler.route(positions)).astype(np.int64)

    def backward(self, targets: Int64Array) -> Int64Array:
        if self._table is not None:
            return self._table.position_of(0, *targets)
        assert isinstance(self._sampler, InvertibleRouter | RouteTree), "the sampler has no position_of"
        return self._sampler.position_of(targets[0].astype(np.int32), targets[1])

    def moved(self, targets: Int64Array, by: Int64Array) -> Int64Array:
        """Move targets: to other positions of the same child, or other samples in the same pass."""
        if self._samples is None:
            return np.stack([targets[0], np.maximum(targets[1] + by, 0)])
        return np.stack([(targets[0] + by) % self._samples, targets[1]])


def _same(found: Int64Array, expected: Int64Array, at: Int64Array, what: str) -> None:
    differs = (found != expected).any(axis=0)
    if differs.any():
        first = int(np.argmax(differs))
        raise AssertionError(
            f"position {int(at[first])}: {what} is {found[:, first].tolist()}, expected {expected[:, first].tolist()}"
        )
