"""Counts of leaves along a stream."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from energon_grain.cli.mixture_summary import composition
from energon_grain.samplers.blend import Blend
from energon_grain.samplers.leaf_order import LeafOrder, LeafTable
from energon_grain.samplers.passes import Concat
from energon_grain.samplers.routing import Router, RouteTree
from energon_grain.stream.index_map import IndexMap

LANES = 48


def order(router: Router | None, leaves: int) -> IndexMap:
    routes = None if router is None else RouteTree(router, [None] * leaves)
    table = LeafTable([LeafOrder(n=10, key=number) for number in range(leaves)], LANES)
    return IndexMap(routes=routes, table=table, passes=None, same_pass=False, samples=1)


def counted_one_by_one(routed: IndexMap, edges: npt.NDArray[np.int64], leaves: int) -> list[list[int]]:
    leaf = routed.draw(np.arange(edges[-1]), 0).leaf.tolist()
    windows = [leaf[edges[number] : edges[number + 1]] for number in range(len(edges) - 1)]
    return [[window.count(number) for number in range(leaves)] for window in windows]


@pytest.mark.parametrize(("positions", "windows"), [(1, 5), (7, 3), (1000, 7), (5000, 200)])
def test_counts_are_those_of_the_draws(positions: int, windows: int) -> None:
    routed = order(Blend(schedule=[(0, [1, 0, 3]), (700, [2, 5, 1])], lanes=LANES, key=3), 3)
    found = composition(routed, leaves=3, positions=positions, windows=windows)
    assert found.counts.tolist() == counted_one_by_one(routed, found.edges, 3)
    assert found.counted == positions == found.edges[-1]
    assert found.shares.sum(axis=1) == pytest.approx(1)
    assert len(found.counts) == min(positions, windows)


def test_one_leaf_is_everything() -> None:
    assert composition(order(None, 1), leaves=1, positions=10, windows=2).counts.tolist() == [[5], [5]]


def test_of_long_windows_spread_runs_are_counted() -> None:
    """In 10 windows of 1,000 positions 16 runs of 10; the first child is all of the first 2,500."""
    routed = order(Concat([2500, 7500]), 2)
    found = composition(routed, leaves=2, positions=10_000, windows=10, max_drawn=1600)
    assert found.counted == 1600
    assert found.shares[:, 0] == pytest.approx([1, 1, 0.5, 0, 0, 0, 0, 0, 0, 0])
