"""Epochized blends by brute force: exact counts, contiguous runs, and every position asked alone."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from energon_grain.errors import ConfigError
from energon_grain.samplers.epochized_blend import EpochizedBlend


@st.composite
def blends(draw: st.DrawFn) -> EpochizedBlend:
    children = draw(st.integers(1, 7))
    lengths = draw(st.lists(st.integers(1, 60), min_size=children, max_size=children))
    repetitions = draw(st.lists(st.decimals("0.05", 3, places=2), min_size=children, max_size=children))
    lengths[0] += 20  # so that no epoch is empty
    return EpochizedBlend(
        lengths, repetitions, lanes=draw(st.sampled_from([1, 2, 5, 8, 48])), key=draw(st.integers(0, 9))
    )


@settings(deadline=None)
@given(blends(), st.integers(0, 50), st.data())
def test_epochs_hold_exact_counts_in_contiguous_runs(blend: EpochizedBlend, first: int, data: st.DataObject) -> None:
    start, stop = blend.start(first), blend.start(first + 3)
    child, below = blend.route(np.arange(start, stop))
    for epoch in range(first, first + 3):
        here = slice(blend.start(epoch) - start, blend.start(epoch + 1) - start)
        lane = np.arange(blend.length(epoch)) % blend.lanes
        assert blend.epoch_at(blend.start(epoch)) == blend.epoch_at(blend.start(epoch + 1) - 1) == epoch
        for number, rate in enumerate(blend.rates):
            low, high = (e * rate.numerator // rate.denominator for e in (epoch, epoch + 1))
            assert blend.counts(epoch)[number] == high - low
            mine = below[here][child[here] == number]
            assert np.array_equal(np.sort(mine), np.arange(low, high))
            by_lane = [mine[lane[child[here] == number] == one] for one in range(blend.lanes)]
            in_order = np.concatenate(by_lane)  # each lane a run, lanes one after the other
            assert np.array_equal(in_order, np.arange(low, high))
    asked = np.array(data.draw(st.lists(st.integers(0, stop - start - 1), max_size=9)), dtype=np.int64)
    some_child, some_below = blend.route(asked + start)
    assert np.array_equal(some_child, child[asked])
    assert np.array_equal(some_below, below[asked])


@pytest.mark.parametrize("children", [2, 5, 30, 100])
def test_shares_hold_inside_an_epoch(children: int) -> None:
    rng = np.random.default_rng(children)
    blend = EpochizedBlend(rng.integers(50, 200_000 // children, children).tolist(), [1] * children, lanes=48, key=1)
    count = blend.length(0)
    child, _ = blend.route(np.arange(count))
    for number, mine in enumerate(blend.counts(0)):
        assert np.abs(np.cumsum(child == number) - np.arange(1, count + 1) * (mine / count)).max() < 24


def test_repetitions_are_seen_equally_often() -> None:
    blend = EpochizedBlend([55, 10], ["0.7", "1.5"], lanes=4, key=1)
    assert [blend.counts(epoch) for epoch in range(4)] == [(38, 15), (39, 15), (38, 15), (39, 15)]
    child, below = blend.route(np.arange(blend.start(20)))
    assert blend.start(20) == 55 * 14 + 10 * 30
    assert Counter((below[child == 0] % 55).tolist()) == dict.fromkeys(range(55), 14)
    assert Counter((below[child == 1] % 10).tolist()) == dict.fromkeys(range(10), 30)
    assert blend.rates == (Fraction(77, 2), Fraction(15))


@pytest.mark.parametrize("size", [10**9, 10**11, 10**14, 2**55, 2**59])
def test_huge_epochs_are_exact(size: int) -> None:
    lengths = [size, size // 3 + 1, 7, size]
    blend = EpochizedBlend(lengths, [1, 1, 1, "0.999"], lanes=48, key=2)
    count = blend.length(0)
    share = count // blend.lanes * blend.lanes // 2  # in the middle, and at both ends of an epoch
    for start in (0, share - share % 192, count - 500):
        child, below = blend.route(np.arange(start, start + 1_000))
        for number in (0, 1, 3):
            assert np.unique(below[child == number]).size == int((child == number).sum())
            expected = 1_000 * blend.counts(0)[number] / count
            assert abs(int((child == number).sum()) - expected) < 60
            assert np.all(below[child == number] >= 0)
    whole = blend.route(np.arange(count - 50, count + 50))
    alone = [blend.route(np.array([p])) for p in range(count - 50, count + 50)]
    assert whole[0].tolist() == [int(child[0]) for child, _ in alone]
    assert whole[1].tolist() == [int(below[0]) for _, below in alone]
    last = blend.route(np.array([count - 1]))
    assert int(last[1][0]) < lengths[int(last[0][0])]


def test_far_apart_positions_need_no_table_of_all_epochs() -> None:
    blend = EpochizedBlend([3, 4], [1, "0.5"], lanes=2, key=1)
    asked = np.array([2**60, 3, 2**40, 2**60 - 1, 0])
    child, below = blend.route(asked)
    alone = [blend.route(asked[i : i + 1]) for i in range(asked.size)]
    assert child.tolist() == [int(c[0]) for c, _ in alone]
    assert below.tolist() == [int(b[0]) for _, b in alone]
    assert blend.route(np.empty(0, dtype=np.int64))[0].size == 0


@pytest.mark.parametrize(
    ("lengths", "repetitions", "message"),
    [
        ([], [], "length of at least 1"),
        ([1, 2], [1], "length of at least 1"),
        ([0], [1], "length of at least 1"),
        ([5, 5], [1, 0], "0 would never"),
        ([5], ["0.1"], "could be empty"),
        ([5], [-1], "repetitions -1 is negative"),
        ([5, 3], [1e300, 1], r"more than 2\*\*62"),
    ],
)
def test_impossible_repetitions_are_refused(lengths: list[int], repetitions: list[int | str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EpochizedBlend(lengths, repetitions, lanes=4, key=1)


@given(blends(), st.integers(0, 1 << 40), st.integers(1, 40))
def test_lengths_of_many_epochs_are_those_of_each(blend: EpochizedBlend, first: int, count: int) -> None:
    lengths = blend.lengths(first, count).tolist()
    assert lengths == [blend.length(epoch) for epoch in range(first, first + count)]
    assert blend.length(first) == blend.length(first + blend.period)
