"""Blends, concatenation and limits by brute force, and trees of routers down to leaves."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from energon_grain.errors import ConfigError
from energon_grain.samplers.blend import Blend, StepBlend
from energon_grain.samplers.epochized_blend import EpochizedBlend
from energon_grain.samplers.hashing import fold, fold_array
from energon_grain.samplers.leaf_order import LeafOrder, LeafTable
from energon_grain.samplers.routing import Concat, Limit, RouteTree
from energon_grain.samplers.share_tree import RUN, ShareTree, lane_phases


def unpermuted_labels(blend: Blend, key: int, segment: int, lane: int, rounds: int) -> list[int]:
    """The children of a lane's first rounds in a segment before runs are permuted, by Python integers."""
    weights = blend.weights[segment]
    segment_key = fold_array(key, fold("segment"), segment)
    assert isinstance(segment_key, int)
    tree = ShareTree(len(weights))
    pi = lane_phases(segment_key, len(tree), blend.lanes)
    labels: list[int] = []
    for number in range(rounds):
        node, at = 0, number
        while tree.left[node] != node:
            left = sum(weights[tree.low[node] : tree.middle[node]])
            total = max(sum(weights[tree.low[node] : tree.high[node]]), 1)
            phase = total * int(pi[node, lane]) // blend.lanes
            before, after = (left * at + phase) // total, (left * (at + 1) + phase) // total
            node, at = (int(tree.left[node]), before) if after > before else (int(tree.right[node]), at - before)
        labels.append(int(tree.low[node]))
    return labels


def check_lanes(child: npt.NDArray[np.int32], below: npt.NDArray[np.int64], lanes: int) -> None:
    """In each lane, a child's positions are j * lanes + lane with j = 0, 1, 2, ..."""
    position = np.arange(child.size)
    for number in range(int(child.max()) + 1):
        mine = below[child == number]
        lane = position[child == number] % lanes
        assert np.array_equal(mine % lanes, lane)
        for one in range(lanes):
            rounds = mine[lane == one] // lanes
            assert np.array_equal(rounds, np.arange(rounds.size))


def child_weights(children: int, kind: str) -> list[float]:
    rng = np.random.default_rng(children)
    numbers = {
        "equal": np.ones(children),
        "random": rng.random(children) + 0.01,
        "skewed": rng.pareto(1, children) + 0.01,
        "harmonic": 1 / np.arange(1, children + 1),
    }[kind]
    return [round(float(x), 4) for x in numbers]


@pytest.mark.parametrize("kind", ["equal", "random", "skewed", "harmonic"])
@pytest.mark.parametrize("children", [2, 3, 7, 30, 100])
def test_shares_hold_after_every_prefix(children: int, kind: str) -> None:
    lanes, count = 48, 200_000
    blend = Blend([(0, child_weights(children, kind))], lanes=lanes, key=fold(children, kind))
    child, _ = blend.route(np.arange(count))
    total = sum(blend.weights[0])
    in_round = child[: count // lanes * lanes].reshape(-1, lanes)
    for number, weight in enumerate(blend.weights[0]):
        so_far = np.cumsum(child == number)
        assert np.abs(so_far - np.arange(1, count + 1) * (weight / total)).max() < 19
        lane_rounds = np.cumsum(in_round == number, axis=0, dtype=np.int32)
        assert (lane_rounds.max(axis=1) - lane_rounds.min(axis=1)).max() <= 7


@settings(deadline=None)
@given(
    weights=st.lists(st.integers(1, 50), min_size=1, max_size=9),
    lanes=st.sampled_from([1, 2, 3, 8]),
    key=st.integers(0, 2**64 - 1),
    data=st.data(),
)
def test_rounds_of_each_lane(weights: list[int], lanes: int, key: int, data: st.DataObject) -> None:
    blend = Blend([(0, weights)], lanes=lanes, key=key)
    rounds = 40
    child, below = blend.route(np.arange(rounds * lanes))
    check_lanes(child, below, lanes)
    for lane in range(lanes):
        expected = unpermuted_labels(blend, key, 0, lane, rounds)
        for run in range(0, rounds, RUN):
            assert Counter(child[lane::lanes][run : run + RUN].tolist()) == Counter(expected[run : run + RUN])
    asked = np.array(data.draw(st.lists(st.integers(0, rounds * lanes - 1), max_size=20)), dtype=np.int64)
    some_child, some_below = blend.route(asked)
    assert np.array_equal(some_child, child[asked])
    assert np.array_equal(some_below, below[asked])


@pytest.mark.parametrize("lanes", [1, 5, 48])
def test_lanes_add_up_exactly_at_a_node(lanes: int) -> None:
    blend = Blend([(0, [3, 4])], lanes=lanes, key=1)
    child, _ = blend.route(np.arange(400 * RUN * lanes))
    so_far = np.cumsum(child == 0)[RUN * lanes - 1 :: RUN * lanes]
    rounds = np.arange(1, so_far.size + 1) * RUN
    assert np.array_equal(so_far, 3 * rounds * lanes // 7)


def test_labels_inside_runs_are_permuted_evenly() -> None:
    lanes = 48
    child, _ = Blend([(0, [1, 1, 1, 1])], lanes=lanes, key=5).route(np.arange(RUN * lanes * 2_000))
    runs = child.reshape(-1, RUN, lanes).transpose(0, 2, 1).reshape(-1, RUN)
    orders = Counter(tuple(run) for run in runs.tolist())
    assert set(orders) == set(itertools.permutations(range(4)))
    expected = len(runs) / 24
    assert sum((count - expected) ** 2 / expected for count in orders.values()) < 23 + 6 * 46**0.5


def test_far_positions_are_exact() -> None:
    weights = [2**30 - 3, 5, 2**29]
    lanes, key = 48, 11
    blend = Blend([(0, weights)], lanes=lanes, key=key)
    tree, total = ShareTree(3), sum(weights)
    segment_key = fold_array(key, fold("segment"), 0)
    assert isinstance(segment_key, int)
    pi = lane_phases(segment_key, len(tree), lanes)
    for start in (2**33, 2**45 + 7, 2**62 - 48 * 5):
        start -= start % (RUN * lanes)
        child, below = blend.route(np.arange(start, start + RUN * lanes))
        rounds = start // lanes
        for lane in range(lanes):
            before = (weights[0] * rounds + total * int(pi[0, lane]) // lanes) // total
            mine = below[lane::lanes][child[lane::lanes] == 0] // lanes
            assert mine.tolist() == list(range(before, before + mine.size))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_schedules_go_on_where_children_stood(data: st.DataObject) -> None:
    lanes = data.draw(st.sampled_from([1, 3, 8]))
    children = data.draw(st.integers(1, 5))
    starts = [0, *sorted(data.draw(st.sets(st.integers(1, 300), max_size=3)))]
    weights = st.lists(st.integers(0, 9), min_size=children, max_size=children).filter(any)
    segments = [(start, data.draw(weights)) for start in starts]
    segments[-1] = (starts[-1], [w + 1 for w in segments[-1][1]])
    blend = Blend(segments, lanes=lanes, key=3)
    child, below = blend.route(np.arange(400))
    check_lanes(child, below, lanes)
    asked = np.random.default_rng(0).permutation(400)[:50]
    assert np.array_equal(blend.route(asked)[1], below[asked])
    for (start, parts), end in zip(segments, [*starts[1:], 400], strict=True):
        for number, weight in enumerate(parts):
            count = int((child[start:end] == number).sum())
            assert abs(count - (end - start) * weight / sum(parts)) <= 3 * lanes + 4
            assert weight or not count
    for lane in range(lanes):
        expected = unpermuted_labels(blend, 3, 0, lane, RUN)
        if starts[1:2] == [] or starts[1] >= RUN * lanes:
            assert Counter(child[lane::lanes][:RUN].tolist()) == Counter(expected)


def test_keys_change_the_blend_and_shares_stay() -> None:
    one, other = (Blend([(0, [1, 2])], lanes=8, key=fold(seed)).route(np.arange(9_600))[0] for seed in (1, 2))
    assert not np.array_equal(one, other)
    assert int(one.sum()) == int(other.sum()) == 6_400


def test_nothing_asked_is_nothing() -> None:
    child, below = Blend([(0, [1, 2])], lanes=8, key=1).route(np.empty(0, dtype=np.int64))
    assert child.size == below.size == 0


weights = st.lists(st.integers(1, 20), min_size=1, max_size=5)


def route(blend: Blend | StepBlend, positions: object) -> tuple[list[int], list[int]]:
    child, below = blend.route(np.asarray(positions, np.int64))
    return child.tolist(), below.tolist()


def step_blend(weights: list[int], *, lanes: int = 4, width: int = 3, key: int = 5) -> StepBlend:
    return StepBlend(Blend([(0, weights)], lanes=lanes, key=key), width=width)


@settings(max_examples=60)
@given(weights=weights, lanes=st.integers(1, 6), width=st.integers(1, 6), key=st.integers(0, 2**64 - 1))
def test_a_choice_holds_for_a_whole_step(weights: list[int], lanes: int, width: int, key: int) -> None:
    blend = step_blend(weights, lanes=lanes, width=width, key=key)
    assert blend.lanes == lanes * width
    child, _ = route(blend, np.arange(200 * width))
    steps = [child[at : at + width] for at in range(0, len(child), width)]
    assert all(len(set(step)) == 1 for step in steps)
    # They are those of the blend of whole steps.
    assert [step[0] for step in steps] == route(Blend([(0, weights)], lanes=lanes, key=key), np.arange(200))[0]


@settings(max_examples=60)
@given(weights=weights, lanes=st.integers(1, 6), width=st.integers(1, 6), key=st.integers(0, 2**64 - 1))
def test_each_lane_has_its_childs_rounds_without_gaps(weights: list[int], lanes: int, width: int, key: int) -> None:
    """Round j of child k in lane l is the child's position j * L + l, as everywhere."""
    blend = step_blend(weights, lanes=lanes, width=width, key=key)
    positions = np.arange(60 * blend.lanes)
    rounds: Counter[tuple[int, int]] = Counter()
    for position, child, below in zip(positions.tolist(), *route(blend, positions), strict=True):
        lane = position % blend.lanes
        assert below == rounds[lane, child] * blend.lanes + lane
        rounds[lane, child] += 1


@settings(max_examples=40)
@given(weights=weights, asked=st.lists(st.integers(0, 2**40), min_size=1, max_size=30))
def test_any_positions_in_any_order(weights: list[int], asked: list[int]) -> None:
    blend = step_blend(weights)
    together = route(blend, asked)
    alone = [route(blend, [position]) for position in asked]
    assert together == ([child for [child], _ in alone], [below for _, [below] in alone])


@pytest.mark.parametrize("weights", [[1, 1], [7, 3], [5, 3, 2], [97, 1, 1, 1]])
@pytest.mark.parametrize("width", [2, 8])
def test_shares_hold_after_any_prefix(weights: list[int], width: int) -> None:
    blend = step_blend(weights, lanes=48 // width, width=width)
    child = np.array(route(blend, np.arange(48 * 400))[0])
    for number, weight in enumerate(weights):
        ahead = np.cumsum(child == number) - np.arange(1, child.size + 1) * weight / sum(weights)
        assert np.abs(ahead).max() <= 17 * width


def test_a_schedule_counts_positions() -> None:
    blend = StepBlend(Blend([(0, [1, 0]), (10, [0, 1]), (20, [1, 1])], lanes=4, key=3), width=3)
    assert blend.starts == (0, 30, 60)
    child, _ = route(blend, np.arange(120))
    assert child[:30] == [0] * 30
    assert child[30:60] == [1] * 30
    assert 24 <= sum(child[60:]) <= 36


def test_one_item_a_step_is_the_blend_itself() -> None:
    plain = Blend([(0, [3, 2])], lanes=8, key=9)
    assert route(StepBlend(plain, width=1), np.arange(500)) == route(plain, np.arange(500))


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
