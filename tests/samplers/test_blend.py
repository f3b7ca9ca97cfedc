"""Blends by brute force: every lane's rounds one by one, shares after every prefix, and any position asked alone."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from energon_grain.errors import ConfigError
from energon_grain.samplers.blend import Blend
from energon_grain.samplers.hashing import fold, fold_array
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
    blend = Blend(child_weights(children, kind), lanes=lanes, key=fold(children, kind))
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
    blend = Blend(weights, lanes=lanes, key=key)
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
    blend = Blend([3, 4], lanes=lanes, key=1)
    child, _ = blend.route(np.arange(400 * RUN * lanes))
    so_far = np.cumsum(child == 0)[RUN * lanes - 1 :: RUN * lanes]
    rounds = np.arange(1, so_far.size + 1) * RUN
    assert np.array_equal(so_far, 3 * rounds * lanes // 7)


def test_labels_inside_runs_are_permuted_evenly() -> None:
    lanes = 48
    child, _ = Blend([1, 1, 1, 1], lanes=lanes, key=5).route(np.arange(RUN * lanes * 2_000))
    runs = child.reshape(-1, RUN, lanes).transpose(0, 2, 1).reshape(-1, RUN)
    orders = Counter(tuple(run) for run in runs.tolist())
    assert set(orders) == set(itertools.permutations(range(4)))
    expected = len(runs) / 24
    assert sum((count - expected) ** 2 / expected for count in orders.values()) < 23 + 6 * 46**0.5


def test_far_positions_are_exact() -> None:
    weights = [2**30 - 3, 5, 2**29]
    lanes, key = 48, 11
    blend = Blend(weights, lanes=lanes, key=key)
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
    blend = Blend(schedule=segments, lanes=lanes, key=3)
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
    one, other = (Blend([1, 2], lanes=8, key=fold(seed)).route(np.arange(9_600))[0] for seed in (1, 2))
    assert not np.array_equal(one, other)
    assert int(one.sum()) == int(other.sum()) == 6_400


def test_nothing_asked_is_nothing() -> None:
    child, below = Blend([1, 2], lanes=8, key=1).route(np.empty(0, dtype=np.int64))
    assert child.size == below.size == 0


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ([], "the first must begin at 0"),
        ([(1, [1])], "the first must begin at 0"),
        ([(0, [1]), (0, [1])], "each later one after it"),
        ([(0, [1]), (5, [1, 2])], "one weight a child"),
        ([(0, [1, 0]), (5, [2, 0])], "child 1 has weight 0 in every segment"),
        ([(0, [0, 0])], "at least one weight"),
    ],
)
def test_impossible_schedules_are_refused(schedule: list[tuple[int, list[int]]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Blend(schedule=schedule, lanes=4, key=1)


def test_weights_or_a_schedule() -> None:
    with pytest.raises(ConfigError, match="either"):
        Blend(lanes=4, key=1)
    with pytest.raises(ConfigError, match="either"):
        Blend([1], schedule=[(0, [1])], lanes=4, key=1)
