"""`position_of` of every sampler undoes `route` or `draw`: near, far, in trees, and behind changes of weights."""

from __future__ import annotations

import os
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from energon_grain.amendments.epochs import EpochSegments
from energon_grain.errors import ConfigError
from energon_grain.history.prefixes import Prefix, leaves_of
from energon_grain.planning import cost_blend
from energon_grain.planning.cost_blend import CostBlend
from energon_grain.samplers.blend import Blend, StepBlend, lane_rounds
from energon_grain.samplers.epochized_blend import EpochizedBlend
from energon_grain.samplers.leaf_order import LeafOrder
from energon_grain.samplers.routing import Concat, Limit, Router, RouteTree
from energon_grain.samplers.window_shuffle import WindowShuffle
from energon_grain.stream.index_map import EqualPasses, FractionalPasses
from energon_grain.testing import check_sampler

LANES = 12

NIGHT = os.environ.get("HYPOTHESIS_PROFILE") == "night"


@pytest.mark.parametrize("lanes", [1, 5, 48])
@pytest.mark.parametrize("children", [1, 2, 3, 7, 40])
def test_blends(children: int, lanes: int) -> None:
    weights = np.random.default_rng(children).integers(1, 1000, children).tolist()
    blend = Blend([(0, weights)], lanes=lanes, key=7)
    check_sampler(blend)
    check_sampler(blend, start=(1 << 61) // lanes * lanes + 5, positions=1000)


def test_blends_with_a_schedule_and_segments_of_lanes() -> None:
    random = np.random.default_rng(0)
    for key in range(20):
        schedule: list[tuple[int | npt.NDArray[np.int64], list[int]]] = [(0, [1, 2, 0])]
        at = 0
        for children in (3, 3, 4, 5):
            at += int(random.integers(1, 700))
            weights = [*random.integers(0, 3, children - 1).tolist(), 1]
            begin = lane_rounds(at, LANES) + random.integers(0, 9, LANES)
            schedule.append((begin if random.random() < 0.7 else at, weights))
        check_sampler(Blend(schedule, lanes=LANES, key=key), positions=3000, seed=key)


def test_a_child_without_weight_has_no_further_position() -> None:
    blend = Blend([(0, [1, 1]), (240, [1, 0])], lanes=LANES, key=1)
    used = blend.route(np.arange(240))[1][blend.route(np.arange(240))[0] == 1]
    at = blend.position_of(np.ones(500, np.int32), np.arange(500))
    assert np.array_equal(np.flatnonzero(at >= 0), np.sort(used))


@pytest.mark.parametrize("width", [1, 2, 6])
def test_step_blends(width: int) -> None:
    blend = Blend([(0, [3, 1, 2]), (90, [0, 1, 1])], lanes=LANES // width, key=3)
    check_sampler(StepBlend(blend, width=width))


@pytest.mark.parametrize(
    ("lengths", "repetitions"),
    [([7], [1]), ([30, 11], ["0.5", "2.25"]), ([1, 40, 9, 500, 3], ["0.01", 1, "1.7", "0.333", 3]), ([2, 3], [1, 1])],
)
@pytest.mark.parametrize("lanes", [1, 5, 48])
def test_epochized_blends(lengths: list[int], repetitions: list[Any], lanes: int) -> None:
    blend = EpochizedBlend(lengths, repetitions, lanes=lanes, key=5)
    check_sampler(blend)
    check_sampler(blend, start=10**15, positions=1000)


def test_repetitions_that_change() -> None:
    router = EpochSegments([30, 11, 20], ["0.5", "2.25"], lanes=12, key=4)
    router.append(100, [1, 0, "1.5"])
    router.append(400, ["0.3", 2, 0])
    check_sampler(RouteTree(router, [None, None, None]))
    for position in (0, 37, 99, 100, 160, 401, 900):
        child, below = router.route(np.arange(position))
        for number, prefix in enumerate(leaves_of(RouteTree(router, [None] * 3), Prefix(position))):
            expected = np.sort(below[child == number])
            found = np.setdiff1d(np.concatenate([np.arange(prefix.whole), prefix.rest]), prefix.without)
            assert np.array_equal(found, expected)


def test_huge_epochs() -> None:
    blend = EpochizedBlend([10**15, 3 * 10**16, 5], ["1.25", 1, 7], lanes=48, key=5)
    for start in (0, 10**16, 10**18):
        check_sampler(blend, start=start, positions=1000)
    scattered = np.array([5, 10**17, 10**9, 4 * 10**18, 77])
    assert np.array_equal(blend.position_of(*blend.route(scattered)), scattered)


def test_concatenations_and_limits() -> None:
    check_sampler(Concat([3, 1, 20]))
    check_sampler(Limit(3, 8))
    assert Limit(3, 8).position_of(np.zeros(4, np.int32), np.array([2, 3, 7, 8])).tolist() == [2, -1, -1, 3]


@pytest.mark.parametrize("passes", [None, EqualPasses(37), FractionalPasses(Fraction(71, 3))])
def test_shuffles_in_windows(passes: Any) -> None:
    check_sampler(WindowShuffle(10, 3, passes))


def test_blends_by_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_blend, "_WINDOW", 200)
    monkeypatch.setattr(cost_blend, "_OF_A_CHILD", 1)
    costs = [np.random.default_rng(child).integers(1, 50, 300) for child in range(3)]
    own = [partial(_repeated, each) for each in costs]
    blend = CostBlend([(0, [1, 2, 0]), (900, [1, 0, 1])], own, key=1)
    check_sampler(blend, positions=3000)
    before = int((blend.route(np.arange(900))[0] == 1).sum())
    found = blend.position_of(np.ones(before + 9, np.int32), np.arange(before + 9))
    assert (found[:before] >= 0).all()
    assert (found[before:] == -1).all()


def _repeated(costs: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return costs[positions % len(costs)]


@pytest.mark.parametrize("starts", [None, np.array([0, 3, 3, 40, 100])])
@pytest.mark.parametrize("block", [None, 6])
def test_leaf_orders(block: int | None, starts: npt.NDArray[np.int64] | None) -> None:
    check_sampler(LeafOrder(n=100, key=4, block=block, window=2, passes=2, starts=starts), start=777)
    check_sampler(LeafOrder(n=100, key=4, block=block, runs=True, starts=starts))
    check_sampler(LeafOrder(n=100, key=4, shuffle=False))


@st.composite
def trees(draw: st.DrawFn, depth: int = 3) -> RouteTree:
    below = st.none() | trees(depth - 1) if depth > 1 else st.none()
    children = draw(st.lists(below, min_size=1, max_size=4))
    numbers = [draw(st.integers(1, 30)) for _ in children]
    key = draw(st.integers(0, 99))
    kind = draw(st.sampled_from(["blend", "step", "epochized", "concat", "limit", "window"]))
    router: Router
    if kind == "blend":
        start = draw(st.integers(1, 500))
        router = Blend([(0, numbers), (start, [*reversed(numbers)])], lanes=LANES, key=key)
    elif kind == "step":
        router = StepBlend(Blend([(0, numbers)], lanes=LANES // 3, key=key), width=3)
    elif kind == "epochized":
        router = EpochizedBlend([number + 5 for number in numbers], ["0.7"] * len(numbers), lanes=LANES, key=key)
    elif kind == "concat":
        router = Concat(numbers)
    else:
        children = children[:1]
        router = Limit(3, 2 + numbers[0]) if kind == "limit" else WindowShuffle(numbers[0], key, None)
    return RouteTree(router, children)


@settings(max_examples=200 if NIGHT else 60, deadline=None)
@given(trees(), st.integers(0, 10_000))
def test_trees(tree: RouteTree, start: int) -> None:
    check_sampler(tree, start=start, positions=400)


@pytest.mark.slow
@settings(max_examples=40 if NIGHT else 8, deadline=None)
@given(trees(), st.integers(0, 1 << 40))
def test_a_million_pairs(tree: RouteTree, start: int) -> None:
    check_sampler(tree, start=start, positions=25_000)


class Backwards:
    """A router without an inverse, or with a wrong one."""

    preserves_runs: ClassVar[bool] = False

    def route(self, position: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        return np.zeros(position.size, np.int32), position ^ 1


class Wrong(Backwards):
    def position_of(self, child: npt.NDArray[np.int32], below: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return below ^ 3


def test_what_has_no_inverse_is_named() -> None:
    with pytest.raises(ConfigError, match="Backwards has no `position_of`"):
        RouteTree(Backwards(), [None]).position_of(np.zeros(1, np.int32), np.zeros(1, np.int64))
    with pytest.raises(AssertionError, match="position_of its target"):
        check_sampler(Wrong())
    with pytest.raises(AssertionError, match="no position_of"):
        check_sampler(Backwards())
    with pytest.raises(ConfigError, match="with replacement"):
        check_sampler(LeafOrder(n=100, key=4, replacement=True), positions=1)
