"""Blends with one choice for several items, brute-forced."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from energon_grain.errors import ConfigError
from energon_grain.samplers.blend import Blend, StepBlend

weights = st.lists(st.integers(1, 20), min_size=1, max_size=5)


def route(blend: Blend | StepBlend, positions: object) -> tuple[list[int], list[int]]:
    child, below = blend.route(np.asarray(positions, np.int64))
    return child.tolist(), below.tolist()


def step_blend(weights: list[int], *, lanes: int = 4, width: int = 3, key: int = 5) -> StepBlend:
    return StepBlend(Blend(weights, lanes=lanes, key=key), width=width)


@settings(max_examples=60)
@given(weights=weights, lanes=st.integers(1, 6), width=st.integers(1, 6), key=st.integers(0, 2**64 - 1))
def test_a_choice_holds_for_a_whole_step(weights: list[int], lanes: int, width: int, key: int) -> None:
    blend = step_blend(weights, lanes=lanes, width=width, key=key)
    assert blend.lanes == lanes * width
    child, _ = route(blend, np.arange(200 * width))
    steps = [child[at : at + width] for at in range(0, len(child), width)]
    assert all(len(set(step)) == 1 for step in steps)
    # They are those of the blend of whole steps.
    assert [step[0] for step in steps] == route(Blend(weights, lanes=lanes, key=key), np.arange(200))[0]


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
    blend = StepBlend(Blend(lanes=4, key=3, schedule=[(0, [1, 0]), (10, [0, 1]), (20, [1, 1])]), width=3)
    assert blend.starts == (0, 30, 60)
    child, _ = route(blend, np.arange(120))
    assert child[:30] == [0] * 30
    assert child[30:60] == [1] * 30
    assert 24 <= sum(child[60:]) <= 36


def test_one_item_a_step_is_the_blend_itself() -> None:
    plain = Blend([3, 2], lanes=8, key=9)
    assert route(StepBlend(plain, width=1), np.arange(500)) == route(plain, np.arange(500))


def test_a_step_has_an_item() -> None:
    with pytest.raises(ConfigError, match="at least 1 position"):
        step_blend([1, 1], width=0)
