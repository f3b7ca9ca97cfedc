"""Concatenation and limits against lists; trees of routers down to leaves, and what leaves draw below them."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, strategies as st

from energon_grain.samplers.blend import Blend
from energon_grain.samplers.epochized_blend import EpochizedBlend
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.leaf_order import LeafOrder, LeafTable
from energon_grain.samplers.routing import Concat, Limit, RouteTree


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_concat_is_the_list_of_its_children(lengths: list[int]) -> None:
    concat = Concat(lengths)
    expected = [
        (number, turn * length + place)
        for turn in range(3)
        for number, length in enumerate(lengths)
        for place in range(length)
    ]
    child, below = concat.route(np.arange(3 * sum(lengths)))
    assert list(zip(child.tolist(), below.tolist(), strict=True)) == expected


@given(st.integers(1, 9), st.integers(1, 9))
def test_a_limit_keeps_the_first_of_each_pass(limit: int, length: int) -> None:
    limited = Limit(min(limit, length), length)
    expected = [turn * length + place for turn in range(3) for place in range(min(limit, length))]
    child, below = limited.route(np.arange(len(expected)))
    assert below.tolist() == expected
    assert not child.any()


def test_large_positions() -> None:
    child, below = Concat([2**40, 2**41]).route(np.array([3 * 2**40 * 1_000 + 2**40, 2**61]))
    assert child.tolist() == [1, 1]
    assert below.tolist() == [2**41 * 1_000, 2**61 // (3 * 2**40) * 2**41 + 2**61 % (3 * 2**40) - 2**40]


def test_leaves_are_numbered_from_left_to_right() -> None:
    inner = RouteTree(Concat([2, 3]), [None, None])
    tree = RouteTree(Concat([1, 5, 2]), [None, inner, None])
    leaf, below = tree.route(np.arange(16))
    assert tree.leaves == 4
    assert tree.runs == (False,) * 4
    assert leaf.tolist() == [0, 1, 1, 2, 2, 2, 3, 3] * 2
    assert below.tolist() == [0, 0, 1, 0, 1, 2, 0, 1, 1, 2, 3, 3, 4, 5, 2, 3]


def test_runs_are_handed_down_through_everything_below() -> None:
    tree = RouteTree(EpochizedBlend([5, 9], [1, 1], lanes=2, key=1), [RouteTree(Concat([2, 3]), [None, None]), None])
    assert tree.runs == (True, True, True)
    assert RouteTree(Blend([(0, [1, 2])], lanes=2, key=1), [None, tree]).runs == (False, True, True, True)


def test_nested_blends_multiply_shares() -> None:
    lanes = 48
    inner = RouteTree(Blend([(0, [1, 3])], lanes=lanes, key=fold("inner")), [None, None])
    tree = RouteTree(Blend([(0, [1, 1])], lanes=lanes, key=fold("outer")), [None, inner])
    leaf, below = tree.route(np.arange(96_000))
    assert np.all(np.abs(np.bincount(leaf) - np.array([48_000, 12_000, 36_000])) < 40)
    for number in range(3):
        assert np.array_equal(below[leaf == number] % lanes, np.flatnonzero(leaf == number) % lanes)


def test_an_epochized_blend_of_leaves_sees_each_sample_once() -> None:
    lanes, lengths = 8, [100, 37, 250]
    tree = RouteTree(EpochizedBlend(lengths, [1, 2, 1], lanes=lanes, key=4), [None, None, None])
    orders = [LeafOrder(n=n, key=fold(n), block=10, runs=runs) for n, runs in zip(lengths, tree.runs, strict=True)]
    leaf, below = tree.route(np.arange(100 + 74 + 250))
    index, epoch = LeafTable(orders, lanes).draw(leaf, below)
    draws = Counter(zip(leaf.tolist(), index.tolist(), epoch.tolist(), strict=True))
    assert set(draws.values()) == {1}
    assert Counter(leaf.tolist()) == {0: 100, 1: 74, 2: 250}
    assert {e for number, _, e in draws if number == 1} == {0, 1}
    for lane in range(lanes):  # a lane reads few runs of consecutive samples of a leaf
        mine = np.sort(index[lane::lanes][leaf[lane::lanes] == 2])
        assert int((np.diff(mine) != 1).sum()) <= 2 * mine.size / 10 + 2
